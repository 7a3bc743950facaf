"""Floating point by exact fractions, one rounding at the end: what PTX's arithmetic is compared with, NumPy apart.

Numbers are bit patterns (Python integers) of a Format; every operation takes and returns those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache


@dataclass(frozen=True)
class Format:
    """A binary float: ``bits`` in all, of them ``fraction``. ``finite``: no infinities, one NaN (e4m3)."""

    bits: int
    fraction: int
    finite: bool = False

    @property
    def bias(self) -> int:
        return (1 << (self.bits - 2 - self.fraction)) - 1

    @property
    def inf(self) -> int:
        return ((1 << (self.bits - 1 - self.fraction)) - 1) << self.fraction

    @property
    def nan(self) -> int:
        return (1 << (self.bits - 1)) - 1

    @property
    def largest(self) -> int:
        return self.nan - 1 if self.finite else self.inf - 1


FORMATS = {
    "f16": Format(16, 10),
    "bf16": Format(16, 7),
    "f32": Format(32, 23),
    "f64": Format(64, 52),
    "e4m3": Format(8, 3, finite=True),
    "e5m2": Format(8, 2),
    "tf32": Format(19, 10),
}


@dataclass(frozen=True)
class Number:
    """A sign and a magnitude: a Fraction, ``math.inf``, or None for NaN."""

    negative: bool
    size: Fraction | float | None

    @property
    def nan(self) -> bool:
        return self.size is None

    @property
    def infinite(self) -> bool:
        return self.size == math.inf

    @property
    def value(self) -> Fraction | float:
        return -self.size if self.negative else self.size

    def minus(self) -> Number:
        return Number(not self.negative, self.size)


NAN = Number(False, None)


def number(value: Fraction | int, negative_zero: bool = False) -> Number:
    value = Fraction(value)
    return Number(value < 0 or (value == 0 and negative_zero), abs(value))


@cache
def decode(bits: int, name: str, ftz: bool = False) -> Number:
    f = FORMATS[name]
    negative, rest = bool(bits >> (f.bits - 1)), bits & ((1 << (f.bits - 1)) - 1)
    if rest == f.nan or (not f.finite and rest > f.inf):
        return NAN
    if not f.finite and rest == f.inf:
        return Number(negative, math.inf)
    exponent, fraction = rest >> f.fraction, rest & ((1 << f.fraction) - 1)
    if exponent == 0:
        if ftz:
            return Number(negative, Fraction(0))
        return Number(negative, Fraction(fraction, 1 << (f.bias - 1 + f.fraction)))
    return Number(negative, Fraction(fraction + (1 << f.fraction)) * Fraction(2) ** (exponent - f.bias - f.fraction))


def encode(
    x: Number, name: str, mode: str = "rn", *, ftz: bool = False, sat: bool = False, satfinite: bool = False
) -> int:
    """Round to a Format: ``mode`` rn (ties to even), rna (ties away), rz, rm or rp. NaN becomes the format's canonical
    one (all bits but the sign). ``sat``: into [0, 1], NaN to 0. ``satfinite``: the largest number instead of infinity."""
    f = FORMATS[name]
    if x.nan:
        return 0 if sat else f.nan
    if sat:
        x = number(min(max(x.value, 0), 1))
    sign = x.negative << (f.bits - 1)
    if x.infinite:
        return sign | (f.largest if satfinite else f.nan if f.finite else f.inf)
    if x.size == 0:
        return sign
    exponent = _floor_log2(x.size)
    step = Fraction(2) ** (max(exponent, 1 - f.bias) - f.fraction)
    whole, rest = divmod(x.size, step)
    up = {
        "rn": rest > step / 2 or (rest == step / 2 and whole % 2 == 1),
        "rna": rest >= step / 2,
        "rz": False,
        "rm": rest > 0 and x.negative,
        "rp": rest > 0 and not x.negative,
    }[mode]
    whole += up
    base = max(exponent, 1 - f.bias) + f.bias  # biased exponent; the fraction's carry runs into it by itself
    out = ((base - 1) << f.fraction) + whole if base > 0 else whole
    if out > f.largest:
        away = mode in ("rn", "rna") or (mode == "rp" and not x.negative) or (mode == "rm" and x.negative)
        out = f.largest if satfinite or not away else f.nan if f.finite else f.inf
    if ftz and out < 1 << f.fraction:
        out = 0
    return sign | out


def _floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


# operations on Numbers ----------------------------------------------------------------------------------------------
def plus(a: Number, b: Number, mode: str = "rn") -> Number:
    if a.nan or b.nan or (a.infinite and b.infinite and a.negative != b.negative):
        return NAN
    if a.infinite or b.infinite:
        return a if a.infinite else b
    total = a.value + b.value
    if total == 0:
        same = a.negative == b.negative
        return Number(a.negative if same else mode == "rm", Fraction(0))
    return number(total)


def times(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.infinite and b.size == 0) or (b.infinite and a.size == 0):
        return NAN
    if a.infinite or b.infinite:
        return Number(negative, math.inf)
    return Number(negative, a.size * b.size)


def over(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.infinite and b.infinite) or (a.size == 0 and b.size == 0):
        return NAN
    if a.infinite or b.size == 0:
        return Number(negative, math.inf)
    return Number(negative, Fraction(0) if b.infinite else a.size / b.size)


def root(a: Number) -> Number:
    """The square root to 200 bits, with one bit more where it is inexact: enough to round to any Format."""
    if a.nan or (a.negative and a.size != 0):
        return NAN
    if a.infinite or a.size == 0:
        return a
    shift = 2 * max(0, 200 - _floor_log2(a.size) // 2)
    scaled = a.size * (1 << shift)
    whole = math.isqrt(int(scaled))
    exact = whole * whole == scaled
    return Number(False, Fraction(2 * whole + (not exact), 1 << (shift // 2 + 1)))


def add(a, b, f, mode="rn", **how):
    ftz = how.get("ftz", False)
    return encode(plus(decode(a, f, ftz), decode(b, f, ftz), mode), f, mode, **how)


def sub(a, b, f, mode="rn", **how):
    return add(a, b ^ (1 << (FORMATS[f].bits - 1)), f, mode, **how)


def mul(a, b, f, mode="rn", **how):
    ftz = how.get("ftz", False)
    return encode(times(decode(a, f, ftz), decode(b, f, ftz)), f, mode, **how)


def fma(a, b, c, f, mode="rn", **how):
    ftz = how.get("ftz", False)
    product = times(decode(a, f, ftz), decode(b, f, ftz))
    return encode(plus(product, decode(c, f, ftz), mode), f, mode, **how)


def div(a, b, f, mode="rn", **how):
    ftz = how.get("ftz", False)
    return encode(over(decode(a, f, ftz), decode(b, f, ftz)), f, mode, **how)


def sqrt(a, f, mode="rn", **how):
    return encode(root(decode(a, f, how.get("ftz", False))), f, mode, **how)


def rcp(a, f, mode="rn", **how):
    return encode(over(number(1), decode(a, f, how.get("ftz", False))), f, mode, **how)


def least(a, b, f, *, nan=False, greatest=False, ftz=False):
    """min (or max): a NaN gives way to a number unless ``nan``; -0 is below +0."""
    x, y = decode(a, f, ftz), decode(b, f, ftz)
    if x.nan or y.nan:
        return encode(NAN if nan or (x.nan and y.nan) else y if x.nan else x, f)
    key = lambda v: (v.value, not v.negative)  # noqa: E731
    return encode((max if greatest else min)(x, y, key=key), f)


def convert(a, source, to, mode="rn", *, ftz=False, relu=False, **how):
    x = decode(a, source, ftz and source == "f32")
    if relu and (x.negative and not x.nan):
        x = number(0)
    return encode(x, to, mode, ftz=ftz and to == "f32", **how)


_ROUND = {
    "rzi": lambda v: int(v),
    "rmi": math.floor,
    "rpi": math.ceil,
    "rni": round,  # of a Fraction: ties to even
}


def to_integer(a, source, bits, signed, mode, ftz=False):
    """float to integer: rounded, then clamped; NaN is 0, but 1 << (bits - 1) for 64-bit sources or results."""
    x = decode(a, source, ftz)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if x.nan:
        return 1 << (bits - 1) if bits == 64 or source == "f64" else 0
    if x.infinite:
        return low if x.negative else high
    return min(max(_ROUND[mode](x.value), low), high)


def round_integral(a, f, mode, ftz=False):
    """A float rounded to a whole number, sign of zero kept."""
    x = decode(a, f, ftz)
    if x.nan or x.infinite:
        return encode(x, f)
    return encode(number(_ROUND[mode](x.value), negative_zero=x.negative), f)


def from_integer(v, to, mode="rn"):
    return encode(number(v), to, mode)
