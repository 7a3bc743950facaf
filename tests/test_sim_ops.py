"""Each PTX opcode against NumPy or Python arithmetic, bit for bit, on random and on awkward values."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from simulated import run

N = 512
INTERESTING = [
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    63,
    64,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0xFF,
    0x100,
    0x80,
    0xAAAA5555,
]


def integers(seed, t):
    rng = np.random.default_rng(seed)
    info = np.iinfo(t)
    v = rng.integers(info.min, info.max, N, dtype=t, endpoint=True)
    small = rng.integers(0, 40, N).astype(t)
    v = np.where(rng.random(N) < 0.3, small, v)
    picks = np.array([x & (2 ** (8 * v.itemsize) - 1) for x in INTERESTING], f"u{v.itemsize}").view(t)
    return np.where(rng.random(N) < 0.3, rng.choice(picks, N), v).astype(t)


def floats(seed, t="f4"):
    rng = np.random.default_rng(seed)
    v = (rng.standard_normal(N) * 10.0 ** rng.integers(-6, 6, N)).astype(t)
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3e38, 1e-30, 65504], t)
    return np.where(rng.random(N) < 0.3, rng.choice(special, N), v).astype(t)


_C = dict(
    u4="unsigned", i4="int", u8="unsigned long long", i8="long long", f4="float", f8="double", u2="unsigned short"
)
_C["i2"] = "short"
_R = dict(u4="r", i4="r", u8="l", i8="l", f4="f", f8="d", u2="h", i2="h")


def asm(ptx, out, *values):
    """The result of one line of PTX for every element: %0 is the result, %1, %2, ... the arguments."""
    names = "abcd"[: len(values)]
    kinds = [f"{v.dtype.kind}{v.itemsize}" for v in values]
    params = ", ".join(f"const {_C[k]}* {n}" for n, k in zip(names, kinds, strict=True))
    inputs = ", ".join(f'"{_R[k]}"({n}[i])' for n, k in zip(names, kinds, strict=True))
    source = f"""extern "C" __global__ void k({params}, {_C[out]}* o) {{
      int i = blockIdx.x * 128 + threadIdx.x; {_C[out]} r;
      asm volatile("{ptx}" : "={_R[out]}"(r) : {inputs});
      o[i] = r; }}"""
    how = dict(grid=N // 128, block=128, args=(*names, "o"), outputs={"o": ((N,), str(np.dtype(out)))})
    return run(source, **how, **dict(zip(names, values, strict=True))).output


def same(got, want):
    want = np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind == "f":
        equal = (got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)
    else:
        equal = got == want
    bad = np.flatnonzero(~equal)
    assert not len(bad), f"{len(bad)} differ, first at {bad[0]}: {got[bad[0]]!r}, expected {want[bad[0]]!r}"


def each(function, t, *values):
    """Python integers in, wrapped to type ``t``."""
    bits = 8 * np.dtype(t).itemsize
    out = [function(*(int(x) for x in row)) & (1 << bits) - 1 for row in zip(*values, strict=True)]
    return np.array(out, f"u{bits // 8}").view(t)


def trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def signed(v, bits):
    return v - (1 << bits) if v >> (bits - 1) & 1 else v


INT_OPS = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: a * b >> n,
    "div": lambda a, b, n: trunc_div(a, b) if b else -1,
    "rem": lambda a, b, n: a - trunc_div(a, b) * b if b else a,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
}


@pytest.mark.parametrize("t", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("op", INT_OPS)
def test_integer_arithmetic(op, t):
    a, b = integers(1, t), integers(2, t)
    n = 8 * a.itemsize
    same(
        asm(f"{op}.{'s' if t[0] == 'i' else 'u'}{n} %0, %1, %2;", t, a, b),
        each(lambda x, y: INT_OPS[op](x, y, n), t, a, b),
    )


@pytest.mark.parametrize(("t", "wide"), [("u4", "u8"), ("i4", "i8"), ("u2", "u4"), ("i2", "i4")])
def test_wide_products(t, wide):
    a, b, c = integers(1, t), integers(2, t), integers(3, wide)
    name = f"{'s' if t[0] == 'i' else 'u'}{8 * a.itemsize}"
    same(asm(f"mul.wide.{name} %0, %1, %2;", wide, a, b), a.astype(wide) * b.astype(wide))
    same(asm(f"mad.wide.{name} %0, %1, %2, %3;", wide, a, b, c), a.astype(wide) * b.astype(wide) + c)


def test_mad():
    a, b, c = (integers(s, "i4") for s in (1, 2, 3))
    same(asm("mad.lo.s32 %0, %1, %2, %3;", "i4", a, b, c), each(lambda x, y, z: x * y + z, "i4", a, b, c))
    same(asm("mad.hi.s32 %0, %1, %2, %3;", "i4", a, b, c), each(lambda x, y, z: (x * y >> 32) + z, "i4", a, b, c))


@pytest.mark.parametrize("t", ["u4", "u8"])
def test_carry(t):
    a, b = integers(1, t), integers(2, t)
    n = 8 * a.itemsize
    kind = f"u{n}"
    ptx = f"{{ .reg .{kind} t; add.cc.{kind} t, %1, %2; addc.{kind} %0, 0, 0; }}"
    same(asm(ptx, t, a, b), each(lambda x, y: x + y >> n, t, a, b))
    ptx = f"{{ .reg .{kind} t; sub.cc.{kind} t, %1, %2; subc.{kind} %0, 5, 0; }}"
    same(asm(ptx, t, a, b), each(lambda x, y: 5 - (x < y), t, a, b))


@pytest.mark.parametrize("t", ["u4", "i4", "u8", "i8"])
@pytest.mark.parametrize("op", ["and", "or", "xor", "shl", "shr"])
def test_logic_and_shifts(op, t):
    a = integers(1, t)
    n = 8 * a.itemsize
    if op in ("shl", "shr"):
        b = integers(2, "u4")
        kind = f"b{n}" if op == "shl" else f"{'s' if t[0] == 'i' else 'u'}{n}"
        f = (lambda x, y: x << min(y, n)) if op == "shl" else (lambda x, y: x >> min(y, n))
    else:
        b, kind = integers(2, t), f"b{n}"
        f = {"and": lambda x, y: x & y, "or": lambda x, y: x | y, "xor": lambda x, y: x ^ y}[op]
    same(asm(f"{op}.{kind} %0, %1, %2;", t, a, b), each(f, t, a, b))


def test_constant_shifts_clamp():
    a = integers(1, "i4")
    same(asm("shr.s32 %0, %1, 40;", "i4", a), a >> 31)
    same(asm("shl.b32 %0, %1, 32;", "i4", a), a * 0)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("wrap", [True, False])
def test_funnel_shift(left, wrap):
    a, b, c = (integers(s, "u4") for s in (1, 2, 3))

    def f(low, high, n):
        n = n & 31 if wrap else min(n, 32)
        both = high << 32 | low
        return (both << n) >> 32 if left else both >> n

    ptx = f"shf.{'l' if left else 'r'}.{'wrap' if wrap else 'clamp'}.b32 %0, %1, %2, %3;"
    same(asm(ptx, "u4", a, b, c), each(f, "u4", a, b, c))


@pytest.mark.parametrize("t", ["u4", "i4", "u8", "i8"])
def test_bit_fields(t):
    a, rng = integers(1, t), np.random.default_rng(5)
    pos, length = (rng.integers(0, 80, N).astype("u4") for _ in range(2))
    n = 8 * a.itemsize
    kind = f"{'s' if t[0] == 'i' else 'u'}{n}"

    def extract(x, p, size):
        x &= (1 << n) - 1
        if not size:
            return 0
        sign = x >> min(p + size - 1, n - 1) & 1 if t[0] == "i" else 0
        out = x >> p & (1 << size) - 1
        kept = max(0, min(size, n - p))
        return out | (((1 << n) - 1) >> kept << kept if sign else 0)

    same(asm(f"bfe.{kind} %0, %1, %2, %3;", t, a, pos, length), each(extract, t, a, pos, length))


def test_bit_insert():
    a, b, rng = integers(1, "u4"), integers(2, "u4"), np.random.default_rng(5)
    pos, length = (rng.integers(0, 40, N).astype("u4") for _ in range(2))

    def insert(x, y, p, size):
        mask = ((1 << size) - 1) << p & 0xFFFFFFFF
        return (x << p & mask) | (y & ~mask)

    same(asm("bfi.b32 %0, %1, %2, %3, %4;", "u4", a, b, pos, length), each(insert, "u4", a, b, pos, length))


@pytest.mark.parametrize("n", [32, 64])
def test_counting(n):
    t = f"u{n // 8}"
    a = integers(1, t)
    same(asm(f"popc.b{n} %0, %1;", "u4", a), each(lambda x: x.bit_count(), "u4", a))
    same(asm(f"clz.b{n} %0, %1;", "u4", a), each(lambda x: n - x.bit_length(), "u4", a))
    same(asm(f"bfind.u{n} %0, %1;", "u4", a), each(lambda x: x.bit_length() - 1, "u4", a))
    same(asm(f"brev.b{n} %0, %1;", t, a), each(lambda x: int(f"{x:0{n}b}"[::-1], 2), t, a))
    b = a.view(f"i{n // 8}")
    same(asm(f"bfind.s{n} %0, %1;", "u4", b), each(lambda x: (x if x >= 0 else ~x).bit_length() - 1, "u4", b))


def test_permute_and_dot():
    a, b, c = (integers(s, "u4") for s in (1, 2, 3))

    def permute(x, y, s):
        data = (y << 32 | x).to_bytes(8, "little")
        out = 0
        for i in range(4):
            k = s >> 4 * i & 15
            byte = data[k & 7]
            out |= (byte if k < 8 else 255 * (byte >> 7)) << 8 * i
        return out

    same(asm("prmt.b32 %0, %1, %2, %3;", "u4", a, b, c), each(permute, "u4", a, b, c))

    def dot(x, y, z):
        return z + sum(signed(x >> 8 * i & 255, 8) * (y >> 8 * i & 255) for i in range(4))

    same(asm("dp4a.s32.u32 %0, %1, %2, %3;", "u4", a, b, c), each(dot, "u4", a, b, c))


@pytest.mark.parametrize("table", [0x96, 0xE8, 0x80, 0xFE, 0x1A])
def test_lop3(table):
    a, b, c = (integers(s, "u4") for s in (1, 2, 3))

    def f(x, y, z):
        return sum((table >> ((x >> i & 1) * 4 + (y >> i & 1) * 2 + (z >> i & 1)) & 1) << i for i in range(32))

    same(asm(f"lop3.b32 %0, %1, %2, %3, {table};", "u4", a, b, c), each(f, "u4", a, b, c))


# floating point -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("t", "bits"), [("f4", 32), ("f8", 64)])
def test_float_arithmetic(t, bits):
    a, b = floats(1, t), floats(2, t)
    with np.errstate(all="ignore"):
        for op, want in dict(add=a + b, sub=a - b, mul=a * b).items():
            same(asm(f"{op}.rn.f{bits} %0, %1, %2;", t, a, b), want)
        same(asm(f"div.rn.f{bits} %0, %1, %2;", t, a, b), a / b)
        same(asm(f"sqrt.rn.f{bits} %0, %1;", t, a), np.sqrt(a))
        same(asm(f"rcp.rn.f{bits} %0, %1;", t, a), np.asarray(1, t) / a)
        same(asm(f"neg.f{bits} %0, %1;", t, a), -a)
        same(asm(f"abs.f{bits} %0, %1;", t, a), np.abs(a))


def exact_fma(a, b, c, t):
    """Rounded once, through exact fractions."""
    if not all(map(math.isfinite, (a, b, c))):
        return float(a) * float(b) + float(c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return float(a) * float(b) + float(c)
    if t == "f8":
        try:
            return exact.numerator / exact.denominator  # Python divides integers correctly rounded
        except OverflowError:
            return math.inf if exact > 0 else -math.inf
    near = np.float32(float(exact))
    around = [x for x in (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))]
    if not all(np.isfinite(around)):
        return near
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.float32(x).view("u4")) & 1))


def test_fma_rounds_once():
    rng = np.random.default_rng(3)
    a, b = ((1 + rng.integers(0, 2**23, N) * 2.0**-23).astype("f4") for _ in range(2))
    c = np.where(rng.random(N) < 0.5, -a * b, rng.standard_normal(N).astype("f4")).astype("f4")
    want = np.array([exact_fma(*v, "f4") for v in zip(a, b, c, strict=True)], "f4")
    same(asm("fma.rn.f32 %0, %1, %2, %3;", "f4", a, b, c), want)


def test_fma_where_rounding_twice_goes_wrong():
    """(2^23 + j)(2^24 - 2j) = 2^47 - 2j^2: half a unit less a crumb that a double cannot hold beside c."""
    j = np.arange(1, N + 1)
    a = ((2**23 + j) * 2.0**-23).astype("f4")
    b = ((2**24 - 2 * j) * 2.0**-48).astype("f4")
    wrong = 0
    for sign in (1, -1):
        for c in (1.0, 1 + 2.0**-23, -1.0, -1 - 2.0**-23):
            c, d = np.full(N, c, "f4"), (sign * b).astype("f4")
            want = np.array([exact_fma(*v, "f4") for v in zip(a, d, c, strict=True)], "f4")
            wrong += int((want != (a.astype("f8") * d + c).astype("f4")).sum())
            same(asm("fma.rn.f32 %0, %1, %2, %3;", "f4", a, d, c), want)
    assert wrong > N  # rounding to double on the way is not enough


def test_double_fma():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal(N), rng.standard_normal(N)
    c = np.where(rng.random(N) < 0.5, -a * b, rng.standard_normal(N))
    a[:4], b[:4], c[:4] = [np.inf, np.nan, 1e200, 0.0], [1, 1, 1e200, 5.0], [1, 1, 1, -0.0]
    want = np.array([exact_fma(*v, "f8") for v in zip(a, b, c, strict=True)])
    with np.errstate(all="ignore"):
        same(asm("fma.rn.f64 %0, %1, %2, %3;", "f8", a, b, c), want)


def test_fast_functions_are_close():
    a = np.abs(floats(1)[:N])
    a = np.where(np.isfinite(a) & (a > 1e-20) & (a < 30), a, 1.0).astype("f4")
    for name, f in dict(
        ex2=np.exp2, lg2=np.log2, sin=np.sin, cos=np.cos, rsqrt=lambda v: v**-0.5, sqrt=np.sqrt, rcp=lambda v: 1 / v
    ).items():
        np.testing.assert_allclose(asm(f"{name}.approx.f32 %0, %1;", "f4", a), f(a.astype("f8")), rtol=1e-6, atol=1e-6)


def test_min_max_prefer_numbers():
    a, b = floats(1), floats(2)
    with np.errstate(all="ignore"):
        low, high = np.fmin(a, b), np.fmax(a, b)
    zeros = (a == 0) & (b == 0)
    low[zeros] = np.where(np.signbit(a) | np.signbit(b), np.float32(-0.0), np.float32(0))[zeros]
    high[zeros] = np.where(np.signbit(a) & np.signbit(b), np.float32(-0.0), np.float32(0))[zeros]
    same(asm("min.f32 %0, %1, %2;", "f4", a, b), low)
    same(asm("max.f32 %0, %1, %2;", "f4", a, b), high)
    same(asm("min.NaN.f32 %0, %1, %2;", "f4", a, b)[~zeros], np.minimum(a, b)[~zeros])


def test_saturate_and_flush():
    a, b = floats(1), floats(2)
    with np.errstate(all="ignore"):
        clamped = np.where(a + b > 0, np.minimum(a + b, np.float32(1)), np.float32(0)).astype("f4")
        same(asm("add.sat.f32 %0, %1, %2;", "f4", a, b), clamped)
    small = np.full(N, 1e-39, "f4")
    same(asm("add.ftz.f32 %0, %1, %2;", "f4", small, small), small * 0)
    same(asm("add.f32 %0, %1, %2;", "f4", small, small), small + small)


# comparisons and conversions ----------------------------------------------------------------------------------------
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("t", ["u4", "i4", "u8", "i8", "f4"])
@pytest.mark.parametrize("op", COMPARE)
def test_comparisons(op, t):
    a, b = (floats(1), floats(2)) if t == "f4" else (integers(1, t), integers(2, t))
    b = np.where(np.arange(N) % 3 == 0, a, b).astype(t)
    kind = f"{dict(u='u', i='s', f='f')[t[0]]}{8 * a.itemsize}"
    want = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op]
    if t == "f4":
        nan = np.isnan(a) | np.isnan(b)
        unordered = asm(f"{{ .reg .pred p; setp.{op}u.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }}", "u4", a, b)
        same(unordered, (want | nan).astype("u4"))
        want = want & ~nan
    got = asm(f"{{ .reg .pred p; setp.{op}.{kind} p, %1, %2; selp.u32 %0, 1, 0, p; }}", "u4", a, b)
    same(got, want.astype("u4"))


def test_setp_with_two_results_and_combination():
    a, b = integers(1, "i4"), integers(2, "i4")
    for boolean, f in dict(**{"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}).items():
        ptx = f"""{{ .reg .pred p, q, r; setp.gt.s32 r, %1, 5; setp.lt.{boolean}.s32 p|q, %1, %2, !r;
                .reg .u32 x, y; selp.u32 x, 1, 0, p; selp.u32 y, 2, 0, q; or.b32 %0, x, y; }}"""
        r = ~(a > 5)
        want = f(a < b, r) * 1 + f(a >= b, r) * 2
        same(asm(ptx.replace("\n", " "), "u4", a, b), want.astype("u4"))


def test_set_and_slct_and_guard():
    a, b = integers(1, "i4"), integers(2, "i4")
    same(asm("set.lt.u32.s32 %0, %1, %2;", "u4", a, b), np.where(a < b, 0xFFFFFFFF, 0).astype("u4"))
    same(asm("slct.s32.s32 %0, %1, %2, %1;", "i4", a, b), np.where(a >= 0, a, b))
    same(
        asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; mov.s32 %0, 7; @!p add.s32 %0, %1, 3; }", "i4", a, b),
        np.where(a < b, 7, a + 3),
    )


def test_float_to_integer_saturates():
    a = floats(1)
    a[:8] = [2147483648.0, -2147483649.0, 4294967296.0, 0.5, -0.5, 1.5, 2.5, -1.5]
    for mode, f in dict(rni=np.rint, rzi=np.trunc, rmi=np.floor, rpi=np.ceil).items():
        for t, kind in (("i4", "s32"), ("u4", "u32"), ("i8", "s64")):
            info = np.iinfo(t)

            def one(x, f=f, info=info, odd=-(2**63) if t == "i8" else 0):
                if math.isnan(x):
                    return odd
                whole = int(f(x)) if math.isfinite(x) else int(math.copysign(2**80, x))
                return max(info.min, min(info.max, whole))

            want = np.array([one(float(x)) for x in a], t)
            same(asm(f"cvt.{mode}.{kind}.f32 %0, %1;", t, a), want)


def test_integer_conversions():
    a = integers(1, "i4")
    same(asm("cvt.s64.s32 %0, %1;", "i8", a), a.astype("i8"))
    same(asm("cvt.u64.u32 %0, %1;", "u8", a.view("u4")), a.view("u4").astype("u8"))
    same(asm("cvt.s32.s8 %0, %1;", "i4", a), a.astype("i1").astype("i4"))
    same(asm("cvt.u32.u16 %0, %1;", "u4", a), a.astype("u2").astype("u4"))
    same(asm("cvt.sat.s8.s32 %0, %1;", "i4", a), np.clip(a, -128, 127))
    same(asm("cvt.sat.u8.s32 %0, %1;", "u4", a), np.clip(a, 0, 255).astype("u4"))
    same(asm("cvt.rn.f32.s32 %0, %1;", "f4", a), a.astype("f4"))
    same(asm("cvt.rn.f32.u64 %0, %1;", "f4", integers(2, "u8")), integers(2, "u8").astype("f4"))
    exact = np.array([int(x) for x in a], object)
    down = asm("cvt.rm.f32.s32 %0, %1;", "f4", a)
    assert all(
        Fraction(float(g)) <= x < Fraction(float(np.nextafter(g, np.float32(np.inf))))
        for g, x in zip(down, exact, strict=True)
    )


def test_half_precision():
    a, b = floats(1), floats(2)
    with np.errstate(all="ignore"):
        h, g = a.astype("f2"), b.astype("f2")
        same(asm("cvt.rn.f16.f32 %0, %1;", "u2", a), h.view("u2"))
        same(asm("cvt.f32.f16 %0, %1;", "f4", h.view("u2")), h.astype("f4"))
        finite = np.isfinite(h) & np.isfinite(g)
        got = asm("fma.rn.f16 %0, %1, %2, %1;", "u2", h.view("u2"), g.view("u2")).view("f2")
        same(got[finite], (h.astype("f8") * g.astype("f8") + h.astype("f8")).astype("f2")[finite])
        pair = np.stack([h, g], 1).reshape(-1).view("u4")
        got = asm("add.rn.f16x2 %0, %1, %2;", "u4", pair, pair[::-1].copy()).view("f2").reshape(-1, 2)
        want = pair.view("f2").reshape(-1, 2) + pair[::-1].copy().view("f2").reshape(-1, 2)
        same(got[:, 0].copy(), want[:, 0].copy())
        packed = asm("cvt.rn.f16x2.f32 %0, %1, %2;", "u4", a, b)
        same(packed.view("f2").reshape(-1, 2)[:, 1].copy(), h)


def test_packing_registers():
    a, b = integers(1, "u4"), integers(2, "u4")
    same(asm("mov.b64 %0, {%1, %2};", "u8", a, b), a.astype("u8") | b.astype("u8") << np.uint64(32))
    same(
        asm("{ .reg .b32 t, u; mov.b64 {t, u}, %1; xor.b32 %0, t, u; }", "u4", integers(3, "u8")),
        each(lambda x: x ^ x >> 32, "u4", integers(3, "u8")),
    )
