"""Memory: every width and space, local arrays, constants, module variables. PTX ISA, "ld", "st", "State Spaces"."""

from __future__ import annotations

import numpy as np

from .case import Collection
from .values import raw, seed_of

family = Collection()
kernel = family.kernel
LOAD, SPACES = "Data Movement and Conversion: ld, st", "State Spaces: {}"


def some(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Random bytes as ``dtype``; floats are whole numbers, so that sums of them are exact."""
    n = int(np.prod(shape))
    words = raw(seed_of(dtype, shape, seed), n)
    if np.dtype(dtype).kind == "f":
        return ((words % np.uint64(2001)).astype("i8") - 1000).astype(dtype).reshape(shape)
    return words.astype(dtype).reshape(shape)


# widths ---------------------------------------------------------------------------------------------------------------
_VECTORS = {
    "char": ("int8", 1),
    "short": ("int16", 1),
    "int": ("int32", 1),
    "long long": ("int64", 1),
    "float": ("float32", 1),
    "double": ("float64", 1),
    "uchar2": ("uint8", 2),
    "uchar4": ("uint8", 4),
    "short2": ("int16", 2),
    "short4": ("int16", 4),
    "uint2": ("uint32", 2),
    "int4": ("int32", 4),
    "float2": ("float32", 2),
    "float4": ("float32", 4),
    "ulonglong2": ("uint64", 2),
    "double2": ("float64", 2),
}
for c, (dtype, lanes) in _VECTORS.items():
    name, x = c.replace(" ", "_"), some(dtype, 64, lanes)
    kernel(
        f"memory.global.{name}",
        LOAD,
        f"""extern "C" __global__ void k(const {c}* x, {c}* r) {{
  int i = threadIdx.x;
  {c} v = x[(i * 7 + 3) % 64];
  r[i] = v;
}}
""",
        block=64,
        outputs={"r": ((64, lanes), dtype)},
        expect=x[(np.arange(64) * 7 + 3) % 64],
        x=x,
    )
    kernel(
        f"memory.shared.{name}",
        LOAD,
        f"""extern "C" __global__ void k(const {c}* x, {c}* r) {{
  __shared__ {c} s[64];
  int i = threadIdx.x;
  s[i] = x[i];
  __syncthreads();
  r[i] = s[63 - i];
}}
""",
        block=64,
        outputs={"r": ((64, lanes), dtype)},
        expect=x[::-1],
        x=x,
    )
for c in ("signed char", "short", "int", "float4", "double"):
    dtype, lanes = {"signed char": ("int8", 1), "float4": ("float32", 4)}.get(c) or _VECTORS[c]
    x = some(dtype, 32, 8, lanes)
    kernel(
        f"memory.local.{c.replace(' ', '_')}",
        SPACES.format("local"),
        f"""extern "C" __global__ void k(const {c}* x, const int* at, {c}* r) {{
  int t = threadIdx.x;
  {c} a[8];
  for (int j = 0; j < 8; ++j) a[(j + at[t]) & 7] = x[t * 8 + j];
  r[t] = a[at[t] * 3 & 7];
}}
""",
        outputs={"r": ((32, lanes), dtype)},
        expect=lambda x, at: x[np.arange(32), (at * 3 - at) & 7],
        x=x,
        at=some("int32", 32) & 7,
    )
kernel(
    "memory.local.matrix",
    SPACES.format("local"),
    """extern "C" __global__ void k(const int* x, int* r) {
  int t = threadIdx.x, m[3][5];
  for (int i = 0; i < 3; ++i) for (int j = 0; j < 5; ++j) m[i][j] = x[t] * (i + 1) + j;
  int s = 0;
  for (int j = 0; j < 5; ++j) s ^= m[(x[t] + j) % 3u][(t + j) % 5];
  r[t] = s;
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x: np.array(
        [
            np.bitwise_xor.reduce([int(v) * ((int(v) + j) % 3 + 1) + (t + j) % 5 for j in range(5)])
            for t, v in enumerate(x)
        ]
    ),
    x=some("int32", 32) & 1023,
)

# how it is loaded and stored --------------------------------------------------------------------------------------------
_X = some("uint32", 64)
for op in (
    "ld.global.ca",
    "ld.global.cg",
    "ld.global.cs",
    "ld.global.cv",
    "ld.global.nc",
    "ld.volatile.global",
    "ld.relaxed.gpu.global",
    "ld.acquire.gpu.global",
    "ld.global.L1::no_allocate",
    "ldu.global",
):
    kernel(
        f"memory.load.{op}",
        LOAD,
        f"""extern "C" __global__ void k(const unsigned* x, unsigned* r) {{
  unsigned v;
  asm volatile("{op}.u32 %0, [%1+4];" : "=r"(v) : "l"(x + (threadIdx.x ^ 5)));
  r[threadIdx.x] = v;
}}
""",
        outputs={"r": (32, "uint32")},
        expect=_X[(np.arange(32) ^ 5) + 1],
        x=_X,
    )
for op in (
    "st.global.wb",
    "st.global.cg",
    "st.global.cs",
    "st.global.wt",
    "st.volatile.global",
    "st.relaxed.gpu.global",
    "st.release.gpu.global",
):
    kernel(
        f"memory.store.{op}",
        LOAD,
        f"""extern "C" __global__ void k(const unsigned* x, unsigned* r) {{
  asm volatile("{op}.u32 [%0], %1;" : : "l"(r + (threadIdx.x ^ 3)), "r"(x[threadIdx.x]) : "memory");
}}
""",
        outputs={"r": (32, "uint32")},
        expect=_X[np.arange(32) ^ 3],
        x=_X,
    )
_INTRINSICS = "__ldg __ldcs __ldcg __ldca __ldcv __ldlu".split()
kernel(
    "memory.cxx.cache_hints",
    LOAD,
    'extern "C" __global__ void k(const float4* x, float4* r) {\n'
    + "  float4 v = make_float4(0, 0, 0, 0), w;\n"
    + "".join(
        f"  w = {f}(x + {i} * 8 + threadIdx.x); v.x += w.x; v.y += w.y; v.z += w.z; v.w += w.w;\n"
        for i, f in enumerate(_INTRINSICS)
    )
    + "  __stcs(r + threadIdx.x, v);\n}\n",
    block=8,
    outputs={"r": ((8, 4), "float32")},
    expect=lambda x: x.reshape(6, 8, 4).sum(0),
    x=some("float32", 48, 4),
)
kernel(
    "memory.volatile.shared",
    LOAD,
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ volatile int s[32];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  int a = s[t ^ 1];
  __syncwarp();
  s[t] = a + 1;
  __syncwarp();
  r[t] = s[t ^ 2];
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x: x[np.arange(32) ^ 3] + 1,
    x=some("int32", 32) >> 1,
)
kernel(
    "memory.bytes",
    LOAD,
    """extern "C" __global__ void k(const unsigned char* x, unsigned* r) {
  unsigned v;
  memcpy(&v, x + threadIdx.x * 3 + 1, 4);
  r[threadIdx.x] = v;
}
""",
    outputs={"r": (32, "uint32")},
    expect=lambda x: np.stack([x[np.arange(32) * 3 + 1 + j] for j in range(4)], 1).copy().view("u4").reshape(-1),
    x=some("uint8", 100),
)
kernel(
    "memory.union",
    LOAD,
    """extern "C" __global__ void k(const float* x, unsigned short* r) {
  union { float f; unsigned short h[2]; } u;
  u.f = x[threadIdx.x];
  r[threadIdx.x] = u.h[threadIdx.x & 1];
}
""",
    outputs={"r": (32, "uint16")},
    expect=lambda x: x.view("u2").reshape(-1, 2)[np.arange(32), np.arange(32) % 2],
    x=some("float32", 32),
)
kernel(
    "memory.generic",
    SPACES.format("generic addressing"),
    """__device__ __noinline__ int pick(const int* p, int i) { return p[i] * 2; }
extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[32];
  int local[4], t = threadIdx.x;
  s[t] = x[t] + 1;
  for (int j = 0; j < 4; ++j) local[j] = x[t] + j * 10;
  __syncthreads();
  const int* p = t % 3 == 0 ? x : t % 3 == 1 ? s : local;
  r[t] = pick(p, t % 3 == 2 ? t & 3 : 31 - t);
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x: np.array([2 * ([x[31 - t], x[31 - t] + 1, x[t] + (t & 3) * 10][t % 3]) for t in range(32)]),
    x=some("int32", 32) >> 4,
)
kernel(
    "memory.isspacep",
    "Data Movement and Conversion: isspacep",
    """__device__ __noinline__ int kind(const void* p) { return __isGlobal(p) + 2 * __isShared(p) + 4 * __isLocal(p); }
extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[32];
  int local[8], t = threadIdx.x;
  for (int j = 0; j < 8; ++j) local[(j + t) & 7] = x[t];
  s[t] = local[x[t] & 7];
  r[t * 3] = kind(x + t);
  r[t * 3 + 1] = kind(s + t);
  r[t * 3 + 2] = kind(local + (s[t] & 7));
}
""",
    outputs={"r": ((32, 3), "int32")},
    expect=np.tile([1, 2, 4], (32, 1)),
    x=some("int32", 32),
)

# constants and module variables -----------------------------------------------------------------------------------------
kernel(
    "memory.constant.array",
    SPACES.format("const"),
    """__constant__ float c[8] = {1.5f, -2.f, 0.25f, 1e10f, -0.f, 3.f, 1e-40f, 7.f};
__constant__ short m[2][3] = {{1, -2, 3}, {-400, 500, 6}};
extern "C" __global__ void k(const int* at, float* r) {
  int t = threadIdx.x;
  r[t] = c[at[t] & 7] * m[at[t] >> 3 & 1][t % 3];
}
""",
    outputs={"r": (32, "float32")},
    expect=lambda at: (
        np.array([1.5, -2, 0.25, 1e10, -0.0, 3, 1e-40, 7], "f4")[at & 7]
        * np.array([[1, -2, 3], [-400, 500, 6]], "f4")[at >> 3 & 1, np.arange(32) % 3]
    ),
    at=some("int32", 32),
)
kernel(
    "memory.constant.struct",
    SPACES.format("const"),
    """struct Item { char a; double b; int c[2]; };
__constant__ Item items[3] = {{1, 2.5, {3, 4}}, {-5, 6.25, {7, -8}}, {9, -1e300, {11, 12}}};
extern "C" __global__ void k(const int* at, double* r) {
  const Item& i = items[at[threadIdx.x] % 3u];
  r[threadIdx.x] = i.a + i.b + i.c[threadIdx.x & 1];
}
""",
    outputs={"r": (32, "float64")},
    expect=lambda at: np.array([[1 + 2.5 + 3, 1 + 2.5 + 4], [-5 + 6.25 + 7, -5 + 6.25 - 8], [-1e300, -1e300]])[
        at.view("u4") % 3, np.arange(32) & 1
    ],
    at=some("int32", 32),
)
kernel(
    "memory.module.initialised",
    SPACES.format("global"),
    """__device__ int table[4] = {10, -20, 30, 40};
__device__ float zeros[4];
extern "C" __global__ void k(float* r) { int t = threadIdx.x; r[t] = table[t & 3] + zeros[t & 3]; }
""",
    outputs={"r": (32, "float32")},
    expect=np.array([10, -20, 30, 40])[np.arange(32) & 3],
)
kernel(
    "memory.module.pointer",
    SPACES.format("global"),
    """__device__ int table[4] = {10, -20, 30, 40};
__device__ int* pointer = table + 1;
extern "C" __global__ void k(int* r) { r[threadIdx.x] = pointer[threadIdx.x % 3]; }
""",
    outputs={"r": (32, "int32")},
    expect=np.array([-20, 30, 40])[np.arange(32) % 3],
    solo=True,
)
kernel(
    "memory.module.between_launches",
    SPACES.format("global"),
    """__device__ int saved[64];
extern "C" __global__ void k(const int* x) { saved[threadIdx.x] = x[threadIdx.x] * 3; }
extern "C" __global__ void k2(int* r) { r[threadIdx.x] = saved[63 - threadIdx.x]; }
""",
    block=64,
    args=("x",),
    then=[("k2", 1, 64, ("r",))],
    outputs={"r": (64, "int32")},
    expect=lambda x: x[::-1] * 3,
    x=some("int32", 64) >> 2,
)
kernel(
    "memory.scratch.between_launches",
    SPACES.format("global"),
    """extern "C" __global__ void k(const int* x, int* tmp) { tmp[threadIdx.x ^ 9] = x[threadIdx.x]; }
extern "C" __global__ void k2(const int* tmp, int* r) { r[threadIdx.x] = tmp[threadIdx.x] + 1; }
""",
    block=64,
    args=("x", "tmp"),
    then=[("k2", 1, 64, ("tmp", "r"))],
    outputs={"r": (64, "int32")},
    scratch={"tmp": (64, "int32")},
    expect=lambda x: x[np.arange(64) ^ 9] + 1,
    x=some("int32", 64) >> 2,
)

# shared memory ----------------------------------------------------------------------------------------------------------
kernel(
    "memory.shared.dynamic",
    SPACES.format("shared"),
    """extern "C" __global__ void k(const float* x, float* r, int n) {
  extern __shared__ __align__(16) char pool[];
  float* a = (float*)pool;
  double* b = (double*)(pool + n * 4);
  int t = threadIdx.x;
  a[t] = x[t]; b[t] = 2.0 * x[t];
  __syncthreads();
  r[t] = a[n - 1 - t] + (float)b[(t + 1) % n];
}
""",
    block=64,
    args=("x", "r", 64),
    shared=64 * 12,
    outputs={"r": (64, "float32")},
    expect=lambda x: x[::-1] + 2 * np.roll(x, -1),
    x=some("float32", 64),
)
kernel(
    "memory.shared.several",
    SPACES.format("shared"),
    """extern "C" __global__ void k(const short* x, int* r) {
  __shared__ char a[33];
  __shared__ double b[32];
  __shared__ short c[32];
  extern __shared__ int d[];
  int t = threadIdx.x;
  a[t + 1] = (char)x[t]; b[t] = x[t] * 0.5; c[t] = ~x[t]; d[t] = x[t] * x[t];
  if (t == 0) a[0] = 5;
  __syncthreads();
  int u = t ^ 7;
  r[t] = a[u] + (int)(b[u] * 2) + c[u] + d[u];
}
""",
    outputs={"r": (32, "int32")},
    shared=128,
    expect=lambda x: (lambda w: (np.concatenate([[5], w.astype("i1")])[:32] + w + ~w + w * w)[np.arange(32) ^ 7])(
        x.astype("i4")
    ),
    x=some("int16", 32),
)
kernel(
    "memory.shared.large",
    SPACES.format("shared"),
    """extern "C" __global__ void k(const int* x, int* r, int bytes) {
  extern __shared__ int s[];
  int n = bytes / 4, t = threadIdx.x;
  for (int i = t; i < n; i += 256) s[i] = i * x[t];
  __syncthreads();
  r[t] = s[n - 1 - t * 100];
}
""",
    block=256,
    args=("x", "r", 160 * 1024),
    shared=160 * 1024,
    outputs={"r": (256, "int32")},
    expect=lambda x: (lambda i: i * x[i % 256])(40959 - np.arange(256) * 100),
    x=some("int32", 256) & 1023,
)
kernel(
    "memory.shared.registers",
    "Special Registers: %dynamic_smem_size, %total_smem_size",
    """extern "C" __global__ void k(unsigned* r) {
  unsigned v;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(v));
  r[threadIdx.x] = v;
}
""",
    outputs={"r": (32, "uint32")},
    shared=1040,
    expect=np.full(32, 1040),
)
