"""The two 8-bit floats, e4m3 and e5m2: their numbers, and the emitters of the conversions that pack two of them.

e5m2 is the upper half of a float16; e4m3 has no infinities (``texlab.precision``). Arrays of codes are uint8.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from texlab.precision import decode, encode
from texlab.sim.arith import rectify
from texlab.sim.ops import Unsupported

F2, F4, U1, U2, U4 = np.float16, np.float32, np.uint8, np.uint16, np.uint32
KINDS = ("e4m3", "e5m2")
_NAN = U1(0x7F)
_LARGEST = F4(57344)  # of e5m2
_PAIRS = {f"{kind}x2": kind for kind in KINDS}


def numbers(codes: Any, kind: str) -> np.ndarray:
    """The numbers of uint8 codes, as float32.

    >>> numbers(np.array([0x3C, 0x7B, 0xFC, 0x01], "u1"), "e5m2").tolist()
    [1.0, 57344.0, -inf, 1.52587890625e-05]
    """
    codes = np.asarray(codes)
    if kind == "e4m3":
        return decode(codes, kind)
    return (codes.astype(U2) << U2(8)).view(F2).astype(F4)


def codes(values: Any, kind: str, relu: bool = False) -> np.ndarray:
    """Floats rounded to nearest, ties to even, as uint8; what is too large becomes the largest number, NaN 0x7F.

    >>> codes(np.array([1.1, 1.125, 70000, -0.0], "f4"), "e5m2").tolist()
    [60, 60, 123, 128]
    """
    values = np.asarray(values, F4)
    if relu:
        values = rectify(values)
    if kind == "e4m3":
        out = encode(values, kind)
    else:
        _, exponent = np.frexp(values)
        unit = np.ldexp(F4(1), np.maximum(exponent - 1, -14) - 2)
        with np.errstate(invalid="ignore"):
            near = np.clip(np.where(np.isinf(values), values, np.rint(values / unit) * unit), -_LARGEST, _LARGEST)
            out = (near.astype(F2).view(U2) >> U2(8)).astype(U1)
    return np.where(np.isnan(values), _NAN, out)


def _pack(high: Any, low: Any, kind: str, relu: bool) -> np.ndarray:
    return codes(high, kind, relu).astype(U2) << U2(8) | codes(low, kind, relu)


def _pack_half_pair(pair: Any, kind: str, relu: bool) -> np.ndarray:
    halves = np.asarray(pair, U4).reshape(-1, 1).view(F2)
    return _pack(halves[:, 1], halves[:, 0], kind, relu)


def _half_pair(pair: Any, kind: str, relu: bool) -> np.ndarray:
    each = numbers(np.asarray(pair, U2).reshape(-1, 1).view(U1), kind).astype(F2)  # every one is a float16
    return (rectify(each) if relu else each).view(U4)[:, 0]


def emit(g: Any, ins: Any) -> bool:
    """Conversions of pairs from float32 or float16, and to float16; False if ``ins`` is none of them."""
    to, source = ins.parts[-2:]
    kind = _PAIRS.get(to) or _PAIRS.get(source)
    if kind is None:
        return False
    narrowing = to in _PAIRS
    needed = {"rn", "satfinite"} if narrowing else {"rn"}
    if set(ins.parts[1:-2]) - {"relu"} != needed:
        raise Unsupported
    relu = "relu" in ins.parts
    if narrowing and source == "f32":
        name, made = f"pack_{kind}_{relu}", partial(_pack, kind=kind, relu=relu)
        given, register = ", ".join(g.use(x, "f4") for x in ins.args[1:]), "u2"
    elif narrowing and source == "f16x2":
        name, made = f"pack_half_{kind}_{relu}", partial(_pack_half_pair, kind=kind, relu=relu)
        given, register = g.use(ins.args[1], "u4"), "u2"
    elif to == "f16x2":
        name, made = f"halves_{kind}_{relu}", partial(_half_pair, kind=kind, relu=relu)
        given, register = g.use(ins.args[1], "u2"), "u4"
    else:
        raise Unsupported
    g.namespace[name] = made
    g.define(ins.args[0], register, f"{name}({given})")
    return True
