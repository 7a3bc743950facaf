"""float and double: PTX ISA, "Floating Point"; directed rounding, ftz, saturation, signs and NaN."""

from __future__ import annotations

import numpy as np

from . import exact
from .case import Collection, Within
from .values import TYPES, raw, seed_of, values

family = Collection()
ptx, cxx = family.ptx, family.elementwise
FLOAT = "Floating Point: {}"
MODES = ("rn", "rz", "rm", "rp")
_ARGUMENTS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "rcp": 1}


def arithmetic(op: str, dots: str, t: str, mode: str = "rn", domain=None, label: str = "", **how: bool) -> None:
    """The case float.<op><dots>.<t>: ``dots`` are the modifiers as PTX writes them."""
    n = _ARGUMENTS[op]
    function = getattr(exact, op)
    operands = ", ".join(f"${x}" for x in "abc"[:n])
    ptx(
        f"float.{op}{dots}{label}.{t}",
        FLOAT.format(op),
        f"{op}{dots}.{t} $r, {operands};",
        t,
        " ".join([t] * n),
        lambda *v: function(*v, t, mode, **how),
        domain=domain,
    )


for op in _ARGUMENTS:
    for t in ("f32", "f64"):
        for mode in MODES:
            arithmetic(op, f".{mode}", t, mode)
for op in _ARGUMENTS:
    arithmetic(op, ".rn.ftz", "f32", ftz=True)
for op in ("add", "sub", "mul", "fma"):
    arithmetic(op, ".rn.sat", "f32", sat=True)
arithmetic("add", ".rn.ftz.sat", "f32", ftz=True, sat=True)
arithmetic("fma", ".rz.ftz.sat", "f32", "rz", ftz=True, sat=True)


# where one rounding and two differ, and around the smallest normal number ---------------------------------------------
def near_cancelling(t: str):
    """c = -a*b rounded, give or take one in the last place: what fma leaves is the product's own rounding error."""
    a, b = (values(TYPES[t], seed_of("fma", t), k) for k in (0, 1))

    def c(old: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            product = -(a * b)
        step = (raw(seed_of("steps", t), len(old)) % np.uint64(3)).astype("i8") - 1
        return (
            np.where(np.isfinite(product) & (product != 0), product.view(f"i{a.itemsize}") + step, 0)
            .astype(f"i{a.itemsize}")
            .view(a.dtype)
        )

    return {"a": lambda old: a, "b": lambda old: b, "c": c}


def half_way(t: str):
    """(2^p + j)(2^(p+1) - 2j) lies a crumb below a tie when added to 1 or its neighbour."""
    p = 23 if t == "f32" else 52
    j = np.arange(1, 513, dtype="f8")
    sign = np.where(np.arange(512) % 2, -1.0, 1.0)
    a = (2.0**p + j) * 2.0**-p
    b = sign * (2.0 ** (p + 1) - 2 * j) * 2.0 ** (-2 * p - 2)
    c = np.where(np.arange(512) % 3, 1 + 2.0**-p, 1.0)
    return {"a": lambda old: a, "b": lambda old: b, "c": lambda old: c}


def tiny_products(t: str):
    """Products and sums about the smallest normal and the smallest subnormal number."""
    p, low = (23, 126) if t == "f32" else (52, 1022)
    r = [(raw(seed_of("tiny", t, k), 512) % np.uint64(1 << 10)).astype("f8") for k in range(3)]
    half = low // 2
    a = np.ldexp(1 + r[0] * 2.0**-p, -half - (np.arange(512) % 8))
    b = np.ldexp(
        np.where(np.arange(512) % 2, 2 - r[1] * 2.0**-p, 1 + r[1] * 2.0**-10), -(low - half) - np.arange(512) // 8 % 16
    )
    c = np.ldexp(r[2] - 512, -low - p + (np.arange(512) % 3))
    return {"a": lambda old: a, "b": lambda old: b, "c": lambda old: c}


for t in ("f32", "f64"):
    arithmetic("fma", ".rn", t, domain=near_cancelling(t), label=".cancelling")
    arithmetic("fma", ".rn", t, domain=half_way(t), label=".half_way")
    for mode in ("rn", "rz"):
        arithmetic("fma", f".{mode}", t, mode, domain=tiny_products(t), label=".tiny")
    arithmetic("mul", ".rn", t, domain={k: tiny_products(t)[k] for k in "ab"}, label=".tiny")
for op in ("mul", "fma"):
    domain = {k: v for k, v in tiny_products("f32").items() if k in "abc"[: _ARGUMENTS[op]]}
    arithmetic(op, ".rn.ftz", "f32", domain=domain, label=".tiny", ftz=True)

# minimum, maximum, sign -------------------------------------------------------------------------------------------------
for op in ("min", "max"):
    for t, dots, how in (
        ("f32", "", {}),
        ("f64", "", {}),
        ("f32", ".NaN", {"nan": True}),
        ("f32", ".ftz", {"ftz": True}),
        ("f32", ".ftz.NaN", {"ftz": True, "nan": True}),
    ):
        ptx(
            f"float.{op}{dots}.{t}",
            FLOAT.format(op),
            f"{op}{dots}.{t} $r, $a, $b;",
            t,
            f"{t} {t}",
            lambda a, b, t=t, how=how, g=op == "max": exact.least(a, b, t, greatest=g, **how),
        )

    def magnitudes(a, b, g=op == "max", nan=False):
        out = exact.least(a & 0x7FFFFFFF, b & 0x7FFFFFFF, "f32", greatest=g, nan=nan)
        return out if exact.decode(out, "f32").nan else out | (a ^ b) & 0x80000000

    for dots in ("", ".NaN"):
        ptx(
            f"float.{op}{dots}.xorsign.f32",
            FLOAT.format(op),
            f"{op}{dots}.xorsign.abs.f32 $r, $a, $b;",
            "f32",
            "f32 f32",
            lambda a, b, f=magnitudes, nan=bool(dots): f(a, b, nan=nan),
        )
for t, top in (("f32", 1 << 31), ("f64", 1 << 63)):
    ptx(f"float.abs.{t}", FLOAT.format("abs"), f"abs.{t} $r, $a;", t, t, lambda a, top=top: a & ~top)
    ptx(f"float.neg.{t}", FLOAT.format("neg"), f"neg.{t} $r, $a;", t, t, lambda a, top=top: a ^ top)
    ptx(
        f"float.copysign.{t}",
        FLOAT.format("copysign"),
        f"copysign.{t} $r, $a, $b;",
        t,
        f"{t} {t}",
        lambda a, b, top=top: a & top | b & ~top,
    )

    def classes(a, t=t):
        x = exact.decode(a, t)
        f = exact.FORMATS[t]
        exponent = a >> f.fraction & (f.inf >> f.fraction)
        zero = not x.nan and x.size == 0
        facts = [
            not x.nan and not x.infinite,
            x.infinite,
            not x.nan,
            x.nan,
            not x.nan and not x.infinite and (exponent > 0 or zero),  # PTX counts zeros as normal
            exponent == 0 and not zero,
        ]
        return sum(bool(v) << i for i, v in enumerate(facts))

    names = "finite infinite number notanumber normal subnormal".split()
    tests = "".join(
        f"testp.{name}.{t} p, $a; selp.u32 x, {1 << i}, 0, p; or.b32 $r, $r, x; " for i, name in enumerate(names)
    )
    ptx(
        f"float.testp.{t}",
        FLOAT.format("testp"),
        f"{{ .reg .pred p; .reg .u32 x; mov.u32 $r, 0; {tests} }}",
        "u32",
        t,
        classes,
    )
ptx(
    "float.abs.ftz.f32",
    FLOAT.format("abs"),
    "abs.ftz.f32 $r, $a;",
    "f32",
    "f32",
    lambda a: exact.convert(a & 0x7FFFFFFF, "f32", "f32", ftz=True),
)
ptx(
    "float.neg.ftz.f32",
    FLOAT.format("neg"),
    "neg.ftz.f32 $r, $a;",
    "f32",
    "f32",
    lambda a: exact.convert(a ^ 1 << 31, "f32", "f32", ftz=True),
)

# CUDA C++ -----------------------------------------------------------------------------------------------------------------
_CXX = {
    "intrinsics.rounding": (
        "r0 = __fadd_rz(a, b); r1 = __fmul_ru(a, b); r2 = __fsub_rd(a, b); r3 = __fdiv_rz(a, b);",
        "f32 f32 f32 f32",
        "f32 f32",
        lambda a, b: (
            exact.add(a, b, "f32", "rz"),
            exact.mul(a, b, "f32", "rp"),
            exact.sub(a, b, "f32", "rm"),
            exact.div(a, b, "f32", "rz"),
        ),
    ),
    "intrinsics.saturate": ("r = __saturatef(a);", "f32", "f32", lambda a: exact.convert(a, "f32", "f32", sat=True)),
    "rounding": (
        "r0 = rintf(a); r1 = floorf(a); r2 = ceilf(a); r3 = truncf(a);",
        "f32 f32 f32 f32",
        "f32",
        lambda a: tuple(exact.round_integral(a, "f32", m) for m in ("rni", "rmi", "rpi", "rzi")),
    ),
    "rounding.double": (
        "r0 = rint(a); r1 = floor(a); r2 = ceil(a); r3 = trunc(a);",
        "f64 f64 f64 f64",
        "f64",
        lambda a: tuple(exact.round_integral(a, "f64", m) for m in ("rni", "rmi", "rpi", "rzi")),
    ),
    "classify": (
        "r0 = isnan(a); r1 = isinf(a); r2 = signbit(a) != 0; r3 = isfinite(a);",
        "u32 u32 u32 u32",
        "f32",
        lambda a: (exact.decode(a, "f32").nan, exact.decode(a, "f32").infinite, a >> 31, (a >> 23 & 255) != 255),
    ),
    "fminf_fmaxf": (
        "r0 = fminf(a, b); r1 = fmaxf(a, b);",
        "f32 f32",
        "f32 f32",
        lambda a, b: (exact.least(a, b, "f32"), exact.least(a, b, "f32", greatest=True)),
    ),
    "reinterpret": (
        "r0 = __float_as_int(a) ^ 1; r1 = (int)(__float_as_uint(a) >> 23);",
        "s32 s32",
        "f32",
        lambda a: (a ^ 1, a >> 23),
    ),
    "double_halves": ("r0 = __double2hiint(a); r1 = __double2loint(a);", "s32 s32", "f64", lambda a: (a >> 32, a)),
    "hiloint2double": (
        "r = __hiloint2double(a, b);",
        "f64",
        "s32 s32",
        lambda a, b: (a & 0xFFFFFFFF) << 32 | b & 0xFFFFFFFF,
    ),
}
for key, (body, outs, ins, f) in _CXX.items():
    cxx(f"float.cxx.{key}", "Floating Point, from CUDA C++", body, outs, ins, f)


# approximations, to the bounds that the PTX ISA states ----------------------------------------------------------------------
def through(function, ftz=False):
    """``function`` in double precision of float values, as bits of the result rounded to float."""

    def f(*bits):
        with np.errstate(all="ignore"):
            x = np.array(bits, "u4").view("f4").astype("f8")
        if ftz:
            x = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
        with np.errstate(all="ignore"):
            y = np.asarray(function(*x)).astype("f4")
        if ftz and abs(y) < 2.0**-126:
            y = np.copysign(np.float32(0), y)
        return int(y.view("u4"))

    return f


def between(low: float, high: float):
    """Replace what lies outside by values spread over the range; the awkward values inside it stay."""

    def f(v):
        spread = low + (high - low) * (raw(seed_of(low, high), len(v)) >> np.uint64(11)).astype("f8") * 2.0**-53
        with np.errstate(all="ignore"):
            return np.where((v >= low) & (v <= high), v, spread)

    return f


def magnitude(low: float, high: float):
    """Likewise for magnitudes, from one power of two to another; zeros, infinities and NaN stay."""

    def f(v):
        words, first, last = raw(seed_of(low, high), len(v)), int(np.log2(low)), int(np.log2(high))
        fraction = 1 + (words >> np.uint64(11)).astype("f8") * 2.0**-53
        spread = np.ldexp(fraction, first + (words % np.uint64(last - first)).astype("i4"))
        size = np.abs(v.astype("f8"))
        keep = (size == 0) | ~np.isfinite(size) | ((size >= low) & (size <= high))
        return np.where(keep, v, np.copysign(spread, v))

    return f


_APPROXIMATE = {
    "ex2.approx.f32": (np.exp2, Within(ulp=2, relative=2.0**-22), between(-126, 127.5)),
    "ex2.approx.ftz.f32": (np.exp2, Within(ulp=2, relative=2.0**-22), between(-125, 127.5)),
    "lg2.approx.f32": (np.log2, Within(relative=2.0**-22, absolute=2.0**-22), None),
    "lg2.approx.ftz.f32": (np.log2, Within(relative=2.0**-22, absolute=2.0**-22), None),
    "sin.approx.f32": (np.sin, Within(absolute=2.0**-20.5), between(-3.14, 3.14)),
    "cos.approx.f32": (np.cos, Within(absolute=2.0**-20.5), between(-3.14, 3.14)),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), Within(relative=2.0**-22.9), None),
    "rcp.approx.f32": (lambda x: 1 / x, Within(ulp=1), magnitude(2.0**-125, 2.0**125)),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, Within(ulp=1), None),
    "sqrt.approx.f32": (np.sqrt, Within(relative=2.0**-23), magnitude(2.0**-125, 2.0**127)),
    "tanh.approx.f32": (np.tanh, Within(relative=2.0**-11), None),
}
for key, (function, bound, domain) in _APPROXIMATE.items():
    ptx(
        f"approximate.{key}",
        FLOAT.format(key.split(".")[0]),
        f"{key} $r, $a;",
        "f32",
        "f32",
        through(function, ftz="ftz" in key),
        compare=bound,
        domain={"a": domain} if domain else None,
    )
for key in ("div.approx.f32", "div.full.f32", "div.full.ftz.f32"):
    ptx(
        f"approximate.{key}",
        FLOAT.format("div"),
        f"{key} $r, $a, $b;",
        "f32",
        "f32 f32",
        through(np.divide, ftz="ftz" in key),
        compare=Within(ulp=2),
        domain={"a": magnitude(2.0**-60, 2.0**60), "b": magnitude(2.0**-60, 2.0**60)},
    )


def through_double(function):
    def f(bits):
        with np.errstate(all="ignore"):
            return int(np.asarray(function(np.array(bits, "u8").view("f8"))).view("u8"))

    return f


ptx(
    "approximate.rcp.approx.ftz.f64",
    FLOAT.format("rcp.approx.ftz.f64"),
    "rcp.approx.ftz.f64 $r, $a;",
    "f64",
    "f64",
    through_double(lambda x: 1 / x),
    compare=Within(relative=2.0**-19),
    domain={"a": magnitude(2.0**-1000, 2.0**1000)},
)
ptx(
    "approximate.rsqrt.approx.f64",
    FLOAT.format("rsqrt"),
    "rsqrt.approx.f64 $r, $a;",
    "f64",
    "f64",
    through_double(lambda x: 1 / np.sqrt(x)),
    compare=Within(relative=2.0**-19),
    domain={"a": magnitude(2.0**-1000, 2.0**1000)},
)

# the mathematical library, to the errors in the CUDA C++ Programming Guide ---------------------------------------------------
_LIBRARY = {
    "expf": ("expf(a)", np.exp, 2, between(-80, 80)),
    "logf": ("logf(a)", np.log, 2, None),
    "sinf": ("sinf(a)", np.sin, 2, between(-1e6, 1e6)),
    "cosf": ("cosf(a)", np.cos, 2, between(-1e6, 1e6)),
    "tanhf": ("tanhf(a)", np.tanh, 2, None),
    "sqrtf": ("sqrtf(a)", np.sqrt, 0, None),
    "rsqrtf": ("rsqrtf(a)", lambda x: 1 / np.sqrt(x), 2, None),
    "cbrtf": ("cbrtf(a)", np.cbrt, 1, None),
    "log1pf": ("log1pf(a)", np.log1p, 2, None),
    "exp2f": ("exp2f(a)", np.exp2, 2, between(-120, 120)),
}
for key, (call, function, ulp, domain) in _LIBRARY.items():
    cxx(
        f"library.{key}",
        "CUDA C++ Mathematical Functions",
        f"r = {call};",
        "f32",
        "f32",
        through(function),
        compare=Within(ulp=ulp),
        domain={"a": domain} if domain else None,
    )
for key, function, ulp, domain in (
    ("exp", np.exp, 2, between(-700, 700)),
    ("log", np.log, 2, None),
    ("sin", np.sin, 3, between(-1e5, 1e5)),
):
    cxx(
        f"library.{key}.double",
        "CUDA C++ Mathematical Functions",
        f"r = {key}(a);",
        "f64",
        "f64",
        through_double(function),
        compare=Within(ulp=ulp),
        domain={"a": domain} if domain else None,
    )
