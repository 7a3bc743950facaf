"""Integer arithmetic: PTX ISA, "Integer Arithmetic" and "Extended-Precision Integer Arithmetic"."""

from __future__ import annotations

import numpy as np

from .case import Collection

family = Collection()
ptx = family.ptx
ARITHMETIC, EXTENDED = "Integer Arithmetic: {}", "Extended-Precision Integer Arithmetic: {}"
TYPES = ("s16", "u16", "s32", "u32", "s64", "u64")


def quotient(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def nonzero(v: np.ndarray) -> np.ndarray:
    return np.where(v == 0, v.dtype.type(3), v)


def signed(v: int, n: int) -> int:
    v &= (1 << n) - 1
    return v - (1 << n) if v >> (n - 1) else v


def limits(t: str) -> tuple[int, int]:
    n = int(t[1:])
    return (-(1 << (n - 1)), (1 << (n - 1)) - 1) if t[0] == "s" else (0, (1 << n) - 1)


def clamp(v: int, t: str) -> int:
    low, high = limits(t)
    return min(max(v, low), high)


# arithmetic ---------------------------------------------------------------------------------------------------------
_TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": quotient,
    "rem": lambda a, b: a - quotient(a, b) * b,
    "min": min,
    "max": max,
}
for t in TYPES:
    for op, f in _TWO.items():
        how = {"domain": {"b": nonzero}} if op in ("div", "rem") else {}
        ptx(f"integer.{op}.{t}", ARITHMETIC.format(op.split(".")[0]), f"{op}.{t} $r, $a, $b;", t, f"{t} {t}", f, **how)
    ptx(
        f"integer.mul.hi.{t}",
        ARITHMETIC.format("mul"),
        f"mul.hi.{t} $r, $a, $b;",
        t,
        f"{t} {t}",
        lambda a, b, n=int(t[1:]): a * b >> n,
    )
for t in ("s32", "u32", "s64", "u64"):  # PTX leaves the value to the machine; NVIDIA's give all ones
    zero = {"b": np.zeros_like}
    ptx(
        f"integer.div.zero.{t}",
        ARITHMETIC.format("div"),
        f"div.{t} $r, $a, $b;",
        t,
        f"{t} {t}",
        lambda a, b: -1,
        domain=zero,
    )
    ptx(
        f"integer.mad.lo.{t}",
        ARITHMETIC.format("mad"),
        f"mad.lo.{t} $r, $a, $b, $c;",
        t,
        f"{t} {t} {t}",
        lambda a, b, c: a * b + c,
    )
    ptx(
        f"integer.mad.hi.{t}",
        ARITHMETIC.format("mad"),
        f"mad.hi.{t} $r, $a, $b, $c;",
        t,
        f"{t} {t} {t}",
        lambda a, b, c, n=int(t[1:]): (a * b >> n) + c,
    )
for t, wide in (("s16", "s32"), ("u16", "u32"), ("s32", "s64"), ("u32", "u64")):
    ptx(
        f"integer.mul.wide.{t}",
        ARITHMETIC.format("mul"),
        f"mul.wide.{t} $r, $a, $b;",
        wide,
        f"{t} {t}",
        lambda a, b: a * b,
    )
    ptx(
        f"integer.mad.wide.{t}",
        ARITHMETIC.format("mad"),
        f"mad.wide.{t} $r, $a, $b, $c;",
        wide,
        f"{t} {t} {wide}",
        lambda a, b, c: a * b + c,
    )
for op, f in (
    ("add.sat", lambda a, b: clamp(a + b, "s32")),
    ("sub.sat", lambda a, b: clamp(a - b, "s32")),
):
    ptx(f"integer.{op}.s32", ARITHMETIC.format(op[:3]), f"{op}.s32 $r, $a, $b;", "s32", "s32 s32", f)
ptx(
    "integer.mad.hi.sat.s32",
    ARITHMETIC.format("mad"),
    "mad.hi.sat.s32 $r, $a, $b, $c;",
    "s32",
    "s32 s32 s32",
    lambda a, b, c: clamp((a * b >> 32) + c, "s32"),
)
for t in ("s32", "u32"):
    low = lambda v, t=t: signed(v, 24) if t[0] == "s" else v & 0xFFFFFF  # noqa: E731
    ptx(
        f"integer.mul24.lo.{t}",
        ARITHMETIC.format("mul24"),
        f"mul24.lo.{t} $r, $a, $b;",
        t,
        f"{t} {t}",
        lambda a, b, f=low: f(a) * f(b),
    )
    ptx(
        f"integer.mul24.hi.{t}",
        ARITHMETIC.format("mul24"),
        f"mul24.hi.{t} $r, $a, $b;",
        t,
        f"{t} {t}",
        lambda a, b, f=low: f(a) * f(b) >> 16,
    )
    ptx(
        f"integer.mad24.lo.{t}",
        ARITHMETIC.format("mad24"),
        f"mad24.lo.{t} $r, $a, $b, $c;",
        t,
        f"{t} {t} {t}",
        lambda a, b, c, f=low: f(a) * f(b) + c,
    )
for t in ("s16", "s32", "u32", "s64"):
    ptx(
        f"integer.sad.{t}",
        ARITHMETIC.format("sad"),
        f"sad.{t} $r, $a, $b, $c;",
        t,
        f"{t} {t} {t}",
        lambda a, b, c: c + abs(a - b),
    )
for t in ("s16", "s32", "s64"):
    ptx(f"integer.abs.{t}", ARITHMETIC.format("abs"), f"abs.{t} $r, $a;", t, t, abs)
    ptx(f"integer.neg.{t}", ARITHMETIC.format("neg"), f"neg.{t} $r, $a;", t, t, lambda a: -a)

# carry --------------------------------------------------------------------------------------------------------------
ptx(
    "integer.addc.96bit",
    EXTENDED.format("add.cc, addc"),
    "add.cc.u32 $r0, $a, $b; addc.cc.u32 $r1, $b, $c; addc.u32 $r2, $c, $a;",
    "u32 u32 u32",
    "u32 u32 u32",
    lambda a, b, c: tuple((a | b << 32 | c << 64) + (b | c << 32 | a << 64) >> s for s in (0, 32, 64)),
)
ptx(
    "integer.subc.96bit",
    EXTENDED.format("sub.cc, subc"),
    "sub.cc.u32 $r0, $a, $b; subc.cc.u32 $r1, $b, $c; subc.u32 $r2, $c, $a;",
    "u32 u32 u32",
    "u32 u32 u32",
    lambda a, b, c: tuple((a | b << 32 | c << 64) - (b | c << 32 | a << 64) >> s for s in (0, 32, 64)),
)
ptx(
    "integer.addc.128bit",
    EXTENDED.format("add.cc, addc"),
    "add.cc.u64 $r0, $a, $b; addc.u64 $r1, $b, $a;",
    "u64 u64",
    "u64 u64",
    lambda a, b: tuple((a | b << 64) + (b | a << 64) >> s for s in (0, 64)),
)
ptx(
    "integer.subc.128bit",
    EXTENDED.format("sub.cc, subc"),
    "sub.cc.u64 $r0, $a, $b; subc.u64 $r1, $b, $a;",
    "u64 u64",
    "u64 u64",
    lambda a, b: tuple((a | b << 64) - (b | a << 64) >> s for s in (0, 64)),
)
ptx(
    "integer.mad.cc",
    EXTENDED.format("mad.cc, madc"),
    "mad.lo.cc.u32 $r0, $a, $b, $c; madc.hi.u32 $r1, $a, $b, $c;",
    "u32 u32",
    "u32 u32 u32",
    lambda a, b, c: (a * b + c, a * b + c + (c << 32) >> 32),
)
