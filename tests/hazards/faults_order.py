"""Seeded faults of order: races, missing waits, barriers that not all reach, endless waiting."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .kernel import Faults, floats

faults = Faults()

# races between warps ---------------------------------------------------------------------------------------------------
faults(
    "read_after_write_mirror",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];  // here
  r[t] = s[127 - t];  // here
}""",
    block=128,
    inputs={"x": floats(128)},
    outputs={"r": (128, "float32")},
    says="warp",
)
faults(
    "broadcast_without_barrier",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s;
  int t = threadIdx.x;
  if (t == 0) s = x[0];  // here
  __syncwarp();
  r[t] = s + t;  // here
}""",
    block=64,
    inputs={"x": floats(1)},
    outputs={"r": (64, "float32")},
    where=dict(thread=(32, 0, 0), address=0),
)
faults(
    "tree_without_barrier",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 128; d > 0; d /= 2)
    if (t < d) s[t] += s[t + d];  // here
  if (t == 0) r[0] = s[0];
}""",
    block=256,
    inputs={"x": floats(256)},
    outputs={"r": (1, "float32")},
)
faults(
    "last_warps_assumed_one",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ volatile float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 64) {   // two warps, not one
    s[t] += s[t + 64]; __syncwarp();  // here
    float v = s[t ^ 32]; __syncwarp();  // here
    s[t] += v;  // here
    r[t] = s[t];
  }
}""",
    block=128,
    inputs={"x": floats(128)},
    outputs={"r": (64, "float32")},
)
faults(
    "write_after_read_loop",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[64];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    s[t] = x[i * 64 + t];  // here
    __syncthreads();
    sum += s[63 - t];  // here
  }
  r[t] = sum;
}""",
    block=64,
    inputs={"x": floats(256)},
    outputs={"r": (64, "float32")},
    says="write after read",
)
faults(
    "write_after_write_two_warps",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[32];
  int t = threadIdx.x;
  s[t % 32] = x[t];  // here
  __syncthreads();
  r[t] = s[t % 32];
}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    says="write after write",
)
faults(
    "shared_counter_without_atomic",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(int* r) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) count = count + 1;  // here
  __syncthreads();
  if (threadIdx.x == 0) r[0] = count;
}""",
    block=128,
    outputs={"r": (1, "int32")},
    where=dict(address=0),
)
faults(
    "histogram_without_atomic",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int h[8];
  int t = threadIdx.x;
  if (t < 8) h[t] = 0;
  __syncthreads();
  h[x[t] & 7] += 1;  // here
  __syncthreads();
  if (t < 8) r[t] = h[t];
}""",
    block=64,
    inputs={"x": np.arange(64, dtype="int32") * 5},
    outputs={"r": (8, "int32")},
)
faults(
    "scan_with_one_barrier",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  for (int d = 1; d < 128; d *= 2) {
    __syncthreads();
    if (t >= d) s[t] += s[t - d];  // here
  }
  r[t] = s[t];
}""",
    block=128,
    inputs={"x": floats(128)},
    outputs={"r": (128, "float32")},
)
faults(
    "transposed_tile_without_barrier",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[16][17];
  int a = threadIdx.x, b = threadIdx.y;
  s[b][a] = x[b * 16 + a];  // here
  r[b * 16 + a] = s[a][b];  // here
}""",
    block=(16, 16),
    inputs={"x": floats(16, 16)},
    outputs={"r": ((16, 16), "float32")},
)
for tiles in (2, 3):
    faults(
        f"double_buffer_no_barrier_{tiles}_tiles",
        "race",
        "racecheck",
        """
extern "C" __global__ void k(const float* x, float* r, int tiles) {
  __shared__ float s[2][64];
  int t = threadIdx.x;
  float sum = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) s[(i + 1) & 1][t] = x[(i + 1) * 64 + t];  // here
    sum += s[i & 1][63 - t];  // here
  }
  r[t] = sum;
}""",
        args=("x", "r", tiles),
        block=64,
        inputs={"x": floats(tiles, 64)},
        outputs={"r": (64, "float32")},
    )
faults(
    "double_buffer_barrier_every_other_step",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r, int tiles) {
  __shared__ float s[2][64];
  int t = threadIdx.x;
  float sum = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) s[(i + 1) & 1][t] = x[(i + 1) * 64 + t];  // here
    sum += s[i & 1][63 - t];  // here
    if (i & 1) __syncthreads();
  }
  r[t] = sum;
}""",
    args=("x", "r", 4),
    block=64,
    inputs={"x": floats(4, 64)},
    outputs={"r": (64, "float32")},
)
faults(
    "single_buffer_prefetch",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r, int tiles) {
  __shared__ float s[64];
  int t = threadIdx.x;
  float sum = 0, next = x[t];
  for (int i = 0; i < tiles; ++i) {
    s[t] = next;  // here
    __syncthreads();
    if (i + 1 < tiles) next = x[(i + 1) * 64 + t];
    for (int j = 0; j < 64; ++j) sum += s[j];  // here
  }
  r[t] = sum;
}""",
    args=("x", "r", 3),
    block=64,
    inputs={"x": floats(3, 64)},
    outputs={"r": (64, "float32")},
)
faults(
    "scratch_area_used_twice",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  float a = s[127 - t];  // here
  s[t] = a * 2;  // here
  __syncthreads();
  r[t] = s[t ^ 64];
}""",
    block=128,
    inputs={"x": floats(128)},
    outputs={"r": (128, "float32")},
    says="write after read",
)
faults(
    "syncwarp_instead_of_syncthreads",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[96];
  int t = threadIdx.x;
  s[t] = x[t];  // here
  __syncwarp();
  r[t] = s[(t + 1) % 96];  // here
}""",
    block=96,
    inputs={"x": floats(96)},
    outputs={"r": (96, "float32")},
)
faults(
    "race_in_one_block_only",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[64];
  int t = threadIdx.x, b = blockIdx.x * 64;
  s[t] = x[b + t];  // here
  if (blockIdx.x != 2) __syncthreads();
  r[b + t] = s[63 - t];  // here
}""",
    grid=4,
    block=64,
    inputs={"x": floats(4, 64)},
    outputs={"r": ((4, 64), "float32")},
    where=dict(block=(2, 0, 0)),
)
faults(
    "named_barriers_differ",
    "race barrier",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];  // here
  if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
  else asm volatile("bar.sync 2, 64;" ::: "memory");
  r[t] = s[127 - t];  // here
}""",
    block=128,
    inputs={"x": floats(128)},
    outputs={"r": (128, "float32")},
    note="each half waits for itself, then reads what the other wrote",
)

# races within a warp -----------------------------------------------------------------------------------------------------
faults(
    "no_syncwarp_neighbour",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[32];
  int t = threadIdx.x;
  s[t] = x[t];  // here
  r[t] = s[t ^ 1];  // here
}""",
    inputs={"x": floats(32)},
)
faults(
    "no_syncwarp_reduction",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ volatile float s[64];
  int t = threadIdx.x;
  s[t] = x[t]; s[t + 32] = x[t + 32];
  __syncwarp();
  for (int d = 32; d > 0; d /= 2) if (t < d) s[t] += s[t + d];  // here
  if (t == 0) r[0] = s[0];  // here
}""",
    inputs={"x": floats(64)},
    outputs={"r": (1, "float32")},
)
faults(
    "lanes_write_one_word",
    "race",
    "racecheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[8];
  int t = threadIdx.x;
  s[t % 8] = x[t];  // here
  __syncwarp();
  r[t] = s[t % 8];
}""",
    inputs={"x": floats(32)},
    note="which lane's value stays is undefined",
)

# asynchronous copies -----------------------------------------------------------------------------------------------------
_AT = "__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }\n"
_COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(at({})), "l"({}) : "memory");'
faults(
    "async_copy_not_waited_for",
    "race",
    "racecheck",
    _AT
    + f"""extern "C" __global__ void k(const float* x, float* r) {{
  __shared__ float s[64];
  int t = threadIdx.x;
  {_COPY.format("s + t", "x + t")}
  asm volatile("cp.async.commit_group;" ::: "memory");
  __syncthreads();
  r[t] = s[t];  // here
}}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    says="cp.async",
    where=dict(thread=(0, 0, 0), address=0),
)
faults(
    "async_wait_for_the_wrong_group",
    "race",
    "racecheck",
    _AT
    + f"""extern "C" __global__ void k(const float* x, float* r) {{
  __shared__ float s[2][64];
  int t = threadIdx.x;
  {_COPY.format("s[0] + t", "x + t")}
  asm volatile("cp.async.commit_group;" ::: "memory");
  {_COPY.format("s[1] + t", "x + 64 + t")}
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 1;" ::: "memory");   // the second one may still be on its way
  __syncthreads();
  r[t] = s[0][63 - t] + s[1][63 - t];  // here
}}""",
    block=64,
    inputs={"x": floats(128)},
    outputs={"r": (64, "float32")},
    says="cp.async",
    where=dict(thread=(0, 0, 0), address=256 + 63 * 4),
)
faults(
    "async_copy_no_barrier",
    "race",
    "racecheck",
    _AT
    + f"""extern "C" __global__ void k(const float* x, float* r) {{
  __shared__ float s[64];
  int t = threadIdx.x;
  {_COPY.format("s + t", "x + t")}  // here
  asm volatile("cp.async.wait_all;" ::: "memory");  // here
  r[t] = s[63 - t];  // here
}}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    note="each thread waits for its own copies only",
)
faults(
    "async_ring_too_short",
    "race",
    "racecheck",
    _AT
    + f"""extern "C" __global__ void k(const float* x, float* r, int tiles) {{
  __shared__ float s[2][64];
  int t = threadIdx.x;
  float sum = 0;
  {_COPY.format("s[0] + t", "x + t")}
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int i = 0; i < tiles; ++i) {{
    if (i + 1 < tiles) {{
      {_COPY.format("s[(i + 1) & 1] + t", "x + (i + 1) * 64 + t")}  // here
    }}
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += s[i & 1][63 - t];  // here
  }}
  r[t] = sum;
}}""",
    args=("x", "r", 4),
    block=64,
    inputs={"x": floats(4, 64)},
    outputs={"r": (64, "float32")},
    note="the copy into the other buffer begins while slower warps still read it: a barrier is missing at the loop's end",
)
faults(
    "async_overwritten_before_landing",
    "race",
    "racecheck",
    _AT
    + f"""extern "C" __global__ void k(const float* x, float* r) {{
  __shared__ float s[32];
  int t = threadIdx.x;
  {_COPY.format("s + t", "x + t")}
  s[t] = 0;  // here
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  r[t] = s[t];
}}""",
    inputs={"x": floats(32)},
)

# barriers ----------------------------------------------------------------------------------------------------------------
faults(
    "barrier_for_some_threads",
    "barrier",
    "synccheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[64];
  int t = threadIdx.x;
  if (t < 40) {
    s[t] = x[t];
    __syncthreads();  // here
    r[t] = s[39 - t];
  } else {
    r[t] = x[t];
    __syncthreads();  // here
    r[t] += 1;
  }
}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
)
faults(
    "barrier_left_by_break",
    "barrier",
    "synccheck",
    """
extern "C" __global__ void k(const int* n, int* r) {
  __shared__ int s[64];
  int t = threadIdx.x, sum = 0;
  for (int i = 0; i < 4; ++i) {
    s[t] = i * t;
    if (i == n[t]) break;
    __syncthreads();  // here
    sum += s[t];
    __syncthreads();  // here
  }
  __syncthreads();  // here
  r[t] = sum;
}""",
    block=64,
    inputs={"n": np.where(np.arange(64) < 40, 9, 2).astype("int32")},
    outputs={"r": (64, "int32")},
)
faults(
    "named_barrier_too_few",
    "barrier",
    "synccheck",
    """
extern "C" __global__ void k(float* r) {
  int t = threadIdx.x;
  if (t < 32) asm volatile("bar.sync 1, 64;" ::: "memory");  // here
  r[t] = t;
}""",
    block=64,
    outputs={"r": (64, "float32")},
    note="one warp waits for 64 threads, the other leaves",
)
faults(
    "named_barriers_crossed",
    "barrier",
    "synccheck",
    """
extern "C" __global__ void k(float* r) {
  int t = threadIdx.x;
  if (t < 32) { asm volatile("bar.sync 1, 64;" ::: "memory"); asm volatile("bar.sync 2, 64;" ::: "memory"); }  // here
  else { asm volatile("bar.sync 2, 64;" ::: "memory"); asm volatile("bar.sync 1, 64;" ::: "memory"); }  // here
  r[t] = t;
}""",
    block=64,
    outputs={"r": (64, "float32")},
)
faults(
    "shuffle_in_one_arm",
    "warp-divergence",
    "synccheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  int t = threadIdx.x;
  float v = x[t];
  if (t < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);  // here
  else for (int i = 0; i < t; ++i) v = v * 0.5f + __ballot_sync(0xffff0000u, v > i);
  r[t] = v;
}""",
    inputs={"x": floats(32)},
    says="0xffff0000",
)
faults(
    "mask_without_the_caller",
    "warp-divergence",
    "synccheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  r[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // here
}""",
    inputs={"x": floats(32)},
)
faults(
    "syncwarp_mask_names_others",
    "warp-divergence",
    "synccheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[32];
  int t = threadIdx.x;
  if (t % 2) { s[t] = x[t]; __syncwarp(0xffffffffu); r[t] = s[t]; }  // here
  else { r[t] = x[t]; for (int i = 0; i < 3 + t; ++i) r[t] = r[t] * 2 + __any_sync(0x55555555u, t > i); }  // here
}""",
    inputs={"x": floats(32)},
)
faults(
    "shuffle_from_a_lane_not_there",
    "warp-divergence uninitialised",
    "synccheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  int t = threadIdx.x;
  if (t < 16) r[t] = __shfl_down_sync(0x0000ffffu, x[t], 8);  // here
  else r[t] = 0;
}""",
    inputs={"x": floats(32)},
    note="lanes 8 to 15 read lanes 16 to 23, which do not take part: the value is undefined",
)

# endless -----------------------------------------------------------------------------------------------------------------
faults(
    "spin_on_a_flag_nobody_sets",
    "endless",
    "",
    """
extern "C" __global__ void k(volatile int* flag, int* r) {
  while (flag[threadIdx.x / 32] == 0) { }  // here
  r[threadIdx.x] = 1;
}""",
    block=64,
    inputs={"flag": np.array([1, 0], "int32")},
    outputs={"r": (64, "int32")},
    note="no tool ends a kernel",
)
faults(
    "float_never_equal",
    "endless",
    "",
    """
extern "C" __global__ void k(float* r) {
  float x = 0;
  while (x != 1.f) x += 0.3f;  // here
  r[threadIdx.x] = x;
}""",
    note="no tool ends a kernel",
)
faults(
    "lock_held_by_a_lane_that_waits",
    "endless barrier",
    "",
    """
extern "C" __global__ void k(int* lock, int* r) {
  if (threadIdx.x == 0) r[0] = 0;
  __syncthreads();
  while (atomicCAS(lock, 0, 1) != 0) { }  // here
  r[0] += 1;
  __syncthreads();  // here
  atomicExch(lock, 0);
}""",
    args=("lock", "r"),
    inputs={"lock": np.zeros(1, "int32")},
    outputs={"r": (1, "int32")},
    note="no tool ends a kernel: the winner waits at the barrier for those who wait for the lock",
)
faults(
    "mbarrier_never_complete",
    "endless barrier",
    "",
    _AT
    + """extern "C" __global__ void k(const float* x, float* r) {
  __shared__ unsigned long long bar;
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" : : "r"(at(&bar)) : "memory");
  __syncthreads();
  if (t < 32) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(at(&bar)) : "memory");
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }" : : "r"(at(&bar)) : "memory");  // here
  r[t] = x[t];
}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    note="no tool ends a kernel",
)
