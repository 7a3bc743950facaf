"""mbarrier: barriers in shared memory that count arrivals and bytes, phase after phase.

A barrier's phase is complete when no arrivals are pending and all expected bytes have come; the next one begins at
once. Bulk copies count their bytes when they begin, as a copy may be that fast, but what they bring is there only for
those who wait for the phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from texlab.sim.arith import U8
from texlab.sim.memory import Access
from texlab.sim.ops import Unsupported

MOST = (1 << 20) - 1  # arrivals, and bytes


@dataclass(slots=True)
class Barrier:
    """``count`` arrivals make a phase, ``pending`` are still to come, ``tx`` bytes too; ``phase`` counts from 0.

    ``made``: warp and interval of the initialisation; ``left``, ``done``: what those who arrived in this phase, and in
    complete ones, have seen (``Order``); ``flights``: (phase, function that lets the data land)."""

    count: int
    pending: int
    made: tuple[int, int]
    left: np.ndarray
    done: np.ndarray
    tx: int = 0
    phase: int = 0
    flights: list[tuple[int, Any]] = field(default_factory=list)


class Barriers:
    """All mbarriers of a batch, by their place in its shared memory."""

    def __init__(self) -> None:
        self.all: dict[int, Barrier] = {}
        self.missed: tuple[int, int, int] = (0, 0, 0)  # instruction, lane, place of a wait in vain

    # operations -----------------------------------------------------------------------------------------------------
    def init(self, access: Access, s: Any, L: Any, p: Any, count: Any) -> None:
        for at, lanes in self._places(access, s, L, p):
            number = int(np.broadcast_to(count, s.active(L))[lanes[-1]])
            if not 1 <= number <= MOST:
                s.fault(access.index, "barrier", f"mbarrier for {number} arrivals: 1 to {MOST}", L, lanes[-1])
            code = int(s.lanes("code", L)[lanes[-1]])
            zero = np.zeros(s.shared.warps, np.int64)
            self.all[at] = Barrier(number, number, (code % 1024 // 32, code // 1024), zero, zero)

    def inval(self, access: Access, s: Any, L: Any, p: Any) -> None:
        for at, lanes in self._places(access, s, L, p):
            self._get(access, s, L, at, lanes)
            del self.all[at]

    def arrive(
        self, access: Access, s: Any, L: Any, p: Any, tx: Any, count: Any, drop: bool = False, ends: bool = True
    ) -> Any:
        """Arrivals of the lanes, of ``count`` each, after ``tx`` more bytes are expected. Gives each lane's state.
        ``drop``: later phases need as many fewer; not ``ends``: it must not complete the phase (``.noComplete``)."""
        n = s.active(L)
        tx, count = np.broadcast_to(tx, n), np.broadcast_to(count, n)
        state = np.zeros(n, U8)
        for at, lanes in self._places(access, s, L, p):
            b = self._get(access, s, L, at, lanes)
            mine = lanes if L is None else L[lanes]
            b.left = np.maximum(b.left, s.shared.order.leave(s, mine).max(axis=0))
            for lane in lanes:
                state[lane] = (b.phase << 32) | b.pending
                b.tx += int(tx[lane])
                number = int(count[lane])
                if number > b.pending or (not ends and number == b.pending and b.tx == 0):
                    text = f"{number} arrivals at an mbarrier whose phase has {b.pending} pending"
                    s.fault(access.index, "barrier", text + ": one too many", L, lane)
                b.pending -= number
                if drop:
                    b.count -= number
                self.settle(s, b)
        return state

    def expect(self, access: Access, s: Any, L: Any, p: Any, tx: Any) -> None:
        """``expect_tx`` (with a negative number ``complete_tx``)."""
        tx = np.broadcast_to(tx, s.active(L)).astype(np.int64)
        for at, lanes in self._places(access, s, L, p):
            b = self._get(access, s, L, at, lanes)
            b.tx += int(tx[lanes].sum())
            self.settle(s, b)

    def wait(self, access: Access, s: Any, L: Any, p: Any, phase: Any, parity: bool) -> Any:
        """Whether the phase of a state (or of that parity) is complete; where it is, its data land."""
        n = s.active(L)
        phase = np.broadcast_to(phase, n)
        done = np.zeros(n, bool)
        for at, lanes in self._places(access, s, L, p):
            b = self._get(access, s, L, at, lanes)
            if parity:
                done[lanes] = (phase[lanes] & 1) != (b.phase & 1)
            else:
                done[lanes] = phase[lanes] >> np.uint64(32) != np.uint64(b.phase)
            through = lanes[done[lanes]]
            if len(through):
                s.shared.order.take(s, through if L is None else L[through], b.done)
                for number, land in b.flights:
                    if number < b.phase:
                        land()
                b.flights = [f for f in b.flights if f[0] >= b.phase]
            if len(through) < len(lanes):
                lane = int(lanes[~done[lanes]][0])
                self.missed = (access.index, lane if L is None else int(L[lane]), at)
        if not done.all():
            s.stalled = ~done if s.stalled is None else s.stalled | ~done
        return done

    # bulk copies ----------------------------------------------------------------------------------------------------
    def begin(self, access: Access, s: Any, one: np.ndarray, at: int, size: int, land: Any) -> None:
        """A copy of ``size`` bytes, begun by the lane ``one``, reports to the barrier at ``at``."""
        b = self._get(access, s, one, at, np.zeros(1, np.int64))
        b.left = np.maximum(b.left, s.shared.order.leave(s, one).max(axis=0))
        b.flights.append((b.phase, land))
        b.tx -= size
        self.settle(s, b)

    def settle(self, s: Any, b: Barrier) -> None:
        """Begin the next phase if this one is complete."""
        if b.pending == 0 and b.tx == 0:
            b.phase, b.pending = b.phase + 1, b.count
            b.done = np.maximum(b.done, b.left)
            s.scheduler.wake()

    # places ---------------------------------------------------------------------------------------------------------
    def place(self, access: Access, s: Any, L: Any, p: Any) -> np.ndarray:
        """Where each lane's barrier is in the batch's shared memory."""
        if p.parts is not None or p.space != "shared":
            s.fault(access.index, "out-of-bounds", "an mbarrier must be in the block's shared memory", L, 0)
        if p.lo + access.plus < 0 or p.hi + access.plus + 8 > s.limit(p) or (p.bits | access.plus) & 7:
            s.check(access, L, p, 8)
        return np.broadcast_to(np.asarray(p.at) + access.plus, (s.active(L),))

    def _places(self, access: Access, s: Any, L: Any, p: Any) -> Iterator[tuple[int, np.ndarray]]:
        places = self.place(access, s, L, p)
        for at in np.unique(places):
            yield int(at), np.flatnonzero(places == at)

    def _get(self, access: Access, s: Any, L: Any, at: int, lanes: np.ndarray) -> Barrier:
        b = self.all.get(at)
        offset = at % s.shared.pitch
        if b is None:
            text = f"no mbarrier at byte offset {offset} of shared memory: mbarrier.init is missing, or ran later"
            s.fault(access.index, "barrier", text, L, int(lanes[0]), offset)
        warp, interval = b.made
        block, warps = s.lanes("block", L)[lanes], s.lanes("warp", L)[lanes]
        early = (warps != warp) & (s.shared.order.seen[block, warps, warp] < interval)
        if early.any():
            text = f"race: mbarrier at byte offset {offset} of shared memory, which warp {warp} initialised"
            text += "; a __syncthreads is missing between the two"
            s.fault(access.index, "race", text, L, int(lanes[np.argmax(early)]), offset)
        return b

    def never(self, s: Any) -> None:
        """Everybody waits, and nobody is left to arrive."""
        index, lane, at = self.missed
        b = self.all[at]
        lacks = f"{b.pending} of {b.count} arrivals" + (f" and {b.tx} bytes" if b.tx else "")
        text = (
            f"waits for an mbarrier (byte offset {at % s.shared.pitch} of shared memory) whose phase never completes: "
        )
        text += f"phase {b.phase}, which it is in, still lacks {lacks}"
        s.fault(index, "barrier", text + ", and nobody is left to bring them", None, lane, at % s.shared.pitch)


# emitters -----------------------------------------------------------------------------------------------------------
def space(ins: Any) -> str:
    return "shared" if any(p.startswith("shared") for p in ins.parts) else "generic"


def _mbarrier(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    op, args = ins.parts[1], list(ins.args)
    if op == "pending_count":
        return g.define(args[0], "u4", f"{g.use(args[1], 'u8')}.astype(u4)")
    target = args.pop(0) if args[0][0] != "[" else "_"
    base, plus = g.address(args.pop(0))
    access = Access(i, "atomic", U8, 1, plus, "shared")
    pointer = g.pointer(base, space(ins))
    g.namespace[f"m{i}"] = access
    call = lambda method, *values: f"S.mbarriers.{method}({', '.join([f'm{i}', 'S', 'L', pointer, *values])})"  # noqa: E731
    if op in ("init", "inval", "expect_tx", "complete_tx"):
        values = [f"{'-' if op == 'complete_tx' else ''}{g.use(args[0], 'i4')}"] if args else []
        return g.emit(call("expect" if op.endswith("_tx") else op, *values))
    if op in ("arrive", "arrive_drop"):
        tx = g.use(args[0], "i4") if "expect_tx" in ins.parts else "0"
        count = g.use(args[0], "i4") if args and "expect_tx" not in ins.parts else "1"
        done = call("arrive", tx, count, str(op == "arrive_drop"), str("noComplete" not in ins.parts))
        return g.emit(done) if target == "_" else g.define(target, "u8", done)
    if op in ("test_wait", "try_wait"):
        parity = "parity" in ins.parts
        return g.define(target, "?", call("wait", g.use(args[0], "u4" if parity else "u8"), str(parity)))
    raise Unsupported


EMITTERS = {"mbarrier": _mbarrier}
