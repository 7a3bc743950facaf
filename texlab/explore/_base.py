"""What every explorer shares: controls -> compute -> show, with the latest values winning and errors in plain sight."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from texlab.player import Player, close_all, held

DELAY = 0.05  # seconds that requests are collected before the computation starts


class Explorer(widgets.VBox):
    """Controls whose values go to ``compute``, whose result goes to ``show``. Subclasses define these two.

    A change asks for one computation ``DELAY`` seconds later, with the values of that moment; changes that arrive while
    one runs are answered by a single further one. A status line says that it runs and how long it took. An exception
    appears in the explorer itself, the player turns grey, and the next good value brings it back.

    Without a running event loop (a plain Python process) a change computes at once. ``wait()`` computes now what is
    still asked for, e.g. after setting a control from a cell.
    """

    def __init__(self, controls: Mapping[str, Any], player: Player | None = None) -> None:
        super().__init__()
        self.controls, self.player = dict(controls), player
        self.status = widgets.HTML(layout={"min_height": "2em"})
        self.error = widgets.HTML()
        self.result: Any = None
        self.computations = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def compute(self, **values: Any) -> Any:
        """The controls' values -> whatever ``show`` draws. Must not touch widgets."""
        raise NotImplementedError

    def show(self, result: Any) -> None:
        """Put a result of ``compute`` into the widgets."""
        raise NotImplementedError

    def request(self) -> None:
        """Ask for a computation with the values that the controls will have in a moment."""
        self._asked = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.wait()
            return
        if self._timer is None:
            self._timer = loop.call_later(DELAY, self.wait)

    def _changed(self, change: Any) -> None:
        self.request()

    def wait(self) -> None:
        """Compute now if a computation is asked for and not yet done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._asked:
            return
        self._asked = False
        self.computations += 1
        self.status.value = "<i role='status'>computing …</i>"
        started = time.perf_counter()
        try:
            result = self.compute(**{name: control.value for name, control in self.controls.items()})
            self.show(result)
        except Exception as error:  # in a callback it would vanish: show it where the learner looks
            self._failed(error)
            return
        self.result = result
        self.error.value = ""
        if self.player is not None:
            self.player.stale = False
        self.status.value = f"<span role='status'>computed in {time.perf_counter() - started:.2f} s</span>"

    def _failed(self, error: Exception) -> None:
        if self.player is not None:
            self.player.stale = True
        self.status.value = "<span role='status'>no result: the picture below belongs to earlier settings</span>"
        details, message = escape("".join(traceback.format_exception(error))), escape(str(error))
        self.error.value = (
            "<div role='alert' style='border-left:4px solid #D55E00;padding:4px 10px;line-height:1.4'>"
            f"<b>{escape(type(error).__name__)}</b><pre style='white-space:pre-wrap;margin:0'>{message}</pre>"
            f"<details><summary>traceback</summary><pre>{details}</pre></details></div>"
        )

    def close(self) -> None:
        """Close every widget of the explorer and let go of the results, so that nothing of it stays alive."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._asked, self.result = None, False, None
        parts = held(self)
        super().close()
        close_all(parts)
