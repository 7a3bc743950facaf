"""Seeded faults: barriers that not all reach, masks that name the wrong lanes, endless waiting."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .kernel import Faults, floats

faults = Faults()
_AT = "__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }\n"

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
