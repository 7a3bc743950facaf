"""Atomics on global and shared memory, with results that do not depend on the order. PTX ISA, "atom", "red"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
kernel = family.kernel
ATOM, RED = "Parallel Synchronization: atom", "Parallel Synchronization: red"
_T = np.arange(128)


def _many(start, v, f):
    """Eight places, each updated by 16 of 128 threads."""
    out = start.copy()
    for t in _T:
        out[t % 8] = f(out[t % 8], v[t])
    return out


def _wrap(f):
    def g(a, b):
        with np.errstate(all="ignore"):
            return f(a, b)

    return g


_OPS = {
    "Add": _wrap(lambda a, b: a + b),
    "Min": min,
    "Max": max,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
}
_TYPES = {"int": "int32", "unsigned": "uint32", "unsigned long long": "uint64", "long long": "int64"}
for c, dtype in _TYPES.items():
    for op, f in _OPS.items():
        if c == "long long" and op not in ("Min", "Max"):
            continue  # CUDA C++ has only those
        start, v = some(dtype, 8, seed=3), some(dtype, 128)
        for space in ("global", "shared"):
            source = {
                "global": f"""extern "C" __global__ void k(const {c}* start, const {c}* v, {c}* r) {{
  int t = threadIdx.x;
  if (t < 8) r[t] = start[t];
  __syncthreads();
  atomic{op}(r + t % 8, v[t]);
}}
""",
                "shared": f"""extern "C" __global__ void k(const {c}* start, const {c}* v, {c}* r) {{
  __shared__ {c} s[8];
  int t = threadIdx.x;
  if (t < 8) s[t] = start[t];
  __syncthreads();
  atomic{op}(s + t % 8, v[t]);
  __syncthreads();
  if (t < 8) r[t] = s[t];
}}
""",
            }[space]
            kernel(
                f"atomic.{space}.{op.lower()}.{dtype}",
                ATOM,
                source,
                block=128,
                outputs={"r": (8, dtype)},
                expect=lambda start, v, f=f: _many(start, v, f),
                start=start,
                v=v,
            )
for c, dtype in (("float", "float32"), ("double", "float64")):
    for space in ("global", "shared"):
        kernel(
            f"atomic.{space}.add.{dtype}",
            ATOM,
            f"""extern "C" __global__ void k(const {c}* v, {c}* r) {{
  __shared__ {c} s[8];
  int t = threadIdx.x;
  if (t < 8) {{ r[t] = 0; s[t] = 0; }}
  __syncthreads();
  atomicAdd({"r" if space == "global" else "s"} + t % 8, v[t]);
  __syncthreads();
  {"" if space == "global" else "if (t < 8) r[t] = s[t];"}
}}
""",
            block=128,
            outputs={"r": (8, dtype)},
            expect=lambda v: v.reshape(16, 8).sum(0),
            v=some(dtype, 128),
        )

# what the old value is, one thread a place ------------------------------------------------------------------------------
_OLD = {
    "add": ("atomicAdd(p, v[t])", lambda a, v: a + v),
    "sub": ("atomicSub(p, v[t])", lambda a, v: a - v),
    "exch": ("atomicExch(p, v[t])", lambda a, v: v),
    "cas": ("atomicCAS(p, t & 1 ? *p : 1u, v[t])", lambda a, v: np.where((np.arange(32) & 1) | (a == 1), v, a)),
    "inc": ("atomicInc(p, v[t])", lambda a, v: np.where(a >= v, 0, a + 1)),
    "dec": ("atomicDec(p, v[t])", lambda a, v: np.where((a == 0) | (a > v), v, a - 1)),
    "min": ("atomicMin(p, v[t])", np.minimum),
    "xor": ("atomicXor(p, v[t])", np.bitwise_xor),
}
for key, (call, f) in _OLD.items():
    for space in ("global", "shared"):
        place = "r + t" if space == "global" else "s + t"
        kernel(
            f"atomic.old.{space}.{key}",
            ATOM,
            f"""extern "C" __global__ void k(const unsigned* a, const unsigned* v, unsigned* r, unsigned* old) {{
  __shared__ unsigned s[32];
  int t = threadIdx.x;
  r[t] = s[t] = a[t];
  __syncthreads();
  unsigned* p = {place};
  old[t] = {call};
  __syncthreads();
  r[t] = *p;
}}
""",
            outputs={"r": (32, "uint32"), "old": (32, "uint32")},
            expect=lambda a, v, f=f: {"r": f(a, v), "old": a},
            a=some("uint32", 32) & np.uint32(0x80000007),
            v=some("uint32", 32, seed=5) & np.uint32(0xC000000F),
        )
for c, dtype in (("unsigned long long", "uint64"), ("unsigned short", "uint16")):
    kernel(
        f"atomic.cas.{dtype}",
        ATOM,
        f"""extern "C" __global__ void k(const {c}* a, const {c}* v, {c}* r, {c}* old) {{
  int t = threadIdx.x;
  r[t] = a[t];
  old[t] = atomicCAS(r + t, ({c})(t & 1 ? a[t] : a[t] + 1), v[t]);
}}
""",
        outputs={"r": (32, dtype), "old": (32, dtype)},
        expect=lambda a, v: {"r": np.where(np.arange(32) & 1, v, a), "old": a},
        a=some(dtype, 32),
        v=some(dtype, 32, seed=6),
    )
kernel(
    "atomic.cas.loop",
    ATOM,
    """extern "C" __global__ void k(const float* v, float* r) {   // the largest float, by compare and swap
  __shared__ unsigned s;
  int t = threadIdx.x;
  if (t == 0) s = __float_as_uint(-1e30f);
  __syncthreads();
  unsigned old = s, assumed;
  do {
    assumed = old;
    if (__uint_as_float(assumed) >= v[t]) break;
    old = atomicCAS(&s, assumed, __float_as_uint(v[t]));
  } while (old != assumed);
  __syncthreads();
  r[t] = __uint_as_float(s);
}
""",
    block=96,
    outputs={"r": (96, "float32")},
    expect=lambda v: np.full(96, v.max()),
    v=some("float32", 96),
)
kernel(
    "atomic.counter",
    ATOM,
    """extern "C" __global__ void k(int* count) { *count = 0; }
extern "C" __global__ void k2(int* seen, int* count) {   // every ticket is given once
  seen[atomicAdd(count, 1)] = 1;
}
""",
    block=1,
    args=("count",),
    then=[("k2", 4, 64, ("seen", "count"))],
    outputs={"count": (1, "int32"), "seen": (256, "int32")},
    expect={"count": np.array([256]), "seen": np.ones(256)},
)
kernel(
    "atomic.histogram",
    ATOM,
    """extern "C" __global__ void k(const unsigned char* x, int* r) {
  __shared__ int h[16];
  int t = threadIdx.x;
  if (t < 16) h[t] = 0;
  __syncthreads();
  for (int i = t; i < 1000; i += 128) atomicAdd(&h[x[i] >> 4], 1);
  __syncthreads();
  if (t < 16) r[t] = h[t];
}
""",
    block=128,
    outputs={"r": (16, "int32")},
    expect=lambda x: np.bincount(x >> 4, minlength=16),
    x=some("uint8", 1000),
)

# reductions without a result, packed and vector forms ---------------------------------------------------------------------
_START = """  if (t < 8) r[t] = start[t];
  __syncthreads();
"""
for op, dtype, c, reg, f in (
    ("red.global.add.u32", "uint32", "unsigned", "r", lambda a, b: a + b),
    ("red.relaxed.gpu.global.add.s32", "int32", "int", "r", lambda a, b: a + b),
    ("red.global.max.s32", "int32", "int", "r", max),
    ("red.global.or.b64", "uint64", "unsigned long long", "l", lambda a, b: a | b),
    ("red.global.add.f32", "float32", "float", "f", lambda a, b: a + b),
):
    kernel(
        f"atomic.{op}",
        RED,
        f"""extern "C" __global__ void k(const {c}* start, const {c}* v, {c}* r) {{
  int t = threadIdx.x;
{_START}  asm volatile("{op} [%0], %1;" : : "l"(r + t % 8), "{reg}"(v[t]) : "memory");
}}
""",
        block=128,
        outputs={"r": (8, dtype)},
        expect=lambda start, v, f=f: _many(start, v, _wrap(f)),
        start=some(dtype, 8, seed=3),
        v=some(dtype, 128),
    )
kernel(
    "atomic.red.shared.inc",
    RED,
    """extern "C" __global__ void k(unsigned* r) {
  __shared__ unsigned s[4];
  int t = threadIdx.x;
  if (t < 4) s[t] = 0;
  __syncthreads();
  asm volatile("red.shared.inc.u32 [%0], %1;" : : "r"((unsigned)__cvta_generic_to_shared(s + t % 4)), "r"(9) : "memory");
  __syncthreads();
  if (t < 4) r[t] = s[t];
}
""",
    block=128,
    outputs={"r": (4, "uint32")},
    expect=np.full(4, 32 % 10),
)
for key, dtype in (("f16x2", "float16"), ("bf16x2", "uint16")):
    values = (some("float32", 64, seed=8) % 8).astype("f4")
    halves = values.astype("f2") if key == "f16x2" else (values.view("u4") >> 16).astype("u2")
    total = values.reshape(16, 2, 2).sum(0)
    kernel(
        f"atomic.add.noftz.{key}",
        ATOM,
        f"""extern "C" __global__ void k(const unsigned* v, unsigned* r) {{
  int t = threadIdx.x;
  unsigned old;
  if (t < 2) r[t] = 0;
  __syncthreads();
  asm volatile("atom.global.add.noftz.{key} %0, [%1], %2;" : "=r"(old) : "l"(r + t % 2), "r"(v[t]) : "memory");
}}
""",
        outputs={"r": ((2, 2), dtype)},
        expect=total.astype("f2") if key == "f16x2" else (total.astype("f4").view("u4") >> 16).astype("u2"),
        v=halves.reshape(32, 2),
    )
kernel(
    "atomic.red.vector.f32",
    RED,
    """extern "C" __global__ void k(const float4* v, float4* r) {
  int t = threadIdx.x;
  if (t < 2) r[t] = make_float4(0, 0, 0, 0);
  __syncthreads();
  float4 a = v[t];
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" : : "l"(r + t % 2), "f"(a.x), "f"(a.y), "f"(a.z), "f"(a.w) : "memory");
}
""",
    outputs={"r": ((2, 4), "float32")},
    expect=lambda v: v.reshape(16, 2, 4).sum(0),
    v=some("float32", 32, 4),
)
kernel(
    "atomic.scopes",
    ATOM,
    """extern "C" __global__ void k(const int* v, int* r) {
  __shared__ int s;
  int t = threadIdx.x;
  if (t == 0) { s = 0; r[0] = 0; r[1] = 0; }
  __syncthreads();
  atomicAdd_block(&s, v[t]); atomicAdd_system(r, v[t]); atomicMax_block(r + 1, v[t]);
  __syncthreads();
  if (t == 0) r[2] = s;
}
""",
    block=64,
    outputs={"r": (3, "int32")},
    expect=lambda v: np.array([v.sum(), max(v.max(), 0), v.sum()]),
    v=some("int32", 64) >> 8,
)
