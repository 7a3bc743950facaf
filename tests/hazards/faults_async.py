"""Seeded faults: order within a warp, copies that are not waited for."""

from __future__ import annotations

from .kernel import Faults, floats

faults = Faults()

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
