"""Seeded faults: reads of what nobody wrote, launches and arguments that cannot be."""

from __future__ import annotations

import numpy as np

from .kernel import Faults, floats

faults = Faults()

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
