"""Correct kernels that a checker could take for faulty: all must pass, with the right result."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .kernel import Cleans, floats

clean = Cleans()
_AT = "__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }\n"
_COPY = 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(at({})), "l"({}) : "memory");'


def one_block(name, body, expect, *, block=64, x=None, out=None, **how):
    """``body`` of a kernel with inputs x, output r, thread t."""
    x = floats(block) if x is None else x
    source = f'extern "C" __global__ void k(const float* x, float* r) {{\n  int t = threadIdx.x;\n{body}\n}}'
    outputs = {"r": (block if out is None else out, "float32")}
    clean(name, source, expect, block=block, inputs={"x": x}, outputs=outputs, **how)


# bounds ---------------------------------------------------------------------------------------------------------------
clean(
    "guarded_loads",
    """
extern "C" __global__ void k(const float* x, float* r, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  float left = i > 0 && i < n ? x[i - 1] : 0.f, right = i + 1 < n ? x[i + 1] : 0.f;
  if (i < n) r[i] = left + x[i] + right;
}""",
    lambda x: np.convolve(x, np.ones(3, "f4"), "same"),
    args=("x", "r", 100),
    grid=2,
    block=64,
    inputs={"x": floats(100)},
    outputs={"r": (100, "float32")},
)
clean(
    "halo_tile",
    """
extern "C" __global__ void k(const float* x, float* r, int n) {
  __shared__ float s[66];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t + 1] = i < n ? x[i] : 0.f;
  if (t < 2) { int j = t ? blockIdx.x * 64 + 64 : blockIdx.x * 64 - 1; s[t * 65] = j >= 0 && j < n ? x[j] : 0.f; }
  __syncthreads();
  if (i < n) r[i] = s[t] + s[t + 1] + s[t + 2];
}""",
    lambda x: np.convolve(x, np.ones(3, "f4"), "same"),
    args=("x", "r", 100),
    grid=2,
    block=64,
    inputs={"x": floats(100)},
    outputs={"r": (100, "float32")},
)
clean(
    "exact_fit",
    """
extern "C" __global__ void k(const float4* x, float* r) { float4 v = x[threadIdx.x]; r[threadIdx.x] = v.x + v.w; }""",
    lambda x: x[:, 0] + x[:, 3],
    inputs={"x": floats(32, 4)},
)
clean(
    "pointer_one_before",
    """
extern "C" __global__ void k(const float* x, float* r) {
  const float* y = x - 1;   // never read through without an offset
  r[threadIdx.x] = y[threadIdx.x + 1] + (y + 33)[-(int)threadIdx.x - 1];
}""",
    lambda x: x + x[::-1],
    inputs={"x": floats(32)},
)
clean(
    "null_pointer_not_used",
    """
extern "C" __global__ void k(const float* x, const float* bias, float* r) {
  r[threadIdx.x] = x[threadIdx.x] + (bias ? bias[threadIdx.x] : 0.f);
}""",
    lambda x: x,
    args=("x", None, "r"),
    inputs={"x": floats(32)},
)
one_block(
    "broadcast_reads",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  __syncthreads();\n  r[t] = s[5] + s[t / 2] + x[7];",
    lambda x: x[5] + x[np.arange(64) // 2] + x[7],
)
one_block(
    "row_of_padding",
    "  __shared__ float s[8][9];\n  s[t / 8][t % 8] = x[t];\n  __syncthreads();\n  r[t] = s[t % 8][t / 8];",
    lambda x: x.reshape(8, 8).T,
)
one_block(
    "padding_written_and_read",
    "  __shared__ float s[72];\n  for (int i = t; i < 72; i += 64) s[i] = i < 64 ? x[i] : 0.f;\n  __syncthreads();\n  float sum = 0;\n  for (int j = 0; j < 9; ++j) sum += s[t + j];\n  r[t] = sum;",
    lambda x: np.convolve(x, np.ones(9))[8:72],
)
one_block(
    "bytes_of_one_word",
    "  __shared__ unsigned char s[64];\n  s[t % 2 * 32 + t / 2] = (unsigned char)x[t];\n  __syncthreads();\n  r[t] = s[t];",
    lambda x: np.concatenate([x[::2], x[1::2]]),
    x=np.arange(64, dtype="f4"),
)
one_block(
    "bytes_of_two_warps_in_one_word",
    "  __shared__ unsigned char s[64];\n  s[t % 32 * 2 + t / 32] = (unsigned char)x[t];\n  __syncthreads();\n  r[t] = s[t];",
    lambda x: x.reshape(2, 32).T,
    x=np.arange(64, dtype="f4"),
)
one_block(
    "written_as_words_read_as_vectors",
    "  __shared__ __align__(16) float s[64];\n  s[t] = x[t];\n  __syncthreads();\n  if (t < 16) { float4 v = ((float4*)s)[15 - t]; r[t] = v.x + v.y * 2 + v.z * 3 + v.w * 4; } else r[t] = 0;",
    lambda x: np.concatenate([(x.reshape(16, 4) @ [1, 2, 3, 4])[::-1], np.zeros(48)]),
)
one_block(
    "struct_with_holes",
    "  struct P { char c; float f; };\n  __shared__ P s[64];\n  s[t].c = (char)t; s[t].f = x[t];\n  __syncthreads();\n  r[t] = s[63 - t].f + s[63 - t].c;",
    lambda x: x[::-1] + np.arange(63, -1, -1),
)
clean(
    "scratch_written_where_read",
    """
extern "C" __global__ void k(const float* x, float* tmp) { if (threadIdx.x % 3 == 0) tmp[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void k2(const float* tmp, float* r) { r[threadIdx.x] = threadIdx.x % 3 ? 0.f : tmp[threadIdx.x]; }
""",
    lambda x: np.where(np.arange(48) % 3, 0, x),
    args=("x", "tmp"),
    block=48,
    then=[("k2", 1, 48, ("tmp", "r"))],
    inputs={"x": floats(48)},
    scratch={"tmp": (48, "float32")},
    outputs={"r": (48, "float32")},
)
clean(
    "output_zeroed_by_an_earlier_launch",
    """
extern "C" __global__ void k(int* r) { r[threadIdx.x] = 0; }
extern "C" __global__ void k2(const int* x, int* r) { atomicAdd(r + (x[blockIdx.x * 64 + threadIdx.x] & 7), 1); }
""",
    lambda x: np.bincount(x & 7, minlength=8),
    args=("r",),
    block=8,
    then=[("k2", 3, 64, ("x", "r"))],
    inputs={"x": np.arange(192, dtype="int32") ** 2},
    outputs={"r": (8, "int32")},
)

# warps ----------------------------------------------------------------------------------------------------------------
one_block(
    "warp_synchronous_with_syncwarp",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  __syncwarp();\n  for (int d = 16; d > 0; d /= 2) {\n    float v = t % 32 < d ? s[t + d] : 0.f;\n    __syncwarp();\n    if (t % 32 < d) s[t] += v;\n    __syncwarp();\n  }\n  r[t] = s[t / 32 * 32];",
    lambda x: np.repeat(x.reshape(2, 32).sum(1), 32),
)
one_block(
    "own_element_needs_no_barrier",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  s[t] = s[t] * 2;\n  r[t] = s[t] + 1;",
    lambda x: 2 * x + 1,
)
one_block(
    "half_warps_with_their_own_masks",
    "  float v = x[t];\n  if (t % 32 < 16) v += __shfl_xor_sync(0x0000ffffu, v, 8);\n  else v -= __shfl_xor_sync(0xffff0000u, v, 4);\n  r[t] = v;",
    lambda x: np.where(np.arange(64) % 32 < 16, x + x[np.arange(64) ^ 8], x - x[np.arange(64) ^ 4]),
)
one_block(
    "shuffle_after_lanes_left",
    "  if (t >= 20) { r[t] = -1; return; }\n  r[t] = __shfl_sync(0x000fffffu, x[t], 19 - t);",
    lambda x: np.where(np.arange(32) < 20, x[np.maximum(19 - np.arange(32), 0)], -1),
    block=32,
)
one_block(
    "ballot_of_the_active",
    "  if (x[t] > 0) { unsigned m = __activemask(); r[t] = __popc(__ballot_sync(m, 1)) > 0; } else r[t] = 0;",
    lambda x: x > 0,
)
one_block(
    "same_value_from_all",
    "  __shared__ float s;\n  s = 3.f;   // every thread, the same\n  __syncthreads();\n  r[t] = s + x[t];",
    lambda x: x + 3,
    note="racecheck reports two warps that write the same value",
)
one_block(
    "flag_set_by_any",
    "  __shared__ int found;\n  if (t == 0) found = 0;\n  __syncthreads();\n  if (x[t] == 7.f) found = 1;\n  __syncthreads();\n  r[t] = found;",
    lambda x: np.full(64, (x == 7).any()),
)

# barriers and reuse -----------------------------------------------------------------------------------------------------
one_block(
    "early_exit_no_barrier_after",
    "  if (x[t] < 0) { r[t] = 0; return; }\n  r[t] = x[t] * 2;",
    lambda x: np.maximum(2 * x, 0),
)
one_block(
    "early_exit_within_a_warp",
    "  __shared__ float s[64];\n  if (t >= 40) { r[t] = 0; return; }\n  s[t] = x[t];\n  __syncthreads();\n  r[t] = s[39 - t];",
    lambda x: np.concatenate([x[39::-1], np.zeros(24)]),
    note="a barrier counts no threads that have left; synccheck may still call it divergent",
)
one_block(
    "early_exit_of_whole_warps",
    "  __shared__ float s[64];\n  if (t >= 64) { r[t] = 0; return; }\n  s[t] = x[t];\n  __syncthreads();\n  r[t] = s[63 - t];",
    lambda x: np.concatenate([x[63::-1], np.zeros(64)]),
    block=128,
)
one_block(
    "shared_reused_with_barriers",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  __syncthreads();\n  float a = s[63 - t];\n  __syncthreads();\n  s[t] = a * 2;\n  __syncthreads();\n  r[t] = s[t ^ 32];",
    lambda x: 2 * x[63 - (np.arange(64) ^ 32)],
)
one_block(
    "shared_reused_as_another_type",
    "  __shared__ __align__(8) char s[512];\n  ((float*)s)[t] = x[t];\n  __syncthreads();\n  float a = ((float*)s)[63 - t];\n  __syncthreads();\n  ((double*)s)[t] = a;\n  __syncthreads();\n  r[t] = (float)((double*)s)[63 - t];",
    lambda x: x,
)
one_block(
    "tree_with_barriers",
    "  __shared__ float s[256];\n  s[t] = x[t];\n  for (int d = 128; d > 0; d /= 2) {\n    __syncthreads();\n    if (t < d) s[t] += s[t + d];\n  }\n  if (t == 0) r[0] = s[0];",
    lambda x: x.sum(keepdims=True),
    block=256,
    out=1,
)
one_block(
    "scan_with_two_barriers",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  for (int d = 1; d < 64; d *= 2) {\n    __syncthreads();\n    float v = t >= d ? s[t - d] : 0.f;\n    __syncthreads();\n    s[t] += v;\n  }\n  r[t] = s[t];",
    lambda x: x.cumsum(),
)
one_block(
    "barrier_in_uniform_branch",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  if (blockIdx.x == 0) { __syncthreads(); r[t] = s[63 - t]; }\n  else r[t] = s[t];",
    lambda x: x[::-1],
)
one_block(
    "barrier_in_loop_of_uniform_length",
    "  __shared__ float s[64];\n  float sum = 0;\n  for (int i = 0; i < (int)x[3]; ++i) {\n    s[t] = x[t] + i;\n    __syncthreads();\n    sum += s[63 - t];\n    __syncthreads();\n  }\n  r[t] = sum;",
    lambda x: 5 * x[::-1] + 10,
    x=np.where(np.arange(64) == 3, 5, floats(64)).astype("f4"),
)
one_block(
    "named_barrier_of_half_the_block",
    '  __shared__ float s[128];\n  s[t] = x[t];\n  if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory"); else asm volatile("bar.sync 2, 64;" ::: "memory");\n  r[t] = s[t ^ 63];',
    lambda x: x[np.arange(128) ^ 63],
    block=128,
)
one_block(
    "producer_and_consumer_warps",
    """  __shared__ float s[32];
  for (int i = 0; i < 2; ++i) {
    if (t < 32) {
      if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
      s[t] = x[i * 32 + t];
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      r[i * 32 + t - 32] = s[63 - t];
      if (i == 0) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }""",
    lambda x: x.reshape(2, 32)[:, ::-1],
)
for tiles in (1, 2, 3, 4):
    clean(
        f"double_buffer_{tiles}_tiles",
        """
extern "C" __global__ void k(const float* x, float* r, int tiles) {
  __shared__ float s[2][64];
  int t = threadIdx.x;
  float sum = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) s[(i + 1) & 1][t] = x[(i + 1) * 64 + t];
    sum += s[i & 1][63 - t];
    __syncthreads();
  }
  r[t] = sum + s[(tiles - 1) & 1][t];
}""",
        lambda x: x[:, ::-1].sum(0) + x[-1],
        args=("x", "r", tiles),
        block=64,
        inputs={"x": floats(tiles, 64)},
        outputs={"r": (64, "float32")},
    )
for tiles in (0, 5):
    clean(
        f"async_double_buffer_{tiles}_tiles",
        _AT
        + f"""extern "C" __global__ void k(const float* x, float* r, int tiles) {{
  __shared__ float s[2][64];
  int t = threadIdx.x;
  float sum = 0;
  if (tiles > 0) {_COPY.format("s[0] + t", "x + t")}
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int i = 0; i < tiles; ++i) {{
    if (i + 1 < tiles) {_COPY.format("s[(i + 1) & 1] + t", "x + (i + 1) * 64 + t")}
    asm volatile("cp.async.commit_group; cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += s[i & 1][63 - t];
    __syncthreads();
  }}
  r[t] = sum;
}}""",
        lambda x, tiles=tiles: x[:tiles, ::-1].sum(0),
        args=("x", "r", tiles),
        block=64,
        inputs={"x": floats(max(tiles, 1), 64)},
        outputs={"r": (64, "float32")},
    )
one_block(
    "async_copy_of_own_element",
    "  __shared__ float s[64];\n  "
    + _COPY.replace("at({})", "(unsigned)__cvta_generic_to_shared({})").format("s + t", "x + 63 - t")
    + '\n  asm volatile("cp.async.wait_all;" ::: "memory");\n  r[t] = s[t];',
    lambda x: x[::-1],
)
one_block(
    "zero_trips",
    "  __shared__ float s[64];\n  s[t] = x[t];\n  __syncthreads();\n  float sum = 0;\n  for (int i = (int)x[0]; i < (int)x[1]; ++i) { sum += s[i * 1000]; __syncthreads(); }\n  r[t] = sum + s[t];",
    lambda x: x,
    x=np.where(np.arange(64) < 2, 9 - np.arange(64), floats(64)).astype("f4"),
)

# atomics ----------------------------------------------------------------------------------------------------------------
one_block(
    "atomics_on_shared",
    "  __shared__ int h[4];\n  if (t < 4) h[t] = 0;\n  __syncthreads();\n  atomicAdd(&h[(int)x[t] & 3], 1);\n  __syncthreads();\n  r[t] = h[t & 3];",
    lambda x: np.bincount(x.astype("i4") & 3, minlength=4)[np.arange(64) & 3],
)
one_block(
    "lock_released_in_the_same_turn",
    """  __shared__ int lock;
  if (t == 0) { lock = 0; r[0] = 0; }
  __syncthreads();
  for (bool done = false; !done;) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      *(volatile float*)r += x[t];
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }""",
    lambda x: x.sum(keepdims=True),
    out=1,
)
clean(
    "blocks_count_themselves",
    """
__device__ unsigned done;
extern "C" __global__ void k(const float* x, float* part, float* r) {
  __shared__ bool last;
  int t = threadIdx.x;
  float v = x[blockIdx.x * 32 + t];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (t == 0) {
    part[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x; ++i) s += ((volatile float*)part)[i];
    *r = s;
  }
}""",
    lambda x: x.sum(keepdims=True),
    args=("x", "part", "r"),
    grid=4,
    inputs={"x": floats(128)},
    scratch={"part": (4, "float32")},
    outputs={"r": (1, "float32")},
)
