"""Record accesses while a kernel runs: rows for a Trace, and totals per instruction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from texlab.trace import TOTALS, Instruction, Placed, Trace, count

MAX_ROWS = 4_000_000  # about 1.2 GB


class Recorder:
    """Collects what the accesses of all batches of a run touched. ``keep``: None for all rows, else block numbers."""

    def __init__(self, keep: Iterable[int] | None) -> None:
        self.keep = None if keep is None else np.unique(np.fromiter(keep, np.int64))
        self.instructions: list[Instruction] = []
        self.index: dict[tuple[str, int, str], int] = {}
        self.sums: list[dict[str, int]] = []
        self.parts: list[tuple[Any, ...]] = []
        self.rows = 0
        self.known: dict[Any, np.ndarray] = {}

    def attach(self, batch: Any, launch: int) -> None:
        """Have every access of the batch recorded."""
        state = {"step": 0}
        blocks = batch.block_ids
        keep = self.keep is None or np.isin(blocks, self.keep).any()

        def record(access: Any, L: Any, p: Any, space: str | None = None, active: Any = None) -> None:
            step = state["step"]
            state["step"] = step + 1
            if access.cached == "const":
                return
            self._add(batch, launch, step, keep, access, L, p, active)

        batch.record = record

    def _add(self, s: Any, launch: int, step: int, keep: bool, access: Any, L: Any, p: Any, active: Any) -> None:
        base = (p.buffer.base if p.space == "global" else 0) + access.plus
        address = p.offset + base if isinstance(p.offset, int) else (p.offset + np.int64(base)).view(np.uint64)
        place = s.lanes("place", L)
        if active is not None:
            place, address = place[active], address if isinstance(address, int) else address[active]
            if not len(place):
                return
        if L is None and active is None and s.n == s.warps * 32:
            table = np.full((s.warps, 32), address, np.uint64) if isinstance(address, int) else address.reshape(-1, 32)
            mask = np.full(s.warps, 0xFFFFFFFF, np.uint32)
            warps = np.arange(s.warps)
        else:
            table = np.zeros(s.warps * 32, np.uint64)
            on = np.zeros(s.warps * 32, bool)
            table[place] = address
            on[place] = True
            mask = np.packbits(on.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32).reshape(-1)
            warps = np.flatnonzero(mask)
            table, mask = table.reshape(-1, 32)[warps], mask[warps]
        i = self._instruction(s, access, p.space)
        for name, value in count(p.space, table, mask, access.width, self.known).items():
            self.sums[i][name] += value
        if keep:
            block = s.block_ids[warps // s.block_warps]
            if self.keep is not None:
                mine = np.isin(block, self.keep)
                table, mask, block, warps = table[mine], mask[mine], block[mine], warps[mine]
            self.rows += len(mask)
            if self.rows > MAX_ROWS:
                raise MemoryError(
                    f"the trace holds more than {MAX_ROWS} rows: ask for trace='counts', or for the rows of some "
                    "blocks only, such as trace=[0]"
                )
            self.parts.append((launch, step, i, block, warps % s.block_warps, mask, table))

    def _instruction(self, s: Any, access: Any, space: str) -> int:
        key = (s.launch.entry, access.index, space)
        if key not in self.index:
            self.index[key] = len(self.instructions)
            file, line = s.kernel.lines[access.index]
            opcode = s.kernel.instructions[access.index].opcode
            where = (s.launch.entry, access.index, file, line, s.source(file, line), opcode)
            self.instructions.append(Instruction(*where, space, access.kind, access.width))
            self.sums.append(dict.fromkeys(TOTALS, 0))
        return self.index[key]

    def trace(self, buffers: dict[str, Placed], textures: tuple[Any, ...] = ()) -> Trace:
        """What was recorded."""
        order = sorted(range(len(self.instructions)), key=lambda i: self.instructions[i].pc)
        first = {ins.entry: n for n, ins in reversed(list(enumerate(self.instructions)))}
        order.sort(key=lambda i: first[self.instructions[i].entry])
        new = np.empty(len(order), np.int32)
        new[order] = np.arange(len(order))
        totals = {name: np.array([self.sums[i][name] for i in order], np.int64) for name in TOTALS}
        instructions = [self.instructions[i] for i in order]
        if not self.parts:
            return Trace(instructions, totals, buffers, textures=textures)
        size = [len(p[5]) for p in self.parts]
        spread = lambda k, t: np.repeat(np.array([p[k] for p in self.parts], t), size)  # noqa: E731
        join = lambda k, t: np.concatenate([p[k] for p in self.parts]).astype(t, copy=False)  # noqa: E731
        which = new[spread(2, np.int32)]
        rows = (spread(0, np.int32), join(3, np.int64), join(4, np.int32), spread(1, np.int64), which)
        return Trace(instructions, totals, buffers, *rows, join(5, np.uint32), join(6, np.uint64), textures)
