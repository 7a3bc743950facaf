"""The pipeline explorer: what it shows is the run's, its controls change it, and a removed wait is named."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("anywidget")

from texlab import ablation, gpu
from texlab.catalog import kernels
from texlab.explore import measured_timeline, pipeline
from texlab.explore.pipeline import LEFT_OUT, RUNGS, bars, corner, study, times_table, without
from texlab.explore.pipeline_frames import SLICES, pictures
from texlab.latency import Event
from texlab.player import EMPTY, GREEN, MUTED, ORANGE, SKY
from texlab.results import Result
from texlab.shapes import LAYERS, ConvShape

TILES = {"BLOCK_K": 32, "BLOCK_Q": 128, "BLOCK_C": 8}
SHAPE = ConvShape(n=1, c=5, h=6, w=12, k=32, r=3, s=3)  # six tiles


def memory_of(kernel: str, buffers: int, **tunables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stamps, colours and tile numbers (slices, buffers, rows, columns) of the shared tiles."""
    s = study(kernel, SHAPE, **TILES, **tunables)
    drawn = pictures(s.timeline, s.moments, s.run.trace, TILES, buffers, 4)
    upper, lower = drawn["panels"]
    skip = upper["rows"] * upper["cols"]
    shape = (SLICES, buffers, TILES["BLOCK_C"], lower["cols"])
    return s.timeline.stamps[0], drawn["frames"][:, skip:].reshape(shape), drawn["tags"][:, skip:].reshape(shape)


@pytest.mark.parametrize(
    ("kernel", "buffers", "tunables"),
    [("im2win_zigzag", 1, {}), ("im2win_double_buffer", 2, {}), ("im2win_pipeline", 3, {"STAGES": 3})],
)
def test_the_tiles_go_round_and_are_read_when_they_are_there(kernel, buffers, tunables):
    stamps, colours, tags = memory_of(kernel, buffers, **tunables)
    times = (np.arange(SLICES) + 1) * np.nanmax(stamps) / SLICES
    assert (colours[0] != ORANGE).all()
    assert (tags[-1].reshape(buffers, -1).max(axis=1) == [max(range(b, 6, buffers)) for b in range(buffers)]).all()
    for tile in range(6):
        buffer = tile % buffers
        assert not (tags[:, np.arange(buffers) != buffer] == tile).any()  # each tile has its place
        mine = tags[:, buffer] == tile
        assert mine.reshape(SLICES, -1).all(axis=1).any()  # at some moment the whole place is this tile's
        early = times < stamps[:, tile, Event.ARRIVE].min()
        assert set(np.unique(colours[:, buffer][mine & early[:, None, None]])) <= {SKY}
        during = (times > stamps[:, tile, Event.ARRIVE].max()) & (times < stamps[:, tile, Event.CONSUME].min())
        assert set(np.unique(colours[:, buffer][mine & during[:, None, None]])) <= {GREEN, ORANGE}
    assert {EMPTY, SKY, GREEN, ORANGE} <= set(np.unique(colours)) and MUTED in colours[-1]


def test_a_corner_is_one_block():
    for name, layer in LAYERS.items():
        part = corner(layer, 64, 128, 8)
        assert part.p * part.q <= 128 and part.k <= 64, name
        assert (part.r, part.s, part.stride) == (layer.r, layer.s, layer.stride)
        assert kernels["im2win_pipeline"].program(part).launches[-1].blocks == 1


def test_what_is_left_out_is_left_out():
    counts = {
        (kernel, what): without(kernels[kernel].program(SHAPE), what)[1]
        for kernel in RUNGS.values()
        for what in LEFT_OUT
    }
    assert [counts[k, "the barriers"] for k in RUNGS.values()] == [2, 3, 2]
    assert [counts[k, "the wait"] for k in RUNGS.values()] == [0, 0, 1]
    assert {counts[k, "nothing"] for k in RUNGS.values()} == {0}
    fault = study("im2win_pipeline", SHAPE, left_out="the wait", **TILES).fault
    assert "still being filled by cp.async" in fault and "09_im2win_pipeline.cu" in fault


def test_the_explorer_follows_its_controls():
    explorer = pipeline("im2win_pipeline", shape=SHAPE, BLOCK_K=32)
    assert explorer.error.value == "" and "Right" in explorer.verdict.value
    before = explorer.player.frames.copy()
    explorer.controls["STAGES"].value = 4
    explorer.wait()
    assert explorer.result.tunables == {"STAGES": 4, "BLOCK_K": 32}
    assert explorer.player.frames.shape[1] > before.shape[1]  # four buffers
    explorer.controls["left_out"].value = "the wait"
    explorer.wait()
    assert "still being filled by cp.async" in explorer.verdict.value and explorer.player.stale
    explorer.controls["rung"].value = next(name for name, k in RUNGS.items() if k == "im2win_double_buffer")
    explorer.wait()
    assert (
        "no such wait" in explorer.verdict.value and not explorer.player.stale and explorer.controls["STAGES"].disabled
    )
    explorer.controls["left_out"].value = "nothing"
    explorer.controls["blocks"].value = "as many as fit"
    explorer.wait()
    assert "gets a tile done every" in explorer.verdict.value
    explorer.close()
    with pytest.raises(ValueError, match="im2win_tile"):
        pipeline("im2win_tile")


def test_times_mark_the_kernel_shown_and_say_where_they_come_from():
    rows = []
    for i, step in enumerate(ablation.STEPS):
        row = {"layer": "cv9", "n": 128, "kernel": step.kernel, "tunables": dict(step.tunables), "verified": True}
        rows.append(
            row | {"kernel_ms": 1.0 + i, "kernel_ms_p10": 1.0 + i, "kernel_ms_p90": 1.0 + i, "resident_blocks": 3}
        )
    result = Result(rows, {"gpu": "NVIDIA H200"}, "2026-11-30", "abc", recorded=True)
    html = bars(result, "cv9", "im2win_pipeline")
    assert html.count("▸") == 1 and html.index("▸") < html.index("cp.async, 2 stages") < html.index(
        "cp.async, 3 stages"
    )
    assert "recorded on NVIDIA H200" in html
    assert "▸" not in bars(result, "cv9", "im2win_pipeline BLOCK_K=32")


@pytest.mark.skipif(gpu.available(), reason="for machines without a GPU")
def test_recorded_timelines_and_times_are_shown_with_their_label():
    for kernel, tunables in ablation.TIMELINES:
        look = measured_timeline(kernel, **tunables)
        assert look.how == "recorded" and "recorded on NVIDIA" in look.label and look.overhead is not None
        assert "recorded on NVIDIA" in look.chart(steps=3).get_suptitle()
    assert measured_timeline("im2win_pipeline").name == "im2win_pipeline STAGES=2"
    assert "recorded on NVIDIA" in times_table("im2win_zigzag", {}, "cv1")
    with pytest.raises(FileNotFoundError, match="BLOCK_K"):
        measured_timeline("im2win_zigzag", BLOCK_K=32)
