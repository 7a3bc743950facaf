"""Kernel arguments, special registers and index arithmetic: PTX ISA, "Kernel Function Parameters", "Special Registers"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
kernel = family.kernel
PARAMETERS = "Kernel Function Parameters"

# arguments --------------------------------------------------------------------------------------------------------------
_MIXED = np.dtype([("a", "i1"), ("b", "i2"), ("c", "i4"), ("d", "f8"), ("e", "f4", 3), ("f", "u1")], align=True)
_mixed = np.zeros((), _MIXED)
_mixed["a"], _mixed["b"], _mixed["c"], _mixed["d"], _mixed["e"], _mixed["f"] = -3, 1000, -70000, 2.5, (1, 2, 4), 200
_MIXED_SOURCE = "struct Mixed { signed char a; short b; int c; double d; float e[3]; unsigned char f; };\n"
kernel(
    "arguments.struct",
    PARAMETERS,
    _MIXED_SOURCE
    + """extern "C" __global__ void k(int first, Mixed m, double* r) {
  int t = threadIdx.x;
  r[t] = first + m.a + m.b + m.c + m.d + m.e[t % 3] + m.f;
}
""",
    args=(7, _mixed, "r"),
    outputs={"r": (32, "float64")},
    expect=7 - 3 + 1000 - 70000 + 2.5 + 200 + np.array([1.0, 2, 4])[np.arange(32) % 3],
)
kernel(
    "arguments.struct.noinline",
    PARAMETERS,
    _MIXED_SOURCE
    + """__device__ __noinline__ Mixed turn(Mixed m, int t) { m.b += t; m.e[1] = m.e[0] * t; m.a = -m.a; return m; }
extern "C" __global__ void k(Mixed m, double* r) {
  Mixed n = turn(m, threadIdx.x);
  r[threadIdx.x] = n.a * 1e6 + n.b + n.c + n.d + n.e[1] + n.e[2] + n.f;
}
""",
    args=(_mixed, "r"),
    outputs={"r": (32, "float64")},
    expect=3e6 + 1000 + np.arange(32) - 70000 + 2.5 + np.arange(32) + 4 + 200,
)
kernel(
    "arguments.scalars",
    PARAMETERS,
    """extern "C" __global__ void k(signed char a, unsigned short b, bool c, long long d, float e, double f, unsigned g, int* none,
                                double* r) {
  int t = threadIdx.x;
  double v[8] = {(double)a, (double)b, (double)c, (double)d, (double)e, f, (double)g, none == nullptr ? 1.0 : 0.0};
  r[t] = v[t & 7];
}
""",
    args=(-100, 65535, True, -(2**53), 0.1, 0.1, 2**32 - 1, None, "r"),
    outputs={"r": (32, "float64")},
    expect=np.tile([-100.0, 65535, 1, -(2.0**53), np.float64(np.float32(0.1)), 0.1, 2.0**32 - 1, 1], 4),
)
kernel(
    "arguments.many",
    PARAMETERS,
    f"""extern "C" __global__ void k({", ".join(f"int p{i}" for i in range(40))}, int* r) {{
  r[threadIdx.x] = {" ^ ".join(f"p{i} * (threadIdx.x + {i})" for i in range(40))};
}}
""",
    args=(*(i * i - 300 for i in range(40)), "r"),
    outputs={"r": (32, "int32")},
    expect=np.bitwise_xor.reduce([(i * i - 300) * (np.arange(32) + i) for i in range(40)]),
)

# indices ----------------------------------------------------------------------------------------------------------------
kernel(
    "index.3d",
    "Special Registers: %tid, %ntid, %ctaid, %nctaid",
    """extern "C" __global__ void k(int* r) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  r[i] = threadIdx.x | threadIdx.y << 4 | threadIdx.z << 8 | blockIdx.x << 12 | blockIdx.y << 16 | blockIdx.z << 20;
}
""",
    grid=(3, 2, 4),
    block=(5, 3, 4),
    outputs={"r": (24 * 60, "int32")},
    expect=lambda: np.array(
        [
            t % 5 | t // 5 % 3 << 4 | t // 15 << 8 | b % 3 << 12 | b // 3 % 2 << 16 | b // 6 << 20
            for b in range(24)
            for t in range(60)
        ]
    ),
)
kernel(
    "index.laneid",
    "Special Registers: %laneid, %lanemask",
    """extern "C" __global__ void k(unsigned* r) {
  unsigned v[6];
  int t = threadIdx.x + threadIdx.y * blockDim.x;
  asm("mov.u32 %0, %%laneid;" : "=r"(v[0]));
  asm("mov.u32 %0, %%lanemask_eq;" : "=r"(v[1]));
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(v[2]));
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(v[3]));
  asm("mov.u32 %0, %%lanemask_gt;" : "=r"(v[4]));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(v[5]));
  for (int j = 0; j < 6; ++j) r[t * 6 + j] = v[j];
}
""",
    block=(20, 5),
    outputs={"r": ((100, 6), "uint32")},
    expect=lambda: np.array(
        [
            [n, 1 << n, (1 << n) - 1, (2 << n) - 1, 2**32 - (2 << n), 2**32 - (1 << n)]
            for n in (t % 32 for t in range(100))
        ]
    ),
)
kernel(
    "index.64bit",
    "Integer Arithmetic: mad.wide",
    """extern "C" __global__ void k(const int* x, const long long* far, int* r, long long n) {
  int t = threadIdx.x;
  const int* p = x - far[t];
  long long at = (long long)(t + 1) * 1000003LL * 1000003LL % n;
  r[t] = p[far[t] + at];
}
""",
    args=("x", "far", "r", 97),
    outputs={"r": (32, "int32")},
    expect=lambda x, far: x[[(t + 1) * 1000003**2 % 97 for t in range(32)]],
    x=some("int32", 97),
    far=some("int64", 32) >> 30,
)
kernel(
    "index.unsigned_wrap",
    "Integer Arithmetic: mul.wide",
    """extern "C" __global__ void k(const int* x, int* r, unsigned start) {
  unsigned i = start + threadIdx.x * 0x08000001u;   // wraps around 2^32
  r[threadIdx.x] = x[i & 63];
}
""",
    args=("x", "r", 0xFFFFFFF0),
    outputs={"r": (32, "int32")},
    expect=lambda x: x[(0xFFFFFFF0 + np.arange(32) * 0x08000001) & 63],
    x=some("int32", 64),
)
kernel(
    "index.grid_stride",
    "Special Registers: %nctaid",
    """extern "C" __global__ void k(const float* x, float* r, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) r[i] = x[n - 1 - i] * 2;
}
""",
    grid=3,
    block=40,
    args=("x", "r", 777),
    outputs={"r": (777, "float32")},
    expect=lambda x: x[::-1] * 2,
    x=some("float32", 777),
)
kernel(
    "index.pointer_difference",
    "Integer Arithmetic: sub",
    """extern "C" __global__ void k(const double* x, long long* r) {
  const double *p = x + threadIdx.x * 3, *end = x + 100;
  r[threadIdx.x] = (end - p) * 2 + (p < end) + ((const char*)end - (const char*)p);
}
""",
    outputs={"r": (32, "int64")},
    expect=(100 - np.arange(32) * 3) * 10 + (np.arange(32) * 3 < 100),
    x=some("float64", 100),
)
