"""The state of some thread blocks while they run: what generated code works on.

Lanes are numbered block by block, thread by thread. Registers are arrays with one element per lane, or NumPy scalars
where all lanes hold the same value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.program import Launch
from texlab.sim.arith import I8, U4
from texlab.sim.bulk import Stores
from texlab.sim.copies import Copies
from texlab.sim.hazards import fault
from texlab.sim.mbarrier import Barriers
from texlab.sim.memory import NOWHERE, REGION, WINDOWS, Memory, Pointer, mixed
from texlab.sim.shared import SharedState
from texlab.sim.variants import OWN_FEATURES

_HALF = 1 << (REGION - 1)


class Batch:
    """Some thread blocks of a launch while they run: the state that generated code works on (its argument ``S``).

    Lanes are numbered block by block, thread by thread. ``arrays`` holds what belongs to each lane; when lanes have
    exited and one group is left, everything is packed down to it.
    """

    def __init__(
        self, kernel: Any, launch: Launch, memory: Memory, params: np.ndarray, block_ids: np.ndarray, source: Any
    ) -> None:
        self.kernel, self.launch, self.memory, self.params, self.source = kernel, launch, memory, params, source
        self.block_ids = block_ids
        threads, blocks = launch.threads, len(block_ids)
        self.block_warps = -(-threads // 32)
        self.warps = blocks * self.block_warps
        self.n = threads * blocks
        thread = np.tile(np.arange(threads), blocks)
        block = np.repeat(np.arange(blocks), threads)
        nbytes = kernel.static_shared + launch.shared_bytes
        self.shared = SharedState(nbytes, blocks, self.block_warps, kernel.grain, kernel)
        self.arrays: dict[str, np.ndarray] = {
            "thread": thread,
            "block": block,
            "warp": thread // 32,
            "place": block * (self.block_warps * 32) + thread,
            "shared": block * self.shared.pitch,
            "code": (thread + 1024).astype(U4),
            "synced": np.zeros(self.n, U4),
            "slot": np.arange(self.n),
        }
        if blocks == 1:
            self.arrays["shared"] = np.int64(0)
        self.local = np.full(max(kernel.local_bytes, 1) * self.n, 255, "u1") if kernel.local_bytes else None
        self.copies = Copies(self.n)
        self.stores = Stores(self.n)
        self.products = Stores(self.n, "wgmma.mma_async")
        self.mbarriers = Barriers()
        self.stalled: np.ndarray | None = None  # lanes whose wait for an mbarrier just failed
        self.record: Any = None
        self.registers = list(kernel.initial)
        self._for: Any = None
        self._packed: dict[str, Any] = {}
        self._param_cache: dict[Any, Any] = {}
        self.steps = self.thread_instructions = self.warp_instructions = self.barriers = 0
        self.left_early: tuple[int, int, int] | None = None  # barrier, block, thread that exited without reaching it
        self.scheduler: Any = None

    # lanes ----------------------------------------------------------------------------------------------------------
    def active(self, L: Any) -> int:
        return self.n if L is None else len(L)

    def subset(self, L: Any, where: np.ndarray) -> np.ndarray:
        return where if L is None else L[where]

    def lanes(self, name: str, L: Any) -> Any:
        """A per-lane array (or uniform scalar) for the active lanes."""
        full = self.arrays[name]
        if L is None or full.ndim == 0:
            return full
        if self._for is not L:
            self._for, self._packed = L, {}
        got = self._packed.get(name)
        if got is None:
            got = self._packed[name] = full.take(L)
        return got

    def set_array(self, name: str, value: np.ndarray) -> None:
        self.arrays[name] = value
        self._packed.pop(name, None)

    def gather(self, registers: list[Any], which: tuple[int, ...], L: np.ndarray) -> list[Any]:
        """The registers ``which`` of the active lanes, and one value more, which is not looked at."""
        return [*[v.take(L) if v.ndim else v for v in (registers[i] for i in which)], None]

    def scatter(self, registers: list[Any], L: Any, which: tuple[int, ...], values: tuple[Any, ...]) -> None:
        """Put values of the active lanes into the registers ``which``; others' arrays are never written in place."""
        if L is None:
            for i, v in zip(which, values, strict=True):
                registers[i] = v
            return
        for i, v in zip(which, values, strict=True):
            old = registers[i]
            new = old.copy() if old.ndim else np.full(self.n, old)
            new[L] = v
            registers[i] = new

    def pack(self, L: np.ndarray) -> None:
        """Forget all lanes but ``L``."""
        self.arrays = {k: v.take(L) if v.ndim else v for k, v in self.arrays.items()}
        self.registers[:] = [v.take(L) if v.ndim else v for v in self.registers]
        self.n = len(L)
        self._for, self._packed = None, {}

    def special(self, name: str, L: Any) -> Any:
        """A special register as u32 (clocks: instructions issued so far)."""
        if name not in self.arrays:
            value = self._special(name)
            if name.startswith(("clock", "globaltimer")):
                return value
            self.arrays[name] = value
        return self.lanes(name, L)

    def _special(self, name: str) -> Any:
        head, _, axis = name.partition(".")
        i = "xyz".find(axis) if axis else 0
        if head in ("ntid", "nctaid"):
            return np.uint32((self.launch.block if head == "ntid" else self.launch.grid)[i])
        if head in ("tid", "ctaid"):
            sizes = self.launch.block if head == "tid" else self.launch.grid
            if sizes[i] == 1:
                return np.uint32(0)
            linear = self.arrays["thread"] if head == "tid" else self.block_ids[self.arrays["block"]]
            if head == "ctaid" and len(self.block_ids) == 1:
                linear = self.block_ids[0]
            return (linear // int(np.prod(sizes[:i], dtype=np.int64)) % sizes[i]).astype(U4)
        if head == "laneid":
            return (self.arrays["thread"] % 32).astype(U4)
        if head == "warpid":
            return self.arrays["warp"].astype(U4)
        if head.startswith("lanemask"):
            lane = (self.arrays["thread"] % 32).astype(np.uint64)
            bit = np.uint64(1) << lane
            below = bit - np.uint64(1)
            full = np.uint64(0xFFFFFFFF)
            kind = head.split("_")[1]
            table = dict(eq=bit, lt=below, le=below | bit, gt=full & ~(below | bit), ge=full & ~below)
            return table[kind].astype(U4)
        if head in ("dynamic_smem_size", "total_smem_size", "aggr_smem_size"):
            own = self.launch.shared_bytes
            return np.uint32(own if head[0] == "d" else own + self.kernel.static_shared)
        if head in ("clock64", "globaltimer"):
            return np.uint64(self.scheduler.steps)
        return np.uint32(self.scheduler.steps if head == "clock" else 0)  # smid, nwarpid, upper halves

    def param(self, at: int, t: np.dtype) -> Any:
        key = (at, t)
        if key not in self._param_cache:
            self._param_cache[key] = np.frombuffer(self.params.tobytes()[at : at + t.itemsize], t)[0]
        return self._param_cache[key]

    # pointers -------------------------------------------------------------------------------------------------------
    def global_pointer(self, L: Any, a: Any) -> Pointer:
        first = int(a) if a.ndim == 0 else int(a[0])
        buffer = self.memory.at(first) or NOWHERE
        if a.ndim == 0:
            offset = first - buffer.base
            return Pointer("global", buffer, offset, offset)
        offset = a.view(I8) - np.int64(buffer.base)
        p = Pointer("global", buffer, offset, offset)
        if (p.lo < -_HALF or p.hi >= _HALF) or buffer is NOWHERE:
            return self._parted(L, a)
        return p

    def _parted(self, L: Any, a: np.ndarray) -> Pointer:
        """Lanes whose addresses lie in several buffers or spaces."""
        regions = a >> np.uint64(REGION)
        parts = []
        for region in np.unique(regions):
            where = np.flatnonzero(regions == region)
            sub, lanes = a[where], self.subset(L, where)
            buffer = self.memory.regions.get(int(region))
            if int(region) >= WINDOWS["shared"] >> REGION:
                parts.append((where, self.generic_pointer(lanes, sub)))
            else:
                offset = sub.view(I8) - np.int64(buffer.base if buffer else 0)
                parts.append((where, Pointer("global", buffer or NOWHERE, offset, offset)))
        return mixed(parts)

    def shared_pointer(self, L: Any, a: Any) -> Pointer:
        base = self.lanes("shared", L)
        a = a.view(f"i{a.itemsize}")  # a register may be below zero, and only with the instruction's offset inside
        if a.ndim == 0:
            offset = int(a)
            return Pointer("shared", self.shared, offset, base + offset if base.ndim else offset)
        offset = a.astype(I8)
        return Pointer("shared", self.shared, offset, offset + base if base.ndim else offset)

    def local_pointer(self, L: Any, a: Any) -> Pointer:
        offset = int(a) if a.ndim == 0 else a.astype(I8)
        return Pointer("local", self, offset, self.lanes("slot", L) * self.kernel.local_bytes + offset)

    def generic_pointer(self, L: Any, a: Any) -> Pointer:
        windows = a >> np.uint64(56)
        first = int(windows if a.ndim == 0 else windows[0])
        if a.ndim and (windows != first).any():
            return self._parted(L, a)
        if first == WINDOWS["shared"] >> 56:
            return self.shared_pointer(L, a - np.uint64(WINDOWS["shared"]))
        if first == WINDOWS["local"] >> 56:
            return self.local_pointer(L, a - np.uint64(WINDOWS["local"]))
        return self.global_pointer(L, a)

    def limit(self, p: Pointer) -> int:
        return self.kernel.local_bytes if p.space == "local" else p.buffer.nbytes

    def array(self, p: Pointer, dtype: np.dtype) -> np.ndarray:
        return self.local.view(dtype) if p.space == "local" else p.buffer.view(dtype)

    def offset_of(self, p: Pointer, lane: int) -> int:
        return p.offset if isinstance(p.offset, int) else int(p.offset[lane])

    # faults ---------------------------------------------------------------------------------------------------------
    def check(self, access: Any, L: Any, p: Pointer, width: int) -> None:
        """The careful version of an access's check: report the first lane at fault, if there is one."""
        offset = np.broadcast_to(np.asarray(p.offset) + access.plus, (self.active(L),))
        outside = (offset < 0) | (offset + width > self.limit(p))
        crooked = offset % width != 0
        if not (outside | crooked).any():
            return
        lane = int(np.argmax(outside | crooked))
        at = int(offset[lane])
        verb = {"load": "read", "store": "write", "atomic": "atomic update"}[access.kind]
        more = int((outside if outside[lane] else crooked).sum()) - 1
        others = f" (and by {more} more threads)" if more else ""
        if p.space == "global" and p.buffer is NOWHERE:
            what = f"address {at:#x}, which is in no buffer" + (" (a null pointer)" if at < 1 << 20 else "")
        elif p.space == "global":
            what = f"byte offset {at} of {p.buffer.name}, which has {p.buffer.nbytes} bytes"
        else:
            what = f"byte offset {at} of {p.space} memory, of which there are {self.limit(p)} bytes"
        if outside[lane]:
            text, kind = f"out-of-bounds {verb} of {width} bytes at {what}{others}", "out-of-bounds"
        else:
            text, kind = (
                f"misaligned {verb} of {width} bytes at {what}; it must be a multiple of {width}{others}",
                "misaligned",
            )
        name = getattr(p.buffer, "name", p.space) if p.space == "global" else p.space
        base = p.buffer.base if p.space == "global" else 0
        self.fault(access.index, kind, text, L, lane, base + at, buffer=name, offset=at)

    def check_written(self, access: Any, L: Any, p: Pointer, idx: Any) -> None:
        """Before a read of an output or of scratch memory: somebody must have written there."""
        missing = p.buffer.missing(idx, access.width)
        if missing.any():
            lane = int(np.argmax(missing))
            at = self.offset_of(p, lane) + access.plus
            more = int(missing.sum()) - 1
            text = f"read of {access.width} bytes at byte offset {at} of {p.buffer.name}, which nobody wrote"
            text += f" (and by {more} more threads)" if more else ""
            name = p.buffer.name
            self.fault(access.index, "uninitialised", text, L, lane, p.buffer.base + at, buffer=name, offset=at)

    def fault(
        self,
        index: int,
        kind: str,
        text: str,
        L: Any = None,
        lane: int | None = None,
        address: int | None = None,
        **more: Any,
    ) -> None:
        """Raise the KernelFault: where in the source, which block and thread (``lane``: position among the active)."""
        file, line = self.kernel.lines[index]
        source = self.source(file, line)
        who, block, thread = "", None, None
        if lane is not None:
            at = lane if L is None else int(L[lane])
            block, thread = self.identity(at)
            who = f" by thread {thread} of block {block}"
        message = f"{self.launch.entry}, {file}:{line}: {text}{who}"
        if self.left_early and kind == "uninitialised":
            i, b, t = self.left_early
            barrier = f"the barrier in line {self.kernel.lines[i][1]}"
            message += f"; note that thread {t} of block {b} exited without reaching {barrier}"
        if source:
            message += f"\n    {source}"
        where = dict(entry=self.launch.entry, file=file, line=line, source=source, block=block, thread=thread)
        raise fault(kind, message, address=address, **where, **more)

    def identity(self, at: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(block, thread) coordinates of a lane."""
        b = int(self.block_ids[self.arrays["block"][at]])
        t = int(self.arrays["thread"][at])
        split = lambda v, s: (v % s[0], v // s[0] % s[1], v // (s[0] * s[1]))  # noqa: E731
        return split(b, self.launch.grid), split(t, self.launch.block)

    def unsupported(self, index: int) -> None:
        ins = self.kernel.instructions[index]
        text = f"the simulator does not know the instruction {ins.opcode!r} ({ins.text})"
        if ins.parts[0] in OWN_FEATURES:
            text += "; wgmma and setmaxnreg exist for sm_90a alone: give the Program arch='sm_90a'"
        self.fault(index, "unsupported", text)

    def trap(self, index: int, L: Any) -> None:
        self.fault(index, "trap", "the kernel stopped itself (trap)", L, 0)

    def barrier(self, index: int, arrive: bool, number: Any, count: Any = None) -> None:
        self.scheduler.at_barrier = (index, arrive, number, count)

    def together(self, index: int, L: Any, mask: Any) -> None:
        self.scheduler.together(index, L, mask)

    def cast_vote(self, L: Any, p: Any) -> None:
        """``bar.red``: each lane's predicate, kept until the barrier opens."""
        if "vote" not in self.arrays:
            self.set_array("vote", np.zeros(self.n, bool))
        self.arrays["vote"][slice(None) if L is None else L] = p

    def count_votes(self, lanes: Any) -> None:
        """At the barrier: for each block, how many of its lanes voted, and for what."""
        if "vote" in self.arrays:
            pick = slice(None) if lanes is None else lanes
            block, vote = self.arrays["block"][pick], self.arrays["vote"][pick]
            blocks = len(self.block_ids)
            result = np.stack([np.bincount(block[vote], minlength=blocks), np.bincount(block, minlength=blocks)])
            for name, value in zip(("yes", "voters"), result, strict=True):
                if name not in self.arrays:
                    self.set_array(name, np.zeros(self.n, np.int64))
                self.arrays[name][pick] = value[block]
            self._packed.clear()

    def voted(self, L: Any, op: str) -> Any:
        yes, voters = self.lanes("yes", L), self.lanes("voters", L)
        return yes.astype(U4) if op == "popc" else yes == voters if op == "and" else yes > 0
