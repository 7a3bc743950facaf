"""Run compiled blocks: all lanes of many thread blocks in lockstep, the group with the lowest program counter first.

A group is a block of code and the lanes that are about to run it (None: all). Where a branch parts a group, both
parts wait their turn; groups that reach the same place join again. With ``one_by_one`` the warps run one after another
up to each barrier instead, so that code which relies on a missing barrier goes wrong visibly.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from texlab.sim.arith import U4
from texlab.sim.batch import Batch

STEP_LIMIT = 4_000_000  # instructions a batch may issue before it is called endless
IN_VAIN = 1000  # waits for mbarriers, with nobody else to run, before they are called endless
PATIENCE = 512  # blocks of code that one group runs before others get a turn: it may be waiting for what they do


class OutOfTime(Exception):
    """The batch ran past its deadline."""


class Scheduler:
    """Runs one Batch to its end."""

    def __init__(self, batch: Batch, one_by_one: bool, deadline: float | None) -> None:
        self.s, self.one_by_one, self.deadline = batch, one_by_one and batch.block_warps > 1, deadline
        batch.scheduler = self
        self.groups: dict[int, Any] = {}  # key: warp (one by one; else 0) * number of blocks of code + block of code
        self.parked: dict[int, Any] = {}  # at a warp-wide instruction, missing lanes of their warp
        self.waiting: list[tuple[int, Any, Any, int, Any]] = []  # barrier instruction, id, count, next block, lanes
        self.sleeping: dict[int, Any] = {}  # waited for an mbarrier in vain, until a phase completes
        self.vain = 0  # times that all others had nothing to do either
        self.arrived: dict[int, np.ndarray] = {}
        self.at_barrier: Any = None
        self.size = len(batch.kernel.blocks)
        self.alive = np.ones(batch.n, bool)
        self.live = batch.n
        self.steps = self.visits = 0
        self._counted: tuple[Any, int] = (None, self._warps_in(None))
        self._full_warps = np.bincount(batch.arrays["place"] // 32, minlength=batch.warps)

    def _warps_in(self, L: Any) -> int:
        warp = self.s.lanes("place", L) // 32
        return 1 + int(np.count_nonzero(warp[1:] != warp[:-1]))

    def push(self, key: int, L: Any) -> None:
        """Let lanes wait for their turn, together with those already there."""
        if key in self.groups:
            there = np.zeros(self.s.n, bool)
            there[self.groups[key]] = True
            there[L] = True
            L = np.flatnonzero(there)
        self.groups[key] = None if L is not None and len(L) == self.s.n else L

    def run(self) -> None:
        if self.s.n == 0:
            return
        if self.one_by_one:
            self._start_warps(0, np.arange(self.s.n))
        else:
            self.groups[0] = None
        while self.groups or self.parked or self.waiting or self.sleeping:
            if not self.groups and self.sleeping and not self._open():
                self.vain += 1
                if self.vain > IN_VAIN:
                    self.s.mbarriers.never(self.s)
                if not self.parked or self.vain % 64:
                    self._wake()
            if not self.groups:
                if self.parked:
                    key = min(self.parked)
                    self.groups[key] = self.parked.pop(key)
                    self._run_group(forced=True)
                    continue
                self._release()
            self._run_group()

    def wake(self) -> None:
        """A phase of an mbarrier is complete: those who wait may try again."""
        self.vain = 0
        self._wake()

    def _wake(self) -> None:
        for key in list(self.sleeping):
            self.push(key, self.sleeping.pop(key))

    def _sleep(self, block: Any, key: int, L: Any, condition: Any) -> None:
        """Lanes whose wait failed sleep where they go next; the others of the group go on."""
        s, failed = self.s, self.s.stalled
        s.stalled = None
        lanes = np.arange(s.n) if L is None else L
        jump = np.zeros(len(lanes), bool)
        if block.kind == "bra":
            jump[:] = True if condition is None else condition
        for taken, to in ((True, key + block.target - block.index), (False, key + 1)):
            if len(some := lanes[(jump == taken) & failed]):
                self.sleeping[to] = np.union1d(self.sleeping[to], some) if to in self.sleeping else some
            if len(some := lanes[(jump == taken) & ~failed]):
                self.vain = 0
                self.push(to, some)

    def _start_warps(self, block: int, L: np.ndarray) -> None:
        warp = self.s.arrays["warp"][L]
        for w in np.unique(warp):
            self.push(int(w) * self.size + block, L[warp == w])

    def _run_group(self, forced: bool = False) -> None:
        """Take the group with the lowest key and run it until it ends, parts, waits or another one is lower."""
        s, groups, size = self.s, self.groups, self.size
        blocks, registers = s.kernel.blocks, s.registers
        key = min(groups)
        L = groups.pop(key)
        turns, undisturbed = 0, False
        while True:
            if (
                L is not None
                and not groups
                and not self.waiting
                and not (self.parked or self.sleeping)
                and not self.one_by_one
            ):
                self._pack(L)
                L = None
            pc = key % size
            block = blocks[pc]
            if block.collective and L is not None and not forced and not self.complete(L):
                self._park(key, L)
                return
            forced = False
            condition = block.run(s, registers, L)
            self._count(block.start, block.size, L)
            kind = block.kind
            if s.stalled is not None:
                if kind in ("bra", "fall"):
                    self._sleep(block, key, L, condition)
                    if not groups:
                        return
                    key = min(groups)
                    L = groups.pop(key)
                    continue
                s.stalled = None
            if kind == "fall":
                key += 1
            elif kind == "bar":
                if self._arrive(key + 1, L):
                    return
                key += 1
            elif condition is None:
                if kind == "exit":
                    self._exit(L)
                    return
                key += block.target - pc
            else:
                n = s.active(L)
                taken = int(np.count_nonzero(condition)) if condition.ndim else n * bool(condition)
                if taken == n:
                    if kind == "exit":
                        self._exit(L)
                        return
                    key += block.target - pc
                elif taken == 0:
                    key += 1
                else:
                    yes = np.flatnonzero(condition) if L is None else L[condition]
                    no = np.flatnonzero(~condition) if L is None else L[~condition]
                    if kind == "exit":
                        self._exit(yes)
                    else:
                        self.push(key + block.target - pc, yes)
                    self.push(key + 1, no)
                    key = min(groups)
                    L = groups.pop(key)
                    continue
            turns += 1
            if not groups:  # all are together: nobody waits for a turn
                turns, undisturbed = 0, False
                continue
            if turns > PATIENCE:
                turns, undisturbed = 0, not undisturbed
                other = min(groups)
                key, L, waits = other, groups.pop(other), (key, L)
                self.push(*waits)
            elif (not undisturbed and min(groups) <= key) or key in groups:
                self.push(key, L)
                key = min(groups)
                L = groups.pop(key)

    def _count(self, start: int, size: int, L: Any) -> None:
        self.steps += size
        self.visits += 1
        s = self.s
        if self._counted[0] is not L:
            self._counted = (L, self._warps_in(L))
        s.thread_instructions += size * s.active(L)
        s.warp_instructions += size * self._counted[1]
        if self.steps > STEP_LIMIT:
            s.fault(
                start,
                "endless",
                f"still running after {STEP_LIMIT} instructions of one warp, the simulator's step limit "
                "(texlab.sim.warps.STEP_LIMIT): an endless loop?",
            )
        if self.deadline is not None and self.visits % 64 == 0 and time.perf_counter() > self.deadline:
            raise OutOfTime

    def _pack(self, L: np.ndarray) -> None:
        self.s.pack(L)
        self.alive = self.alive[L]
        self._counted = (0, 0)

    def _exit(self, L: Any) -> None:
        self.live -= self.s.active(L)
        if L is not None:
            self.alive[L] = False
        else:
            self.alive[:] = False

    # warps ----------------------------------------------------------------------------------------------------------
    def _alive_in_warps(self) -> np.ndarray:
        return np.bincount(self.s.arrays["place"][self.alive] // 32, minlength=self.s.warps)

    def complete(self, L: Any) -> bool:
        """Whether all lanes that have not exited, of every warp of the group, are in it."""
        if L is None:
            return True
        here = np.bincount(self.s.lanes("place", L) // 32, minlength=self.s.warps)
        return bool((here[here > 0] == self._alive_in_warps()[here > 0]).all())

    def _park(self, key: int, L: np.ndarray) -> None:
        if key in self.parked:
            L = np.sort(np.concatenate([self.parked.pop(key), L]))
        if self.complete(L):
            self.groups[key] = L
        else:
            self.parked[key] = L

    def together(self, index: int, L: Any, mask: Any) -> None:
        """At a warp-wide instruction: the lanes that its mask names, unless exited, must all be here, and each lane
        must be named."""
        s = self.s
        if np.ndim(mask) or mask != 0xFFFFFFFF:
            lane = s.lanes("place", L) % 32
            left_out = (mask >> lane.astype(U4) & np.uint32(1)) == 0
            if left_out.any():
                at = int(np.argmax(left_out))
                named = int(np.broadcast_to(mask, left_out.shape)[at])
                text = f"warp-wide instruction whose mask {named:#010x} does not name the lane itself ({int(lane[at])})"
                s.fault(index, "warp-divergence", text, L, at)
        if self.complete(L):
            return
        table = np.zeros(s.warps * 32, bool)
        table[s.arrays["place"][self.alive]] = True
        table[s.lanes("place", L)] = False
        absent = np.packbits(table.reshape(-1, 32), axis=1, bitorder="little").view(U4).reshape(-1)
        missing = absent[s.lanes("place", L) // 32] & mask
        if missing.any():
            lane = int(np.argmax(missing != 0))
            named = int(np.broadcast_to(mask, missing.shape)[lane])
            text = f"warp-wide instruction whose mask {named:#010x} names lanes that are elsewhere"
            s.fault(index, "warp-divergence", f"{text} ({int(missing[lane]):#010x})", L, lane)

    # barriers -------------------------------------------------------------------------------------------------------
    def _arrive(self, key: int, L: Any) -> bool:
        """At a barrier: True if the lanes have to wait."""
        s, (index, arrive, number, count) = self.s, self.at_barrier
        s.barriers += 1
        if L is None and count is None and not arrive and self.live == s.n:
            self._note_absent(index, None)
            s.count_votes(None)
            s.shared.release(s, None)
            return False
        if np.ndim(number) or (count is not None and np.ndim(count)):
            s.fault(index, "barrier", "the barrier's number or count differs between threads")
        lanes = np.arange(s.n) if L is None else L
        if arrive:
            per_block = np.bincount(s.arrays["block"][lanes], minlength=len(s.block_ids))
            if s.shared.order:
                s.shared.order.arrive(s, int(number), lanes)
            self.arrived[int(number)] = self.arrived.get(int(number), 0) + per_block
            return False
        self.waiting.append((index, int(number), None if count is None else int(count), key % self.size, lanes))
        return True

    def _note_absent(self, index: int, lanes: Any) -> None:
        """Remember, for reports, a thread that exited before a barrier which others of its block reached."""
        s = self.s
        if s.left_early is None and (lanes is None or len(lanes)) and self.live < s.launch.threads * len(s.block_ids):
            block = s.arrays["block"] if lanes is None else s.arrays["block"][lanes]
            counts = np.bincount(block, minlength=len(s.block_ids))
            short = np.flatnonzero((counts > 0) & (counts < s.launch.threads))
            if len(short):
                here = s.arrays["thread"] if lanes is None else s.arrays["thread"][lanes]
                thread = int(np.setdiff1d(np.arange(s.launch.threads), here[block == short[0]])[0])
                s.left_early = (index, int(s.block_ids[short[0]]), thread)

    def _release(self) -> None:
        """Nobody can run: open barriers, or report that none can."""
        if not self._open():
            self._stuck()

    def _open(self) -> bool:
        """Open the barriers at which all of a block's live threads (or as many as named) wait; whether there are any."""
        s = self.s
        blocks = len(s.block_ids)
        merged: dict[tuple[int, int, Any, int], np.ndarray] = {}
        for index, number, count, target, lanes in self.waiting:
            key = (index, number, count, target)
            merged[key] = np.sort(np.concatenate([merged[key], lanes])) if key in merged else lanes
        alive = np.bincount(s.arrays["block"][self.alive], minlength=blocks)
        self.waiting, opened = [], []
        named: dict[int, Any] = {}  # lanes at each barrier that counts them, wherever in the code
        for (_, number, count, _), lanes in merged.items():
            if count is not None:
                here = np.bincount(s.arrays["block"][lanes], minlength=blocks)
                named[number] = named.get(number, self.arrived.get(number, np.zeros(blocks, int))) + here
        for (index, number, count, target), lanes in merged.items():
            block = s.arrays["block"][lanes]
            here = np.bincount(block, minlength=blocks)
            done = (here > 0) & (here == alive if count is None else named[number] >= count)
            free = lanes[done[block]]
            if len(free):
                opened.append((index, number, target, free))
            if len(free) < len(lanes):
                self.waiting.append((index, number, count, target, lanes[~done[block]]))
        for number in {n for _, n, _, _ in opened}:
            free = np.sort(np.concatenate([lanes for _, n, _, lanes in opened if n == number]))
            if number in self.arrived:
                self.arrived[number][np.unique(s.arrays["block"][free])] = 0
            self.vain = 0
            s.count_votes(free)
            s.shared.release(s, None if len(free) == s.n else free, number)
        for index, _, target, free in opened:
            self._note_absent(index, free)
            if self.one_by_one:
                self._start_warps(target, free)
            else:
                self.push(target, free)
        return bool(opened)

    def _stuck(self) -> None:
        s = self.s
        index, _, _, _, lanes = self.waiting[0]
        block = int(s.arrays["block"][lanes[0]])
        places = {}
        for i, _, _, _, w in self.waiting:
            n = int(np.count_nonzero(s.arrays["block"][w] == block))
            if n:
                line = s.kernel.lines[i][1]
                places[line] = places.get(line, 0) + n
        text = ", ".join(f"{n} threads wait in line {line}" for line, n in places.items())
        s.fault(
            index,
            "barrier",
            f"divergent barrier: not all threads of the block reach the same one: {text}",
            None,
            int(lanes[0]),
        )
