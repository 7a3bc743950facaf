"""Shared memory, with who touched what: reads of words nobody wrote, and accesses that no barrier keeps apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.sim.arith import U1, U4, U8
from texlab.sim.order import Order

_THREADS = 1024  # a code is barrier interval * 1024 + thread
LONG_AGO = np.uint32(2)  # before every interval: code of what is read and not used
NEVER, IN_FLIGHT = 0, 1  # codes of what nobody wrote, and of what a cp.async is about to write; intervals begin at 1


class SharedState:
    """The shared memory of a batch of blocks.

    ``codes`` holds one number per granule (the kernel's smallest access, at most 4 bytes): who wrote it last, and
    between which barriers. ``marks[granule, warp]`` says that a warp has read the granule in this interval. Both are
    looked at only for accesses that can meet another one without a barrier between (``Access.hazard``).

    Within a warp order comes from __syncwarp: ``times`` says when a granule was written, ``Batch.arrays["synced"]``
    when a lane last met its warp, both by ``clock``.
    """

    def __init__(self, nbytes: int, blocks: int, warps: int, grain: int, kernel: Any) -> None:
        self.pitch = -(-max(nbytes, 1) // 128) * 128
        self.nbytes, self.blocks, self.warps, self.grain = nbytes, blocks, warps, grain
        self.data = np.full(self.pitch * blocks, 255, U1)
        self.codes = np.zeros(self.pitch * blocks // grain, U4)
        self.races, self.marks_reads = kernel.races, kernel.races and kernel.marks_reads
        self.order = Order(blocks, warps) if kernel.ordered else None
        self.marks = np.zeros((len(self.codes), warps), U4 if self.order else U1) if self.marks_reads else None
        self.times = np.zeros(len(self.codes), U4) if self.marks_reads else None
        self.interval = self.clock = 1
        self.views: dict[Any, np.ndarray] = {}

    def view(self, dtype: Any) -> np.ndarray:
        if dtype not in self.views:
            self.views[dtype] = self.data.view(dtype)
        return self.views[dtype]

    def _codes_at(self, idx: Any, granules: int) -> np.ndarray:
        """Codes of the granules of each access, flat: lane by lane (of one lane, if all access the same place)."""
        idx = np.atleast_1d(idx)
        if granules == 1:
            return self.codes.take(idx, mode="wrap")
        if granules == 2:
            return self.codes.view(U8).take(idx, mode="wrap").view(U4)
        if granules == 4:
            return self.codes.view("c16").take(idx, mode="wrap").view(U4)
        return self.codes.reshape(-1, granules).take(idx, axis=0).reshape(-1)

    def _difference(self, s: Any, L: Any, codes: np.ndarray, g: int) -> np.ndarray:
        """Codes against each lane's own, flat: 0 the same thread, below 32 its warp, below 1024 its block, in this
        interval; anything else is from before."""
        if self.order:
            return self.order.difference(s, L, codes, g)
        mine = s.lanes("code", L)
        return ((codes if g == 1 else codes.reshape(-1, g)) ^ (mine if g == 1 else mine[:, None])).reshape(-1)

    # accesses -------------------------------------------------------------------------------------------------------
    def reading(self, s: Any, access: Any, L: Any, p: Any, idx: Any) -> None:
        """Before a load: every granule must have been written, before the last barrier or by this very thread."""
        g = access.granules
        codes = self._codes_at(idx, g)
        if access.wanted is not None:
            codes = np.where(access.wanted, codes.reshape(-1, g), LONG_AGO).reshape(-1)
        if codes.min() < 2:
            self._not_there(s, access, L, p, codes, g)
        if not (self.races and access.hazard[0]):
            return
        x = self._difference(s, L, codes, g)
        if (x - np.uint32(1)).min() < _THREADS - 1:
            other = (x >= 32) & (x < _THREADS)
            if other.any():
                self._race(s, access, L, p, other, codes, g, "read", "written")
            self._check_order_in_warp(s, access, L, p, idx, codes, x, g)
        warp = s.lanes("warp", L)
        when = s.lanes("code", L) // np.uint32(_THREADS) if self.order else 1
        for j in range(g):
            self.marks.reshape(-1)[(idx * g + j) * self.warps + warp] = when

    def _check_order_in_warp(
        self, s: Any, access: Any, L: Any, p: Any, idx: Any, codes: np.ndarray, x: np.ndarray, g: int
    ) -> None:
        """What another lane of the warp wrote may be read only after a __syncwarp (or barrier)."""
        times = self.times.reshape(-1, g).take(np.atleast_1d(idx), axis=0)
        late = (times >= s.lanes("synced", L)[:, None]).reshape(-1) & (x > 0) & (x < 32)
        if late.any():
            lane, granule, at = self._place(s, access, p, late, g)
            thread = int(codes[(lane * g + granule) % len(codes)]) % _THREADS
            text = (
                f"race (read after write within a warp): read of shared memory at byte offset {at} (32-bit word {at // 4})"
                f", which thread {thread} of the block wrote; lanes of a warp do not wait for each other: a __syncwarp is "
                "missing between the two"
            )
            s.fault(access.index, "race", text, L, lane, at)

    def writing(self, s: Any, access: Any, L: Any, p: Any, idx: Any, array: Any, v: Any) -> None:
        """Before a store: nobody of another warp may have touched the granules in this interval."""
        if self.races:
            self._check_write(s, access, L, p, idx, array, v)

    def wrote(self, s: Any, access: Any, L: Any, p: Any, idx: Any, array: Any, v: Any) -> None:
        """After a store: lanes that wrote the same place in this very step must have written the same value."""
        self._put_codes(idx, access.granules, s.lanes("code", L))
        if self.times is not None:
            self._put(self.times, idx, access.granules, np.uint32(self.clock))
        if np.ndim(v) and (self.races or self.warps == 1):
            lost = ~_same(array[idx], v)
            if lost.any():
                lane = int(np.argmax(lost))
                winner = self._codes_at(idx, access.granules)[lane * access.granules if np.ndim(idx) else 0]
                at = s.offset_of(p, lane) + access.plus
                text = (
                    f"race (write after write): threads write different values to shared memory at byte offset {at} "
                    f"(32-bit word {at // 4}) in one step, here this one and thread {int(winner) % _THREADS} of the block; "
                    "which value stays is undefined"
                )
                s.fault(access.index, "race", text, L, lane, at)

    def _put(self, table: np.ndarray, idx: Any, g: int, value: Any) -> None:
        """Set all granules of each access; if all lanes access one place, the last lane's value stays."""
        if np.ndim(value) and not np.ndim(idx):
            value = value[-1]
        if g == 1:
            table[idx] = value
        else:
            table.reshape(-1, g)[idx] = value[:, None] if np.ndim(value) else value

    def _put_codes(self, idx: Any, g: int, code: Any) -> None:
        self._put(self.codes, idx, g, code)

    def _check_write(self, s: Any, access: Any, L: Any, p: Any, idx: Any, array: Any = None, v: Any = None) -> None:
        g = access.granules
        codes = self._codes_at(idx, g)
        if (codes == IN_FLIGHT).any():
            self._not_there(s, access, L, p, np.where(codes == IN_FLIGHT, codes, np.uint32(2)), g)
        x = self._difference(s, L, codes, g)
        if (x - np.uint32(32)).min() < _THREADS - 32:
            other = (x >= 32) & (x < _THREADS)
            if array is not None:  # two warps may write the same value
                same = np.repeat(np.atleast_1d(_same(array[idx], v)), g)
                other &= ~np.broadcast_to(same, other.shape) if len(same) in (1, len(other)) else True
            if other.any():
                self._race(s, access, L, p, other, codes, g, "write", "written")
        if access.hazard[1] and self.marks is not None:
            n = s.active(L)
            rows = self.marks.reshape(-1, g, self.warps).take(np.broadcast_to(idx, (n,)), axis=0)
            if self.order:
                rows = rows > self.order.seen[s.lanes("block", L), s.lanes("warp", L)][:, None]
            rows[np.arange(n), :, s.lanes("warp", L)] = 0
            if rows.any():
                lane, granule, warp = (int(v[0]) for v in np.nonzero(rows))
                self._race_with(s, access, L, p, lane, granule, warp, "write", "read")

    def updating(self, s: Any, access: Any, L: Any, p: Any, idx: np.ndarray) -> None:
        """An atomic: it may meet other atomics, but must find something written."""
        codes = self._codes_at(idx, access.granules)
        if codes.min() < 2:
            self._not_there(s, access, L, p, codes, access.granules)
        self._put_codes(idx, access.granules, s.lanes("code", L))
        if self.times is not None:
            self._put(self.times, idx, access.granules, np.uint32(self.clock))

    def fill_begins(self, s: Any, access: Any, L: Any, p: Any, idx: Any) -> None:
        """A cp.async is on its way: from now until it lands nobody may look at the place."""
        if self.races:
            self._check_write(s, access, L, p, idx)
        self._put_codes(idx, access.granules, np.uint32(IN_FLIGHT))

    def fill_ends(self, granules: int, idx: Any, code: Any) -> None:
        self._put_codes(idx, granules, code)
        if self.times is not None:
            self._put(self.times, idx, granules, np.uint32(self.clock))

    # order ----------------------------------------------------------------------------------------------------------
    def release(self, s: Any, lanes: Any, number: int | None = None) -> None:
        """A barrier let ``lanes`` (None: all) pass: a new interval begins for them."""
        if self.order:
            self.order.meet(s, lanes, number)
            return self.warp_met(s, lanes)
        self.interval += 1
        code = s.arrays["thread"].astype(U4) + np.uint32(self.interval * _THREADS)
        if lanes is not None:
            code = np.where(np.isin(np.arange(s.n), lanes), code, s.arrays["code"])
        s.set_array("code", code)
        if self.marks is not None:
            self.warp_met(s, lanes)
            if lanes is None:
                self.marks.fill(0)
            else:
                self.marks.reshape(self.blocks, -1)[np.unique(s.arrays["block"][lanes])] = 0

    def warp_met(self, s: Any, L: Any) -> None:
        """__syncwarp: these lanes see what their warp wrote before."""
        if self.times is not None:
            self.clock += 1
            synced = s.arrays["synced"].copy()
            synced[slice(None) if L is None else L] = self.clock
            s.set_array("synced", synced)

    # reports --------------------------------------------------------------------------------------------------------
    def _place(self, s: Any, access: Any, p: Any, bad: np.ndarray, g: int) -> tuple[int, int, int]:
        """(lane, granule of its access, byte offset in shared memory) of the first one flagged."""
        lane, granule = divmod(int(np.flatnonzero(bad)[0]), g)
        return lane, granule, s.offset_of(p, lane) + access.plus + granule * self.grain

    def _not_there(self, s: Any, access: Any, L: Any, p: Any, codes: np.ndarray, g: int) -> None:
        lane, granule, at = self._place(s, access, p, codes < 2, g)
        if codes[lane * g + granule] == NEVER:
            text = f"read of shared memory that nobody wrote: byte offset {at} (32-bit word {at // 4})"
            s.fault(access.index, "uninitialised", text, L, lane, at)
        text = f"shared memory at byte offset {at} (32-bit word {at // 4}) is still being filled by cp.async"
        s.fault(access.index, "race", text + ": wait for the copy, then a barrier", L, lane, at)

    def _race(self, s: Any, access: Any, L: Any, p: Any, other: Any, codes: Any, g: int, did: str, had: str) -> None:
        lane, granule, _ = self._place(s, access, p, other, g)
        warp = int(codes[(lane * g + granule) % len(codes)]) % _THREADS // 32
        self._race_with(s, access, L, p, lane, granule, warp, did, had)

    def _race_with(
        self, s: Any, access: Any, L: Any, p: Any, lane: int, granule: int, warp: int, did: str, had: str
    ) -> None:
        at = s.offset_of(p, lane) + access.plus + granule * self.grain
        name = {"readwritten": "read after write", "writewritten": "write after write", "writeread": "write after read"}
        text = (
            f"race ({name[did + had]}): {did} of shared memory at byte offset {at} (32-bit word {at // 4}), which warp "
            f"{warp} of the block {had} since the last barrier; a __syncthreads is missing between the two"
        )
        s.fault(access.index, "race", text, L, lane, at)


def _same(a: Any, b: Any) -> Any:
    """Whether values are the same bit by bit, element by element."""
    a, b = np.broadcast_arrays(a, b)
    if a.dtype.itemsize == 16:
        a, b = (np.ascontiguousarray(v).view(U8).reshape(*v.shape, 2) for v in (a, b))
        return (a == b).all(axis=-1)
    t = np.dtype(f"u{a.dtype.itemsize}")
    return np.ascontiguousarray(a).view(t).reshape(a.shape) == np.ascontiguousarray(b).view(t).reshape(b.shape)
