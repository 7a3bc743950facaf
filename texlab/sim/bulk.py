"""cp.async.bulk: copies of whole ranges of memory, which land when they are waited for.

To shared memory: when somebody waits for the mbarrier's phase. To global memory: when the thread that began the copy
waits for its bulk group, or the kernel ends; until a wait, the shared memory it comes from must not change.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from texlab.sim.arith import U1, U4, U8
from texlab.sim.mbarrier import space
from texlab.sim.memory import CARRIER, Access
from texlab.sim.ops import Unsupported
from texlab.sim.ptx import TYPES


@dataclass(slots=True)
class _Store:
    """A copy from shared to global memory under way: begun by a lane (by its first number), in a group."""

    slot: int
    group: int
    source: Any
    data: np.ndarray
    land: Any
    read: bool = False
    over: bool = False


class Stores:
    """All copies to global memory of a batch. A lane's group number grows with every ``commit_group`` it executes.
    ``reader``: what a report calls them."""

    def __init__(self, lanes: int, reader: str = "a bulk copy (cp.async.bulk)") -> None:
        self.reader = reader
        self.group = np.zeros(lanes, np.int64)
        self.flights: list[_Store] = []

    def commit(self, s: Any, L: Any) -> None:
        self.group[s.lanes("slot", L)] += 1

    def wait(self, index: int, pending: int, only_read: bool, s: Any, L: Any) -> None:
        slots = set(s.lanes("slot", L).tolist())
        for f in self.flights:
            if f.slot in slots and f.group < self.group[f.slot] - pending:
                self._check(index, s, f)
                f.read = True
                f.over = not only_read
                if f.over and f.land:
                    f.land(s)
        self.flights = [f for f in self.flights if not f.over]

    def finish(self, s: Any) -> None:
        """At the kernel's end everything lands."""
        for f in self.flights:
            f.land(s)

    def _check(self, index: int, s: Any, f: _Store) -> None:
        now = s.shared.data[f.source]
        if not f.read and not np.array_equal(now, f.data):
            at = int(f.source.reshape(-1)[np.argmax((now != f.data).reshape(-1))]) % s.shared.pitch
            text = f"race (write after read): shared memory at byte offset {at} changed while {self.reader}"
            s.fault(index, "race", text + " still read it: wait for it first", None, None, at)


@contextmanager
def unrecorded(s: Any) -> Any:
    """Copies in bulk are no accesses of lanes: traces do not hold them."""
    kept, s.record = s.record, None
    try:
        yield
    finally:
        s.record = kept


def lane(L: Any, k: int, times: int = 1) -> np.ndarray:
    """The ``k``-th active lane, as often as a copy has pieces."""
    return np.full(times, k if L is None else L[k], np.int64)


def fill(target: Any, s: Any, one: np.ndarray, offset: np.ndarray, data: np.ndarray) -> Any:
    """Begin to write 16-byte pieces (n, 16) to shared memory at ``offset``; gives the function that lets them land."""
    many = np.repeat(one, len(offset))
    p = s.shared_pointer(many, offset.astype(np.uint32))
    if p.lo < 0 or p.hi + 16 > s.limit(p) or p.bits & 15:
        s.check(target, many, p, 16)
    index = np.broadcast_to(np.asarray(p.index(0, 4)), len(offset))
    s.shared.fill_begins(s, target, many, p, index)
    words, code = np.ascontiguousarray(data).view(CARRIER[16])[:, 0], s.lanes("code", many).copy()

    def land() -> None:
        s.shared.view(CARRIER[16])[index] = words
        s.shared.fill_ends(target.granules, index, code)

    return land


def read(access: Any, s: Any, many: np.ndarray, p: Any) -> np.ndarray:
    """What an access reads, as bytes (n, width)."""
    got = access.load(s, many, p)
    got = got if isinstance(got, tuple) else (got,)
    words = np.stack([np.broadcast_to(v, len(many)) for v in got], axis=1)
    return np.ascontiguousarray(words).view(U1).reshape(len(many), -1)


def _pieces(index: int, s: Any, L: Any, k: int, size: Any) -> np.ndarray:
    size = int(np.broadcast_to(size, s.active(L))[k])
    if size % 16 or size < 0:
        s.fault(index, "misaligned", f"bulk copy of {size} bytes: must be a multiple of 16", L, k)
    return np.arange(0, size, 16)


def load(source: Any, target: Any, bar: Any, s: Any, L: Any, to: Any, address: Any, size: Any, barrier: Any) -> None:
    """Global to shared memory; ``barrier`` (a Pointer) hears of it."""
    n = s.active(L)
    places = s.mbarriers.place(bar, s, L, barrier)
    to, address = np.broadcast_to(to, n), np.broadcast_to(address, n)
    with unrecorded(s):
        for k in range(n):
            piece = _pieces(source.index, s, L, k, size)
            one, many = lane(L, k), lane(L, k, len(piece))
            data = read(source, s, many, s.global_pointer(many, address[k] + piece.astype(np.uint64)))
            land = fill(target, s, one, int(to[k]) + piece, data)
            s.mbarriers.begin(bar, s, one, int(places[k]), len(piece) * 16, land)


def store(source: Any, target: Any, op: str, s: Any, L: Any, address: Any, start: Any, size: Any) -> None:
    """Shared to global memory, replacing what is there or combining with it."""
    n = s.active(L)
    start, address = np.broadcast_to(start, n), np.broadcast_to(address, n)
    for k in range(n):
        piece = _pieces(source.index, s, L, k, size)
        many = lane(L, k, len(piece))
        with unrecorded(s):
            data = read(source, s, many, s.shared_pointer(many, (int(start[k]) + piece).astype(np.uint32)))
        each = np.ascontiguousarray(data).reshape(-1).view(target.t)
        step = target.t.itemsize if op else 16
        addresses = address[k] + np.arange(0, len(piece) * 16, step).astype(np.uint64)
        slot = int(s.lanes("slot", many)[0])
        put(s, L, k, int(start[k]) + piece, data, partial(land_in_global, target, op, slot, addresses, each))


def put(s: Any, L: Any, k: int, offset: np.ndarray, data: np.ndarray, land: Any) -> None:
    """Note a copy to global memory that the ``k``-th active lane began from the pieces at ``offset``."""
    base = s.lanes("shared", lane(L, k))
    source = (int(np.ravel(base)[0]) + offset)[:, None] + np.arange(16)
    note(s.stores, s, lane(L, k), source, data, land)


def note(stores: Stores, s: Any, one: np.ndarray, source: np.ndarray, data: np.ndarray, land: Any) -> None:
    """The lane ``one`` has something read ``source`` (bytes of the batch's shared memory), which holds ``data``."""
    slot = int(s.lanes("slot", one)[0])
    stores.flights.append(_Store(slot, int(stores.group[slot]), source, data, land))


def land_in_global(target: Any, op: str, slot: int, address: np.ndarray, values: np.ndarray, s: Any) -> None:
    many = np.full(len(address), max(0, np.searchsorted(s.arrays["slot"], slot, "right") - 1))  # or the lane before it
    with unrecorded(s):
        p = s.global_pointer(many, address)
        if op:
            target.atomic(s, many, p, op, values)
        else:
            target.store(s, many, p, *np.ascontiguousarray(values.reshape(-1, target.count).T))


# emitters -----------------------------------------------------------------------------------------------------------
REDUCTIONS = frozenset("add min max inc dec and or xor".split())


def emit(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    """``cp.async.bulk`` and ``cp.reduce.async.bulk``, without tensors."""
    parts = ins.parts
    args = ins.args[:-1] if "L2::cache_hint" in parts else ins.args
    if "commit_group" in parts:
        return g.emit("S.stores.commit(S, L)")
    if "wait_group" in parts:
        g.namespace[f"m{i}"] = partial(_wait, i, int(args[0], 0), "read" in parts)
        return g.emit(f"m{i}(S, L)")
    if "prefetch" in parts:
        return None  # nothing to compute
    to_shared = parts[parts.index("bulk") + 1].startswith("shared")
    if to_shared and ("mbarrier::complete_tx::bytes" not in parts or parts[1] == "reduce"):
        raise Unsupported
    if to_shared:
        if len(args) != 4:
            raise Unsupported  # to several blocks of a cluster
        base, plus = g.address(args[3])
        source, target = (
            Access(i, "load", U4, 4, 0, "global"),
            Access(i, "store", U4, 4, 0, "shared", hazard, 16 // grain),
        )
        bar = Access(i, "atomic", U8, 1, plus, "shared")
        g.namespace[f"m{i}"] = partial(load, source, target, bar)
        operands = f"{address_of(g, args[0], 'u4')}, {address_of(g, args[1], 'u8')}, {g.use(args[2], 'u4')}"
        return g.emit(f"m{i}(S, L, {operands}, {g.pointer(base, space(ins))})")
    op = next((p for p in parts if p in REDUCTIONS), "")
    if (parts[1] == "reduce") != bool(op) or "bulk_group" not in parts:
        raise Unsupported
    source = Access(i, "load", U4, 4, 0, "shared", hazard, 16 // grain)
    if op:
        if parts[-1] not in TYPES or parts[-1] == "bf16":
            raise Unsupported
        target = Access(i, "atomic", np.dtype(TYPES[parts[-1]]), 1, 0, "global")
    else:
        target = Access(i, "store", U4, 4, 0, "global")
    g.namespace[f"m{i}"] = partial(store, source, target, op)
    g.emit(f"m{i}(S, L, {address_of(g, args[0], 'u8')}, {address_of(g, args[1], 'u4')}, {g.use(args[2], 'u4')})")


def _wait(index: int, pending: int, only_read: bool, s: Any, L: Any) -> None:
    s.stores.wait(index, pending, only_read, s, L)


def address_of(g: Any, operand: str, t: str) -> str:
    base, plus = g.address(operand)
    return g.use(base, t) + (f" + {g.const(plus, t)}" if plus else "")
