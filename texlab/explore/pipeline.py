"""The pipeline explorer: when tiles are loaded and used, what the shared tiles hold meanwhile, and what it takes on a GPU."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np

from texlab import ablation, gpu
from texlab.catalog import kernels
from texlab.explore._base import Explorer, Later
from texlab.explore.bank_tables import BAD, GOOD, NEUTRAL, note
from texlab.explore.pipeline_frames import pictures
from texlab.latency import Moment
from texlab.occupancy import Occupancy, occupancy
from texlab.player import Player
from texlab.program import DeviceError, KernelFault, Program, Run
from texlab.reference import assert_matches, conv2d_reference, error_bound
from texlab.results import Result, load_results, title
from texlab.shapes import LAYERS, ConvShape
from texlab.timeline import STEPS, Timeline, modelled, recorded, stamped, timeline

RUNGS = {
    "05 · one tile": "im2win_zigzag",
    "07 · two tiles, through registers": "im2win_double_buffer",
    "09 · ring of tiles, cp.async": "im2win_pipeline",
}
#: what can be left out of a kernel -> what to look for in its source
LEFT_OUT = {
    "nothing": "",
    "the wait": r"wait_copies<[^;]*;",
    "the barriers": r"__syncthreads\(\);",
}
ALONE, FULL = "one block", "as many as fit"
TILES = 9  # that the simulated corner of a layer has at least, if the layer has as many
LIVE_N = 32  # batch that is timed on a GPU
SMALL = {"layout": {"width": "auto"}, "style": {"description_width": "initial"}}


def pipeline(kernel: str = "im2win_pipeline", shape: ConvShape | None = None, **tunables: int) -> PipelineExplorer:
    """See when tiles are loaded and used, what shared memory holds meanwhile, and what that is worth in time.

    ``kernel``: "im2win_zigzag", "im2win_double_buffer" or "im2win_pipeline" to begin with; ``shape``: a convolution
    of yours instead of a benchmark layer; ``tunables``: STAGES, BLOCK_K, BLOCK_Q, BLOCK_C to begin with.

    The picture is simulated and its cycles are modelled (``texlab.latency``): one block, a corner of the layer. Times
    and the chart below it are measured where there is a GPU, else recorded, and say so.

    Raises ValueError for another kernel; whatever goes wrong later is shown in the explorer.

    >>> explorer = pipeline("im2win_double_buffer")
    >>> explorer.controls["left_out"].value = "the barriers"
    """
    if kernel not in RUNGS.values():
        raise ValueError(f"pipeline: kernel={kernel!r}: choose one of {list(RUNGS.values())}")
    return PipelineExplorer(kernel, shape, tunables)


def corner(shape: ConvShape, block_k: int, block_q: int, block_c: int) -> ConvShape:
    """A convolution like ``shape`` that is one block's work: its filter and stride, one image, at most ``block_k`` filters and
    ``block_q`` pixels, and channels for TILES tiles.

    >>> print(corner(LAYERS["cv9"], 64, 128, 8))
    1x8x4x56 -> 64, 3x3
    """
    c = max(1, min(shape.c // shape.groups, -(-TILES * block_c // (shape.r * shape.s))))
    q = max(1, min(shape.q, block_q))
    p = max(1, min(shape.p, block_q // q))
    h = (p - 1) * shape.stride[0] + (shape.r - 1) * shape.dilation[0] + 1
    w = (q - 1) * shape.stride[1] + (shape.s - 1) * shape.dilation[1] + 1
    k = max(1, min(shape.k // shape.groups, block_k))
    return ConvShape(n=1, c=c, h=h, w=w, k=k, r=shape.r, s=shape.s, stride=shape.stride, dilation=shape.dilation)


def without(program: Program, what: str) -> tuple[Program, int]:
    """The Program with "the wait" or "the barriers" left out of its last kernel's file, and how many there were."""
    text = kernels[program.name].text
    pattern = LEFT_OUT[what]
    lines = [line if "inline" in line or not pattern else re.sub(pattern, ";", line) for line in text.splitlines(True)]
    changed = sum(a != b for a, b in zip(lines, text.splitlines(True), strict=True))
    return replace(program, source=program.source.replace(text, "".join(lines))), changed


@dataclass(frozen=True)
class Study:
    """What the explorer shows: the kernel asked for, the corner simulated, and either its timeline with what shared memory
    went through, or the ``fault`` that stopped it."""

    kernel: str
    tunables: dict[str, int]
    shape: ConvShape
    occupancy: Occupancy
    left_out: int
    run: Run | None = None
    timeline: Timeline | None = None
    moments: tuple[Moment, ...] = ()
    fault: str = ""


def study(kernel: str, shape: ConvShape, resident: int | None = 1, left_out: str = "nothing", **tunables: int) -> Study:
    """Run the corner ``shape`` in the simulator, check its result, and model when things happen.

    ``resident``: blocks that share the multiprocessor; None: as many as fit. Raises AssertionError for a wrong result.
    """
    has = {name: value for name, value in tunables.items() if name in kernels[kernel].tunables}
    program = kernels[kernel].program(shape, **has)
    used = occupancy(program)
    own = {name: value for name, value in has.items() if value != kernels[kernel].tunables[name].default}
    program, changed = without(program, left_out)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape.x_shape, "f4"), rng.standard_normal(shape.w_shape, "f4")
    about = (kernel, own, shape, used, changed)
    try:
        run = stamped(program, steps=STEPS).run(device="sim", trace=[0], x=x, w=w)
    except KernelFault as fault:
        return Study(*about, fault=str(fault))
    how = dict(stride=shape.stride, dilation=shape.dilation)
    bound = error_bound(x, w, **how)
    assert_matches(run.outputs["y"], conv2d_reference(x, w, **how), rtol=0, atol=bound, name="y")
    name = title({"kernel": kernel, "tunables": own})
    look, moments = modelled(run, name, resident=used.blocks if resident is None else resident)
    return Study(*about, run, look, tuple(moments))


def _buttons(options: list[str], description: str) -> widgets.ToggleButtons:
    style = {"button_width": "auto", "description_width": "initial"}
    return widgets.ToggleButtons(options=options, value=options[0], description=description, style=style)


class PipelineExplorer(Explorer):
    """What :func:`pipeline` returns; ``result`` is the :class:`Study` shown, ``player`` the picture."""

    def __init__(self, kernel: str, shape: ConvShape | None, tunables: dict[str, int]) -> None:
        self.shapes = ({"your shape": shape} if shape else {}) | LAYERS
        start = {"STAGES": 2, "BLOCK_K": 64, "BLOCK_Q": 128, "BLOCK_C": 8} | tunables
        choice = lambda name, options: widgets.Dropdown(  # noqa: E731
            options=sorted({*options, start[name]}), value=start[name], description=name, **SMALL
        )
        name = next(text for text, k in RUNGS.items() if k == kernel)
        controls = {
            "rung": widgets.ToggleButtons(options=list(RUNGS), value=name, style={"button_width": "auto"}),
            "STAGES": widgets.IntSlider(
                value=start["STAGES"], min=1, max=5, description="STAGES", continuous_update=False
            ),
            "layer": widgets.Dropdown(
                options=list(self.shapes), value="your shape" if shape else ablation.LAYER, description="layer", **SMALL
            ),
            "BLOCK_K": choice("BLOCK_K", (32, 64)),
            "BLOCK_Q": choice("BLOCK_Q", (64, 128)),
            "BLOCK_C": choice("BLOCK_C", (4, 8, 16)),
            "blocks": _buttons([ALONE, FULL], "on the multiprocessor:"),
            "left_out": _buttons(list(LEFT_OUT), "leave out:"),
        }
        super().__init__(controls, Player())
        self.verdict, self.times = widgets.HTML(), widgets.HTML()
        self.chart = widgets.HTML()
        self._charts: dict[tuple[Any, ...], str] = {}
        self._rest = Later(self._measured)
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        line = lambda *names: widgets.HBox([controls[n] for n in names], layout=wrap)  # noqa: E731
        self.children = [
            widgets.HBox([controls["rung"], controls["STAGES"], self.status], layout=wrap),
            line("layer", "BLOCK_K", "BLOCK_Q", "BLOCK_C"),
            line("blocks", "left_out"),
            self.verdict,
            self.error,
            self.player.controls(interval=150),
            self.player,
            widgets.HBox([self.times, self.chart], layout=wrap),
        ]
        self.request()
        self.wait()

    def compute(self, rung: str, layer: str, blocks: str, left_out: str, **tiles: int) -> Study:
        part = corner(self.shapes[layer], tiles["BLOCK_K"], tiles["BLOCK_Q"], tiles["BLOCK_C"])
        return study(RUNGS[rung], part, 1 if blocks == ALONE else None, left_out, **tiles)

    def show(self, result: Study) -> None:
        self.controls["STAGES"].disabled = result.kernel != "im2win_pipeline"
        self.verdict.value = self._judge(result)
        if result.timeline is not None:
            tiles = {name: self.controls[name].value for name in ("BLOCK_K", "BLOCK_Q", "BLOCK_C")}
            pad = kernels[result.kernel].tunables["PAD"].default
            buffers = {"im2win_zigzag": 1, "im2win_double_buffer": 2}.get(result.kernel, self.controls["STAGES"].value)
            self.player.load(**pictures(result.timeline, result.moments, result.run.trace, tiles, buffers, pad))
        self.times.value = times_table(result.kernel, result.tunables, self.controls["layer"].value)
        self._rest()

    def _recompute(self) -> None:
        super()._recompute()
        if self.result is not None and self.result.fault and not self.error.value:
            self.player.stale = True  # the picture belongs to a kernel that ran to its end

    def _judge(self, result: Study) -> str:
        left_out = self.controls["left_out"].value
        if result.fault:
            text = f"<b>Without {left_out} the simulator stops the kernel:</b>"
            return note(f"{text}<pre style='white-space:pre-wrap;margin:2px 0'>{escape(result.fault)}</pre>", BAD)
        o, look = result.occupancy, result.timeline
        fits = (
            f"{o.registers} registers a thread and {o.shared_bytes / 1024:.1f} KiB a block: {o.blocks} blocks fit on a "
            f"multiprocessor (limit: {o.limited_by})."
        )
        text = f"<b>Right:</b> equals the float64 oracle. {escape(look.summary())} {fits}"
        many = look.stamps.shape[0]
        if many > 1:
            text += f" With {many} blocks the multiprocessor gets a tile done every {look.per_tile:,.0f} cycles."
        if left_out != "nothing" and not result.left_out:
            text = (
                "<b>There is no such wait in this kernel's source.</b> It loads into registers, and the hardware itself waits "
                f"where a register is used before its value is there. {text}"
            )
        where = f"Simulated: {escape(str(result.shape))}, one block's corner of the layer."
        return note(f"{text} {where}", NEUTRAL if left_out != "nothing" else GOOD)

    def _failed(self, error: Exception) -> None:
        super()._failed(error)
        self.verdict.value = self.times.value = self.chart.value = ""

    def _measured(self) -> None:
        """The chart that is not modelled: measured here or recorded."""
        if self.result is None:
            return
        key = (self.result.kernel, *sorted(self.result.tunables.items()), self.controls["layer"].value)
        if key not in self._charts:
            try:
                self._charts[key] = measured_chart(self.result, self.shapes[key[-1]])
            except (RuntimeError, ValueError) as error:
                self._charts[key] = note(f"No measured timeline: {escape(str(error))}", NEUTRAL)
        self.chart.value = self._charts[key]

    def close(self) -> None:
        """Close every widget; nothing runs on in the background."""
        self._rest.cancel()
        super().close()


# what was measured --------------------------------------------------------------------------------------------------
def measured_timeline(kernel: str, layer: str | ConvShape = ablation.LAYER, **tunables: int) -> Timeline:
    """The kernel's timeline on a layer: measured where there is a GPU (batch LIVE_N), else the recorded one, which its
    label says. Raises FileNotFoundError if there is neither."""
    if gpu.available():
        whole = (LAYERS[layer] if isinstance(layer, str) else layer).with_(n=LIVE_N)
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(s, "f4") for s in (whole.x_shape, whole.w_shape))
        return timeline(kernels[kernel].program(whole, **tunables), device="gpu", x=x, w=w)
    if kernel == "im2win_pipeline":  # recorded with its STAGES always named
        tunables = {"STAGES": kernels[kernel].tunables["STAGES"].default} | tunables
    return recorded(kernel, **tunables)


def measured_chart(result: Study, shape: ConvShape) -> str:
    """HTML: the Gantt chart of this GPU or the recorded one, or why there is none."""
    try:
        look = measured_timeline(result.kernel, shape, **result.tunables)
    except FileNotFoundError as error:
        return note(f"No measured timeline here: {escape(str(error))}", NEUTRAL)
    image = base64.b64encode(look.chart(steps=6, warps=2)._repr_png_()).decode()
    return (
        f"<div style='max-width:860px'><img style='max-width:100%' src='data:image/png;base64,{image}' "
        f"alt='{escape(look.summary(), quote=True)}'><div style='line-height:1.4'>{escape(look.summary())}</div></div>"
    )


def times_table(kernel: str, tunables: dict[str, int], layer: str) -> str:
    """HTML: the ablation's times on the layer, recorded, with this kernel marked; and live where there is a GPU."""
    text = _live(kernel, tunables, layer) if gpu.available() and layer in LAYERS else ""
    try:
        result = load_results("pipeline").where(layer=layer)
    except FileNotFoundError as error:
        return text or note(f"No times to show: {escape(str(error))}", NEUTRAL)
    if not len(result):
        return text or note(f"No times are recorded for {escape(layer)}.", NEUTRAL)
    return text + bars(result, layer, title({"kernel": kernel, "tunables": tunables}))


def bars(result: Result, layer: str, shown: str) -> str:
    """HTML: a bar per step of the ablation, the kernel called ``shown`` marked with an arrow."""
    rows = {title(row): row for row in result if row.get("kernel_ms") is not None}
    most = max((row["kernel_ms"] for row in rows.values()), default=1.0)
    body = ""
    for step in ablation.STEPS:
        row = rows.get(step.title)
        if row is None:
            continue
        default = {k: v for k, v in step.tunables.items() if v != kernels[step.kernel].tunables[k].default}
        here = shown == title({"kernel": step.kernel, "tunables": default})
        bar = f"<div style='height:10px;width:{150 * row['kernel_ms'] / most:.0f}px;background:#56B4E9'></div>"
        cells = ["▸" if here else "", step.name, bar, f"{row['kernel_ms']:.3f}"]
        cells += [f"{row['kernel_ms_p10']:.3f} to {row['kernel_ms_p90']:.3f}", str(row.get("resident_blocks", ""))]
        weight = "font-weight:700;background:var(--jp-layout-color2,#eee)" if here else ""
        body += "<tr>" + "".join(f"<td style='padding:1px 7px;{weight}'>{c}</td>" for c in cells) + "</tr>"
    heads = ("", "step", "", "ms", "p10 to p90", "blocks / SM")
    head = "".join(f"<th style='padding:1px 7px;text-align:left'>{h}</th>" for h in heads)
    n = next(iter(rows.values()))["n"] if rows else ""
    style = "border-collapse:collapse;font-size:12px;line-height:1.4;font-variant-numeric:tabular-nums"
    return (
        f"<b>Time of the convolution kernel, {escape(layer)}, N = {n}, default tile sizes</b>"
        f"<table style='{style}'><tr>{head}</tr>{body}</table><small>{escape(result.label)}</small>"
    )


def _live(kernel: str, tunables: dict[str, int], layer: str) -> str:
    """HTML: what this GPU needs for the whole Program at batch LIVE_N, or why it does not run."""
    shape = LAYERS[layer].with_(n=LIVE_N)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape.x_shape, "f4"), rng.standard_normal(shape.w_shape, "f4")
    try:
        run = kernels[kernel].program(shape, **tunables).run(device="gpu", repeat=11, x=x, w=w)
    except DeviceError as error:
        return note(escape(str(error)), NEUTRAL)
    text = f"{escape(title({'kernel': kernel, 'tunables': tunables}))}: {run.ms:.3f} ms"
    return note(
        f"<b>{text}</b>, layout transform included, {escape(layer)} at N = {LIVE_N}, measured live on this GPU.", GOOD
    )
