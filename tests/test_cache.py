"""The cache model: LRU, sets, reuse distance and sectors against small models written another way; address maps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texlab import cache, texture_bench, texture_probes
from texlab.cache import LINE, SECTORS, Cache, simulate, texel_address
from texlab.views import TextureView

sectors = st.lists(st.integers(0, 60), max_size=80)


def slow_hits(sector: list[int], lines: int, ways: int) -> list[bool]:
    """One list a set, the line used last at its end."""
    sets: list[list[list]] = [[] for _ in range(lines // ways)]
    out = []
    for s in sector:
        mine = sets[s // SECTORS % len(sets)]
        found = next((entry for entry in mine if entry[0] == s // SECTORS), None)
        out.append(found is not None and s in found[1])
        if found is None:
            found = [s // SECTORS, set()]
            if len(mine) == ways:
                mine.pop(0)
        else:
            mine.remove(found)
        found[1].add(s)
        mine.append(found)
    return out


def slow_distance(sector: list[int]) -> list[int]:
    """Different lines between two touches of a line, counted."""
    lines = [s // SECTORS for s in sector]
    out = []
    for n, line in enumerate(lines):
        before = [k for k in range(n) if lines[k] == line]
        out.append(len(set(lines[before[-1] + 1 : n])) if before else -1)
    return out


@settings(max_examples=200, deadline=None)
@given(sectors, st.sampled_from([(1, 1), (4, 4), (4, 1), (8, 2), (16, 4)]))
def test_lru_sets_and_reuse_distance(sector, size):
    lines, ways = size
    hits, distance = simulate(np.array(sector, np.int64), Cache("L1", lines * LINE, ways))
    assert hits.tolist() == slow_hits(sector, lines, ways)
    assert distance.tolist() == slow_distance(sector)


@settings(max_examples=100, deadline=None)
@given(sectors, st.integers(1, 16))
def test_a_line_nearer_than_the_capacity_is_still_there(sector, lines):
    hits, distance = simulate(np.array(sector, np.int64), Cache("L1", lines * LINE))
    held: dict[int, set[int]] = {}
    for s, hit, far in zip(sector, hits, distance, strict=True):
        if not 0 <= far < lines:
            held[s // SECTORS] = set()
        assert hit == (s in held[s // SECTORS])
        held[s // SECTORS].add(s)


def test_sets_make_lines_compete():
    walk = np.array([0, 4 * SECTORS, 0, 4 * SECTORS])  # lines 0 and 4: the same of four sets
    assert simulate(walk, Cache("one way", 4 * LINE, 1))[0].tolist() == [False] * 4
    assert simulate(walk, Cache("one set", 4 * LINE))[0].tolist() == [False, False, True, True]


@pytest.mark.parametrize("layout", cache.MAPS)
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (33, 20), (3, 16, 8)])
@pytest.mark.parametrize(("dtype", "channels"), [("float32", 1), ("float32", 4), ("uint8", 1), ("float16", 4)])
def test_no_two_texels_lie_in_one_place(layout, size, dtype, channels):
    view = TextureView("t", "x", size, channels)
    layer, y, x = np.indices((view.layers, view.height, view.width))
    at = texel_address(view, dtype, layer, y, x, layout).reshape(-1)
    assert at.min() == 0
    assert (np.diff(np.sort(at)) >= view.texel_bytes(dtype)).all()


def test_a_sector_of_a_cuda_array_is_16_bytes_by_2_rows_and_a_line_32_by_4():
    view = TextureView("t", "x", (64, 64))
    y, x = np.indices((64, 64))
    at = texel_address(view, "float32", 0, y, x, "block-linear")
    for unit, high, wide in ((32, 2, 4), (LINE, 4, 8), (512, 8, 16)):
        for block in range(0, at.max(), 997):
            down, right = np.nonzero(at // unit == block // unit)
            assert (np.ptp(down) + 1, np.ptp(right) + 1) == (high, wide)
            assert down.min() % high == right.min() % wide == 0


@pytest.mark.parametrize(
    ("path", "order", "lookups", "sectors"),
    [("global", "row", 4, 4), ("border", "row", 8, 8), ("border", "tile", 8, 4), ("surface", "row", 8, 8),
     ("surface", "tile", 8, 4), ("surface", "zig-zag", 4, 4), ("linear memory", "row", 8, 4)],
)  # fmt: skip
def test_lanes_are_looked_up_in_groups(path, order, lookups, sectors):
    orders = {order: texture_probes.places(order, 32, 32)}
    program = texture_probes.program(path, orders, (32, 32), blocks=1, threads=32, steps=4)
    run = program.run(device="sim", trace=True, **texture_probes.inputs(program, orders))
    served = cache.run(run.trace)
    first = served.row == served.row[0]
    assert (first.sum(), len(np.unique(served.sector[first]))) == (lookups, sectors)
    assert (~served.hit[first]).sum() == sectors  # what one group brought, the next one hits


def test_four_rows_of_a_texture_over_linear_memory_share_a_line():
    orders = {"column": texture_probes.places("column", 64, 64)}
    how = dict(blocks=1, threads=32, steps=4)
    program = texture_probes.program("linear memory", orders, (64, 64), **how)
    run = program.run(device="sim", trace=True, **texture_probes.inputs(program, orders))
    served = cache.run(run.trace)
    assert len(np.unique(served.sector // SECTORS)) == 16
    assert (~served.hit).sum() == 64


def test_the_texels_that_come_with_one_are_those_of_its_sector():
    """Recorded: how long a fetch takes after another one. Texels of one sector are there at once, all others are not."""
    rows = [row for row in texture_bench.load().rows if row["kernel"] == "neighbours"]
    assert len(rows) == 4
    view = TextureView("t", "x", (2048, 2048))
    for row in rows:
        cycles = np.array(row["cycles"]).reshape(row["reach"])
        y, x = np.indices(cycles.shape)
        layout = "block-linear" if row["memory"] == "array" else "row-major"
        sector = texel_address(view, "float32", 0, y, x, layout) // cache.SECTOR
        near = sector == sector[*row["anchor"]]
        assert 1.5 * cycles[near].max() < cycles[~near].min()
