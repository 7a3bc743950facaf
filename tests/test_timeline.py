"""Stamps: nothing where the switch is off, the right order where it is on, and numbers that follow from them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from texlab import compiler, latency
from texlab.catalog import kernels
from texlab.latency import Costs, Event, Op
from texlab.reference import assert_matches, conv2d_reference
from texlab.results import Result
from texlab.shapes import ConvShape
from texlab.timeline import Timeline, from_row, on_one_multiprocessor, stamped, timeline

SHAPE = ConvShape(n=1, c=5, h=6, w=12, k=32, r=3, s=3)
SMALL = {"BLOCK_K": 32, "BLOCK_Q": 128}  # two warps
RUNGS = ("im2win_zigzag", "im2win_double_buffer", "im2win_pipeline")
NAN = np.nan


def arrays(shape: ConvShape = SHAPE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal(shape.x_shape, "f4"), "w": rng.standard_normal(shape.w_shape, "f4")}


def look(kernel: str, **how) -> Timeline:
    tunables = {k: v for k, v in how.items() if k.isupper()}
    how = {k: v for k, v in how.items() if not k.isupper()}
    return timeline(kernels[kernel].program(SHAPE, **SMALL, **tunables), device="sim", **how, **arrays())


# the switch ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kernel", RUNGS)
def test_nothing_is_left_of_the_stamps_when_they_are_off(kernel):
    program = kernels[kernel].program(SHAPE)
    start = program.source.index("#define STAMP(event, step)\n") + len("#define STAMP(event, step)\n")
    head, body = program.source[:start], program.source[start:]
    bare = re.sub(r"(if \(more\) )?STAMP\([^;]*\);| TIMELINE_PARAMETERS", "", body)
    assert bare.count("\n") == body.count("\n") and "STAMP" not in bare and "STAMP" in body
    assert compiler.ptx(replace(program, source=head + bare)) == compiler.ptx(program)
    assert "clock64" not in compiler.ptx(program)


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("kernel", RUNGS)
def test_stamps_change_no_result_and_stay_in_their_buffer(kernel, schedule):
    program = stamped(kernels[kernel].program(SHAPE, **SMALL), first=0, blocks=1, steps=4)
    run = program.run(device="sim", schedule=schedule, **arrays())
    assert_matches(run.outputs["y"], conv2d_reference(**arrays()), atol=1e-4)
    stamps = run.outputs["timeline"]
    assert stamps.shape == (1, 2, 5, 4)
    assert (stamps[:, :, -1] == [0, -1, -1, -1]).all()  # the multiprocessor
    wanted = [Event.ISSUE, Event.ARRIVE, Event.CONSUME] + [Event.ISSUED] * (kernel != "im2win_zigzag")
    assert (stamps[:, :, :-1, wanted] >= 0).all()


def test_only_the_blocks_asked_for_stamp():
    shape = SHAPE.with_(h=20)
    program = stamped(kernels["im2win_zigzag"].program(shape, BLOCK_K=32, BLOCK_Q=64), first=1, blocks=2, steps=3)
    assert program.launches[-1].blocks == 3
    stamps = program.run(device="sim", **arrays(shape)).outputs["timeline"]
    assert (stamps[:, :, :-1, Event.ARRIVE] >= 0).all()


def test_what_cannot_be_stamped_is_refused():
    with pytest.raises(ValueError, match="STAMP"):
        stamped(kernels["direct"].program(SHAPE))
    program = kernels["im2win_zigzag"].program(SHAPE)
    with pytest.raises(ValueError, match="blocks 3 to 3: the launch has 1"):
        stamped(program, first=3)
    with pytest.raises(ValueError, match="steps=0"):
        stamped(program, steps=0)
    with pytest.raises(ValueError, match="resident=0"):
        timeline(program, device="sim", resident=0, **arrays())


# order and model ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kernel", "ahead"), [(("im2win_zigzag", {}), 0), (("im2win_double_buffer", {}), 1)]
    + [(("im2win_pipeline", {"STAGES": n}), n - 1) for n in (1, 2, 3, 5)], ids=str
)  # fmt: skip
def test_the_order_is_the_kernels(kernel, ahead):
    """A tile's loads begin exactly ``ahead`` tiles before it is used up: after the one ``ahead + 1`` earlier."""
    name, tunables = kernel
    s = look(name, **tunables).stamps[0]
    assert s.shape == (2, 6, 4)
    assert (s[..., Event.ISSUE] < s[..., Event.ARRIVE]).all() and (s[..., Event.ARRIVE] < s[..., Event.CONSUME]).all()
    tiles = s.shape[1]
    for tile in range(tiles):
        used = s[:, :, Event.CONSUME] <= s[:, tile, Event.ISSUE, None]
        assert (used.sum(axis=1) == max(0, tile - ahead)).all()
    assert np.ptp(s[..., Event.ARRIVE], axis=0).max() < 60  # a barrier: all warps at about the same time


def test_the_model_shows_what_each_rung_hides():
    plain, double, one, two = (
        look(k, **t) for k, t in [("im2win_zigzag", {}), ("im2win_double_buffer", {}), ("im2win_pipeline", {"STAGES": 1}),
                                  ("im2win_pipeline", {"STAGES": 2})]
    )  # fmt: skip
    assert plain.overlap == one.overlap == 0
    assert double.overlap > 0.5 and two.overlap > 0.5
    assert plain.exposed > latency.COSTS.dram and one.exposed > latency.COSTS.dram - 150  # less what issuing takes
    assert double.exposed < plain.exposed / 2 and two.exposed < one.exposed / 2
    assert "modelled" in plain.label and plain.how == "modelled" and plain.overhead is None


def test_other_blocks_hide_latency_too():
    """With more blocks a step takes each longer, but the multiprocessor less."""
    alone, shared = look("im2win_zigzag"), look("im2win_zigzag", resident=3)
    assert shared.stamps.shape[0] == 3 and shared.blocks == (0, 1, 2)
    assert shared.per_step > alone.per_step and shared.per_tile < 0.7 * alone.per_tile


def test_play_by_hand():
    """Two warps: a load, a store of it, a barrier, ten instructions."""
    costs = Costs(dram=100, l1=10, shared=20, sectors_per_cycle=2.0)
    ops = [
        Op("stamp", event=Event.ISSUE),
        Op("load", issue=1, cost=4, latency=100),
        Op("store", issue=1, cost=2),
        Op("bar"),
        Op("stamp", event=Event.ARRIVE),
        Op("read", issue=1, cost=2),
        Op("work", issue=9),
        Op("stamp", event=Event.CONSUME),
    ]
    s = latency.play([ops, ops], steps=1, costs=costs)[0][0, :, 0]
    # warp 1's sectors follow warp 0's: 1 + 4/2 + 4/2 + 100, then its store is issued, and both pass the barrier
    assert (s[:, Event.ISSUE] == 0).all() and (s[:, Event.ARRIVE] == 106).all()
    # the store holds shared memory until 108: the first read 108 + 20, the second two wavefronts later
    assert sorted(s[:, Event.CONSUME]) == [108 + 20 + 9, 110 + 20 + 9]
    assert np.isnan(s[:, Event.ISSUED]).all()


# intervals ----------------------------------------------------------------------------------------------------------
def by_hand(*tiles, how="modelled", **more) -> Timeline:
    return Timeline("k", np.array([[tiles]], float), (7,), 3, how, "by hand", **more)


def test_overlap_and_exposed_latency_by_hand():
    t = by_hand((0, 10, 100, 200), (110, 120, 250, 300))  # the second tile's loads run while the first is multiplied
    assert t.multiplies[0, 0].tolist() == [[120, 200], [250, 300]]
    assert t.waits[0, 0].tolist() == [[10, 100], [200, 250]]
    assert t.overlap == pytest.approx(80 / (100 + 140))
    assert t.exposed == 50 and t.per_step == 150
    table = t.df
    assert list(table.columns) == ["block", "warp", "step", "event", "start", "end", "unit"]
    assert (
        set(table.event) == {"load", "issue", "wait", "multiply"}
        and set(table.block) == {7}
        and set(table.unit) == {"cycles"}
    )
    assert (table.end >= table.start).all()
    serial = by_hand((0, NAN, 100, 200), (210, NAN, 300, 400))
    assert serial.overlap == 0 and serial.waits[0, 0].tolist() == [[0, 100], [210, 300]]


def test_a_recording_comes_back():
    t = by_hand((0, NAN, 100, 200), (210, NAN, 300, 400), how="measured", ms=2.0, ms_stamped=2.1)
    row = {"layer": "cv9", "n": 128, "kernel": "im2win_pipeline", "tunables": {"STAGES": 2}} | t.row()
    back = from_row(row, Result([row], {"gpu": "NVIDIA H200"}, "2026-11-30", "abc", recorded=True))
    np.testing.assert_array_equal(back.stamps, t.stamps)
    assert back.name == "im2win_pipeline STAGES=2" and back.blocks == (7,) and back.sm == 3
    assert back.label.startswith("cv9, N = 128; recorded on NVIDIA H200, 2026-11-30, commit abc")
    assert back.overhead == pytest.approx(0.05) and "+5.0%" in back.summary()


def test_blocks_of_one_multiprocessor_at_one_time():
    stamps = np.full((4, 1, 3, 4), -1, np.int64)
    stamps[:, 0, -1, 0] = [5, 5, 6, 5]
    stamps[:, 0, 0, Event.ISSUE] = [100, 140, 120, 900]
    stamps[:, 0, 1, Event.CONSUME] = [200, 260, 220, 999]
    kept, sm = on_one_multiprocessor(stamps, 1)
    assert kept.tolist() == [1, 0] and sm == 5


def test_the_chart_says_where_it_comes_from_and_draws_every_interval():
    t = look("im2win_pipeline", STAGES=3)
    figure = t.chart(steps=4, warps=2)
    (axis,) = figure.axes
    texts = [text.get_text() for text in axis.texts]
    assert {"0", "1", "2", "3"} <= set(texts)
    assert "modelled" in figure.get_suptitle() and "modelled" in axis.get_xlabel()
    assert len(axis.patches) >= 2 * 4 * 3
    assert figure._repr_png_()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="no stamps"):
        by_hand((NAN,) * 4).chart()


# on a GPU -----------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("kernel", RUNGS)
def test_measured_stamps(kernel):
    shape = ConvShape(n=8, c=64, h=56, w=56, k=64, r=3, s=3)
    t = timeline(kernels[kernel].program(shape), device="gpu", **arrays(shape))
    s = t.stamps[0]
    assert t.how == "measured" and "measured live on" in t.label
    assert (s[..., Event.ISSUE] < s[..., Event.ARRIVE]).all() and (s[..., Event.ARRIVE] < s[..., Event.CONSUME]).all()
    assert t.ms > 0 and t.ms_stamped > 0 and t.overhead < 1
    assert (t.overlap == 0) == (kernel == "im2win_zigzag")
