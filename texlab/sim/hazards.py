"""What a kernel must not do: the launch limits, the report of a fault, and the bookkeeping behind shared-memory checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.program import KernelFault, Launch
from texlab.sim.arith import U1, U4, U8

STATIC_SHARED = 48 * 1024  # ptxas refuses more in static arrays
SHARED_LIMIT = 227 * 1024  # a block's most on sm_90, after opting in
_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)


def fault(kind: str, message: str, **where: Any) -> KernelFault:
    """A KernelFault with ``kind`` and what is known of the place as attributes (None where it does not apply)."""
    error = KernelFault(message)
    error.kind = kind
    for name in ("entry", "file", "line", "source", "block", "thread", "address", "buffer", "offset"):
        setattr(error, name, where.get(name))
    return error


def check_launch(launch: Launch, static_shared: int) -> None:
    """Refuse what the driver or ptxas would. Raises KernelFault of kind "launch"."""
    name = launch.entry
    for axis, size, limit in zip("xyz", launch.grid, _GRID, strict=True):
        if not 0 <= size <= limit:
            raise fault("launch", f"{name}: grid {axis} {size} > {limit}; put the long axis on x", entry=name)
    for axis, size, limit in zip("xyz", launch.block, _BLOCK, strict=True):
        if not 1 <= size <= limit:
            raise fault("launch", f"{name}: block {axis} {size} is not in 1..{limit}", entry=name)
    if launch.threads > 1024:
        raise fault(
            "launch", f"{name}: a block of {launch.block} has {launch.threads} threads; the limit is 1024", entry=name
        )
    if static_shared > STATIC_SHARED:
        raise fault(
            "launch",
            f"{name}: {static_shared} bytes of static shared memory, {STATIC_SHARED} at most; use dynamic shared memory "
            f"(extern __shared__), up to {SHARED_LIMIT} bytes",
            entry=name,
        )
    if static_shared + launch.shared_bytes > SHARED_LIMIT:
        raise fault(
            "launch",
            f"{name}: {launch.shared_bytes} bytes of dynamic and {static_shared} of static shared memory are "
            f"{static_shared + launch.shared_bytes}; a block on sm_90 has {SHARED_LIMIT} at most",
            entry=name,
        )


class SharedState:
    """The shared memory of a batch of blocks, with who touched what.

    ``codes`` holds one number per granule (the kernel's smallest access, at most 4 bytes): 0 never written, 1 being
    filled by cp.async, else barrier interval * 32 + warp of the last writer. ``marks[granule, warp]`` says that a warp
    has read the granule in this interval; it is kept only for loads that a store can follow before a barrier.
    """

    def __init__(self, nbytes: int, blocks: int, warps: int, grain: int, races: bool) -> None:
        self.pitch = -(-max(nbytes, 1) // 128) * 128
        self.nbytes, self.blocks, self.warps, self.grain = nbytes, blocks, warps, grain
        self.data = np.full(self.pitch * blocks, 255, U1)
        self.codes = np.zeros(self.pitch * blocks // grain, U4)
        self.races = races and warps > 1
        self.marks = np.zeros((len(self.codes), warps), U1) if self.races else None
        self.interval = 1
        self.views: dict[Any, np.ndarray] = {}

    def view(self, dtype: Any) -> np.ndarray:
        if dtype not in self.views:
            self.views[dtype] = self.data.view(dtype)
        return self.views[dtype]

    def _codes_at(self, idx: Any, granules: int) -> np.ndarray:
        """Codes of the granules of each access, flat: lane by lane."""
        idx = np.atleast_1d(idx)
        if granules == 1:
            return self.codes.take(idx, mode="wrap")
        if granules == 2:
            return self.codes.view(U8).take(idx, mode="wrap").view(U4)
        if granules == 4:
            return self.codes.view("c16").take(idx, mode="wrap").view(U4)
        return self.codes.reshape(-1, granules).take(idx, axis=0).reshape(-1)

    def reading(self, s: Any, access: Any, L: Any, p: Any, idx: Any) -> None:
        """Before a load: every granule must have been written, and not by another warp in this interval."""
        g = access.granules
        codes = self._codes_at(idx, g)
        if codes.min() < 2:
            self._not_there(s, access, L, p, codes, g)
        if not self.races:
            return
        if access.hazard[0]:
            other = self._other_warp(s, L, codes, g)
            if other.any():
                self._race(s, access, L, p, other, codes, g, "read", "written")
            warp = s.lanes("warp", L)
            for j in range(g):
                self.marks.reshape(-1)[(idx * g + j) * self.warps + warp] = 1

    def _other_warp(self, s: Any, L: Any, codes: np.ndarray, g: int) -> np.ndarray:
        """Which codes are of this interval and another warp."""
        mine = s.lanes("code", L)
        x = (codes if g == 1 else codes.reshape(-1, g)) ^ (mine if g == 1 or mine.ndim == 0 else mine[:, None])
        return (x - np.uint32(1) < 31).reshape(-1)

    def writing(self, s: Any, access: Any, L: Any, p: Any, idx: Any, array: Any, v: Any) -> None:
        """Before a store: nobody of another warp may have touched the granules in this interval."""
        g = access.granules
        if self.races:
            self._check_write(s, access, L, p, idx, array, v)
        self._put_codes(idx, g, s.lanes("code", L))

    def _put_codes(self, idx: Any, g: int, code: Any) -> None:
        if g == 1:
            self.codes[idx] = code if np.ndim(idx) or np.ndim(code) == 0 else code[-1]
        else:
            self.codes.reshape(-1, g)[idx] = code if np.ndim(code) == 0 else code[:, None] if np.ndim(idx) else code[-1]

    def _check_write(self, s: Any, access: Any, L: Any, p: Any, idx: Any, array: Any = None, v: Any = None) -> None:
        g = access.granules
        codes = self._codes_at(idx, g)
        other = self._other_warp(s, L, codes, g)
        if (codes == 1).any():
            self._not_there(s, access, L, p, np.where(codes == 1, codes, np.uint32(2)), g)
        if other.any() and array is not None:  # two warps may write the same value
            old, new = np.broadcast_arrays(array[idx], v)
            same = np.atleast_1d((old == new) | ((old != old) & (new != new)))
            other &= ~np.broadcast_to(np.repeat(same, g), other.shape)
        if other.any():
            self._race(s, access, L, p, other, codes, g, "write", "written")
        if access.hazard[1]:
            n = s.active(L)
            rows = self.marks.reshape(-1, g, self.warps).take(np.broadcast_to(idx, (n,)), axis=0)
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

    def fill_begins(self, s: Any, access: Any, L: Any, p: Any, idx: Any) -> None:
        """A cp.async is on its way: from now until it lands nobody may look at the place."""
        if self.races:
            self._check_write(s, access, L, p, idx)
        self._put_codes(idx, access.granules, np.uint32(1))

    def fill_ends(self, granules: int, idx: Any, code: Any) -> None:
        self._put_codes(idx, granules, code)

    def release(self, s: Any, lanes: Any) -> None:
        """A barrier let ``lanes`` (None: all) pass: a new interval begins for them."""
        self.interval += 1
        code = s.arrays["warp"].astype(U4) + np.uint32(self.interval * 32)
        if lanes is not None:
            code = np.where(np.isin(np.arange(s.n), lanes), code, s.arrays["code"])
        s.set_array("code", code)
        if self.marks is not None and s.kernel.marks_reads:
            if lanes is None:
                self.marks.fill(0)
            else:
                self.marks.reshape(self.blocks, -1)[np.unique(s.arrays["block"][lanes])] = 0

    # reports --------------------------------------------------------------------------------------------------------
    def _not_there(self, s: Any, access: Any, L: Any, p: Any, codes: np.ndarray, g: int) -> None:
        bad = np.flatnonzero(codes < 2)
        lane, granule = divmod(int(bad[0]), g)
        at = s.offset_of(p, lane) + access.plus + granule * self.grain
        if codes[bad[0]] == 0:
            text = f"read of shared memory that nobody wrote: byte offset {at} (32-bit word {at // 4})"
            s.fault(access.index, "uninitialised", text, L, lane, at)
        text = f"shared memory at byte offset {at} (32-bit word {at // 4}) is still being filled by cp.async"
        s.fault(access.index, "race", text + ": wait for the copy, then a barrier", L, lane, at)

    def _race(self, s: Any, access: Any, L: Any, p: Any, other: Any, codes: Any, g: int, did: str, had: str) -> None:
        lane, granule = divmod(int(np.flatnonzero(other)[0]), g)
        warp = int(codes[lane * g + granule]) & 31
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
