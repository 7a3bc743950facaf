"""Seeded faults: out of bounds and misaligned accesses."""

from __future__ import annotations

import numpy as np

from .kernel import Faults, floats

faults = Faults()
COPY = """
extern "C" __global__ void k(const float* x, float* r, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  %s
}"""

# out of bounds --------------------------------------------------------------------------------------------------------
faults(
    "read_past_end_no_guard",
    "out-of-bounds",
    "memcheck",
    COPY % "if (i < 128) r[i] = x[i];  // here",
    args=("x", "r", 100),
    block=64,
    grid=2,
    inputs={"x": floats(100)},
    outputs={"r": (128, "float32")},
    where=dict(block=(1, 0, 0), thread=(36, 0, 0), buffer="x", offset=400),
)
faults(
    "write_past_end_no_guard",
    "out-of-bounds",
    "memcheck",
    COPY % "r[i] = x[i % n];  // here",
    args=("x", "r", 100),
    block=64,
    grid=2,
    inputs={"x": floats(100)},
    outputs={"r": (100, "float32")},
    where=dict(block=(1, 0, 0), thread=(36, 0, 0), buffer="r", offset=400),
)
faults(
    "guard_is_less_or_equal",
    "out-of-bounds",
    "memcheck",
    COPY % "if (i <= n) r[i] = x[i];  // here",
    args=("x", "r", 100),
    block=128,
    inputs={"x": floats(100)},
    outputs={"r": (128, "float32")},
    where=dict(thread=(100, 0, 0), buffer="x", offset=400),
)
faults(
    "stencil_right_neighbour",
    "out-of-bounds",
    "memcheck",
    COPY % "if (i < n) r[i] = x[i] + x[i + 1];  // here",
    args=("x", "r", 100),
    block=128,
    inputs={"x": floats(100)},
    outputs={"r": (100, "float32")},
    where=dict(thread=(99, 0, 0), buffer="x", offset=400),
)
faults(
    "stencil_left_neighbour",
    "out-of-bounds",
    "memcheck",
    COPY % "if (i < n) r[i] = x[i] + x[i - 1];  // here",
    args=("x", "r", 100),
    block=128,
    inputs={"x": floats(100)},
    outputs={"r": (100, "float32")},
    where=dict(thread=(0, 0, 0), buffer="x", offset=-4),
)
faults(
    "rows_and_columns_swapped",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r, int rows, int columns) {
  int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
  if (row < rows && column < columns) r[row * columns + column] = x[column * columns + row];  // here
}""",
    args=("x", "r", 8, 24),
    block=(8, 8),
    grid=(3, 1),
    inputs={"x": floats(8, 24)},
    outputs={"r": ((8, 24), "float32")},
    where=dict(block=(1, 0, 0), thread=(0, 0, 0), buffer="x", offset=768),
)
faults(
    "index_overflows_32_bits",
    "out-of-bounds",
    "memcheck",
    COPY % "int far = i * 70000 * 70000; r[i] = x[far % n];  // here",
    args=("x", "r", 100),
    block=32,
    inputs={"x": floats(100)},
    where=dict(buffer="x"),
    note="signed overflow: % of a negative number is negative",
)
faults(
    "vector_load_over_the_end",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r, int n) {
  int i = threadIdx.x;
  if (4 * i < n) {
    float4 v = *(const float4*)(x + 4 * i);  // here
    r[i] = v.x + v.y;
  }
}""",
    args=("x", "r", 10),
    inputs={"x": floats(10)},
    where=dict(thread=(2, 0, 0), buffer="x", offset=32),
)
faults(
    "null_pointer_write",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r, float* extra) {
  r[threadIdx.x] = x[threadIdx.x];
  extra[threadIdx.x] = 1.f;  // here
}""",
    args=("x", "r", None),
    inputs={"x": floats(32)},
    says="null pointer",
    where=dict(thread=(0, 0, 0), address=0),
)
faults(
    "atomic_bin_outside",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const int* x, int* r) {
  if (threadIdx.x < 16) r[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(r + x[threadIdx.x] / 16, 1);  // here
}""",
    inputs={"x": np.array([*range(0, 62, 2), 256], "int32")},
    outputs={"r": (16, "int32")},
    where=dict(thread=(31, 0, 0), buffer="r", offset=64),
)
faults(
    "shared_read_one_past",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  r[t] = s[t] + s[t + 1];  // here
}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    where=dict(thread=(63, 0, 0), address=256),
)
faults(
    "shared_write_beyond_dynamic",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  s[t] = x[t];  // here
  __syncthreads();
  r[t] = s[63 - t];
}""",
    block=64,
    shared=200,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    where=dict(thread=(50, 0, 0), address=200),
)
faults(
    "shared_negative_index",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  r[t] = s[t] - s[t - 1];  // here
}""",
    block=64,
    inputs={"x": floats(64)},
    outputs={"r": (64, "float32")},
    where=dict(thread=(0, 0, 0)),
)
faults(
    "local_array_overrun",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, const int* at, float* r) {
  float a[8];
  for (int j = 0; j < 8; ++j) a[j] = x[j] * threadIdx.x;
  r[threadIdx.x] = a[at[threadIdx.x]];  // here
}""",
    inputs={"x": floats(8), "at": np.array([7] * 20 + [8] + [0] * 11, "int32")},
    where=dict(thread=(20, 0, 0), offset=32),
)
faults(
    "constant_index_negative",
    "out-of-bounds",
    "memcheck",
    """
__constant__ float c[4] = {1, 2, 3, 4};
extern "C" __global__ void k(const int* at, float* r) {
  r[threadIdx.x] = c[at[threadIdx.x]];  // here
}""",
    inputs={"at": np.array([0, 1, 2, -5] * 8, "int32")},
    where=dict(thread=(3, 0, 0), buffer="c", offset=-20),
    note="the GPU's constant bank is larger than the array, so its tools may see nothing",
)
faults(
    "async_copy_past_end",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ __align__(16) float s[128];
  unsigned p = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(p), "l"(x + 4 * threadIdx.x) : "memory");  // here
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  r[threadIdx.x] = s[4 * threadIdx.x];
}""",
    inputs={"x": floats(126)},
    where=dict(thread=(31, 0, 0), buffer="x", offset=496),
)
faults(
    "ldmatrix_row_outside",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const short* x, unsigned* r) {
  __shared__ __align__(16) short s[64];
  int t = threadIdx.x;
  s[t] = x[t]; s[t + 32] = x[t + 32];
  __syncwarp();
  unsigned v, p = (unsigned)__cvta_generic_to_shared(s + (t % 8 + 1) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) : "r"(p) : "memory");  // here
  r[t] = v;
}""",
    inputs={"x": np.arange(64, dtype="int16")},
    outputs={"r": (32, "uint32")},
    where=dict(thread=(7, 0, 0), address=128),
)
faults(
    "second_launch_larger_than_buffer",
    "out-of-bounds",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* tmp) { tmp[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void k2(const float* tmp, float* r) { r[threadIdx.x] = tmp[threadIdx.x]; }  // here
""",
    args=("x", "tmp"),
    block=48,
    then=[("k2", 1, 64, ("tmp", "r"))],
    inputs={"x": floats(48)},
    scratch={"tmp": (48, "float32")},
    outputs={"r": (64, "float32")},
    where=dict(thread=(48, 0, 0), buffer="tmp", offset=192),
)

# misaligned -----------------------------------------------------------------------------------------------------------
for c, size, use in (("float2", 8, "v.x + v.y"), ("float4", 16, "v.x + v.y + v.z + v.w"), ("double", 8, "(float)v")):
    faults(
        f"misaligned_{c}_load",
        "misaligned",
        "memcheck",
        f"""
extern "C" __global__ void k(const float* x, float* r) {{
  {c} v = *(const {c}*)(x + 1 + threadIdx.x * 4);  // here
  r[threadIdx.x] = {use};
}}""",
        inputs={"x": floats(160)},
        where=dict(thread=(0, 0, 0), buffer="x", offset=4),
        says=f"multiple of {size}",
    )
faults(
    "misaligned_float4_store",
    "misaligned",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  float v = x[threadIdx.x];
  *(float4*)(r + threadIdx.x * 6) = make_float4(v, v, v, v);  // here
}""",
    inputs={"x": floats(32)},
    outputs={"r": (200, "float32")},
    where=dict(thread=(1, 0, 0), buffer="r", offset=24),
)
faults(
    "misaligned_int_in_bytes",
    "misaligned",
    "memcheck",
    """
extern "C" __global__ void k(const unsigned char* x, int* r) {
  r[threadIdx.x] = *(const int*)(x + threadIdx.x * 5);  // here
}""",
    inputs={"x": np.arange(200, dtype="uint8")},
    outputs={"r": (32, "int32")},
    where=dict(thread=(1, 0, 0), buffer="x", offset=5),
)
faults(
    "misaligned_shared_float4",
    "misaligned",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ __align__(16) float s[132];
  int t = threadIdx.x;
  for (int i = t; i < 132; i += 32) s[i] = x[i];
  __syncthreads();
  float4 v = *(const float4*)(s + t * 4 + (t > 9));  // here
  r[t] = v.x + v.w;
}""",
    inputs={"x": floats(132)},
    where=dict(thread=(10, 0, 0), address=164),
)
faults(
    "misaligned_async_copy",
    "misaligned",
    "memcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  __shared__ __align__(16) float s[128];
  unsigned p = (unsigned)__cvta_generic_to_shared(s + 4 * threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(p), "l"(x + 1 + 4 * threadIdx.x) : "memory");  // here
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  r[threadIdx.x] = s[4 * threadIdx.x];
}""",
    inputs={"x": floats(160)},
    where=dict(thread=(0, 0, 0), buffer="x", offset=4),
)
