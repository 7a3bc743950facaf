"""Control flow, warp-wide instructions, parameters, device functions, time limits."""

from __future__ import annotations

import _thread
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated import program, run
from texlab.program import Buffer, KernelFault, Launch, Program
from texlab.sim import TooLong

F4 = np.float32


def ints(source, n=64, **how):
    how = dict(block=n, args=("o",), outputs={"o": ((n,), "int32")}) | how
    return run(source, **how).output.tolist()


# divergence ---------------------------------------------------------------------------------------------------------
COLLATZ = """extern "C" __global__ void k(int* o) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = i + 1, steps = 0;
  while (n != 1) { if (n % 2) n = 3 * n + 1; else n /= 2; ++steps; }
  o[i] = steps; }"""


def collatz(n):
    steps = 0
    while n != 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_every_lane_its_own_trip_count(schedule):
    got = ints(COLLATZ, 96, grid=3, outputs={"o": ((288,), "int32")}, schedule=schedule)
    assert got == [collatz(i + 1) for i in range(288)]


@settings(max_examples=15)
@given(st.integers(1, 200), st.integers(1, 3), st.integers(0, 2**31))
def test_random_nests_of_loops_and_branches(threads, grid, seed):
    rng = np.random.default_rng(seed)
    a, b, c = (int(v) for v in rng.integers(1, 9, 3))
    source = f"""extern "C" __global__ void k(int* o) {{
      int i = blockIdx.x * blockDim.x + threadIdx.x, s = 0;
      if (i % {a} == {a - 1}) {{ o[i] = -1; return; }}
      for (int x = 0; x < i % {b} + 1; ++x) {{
        for (int y = x; y < {c}; ++y) {{
          if ((x * y + i) % 3 == 0) continue;
          if (s > 50 + i) break;
          s += x + 2 * y;
        }}
        switch (i % 4) {{ case 0: s += 1; break; case 1: s ^= x; break; case 2: s -= i; default: s += 7; }}
      }}
      o[i] = s; }}"""

    def want(i):
        s = 0
        if i % a == a - 1:
            return -1
        for x in range(i % b + 1):
            for y in range(x, c):
                if (x * y + i) % 3 == 0:
                    continue
                if s > 50 + i:
                    break
                s += x + 2 * y
            s = [s + 1, s ^ x, s - i + 7, s + 7][i % 4]
        return s

    n = threads * grid
    got = ints(source, threads, grid=grid, outputs={"o": ((n,), "int32")})
    assert got == [want(i) for i in range(n)]


def test_lanes_meet_again_behind_a_branch():
    """After an if/else the warp is whole: a row of the trace for each store, all lanes active."""
    source = """extern "C" __global__ void k(const int* a, int* o) { int t = threadIdx.x, v;
      if (t % 3 == 0) v = a[t] * 2; else if (t % 3 == 1) v = a[t + 1]; else v = 5;
      o[t] = v; }"""
    a = np.arange(65, dtype="i4")
    r = run(source, block=64, args=("a", "o"), a=a, outputs={"o": ((64,), "int32")}, trace=True)
    assert r.output.tolist() == [2 * t if t % 3 == 0 else t + 1 if t % 3 == 1 else 5 for t in range(64)]
    assert r.trace.mask[r.trace.select(kind="store")].tolist() == [0xFFFFFFFF] * 2


def test_instruction_counts_follow_the_lanes():
    source = 'extern "C" __global__ void k(float* o) { if (threadIdx.x < 3) o[threadIdx.x] = 1; }'
    r = run(source, block=64, args=("o",), outputs={"o": ((64,), "float32")}, trace="counts")
    store = r.trace.sectors().iloc[0]
    assert (store.requests, store.active_lanes_per_request) == (1, 3)
    assert r.counts["warp_instructions"] * 32 > r.counts["thread_instructions"] > 64


# warp-wide instructions ---------------------------------------------------------------------------------------------
def test_shuffles():
    source = """extern "C" __global__ void k(int* o) { int t = threadIdx.x, l = t % 32;
      int a = __shfl_sync(~0u, t, 5), b = __shfl_up_sync(~0u, t, 3), c = __shfl_down_sync(~0u, t, 9);
      int d = __shfl_xor_sync(~0u, t, 12), e = __shfl_down_sync(~0u, t, 2, 8), f = __shfl_sync(~0u, t, l + 1, 16);
      o[t] = a; o[64 + t] = b; o[128 + t] = c; o[192 + t] = d; o[256 + t] = e; o[320 + t] = f; }"""
    got = np.array(ints(source, outputs={"o": ((384,), "int32")})).reshape(6, 64)
    t = np.arange(64)
    lane, base = t % 32, t // 32 * 32
    want = [
        base + 5,
        np.where(lane >= 3, t - 3, t),
        np.where(lane + 9 < 32, t + 9, t),
        base + (lane ^ 12),
        np.where(lane % 8 + 2 < 8, t + 2, t),
        t // 16 * 16 + (lane + 1) % 16,
    ]
    assert (got == want).all()


def test_warp_sum_with_a_ragged_last_warp():
    source = """extern "C" __global__ void k(int* o) { int v = threadIdx.x + 1;
      unsigned m = __activemask(); for (int d = __popc(m) / 2; d; d /= 2) v += __shfl_xor_sync(m, v, d);
      o[threadIdx.x] = v; o[64 + threadIdx.x] = __popc(m); }"""
    got = ints(source, 48, outputs={"o": ((112,), "int32")})
    assert got[:48] == [528] * 32 + [sum(range(33, 49))] * 16 and got[64:112] == [32] * 32 + [16] * 16


def test_votes_and_reductions():
    source = """extern "C" __global__ void k(int* o) { int t = threadIdx.x; bool p = t % 3 == 0;
      o[t] = __ballot_sync(~0u, p); o[64 + t] = __any_sync(~0u, t == 40) * 2 + __all_sync(~0u, t < 32);
      o[128 + t] = __reduce_add_sync(~0u, t); o[192 + t] = __match_any_sync(~0u, t % 5); }"""
    got = np.array(ints(source, outputs={"o": ((256,), "int32")})).reshape(4, 64)
    for w in (0, 1):
        lanes = range(32 * w, 32 * w + 32)
        bits = lambda f: int(np.uint32(sum(1 << t % 32 for t in lanes if f(t))).view("i4"))  # noqa: B023, E731
        assert set(got[0, lanes]) == {bits(lambda t: t % 3 == 0)}
        assert set(got[1, lanes]) == {1 if w == 0 else 2}
        assert set(got[2, lanes]) == {sum(lanes)}
        assert got[3, lanes].tolist() == [bits(lambda s, t=t: s % 5 == t % 5) for t in lanes]


def test_votes_at_a_barrier():
    source = """extern "C" __global__ void k(int* o) { int t = threadIdx.x;
      int n = __syncthreads_count(t % 3 == 0), a = __syncthreads_and(t < 96), b = __syncthreads_or(t == 70 && blockIdx.x);
      o[blockIdx.x * 96 + t] = n + 100 * !!a + 1000 * !!b; }"""
    for schedule in ("lockstep", "warps"):
        got = ints(source, 96, grid=2, outputs={"o": ((192,), "int32")}, schedule=schedule)
        assert got == [132] * 96 + [1132] * 96


def test_a_shuffle_needs_all_the_lanes_it_names():
    source = """extern "C" __global__ void k(int* o) { int t = threadIdx.x, v = t;
      if (t < 16) v = __shfl_sync(MASK, t, 3); __syncthreads(); o[t] = v; }"""
    assert ints(source.replace("MASK", "0xffffu"), 32) == [3] * 16 + list(range(16, 32))
    with pytest.raises(KernelFault, match="0xffff0000") as caught:
        ints(source.replace("MASK", "~0u"), 32)
    assert caught.value.kind == "warp-divergence"


def test_named_barriers_for_some_of_the_warps():
    source = """extern "C" __global__ void k(int* o) { __shared__ int s[64]; int t = threadIdx.x;
      if (t < 64) { s[t] = t; asm volatile("bar.sync 1, 64;" ::: "memory"); o[t] = s[63 - t]; }
      else o[t] = 7; }"""
    assert ints(source, 128) == list(range(63, -1, -1)) + [7] * 64


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_waiting_for_another_warp(schedule):
    """A warp that spins does not keep the one it waits for from running."""
    source = """extern "C" __global__ void k(int* o) { __shared__ volatile int ready; int t = threadIdx.x;
      if (t == 0) ready = 0; __syncthreads();
      if (t < 32) { while (atomicAdd((int*)&ready, 0) < 3) ; o[t] = 7; }
      else { o[t] = t; if (t % 32 == 0) atomicAdd((int*)&ready, 1); } }"""
    assert ints(source, 128, schedule=schedule) == [7] * 32 + list(range(32, 128))


def test_a_lock_taken_by_every_lane():
    source = """extern "C" __global__ void k(int* o, int* lock) { bool done = false;
      while (!done) if (atomicCAS(lock, 0, 1) == 0) {
        o[0] = threadIdx.x == 0 && blockIdx.x == 0 ? 1 : o[0] + 1; __threadfence(); atomicExch(lock, 0); done = true; } }"""
    r = run(source, grid=2, args=("o", "lock"), outputs={"o": ((1,), "int32")}, lock=np.zeros(1, "i4"))
    assert r.output[0] == 64


# memory spaces ------------------------------------------------------------------------------------------------------
def test_local_arrays_and_generic_pointers():
    source = """__device__ int g[4] = {10, 20, 30, 40};
    extern "C" __global__ void k(int* o, int n) { __shared__ int s[32]; int a[8]; int t = threadIdx.x;
      for (int i = 0; i < n; ++i) a[i] = t * i; s[t] = -t; __syncwarp();
      int* p = t % 3 == 0 ? &a[t % 8] : t % 3 == 1 ? &s[31 - t] : &g[t % 4];
      o[t] = *p; *p = 1; __syncwarp(); o[32 + t] = a[t % 8] + s[t]; }"""
    got = ints(source, 32, args=("o", 8), outputs={"o": ((64,), "int32")})
    pick = lambda t: [t * (t % 8), t - 31, 10 * (t % 4 + 1)][t % 3]  # noqa: E731
    assert got[:32] == [pick(t) for t in range(32)]
    first = [1 if t % 3 == 0 else t * (t % 8) for t in range(32)]
    second = [1 if (31 - t) % 3 == 1 else -t for t in range(32)]
    assert got[32:] == [x + y for x, y in zip(first, second, strict=True)]


def test_atomics():
    source = """extern "C" __global__ void k(int* o, float* f, unsigned* u) { int t = blockIdx.x * 64 + threadIdx.x;
      o[8 + t] = atomicAdd(&o[t % 4], t); atomicMax(&o[4], t); atomicMin(&o[5], -t); atomicExch(&o[6], 9);
      atomicCAS(&o[7], 0, 77); atomicAdd(&f[0], 0.5f); atomicInc(&u[0], 9); atomicXor(&u[1], t); }"""
    arrays = dict(o=np.zeros(136, "i4"), f=np.zeros(1, F4), u=np.zeros(2, "u4"))
    source = source.replace("int* o,", "int* o, int* r,").replace("{ int t", "{ int t", 1)
    copy = """ __syncthreads(); __threadfence(); }
    extern "C" __global__ void copy(const int* o, const float* f, const unsigned* u, int* r) { int t = threadIdx.x;
      if (t < 136) r[t] = o[t]; if (t == 0) { r[136] = f[0] * 2; r[137] = u[0]; r[138] = u[1]; } }"""
    source = source[: source.rindex("}")] + copy
    buffers = (*(Buffer(n, a.shape, str(a.dtype)) for n, a in arrays.items()), Buffer("r", (139,), "int32", "output"))
    launches = (
        Launch("k", (2, 1, 1), (64, 1, 1), ("o", "r", "f", "u")),
        Launch("copy", (1, 1, 1), (160, 1, 1), ("o", "f", "u", "r")),
    )
    r = Program("a", source, buffers, launches).run(**arrays).output.tolist()
    for k in range(4):
        mine = list(range(k, 128, 4))
        assert r[k] == sum(mine)
        assert sorted(r[8 + t] for t in mine)[0] == 0
        seen = sorted((r[8 + t], t) for t in mine if t)
        assert seen[-1][0] + seen[-1][1] == sum(mine)  # the last addition met all others
    assert r[4:8] == [127, -127, 9, 77]
    assert r[136:] == [128, 128 % 10, 0]


def test_device_functions_that_stay_functions():
    source = """struct P { int a; float b; short c[3]; };
    __device__ __noinline__ int f(int x, int y) { int s = 0; for (int i = 0; i < y; ++i) s += x; return s; }
    __device__ __noinline__ P make(int x) { P p; p.a = x; p.b = 2 * x; p.c[0] = 1; p.c[1] = x + 1; p.c[2] = 3; return p; }
    __device__ __noinline__ float use(P p) { return p.a + p.b + p.c[1] + f(p.c[2], 2); }
    extern "C" __global__ void k(float* o) { o[threadIdx.x] = use(make(threadIdx.x)) + f(threadIdx.x, threadIdx.x % 5); }"""
    got = run(source, args=("o",), outputs={"o": ((32,), "float32")}).output
    assert got.tolist() == [t + 2 * t + t + 1 + 6 + t * (t % 5) for t in range(32)]


# parameters ---------------------------------------------------------------------------------------------------------
def test_structs_by_value_and_small_types():
    kind = np.dtype([("n", "i4"), ("f", "f4"), ("d", "f8"), ("v", "i2", (3,))], align=True)
    value = np.zeros((), kind)
    value["n"], value["f"], value["d"], value["v"] = -3, 0.25, 1e10, [1, 2, 3]
    source = """struct S { int n; float f; double d; short v[3]; };
    extern "C" __global__ void k(double* o, char c, S s, bool flag, unsigned long long u, const S t) {
      int i = threadIdx.x; o[i] = i == 0 ? c : i == 1 ? s.n : i == 2 ? s.f : i == 3 ? s.d : i == 4 ? s.v[2] : i == 5 ? flag
           : i == 6 ? (double)u : t.v[i % 3]; }"""
    args = ("o", -5, value, True, 2**63, value)
    got = run(source, block=9, args=args, outputs={"o": ((9,), "float64")}).output
    assert got.tolist() == [-5, -3, 0.25, 1e10, 3, 1, 2.0**63, 2, 3]


@pytest.mark.parametrize("value", [2.0, 1.5, 0.1, 3.14])
def test_python_numbers_take_the_declared_type(value):
    source = 'extern "C" __global__ void k(float* o, float a, double b) { o[0] = a; o[1] = b; }'
    got = run(source, block=1, args=("o", value, value), outputs={"o": ((2,), "float32")}).output
    assert (got == F4(value)).all()


def test_index_that_wraps_at_32_bits():
    source = """extern "C" __global__ void k(long long* o) { long long i = INDEX; o[threadIdx.x] = i; }"""
    how = dict(grid=16777217, block=256, args=("o",), outputs={"o": ((256,), "int64")}, blocks=[16777216])
    narrow = run(source.replace("INDEX", "blockIdx.x * blockDim.x + threadIdx.x"), **how).output
    wide = run(source.replace("INDEX", "(long long)blockIdx.x * blockDim.x + threadIdx.x"), **how).output
    assert narrow.tolist() == list(range(256))
    assert wide.tolist() == list(range(2**32, 2**32 + 256))


def test_three_dimensional_launch():
    source = """extern "C" __global__ void k(int* o) {
      int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      o[b * 24 + t] = 10000 * blockIdx.z + 1000 * blockIdx.y + 100 * blockIdx.x
        + 9 * threadIdx.z + 3 * threadIdx.y + threadIdx.x; }"""
    got = run(source, grid=(2, 3, 2), block=(3, 2, 4), args=("o",), outputs={"o": ((288,), "int32")}).output
    z, y, x, c, b, a = np.indices((2, 3, 2, 4, 2, 3))
    assert (got == (10000 * z + 1000 * y + 100 * x + 9 * c + 3 * b + a).ravel()).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="takes 2 arguments, the launch has 1"):
        run(
            'extern "C" __global__ void k(float* o, int n) { o[n] = 1; }', args=("o",), outputs={"o": ((2,), "float32")}
        )
    with pytest.raises(ValueError, match="schedule='random'"):
        run('extern "C" __global__ void k() {}', schedule="random")


# time ---------------------------------------------------------------------------------------------------------------
SLOW = """extern "C" __global__ void k(float* o, int n) { float s = 0; for (int i = 0; i < n; ++i) s = s * 0.5f + i;
  o[threadIdx.x] = s; }"""


def test_a_long_run_says_how_long():
    p = program(SLOW, grid=100_000, block=1024, args=("o", 200), outputs={"o": ((1024,), "float32")})
    with pytest.raises(TooLong, match=r"100000 blocks would take about \d+ s, more than limit=0\.5 s.*blocks=range"):
        p.run(limit=0.5)
    assert not np.isnan(p.run(limit=None, blocks=range(2)).output).any()


def test_a_long_block_is_interrupted():
    p = program(SLOW, block=1024, args=("o", 1_000_000), outputs={"o": ((1024,), "float32")})
    with pytest.raises(TooLong, match=r"limit=0\.3 s"):
        p.run(limit=0.3)


def test_the_interrupt_key_works():
    """Ctrl-C, or a notebook's stop button, ends an endless kernel at once."""
    source = 'extern "C" __global__ void k(volatile int* f, int* o) { while (f[0] == 0); o[0] = 1; }'
    p = program(source, args=("f", "o"), outputs={"o": ((1,), "int32")}, f=np.zeros(1, "i4"))
    p.run(f=np.ones(1, "i4"))  # compiled
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    started = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            p.run(f=np.zeros(1, "i4"), limit=None)
    finally:
        timer.cancel()
    assert time.perf_counter() - started < 2
