"""Results as matplotlib figures: pure functions of a Result, a DataFrame or a list of rows.

Figures have their own white ground and dark ink, so they read the same in a light and in a dark notebook; every bar
carries its value, and hatching says what colour says. Colours: Okabe and Ito.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from texlab.results import Result, group, title

INK, GROUND, GRID = "#1a1a1a", "#ffffff", "#dddddd"
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
#: what a bar stands for -> colour and hatching
STYLES = {
    "kernel": {"facecolor": BLUE},
    "layout or copy": {"facecolor": GREEN, "hatch": ".."},
    "peer": {"facecolor": ORANGE, "hatch": "//"},
}
#: figures of a simulated result, in the order of their panels
COUNTS = {
    "instructions_per_output": "warp instructions per output",
    "shared_wavefronts_per_output": "shared wavefronts per output",
    "global_sectors_per_output": "global sectors (32 bytes) per output",
}
ROW = 0.32  # inches of height a bar takes


def result_bars(result: Result) -> Any:
    """The measured times of each layer, or the simulated counts, as horizontal bars: a matplotlib Figure.

    A bar is the median with the 10th and 90th percentile; the black tick in it is the last launch alone. A contestant
    without a verified output has no bar, and the reason in its place.

    Raises ValueError for a result with neither times nor counts.
    """
    rows = list(result)
    if any(row.get("ms") is not None for row in rows):
        fields = {"ms": "ms"}
    else:
        fields = {f: text for f, text in COUNTS.items() if any(row.get(f) is not None for row in rows)}
    if not fields:
        reasons = sorted({str(row.get("error")) for row in rows})
        raise ValueError(
            f"result_bars: no row has a verified time or count to draw; {reasons or 'the result is empty'}"
        )
    panels = []
    for _, group_rows in groupby(rows, key=group):
        members = list(group_rows)
        name = _heading(members[0])
        panels += [(name if f == "ms" else f"{name}\n{text}", members, f, text) for f, text in fields.items()]
    columns = len(fields) if len(fields) > 1 else min(len(panels), 3)
    figure, axes = _panels([len(members) for _, members, _, _ in panels], columns)
    for axis, (heading, members, f, text) in zip(axes, panels, strict=True):
        _bars(axis, members, f, text, room=70 if columns == 1 else 36)
        axis.set_title(heading, loc="left", fontsize=10, color=INK)
    _legend(figure, rows, any(row.get("kernel_ms") is not None for row in rows))
    figure.suptitle(result.label, x=0.01, ha="left", fontsize=9, color=INK)
    return figure


def predicted_measured(result: Result | Iterable[Mapping[str, Any]]) -> Any:
    """The simulator's counts beside the hardware's, one panel a counter and shape: a matplotlib Figure.

    Rows: ``kernel, shape, source, counter, predicted, measured`` (a Result of the topic "counters", a DataFrame or a
    list). Equal pairs are marked "=", others with the difference.

    Raises ValueError without such rows.
    """
    wanted = ("counter", "predicted", "measured")
    rows = [r for r in _rows(result) if all(_known(r.get(f)) for f in wanted)]
    if not rows:
        raise ValueError(f"predicted_measured: no row has {', '.join(wanted)}")
    key = lambda row: (str(row.get("shape", "")), row["counter"])  # noqa: E731
    panels = [(k, list(members)) for k, members in groupby(sorted(rows, key=key), key=key)]
    figure, axes = _panels([2 * len(members) for _, members in panels], min(len(panels), 2), labels=3.2)
    for axis, ((shape, counter), members) in zip(axes, panels, strict=True):
        most = max(max(row["predicted"], row["measured"]) for row in members)
        for i, row in enumerate(members):
            for offset, field, style in ((-0.2, "predicted", STYLES["kernel"]), (0.2, "measured", STYLES["peer"])):
                axis.barh(i + offset, row[field], 0.38, label=field if i == 0 else None, edgecolor=GROUND, **style)
            text = f" {row['predicted']:,.6g} {_difference(row['predicted'], row['measured'])}"
            axis.text(max(row["predicted"], row["measured"]), i, text, va="center", fontsize=8, color=INK)
        axis.set_yticks(range(len(members)), [_pair_label(row) for row in members], fontsize=8)
        axis.set_xlim(0, 1.45 * most if most else 1)
        axis.set_title(f"{counter.replace('_', ' ')}\n{shape}".strip(), loc="left", fontsize=10, color=INK)
        axis.invert_yaxis()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=2, fontsize=8.5, frameon=False)
    if isinstance(result, Result):
        figure.suptitle(result.label, x=0.01, ha="left", fontsize=9, color=INK)
    return figure


def layout_bytes(table: Any) -> Any:
    """Bytes of each layout as bars, against the first row (the image itself): a matplotlib Figure.

    ``table``: a DataFrame or a list of rows with ``layout`` and ``bytes``.

    Raises ValueError without rows.

    >>> figure = layout_bytes([{"layout": "nchw", "bytes": 4096}, {"layout": "im2win", "bytes": 12288}])
    >>> [text.get_text().strip() for text in figure.axes[0].texts]
    ['4.0 KiB', '12.0 KiB, 3.00x nchw']
    """
    rows = _rows(table)
    if not rows:
        raise ValueError("layout_bytes: no rows; each needs 'layout' and 'bytes'")
    first = rows[0]
    figure, (axis,) = _panels([len(rows)], 1)
    for i, row in enumerate(rows):
        style = {"facecolor": GREY} if i == 0 else STYLES["kernel"]
        axis.barh(i, row["bytes"], 0.7, edgecolor=GROUND, **style)
        text = f" {_size(row['bytes'])}"
        if i and first["bytes"]:
            text += f", {row['bytes'] / first['bytes']:.2f}x {first['layout']}"
        axis.text(row["bytes"], i, text, va="center", fontsize=9, color=INK)
    axis.set_yticks(range(len(rows)), [row["layout"] for row in rows])
    axis.set_xlim(0, 1.45 * max(row["bytes"] for row in rows) or 1)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.invert_yaxis()
    return figure


# parts --------------------------------------------------------------------------------------------------------
def _bars(axis: Any, rows: list[dict[str, Any]], field: str, unit: str, room: int) -> None:
    """One bar a row with its value, percentiles and last launch; the reason, cut to ``room`` characters, where there is none."""
    most = max((row[field] for row in rows if row.get(field) is not None), default=0.0)
    for i, row in enumerate(rows):
        value = row.get(field)
        if value is None:
            text = f" none: {_short(row.get('error') or 'not measured', room)}"
            # outside the layout: a long reason must not squeeze the bars
            axis.text(0, i, text, va="center", fontsize=8, color=RED, clip_on=True).set_in_layout(False)
            continue
        axis.barh(i, value, 0.7, edgecolor=GROUND, **STYLES[_style(row)])
        right = value
        if field == "ms":
            right = max(value, row["ms_p90"])
            spread = [[value - row["ms_p10"]], [row["ms_p90"] - value]]
            axis.errorbar(value, i, xerr=spread, color=INK, capsize=2.5, linewidth=1)
            if row.get("kernel_ms") is not None:
                axis.plot([row["kernel_ms"]] * 2, [i - 0.35, i + 0.35], color=INK, linewidth=2.2, solid_capstyle="butt")
        text = f"  {value:.3g} ms" if field == "ms" else f"  {value:.3g}"
        axis.text(right, i, text, va="center", fontsize=8.5, color=INK)
    axis.set_yticks(range(len(rows)), [title(row) for row in rows], fontsize=9)
    axis.set_xlim(0, 1.3 * most if most else 1)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    if field == "ms":
        axis.set_xlabel(unit, fontsize=8.5, color=INK)


def _style(row: Mapping[str, Any]) -> str:
    if row.get("peer"):
        return "peer"
    return "kernel" if row.get("kind", "conv") == "conv" else "layout or copy"


def _legend(figure: Any, rows: list[dict[str, Any]], ticks: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {_style(row) for row in rows if row.get("verified") is True}
    handles: list[Any] = [
        Patch(label=name, edgecolor=GROUND, **style) for name, style in STYLES.items() if name in used
    ]
    if ticks:
        handles.append(Line2D([], [], color=INK, linewidth=2.2, label="last launch alone"))
    if len(handles) > 1:
        figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=8.5, frameon=False)


def _panels(bars: list[int], columns: int, labels: float = 1.6) -> tuple[Any, list[Any]]:
    """A Figure with one axis a panel, each line of panels as high as its most bars; ``labels``: inches for names."""
    lines = [bars[i : i + columns] for i in range(0, len(bars), columns)]
    heights = [ROW * max(line) + 0.75 for line in lines]
    width = min(4.2 + labels, 14.0 / columns) * columns if columns > 1 else 6.0 + labels
    figure = _figure(width, sum(heights) + 0.7)
    grid = figure.subplots(len(lines), columns, squeeze=False, gridspec_kw={"height_ratios": heights}).ravel()
    for unused in grid[len(bars) :]:
        unused.remove()
    for axis in grid[: len(bars)]:
        axis.set_facecolor(GROUND)
        axis.tick_params(colors=INK, labelsize=8.5)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["bottom", "left"]].set_color(INK)
        axis.set_axisbelow(True)
        axis.grid(axis="x", color=GRID, linewidth=0.7)
    return figure, list(grid[: len(bars)])


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that shows itself in a notebook, whatever backend is set."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Picture(figsize=(width, height), facecolor=GROUND, layout="constrained")


def _rows(table: Any) -> list[dict[str, Any]]:
    """A Result, a DataFrame or any rows, as dictionaries."""
    to_dict: Callable[..., Any] | None = getattr(table, "to_dict", None)
    return to_dict("records") if to_dict else [dict(row) for row in table]


def _known(value: Any) -> bool:
    return value is not None and value == value  # a DataFrame has NaN where a row has nothing


def _heading(row: Mapping[str, Any]) -> str:
    n = row.get("n")
    layer = str(row.get("layer", ""))
    return layer if n is None or layer.startswith(f"{n}x") else f"{layer}, N = {n}"


def _pair_label(row: Mapping[str, Any]) -> str:
    source = " ".join(str(row.get("source") or "").split())
    return title(row) + (f"\n{_short(source, 44)}" if source else "")


def _difference(predicted: float, measured: float) -> str:
    if predicted == measured:
        return "= measured"
    percent = f" ({100 * (measured - predicted) / predicted:+.1f} %)" if predicted else ""
    return f"predicted, {measured:,.6g} measured{percent}"


def _short(text: str, length: int = 70) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"
