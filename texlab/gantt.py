"""The Gantt chart of a Timeline: a matplotlib Figure with its own white ground, readable in light and dark notebooks."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

INK, GROUND, GRID = "#1a1a1a", "#ffffff", "#dddddd"
#: interval -> what it is called, colour (Okabe and Ito), hatching: the pattern says what the colour says
STYLES = {
    "load": ("a tile on its way", "#56B4E9", ""),
    "issue": ("issuing its loads", "#F0E442", "...."),
    "multiply": ("multiplying", "#009E73", ""),
    "wait": ("waiting", "#D55E00", "////"),
}
LANE = 0.24  # inches of height a line of bars takes
SHOWN = 7  # steps drawn, unless asked for more


def chart(timeline: Any, *, steps: int = SHOWN, warps: int = 4, blocks: int = 1, until: float | None = None) -> Any:
    """The first ``steps`` tiles of a ``texlab.timeline.Timeline``, for ``warps`` warps of the first ``blocks`` blocks.

    Each warp has a line for what it does (issue loads, multiply, wait) and, above it, a line for each tile that can be on
    its way at the same time; numbers are tiles. ``until``: where the time axis ends (cycles), to compare charts.

    Raises ValueError if there is nothing to draw.
    """
    from matplotlib.patches import Patch, Rectangle

    stamps = timeline.stamps[:blocks, :warps, :steps]
    if not stamps.size or np.isnan(stamps).all():
        raise ValueError(f"chart: {timeline.name} has no stamps to draw")
    spans = (timeline.loads, timeline.issues, timeline.waits, timeline.multiplies)
    loads, issues, waits, multiplies = (a[:blocks, :warps, :steps] for a in spans)
    depth = max(1, max(_at_once(loads[b, w]) for b in range(len(loads)) for w in range(loads.shape[1])))
    origin, right = float(np.nanmin(stamps)), float(np.nanmax(stamps))
    right = until if until is not None else right - origin
    per_warp = depth + 1.5
    lines = len(loads) * loads.shape[1]
    figure = _figure(9.2, LANE * per_warp * lines + 1.35)
    axis = figure.subplots()
    names = []

    def bar(span: np.ndarray, y: float, style: str, text: str = "") -> None:
        start, end = span - origin
        if np.isnan(span).any() or end <= start:
            return
        _, colour, hatch = STYLES[style]
        box = Rectangle((start, y), end - start, 0.86, facecolor=colour, edgecolor=INK, linewidth=0.5, hatch=hatch)
        axis.add_patch(box)
        if text and end - start > 0.018 * right:
            middle = (max(start, 0) + min(end, right)) / 2
            axis.text(middle, y + 0.42, text, ha="center", va="center", fontsize=7.5, color=INK, clip_on=True)

    for b in range(len(loads)):
        for w in range(loads.shape[1]):
            top = (b * loads.shape[1] + w) * per_warp
            names.append(
                (top + depth / 2 + 0.5, f"warp {w}" if blocks == 1 else f"block {timeline.blocks[b]}, warp {w}")
            )
            for tile in range(loads.shape[2]):
                bar(loads[b, w, tile], top + tile % depth, "load", str(tile))
                bar(issues[b, w, tile], top + depth, "issue")
                bar(waits[b, w, tile], top + depth, "wait")
                bar(multiplies[b, w, tile], top + depth, "multiply", str(tile))
    axis.set_xlim(0, right)
    axis.set_ylim(lines * per_warp - 0.4, -0.3)
    axis.set_yticks([y for y, _ in names], [name for _, name in names], fontsize=8.5)
    axis.set_xlabel("cycles since the first load" + (" (modelled)" if timeline.how == "modelled" else ""), fontsize=8.5)
    axis.tick_params(colors=INK, labelsize=8.5)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=GRID, linewidth=0.7)
    text = f"overlap {timeline.overlap:.0%}, a warp waits {timeline.exposed:,.0f} of {timeline.per_step:,.0f} cycles a step"
    axis.set_title(f"{timeline.name}: {text}", loc="left", fontsize=10, color=INK)
    patches = [Patch(facecolor=c, hatch=h, edgecolor=INK, linewidth=0.5, label=n) for n, c, h in STYLES.values()]
    figure.legend(handles=patches, loc="outside lower left", ncols=4, fontsize=8.5, frameon=False)
    figure.suptitle(timeline.label, x=0.01, ha="left", fontsize=8.5, color=INK)
    return figure


def _at_once(spans: np.ndarray) -> int:
    """The most intervals (n, 2) that overlap at one time."""
    spans = spans[~np.isnan(spans).any(axis=1)]
    return max((int(((spans[:, 0] <= t) & (spans[:, 1] > t)).sum()) for t in spans[:, 0]), default=0)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that shows itself in a notebook, whatever backend is set."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Picture(figsize=(width, height), facecolor=GROUND, layout="constrained")
