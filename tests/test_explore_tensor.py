"""The explorers of fragments and of precisions, and the pictures they draw."""

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from texlab.explore import fragments, precision
from texlab.explore.fragments import COLOURS, find, frames
from texlab.explore.precisions import NAMES, bits, cut_out, scatter, table
from texlab.precision import PRECISIONS
from texlab.program import Program
from texlab.shapes import LAYERS


@pytest.mark.parametrize("name", PRECISIONS)
def test_what_is_found_is_the_rule_of_the_manual(name):
    """PTX ISA, "Matrix fragments for mma.m16n8k*": group = lane / 4, thread in group = lane % 4; registers of 32 bits."""
    found, k = find(name), PRECISIONS[name].k
    each = k // 8  # elements of a register
    row, col = np.indices((16, k))
    assert (found.a.lane == row % 8 * 4 + col % (4 * each) // each).all()
    assert (found.a.register == row // 8 + 2 * (col // (4 * each))).all()
    assert (found.a.part == col % each).all()
    row, col = np.indices((k, 8))
    assert (found.b.lane == col * 4 + row % (4 * each) // each).all()
    assert (found.b.register == row // (4 * each)).all()
    row, col = np.indices((16, 8))
    assert (found.c.lane == row % 8 * 4 + col // 2).all()
    assert (found.c.register == row // 8 * 2 + col % 2).all()
    assert found.right and found.k == k


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRECISIONS)
def test_the_gpu_agrees(name):
    assert find(name, "gpu") == find(name)


def test_a_step_shows_what_one_lane_holds():
    drawn = frames(find("float16"))
    assert drawn["frames"].shape == drawn["tags"].shape == (32, 32 + 256 + 128 + 128)
    for lane in range(32):
        shown = np.isin(drawn["frames"][lane, 32:], COLOURS)
        assert (shown == (drawn["tags"][lane, 32:] == lane)).all()
        assert shown.sum() == 8 + 4 + 4


def test_fragment_explorer():
    explorer = fragments("tf32")
    assert explorer.error.value == "" and "equals" in explorer.verdict.value
    explorer.player.step = 7
    explorer.controls["precision"].value = "int8"
    explorer.wait()
    assert explorer.result.k == 32 and explorer.player.step == 7
    explorer.close()
    with pytest.raises(ValueError, match="float8"):
        fragments("float8")


def test_bits_of_a_number():
    drawn = bits(-1.5)
    rows = drawn["tags"].reshape(6, 32)
    assert rows[0].tolist() == [1, *[0] + [1] * 7, 1, *[0] * 22]
    assert rows[4, :8].tolist() == [1, 0, 1, 1, 1, 1, 0, 0]
    assert (rows[4, 8:] == -1).all()
    for value in (0.0, 1e30, float("inf"), float("nan"), 1e-42):
        assert bits(value)["frames"].shape == (1, 192)


def test_precision_explorer():
    explorer = precision("cv9")
    assert explorer.error.value == ""
    assert set(explorer.result.live) == set(NAMES)
    assert all(row["within"] for row in explorer.result.live.values())
    assert all(name in explorer.table.value for name in NAMES)
    explorer.number.value = 3.25
    assert "3.25" in explorer.player.captions[0]
    explorer.close()
    with pytest.raises(ValueError, match="cv99"):
        precision("cv99")


def test_the_picture_says_where_times_come_from_or_that_there_are_none():
    explorer = precision("cv12", "cancellation")
    from dataclasses import replace

    timed = replace(explorer.result, times=dict.fromkeys(NAMES, 0.25), label="recorded on a card", batch=32)
    assert "recorded on a card" in scatter(timed) and scatter(timed).count("<circle") == len(NAMES)
    assert "0.250" in table(timed) and "1.00×" in table(timed)
    assert "No times are recorded" in scatter(replace(explorer.result, times={}))
    explorer.close()


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_cut_outs_are_small_and_keep_the_filter(layer):
    shape = cut_out(layer)
    assert (shape.r, shape.s, shape.stride) == (layer.r, layer.s, layer.stride)
    assert shape.p == shape.q == 4 and shape.flops < 2e6


def test_program_is_the_kernel_file():
    from texlab.explore.fragments import program

    one = program("float16")
    assert isinstance(one, Program) and "mma.sync.aligned" in one.source and one.needs == "sm_80"
