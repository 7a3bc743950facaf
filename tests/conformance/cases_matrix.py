"""Tensor cores: ldmatrix, stmatrix, movmatrix, mma.sync. PTX ISA, "Warp Level Matrix Instructions".

Each mma shape has two cases: small whole numbers, of which every sum is exact, bit for bit; and random numbers, whose
order of summation PTX leaves open, to a bound.
"""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from . import exact
from .case import BITS, Collection, Within
from .cases_memory import some
from .values import raw, seed_of

family = Collection()
kernel = family.kernel
MATRIX = "Warp Level Matrix Instructions: {}"
T = np.arange(32)

# ldmatrix, stmatrix, movmatrix ----------------------------------------------------------------------------------------
for count in (1, 2, 4):
    for trans in ("", ".trans"):
        outs = ", ".join(f"%{i}" for i in range(count))
        braces = lambda items: "{" + items + "}"  # noqa: E731

        def loaded(x, count=count, trans=trans):
            out = np.zeros((32, count, 2), "u2")
            for m in range(count):
                tile = x[m].T if trans else x[m]
                out[:, m] = tile[T // 4][np.arange(32)[:, None], 2 * (T % 4)[:, None] + np.arange(2)]
            return out

        kernel(
            f"matrix.ldmatrix.x{count}{trans}",
            MATRIX.format("ldmatrix"),
            f"""extern "C" __global__ void k(const unsigned short* x, unsigned* r) {{
  __shared__ __align__(16) unsigned short s[{count} * 64];
  int t = threadIdx.x;
  for (int i = t; i < {count} * 64; i += 32) s[i] = x[i];
  __syncwarp();
  unsigned v[{count}], row = (unsigned)__cvta_generic_to_shared(s + t % ({count} * 8) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {braces(outs)}, [%{count}];"
               : {", ".join(f'"=r"(v[{i}])' for i in range(count))} : "r"(row) : "memory");
  for (int i = 0; i < {count}; ++i) r[t * {count} + i] = v[i];
}}
""",
            outputs={"r": ((32, count, 2), "uint16")},
            expect=loaded,
            x=some("uint16", count, 8, 8),
        )

        def stored(x, count=count, trans=trans):
            out = np.zeros((count, 8, 8), "u2")
            for m in range(count):
                tile = np.zeros((8, 8), "u2")
                tile[(T // 4)[:, None], 2 * (T % 4)[:, None] + np.arange(2)] = x[:, m]
                out[m] = tile.T if trans else tile
            return out

        kernel(
            f"matrix.stmatrix.x{count}{trans}",
            MATRIX.format("stmatrix"),
            f"""extern "C" __global__ void k(const unsigned* x, unsigned short* r) {{
  __shared__ __align__(16) unsigned short s[{count} * 64];
  int t = threadIdx.x;
  unsigned row = (unsigned)__cvta_generic_to_shared(s + t % ({count} * 8) * 8);
  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {braces(", ".join(f"%{i + 1}" for i in range(count)))};"
               : : "r"(row), {", ".join(f'"r"(x[t * {count} + {i}])' for i in range(count))} : "memory");
  __syncwarp();
  for (int i = t; i < {count} * 64; i += 32) r[i] = s[i];
}}
""",
            outputs={"r": ((count, 8, 8), "uint16")},
            expect=stored,
            x=some("uint16", 32, count, 2),
        )


def transposed(x):
    tile = np.zeros((8, 8), "u2")
    where = (T // 4)[:, None], 2 * (T % 4)[:, None] + np.arange(2)
    tile[where] = x
    return tile.T[where]


kernel(
    "matrix.movmatrix",
    MATRIX.format("movmatrix"),
    """extern "C" __global__ void k(const unsigned* x, unsigned* r) {
  unsigned v;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(x[threadIdx.x]));
  r[threadIdx.x] = v;
}
""",
    outputs={"r": ((32, 2), "uint16")},
    expect=transposed,
    x=some("uint16", 32, 2),
)


# mma ------------------------------------------------------------------------------------------------------------------
# Fragments by the figures of the ISA: thread = 4 * group + t; a register holds 4 bytes, that is 32 / bits elements of a row.
def fragment_a(k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of each thread's A elements, shape (32, registers, elements a register)."""
    per = 32 // bits
    registers = k * 16 * bits // 32 // 32
    row, column = np.zeros((2, 32, registers, per), int)
    for i in range(registers):
        for e in range(per):
            row[:, i, e] = T // 4 + 8 * (i % 2)
            column[:, i, e] = T % 4 * per + e + 4 * per * (i // 2)
    return row, column


def fragment_b(k: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    per = 32 // bits
    registers = k * 8 * bits // 32 // 32
    row, column = np.zeros((2, 32, registers, per), int)
    for i in range(registers):
        for e in range(per):
            row[:, i, e] = T % 4 * per + e + 4 * per * i
            column[:, i, e] = T // 4
    return row, column


def fragment_c() -> tuple[np.ndarray, np.ndarray]:
    row, column = np.zeros((2, 32, 4), int)
    for i in range(4):
        row[:, i], column[:, i] = T // 4 + 8 * (i // 2), T % 4 * 2 + i % 2
    return row, column


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Numbers as the bits of ``kind``, in an unsigned array of its width (tf32: 32)."""
    if kind in ("s8", "u8"):
        return values.astype("i4").astype("u1" if kind == "u8" else "i1").view("u1")
    if kind == "tf32":
        return values.astype("f4").view("u4") & np.uint32(0xFFFFE000)
    f = exact.FORMATS[kind]
    flat = [exact.convert(int(v), "f64", kind) for v in values.astype("f8").reshape(-1).view("u8")]
    return np.array(flat, f"u{f.bits // 8}").reshape(values.shape)


def decode(bits: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("s8", "u8"):
        return bits.view("i1" if kind == "s8" else "u1").astype("f8")
    if kind == "tf32":
        return bits.view("f4").astype("f8")
    return np.array([float(exact.decode(int(v), kind).value) for v in bits.reshape(-1)]).reshape(bits.shape)


_WIDTH = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}


def mma(k: int, a: str, b: str, d: str, modifier: str = "", whole: bool = True) -> None:
    bits = _WIDTH[a]
    size = np.dtype(f"u{bits // 8}")
    count_a, count_b = (f(k, bits)[0].shape[1] for f in (fragment_a, fragment_b))
    half = d == "f16"
    count_d = 2 if half else 4
    out = {"f16": ("float16", (32, 2, 2)), "f32": ("float32", (32, 4)), "s32": ("int32", (32, 4))}[d]
    c_type, constraint = ("unsigned", "r") if half else ("float", "f") if d == "f32" else ("int", "r")
    seed = seed_of("mma", k, a, b, d)

    def numbers(which: int, shape: tuple[int, int], kind: str) -> np.ndarray:
        words = raw(seed + which, shape[0] * shape[1]).reshape(shape)
        if kind in ("s8", "u8", "s32"):
            return (words % np.uint64(256)).astype("i8") - (0 if kind == "u8" else 128)
        if whole:
            return (words % np.uint64(9)).astype("f8") - 4
        return (words >> np.uint64(11)).astype("f8") * 2.0**-52 - 1

    matrix_a, matrix_b = encode(numbers(0, (16, k), a), a), encode(numbers(1, (k, 8), b), b)
    if modifier == ".satfinite":
        matrix_a[:8], matrix_b[:] = 127, 127
    matrix_c = numbers(2, (16, 8), "s32" if d == "s32" else "f32")
    if modifier == ".satfinite":
        matrix_c[:] = 2**31 - 100000
    matrix_c = matrix_c.astype(out[0])
    frag_a, frag_b, frag_c = (matrix_a[fragment_a(k, bits)], matrix_b[fragment_b(k, bits)], matrix_c[fragment_c()])

    def expected(**_):
        total = decode(matrix_a, a) @ decode(matrix_b, b) + matrix_c.astype("f8")
        if d == "s32":
            total = np.clip(total, -(2**31), 2**31 - 1) if modifier else total
            total = total.astype("i8").astype("i4")
        return total.astype(out[0])[fragment_c()]

    size_of_sum = k * 1.0 + 1
    step = {"f32": 2.0**-22 if bits > 8 else 2.0**-12, "f16": 2.0**-10, "s32": 0}[d]
    names = [f"%{i}" for i in range(2 * count_d + count_a + count_b)]
    groups = np.split(names, np.cumsum([count_d, count_a, count_b]))
    operands = ", ".join("{" + ", ".join(g) + "}" for g in groups)
    read = [f'"r"(a[t * {count_a} + {i}])' for i in range(count_a)] + [
        f'"r"(b[t * {count_b} + {i}])' for i in range(count_b)
    ]
    read += [f'"{constraint}"(c[t * {count_d} + {i}])' for i in range(count_d)]
    kernel(
        f"mma.m16n8k{k}.{a}.{b}.{d}{modifier}.{'exact' if whole else 'rounded'}",
        MATRIX.format("mma"),
        f"""extern "C" __global__ void k(const unsigned* a, const unsigned* b, const {c_type}* c, {c_type}* r) {{
  int t = threadIdx.x;
  {c_type} d[{count_d}];
  asm volatile("mma.sync.aligned.m16n8k{k}.row.col{modifier}.{d}.{a}.{b}.{d} {operands};"
               : {", ".join(f'"={constraint}"(d[{i}])' for i in range(count_d))}
               : {", ".join(read)});
  for (int i = 0; i < {count_d}; ++i) r[t * {count_d} + i] = d[i];
}}
""",
        outputs={"r": (out[1], out[0])},
        expect=expected,
        compare=BITS if whole else Within(absolute=size_of_sum * step),
        a=np.ascontiguousarray(frag_a).astype(size),
        b=np.ascontiguousarray(frag_b).astype(size),
        c=np.ascontiguousarray(frag_c).reshape(out[1]),
    )


for whole in (True, False):
    for k in (8, 16):
        mma(k, "f16", "f16", "f32", whole=whole)
        mma(k, "f16", "f16", "f16", whole=whole)
        mma(k, "bf16", "bf16", "f32", whole=whole)
    for k in (4, 8):
        mma(k, "tf32", "tf32", "f32", whole=whole)
    for a, b in (("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2")):
        mma(32, a, b, "f32", whole=whole)
for k in (16, 32):
    for a, b in (("s8", "s8"), ("u8", "u8"), ("s8", "u8")):
        mma(k, a, b, "s32")
mma(32, "s8", "s8", "s32", ".satfinite")

_A64, _B64, _C64 = (some("float64", *s, seed=i) for i, s in enumerate(((8, 4), (4, 8), (8, 8))))
kernel(
    "mma.m8n8k4.f64",
    MATRIX.format("mma"),
    """extern "C" __global__ void k(const double* a, const double* b, const double* c, double* r) {
  int t = threadIdx.x;
  double d[2];
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=d"(d[0]), "=d"(d[1]) : "d"(a[t]), "d"(b[t]), "d"(c[2 * t]), "d"(c[2 * t + 1]));
  r[2 * t] = d[0]; r[2 * t + 1] = d[1];
}
""",
    outputs={"r": ((8, 8), "float64")},
    expect=_A64 @ _B64 + _C64,
    a=_A64,
    b=np.ascontiguousarray(_B64.T),
    c=_C64,
)
kernel(
    "mma.gemm",
    MATRIX.format("ldmatrix, mma"),
    """__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* r) {   // 16x32 times 32x8
  __shared__ __align__(16) unsigned short sa[16 * 40], sb[32 * 8];
  int t = threadIdx.x;
  for (int i = t; i < 512; i += 32) sa[i / 32 * 40 + i % 32] = a[i];
  for (int i = t; i < 256; i += 32) sb[i] = b[i];
  __syncwarp();
  float d[4] = {0, 0, 0, 0};
  for (int k0 = 0; k0 < 32; k0 += 16) {
    unsigned x[4], y[2];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at(sa + (t % 16) * 40 + k0 + t / 16 * 8)) : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(y[0]), "=r"(y[1])
                 : "r"(at(sb + (k0 + t % 16) * 8)) : "memory");
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  int row = t / 4, column = t % 4 * 2;
  r[row * 8 + column] = d[0]; r[row * 8 + column + 1] = d[1];
  r[(row + 8) * 8 + column] = d[2]; r[(row + 8) * 8 + column + 1] = d[3];
}
""",
    outputs={"r": ((16, 8), "float32")},
    expect=lambda a, b: a.astype("f4") @ b.astype("f4"),
    a=(some("float32", 16, 32) % 8).astype("f2"),
    b=(some("float32", 32, 8) % 8).astype("f2"),
)
