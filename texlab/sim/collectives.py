"""Instructions that a warp executes as a whole: shuffles, votes, barriers' reductions, matrix loads."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.sim.arith import U4
from texlab.sim.ops import Unsupported
from texlab.sim.ptx import TYPES


def spread(s: Any, L: Any, value: Any, fill: Any = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A value per lane as a table (warps, 32), which lanes are active, and each active lane's place in it (flat)."""
    place = s.lanes("place", L)
    table = np.full(s.warps * 32, fill, np.asarray(value).dtype)
    table[place] = value
    active = np.zeros(s.warps * 32, bool)
    active[place] = True
    return table.reshape(-1, 32), active.reshape(-1, 32), place


def shuffle(s: Any, L: Any, index: int, mode: str, value: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """``shfl.sync``: (value read, whether the source lane was in range). The source must take part."""
    table, active, place = spread(s, L, value)
    lane = (place % 32).astype(np.int64)
    c = np.asarray(c).astype(np.int64)
    b = np.asarray(b).astype(np.int64) & 31
    segment, clamp = c >> 8 & 31, c & 31
    low = lane & segment
    high = low | (clamp & ~segment)
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": low | (b & ~segment)}[mode]
    valid = source >= high if mode == "up" else source <= high
    source = place - lane + np.where(valid, source, lane)
    there = active.reshape(-1)[source]
    if not there.all():
        at = int(np.argmin(there))
        text = f"shuffle from lane {int(source[at]) % 32}, which does not take part: the value is undefined"
        s.fault(index, "warp-divergence", text, L, at)
    return table.reshape(-1)[source], valid


def ballot(s: Any, L: Any, p: Any, mask: Any) -> Any:
    """One bit per active lane of the warp whose predicate holds."""
    table, _, place = spread(s, L, np.broadcast_to(p, (s.active(L),)))
    bits = np.packbits(table, axis=1, bitorder="little").view(U4).reshape(-1)
    return bits[place // 32] & mask


def members(s: Any, L: Any) -> Any:
    """``activemask``."""
    return ballot(s, L, np.ones(s.active(L), bool), np.uint32(0xFFFFFFFF))


def match_any(s: Any, L: Any, value: Any, mask: Any) -> Any:
    """``match.any.sync``: the lanes that hold the same value."""
    table, active, place = spread(s, L, np.broadcast_to(value, (s.active(L),)))
    same = (table[:, :, None] == table[:, None, :]) & active[:, None, :]
    bits = np.packbits(same, axis=2, bitorder="little").view(U4).reshape(-1)
    return bits[place] & mask


def match_all(s: Any, L: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    """``match.all.sync``: (the mask if all lanes hold the same value, else 0; whether they do)."""
    table, active, place = spread(s, L, np.broadcast_to(value, (s.active(L),)))
    first = np.take_along_axis(table, active.argmax(axis=1)[:, None], axis=1)
    same = ((table == first) | ~active).all(axis=1)[place // 32]
    return np.where(same, mask, np.uint32(0)), same


def elect(s: Any, L: Any, mask: Any) -> tuple[Any, Any]:
    """``elect.sync``: (the lowest lane of the mask, whether this lane is it)."""
    mask = np.broadcast_to(mask, (s.active(L),))
    lowest = np.bitwise_count((mask & (~mask + np.uint32(1))) - np.uint32(1)).astype(U4)
    return lowest, lowest == s.lanes("place", L) % 32


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(s: Any, L: Any, op: str, value: Any) -> Any:
    """``redux.sync`` over the active lanes of each warp."""
    value = np.broadcast_to(value, (s.active(L),))
    info = np.iinfo(value.dtype)
    neutral = {"min": info.max, "max": info.min, "and": -1 if info.min else info.max}.get(op, 0)
    table, _, place = spread(s, L, value, neutral)
    return _REDUCE[op].reduce(table, axis=1)[place // 32].astype(value.dtype)


# emitters -----------------------------------------------------------------------------------------------------------
def _call(g: Any, i: int, function: Any) -> str:
    g.namespace[f"c{i}"] = function
    return f"c{i}"


def _together(g, i, mask):
    """Check that the lanes named by the instruction's mask are here; the mask as an expression."""
    value = g.use(mask, "u4")
    g.emit(f"S.together({i}, L, {value})")
    return value


def _shfl(g, i, ins):
    if ins.parts[1] != "sync":
        raise Unsupported
    _together(g, i, ins.args[4])
    value, b, c = (g.use(x, "u4") for x in ins.args[1:4])
    _two(g, ins, f"{_call(g, i, shuffle)}(S, L, {i}, {ins.parts[2]!r}, {value}, {b}, {c})")


def _vote(g, i, ins):
    if ins.parts[1] != "sync":
        raise Unsupported
    negated = ins.args[1][0] == "!"
    p = ("~" if negated else "") + g.use(ins.args[1].lstrip("!"), "?")
    mask = _together(g, i, ins.args[2])
    ballot_of = f"{_call(g, i, ballot)}(S, L, {{}}, {mask})"
    mode = ins.parts[2]
    if mode == "ballot":
        return g.define(ins.args[0], "u4", ballot_of.format(p))
    if mode == "any":
        return g.define(ins.args[0], "?", ballot_of.format(p) + " != 0")
    none = ballot_of.format(f"~({p})") + " == 0"
    if mode == "all":
        return g.define(ins.args[0], "?", none)
    g.define(ins.args[0], "?", f"({none}) | ({ballot_of.format(p)} == 0)")  # uni


def _activemask(g, i, ins):
    g.define(ins.args[0], "u4", f"{_call(g, i, members)}(S, L)")


def _match(g, i, ins):
    mask = _together(g, i, ins.args[2])
    value = g.use(ins.args[1], TYPES[ins.parts[-1]])
    if "any" in ins.parts:
        return g.define(ins.args[0], "u4", f"{_call(g, i, match_any)}(S, L, {value}, {mask})")
    _two(g, ins, f"{_call(g, i, match_all)}(S, L, {value}, {mask})")


def _elect(g, i, ins):
    _two(g, ins, f"{_call(g, i, elect)}(S, L, {_together(g, i, ins.args[1])})")


def _two(g, ins, call):
    """A 32-bit result and, behind a bar, a predicate."""
    target, _, flag = ins.args[0].partition("|")
    g.emit(f"t0, t1 = {call}")
    g.define(target, "u4", "t0")
    if flag:
        g.define(flag, "?", "t1")


def _trap(g, i, ins):
    g.emit(f"S.trap({i}, L)")


def _redux(g, i, ins):
    t = {"u32": "u4", "s32": "i4", "b32": "u4"}.get(ins.parts[-1])
    if t is None or ins.parts[2] not in _REDUCE:
        raise Unsupported
    _together(g, i, ins.args[2])
    g.define(ins.args[0], t, f"{_call(g, i, reduce)}(S, L, {ins.parts[2]!r}, {g.use(ins.args[1], t)})")


def _bar(g, i, ins):
    """Barriers end a block: the scheduler holds the lanes. What is left to compute is which barrier, and a vote."""
    if ins.parts[1] == "warp":
        _together(g, i, ins.args[0])
        g.emit("S.shared.warp_met(S, L)")
        return
    args = list(ins.args)
    parts = [p for p in ins.parts if p not in ("cta", "aligned")]
    if parts[1] == "red":  # the vote is cast here; the block behind the barrier begins by reading its result
        args.pop(0)
        p = args.pop()
        vote = f"~{g.use(p[1:], '?')}" if p[0] == "!" else g.use(p, "?")
        g.emit(f"S.cast_vote(L, {vote})")
    ids = [g.use(a, "u4") for a in args] or [g.const(0, "u4")]
    g.emit(f"S.barrier({i}, {parts[1] == 'arrive'}, {', '.join(ids)})")


def _voted(g, i, ins):
    """What a ``bar.red`` gives, read behind the barrier."""
    if ins.parts[-1] == "u32":
        g.define(ins.args[0], "u4", f"S.voted(L, {ins.parts[1]!r})")
    else:
        g.define(ins.args[0], "?", f"S.voted(L, {ins.parts[1]!r})")


EMITTERS = {
    **{"voted": _voted, "elect": _elect, "trap": _trap},
    **{"shfl": _shfl, "vote": _vote, "activemask": _activemask, "match": _match, "redux": _redux},
    **{"bar": _bar, "barrier": _bar},
}
