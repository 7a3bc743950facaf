"""The bank explorer: pictures say what the trace says, mistakes are shown, a wrong mapping is never called good."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from texlab import trace as trace_module
from texlab.explore.bank_frames import bank_frames, shared_rows

ALL = 0xFFFFFFFF


def access(address, *, width=4, mask=ALL, kind="load", line=7):
    """A trace of one shared-memory access, with what the pictures read."""
    address = np.atleast_2d(np.asarray(address, dtype=np.uint64))
    rows = len(address)
    instruction = SimpleNamespace(
        line=line, source="v = tile[t];", opcode=f"ld.shared.b{8 * width}", space="shared", kind=kind, width=width
    )
    return SimpleNamespace(
        instructions=[instruction],
        block=np.zeros(rows, int),
        warp=np.zeros(rows, int),
        instruction=np.zeros(rows, int),
        mask=np.full(rows, mask, np.uint32),
        address=address,
    )


def frames_of(trace, **how):
    return bank_frames(trace, shared_rows(trace, 0, 0), **how)


def split(pictures):
    """Panel name -> (colours, lanes) of the first frame, as (rows, cols) arrays."""
    out, at = {}, 0
    for panel in pictures.load["panels"]:
        cells = panel["rows"] * panel["cols"]
        cut = slice(at, at + cells)
        shape = (panel["rows"], panel["cols"])
        out[panel["name"]] = tuple(pictures.load[part][0, cut].reshape(shape) for part in ("frames", "tags"))
        at += cells
    deep = pictures.wavefronts.max()
    banks = out.pop("banks")
    out |= {"time": tuple(a[:deep] for a in banks), "memory": tuple(a[deep:] for a in banks)}
    assert at == pictures.load["frames"].shape[1] == pictures.load["tags"].shape[1] == len(pictures.load["links"])
    return out


LANES = np.arange(32)


def test_row_read_is_one_full_wavefront():
    pictures = frames_of(access(LANES * 4))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [1]
    assert panels["time"][1].tolist() == [LANES.tolist()]
    assert panels["memory"][1].tolist() == [LANES.tolist()]


@pytest.mark.parametrize(("pitch", "ways"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8), (48, 16), (17, 1), (24, 8)])
def test_column_read_queues_in_one_bank(pitch, ways):
    pictures = frames_of(access(LANES * pitch * 4))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [ways]
    colours, lanes = panels["time"]
    assert colours.shape == (ways, 32)
    assert (lanes >= 0).sum() == 32, "each of the 32 words is delivered exactly once"
    for lane in range(32):  # the bank of a lane in the time panel is the bank of its word
        _, (bank,) = np.where(lanes == lane)
        assert bank == lane * pitch % 32
    assert pictures.load["panels"][2]["notes"][0].startswith(f"{ways} wavefront")


def test_broadcast_is_one_cell_with_the_lowest_lane():
    panels = split(frames_of(access(np.full(32, 64))))
    assert panels["time"][1].max() == 0
    assert (panels["memory"][0] > 0).sum() == 1
    assert (panels["lanes"][0] == 1).all()


def test_wide_load_shows_four_words_a_lane():
    pictures = frames_of(access(LANES * 16, width=16))
    assert pictures.wavefronts.tolist() == [4]
    panels = split(pictures)
    assert panels["lanes"][0][0].tolist() == [1 + lane // 8 for lane in range(32)]
    assert [(panels["memory"][1] == lane).sum() for lane in range(32)] == [4] * 32


def test_idle_lanes_are_blank():
    pictures = frames_of(access(LANES * 128, mask=0b101))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [2]
    assert np.flatnonzero(panels["lanes"][0][0]).tolist() == [0, 2]
    assert "2 lanes" in pictures.load["panels"][1]["notes"][0]


def test_every_picture_agrees_with_the_rules():
    rng = np.random.default_rng(0)
    for width in (1, 2, 4, 8, 16):
        address = rng.integers(0, 256, (200, 32)) * width
        mask = rng.integers(0, 2**32, 200, dtype=np.uint32)
        served = trace_module.wavefront_of(address, mask, width)
        assert (served.max(axis=1) == trace_module.wavefronts(address, mask, width)).all()
        active = (mask[:, None] >> np.arange(32, dtype=np.uint32)) & 1
        assert ((served > 0) == (active == 1)).all()
        pairs = address[:, LANES & ~1]  # every lane shares its partner's address: the hardware's half-warp rule
        full = np.full(200, ALL, np.uint32)
        served = trace_module.wavefront_of(pairs, full, width)
        assert (served.max(axis=1) == trace_module.wavefronts(pairs, full, width)).all()


def test_long_selection_is_cut_and_says_so():
    pictures = frames_of(access(np.tile(LANES * 4, (60, 1))), limit=48)
    assert len(pictures.load["captions"]) == 48
    assert pictures.left_out == 12


def test_nothing_to_show_is_an_error():
    trace = access(LANES * 4)
    with pytest.raises(ValueError, match="no shared-memory access"):
        bank_frames(trace, shared_rows(trace, 0, 5), name="warp 5")
