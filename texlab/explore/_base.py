"""What explorers share: recomputing with the latest values, progress and errors in plain sight, nothing left behind."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from texlab.player import Player, close_all, held

DELAY = 0.05  # seconds that requests are collected before the computation starts


class Later:
    """``later()`` asks for ``work()`` in ``DELAY`` seconds; what is asked meanwhile or while it runs is answered once.

    ``work`` must read the latest values itself. ``busy`` is called first, to show that something is going on. Without a
    running event loop (a plain Python process) ``later()`` works at once.
    """

    def __init__(self, work: Callable[[], None], busy: Callable[[], None] | None = None) -> None:
        self._work, self._busy = work, busy
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            self._now()
        elif self._timer is None:
            self._timer = loop.call_later(DELAY, self.wait)

    def wait(self) -> None:
        """Do now what is asked for and not yet done."""
        if self._timer is not None:
            self.cancel()
            self._now()

    def cancel(self) -> None:
        """Forget what is asked for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> None:
        if self._busy is not None:
            self._busy()
        self._work()


class Explorer(widgets.VBox):
    """Controls whose values go to ``compute``, whose result goes to ``show``. Subclasses define these two.
    An explorer that draws in the browser has a ``player``.

    The latest values win (:class:`Later`). A status line says that it computes and how long it took. An exception
    appears in the explorer itself, the player turns grey, and the next good value brings it back.

    ``wait()`` computes now what is still asked for, e.g. after setting a control from a cell.
    """

    def __init__(self, controls: Mapping[str, Any], player: Player | None = None) -> None:
        super().__init__()
        self.controls, self.player = dict(controls), player
        self.status = widgets.HTML(layout={"min_height": "2em"})
        self.error = widgets.HTML()
        self.result: Any = None
        self.request = Later(self._recompute, self._busy)
        for control in self.controls.values():
            control.observe(lambda _: self.request(), "value")

    def compute(self, **values: Any) -> Any:
        """The controls' values -> whatever ``show`` draws. Must not touch widgets."""
        raise NotImplementedError

    def show(self, result: Any) -> None:
        """Put a result of ``compute`` into the widgets."""
        raise NotImplementedError

    def wait(self) -> None:
        """Compute now if a computation is asked for and not yet done."""
        self.request.wait()

    def _busy(self) -> None:
        self.status.value = "<i role='status'>computing …</i>"

    def _recompute(self) -> None:
        started = time.perf_counter()
        try:
            self.result = self.compute(**{name: control.value for name, control in self.controls.items()})
            self.show(self.result)
        except Exception as error:  # in a callback it would vanish: show it where the learner looks
            self._failed(error)
            return
        self.error.value = ""
        self._stale(False)
        self.status.value = f"<span role='status'>computed in {time.perf_counter() - started:.2f} s</span>"

    def _stale(self, stale: bool) -> None:
        if self.player is not None:
            self.player.stale = stale

    def _failed(self, error: Exception) -> None:
        self._stale(True)
        self.status.value = "<span role='status'>no result: the picture below belongs to earlier settings</span>"
        details, message = escape("".join(traceback.format_exception(error))), escape(str(error))
        self.error.value = (
            "<div role='alert' style='border-left:4px solid #D55E00;padding:4px 10px;line-height:1.4'>"
            f"<b>{escape(type(error).__name__)}</b><pre style='white-space:pre-wrap;margin:0'>{message}</pre>"
            f"<details><summary>traceback</summary><pre>{details}</pre></details></div>"
        )

    def close(self) -> None:
        """Close every widget of the explorer and let go of the result, so that nothing of it stays alive."""
        self.request.cancel()
        self.result = None
        parts = held(self)
        super().close()
        close_all(parts)
