"""The canvas player: linked grids of cells, all frames sent to the browser once, stepped there without asking Python.

A *panel* is a grid of ``rows x cols`` cells. A *frame* gives every cell of every panel a colour index, and optionally
a number to print in it. ``Player`` shows them in Jupyter; ``Player.figure`` draws the same arrays with matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    import anywidget
    import ipywidgets
    import traitlets
except ImportError as error:  # pragma: no cover (depends on the machine)
    raise ImportError(
        f"texlab's pictures need anywidget and ipywidgets ({error}): pip install anywidget ipywidgets. "
        "Everything that does not draw in the browser works without them."
    ) from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMPTY, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, MUTED, OUTSIDE = range(10)
#: Okabe-Ito colours by index; player.js has the same list. 0 is the empty cell, 8 a grey, 9 hatched "not in memory".
COLOURS = (
    "#ffffff", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#d6d6d6", "#ffffff",
)  # fmt: skip
MARKS = ("", "corner", "cross", "hatch", "outline")

#: key of a panel -> what it holds
PANEL_KEYS = {
    "name": "short name, used in tooltips",
    "title": "heading above the grid",
    "rows": "number of rows",
    "cols": "number of columns",
    "x": "caption of the columns",
    "y": "caption of the rows",
    "row_labels": "list of str, one a row",
    "col_labels": "list of str, one a column",
    "row_breaks": "rows in front of which a gap is left",
    "col_breaks": "columns in front of which a gap is left",
    "tips": "list of str, one a cell: what the cell is, e.g. 'x[c=0, h=3, w=4]'",
    "tag_name": "what the printed numbers are, e.g. 'tap' or 'thread'",
    "notes": "list of str, one a step: a line under the heading",
    "outline": "colour indexes whose neighbouring cells in a row get one heavy frame: a contiguous run",
    "cell": "largest size of a cell in CSS pixels (22); shrinks to 13 so that the grid fits, then scrolls",
}

_CSS = """
.tlp{position:relative;max-width:100%;padding:4px;color:var(--jp-ui-font-color1);font-family:var(--jp-ui-font-family);
  font-size:13px}
.tlp:focus-visible{outline:2px solid var(--jp-brand-color1,#1976d2);outline-offset:-1px}
.tlp-caption{font-size:14px;line-height:1.4;padding:2px 0 6px}
.tlp-legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding-bottom:8px}
.tlp-item{display:flex;align-items:center;gap:6px}
.tlp-item canvas{width:16px;height:16px}
.tlp-panels{display:flex;flex-wrap:wrap;gap:14px 26px;align-items:flex-start}
.tlp-panel{max-width:100%;min-width:0}
.tlp-title{font-weight:600}
.tlp-note{line-height:1.4;white-space:pre-line}
.tlp-scroll{max-width:100%;overflow-x:auto;padding-top:4px}
.tlp-scroll canvas{display:block;touch-action:pan-x pan-y}
.tlp-tip{position:absolute;z-index:5;pointer-events:none;white-space:pre;padding:4px 8px;border-radius:3px;
  font-size:12px;line-height:1.4;background:var(--jp-inverse-layout-color1,#333);color:var(--jp-ui-inverse-font-color0,#fff)}
.tlp-tip[hidden]{display:none}
.tlp-stale .tlp-panels,.tlp-stale .tlp-caption{opacity:.35;filter:grayscale(1)}
"""


class Player(anywidget.AnyWidget):
    """Linked grids of cells with a step.

    Parameters
    ----------
    panels : list of dict, keys as in ``PANEL_KEYS``; the cells of all panels, row by row, follow one another
    frames : uint8 (T, cells), colour index 0-9 of every cell at every step (``EMPTY``, ``ORANGE``, ... ``OUTSIDE``)
    tags : int16 (T, cells), the number printed in a cell, -1 for none; None: no numbers
    captions : T strings
    legend : {colour index: text} or {colour index: (text, mark)}; a mark ("corner", "cross", "hatch", "outline") is a
        second sign beside the colour
    points : int32 (cells of the first panel,), the step that clicking the cell goes to, -1 for none
    links : int32 (cells,), cells with equal numbers light up together under the pointer, -1 for none
    page : steps that ArrowUp/Down and PageUp/Down move
    label : what the picture is, for screen readers

    ``frames`` and ``tags`` may be edited in place; ``refresh()`` then shows the edit. Keys: arrows, PageUp/PageDown,
    Home, End, space (plays, once ``controls()`` are shown).

    >>> player = Player([dict(name="tile", rows=1, cols=2)], [[1, 0], [0, 1]], captions=["left", "right"])
    >>> player.step = 1
    """

    _esm = (Path(__file__).parent / "player.js").read_text(encoding="utf-8")  # text: a watched file would leak views
    _css = _CSS

    panels = traitlets.List().tag(sync=True)
    frame_bytes = traitlets.Bytes(b"").tag(sync=True)
    tag_bytes = traitlets.Bytes(b"").tag(sync=True)
    link_bytes = traitlets.Bytes(b"").tag(sync=True)
    point_bytes = traitlets.Bytes(b"").tag(sync=True)
    captions = traitlets.List().tag(sync=True)
    legend = traitlets.List().tag(sync=True)
    label = traitlets.Unicode("").tag(sync=True)
    page = traitlets.Int(8).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    stale = traitlets.Bool(False, help="grey: the picture does not belong to the current settings").tag(sync=True)

    def __init__(
        self, panels: Sequence[Mapping[str, Any]] = (), frames: Any = None, tags: Any = None, **how: Any
    ) -> None:
        super().__init__()
        self._controls: list[Any] = []  # Play and slider pairs
        self._links: list[Any] = []
        self.frames = np.zeros((1, 0), np.uint8)
        self.tags: np.ndarray | None = None
        if panels:
            self.load(panels, frames, tags, **how)

    @property
    def steps(self) -> int:
        """Number of frames T."""
        return len(self.frames)

    def load(
        self,
        panels: Sequence[Mapping[str, Any]],
        frames: Any,
        tags: Any = None,
        *,
        captions: Sequence[str] = (),
        legend: Mapping[int, Any] | None = None,
        points: Any = None,
        links: Any = None,
        page: int = 8,
        label: str = "",
        step: int | None = None,
    ) -> None:
        """Replace everything in one message (nothing is sent if nothing differs). ``step`` None keeps the step as far
        as there are frames. Raises ValueError naming what does not fit."""
        panels = [_checked_panel(p) for p in panels]
        cells = [p["rows"] * p["cols"] for p in panels]
        frames = np.ascontiguousarray(frames, np.uint8)
        if frames.ndim != 2 or not len(frames) or frames.shape[1] != sum(cells):
            raise ValueError(f"frames {frames.shape}: expected (steps, {sum(cells)}), the cells of all panels {cells}")
        if frames.size and frames.max() >= len(COLOURS):
            raise ValueError(f"frames hold colour {frames.max()}: the colours are 0 to {len(COLOURS) - 1}")
        if tags is not None:
            tags = np.ascontiguousarray(tags, np.int16)
            if tags.shape != frames.shape:
                raise ValueError(f"tags {tags.shape} must have the shape of frames {frames.shape}")
        steps = len(frames)
        for what, texts in [("captions", captions), *((f"notes of {p['name']!r}", p.get("notes")) for p in panels)]:
            if texts and len(texts) != steps:
                raise ValueError(f"{len(texts)} {what} for {steps} frames: one a frame")
        points = _cells("points", points, cells[0] if cells else 0)
        links = _cells("links", links, sum(cells))
        self.frames, self.tags = frames, tags
        step = self.step if step is None else step
        for widget in self._controls:  # a smaller maximum clips the value in the browser, a larger one must come first
            widget.max = max(steps - 1, 1)
        with self.hold_sync():
            self.panels = panels
            self.captions = [str(c) for c in captions]
            self.legend = [_legend_entry(*item) for item in (legend or {}).items()]
            self.link_bytes, self.point_bytes = links.tobytes(), points.tobytes()
            self.page, self.label = int(page), label
            self._encode()
            self.step = min(max(int(step), 0), steps - 1)

    def refresh(self) -> None:
        """Show ``frames`` and ``tags`` after they were edited in place (one message; none if nothing differs)."""
        with self.hold_sync():
            self._encode()

    def _encode(self) -> None:
        self.frame_bytes = self.frames.tobytes()
        self.tag_bytes = b"" if self.tags is None else self.tags.tobytes()

    def controls(self, interval: int = 350) -> ipywidgets.HBox:
        """Play button (``interval`` ms a step) and step slider, linked in the browser; ``load`` keeps their range."""
        last = max(self.steps - 1, 1)
        play = ipywidgets.Play(min=0, max=last, value=self.step, interval=interval)
        slider = ipywidgets.IntSlider(min=0, max=last, value=self.step, description="step", layout={"width": "420px"})
        pairs = (((self, "step"), (slider, "value")), ((play, "value"), (slider, "value")))
        self._links += [ipywidgets.jslink(*pair) for pair in (*pairs, ((self, "playing"), (play, "playing")))]
        self._controls += [play, slider]
        return ipywidgets.HBox([play, slider])

    def close(self) -> None:
        """Free the browser's and the kernel's copy of the frames."""
        parts = [*self._links, *self._controls, *held(self)]
        self._links, self._controls = [], []
        self.frames, self.tags = np.zeros((1, 0), np.uint8), None
        super().close()
        close_all(parts)

    def figure(self, step: int | None = None) -> Figure:
        """The picture of one step (default: the current one) as a matplotlib Figure, drawn from the same arrays."""
        step = self.step if step is None else step
        if not 0 <= step < self.steps:
            raise ValueError(f"step={step}: there are steps 0 to {self.steps - 1}")
        return _figure(self, step)

    def save(self, path: str | Path, step: int | None = None) -> None:
        """Save the picture of one step; the suffix picks the format (.svg, .png, .pdf)."""
        self.figure(step).savefig(path)


def held(widget: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    """The widgets that ``widget`` holds: children, layout, style."""
    values = [getattr(widget, name, None) for name in widget.keys]
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in values]
    return [part for items in lists for part in items if isinstance(part, ipywidgets.Widget)]


def close_all(parts: Sequence[ipywidgets.Widget]) -> None:
    """Close widgets with all that they hold. ipywidgets keeps every widget, also a layout, alive until it is closed."""
    for part in parts:
        if part.comm is not None:
            inner = held(part)
            part.close()
            close_all(inner)


def _checked_panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    """A panel with plain Python values; ValueError for unknown keys or lists of the wrong length."""
    panel = dict(panel)
    unknown = set(panel) - set(PANEL_KEYS)
    missing = {"name", "rows", "cols"} - set(panel)
    if unknown or missing:
        raise ValueError(f"panel {panel.get('name')!r}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    rows, cols = int(panel["rows"]), int(panel["cols"])
    panel.update(rows=rows, cols=cols)
    for key, count in (("row_labels", rows), ("col_labels", cols), ("tips", rows * cols)):
        if panel.get(key) is not None:
            panel[key] = [str(t) for t in panel[key]]
            if len(panel[key]) != count:
                raise ValueError(
                    f"panel {panel['name']!r} ({rows} x {cols}): {len(panel[key])} {key}, expected {count}"
                )
    for key in ("row_breaks", "col_breaks", "outline"):
        panel[key] = [int(v) for v in panel.get(key) or ()]
    if panel.get("notes") is not None:
        panel["notes"] = [str(t) for t in panel["notes"]]
    return {k: v for k, v in panel.items() if v is not None}


def _legend_entry(colour: int, entry: Any) -> list[Any]:
    text, mark = (entry, "") if isinstance(entry, str) else entry
    if not 0 <= colour < len(COLOURS) or mark not in MARKS:
        raise ValueError(f"legend {colour}: {entry!r}: colours are 0 to {len(COLOURS) - 1}, marks {MARKS[1:]}")
    return [int(colour), str(text), mark]


def _cells(what: str, values: Any, count: int) -> np.ndarray:
    """int32 per cell; empty for None."""
    if values is None:
        return np.zeros(0, np.int32)
    values = np.ascontiguousarray(values, np.int32).reshape(-1)
    if len(values) != count:
        raise ValueError(f"{what} has {len(values)} entries for {count} cells")
    return values


# The same picture in matplotlib, in inches ---------------------------------------------------------------------------
_CELL, _WIDEST, _GAP = 0.2, 13.0, 0.55


def _figure(player: Player, step: int) -> Figure:
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that shows itself in a notebook, whatever backend is set."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    marks = {colour: mark for colour, _, mark in player.legend}
    places, width, height = _flow(player.panels)
    caption = player.captions[step] if player.captions else ""
    head, foot = 0.35 + 0.2 * caption.count("\n"), 0.35 if player.legend else 0.0
    picture = Picture(figsize=(width, height + head + foot), dpi=110, facecolor="white")
    total = height + head + foot
    picture.text(0.1 / width, 1 - 0.08 / total, caption, va="top", fontsize=10)
    start = 0
    for panel, (left, top, wide, high) in zip(player.panels, places, strict=True):
        axes = picture.add_axes((left / width, 1 - (head + top + high) / total, wide / width, high / total))
        end = start + panel["rows"] * panel["cols"]
        tags = None if player.tags is None else player.tags[step, start:end]
        _draw_panel(axes, panel, player.frames[step, start:end], tags, marks, step)
        start = end
    if player.legend:
        from matplotlib.patches import Patch

        patches = [Patch(label=text, **_style(colour, mark)) for colour, text, mark in player.legend]
        picture.legend(handles=patches, loc="lower left", ncols=len(patches), frameon=False, fontsize=8)
    return picture


def _flow(panels: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[float, float, float, float]], float, float]:
    """(left, top, width, height) of each panel, placed like words on lines; and the extent of the whole."""
    places, x, y, line, right = [], 0.75, 0.5, 0.0, 0.0
    for panel in panels:
        wide, high = max(panel["cols"] * _CELL, 0.07 * len(panel.get("title", ""))), panel["rows"] * _CELL
        if places and x + wide > _WIDEST:
            x, y, line = 0.75, y + line + 1.0, 0.0
        places.append((x, y, panel["cols"] * _CELL, high))
        right, line = max(right, x + wide), max(line, high)
        x += wide + _GAP + 0.5
    return places, max(right + 0.25, 6.0), y + line + 0.4


def _style(colour: int, mark: str) -> dict[str, Any]:
    hatch = {"corner": "..", "cross": "xx", "hatch": "///"}.get(mark, "///" if colour == OUTSIDE else "")
    face = "#ffffff" if mark == "outline" else COLOURS[colour]
    edge = COLOURS[colour] if mark == "outline" else "#c8c8c8"
    return {"facecolor": face, "edgecolor": edge, "hatch": hatch, "linewidth": 1.8 if mark == "outline" else 0.5}


def _draw_panel(
    axes: Any, panel: Mapping[str, Any], frame: np.ndarray, tags: Any, marks: Mapping[int, str], step: int
) -> None:
    from matplotlib.patches import Rectangle

    rows, cols = panel["rows"], panel["cols"]
    for i, colour in enumerate(map(int, frame)):
        axes.add_patch(Rectangle((i % cols, i // cols), 1, 1, **_style(colour, marks.get(colour, ""))))
        if tags is not None and tags[i] >= 0:
            text, ink = str(tags[i]), "white" if colour == BLUE else "black"
            size = min(8.0, 14 / max(len(text), 1.6))
            axes.text(i % cols + 0.5, i // cols + 0.52, text, ha="center", va="center", fontsize=size, color=ink)
    for row, first, length in _runs(np.isin(frame, panel["outline"]).reshape(rows, cols), panel["col_breaks"]):
        axes.add_patch(Rectangle((first, row), length, 1, fill=False, edgecolor="black", linewidth=1.6, zorder=3))
    for cuts, line in ((panel["row_breaks"], axes.axhline), (panel["col_breaks"], axes.axvline)):
        for cut in cuts:
            line(cut, color="black", linewidth=1.2)
    axes.set(xlim=(0, cols), ylim=(rows, 0), xlabel=panel.get("x", ""), ylabel=panel.get("y", ""))
    for labels, axis, count in (
        (panel.get("col_labels"), axes.xaxis, cols),
        (panel.get("row_labels"), axes.yaxis, rows),
    ):
        axis.set_ticks(np.arange(0, count, max(1, count // 24)) + 0.5 if labels else [])
        if labels:
            axis.set_ticklabels(labels[:: max(1, count // 24)])
    axes.tick_params(length=0, labelsize=7)
    note = panel["notes"][step].replace("\n", "; ") if panel.get("notes") else ""
    axes.set_title("\n".join(filter(None, [panel.get("title", panel["name"]), note])), fontsize=9, loc="left")


def _runs(selected: np.ndarray, breaks: Sequence[int] = ()) -> list[tuple[int, int, int]]:
    """(row, first column, length) of every horizontal run of True in a 2-D bool array, cut at ``breaks``.

    >>> _runs(np.array([[True, True, False, True, True]]), breaks=[4])
    [(0, 0, 2), (0, 3, 1), (0, 4, 1)]
    """
    before = np.pad(selected, ((0, 0), (1, 0)))[:, :-1]
    after = np.pad(selected, ((0, 0), (0, 1)))[:, 1:]
    before[:, list(breaks)] = False
    after[:, [b - 1 for b in breaks]] = False
    starts, ends = np.argwhere(selected & ~before), np.argwhere(selected & ~after)
    return [(int(r), int(a), int(b - a) + 1) for (r, a), (_, b) in zip(starts, ends, strict=True)]
