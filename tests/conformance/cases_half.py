"""Half precision: f16 and bf16, alone and in pairs. PTX ISA, "Half Precision Floating Point"; cuda_fp16.h, cuda_bf16.h."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from . import exact
from .case import Collection, Within

family = Collection()
ptx = family.ptx
HALF = "Half Precision Floating Point: {}"
_ARGUMENTS = {"add": 2, "sub": 2, "mul": 2, "fma": 3}
REGISTERS = (("f16", "f16"), ("f16x2", "f16"), ("bf16", "bf16"), ("bf16x2", "bf16"))


def relu(bits: int, f: str) -> int:
    x = exact.decode(bits, f)
    return 0 if not x.nan and x.negative else bits


def no_nan(v: np.ndarray) -> np.ndarray:
    """bf16 without NaN, whose payload PTX leaves open and which a comparison of bits would tell apart."""
    return np.where((v & 0x7FFF) > 0x7F80, v.dtype.type(0x3F80), v)


for register, f in REGISTERS:
    top = 1 << 15
    for op, n in _ARGUMENTS.items():
        function = getattr(exact, op)
        operands, ins = ", ".join(f"${x}" for x in "abc"[:n]), " ".join([register] * n)
        variants = [(".rn", {})]
        if f == "f16":
            variants += [(".rn.sat", {"sat": True})] if op != "sub" else []
            variants += [(".rn.relu", {})] if op == "fma" else []
        elif op == "fma":
            variants += [(".rn.relu", {})]
        for dots, how in variants:
            ptx(
                f"half.{op}{dots}.{register}",
                HALF.format(op),
                f"{op}{dots}.{register} $r, {operands};",
                register,
                ins,
                lambda *v, function=function, f=f, how=how, r="relu" in dots: (
                    relu(function(*v, f, **how), f) if r else function(*v, f, **how)
                ),
            )
    for op in ("min", "max"):
        for dots in ("", ".NaN"):
            ptx(
                f"half.{op}{dots}.{register}",
                HALF.format(op),
                f"{op}{dots}.{register} $r, $a, $b;",
                register,
                f"{register} {register}",
                lambda a, b, f=f, g=op == "max", nan=bool(dots): exact.least(a, b, f, greatest=g, nan=nan),
            )
    ptx(
        f"half.neg.{register}",
        HALF.format("neg"),
        f"neg.{register} $r, $a;",
        register,
        register,
        lambda a: a ^ 0x8000,
        domain={"a": lambda v: v},
    )
    ptx(
        f"half.abs.{register}",
        HALF.format("abs"),
        f"abs.{register} $r, $a;",
        register,
        register,
        lambda a: a & 0x7FFF,
        domain={"a": no_nan} if f == "bf16" else None,
    )
ptx(
    "half.fma.rn.ftz.f16",
    HALF.format("fma"),
    "fma.rn.ftz.f16 $r, $a, $b, $c;",
    "f16",
    "f16 f16 f16",
    lambda a, b, c: exact.fma(a, b, c, "f16", ftz=True),
)
ptx(
    "half.add.rn.ftz.f16x2",
    HALF.format("add"),
    "add.rn.ftz.f16x2 $r, $a, $b;",
    "f16x2",
    "f16x2 f16x2",
    lambda a, b: exact.add(a, b, "f16", ftz=True),
)
ptx(
    "half.mul.rn.ftz.f16x2",
    HALF.format("mul"),
    "mul.rn.ftz.f16x2 $r, $a, $b;",
    "f16x2",
    "f16x2 f16x2",
    lambda a, b: exact.mul(a, b, "f16", ftz=True),
)
ptx(
    "half.min.xorsign.f16",
    HALF.format("min"),
    "min.xorsign.abs.f16 $r, $a, $b;",
    "f16",
    "f16 f16",
    lambda a, b: (lambda m: m if exact.decode(m, "f16").nan else m | (a ^ b) & 0x8000)(
        exact.least(a & 0x7FFF, b & 0x7FFF, "f16")
    ),
)

# comparisons ----------------------------------------------------------------------------------------------------------------
_ORDER = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def holds(a, b, f, op, unordered=False):
    x, y = exact.decode(a, f), exact.decode(b, f)
    return unordered if x.nan or y.nan else _ORDER[op](x.value, y.value)


for f in ("f16", "bf16"):
    for op, u in (("lt", ""), ("geu", "u"), ("eq", "")):
        name = op.removesuffix("u")
        ptx(
            f"half.setp.{op}.{f}x2",
            "Half Precision Comparison: setp",
            f"{{ .reg .pred p, q; .reg .b16 x, y; setp.{op}.{f}x2 p|q, $a, $b; selp.b16 x, 1, 0, p; selp.b16 y, 1, 0, q; mov.b32 $r, {{x, y}}; }}",
            "bf16x2",
            f"{f}x2 {f}x2",
            lambda a, b, f=f, name=name, u=bool(u): int(holds(a, b, f, name, u)),
        )
ptx(
    "half.set.f16x2",
    "Half Precision Comparison: set",
    "set.gt.f16x2.f16x2 $r, $a, $b;",
    "f16x2",
    "f16x2 f16x2",
    lambda a, b: 0x3C00 * holds(a, b, "f16", "gt"),
)
ptx(
    "half.set.u32.f16",
    "Half Precision Comparison: set",
    "set.le.u32.f16 $r, $a, $b;",
    "u32",
    "f16 f16",
    lambda a, b: -holds(a, b, "f16", "le"),
)


# approximations -------------------------------------------------------------------------------------------------------------
def through(function, f):
    def g(bits):
        x = exact.decode(bits, f)
        v = (
            np.float64("nan")
            if x.nan
            else np.float64(float(x.value))
            if not (x.size == 0 and x.negative)
            else np.float64(-0.0)
        )
        with np.errstate(all="ignore"):
            return exact.convert(int(np.asarray(function(v)).view("u8")), "f64", f)

    return g


for register, f in (("f16", "f16"), ("f16x2", "f16")):
    ptx(
        f"half.ex2.approx.{register}",
        HALF.format("ex2"),
        f"ex2.approx.{register} $r, $a;",
        register,
        register,
        through(np.exp2, f),
        compare=Within(relative=2.0**-9.9, absolute=2.0**-24),
    )
    ptx(
        f"half.tanh.approx.{register}",
        HALF.format("tanh"),
        f"tanh.approx.{register} $r, $a;",
        register,
        register,
        through(np.tanh, f),
        compare=Within(absolute=2.0**-10.987),
    )

# cuda_fp16.h, cuda_bf16.h ---------------------------------------------------------------------------------------------------
_IN = "__half2 x = *(__half2*)&a, y = *(__half2*)&b, z; "
_OUT = " r = *(unsigned*)&z;"
_HALF2 = {
    "hadd2": ("z = __hadd2(x, y);", lambda a, b: exact.add(a, b, "f16")),
    "hmul2": ("z = __hmul2(x, y);", lambda a, b: exact.mul(a, b, "f16")),
    "hfma2": ("z = __hfma2(x, y, x);", lambda a, b: exact.fma(a, b, a, "f16")),
    "hsub2": ("z = __hsub2(x, y);", lambda a, b: exact.sub(a, b, "f16")),
    "hmax2": ("z = __hmax2(x, y);", lambda a, b: exact.least(a, b, "f16", greatest=True)),
    "hmin2_nan": ("z = __hmin2_nan(x, y);", lambda a, b: exact.least(a, b, "f16", nan=True)),
    "hlt2": ("z = __hlt2(x, y);", lambda a, b: 0x3C00 * holds(a, b, "f16", "lt")),
    "hneu2": ("z = __hneu2(x, y);", lambda a, b: 0x3C00 * holds(a, b, "f16", "ne", True)),
    "hneg2": ("z = __hneg2(__habs2(x));", lambda a, b: a | 0x8000),
    "hadd2_sat": ("z = __hadd2_sat(x, y);", lambda a, b: exact.add(a, b, "f16", sat=True)),
    "hfma2_relu": ("z = __hfma2_relu(x, y, x);", lambda a, b: relu(exact.fma(a, b, a, "f16"), "f16")),
}
for key, (body, f) in _HALF2.items():
    family.elementwise(f"half.cxx.{key}", "cuda_fp16.h", _IN + body + _OUT, "f16x2", "f16x2 f16x2", f, headers=True)
_BF2 = {
    "hadd2": ("z = __hadd2(x, y);", lambda a, b: exact.add(a, b, "bf16")),
    "hmul2": ("z = __hmul2(x, y);", lambda a, b: exact.mul(a, b, "bf16")),
    "hfma2": ("z = __hfma2(x, y, x);", lambda a, b: exact.fma(a, b, a, "bf16")),
    "hmin2": ("z = __hmin2(x, y);", lambda a, b: exact.least(a, b, "bf16")),
}
for key, (body, f) in _BF2.items():
    source = _IN.replace("__half2", "__nv_bfloat162") + body + _OUT
    family.elementwise(f"half.cxx.bf16.{key}", "cuda_bf16.h", source, "bf16x2", "bf16x2 bf16x2", f, headers=True)
_CXX = {
    "float2half": ("r = __half_as_ushort(__float2half_rn(a));", "f16", "f32", lambda a: exact.convert(a, "f32", "f16")),
    "float2half_rz": (
        "r = __half_as_ushort(__float2half_rz(a));",
        "f16",
        "f32",
        lambda a: exact.convert(a, "f32", "f16", "rz"),
    ),
    "half2float": (
        "r = __half2float(__ushort_as_half(a)) * 2.f;",
        "f32",
        "f16",
        lambda a: exact.mul(exact.convert(a, "f16", "f32"), 0x40000000, "f32"),
    ),
    "half2int": (
        "r0 = __half2int_rn(__ushort_as_half(a)); r1 = __half2int_rz(__ushort_as_half(a));",
        "s32 s32",
        "f16",
        lambda a: tuple(exact.to_integer(a, "f16", 32, True, m) for m in ("rni", "rzi")),
    ),
    "int2half": ("r = __half_as_ushort(__int2half_rn(a));", "f16", "s32", lambda a: exact.from_integer(a, "f16")),
    "operators": (
        "__half x = __ushort_as_half(a), y = __ushort_as_half(b); r0 = __half_as_ushort(x + y); r1 = __half_as_ushort(-x); r2 = x < y;",
        "f16 f16 u32",
        "f16 f16",
        lambda a, b: (exact.add(a, b, "f16"), a ^ 0x8000, holds(a, b, "f16", "lt")),
    ),
    "low_high": (
        "__half2 x = *(__half2*)&a; __half2 z = __halves2half2(__high2half(x), __low2half(x)); r = *(unsigned*)&z;",
        "u32",
        "u32",
        lambda a: a >> 16 | a << 16,
    ),
    "bf16.float2bfloat16": (
        "r = __bfloat16_as_ushort(__float2bfloat16_rn(a));",
        "bf16",
        "f32",
        lambda a: exact.convert(a, "f32", "bf16"),
    ),
    "bf16.bfloat162float": (
        "r = __bfloat162float(__ushort_as_bfloat16(a));",
        "f32",
        "bf16",
        lambda a: exact.convert(a, "bf16", "f32"),
    ),
    "fp8.e4m3": (
        "r = __nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_E4M3);",
        "u8",
        "f32",
        lambda a: exact.convert(a, "f32", "e4m3", satfinite=True),
    ),
}
for key, (body, outs, ins, f) in _CXX.items():
    family.elementwise(f"half.cxx.{key}", "cuda_fp16.h, cuda_bf16.h, cuda_fp8.h", body, outs, ins, f, headers=True)
