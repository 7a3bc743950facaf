"""cp.async: copies from global to shared memory that land only when the thread waits for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from texlab.sim import bulk, tma
from texlab.sim.arith import U1
from texlab.sim.mbarrier import space
from texlab.sim.memory import CARRIER, Access
from texlab.sim.ops import Unsupported


@dataclass(slots=True)
class _Flight:
    """Copies under way: which lanes (by their first number) began them, in which group, and what goes where."""

    slot: np.ndarray
    group: np.ndarray
    index: np.ndarray
    data: np.ndarray
    granules: int


class Copies:
    """All copies of a batch. A lane's group number grows with every ``commit_group`` it executes."""

    def __init__(self, lanes: int) -> None:
        self.group = np.zeros(lanes, np.int64)
        self.flights: list[_Flight] = []

    def commit(self, s: Any, L: Any) -> None:
        self.group[s.lanes("slot", L)] += 1

    def wait(self, s: Any, L: Any, pending: int) -> None:
        """``wait_group``: all but the ``pending`` youngest committed groups of these lanes land."""
        slot = s.lanes("slot", L)
        below = np.full(len(self.group), -1, np.int64)
        below[slot] = self.group[slot] - pending
        code = np.zeros(len(self.group), np.uint32)
        code[slot] = s.lanes("code", L)
        left = []
        for f in self.flights:
            lands = f.group < below[f.slot]
            if lands.any():
                s.shared.view(f.data.dtype)[f.index[lands]] = f.data[lands]
                s.shared.fill_ends(f.granules, f.index[lands], code[f.slot[lands]])
            if not lands.all():
                stays = ~lands
                left.append(_Flight(f.slot[stays], f.group[stays], f.index[stays], f.data[stays], f.granules))
        self.flights = left

    def wait_all(self, s: Any, L: Any) -> None:
        self.commit(s, L)
        self.wait(s, L, 0)


def start(source: Access, target: Access, s: Any, L: Any, to: Any, address: Any, size: Any = None) -> None:
    """Begin a copy of ``target.width`` bytes: ``size`` of them are read from ``address``, the rest are zeros."""
    n, width = s.active(L), target.width
    if to.lo + target.plus < 0 or to.hi + target.plus + width > s.limit(to) or (to.bits | target.plus) & (width - 1):
        s.check(target, L, to, width)
    data = np.zeros((n, width), U1)
    address = np.broadcast_to(address, (n,))
    sizes = np.full(n, width) if size is None else np.minimum(np.broadcast_to(size, (n,)).astype(np.int64), width)
    for bytes_read in np.unique(sizes):
        if bytes_read:
            where = np.flatnonzero(sizes == bytes_read)
            lanes = s.subset(L, where)
            pointer = s.global_pointer(lanes, address[where])
            if bytes_read == width:
                got = source.load(s, lanes, pointer)
                got = got if isinstance(got, tuple) else (got,)
                words = np.stack([np.broadcast_to(v, where.shape) for v in got], axis=1)
                data[where] = np.ascontiguousarray(words).view(U1).reshape(len(where), width)
                continue
            for k in range(int(bytes_read)):
                data[where, k] = replace(source, t=U1, count=1, plus=k).load(s, lanes, pointer)
    if s.record is not None:
        s.record(target, L, to)
    index = np.broadcast_to(np.asarray(to.index(target.plus, width.bit_length() - 1)), (n,))
    s.shared.fill_begins(s, target, L, to, index)
    slot = s.lanes("slot", L).copy()
    s.copies.flights.append(
        _Flight(slot, s.copies.group[slot], index, data.view(CARRIER[width])[:, 0], target.granules)
    )


def arrive(access: Access, counted: bool, s: Any, L: Any, p: Any) -> None:
    """``cp.async.mbarrier.arrive``: the lanes arrive when their copies have landed. With ``counted`` (``.noinc``) the
    barrier's count includes these arrivals."""
    s.copies.wait_all(s, L)
    if counted:
        s.mbarriers.arrive(access, s, L, p, 0, 1)


def _cp(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    parts = ins.parts
    if "bulk" in parts:
        return (tma if "tensor" in parts else bulk).emit(g, i, ins, hazard, grain)
    if parts[1:4] == ["async", "mbarrier", "arrive"]:
        base, plus = g.address(ins.args[0])
        access = Access(i, "atomic", np.dtype("u8"), 1, plus, "shared")
        g.namespace[f"m{i}"] = partial(arrive, access, "noinc" in parts)
        return g.emit(f"m{i}(S, L, {g.pointer(base, space(ins))})")
    if parts[1:2] != ["async"] or {"mbarrier", "reduce"} & set(parts):
        raise Unsupported
    if parts[2] == "commit_group":
        return g.emit("S.copies.commit(S, L)")
    if parts[2] == "wait_all":
        return g.emit("S.copies.wait_all(S, L)")
    if parts[2] == "wait_group":
        return g.emit(f"S.copies.wait(S, L, {int(ins.args[0], 0)})")
    args = ins.args[:-1] if "L2::cache_hint" in parts else ins.args
    width = int(args[2], 0)
    if len(args) > 4 or (len(args) == 4 and g.registers.get(args[3]) == "?"):
        raise Unsupported
    word = np.dtype("u4")
    base, plus = g.address(args[0])
    target = Access(i, "store", word, width // 4, plus, "shared", hazard, width // grain)
    source = Access(i, "load", word, width // 4, 0, "global")
    g.namespace[f"m{i}"] = partial(start, source, target)
    src, offset = g.address(args[1])
    address = g.use(src, "u8") + (f" + {g.const(offset, 'u8')}" if offset else "")
    size = f", {g.use(args[3], 'u4')}" if len(args) == 4 else ""
    g.emit(f"m{i}(S, L, {g.pointer(base, 'shared')}, {address}{size})")


EMITTERS = {"cp": _cp}
