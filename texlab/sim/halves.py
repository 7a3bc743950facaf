"""float16 and bfloat16, alone or two to a register.

Values are widened to double, where products are exact, and rounded once to 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.sim.arith import F2, F4, F8, U2, U4
from texlab.sim.ops import EMITTERS, Unsupported, emitter_for_halves
from texlab.sim.rounding import round_to_odd

KINDS = ("f16", "f16x2", "bf16", "bf16x2")


def widen(bits: np.ndarray, kind: str) -> np.ndarray:
    """16-bit patterns -> float64."""
    if kind[0] == "b":
        return (bits.astype(U4) << np.uint32(16)).view(F4).astype(F8)
    return bits.view(F2).astype(F8)


def narrow(x: np.ndarray, kind: str) -> np.ndarray:
    """float64 -> the nearest 16-bit float (ties to even); NaN becomes 0x7fff."""
    if kind[0] != "b":
        out = x.astype(F2).view(U2)
    else:
        _, exponent = np.frexp(x)
        unit = np.ldexp(1.0, np.maximum(exponent - 1, -126) - 7)
        near = np.where(np.isfinite(x), np.rint(x / unit) * unit, x)
        out = (near.astype(F4).view(U4) >> np.uint32(16)).astype(U2)
    return np.where(np.isnan(x), np.uint16(0x7FFF), out)


def _flush(x: np.ndarray, kind: str) -> np.ndarray:
    """``.ftz``."""
    return np.where(np.abs(x) < (2.0**-126 if kind[0] == "b" else 2.0**-14), np.copysign(0.0, x), x)


def _sum(p: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``p + c`` in double, such that rounding it to 16 bits is right."""
    return round_to_odd(p, c, p + c)


def _least(a: np.ndarray, b: np.ndarray, nan: bool, greatest: bool) -> np.ndarray:
    if greatest:
        return -_least(-a, -b, nan, False)
    out = np.minimum(a, b) if nan else np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), out)


def compute(op: str, kind: str, mods: tuple[str, ...], *operands: Any) -> Any:
    """One arithmetic instruction on 16-bit floats (``kind``) held as u2, or as u4 where packed in pairs."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in operands))
    bits = [np.ascontiguousarray(np.broadcast_to(v, shape or (1,))).view(U2) for v in operands]
    if "xorsign" in mods:  # of the magnitudes, with the sign of the product
        sign = (bits[0] ^ bits[1]) & np.uint16(0x8000)
        bits = [b & np.uint16(0x7FFF) for b in bits]
    if op in ("neg", "abs"):
        out = bits[0] ^ np.uint16(0x8000) if op == "neg" else bits[0] & np.uint16(0x7FFF)
        if "ftz" in mods:
            out = narrow(_flush(widen(out, kind), kind), kind)
    else:
        x = [widen(b, kind) for b in bits]
        if "ftz" in mods:
            x = [_flush(v, kind) for v in x]
        if op in ("add", "sub"):
            y = _sum(x[0], x[1] if op == "add" else -x[1])
        elif op == "mul":
            y = x[0] * x[1]
        elif op == "fma":
            y = _sum(x[0] * x[1], x[2])
        elif op in ("ex2", "tanh"):
            y = (np.exp2 if op == "ex2" else np.tanh)(x[0])
        else:
            y = _least(x[0], x[1], "NaN" in mods, op == "max")
        if "sat" in mods:
            y = np.where(y > 0, np.minimum(y, 1.0), 0.0)
        if "relu" in mods:
            y = np.where(y <= 0, 0.0, y)
        out = narrow(y, kind)
        if "ftz" in mods:
            out = narrow(_flush(widen(out, kind), kind), kind)
    if "xorsign" in mods:
        out = np.where(out == 0x7FFF, out, out | sign)
    out = out.view(U4 if kind.endswith("x2") else U2)
    return out if shape else out[0]


def compare(kind: str, test: str, ftz: bool, a: Any, b: Any) -> tuple[Any, Any]:
    """``setp`` on 16-bit floats: (low or only result, high result)."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    x, y = (widen(np.ascontiguousarray(np.broadcast_to(v, shape or (1,))).view(U2), kind) for v in (a, b))
    if ftz:
        x, y = _flush(x, kind), _flush(y, kind)
    unordered = np.isnan(x) | np.isnan(y)
    if test in ("num", "nan"):
        out = unordered if test == "nan" else ~unordered
    else:
        plain = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
        plain["ge"] = np.greater_equal
        ordered = plain[test[:2]](x, y) & ~unordered
        out = ordered | unordered if test.endswith("u") else ordered
    if not kind.endswith("x2"):
        return (out, out) if shape else (out[0], out[0])
    low, high = out[0::2], out[1::2]
    return (low, high) if shape else (low[0], high[0])


@emitter_for_halves("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh")
def _arithmetic(g: Any, ins: Any) -> None:
    kind = ins.parts[-1]
    mods = tuple(m for m in ("ftz", "sat", "relu", "NaN", "xorsign") if m in ins.parts)
    t = "u4" if kind.endswith("x2") else "u2"
    values = ", ".join(g.use(a, t) for a in ins.args[1:])
    g.namespace["half"] = compute
    g.define(ins.args[0], t, f"half({ins.parts[0]!r}, {kind!r}, {mods!r}, {values})")


@emitter_for_halves("setp")
def _setp(g: Any, ins: Any) -> None:
    if {"and", "or", "xor"} & set(ins.parts):
        raise Unsupported
    kind = ins.parts[-1]
    t = "u4" if kind.endswith("x2") else "u2"
    first, _, second = ins.args[0].partition("|")
    if second and t == "u2":
        raise Unsupported
    a, b = (g.use(x, t) for x in ins.args[1:3])
    g.namespace["half_compare"] = compare
    g.emit(f"t0, t1 = half_compare({kind!r}, {ins.parts[1]!r}, {'ftz' in ins.parts}, {a}, {b})")
    g.define(first, "?", "t0")
    if second:
        g.define(second, "?", "t1")


def chosen(kind: str, low: Any, high: Any) -> Any:
    """1 where a comparison holds, 0 elsewhere, as 16-bit floats of ``kind``."""
    one = np.uint16(0x3F80 if kind[0] == "b" else 0x3C00)
    out = np.where(low, one, np.uint16(0)).astype(U4)
    return (out | np.where(high, one, np.uint16(0)).astype(U4) << np.uint32(16))[()]


@emitter_for_halves("set")
def _set(g: Any, ins: Any) -> None:
    kind = ins.parts[-1]
    if kind == "f16":
        return EMITTERS["set"](g, ins)
    if not kind.endswith("x2") or ins.parts[-2] != kind or {"and", "or", "xor"} & set(ins.parts):
        raise Unsupported
    a, b = (g.use(x, "u4") for x in ins.args[1:3])
    g.namespace |= {"half_compare": compare, "half_chosen": chosen}
    comparison = f"half_compare({kind!r}, {ins.parts[1]!r}, {'ftz' in ins.parts}, {a}, {b})"
    return g.define(ins.args[0], "u4", f"half_chosen({kind!r}, *{comparison})")
