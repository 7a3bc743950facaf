"""The precision explorer: what a number keeps in each format, and a convolution's error against its time."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Any

import ipywidgets as widgets
import numpy as np

from texlab import precision as formats
from texlab.explore._base import Explorer
from texlab.player import GREEN, OUTSIDE, SKY, VERMILLION, Player
from texlab.precision import PRECISIONS
from texlab.results import Result, load_results
from texlab.shapes import LAYERS, ConvShape
from texlab.studies import INPUTS, study

NAMES = ("float32", *PRECISIONS)
#: name -> (bits of the exponent, bits of the fraction); int8 is a sign and seven bits
FIELDS = {"float32": (8, 23), "tf32": (8, 10), "bfloat16": (8, 7), "float16": (5, 10), "e4m3": (4, 3), "int8": (0, 7)}
#: Okabe-Ito, dark enough on white and light enough on black; the label beside a point says the same
INKS = {
    "float32": "#0072B2",
    "tf32": "#009E73",
    "bfloat16": "#E69F00",
    "float16": "#D55E00",
    "e4m3": "#CC79A7",
    "int8": "#56B4E9",
}


def precision(layer: str = "cv9", inputs: str = "uniform") -> PrecisionExplorer:
    """Choose a layer and a kind of inputs; see each precision's error, simulated now on a cut-out of the layer, beside
    the error and the time that were recorded for the whole layer on a GPU.

    >>> explorer = precision("cv9")  # doctest: +SKIP
    """
    if layer not in LAYERS:
        raise ValueError(f"precision: layer={layer!r}; the layers are {list(LAYERS)}")
    if inputs not in INPUTS:
        raise ValueError(f"precision: inputs={inputs!r}; choose one of {list(INPUTS)}")
    return PrecisionExplorer(layer, inputs)


@dataclass(frozen=True)
class Study:
    """``live``: precision -> a row of ``texlab.studies.study`` on ``shape``; ``times`` (ms) and ``errors`` recorded."""

    layer: str
    inputs: str
    shape: ConvShape
    live: dict[str, dict[str, Any]]
    times: dict[str, float]
    errors: dict[str, float]
    label: str
    batch: int | None


def cut_out(layer: ConvShape) -> ConvShape:
    """A piece of a layer small enough to simulate: its filter and stride, few channels and outputs."""
    side = layer.r + 3 * layer.stride[0]
    return layer.with_(n=1, c=min(layer.c, 16), k=min(layer.k, 16), h=side, w=side)


class PrecisionExplorer(Explorer):
    """What :func:`precision` returns. ``result`` is the :class:`Study` that is shown."""

    def __init__(self, layer: str, inputs: str) -> None:
        style = {"description_width": "initial"}
        options = [(f"{name}: {shape}", name) for name, shape in LAYERS.items()]
        controls = {
            "layer": widgets.Dropdown(
                options=options, value=layer, description="layer", style=style, layout={"width": "330px"}
            ),
            "inputs": widgets.Dropdown(options=list(INPUTS), value=inputs, description="inputs", style=style),
        }
        super().__init__(controls, Player())
        self.number = widgets.FloatText(
            0.1, description="a number", continuous_update=False, style=style, layout={"width": "200px"}
        )
        self.number.observe(lambda _: self._draw_bits(), "value")
        self.about, self.picture, self.table = widgets.HTML(), widgets.HTML(), widgets.HTML()
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        bar = widgets.HBox([*controls.values(), self.status], layout=wrap)
        self.children = [
            self.number,
            self.player,
            bar,
            self.about,
            self.error,
            widgets.HBox([self.picture, self.table], layout=wrap),
        ]
        self._draw_bits()
        self.request()
        self.wait()

    def compute(self, layer: str, inputs: str) -> Study:
        shape = cut_out(LAYERS[layer])
        live = {name: study(shape, name, inputs) for name in NAMES}
        times, errors, label, batch = {}, {}, "", None
        try:
            recorded = load_results("precision").where(layer=layer)
        except FileNotFoundError:
            recorded = Result([])
        for row in recorded:
            if row.get("ms") is not None:
                times[row["precision"]], batch, label = row["ms"], row["n"], recorded.label
            elif row.get("inputs") == inputs and row.get("output") == "float32" and row.get("scales") != "per tensor":
                errors[row["precision"]] = row["rel_err"]
        return Study(layer, inputs, shape, live, times, errors, label, batch)

    def show(self, result: Study) -> None:
        self.about.value = f"<div style='line-height:1.5'><b>{result.inputs}</b>: {escape(INPUTS[result.inputs])}</div>"
        self.picture.value = scatter(result)
        self.table.value = table(result)

    def _draw_bits(self) -> None:
        self.player.load(**bits(float(self.number.value)))


# pictures: pure functions -------------------------------------------------------------------------------------------
def bits(value: float) -> dict[str, Any]:
    """What the player draws (``Player.load(**bits(0.1))``): the sign, exponent and fraction that each format keeps of a
    number, a row each, with the number it becomes."""
    names = list(FIELDS)
    colours, tags = np.full((len(names), 32), OUTSIDE), np.full((len(names), 32), -1)
    labels, tips = [], []
    number = np.array([value], np.float32)
    for i, name in enumerate(names):
        exponent, fraction = FIELDS[name]
        width = 1 + exponent + fraction
        stored = number if name == "float32" else _stored(number, name)
        raw = int(stored.view(f"u{stored.dtype.itemsize}")[0]) >> (8 * stored.dtype.itemsize - width)
        tags[i, :width] = [raw >> (width - 1 - j) & 1 for j in range(width)]
        colours[i, :width] = [VERMILLION] + [SKY] * exponent + [GREEN] * fraction
        kept = number if name == "float32" else formats.decode(stored, name)
        labels.append(f"{name}: {float(kept[0]):.8g}")
        fields = ["sign"] + ["exponent"] * exponent + ["fraction" if exponent else "value"] * fraction
        tips += [f"{name}: {field}" for field in fields] + [f"{name} has {width} bits"] * (32 - width)
    panel = dict(
        name="bits", title="The bits that each format keeps", rows=len(names), cols=32, row_labels=labels, cell=18
    )
    return dict(
        panels=[{**panel, "tips": tips, "tag_name": "bit"}],
        frames=colours.reshape(1, -1).astype(np.uint8),
        tags=tags.reshape(1, -1).astype(np.int16),
        captions=[f"{value:.9g} in the formats of the matrix units (int8 without a scale)"],
        legend={VERMILLION: "sign", SKY: "exponent", GREEN: "fraction (int8: two's complement)"},
        label=f"bits of {value:.9g} in six number formats",
    )


def _stored(number: np.ndarray, name: str) -> np.ndarray:
    if name == "int8" and np.isnan(number).any():
        return np.zeros(1, np.int8)
    return formats.encode(number, name)


def scatter(result: Study, width: int = 420, height: int = 320) -> str:
    """Error against time, both logarithmic, as inline SVG in the theme's ink; a note where no time is recorded."""
    points = {n: (result.times[n], result.errors.get(n, result.live[n]["rel_err"])) for n in NAMES if n in result.times}
    points = {n: p for n, p in points.items() if p[1] > 0}
    if not points:
        return (
            "<div style='max-width:28em;line-height:1.5'>No times are recorded for this layer, so there is no picture of error "
            "against time. On a machine with a GPU: <code>python -m texlab.bench record precision</code></div>"
        )
    left, right, top, bottom = 62, 20, 14, 46
    xs, ys = ([p[i] for p in points.values()] for i in (0, 1))
    x0, x1 = log10(min(xs)) - 0.12, log10(max(xs)) + 0.3
    y0, y1 = floor(log10(min(ys))), ceil(log10(max(ys)))
    px = lambda v: left + (log10(v) - x0) / (x1 - x0) * (width - left - right)  # noqa: E731
    py = lambda v: height - bottom - (log10(v) - y0) / max(y1 - y0, 1) * (height - top - bottom)  # noqa: E731
    ink = "var(--jp-ui-font-color1,currentColor)"
    parts = []
    for e in range(y0, y1 + 1):
        y = py(10.0**e)
        parts.append(
            f"<line x1='{left}' x2='{width - right}' y1='{y:.1f}' y2='{y:.1f}' stroke='{ink}' stroke-opacity='.18'/>"
        )
        parts.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>1e{e}</text>")
    for tick in (m * 10.0**e for e in range(floor(x0), ceil(x1) + 1) for m in (1, 2, 5)):
        if x0 <= log10(tick) <= x1:
            parts.append(f"<text x='{px(tick):.1f}' y='{height - bottom + 16}' text-anchor='middle'>{tick:g}</text>")
    parts.append(
        f"<text x='{(left + width) / 2:.0f}' y='{height - 8}' text-anchor='middle'>time (ms), N = {result.batch}</text>"
    )
    parts.append(
        f"<text transform='translate(13 {(height - bottom) / 2:.0f}) rotate(-90)' text-anchor='middle'>relative error (L2)</text>"
    )
    for name, (ms, error) in points.items():
        x, y = px(ms), py(error)
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='6' fill='{INKS[name]}' stroke='{ink}'/>")
        crowded = any(0 < px(t) - x < 70 and abs(py(e) - y) < 14 for t, e in points.values())
        tx, ty, anchor = (x, y - 11, "middle") if crowded else (x + 10, y + 4, "start")
        parts.append(f"<text x='{tx:.1f}' y='{ty:.1f}' text-anchor='{anchor}' font-weight='600'>{name}</text>")
    label = "; ".join(f"{n}: {ms:.3g} ms, error {e:.1e}" for n, (ms, e) in points.items())
    return (
        f"<svg role='img' aria-label='error against time: {label}' width='{width}' height='{height}' "
        f"style='font:12px var(--jp-ui-font-family,sans-serif);fill:{ink}'>{''.join(parts)}</svg>"
        f"<div style='font-size:12px'>Times and errors {escape(result.label)}.</div>"
    )


def table(result: Study) -> str:
    """Every precision's errors and time as an HTML table."""
    heads = ("", "error now<br><small>simulated, cut-out</small>", "error<br><small>whole layer</small>", "sums' error")
    heads += ("its bound", "time<br><small>ms</small>", "against<br>float32")
    cell = "<td style='text-align:right;padding:2px 12px 2px 0;font-variant-numeric:tabular-nums'>"
    body = ""
    for name in NAMES:
        row, ms, base = result.live[name], result.times.get(name), result.times.get("float32")
        infinite = f" ({row['infinite']} infinite)" if row["infinite"] else ""
        cells = [f"{row['rel_err']:.1e}{infinite}", f"{result.errors[name]:.1e}" if name in result.errors else ""]
        cells += [f"{row['sum_err']:.1e}", f"{row['sum_bound']:.1e}", f"{ms:.3f}" if ms else ""]
        cells += [f"{base / ms:.2f}×" if ms and base else ""]
        swatch = f"<span style='color:{INKS[name]}'>●</span> {name}"
        first = f"<td style='text-align:left;padding:2px 12px 2px 0'>{swatch}</td>"
        body += f"<tr>{first}{''.join(f'{cell}{c}</td>' for c in cells)}</tr>"
    head = "".join(f"<th style='text-align:right;padding:2px 12px 2px 0;vertical-align:bottom'>{h}</th>" for h in heads)
    return (
        f"<table style='border-spacing:0;line-height:1.4'><tr>{head}</tr>{body}</table>"
        f"<div style='max-width:44em;line-height:1.5;font-size:12px'>Simulated now: {escape(str(result.shape))}. <i>Error</i>: "
        "against float64 of the inputs as they were, in the L2 norm. <i>Sums' error</i>: of the kernel alone, after the "
        "inputs were rounded, as a share of &Sigma;|x||w|; every output is checked against its bound.</div>"
    )
