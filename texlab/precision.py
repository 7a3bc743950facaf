"""Number formats of the matrix units: what each holds, and conversions of arrays to and from its bits.

================  =====================  ==========  =================  =======================
name              arrays                 fraction    largest            sums of products
================  =====================  ==========  =================  =======================
float16           float16                10 bits     65504              float32
bfloat16          uint16 (the bits)      7 bits      3.39e38            float32
tf32              float32                10 bits     3.40e38            float32
int8              int8                   (integers)  127                int32, exact
e4m3              uint8 (the bits)       3 bits      448                float32
================  =====================  ==========  =================  =======================

``encode`` rounds to nearest, ties to even. Overflow gives infinity in float16, bfloat16 and tf32; int8 and e4m3
**saturate** (1000 becomes 127, 448), as ``cvt.satfinite`` does on the GPU; NaN stays NaN, and has no int8. ``decode``
gives what the multiplier sees: of a tf32 operand it reads the sign, the exponent and the upper 10 bits of the fraction,
and drops the lower 13 without rounding.

Everything works on NumPy and on CuPy arrays.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.shapes import ConvShape


@dataclass(frozen=True)
class Precision:
    """A number format. ``code``: PRECISION of the tensor-core kernel; ``dtype`` of its arrays; ``sums``: dtype of the
    accumulators; ``unit``: the largest relative rounding error of a normal number (int8: of the largest); ``largest``
    finite value; ``smallest`` positive one; ``k``: elements of a window that one ``mma`` multiplies; ``needs``."""

    name: str
    code: int
    dtype: str
    sums: str
    unit: float
    largest: float
    smallest: float
    k: int
    needs: str = "sm_80"

    @property
    def scaled(self) -> bool:
        """Whether float32 data is brought into its range by a scale first."""
        return self.name in ("int8", "e4m3")


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("float16", 0, "float16", "float32", 2.0**-11, 65504.0, 2.0**-24, 16),
        Precision("bfloat16", 1, "uint16", "float32", 2.0**-8, float(2**128 - 2**120), 2.0**-133, 16),
        Precision("tf32", 2, "float32", "float32", 2.0**-11, float(2**128 - 2**117), 2.0**-136, 8),
        Precision("int8", 3, "int8", "int32", 0.5 / 127, 127.0, 1.0, 32),
        Precision("e4m3", 4, "uint8", "float32", 2.0**-4, 448.0, 2.0**-9, 32, "sm_89"),
    )
}
#: name -> (bits of the fraction, exponent of the smallest normal number)
_FORMATS = {"bfloat16": (7, -126), "tf32": (10, -126), "e4m3": (3, -6)}


def precision(name: str) -> Precision:
    """The format called ``name``; ValueError that lists them for any other."""
    if name not in PRECISIONS:
        raise ValueError(f"precision={name!r}: the matrix units take one of {sorted(PRECISIONS)}")
    return PRECISIONS[name]


def encode(values: Any, name: str) -> Any:
    """``values`` rounded to a format, in its arrays' dtype (bits for bfloat16 and e4m3).

    >>> encode(np.array([1000, 448, 464, 465, -1000, 0.1, 2.0**-10, 0.001], "float32"), "e4m3").tolist()
    [126, 126, 126, 126, 254, 29, 0, 1]
    >>> encode(np.array([200.0, -3.5, -1000.0]), "int8").tolist()
    [127, -4, -128]
    """
    p, xp = precision(name), _module(values)
    if values.dtype != np.float64:
        values = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "float16":
            return values.astype(np.float16)
        if name == "int8":
            if bool(xp.isnan(values).any()):
                raise ValueError("encode: there are NaN among the values, and int8 has none")
            return xp.clip(xp.rint(values), -128, 127).astype(np.int8)
        near = _round(xp, values, *_FORMATS[name])
        if name == "e4m3":
            near = xp.clip(near, -p.largest, p.largest)
        near = near.astype(np.float32)  # holds every number of these formats
    bits = near.view(np.uint32)
    if name == "tf32":
        return near
    if name == "bfloat16":
        return xp.where(xp.isnan(near), np.uint32(0x7FFF), bits >> 16).astype(np.uint16)
    magnitude = abs(near)
    normal = (bits & 0x7FFFFFFF) >> 20  # exponent and three bits of fraction; float32's bias is 127, e4m3's 7
    small = xp.where(magnitude < 2.0**-6, magnitude * 2.0**9, 0)
    code = xp.where(magnitude < 2.0**-6, small.astype(np.uint32), normal - (120 << 3))
    code = xp.where(xp.isnan(near), np.uint32(0x7F), code)
    return (code | bits >> 24 & 0x80).astype(np.uint8)


def decode(stored: Any, name: str) -> Any:
    """The numbers that the multiplier sees in an array of a format, as float32.

    >>> decode(encode(np.array([0.1, 1 / 3], "float32"), "e4m3"), "e4m3").tolist()
    [0.1015625, 0.34375]
    >>> float(decode(np.array([1 + 2**-10 + 2**-11], "float32"), "tf32")[0]) == 1 + 2**-10
    True
    """
    p, xp = precision(name), _module(stored)
    if stored.dtype != np.dtype(p.dtype):
        raise TypeError(f"decode: {name} is held in {p.dtype} arrays, got {stored.dtype}")
    if name in ("float16", "int8"):
        return stored.astype(np.float32)
    if name == "tf32":
        bits = xp.ascontiguousarray(stored).view(np.uint32)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    if name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return xp.asarray(_E4M3)[stored]


def _e4m3_values() -> np.ndarray:
    """All 256 numbers of e4m3: no infinities, NaN at 0x7F and 0xFF."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    values = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3 = _e4m3_values()


def rounded(values: Any, name: str) -> Any:
    """``values`` as the format holds them, in float32: ``decode(encode(values))``.

    >>> rounded(np.array([1 + 2.0**-9], "float32"), "bfloat16")
    array([1.], dtype=float32)
    """
    return decode(encode(values, name), name)


def quantise(values: Any, name: str, per_channel: bool = False) -> tuple[Any, Any]:
    """(stored, scale) with ``values`` about ``scale * decode(stored)``; the largest magnitude fills the format.

    ``per_channel``: a scale for each index of the first axis, float32 (K,), else one for all, a float32 scalar array.
    Formats that need no scale get 1; so do values that are all zero. Infinities and NaN cannot be scaled: ValueError.

    >>> stored, scale = quantise(np.array([[1.0, -2.0], [0.5, 0.25]], "float32"), "int8", per_channel=True)
    >>> stored.tolist(), (scale * 127).tolist()
    ([[64, -127], [127, 64]], [2.0, 0.5])
    """
    p, xp = precision(name), _module(values)
    values = values.astype(np.float32)
    count = (values.shape[0],) if per_channel else ()
    if not p.scaled or not values.size:
        return encode(values, name), xp.ones(count, np.float32)
    most = abs(values).max(axis=tuple(range(1, values.ndim)) if per_channel else None)
    if not bool(xp.isfinite(most).all()):
        raise ValueError(f"quantise: the values hold infinities or NaN, which no scale brings into {name}")
    scale = xp.where(most > 0, xp.maximum(most / np.float32(p.largest), np.finfo(np.float32).tiny), 1)
    scale = scale.astype(np.float32)
    wide = scale.reshape(*count, *[1] * (values.ndim - 1)) if per_channel else scale
    return encode(values / wide, name), scale


def accumulation_bound(shape: ConvShape, name: str) -> float:
    """A bound on |error| / (sum of |x|*|w| of one output) of the kernel's sum, before the output is rounded: the same
    for every order of the terms.

    Products are exact. The matrix unit lines up the products of one ``mma`` and the running sum with the largest, and
    cuts off what lies below float32's last bit (for e4m3 some hardware keeps 13 bits of fraction): up to one unit an
    ``mma``, always towards zero, and a few units beside, which go either way. Integers are exact: 0.
    """
    p = precision(name)
    if p.sums == "int32":
        return 0.0
    terms = (shape.c // shape.groups) * shape.r * shape.s
    last_bit = 2.0**-13 if name == "e4m3" else 2.0**-23
    return last_bit * (-(-terms // p.k) + 4 + 4 * (terms + 1) ** 0.5)


def _round(xp: Any, values: Any, fraction: int, least: int) -> Any:
    """The nearest number with ``fraction`` bits after the first, whose exponent is at least ``least``; ties to even."""
    _, exponent = xp.frexp(values)
    unit = xp.ldexp(values.dtype.type(1), xp.maximum(exponent - 1, least) - fraction)
    return xp.where(xp.isfinite(values), xp.rint(values / unit) * unit, values)


def _module(array: Any) -> Any:
    """NumPy or CuPy, whichever the array is of."""
    return sys.modules[type(array).__module__.partition(".")[0]] if not isinstance(array, np.ndarray) else np
