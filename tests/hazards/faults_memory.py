"""Seeded faults: out of bounds, misaligned, uninitialised, impossible launches."""

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

# uninitialised --------------------------------------------------------------------------------------------------------
faults(
    "shared_halo_not_filled",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* r, int n) {
  __shared__ float s[66];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t + 1] = i < n ? x[i] : 0.f;
  if (t == 0) s[0] = i > 0 ? x[i - 1] : 0.f;   // and s[65]?
  __syncthreads();
  if (i < n) r[i] = s[t] + s[t + 1] + s[t + 2];  // here
}""",
    args=("x", "r", 128),
    grid=2,
    block=64,
    inputs={"x": floats(128)},
    outputs={"r": (128, "float32")},
    where=dict(block=(0, 0, 0), thread=(63, 0, 0), address=260),
    note="initcheck looks at global memory only",
)
faults(
    "shared_partial_last_block",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* r, int n) {
  __shared__ float s[64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  if (i < n) s[t] = x[i];
  __syncthreads();
  for (int d = 32; d > 0; d /= 2) {
    if (t < d) s[t] += s[t + d];  // here
    __syncthreads();
  }
  if (t == 0) r[blockIdx.x] = s[0];
}""",
    args=("x", "r", 100),
    grid=2,
    block=64,
    inputs={"x": floats(100)},
    outputs={"r": (2, "float32")},
    where=dict(block=(1, 0, 0), thread=(4, 0, 0), address=144),
    note="initcheck looks at global memory only",
)
faults(
    "shared_never_written",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(float* r) {
  extern __shared__ float s[];
  r[threadIdx.x] = s[threadIdx.x];  // here
}""",
    shared=128,
    where=dict(thread=(0, 0, 0), address=0),
    note="initcheck looks at global memory only",
)
faults(
    "shared_counter_not_zeroed",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(int* r) {
  __shared__ int count;
  atomicAdd(&count, 1);  // here
  __syncthreads();
  r[threadIdx.x] = count;
}""",
    outputs={"r": (32, "int32")},
    where=dict(thread=(0, 0, 0), address=0),
    note="initcheck looks at global memory only",
)
faults(
    "double_buffer_epilogue_parity",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* r, int tiles) {
  __shared__ float s[2][32];
  int t = threadIdx.x;
  float sum = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int i = 0; i + 1 < tiles; ++i) {
    s[(i + 1) & 1][t] = x[(i + 1) * 32 + t];
    sum += s[i & 1][31 - t];
    __syncthreads();
  }
  r[t] = sum + s[tiles & 1][31 - t];  // here
}""",
    args=("x", "r", 1),
    inputs={"x": floats(32)},
    where=dict(thread=(0, 0, 0), address=128 + 31 * 4),
    note="right for an even number of tiles only by its shape: the last tile lies in (tiles - 1) & 1",
)
faults(
    "scratch_never_written",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, const float* tmp, float* r) {
  r[threadIdx.x] = x[threadIdx.x] + tmp[threadIdx.x];  // here
}""",
    args=("x", "tmp", "r"),
    inputs={"x": floats(32)},
    scratch={"tmp": (32, "float32")},
    where=dict(thread=(0, 0, 0), buffer="tmp", offset=0),
)
faults(
    "scratch_last_element_not_written",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* tmp, int n) { int t = threadIdx.x; if (t < n - 1) tmp[t] = x[t]; }
extern "C" __global__ void k2(const float* tmp, float* r) { r[threadIdx.x] = tmp[threadIdx.x]; }  // here
""",
    args=("x", "tmp", 64),
    block=64,
    then=[("k2", 1, 64, ("tmp", "r"))],
    inputs={"x": floats(64)},
    scratch={"tmp": (64, "float32")},
    outputs={"r": (64, "float32")},
    where=dict(thread=(63, 0, 0), buffer="tmp", offset=252),
)
faults(
    "output_added_to_but_not_zeroed",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* r) {
  r[threadIdx.x] += x[threadIdx.x];  // here
}""",
    inputs={"x": floats(32)},
    where=dict(thread=(0, 0, 0), buffer="r", offset=0),
)
faults(
    "output_atomics_without_zero",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const int* x, int* r) {
  atomicAdd(r + (x[threadIdx.x] & 3), 1);  // here
}""",
    inputs={"x": np.arange(32, dtype="int32")},
    outputs={"r": (4, "int32")},
    where=dict(buffer="r"),
)
faults(
    "padding_of_a_row_read",
    "uninitialised",
    "initcheck",
    """
extern "C" __global__ void k(const float* x, float* tmp) {   // rows of 6, stored 8 apart
  tmp[threadIdx.y * 8 + threadIdx.x] = x[threadIdx.y * 6 + threadIdx.x];
}
extern "C" __global__ void k2(const float* tmp, float* r) {
  const float4* row = (const float4*)(tmp + threadIdx.x * 8);
  float4 a = row[0];
  float4 b = row[1];  // here
  r[threadIdx.x] = a.x + a.y + a.z + a.w + b.x + b.y + b.z;
}""",
    args=("x", "tmp"),
    block=(6, 4),
    then=[("k2", 1, 4, ("tmp", "r"))],
    inputs={"x": floats(4, 6)},
    scratch={"tmp": (32, "float32")},
    outputs={"r": (4, "float32")},
    where=dict(thread=(0, 0, 0), buffer="tmp"),
)

# launches -------------------------------------------------------------------------------------------------------------
_ONE = 'extern "C" __global__ void k(float* r) { r[threadIdx.x % 32] = 1.f; }'
faults("block_z_above_64", "launch", "launch", _ONE, block=(1, 1, 65), says="block z")
faults("threads_above_1024", "launch", "launch", _ONE, block=(40, 30), says="1200 threads")
faults("grid_y_above_65535", "launch", "launch", _ONE, grid=(1, 70000), says="grid y 70000")
faults("block_of_nothing", "launch", "launch", _ONE, block=0, says="block x 0")
faults("shared_above_227_kib", "launch", "launch", _ONE, shared=232449, says="232449")
faults(
    "static_shared_above_48_kib",
    "launch",
    "launch",
    """
extern "C" __global__ void k(float* r) {
  __shared__ float s[12289];
  for (int i = threadIdx.x; i < 12289; i += 32) s[i] = i;
  __syncthreads();
  r[threadIdx.x] = s[12288 - threadIdx.x];
}""",
    says="49152",
)
_STRUCT = """
struct P { int n; float f; double d; };
extern "C" __global__ void k(P p, float* r) { r[threadIdx.x] = p.n * p.f + (float)p.d; }"""
_short = np.zeros((), np.dtype([("n", "i4"), ("f", "f4")]))
faults("struct_too_small", "ValueError", "launch", _STRUCT, args=(_short, "r"), says="16 bytes")
faults("argument_missing", "ValueError", "launch", _STRUCT, args=("r",), says="2 arguments")
faults(
    "argument_does_not_fit",
    "ValueError",
    "launch",
    'extern "C" __global__ void k(int n, float* r) { r[threadIdx.x] = n; }',
    args=(2**35, "r"),
    says="does not fit",
)
