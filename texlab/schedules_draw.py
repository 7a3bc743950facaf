"""What schedules cost, as matplotlib figures: pure functions of what ``texlab.schedules`` measured.

The look is that of ``texlab.draw``: own white ground and dark ink, a value at each bar, hatching that says what colour says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from texlab.draw import BLUE, GREEN, GREY, GROUND, INK, ORANGE, RED, _panels
from texlab.schedules.cache import STEPS

LIGHT_BLUE = "#56B4E9"
#: step of a first inference -> its name in the legend, colour and hatching
LOOKS = {
    "import": ("import tvm", GREY, "xx"),
    "schedule": ("schedule", ORANGE, "//"),
    "compile": ("compile", BLUE, ""),
    "load": ("load the library", LIGHT_BLUE, "\\\\"),
    "pack": ("pack weights", GREEN, ".."),
    "run": ("run", RED, "++"),
}


def first_inference_figure(cold: Mapping[str, Any], warm: Mapping[str, Any]) -> Any:
    """The first inference of a new process, with an empty cache and with a filled one: a matplotlib Figure.

    ``cold``, ``warm``: what ``texlab.schedules.cache.first_inference`` returned for ``fresh=True`` and ``fresh=False``;
    seconds by step. The left panel has all that was needed, the right one leaves the import of tvm out of both.

    >>> cold = {"import": 1.3, "schedule": 0.02, "compile": 0.26, "load": 0.002, "pack": 0.0006, "run": 0.007}
    >>> warm = {"import": 0.0, "schedule": 0.0, "compile": 0.0, "load": 0.01, "pack": 0.0004, "run": 0.003}
    >>> figure = first_inference_figure(cold, warm)
    >>> [text.get_text() for text in figure.axes[0].texts]
    [' 1.59 s', ' 13.4 ms, 1/119 of cold']
    """
    for name, report in (("cold", cold), ("warm", warm)):
        if missing := [step for step in STEPS if step not in report]:
            raise ValueError(f"first_inference_figure: {name} has no {missing}; it is what first_inference returns")
    figure, axes = _panels([2, 2], 2)
    drawn = {}
    without = [step for step in STEPS if step != "import"]
    for axis, steps, title in (
        (axes[0], STEPS, "all that was needed"),
        (axes[1], without, "without the import of tvm"),
    ):
        totals = [sum(report[step] for step in steps) for report in (cold, warm)]
        for i, report in enumerate((cold, warm)):
            drawn |= _stack(axis, i, report, steps)
            times = f", 1/{totals[0] / totals[1]:.0f} of cold" if i and totals[1] else ""
            axis.text(totals[i], i, f" {_duration(totals[i])}{times}", va="center", fontsize=9, color=INK)
        axis.set_yticks((0, 1), ("cold:\nempty cache", "warm:\nfilled cache"), fontsize=9)
        axis.set_xlim(0, 1.3 * max(totals))
        axis.set_xlabel("seconds", fontsize=8.5, color=INK)
        axis.set_title(f"First inference: {title}", loc="left", fontsize=10, color=INK)
        axis.invert_yaxis()
    handles = [drawn[step] for step in STEPS if step in drawn]
    figure.legend(handles=handles, loc="outside lower left", ncols=6, fontsize=8.5, frameon=False)
    return figure


def _stack(axis: Any, place: int, report: Mapping[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """One bar of steps; returns what the legend needs of those that took any time."""
    left, drawn = 0.0, {}
    for step in steps:
        if report[step] > 0:
            label, color, hatch = LOOKS[step]
            bar = axis.barh(
                place,
                report[step],
                0.6,
                left,
                facecolor=color,
                hatch=hatch,
                edgecolor=GROUND,
                linewidth=0.5,
                label=label,
            )
            drawn[step] = bar
            left += report[step]
    return drawn


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
