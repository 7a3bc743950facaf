"""Time on a GPU: CUDA events around each launch, with a cold L2 cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

BUDGET_MS = 300.0  # about how long one contestant is timed
FEWEST, MOST = 5, 100  # launches timed, whatever they take
LONGEST_QUEUEING_MS = 1.0  # longer than any launch takes to queue; more would be a launch that waits for the GPU


class Stopwatch:
    """Times what is queued on CuPy's current stream, after writing a buffer of twice the L2 cache to empty the cache.

    The writes are repeated until they outlast the queueing of the launches, so that a kernel never waits for Python.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.l2_bytes = int(cupy.cuda.Device().attributes["L2CacheSize"])
        self._buffer = cupy.empty(max(2 * self.l2_bytes, 2**26), np.uint8)
        self._write(1)
        self._write_ms = min(self._span(lambda: self._write(1)) for _ in range(3))

    def times(self, launch: Callable[[], Any], *, repeat: int | None = None) -> np.ndarray:
        """Milliseconds of each of several ``launch()``, L2 flushed before each.

        ``repeat``: how many; None: about BUDGET_MS worth, between FEWEST and MOST. The first launch, which may load
        code, is not among them.
        """
        cupy = self._cupy
        launch()
        cupy.cuda.get_current_stream().synchronize()
        each = self._span(launch)
        start = time.perf_counter()
        launch()
        queueing = min(1e3 * (time.perf_counter() - start), LONGEST_QUEUEING_MS)
        writes = max(1, math.ceil(2 * queueing / self._write_ms))
        if repeat is None:
            repeat = int(min(max(BUDGET_MS / (each + writes * self._write_ms), FEWEST), MOST))
        pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeat)]
        for first, last in pairs:
            self._write(writes)
            first.record()
            launch()
            last.record()
        cupy.cuda.get_current_stream().synchronize()
        return np.array([cupy.cuda.get_elapsed_time(first, last) for first, last in pairs])

    def _write(self, times: int) -> None:
        for _ in range(times):
            self._buffer.data.memset_async(0, self._buffer.nbytes)

    def _span(self, call: Callable[[], Any]) -> float:
        first, last = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        first.record()
        call()
        last.record()
        last.synchronize()
        return self._cupy.cuda.get_elapsed_time(first, last)
