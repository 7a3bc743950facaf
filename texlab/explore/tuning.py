"""A tuning run one can watch, start and stop: every candidate's time, and the best so far."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

import ipywidgets as widgets

from texlab.explore.bank_tables import BAD, GOOD, NEUTRAL, note
from texlab.schedules.search import METHODS
from texlab.schedules.tune import tune
from texlab.schedules.work import Workload

SMALL = {"layout": {"width": "auto"}, "style": {"description_width": "initial"}}


def tuning(
    workload: Workload,
    target: str = "llvm",
    *,
    method: str = "random",
    trials: int = 24,
    budget: float = 20.0,
    **how: Any,
) -> TuningView:
    """Watch the search for good knobs of a workload. ``run()`` searches until it is done; the buttons search beside the
    notebook, so that it can be stopped. Stopping, or interrupting the kernel, keeps what was found.

    ``trials`` and ``budget`` (seconds) end the search; ``how`` goes to ``texlab.schedules.tune`` (seed, database, executor).

    >>> view = tuning(work, trials=8)   # doctest: +SKIP
    >>> view.run().best                 # doctest: +SKIP
    """
    if method not in METHODS:
        raise ValueError(f"tuning: method={method!r}; one of {list(METHODS)}")
    return TuningView(workload, target, method, trials, budget, how)


class TuningView(widgets.VBox):
    """What :func:`tuning` returns. ``tuned``: the result of the last search."""

    def __init__(
        self, workload: Workload, target: str, method: str, trials: int, budget: float, how: dict[str, Any]
    ) -> None:
        super().__init__()
        self.workload, self.target, self.how = workload, target, how
        self.tuned: Any = None
        self.rows: list[Mapping[str, Any]] = []
        self._stop, self._thread = threading.Event(), None
        self.method = widgets.Dropdown(options=list(METHODS), value=method, description="search", **SMALL)
        self.trials = widgets.BoundedIntText(value=trials, min=1, max=10_000, description="at most", **SMALL)
        self.budget = widgets.BoundedFloatText(value=budget, min=1, max=86_400, description="seconds", **SMALL)
        self.start = widgets.Button(description="Search", icon="play", layout={"width": "auto"})
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True, layout={"width": "auto"})
        self.bar = widgets.IntProgress(min=0, max=trials, layout={"width": "16em"})
        self.status = widgets.HTML("<span role='status'>not started</span>")
        self.error, self.chart = widgets.HTML(), widgets.HTML()
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        self.children = [
            widgets.HBox([self.method, self.trials, self.budget, self.start, self.stop], layout=wrap),
            widgets.HBox([self.bar, self.status], layout=wrap),
            self.error,
            self.chart,
        ]
        self.start.on_click(lambda _: self._begin())
        self.stop.on_click(lambda _: self._stop.set())

    def run(self) -> Any:
        """Search now, and return what ``texlab.schedules.tune`` returns."""
        self._stop.clear()
        self.rows, self.error.value, self.bar.value, self.bar.max = [], "", 0, self.trials.value
        self.start.disabled, self.stop.disabled = True, False
        try:
            self.tuned = tune(
                self.workload, self.target, method=self.method.value, trials=self.trials.value, budget=self.budget.value,
                progress=self._progress, **self.how,
            )  # fmt: skip
        except Exception as error:
            self.error.value = note(f"<b>{escape(type(error).__name__)}</b> {escape(str(error))}", BAD)
            raise
        finally:
            self.start.disabled, self.stop.disabled = False, True
        self.chart.value = search_view(self.rows) if self.rows else self.chart.value
        self.status.value = f"<span role='status'>{escape(str(self.tuned))}</span>"
        return self.tuned

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._quietly, daemon=True)
            self._thread.start()

    def _quietly(self) -> None:
        try:
            self.run()
        except Exception:  # it is shown in the view
            return

    def _progress(self, done: int, total: int, row: Mapping[str, Any], best: Mapping[str, Any] | None) -> None:
        self.rows.append(row)
        self.bar.max, self.bar.value = total, done
        found = f"; best so far {best['ms']:.3g} ms" if best else ""
        self.status.value = f"<span role='status'>{done} of {total} candidates{found}</span>"
        self.chart.value = search_view(self.rows)
        if self._stop.is_set():
            raise KeyboardInterrupt

    def close(self) -> None:
        """Stop the search and close every widget."""
        self._stop.set()
        super().close()


def search_view(rows: Sequence[Mapping[str, Any]], width: int = 560, height: int = 260) -> str:
    """A dot for each candidate's time, a cross for one that failed, a line for the best so far; then the best knobs."""
    good = [(n, row["ms"]) for n, row in enumerate(rows, 1) if row.get("ms") is not None]
    failed = [(n, row.get("error") or "failed") for n, row in enumerate(rows, 1) if row.get("ms") is None]
    if not good:
        return note(f"{len(rows)} candidates, none of them usable: {escape(str(failed[-1][1])[:200])}", NEUTRAL)
    left, right, top, bottom = 58, 14, 12, 40
    low, high = min(ms for _, ms in good), max(ms for _, ms in good)
    y0, y1 = log10(low) - 0.08, log10(max(high, 1.3 * low)) + 0.08
    px = lambda n: left + (n - 0.5) / len(rows) * (width - left - right)  # noqa: E731
    py = lambda ms: height - bottom - (log10(ms) - y0) / (y1 - y0) * (height - top - bottom)  # noqa: E731
    ink = "var(--jp-ui-font-color1,currentColor)"
    parts = []
    for tick in (m * 10.0**e for e in range(floor(y0), floor(y1) + 1) for m in (1, 2, 5)):
        if y0 <= log10(tick) <= y1:
            y = py(tick)
            parts.append(
                f"<line x1='{left}' x2='{width - right}' y1='{y:.1f}' y2='{y:.1f}' stroke='{ink}' stroke-opacity='.18'/>"
            )
            parts.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick:g}</text>")
    steps, best = [], good[0][1]
    for n, ms in good:
        steps.append(f"{px(n):.1f},{py(best):.1f}")
        best = min(best, ms)
        steps.append(f"{px(n):.1f},{py(best):.1f}")
    steps.append(f"{width - right},{py(best):.1f}")
    parts.append(f"<polyline points='{' '.join(steps)}' fill='none' stroke='#009E73' stroke-width='2.5'/>")
    parts += [
        f"<circle cx='{px(n):.1f}' cy='{py(ms):.1f}' r='4' fill='#56B4E9' stroke='{ink}' stroke-width='.6'/>"
        for n, ms in good
    ]
    parts += [f"<text x='{px(n):.1f}' y='{top + 8}' text-anchor='middle' fill='#D55E00'>✗</text>" for n, _ in failed]
    parts.append(
        f"<text x='{(left + width) / 2:.0f}' y='{height - 22}' text-anchor='middle'>candidate 1 … {len(rows)}</text>"
    )
    parts.append(
        f"<text transform='translate(14 {(height - bottom) / 2:.0f}) rotate(-90)' text-anchor='middle'>time (ms)</text>"
    )
    winner = min((row for row in rows if row.get("ms") is not None), key=lambda row: row["ms"])
    label = f"{len(good)} candidates from {low:.3g} to {high:.3g} ms, {len(failed)} failed"
    key = "● a candidate  ━ the best so far" + ("  ✗ failed" if failed else "")
    parts.append(f"<text x='{left}' y='{height - 5}' style='font-size:11px'>{key}</text>")
    knobs = ", ".join(f"{k}={v}" for k, v in (winner.get("knobs") or {}).items())
    return (
        f"<svg role='img' aria-label='{label}' width='{width}' height='{height}' "
        f"style='font:12px var(--jp-ui-font-family,sans-serif);fill:{ink}'>{''.join(parts)}</svg>"
        + note(f"<b>{winner['ms']:.3g} ms</b> {escape(knobs)}. {label}.", GOOD)
    )
