"""Which warps' accesses come before which, in kernels whose barriers hold only some of the threads.

``seen[block, warp, other]`` is the last interval of another warp that this warp has heard of; its own entry is the
interval it is in. Whoever arrives at a barrier leaves what it has seen there; whoever passes the barrier takes that up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.sim.arith import U4

_THREADS = 1024


class Order:
    def __init__(self, blocks: int, warps: int) -> None:
        self.seen = np.zeros((blocks, warps, warps), np.int64)
        self.seen[:, range(warps), range(warps)] = 1
        self.named: dict[int, np.ndarray] = {}  # barrier -> what those that only arrive have left there
        self.warps = warps

    def pairs(self, s: Any, L: Any) -> tuple[np.ndarray, np.ndarray]:
        """(block, warp) of each warp that has lanes among ``L``."""
        both = np.unique(s.lanes("block", L) * self.warps + s.lanes("warp", L))
        return both // self.warps, both % self.warps

    def leave(self, s: Any, L: Any) -> np.ndarray:
        """What the warps of ``L`` have seen, the most per block (blocks, warps); a new interval begins for them."""
        block, warp = self.pairs(s, L)
        clock = np.zeros(self.seen.shape[::2], np.int64)
        np.maximum.at(clock, block, self.seen[block, warp])
        self._next(s, block, warp)
        return clock

    def take(self, s: Any, L: Any, clock: np.ndarray) -> None:
        """The warps of ``L`` have now seen ``clock`` (one row, or a row per block)."""
        block, warp = self.pairs(s, L)
        self.seen[block, warp] = np.maximum(self.seen[block, warp], clock[block] if clock.ndim > 1 else clock)

    def arrive(self, s: Any, number: int, L: Any) -> None:
        """``bar.arrive``."""
        clock = self.leave(s, L)
        self.named[number] = np.maximum(self.named[number], clock) if number in self.named else clock

    def meet(self, s: Any, L: Any, number: int | None) -> None:
        """The warps of ``L`` pass a barrier together."""
        clock = self.leave(s, L)
        if number in self.named:
            mine = np.unique(s.lanes("block", L))
            clock[mine] = np.maximum(clock[mine], self.named[number][mine])
            self.named[number][mine] = 0
        self.take(s, L, clock)

    def _next(self, s: Any, block: np.ndarray, warp: np.ndarray) -> None:
        self.seen[block, warp, warp] += 1
        b, w = s.arrays["block"], s.arrays["warp"]
        s.set_array("code", (self.seen[b, w, w] * _THREADS + s.arrays["thread"]).astype(U4))

    def difference(self, s: Any, L: Any, codes: np.ndarray, g: int) -> np.ndarray:
        """As ``SharedState._difference``: 0 the same thread, below 32 its warp, below 1024 what nothing orders."""
        block, warp, mine = (s.lanes(name, L)[:, None] for name in ("block", "warp", "code"))
        codes = np.broadcast_to(codes.reshape(-1, g), (len(warp), g))
        other = codes % np.uint32(_THREADS) // np.uint32(32)
        late = codes // np.uint32(_THREADS) > self.seen[block, warp, other]
        return np.where(other == warp, codes ^ mine, np.where(late, 32, _THREADS)).astype(U4).reshape(-1)
