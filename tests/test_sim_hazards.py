"""What the simulator must report, and what it must let pass."""

from __future__ import annotations

import numpy as np
import pytest

from simulated import run
from texlab.program import KernelFault

F4 = np.float32


def faults(kind, source, **how):
    with pytest.raises(KernelFault) as caught:
        run(source, **how)
    assert caught.value.kind == kind, str(caught.value)
    return caught.value


# bounds and alignment -----------------------------------------------------------------------------------------------
STRAY = """extern "C" __global__ void k(const float* a, const int* b, float* o) {
  int t = threadIdx.x;
  if (t < 4) o[t] = a[t] + b[2 * t];
}"""


def test_one_lane_reads_past_the_end():
    arrays = dict(a=np.zeros(4, F4), b=np.arange(5, dtype="i4"))
    e = faults("out-of-bounds", STRAY, block=8, args=("a", "b", "o"), outputs={"o": ((4,), "float32")}, **arrays)
    assert (e.buffer, e.offset, e.thread, e.block, e.line) == ("b", 24, (3, 0, 0), (0, 0, 0), 3)
    assert "byte offset 24 of b, which has 20 bytes" in str(e)
    assert "o[t] = a[t] + b[2 * t];" in str(e)
    assert "more threads" not in str(e)


def test_read_past_the_end_is_right_with_a_longer_array():
    arrays = dict(a=np.zeros(4, F4), b=np.arange(7, dtype="i4"))
    r = run(STRAY, block=8, args=("a", "b", "o"), outputs={"o": ((4,), "float32")}, **arrays)
    assert r.output.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(("index", "offset"), [("-1", -4), ("1 << 28", 1 << 30), ("8", 32)])
def test_write_outside(index, offset):
    source = f'extern "C" __global__ void k(float* o) {{ o[{index}] = 1.f; }}'
    e = faults("out-of-bounds", source, args=("o",), outputs={"o": ((8,), "float32")})
    assert (e.buffer, e.offset) == ("o", offset)


def test_neighbouring_buffers_do_not_touch():
    """The end of one buffer is not the beginning of the next."""
    source = 'extern "C" __global__ void k(const float* a, const float* b, float* o) { o[0] = a[64] + b[0]; }'
    arrays = dict(a=np.zeros(64, F4), b=np.zeros(64, F4))
    assert (
        faults("out-of-bounds", source, args=("a", "b", "o"), outputs={"o": ((1,), "float32")}, **arrays).buffer == "a"
    )


def test_null_pointer():
    source = 'extern "C" __global__ void k(const float* a, float* o) { o[threadIdx.x] = a[threadIdx.x]; }'
    e = faults("out-of-bounds", source, args=(None, "o"), outputs={"o": ((32,), "float32")})
    assert "null pointer" in str(e)


def test_shared_memory_has_an_end():
    source = """extern "C" __global__ void k(float* o, int n) {
      extern __shared__ float s[];
      s[threadIdx.x + n] = 1.f; __syncthreads(); o[threadIdx.x] = s[threadIdx.x + n];
    }"""
    how = dict(block=32, outputs={"o": ((32,), "float32")}, shared=132)
    assert run(source, args=("o", 1), **how).output.sum() == 32
    e = faults("out-of-bounds", source, args=("o", 2), **how)
    assert (e.thread, e.address) == ((31, 0, 0), 132)


ROWS = """extern "C" __global__ void k(const float* x, float* o, int first) {
  float4 v = *(const float4*)(x + first + threadIdx.x * 5); o[threadIdx.x] = v.x + v.y + v.z + v.w; }"""


@pytest.mark.parametrize(("first", "thread", "offset"), [(0, 1, 20), (1, 0, 4)])
def test_float4_needs_aligned_rows(first, thread, offset):
    how = dict(block=4, args=("x", "o", first), outputs={"o": ((4,), "float32")}, x=np.arange(40, dtype=F4))
    e = faults("misaligned", ROWS, **how)
    assert (e.thread[0], e.offset) == (thread, offset)
    assert "multiple of 16" in str(e)


def test_float4_on_every_fourth_row_is_fine():
    source = ROWS.replace("threadIdx.x * 5", "threadIdx.x * 20")
    r = run(source, block=3, args=("x", "o", 0), outputs={"o": ((3,), "float32")}, x=np.arange(60, dtype=F4))
    assert r.output.tolist() == [6, 86, 166]


def test_constant_memory_is_read_only_and_bounded():
    source = """__constant__ float c[4] = {1, 2, 3, 4};
    extern "C" __global__ void k(float* o) { o[threadIdx.x] = c[threadIdx.x]; }"""
    assert run(source, block=4, args=("o",), outputs={"o": ((4,), "float32")}).output.tolist() == [1, 2, 3, 4]
    assert faults("out-of-bounds", source, block=5, args=("o",), outputs={"o": ((5,), "float32")}).buffer == "c"


# uninitialised shared memory ----------------------------------------------------------------------------------------
TREE = """extern "C" __global__ void k(const float* a, float* o) {
  __shared__ float c[8];
  int i = blockIdx.x * 8 + threadIdx.x, l = threadIdx.x;
  if (i < 15) {
    c[l] = a[i];
    __syncthreads();
    for (int p = 1; p < 8; p *= 2) {
      if (l % (2 * p) == 0 GUARD) c[l] += c[l + p];
      __syncthreads();
    }
    if (l == 0) o[blockIdx.x] = c[0];
  }
}"""


def test_sum_of_a_word_nobody_wrote():
    how = dict(grid=2, block=8, args=("a", "o"), outputs={"o": ((2,), "float32")}, a=np.arange(15, dtype=F4))
    e = faults("uninitialised", TREE.replace("GUARD", ""), **how)
    assert (e.block, e.thread, e.address, e.line) == ((1, 0, 0), (6, 0, 0), 28, 8)
    assert "word 7" in str(e)
    assert "thread 7 of block 1 exited without reaching the barrier in line 6" in str(e)
    assert run(TREE.replace("GUARD", "&& i + p < 15"), **how).output.tolist() == [28, 77]


def test_shared_memory_starts_afresh_in_every_block():
    source = """extern "C" __global__ void k(float* o) { __shared__ float s[32];
      if (blockIdx.x == 0) s[threadIdx.x] = 1; __syncthreads(); o[blockIdx.x * 32 + threadIdx.x] = s[31 - threadIdx.x]; }"""
    e = faults("uninitialised", source, grid=3, args=("o",), outputs={"o": ((96,), "float32")})
    assert e.block == (1, 0, 0)


@pytest.mark.parametrize("kind", ["char", "short", "float2", "float4"])
def test_every_width_is_tracked(kind):
    source = f"""extern "C" __global__ void k(float* o, int n) {{ __shared__ {kind} s[64];
      if (threadIdx.x < n) s[threadIdx.x] = {{}}; __syncthreads();
      {kind} v = s[threadIdx.x]; if (*(char*)&v == 0) o[threadIdx.x] = 1; }}"""
    how = dict(block=64, outputs={"o": ((64,), "float32")})
    assert run(source, args=("o", 64), **how).output.sum() == 64
    assert faults("uninitialised", source, args=("o", 61), **how).thread == (61, 0, 0)


# races --------------------------------------------------------------------------------------------------------------
ROUNDS = """extern "C" __global__ void k(float* o) {
  __shared__ float s[64];
  int t = threadIdx.x;
  float y = 0;
  for (int r = 0; r < 3; ++r) {
    s[t] = r + t; __syncthreads();
    y += s[0];
    BARRIER
  }
  o[t] = y;
}"""


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_loop_without_a_second_barrier(schedule):
    how = dict(block=64, args=("o",), outputs={"o": ((64,), "float32")}, schedule=schedule)
    e = faults("race", ROUNDS.replace("BARRIER", ""), **how)
    assert e.address == 0
    assert "word 0" in str(e)
    assert run(ROUNDS.replace("BARRIER", "__syncthreads();"), **how).output.tolist() == [3] * 64


def test_write_after_read_names_both_parties():
    e = faults("race", ROUNDS.replace("BARRIER", ""), block=64, args=("o",), outputs={"o": ((64,), "float32")})
    assert "write after read" in str(e)
    assert (e.thread, e.line) == ((0, 0, 0), 6)
    assert "warp 1" in str(e)


MIRROR = """extern "C" __global__ void k(float* o) { __shared__ float s[128]; int t = threadIdx.x;
  s[t] = t; BARRIER o[t] = s[127 - t]; }"""


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_read_without_barrier(schedule):
    how = dict(block=128, args=("o",), outputs={"o": ((128,), "float32")}, schedule=schedule)
    with pytest.raises(KernelFault) as caught:
        run(MIRROR.replace("BARRIER", ""), **how)
    assert caught.value.kind in ("race", "uninitialised")  # one by one, the other warp has not written yet
    assert run(MIRROR.replace("BARRIER", "__syncthreads();"), **how).output.tolist() == list(range(127, -1, -1))


def test_two_warps_write_one_word():
    source = """extern "C" __global__ void k(float* o, int same) { __shared__ float s[1];
      s[0] = same ? 1 : threadIdx.x; __syncthreads(); o[threadIdx.x] = s[0]; }"""
    how = dict(block=64, outputs={"o": ((64,), "float32")})
    assert "write after write" in str(faults("race", source, args=("o", 0), schedule="warps", **how))
    assert run(source, args=("o", 1), schedule="warps", **how).output.sum() == 64  # the same value: no harm


def test_within_a_warp_is_no_race():
    source = """extern "C" __global__ void k(float* o) { __shared__ float s[64]; int t = threadIdx.x;
      s[t] = t; __syncwarp(); o[t] = s[t ^ 1]; }"""
    r = run(source, block=64, args=("o",), outputs={"o": ((64,), "float32")}, schedule="warps")
    assert r.output.tolist() == [t ^ 1 for t in range(64)]


def test_neighbouring_halves_of_a_word_are_no_race():
    source = """extern "C" __global__ void k(short* o) { __shared__ short s[64]; int t = threadIdx.x;
      s[(t % 32) * 2 + t / 32] = t; __syncthreads(); o[t] = s[t]; }"""
    r = run(source, block=64, args=("o",), outputs={"o": ((64,), "int16")}, schedule="warps")
    assert r.output.tolist() == [t // 2 + t % 2 * 32 for t in range(64)]


def test_double_buffer_needs_one_barrier_a_step():
    source = """extern "C" __global__ void k(const float* x, float* o) { __shared__ float s[2][64]; int t = threadIdx.x;
      float sum = 0; s[0][t] = x[t]; __syncthreads();
      for (int i = 0; i < 4; ++i) {
        if (i < 3) s[(i + 1) & 1][t] = x[64 * (i + 1) + t];
        sum += s[i & 1][63 - t];
        BARRIER
      } o[t] = sum; }"""
    x = np.arange(256, dtype=F4)
    how = dict(block=64, args=("x", "o"), outputs={"o": ((64,), "float32")}, x=x)
    for schedule in ("lockstep", "warps"):
        r = run(source.replace("BARRIER", "__syncthreads();"), schedule=schedule, **how)
        assert r.output.tolist() == x.reshape(4, 64).sum(0)[::-1].tolist()
    faults("race", source.replace("BARRIER", ""), **how)


def test_atomics_on_shared_memory_are_no_race():
    source = """extern "C" __global__ void k(int* o) { __shared__ int n; if (threadIdx.x == 0) n = 0; __syncthreads();
      atomicAdd(&n, 1); __syncthreads(); o[threadIdx.x] = n; }"""
    r = run(source, block=256, args=("o",), outputs={"o": ((256,), "int32")}, schedule="warps")
    assert set(r.output.tolist()) == {256}


# barriers and endless loops -----------------------------------------------------------------------------------------
def test_barrier_in_both_arms():
    source = """extern "C" __global__ void k(float* o) {
      if (threadIdx.x & 1) { asm volatile("bar.sync 0;"); o[0] = 1; }
      else { asm volatile("bar.sync 0;"); o[1] = 1; } }"""
    e = faults("barrier", source, block=64, args=("o",), outputs={"o": ((2,), "float32")})
    assert e.line in (2, 3)
    assert "line 2" in str(e) and "line 3" in str(e)


def test_early_return_may_skip_barriers():
    source = """extern "C" __global__ void k(float* o, int n) { __shared__ float s[64]; int t = threadIdx.x;
      if (t >= n) return; s[t] = t; __syncthreads(); o[t] = s[n - 1 - t]; }"""
    r = run(source, block=64, args=("o", 40), outputs={"o": ((64,), "float32")})
    assert r.output[:40].tolist() == list(range(39, -1, -1))
    assert np.isnan(r.output[40:]).all()


def test_endless_loop_meets_the_step_limit(monkeypatch):
    monkeypatch.setattr("texlab.sim.warps.STEP_LIMIT", 20_000)
    source = 'extern "C" __global__ void k(volatile int* f, int* o) { while (f[0] == 0); o[0] = 1; }'
    e = faults("endless", source, args=("f", "o"), outputs={"o": ((1,), "int32")}, f=np.zeros(1, "i4"))
    assert "20000" in str(e) and "STEP_LIMIT" in str(e)


def test_unknown_instruction_is_named_when_reached():
    source = """extern "C" __global__ void k(float* o, int n) {
      if (n) asm volatile("wgmma.fence.sync.aligned;"); o[0] = 1; }"""
    how = dict(outputs={"o": ((1,), "float32")})
    assert run(source, args=("o", 0), **how).output[0] == 1
    e = faults("unsupported", source, args=("o", 1), **how)
    assert "wgmma.fence" in str(e) and e.line == 2


# launches -----------------------------------------------------------------------------------------------------------
NOTHING = 'extern "C" __global__ void k() {}'


@pytest.mark.parametrize(
    ("grid", "block", "says"),
    [
        ((1, 65536), 1, "grid y 65536 > 65535"),
        ((1, 1, 70000), 1, "grid z 70000 > 65535"),
        ((2**31,), 1, "grid x"),
        (1, 1025, "block x 1025"),
        (1, (1, 1, 65), "block z 65"),
        (1, (64, 32), "2048 threads"),
    ],
)
def test_launch_limits(grid, block, says):
    assert says in str(faults("launch", NOTHING, grid=grid, block=block))


def test_grid_of_nothing():
    r = run(
        'extern "C" __global__ void k(float* o) { o[0] = 1; }', grid=0, args=("o",), outputs={"o": ((1,), "float32")}
    )
    assert np.isnan(r.output[0]) and r.counts["thread_instructions"] == 0


ONE_AND_DYNAMIC = """extern "C" __global__ void k(float* o) { __shared__ volatile int one[1]; extern __shared__ float d[];
  one[0] = 1; d[0] = 2; o[0] = one[0] + d[0]; }"""


@pytest.mark.parametrize("dynamic", [49148, 49152, 65536, 232432])
def test_dynamic_shared_memory_that_fits(dynamic):
    r = run(ONE_AND_DYNAMIC, block=1, args=("o",), outputs={"o": ((1,), "float32")}, shared=dynamic)
    assert r.output[0] == 3


def test_too_much_shared_memory():
    e = faults("launch", ONE_AND_DYNAMIC, block=1, args=("o",), outputs={"o": ((1,), "float32")}, shared=232448)
    for number in ("232448", "16 of static", "232464"):
        assert number in str(e)
    source = 'extern "C" __global__ void k(float* o) { __shared__ volatile char s[%d]; s[0] = 1; o[0] = s[0]; }'
    assert run(source % 49152, block=1, args=("o",), outputs={"o": ((1,), "float32")}).output[0] == 1
    e = faults("launch", source % 49156, block=1, args=("o",), outputs={"o": ((1,), "float32")})
    assert "49156" in str(e) and "49152" in str(e)


VECTOR_OF_THREE = """extern "C" __global__ void k(float* o) { __shared__ __align__(16) float a[4]; int t = threadIdx.x;
  if (t < 3) a[t] = t + 1;
  __syncthreads();
  float4 v = *(float4*)a; o[t] = v.x + v.y + v.z%s; }"""


def test_what_a_widened_load_does_not_use_need_not_be_written():
    how = dict(block=4, args=("o",), outputs={"o": ((4,), "float32")})
    assert run(VECTOR_OF_THREE % "", **how).output.tolist() == [6, 6, 6, 6]
    assert "byte offset 12" in str(faults("uninitialised", VECTOR_OF_THREE % " + v.w", **how))
