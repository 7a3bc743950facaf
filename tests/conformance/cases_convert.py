"""Conversions, comparisons and selection: PTX ISA, "cvt", "Comparison and Selection", "mov"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

from . import exact
from .case import Collection
from .cases_integer import clamp, limits, signed

family = Collection()
ptx, cxx = family.ptx, family.elementwise
CVT, SELECT, MOV = (
    "Data Movement and Conversion: cvt",
    "Comparison and Selection: {}",
    "Data Movement and Conversion: mov",
)
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
ROUND_INTEGRAL = ("rni", "rzi", "rmi", "rpi")
MODES = ("rn", "rz", "rm", "rp")


def narrow(v: int, t: str) -> int:
    return signed(v, int(t[1:])) if t[0] == "s" else v & limits(t)[1]


# integers -------------------------------------------------------------------------------------------------------------
for source in INTEGERS:
    targets = [t for t in ("s16", "u16", "s32", "u32", "s64", "u64") if t != source]
    ptx(
        f"convert.{source}.to.integers",
        CVT,
        " ".join(f"cvt.{t}.{source} $r{i}, $a;" for i, t in enumerate(targets)),
        " ".join(targets),
        source,
        lambda a, targets=tuple(targets): tuple(narrow(a, t) for t in targets),
    )
    if source[1:] != "64":
        ptx(
            f"convert.s64.to.{source}",
            CVT,
            f"cvt.{source}.s64 $r, $a;",
            source,
            "s64",
            lambda a, t=source: narrow(a, t),
        )
_SATURATING = (
    "s8 s32, u8 s32, s16 s32, u16 s32, s32 u32, u32 s32, s32 s64, u32 s64, u8 u32, s8 u16, s64 u64, u64 s64, s8 s64"
)
for target, source in map(str.split, _SATURATING.split(", ")):
    ptx(
        f"convert.sat.{target}.{source}",
        CVT,
        f"cvt.sat.{target}.{source} $r, $a;",
        target,
        source,
        lambda a, t=target: clamp(a, t),
    )

# floats to integers and back --------------------------------------------------------------------------------------------
for source in ("f16", "f32", "f64"):
    for target in INTEGERS:
        ptx(
            f"convert.{source}.to.{target}",
            CVT,
            " ".join(f"cvt.{mode}.{target}.{source} $r{i}, $a;" for i, mode in enumerate(ROUND_INTEGRAL)),
            " ".join([target] * 4),
            source,
            lambda a, f=source, t=target: tuple(
                exact.to_integer(a, f, int(t[1:]), t[0] == "s", m) for m in ROUND_INTEGRAL
            ),
        )
ptx(
    "convert.ftz.f32.to.s32",
    CVT,
    "cvt.rpi.ftz.s32.f32 $r, $a;",
    "s32",
    "f32",
    lambda a: exact.to_integer(a, "f32", 32, True, "rpi", ftz=True),
)
for source in ("s16", "u16", "s32", "u32", "s64", "u64", "s8", "u8"):
    for target in ("f16", "f32", "f64"):
        ptx(
            f"convert.{source}.to.{target}",
            CVT,
            " ".join(f"cvt.{mode}.{target}.{source} $r{i}, $a;" for i, mode in enumerate(MODES)),
            " ".join([target] * 4),
            source,
            lambda a, t=target: tuple(exact.from_integer(a, t, m) for m in MODES),
        )

# floats to floats -------------------------------------------------------------------------------------------------------
for target, source in (("f32", "f64"), ("f16", "f32"), ("f16", "f64")):
    ptx(
        f"convert.{source}.to.{target}",
        CVT,
        " ".join(f"cvt.{mode}.{target}.{source} $r{i}, $a;" for i, mode in enumerate(MODES)),
        " ".join([target] * 4),
        source,
        lambda a, f=source, t=target: tuple(exact.convert(a, f, t, m) for m in MODES),
    )
for target, source in (("f64", "f32"), ("f32", "f16"), ("f64", "f16"), ("f32", "bf16")):
    ptx(
        f"convert.{source}.to.{target}",
        CVT,
        f"cvt.{target}.{source} $r, $a;",
        target,
        source,
        lambda a, f=source, t=target: exact.convert(a, f, t),
    )
for f, register in (("f32", "f32"), ("f64", "f64"), ("f16", "f16")):
    ptx(
        f"convert.integral.{f}",
        CVT,
        " ".join(f"cvt.{mode}.{f}.{f} $r{i}, $a;" for i, mode in enumerate(ROUND_INTEGRAL)),
        " ".join([register] * 4),
        register,
        lambda a, f=f: tuple(exact.round_integral(a, f, m) for m in ROUND_INTEGRAL),
    )
_ONE = {
    "ftz.f64.to.f32": ("cvt.rn.ftz.f32.f64", "f32", "f64", {"ftz": True}),
    "ftz.f32.to.f64": ("cvt.ftz.f64.f32", "f64", "f32", {"ftz": True}),
    "ftz.f32.to.f32": ("cvt.ftz.f32.f32", "f32", "f32", {"ftz": True}),
    "ftz.f32.to.f16": ("cvt.rn.ftz.f16.f32", "f16", "f32", {"ftz": True}),
    "sat.f32.to.f32": ("cvt.sat.f32.f32", "f32", "f32", {"sat": True}),
    "sat.f64.to.f32": ("cvt.rn.sat.f32.f64", "f32", "f64", {"sat": True}),
    "sat.f32.to.f16": ("cvt.rn.sat.f16.f32", "f16", "f32", {"sat": True}),
    "relu.f32.to.f16": ("cvt.rn.relu.f16.f32", "f16", "f32", {"relu": True}),
    "rn.f32.to.bf16": ("cvt.rn.bf16.f32", "bf16", "f32", {}),
    "rz.f32.to.bf16": ("cvt.rz.bf16.f32", "bf16", "f32", {"mode": "rz"}),
    "relu.f32.to.bf16": ("cvt.rn.relu.bf16.f32", "bf16", "f32", {"relu": True}),
}
for key, (opcode, target, source, how) in _ONE.items():
    ptx(
        f"convert.{key}",
        CVT,
        f"{opcode} $r, $a;",
        target,
        source,
        lambda a, f=source, t=target, how=how: exact.convert(a, f, t, **how),
    )


def tf32(a: int, mode: str, relu: bool = False) -> int:
    """As ptxas and the hardware leave it: a float whose last 13 bits are zero."""
    return exact.convert(a, "f32", "tf32", mode, relu=relu) << 13


ptx(
    "convert.rna.f32.to.tf32",
    CVT,
    "cvt.rna.tf32.f32 $r, $a;",
    "u32",
    "f32",
    lambda a: tf32(a, "rna"),
    domain={"a": lambda v: v[v == v].repeat(2)[:512]},
)
for mode in ("rn", "rz"):
    ptx(
        f"convert.{mode}.f32.to.tf32",
        CVT,
        f"cvt.{mode}.tf32.f32 $r, $a;",
        "u32",
        "f32",
        lambda a, m=mode: tf32(a, m),
        domain={"a": lambda v: v[v == v].repeat(2)[:512]},
    )

# two at a time ------------------------------------------------------------------------------------------------------------
_PAIRS = {
    "rn.f16x2": ("f16x2", "f16", {}),
    "rz.f16x2": ("f16x2", "f16", {"mode": "rz"}),
    "rn.relu.f16x2": ("f16x2", "f16", {"relu": True}),
    "rn.bf16x2": ("bf16x2", "bf16", {}),
    "rz.bf16x2": ("bf16x2", "bf16", {"mode": "rz"}),
    "rn.relu.bf16x2": ("bf16x2", "bf16", {"relu": True}),
    "rn.satfinite.e4m3x2": ("e4m3x2", "e4m3", {"satfinite": True}),
    "rn.satfinite.e5m2x2": ("e5m2x2", "e5m2", {"satfinite": True}),
    "rn.satfinite.relu.e4m3x2": ("e4m3x2", "e4m3", {"satfinite": True, "relu": True}),
}
for key, (target, f, how) in _PAIRS.items():
    family.elementwise(
        f"convert.pair.{key}.f32",
        CVT,
        f'asm volatile("cvt.{key}.f32 %0, %1, %2;" : "={"h" if f in ("e4m3", "e5m2") else "r"}"(r) : "f"(a.y), "f"(a.x));',
        target,
        "f32x2",
        lambda a, f=f, how=how: exact.convert(a, "f32", f, **how),
    )
for f in ("e4m3", "e5m2"):
    ptx(
        f"convert.pair.f16x2.{f}x2",
        CVT,
        f"cvt.rn.f16x2.{f}x2 $r, $a;",
        "f16x2",
        f"{f}x2",
        lambda a, f=f: exact.convert(a, f, "f16"),
    )
    ptx(
        f"convert.pair.{f}x2.f16x2",
        CVT,
        f"cvt.rn.satfinite.{f}x2.f16x2 $r, $a;",
        f"{f}x2",
        "f16x2",
        lambda a, f=f: exact.convert(a, "f16", f, satfinite=True),
    )
for t in ("s16", "u16"):
    ptx(
        f"convert.pack.{t}",
        "Data Movement and Conversion: cvt.pack",
        f"cvt.pack.sat.{t}.s32 $r, $a, $b;",
        "u32",
        "s32 s32",
        lambda a, b, t=t: (clamp(a, t) & 0xFFFF) << 16 | clamp(b, t) & 0xFFFF,
    )
for t in ("s8", "u8"):
    ptx(
        f"convert.pack.{t}",
        "Data Movement and Conversion: cvt.pack",
        f"cvt.pack.sat.{t}.s32.b32 $r, $a, $b, $c;",
        "u32",
        "s32 s32 u32",
        lambda a, b, c, t=t: c << 16 | (clamp(a, t) & 255) << 8 | clamp(b, t) & 255,
    )

# registers taken apart and put together -----------------------------------------------------------------------------------
ptx("mov.b64.from.b32", MOV, "mov.b64 $r, {$a, $b};", "u64", "u32 u32", lambda a, b: a | b << 32)
ptx("mov.b64.to.b32", MOV, "mov.b64 {$r0, $r1}, $a;", "u32 u32", "u64", lambda a: (a, a >> 32))
ptx("mov.b32.from.b16", MOV, "mov.b32 $r, {$a, $b};", "u32", "u16 u16", lambda a, b: a | b << 16)
ptx("mov.b32.to.b16", MOV, "mov.b32 {$r0, $r1}, $a;", "u16 u16", "u32", lambda a: (a, a >> 16))
ptx(
    "mov.b64.from.b16",
    MOV,
    "mov.b64 $r, {$a, $b, $b, $a};",
    "u64",
    "u16 u16",
    lambda a, b: a | b << 16 | b << 32 | a << 48,
)
ptx(
    "mov.f64.halves",
    MOV,
    "{ .reg .b32 l, h; mov.b64 {l, h}, $a; mov.b64 $r, {h, l}; }",
    "u64",
    "f64",
    lambda a: a >> 32 | a << 32,
)

# comparing ----------------------------------------------------------------------------------------------------------------
_ORDER = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def flags(ops, t, extra="", compare="setp"):
    """PTX that sets bit i of $r to the outcome of the i-th comparison."""
    each = "".join(
        f"{compare}.{op}{extra}.{t} p, $a, $b; selp.u32 x, {1 << i}, 0, p; or.b32 $r, $r, x; "
        for i, op in enumerate(ops)
    )
    return f"{{ .reg .pred p; .reg .u32 x; mov.u32 $r, 0; {each} }}"


def mixed_with(v, other):
    """Every third element equal to the other operand's."""
    out = v.copy()
    out[::3] = other[::3]
    return out


for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
    ops = [*_ORDER, *(_UNSIGNED if t[0] == "u" else ())]
    tests = [_ORDER[_UNSIGNED.get(op, op)] for op in ops]
    ptx(
        f"compare.setp.{t}",
        SELECT.format("setp"),
        flags(ops, t),
        "u32",
        f"{t} {t}",
        lambda a, b, tests=tests: sum(f(a, b) << i for i, f in enumerate(tests)),
    )
for f in ("f16", "bf16", "f32", "f64"):
    ops = [*_ORDER, *(f"{op}u" for op in _ORDER), "num", "nan"]

    def outcomes(a, b, f=f, ftz=False):
        x, y = exact.decode(a, f, ftz), exact.decode(b, f, ftz)
        unordered = x.nan or y.nan
        held = [not unordered and test(x.value, y.value) for test in _ORDER.values()]
        return sum(
            bool(v) << i for i, v in enumerate([*held, *(h or unordered for h in held), not unordered, unordered])
        )

    ptx(f"compare.setp.{f}", SELECT.format("setp"), flags(ops, f), "u32", f"{f} {f}", outcomes)
    if f == "f32":
        ptx(
            "compare.setp.ftz.f32",
            SELECT.format("setp"),
            flags(ops, f, ".ftz"),
            "u32",
            "f32 f32",
            lambda a, b: outcomes(a, b, "f32", True),
        )
_BOOLEAN = {"and": lambda p, q: p and q, "or": lambda p, q: p or q, "xor": lambda p, q: p != q}
for op, f in _BOOLEAN.items():
    for sign in ("", "!"):
        text = f"{{ .reg .pred p, q, c; .reg .u32 x, y; setp.gt.s32 c, $c, 1; setp.lt.{op}.s32 p|q, $a, $b, {sign}c; selp.u32 x, 1, 0, p; selp.u32 y, 2, 0, q; or.b32 $r, x, y; }}"
        ptx(
            f"compare.setp.{op}{'.not' if sign else ''}",
            SELECT.format("setp"),
            text,
            "u32",
            "s32 s32 s32",
            lambda a, b, c, f=f, n=bool(sign): f(a < b, (c > 1) != n) + 2 * f(a >= b, (c > 1) != n),
        )
    text = f"{{ .reg .pred p, q, s; setp.lt.s32 p, $a, $b; setp.ne.s32 q, $a, 3; {op}.pred s, p, q; not.pred s, s; selp.u32 $r, 1, 0, s; }}"
    ptx(f"compare.{op}.pred", "Logic and Shift: " + op, text, "u32", "s32 s32", lambda a, b, f=f: not f(a < b, a != 3))
ptx("compare.set.u32.s32", SELECT.format("set"), "set.lt.u32.s32 $r, $a, $b;", "u32", "s32 s32", lambda a, b: -(a < b))
ptx(
    "compare.set.f32.f32",
    SELECT.format("set"),
    "set.gtu.f32.f32 $r, $a, $b;",
    "f32",
    "f32 f32",
    lambda a, b: 0x3F800000 * bool(outcomes(a, b, "f32") >> 10 & 1),
)
ptx(
    "compare.set.and.s32.u64",
    SELECT.format("set"),
    "{ .reg .pred p; setp.ne.u64 p, $b, 2; set.hs.and.s32.u64 $r, $a, $b, p; }",
    "s32",
    "u64 u64",
    lambda a, b: -(a >= b and b != 2),
)
for t in ("s16", "u32", "s64", "f32", "f64"):
    bits = int(t[1:])
    kind = t if t[0] == "f" else f"b{bits}"
    ptx(
        f"compare.selp.{t}",
        SELECT.format("selp"),
        f"{{ .reg .pred p; setp.gt.s32 p, $c, 2; selp.{kind} $r, $a, $b, p; }}",
        t,
        f"{t} {t} s32",
        lambda a, b, c: a if c > 2 else b,
    )
ptx(
    "compare.slct.s32",
    SELECT.format("slct"),
    "slct.u64.s32 $r, $a, $b, $c;",
    "u64",
    "u64 u64 s32",
    lambda a, b, c: a if c >= 0 else b,
)
ptx(
    "compare.slct.f32",
    SELECT.format("slct"),
    "slct.b32.f32 $r, $a, $b, $c;",
    "u32",
    "u32 u32 f32",
    lambda a, b, c: a if not exact.decode(c, "f32").nan and exact.decode(c, "f32").value >= 0 else b,
)
ptx(
    "compare.guard",
    "Predicated Execution",
    "{ .reg .pred p; setp.lt.s32 p, $a, $b; mov.s32 $r, 7; @!p add.s32 $r, $a, 3; @p xor.b32 $r, $r, $b; }",
    "s32",
    "s32 s32",
    lambda a, b: 7 ^ b if a < b else a + 3,
)

# CUDA C++ -------------------------------------------------------------------------------------------------------------------
_F = exact.decode


def _trunc(bits, t):
    return exact.to_integer(bits, "f32", int(t[1:]), t[0] == "s", "rzi")


_CXX = {
    "float_to_int": (
        "r0 = (int)a; r1 = __float2int_rn(a); r2 = __float2uint_ru(a);",
        "s32 s32 u32",
        "f32",
        lambda a: (
            _trunc(a, "s32"),
            exact.to_integer(a, "f32", 32, True, "rni"),
            exact.to_integer(a, "f32", 32, False, "rpi"),
        ),
    ),
    "int_to_float": (
        "r0 = (float)a; r1 = __int2float_rd(a); r2 = a * 0.5f;",
        "f32 f32 f32",
        "s32",
        lambda a: (
            exact.from_integer(a, "f32"),
            exact.from_integer(a, "f32", "rm"),
            exact.mul(exact.from_integer(a, "f32"), 0x3F000000, "f32"),
        ),
    ),
    "double_to_float": (
        "r0 = (float)a; r1 = __double2float_rz(a);",
        "f32 f32",
        "f64",
        lambda a: (exact.convert(a, "f64", "f32"), exact.convert(a, "f64", "f32", "rz")),
    ),
    "bool": (
        "r0 = (bool)a; r1 = !a; r2 = a && b; r3 = (a > 0) + (b > 0);",
        "u32 u32 u32 u32",
        "s32 s32",
        lambda a, b: (a != 0, a == 0, a != 0 and b != 0, (a > 0) + (b > 0)),
    ),
    "ternary": (
        "r = a < b ? (c ? a : b) : (c > 0 ? b - a : c);",
        "s32",
        "s32 s32 s32",
        lambda a, b, c: (a if c else b) if a < b else (b - a if c > 0 else c),
    ),
    "promotion": (
        "r0 = (unsigned char)a + (signed char)b; r1 = (short)(a * b); r2 = (unsigned short)a >> 3;",
        "s32 s32 s32",
        "s32 s32",
        lambda a, b: ((a & 255) + signed(b, 8), signed(a * b, 16), (a & 0xFFFF) >> 3),
    ),
}
for key, (body, outs, ins, f) in _CXX.items():
    cxx(f"convert.cxx.{key}", "Conversion and Comparison, from CUDA C++", body, outs, ins, f)
