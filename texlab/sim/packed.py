"""Emitters, continued: integers two or four to a register, and what takes several registers into one."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.sim.arith import I8, U1, U2, U4, U8, clamp_integer
from texlab.sim.ops import Unsupported, emitter
from texlab.sim.ptx import TYPES

KINDS = ("u16x2", "s16x2")


def lanes_of(op: str, kind: str, relu: bool, a: Any, b: Any) -> Any:
    """``add min max`` on two 16-bit integers (``kind`` u16x2 or s16x2) in each 32-bit word; sums wrap."""
    t = np.dtype("i2" if kind[0] == "s" else "u2")
    out = np.uint32(0)
    for shift in (np.uint32(0), np.uint32(16)):
        x, y = ((v >> shift).astype(U2).view(t) for v in (a, b))
        z = x + y if op == "add" else np.minimum(x, y) if op == "min" else np.maximum(x, y)
        if relu:
            z = np.maximum(z, t.type(0))
        out = out | z.view(U2).astype(U4) << shift
    return out


def byte_distances(a: Any, b: Any, c: Any, signed_a: bool, signed_b: bool, add: bool) -> Any:
    """``vabsdiff4``: distances of the four bytes of two words, each in its byte or, with ``add``, summed up with ``c``."""
    out = c if add else np.uint32(0)
    for i in range(4):
        down = np.uint32(8 * i)
        x, y = ((v >> down).astype(U1).view("i1" if s else "u1").astype(I8) for v, s in ((a, signed_a), (b, signed_b)))
        distance = np.abs(x - y).astype(U4)
        out = out + distance if add else out | (distance & np.uint32(255)) << down
    return out


def extend(a: Any, n: Any, wrap: bool) -> Any:
    """``szext``: the low ``n`` bits of a 32-bit integer, zero- or sign-extended by its type; ``wrap``: n modulo 32."""
    n = (n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))).astype(U8)
    one, u = np.uint64(1), a.view(U4).astype(U8)
    low = u & ((one << n) - one)
    if a.dtype.kind == "i":
        top = np.where(n > 0, one << np.maximum(n, one) - one, np.uint64(0))[()]
        low = (low ^ top) - top
    return low.astype(U4).view(a.dtype)


def bit_mask(position: Any, n: Any, wrap: bool) -> Any:
    """``bmsk``: ``n`` ones from bit ``position``; ``wrap``: both modulo 32, or else at most 32."""
    at, n = ((v & np.uint32(31) if wrap else np.minimum(v, np.uint32(32))).astype(U8) for v in (position, n))
    one = np.uint64(1)
    return (((one << n) - one) << at).astype(U4)


_PICKS = {  # which byte of b:a goes to place i, from the selector's two low bits s
    "f4e": lambda s, i: s + i & 7,
    "b4e": lambda s, i: s - i & 7,
    "rc8": lambda s, i: s,
    "ecl": lambda s, i: max(s, i),
    "ecr": lambda s, i: min(s, i),
    "rc16": lambda s, i: 2 * (s & 1) + i % 2,
}
_SELECTORS = {
    mode: np.array([sum(pick(s, i) << 4 * i for i in range(4)) for s in range(4)], U4) for mode, pick in _PICKS.items()
}


def byte_selector(mode: str, selector: Any) -> Any:
    """The nibbles that ``prmt`` in its default mode would need, for one of its other modes."""
    return _SELECTORS[mode][selector & np.uint32(3)]


def pack_saturated(kind: str, a: Any, b: Any, c: Any = None) -> Any:
    """``cvt.pack``: two integers clamped to ``kind`` (s8 u8 s16 u16), ``b`` lowest; ``c`` moves up to make room."""
    t = np.dtype(TYPES[kind])
    high, low = (clamp_integer(v, t).view(f"u{t.itemsize}").astype(U4) for v in (a, b))
    bits = np.uint32(8 * t.itemsize)
    out = high << bits | low
    return out if c is None else out | c << bits + bits


def emit_pair(g: Any, ins: Any) -> None:
    op, kind = ins.parts[0], ins.parts[-1]
    relu = "relu" in ins.parts
    if op not in ("add", "min", "max") or set(ins.parts[1:-1]) - {"relu"} or (relu and (op == "add" or kind[0] == "u")):
        raise Unsupported
    a, b = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"lanes_of({op!r}, {kind!r}, {relu}, {a}, {b})")


@emitter("vabsdiff4")
def _vabsdiff4(g: Any, ins: Any) -> None:
    kinds = ins.parts[1:4]
    if set(kinds) - {"u32", "s32"} or ins.parts[4:] not in ([], ["add"]):
        raise Unsupported
    a, b, c = (g.use(x, "u4") for x in ins.args[1:])
    signs = f"{kinds[1] == 's32'}, {kinds[2] == 's32'}"
    g.define(ins.args[0], "u4", f"byte_distances({a}, {b}, {c}, {signs}, {'add' in ins.parts})")


@emitter("szext")
def _szext(g: Any, ins: Any) -> None:
    t = TYPES[ins.parts[-1]]
    a, n = g.use(ins.args[1], t), g.use(ins.args[2], "u4")
    g.define(ins.args[0], t, f"extend({a}, {n}, {'wrap' in ins.parts})")


@emitter("bmsk")
def _bmsk(g: Any, ins: Any) -> None:
    position, n = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"bit_mask({position}, {n}, {'wrap' in ins.parts})")


def emit_pack(g: Any, ins: Any) -> None:
    """``cvt.pack.sat.s16.s32 d, a, b`` and ``cvt.pack.sat.s8.s32.b32 d, a, b, c``."""
    kind = ins.parts[3]
    forms = {"s16": ["s32"], "u16": ["s32"], "s8": ["s32", "b32"], "u8": ["s32", "b32"]}
    if ins.parts[2] != "sat" or ins.parts[4:] != forms.get(kind) or len(ins.args) != 2 + len(ins.parts[4:]):
        raise Unsupported
    values = [g.use(x, "i4") for x in ins.args[1:3]] + [g.use(x, "u4") for x in ins.args[3:]]
    g.define(ins.args[0], "u4", f"pack_saturated({kind!r}, {', '.join(values)})")
