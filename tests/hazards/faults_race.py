"""Seeded faults: races between warps, for want of a barrier."""

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
