"""The bank and sector rules on patterns with known answers, and traces of small kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulated import run
from texlab import trace as rules

LANE = np.arange(32, dtype=np.uint64)
ALL = np.array([0xFFFFFFFF], np.uint32)
F4 = np.float32


def passes(address, width, mask=ALL):
    return int(rules.wavefronts(np.asarray(address, np.uint64).reshape(1, 32), mask, width)[0])


@pytest.mark.parametrize(
    ("stride", "ways"),
    [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 8), (12, 4), (16, 16), (17, 1), (24, 8), (32, 32), (33, 1)],
)
def test_word_strides(stride, ways):
    assert passes(4 * stride * LANE, 4) == ways


@pytest.mark.parametrize(("stride", "want"), [(16, 4), (32, 8), (80, 4), (128, 32), (144, 4)])
def test_float4_strides(stride, want):
    assert passes(stride * LANE, 16) == want


@pytest.mark.parametrize(("stride", "want"), [(1, 2), (2, 4), (3, 2), (4, 8)])
def test_double_strides(stride, want):
    assert passes(8 * stride * LANE, 8) == want


@pytest.mark.parametrize(("row", "want"), [(16, 4), (32, 8), (48, 4), (64, 16), (80, 4)])
def test_ldmatrix_rows(row, want):
    assert passes(LANE % 16 * row + LANE // 16 * 16, 16) == want


def test_bytes_and_halves_share_words():
    assert passes(LANE, 1) == passes(2 * LANE, 2) == 1


def test_partners_with_equal_addresses_are_served_together():
    assert passes(0 * LANE, 16) == 2  # a full broadcast
    assert passes(16 * (LANE // 2), 16) == 2  # lane ^ 1
    assert passes(16 * (LANE // 4 * 2 + LANE % 2), 16) == 2  # lane ^ 2
    assert passes(0 * LANE, 8) == 1
    assert passes(8 * (LANE // 2), 8) == 1
    mixed = np.where(LANE < 16, LANE // 2, LANE // 4 * 2 + LANE % 2) * 16  # neither rule holds for all lanes
    assert passes(mixed, 16) == 4


def test_inactive_lanes_cost_nothing():
    assert passes(128 * LANE, 4, np.array([0b1011], np.uint32)) == 3
    assert passes(16 * LANE, 16, np.array([0xFF], np.uint32)) == 1
    assert passes(16 * LANE, 16, np.array([0], np.uint32)) == 0
    assert passes(16 * (LANE // 2), 16, np.array([0x55555555], np.uint32)) == 2  # no partner is active


@pytest.mark.parametrize(
    ("address", "width", "sectors", "lines"),
    [
        (4 * LANE, 4, 4, 1),
        (4 * LANE + 4, 4, 5, 2),
        (4 * LANE + 32, 4, 4, 2),
        (8 * LANE, 4, 8, 2),
        (32 * LANE, 4, 32, 8),
        (132 * LANE, 4, 32, 32),
        (LANE, 1, 1, 1),
        (8 * LANE, 8, 8, 2),
        (16 * LANE, 16, 16, 4),
        (4 * (LANE // 30 * 32 + LANE % 30), 4, 5, 2),
    ],
)
def test_sectors_and_lines(address, width, sectors, lines):
    address = address.reshape(1, 32)
    assert rules.sectors(address, ALL, width)[0] == sectors
    assert rules.lines(address, ALL, width)[0] == lines


def slow(address, mask, width):
    """(wavefronts, sectors) of one row, as the docstrings say, lane by lane."""
    on = [i for i in range(32) if mask >> i & 1]
    groups = max(1, width // 4)
    if groups > 1 and any(all(address[i] == address[i ^ s] or i ^ s not in on for i in on) for s in (1, 2)):
        groups //= 2
    total = 0
    for g in range(groups):
        members = [i for i in on if i * groups // 32 == g]
        words = {int(address[i]) // 4 + k for i in members for k in range(max(1, width // 4))}
        total += max((sum(w % 32 == b for w in words) for b in range(32)), default=0)
    return total, len({int(address[i]) // 32 for i in on})


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 2**31), st.integers(1, 300))
def test_rules_against_the_slow_form(mask, width, seed, span):
    rng = np.random.default_rng(seed)
    address = rng.integers(0, span, (4, 32)).astype(np.uint64) * np.uint64(width)
    address[1] = address[1, LANE.astype(int) & ~1]
    address[2] += np.uint64(1 << 40)
    masks = np.array([mask, 0xFFFFFFFF, mask, 1 << (seed % 32)], np.uint32)
    want = [slow(a, int(m), width) for a, m in zip(address, masks, strict=True)]
    assert rules.wavefronts(address, masks, width).tolist() == [w for w, _ in want]
    assert rules.sectors(address, masks, width).tolist() == [s for _, s in want]
    assert rules.wavefront_of(address, masks, width).max(axis=1).tolist() == [w for w, _ in want]


# traces of kernels --------------------------------------------------------------------------------------------------
COLUMN = """#define P PITCH
extern "C" __global__ void k(float* o) {
  __shared__ float t[32][P];
  for (int r = 0; r < 32; ++r) t[r][threadIdx.x] = r;
  __syncthreads();
  o[threadIdx.x] = t[threadIdx.x][0];
}"""


@pytest.mark.parametrize(("pitch", "want"), [(32, 32), (33, 1)])
def test_column_of_a_tile(pitch, want):
    r = run(COLUMN.replace("PITCH", str(pitch)), args=("o",), outputs={"o": ((32,), "float32")}, trace=True)
    assert r.output.tolist() == list(range(32))
    table = r.trace.bank_conflicts()
    load = table[table.kind == "load"].iloc[0]
    assert (load.requests, load.wavefronts, load.conflicts) == (1, want, want - 1)
    assert (load.file, load.line, load.source) == ("test.cu", 6, "o[threadIdx.x] = t[threadIdx.x][0];")
    stores = table[table.kind == "store"]
    assert (stores.wavefronts_per_request == 1).all() and stores.requests.sum() == 32


COPY = 'extern "C" __global__ void k(const T* a, T* o, int s, int k) { o[threadIdx.x] = a[threadIdx.x * s + k]; }'


@pytest.mark.parametrize(
    ("t", "stride", "first", "sectors"),
    [("float", 1, 0, 4), ("float", 1, 1, 5), ("float", 1, 8, 4), ("float", 2, 0, 8), ("float", 8, 0, 32),
     ("float", 33, 0, 32), ("char", 1, 0, 1), ("double", 1, 0, 8), ("float4", 1, 0, 16)],
)  # fmt: skip
def test_sectors_of_a_copy(t, stride, first, sectors):
    dtype, each = {"float": (F4, 1), "char": (np.int8, 1), "double": (np.float64, 1), "float4": (F4, 4)}[t]
    a = np.zeros(each * 1100, dtype)
    r = run(
        COPY.replace("T*", t + "*"),
        args=("a", "o", stride, first),
        trace=True,
        a=a,
        outputs={"o": ((each * 32,), str(a.dtype))},
    )
    table = r.trace.sectors()
    load = table[table.kind == "load"].iloc[0]
    assert load.sectors_per_request == sectors
    assert load.active_lanes_per_request == 32
    assert load.bytes_used == 32 * each * a.itemsize
    assert load.efficiency == load.bytes_used / (32 * sectors)


TAIL = """extern "C" __global__ void k(const float* a, float* o, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) o[i] = a[i] + a[0];
}"""


def tail(**how):
    a = np.arange(100, dtype=F4)
    return run(TAIL, grid=2, block=64, args=("a", "o", 100), outputs={"o": ((100,), "float32")}, a=a, **how)


def test_rows_hold_what_each_warp_did():
    t = tail(trace=True).trace
    assert len(t) == 12 and t.address.shape == (12, 32)
    last = t.select(block=1, warp=1, kind="store")
    assert t.mask[last].tolist() == [0b1111]
    base = t.buffers["o"].base
    assert t.address[last][0, :4].tolist() == [base + 4 * i for i in range(96, 100)]
    assert (np.diff(t.step[t.select(block=0, warp=0)]) > 0).all()
    frame = t.rows(block=1, warp=1)
    assert frame.active_lanes.tolist() == [4, 4, 4]
    assert sorted(frame.sectors) == [1, 1, 1]
    assert t.totals["requests"].tolist() == [4, 4, 4]
    with pytest.raises(ValueError, match="colour"):
        t.select(colour=1)


def test_elements_of_a_buffer():
    t = tail(trace=True).trace
    rows, lanes, flat = t.elements("o")
    assert sorted(flat) == list(range(100))
    assert (t.block[rows] * 64 + t.warp[rows] * 32 + lanes == flat).all()
    assert sorted(t.elements("a")[2]) == sorted([*range(100), *[0] * 100])
    with pytest.raises(KeyError, match="nothing"):
        t.elements("nothing")


def test_elements_of_vector_accesses():
    a = np.zeros(128, F4)
    t = run(
        COPY.replace("T*", "float4*"), args=("a", "o", 1, 0), a=a, outputs={"o": ((128,), "float32")}, trace=True
    ).trace
    rows, lanes, flat = t.elements("a")
    assert flat.tolist() == list(range(128)) and (lanes == flat // 4).all() and len(set(rows)) == 1


def test_totals_do_not_depend_on_the_rows_kept():
    whole, counts, one = (tail(trace=how).trace for how in (True, "counts", [1]))
    for name in rules.TOTALS:
        assert whole.totals[name].tolist() == counts.totals[name].tolist() == one.totals[name].tolist()
    assert len(counts) == 0 and set(one.block) == {1}
    assert whole.by_line().requests.sum() == 12
    for i, ins in enumerate(whole.instructions):
        mine = whole.instruction == i
        assert rules.sectors(whole.address[mine], whole.mask[mine], ins.width).sum() == whole.totals["sectors"][i]


def test_chosen_blocks_of_the_last_launch():
    r = tail(blocks=[1], trace=True)
    assert np.isnan(r.output[:64]).all() and r.output[64:].tolist() == list(range(64, 100))
    assert set(r.trace.block) == {1} and r.counts["blocks"] == 1
    with pytest.raises(ValueError, match=r"blocks 0\.\.1"):
        tail(blocks=[2])


def test_inlined_functions_belong_to_the_line_that_calls_them():
    source = """#line 1 "common.cuh"
__device__ inline float twice(const float* p, int i) {
  return 2 * p[i];
}
#line 1 "test.cu"
__device__ inline float thrice(const float* p, int i) {
  return 3 * p[i];
}
extern "C" __global__ void k(const float* a, float* o) {
  o[threadIdx.x] = twice(a, threadIdx.x)
                 + thrice(a, 31 - threadIdx.x);
}"""
    r = run(source, args=("a", "o"), a=np.ones(32, F4), outputs={"o": ((32,), "float32")}, trace=True)
    loads = [(i.file, i.line, i.source) for i in r.trace.instructions if i.kind == "load"]
    assert sorted(loads) == [
        ("test.cu", 2, "return 3 * p[i];"),
        ("test.cu", 5, "o[threadIdx.x] = twice(a, threadIdx.x)"),
    ]
