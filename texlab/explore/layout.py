"""The layout explorer: every output pixel's window in the image, in im2win, in im2col and in NCHW4c, from the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from math import prod

import ipywidgets as widgets
import numpy as np

from texlab.catalog import kernels
from texlab.explore._base import Explorer
from texlab.explore.layout_frames import UNWRITTEN, Packed, compare, drawn, pack, pictures, windows
from texlab.layouts import LAYOUTS
from texlab.player import ORANGE, SKY, YELLOW, Player
from texlab.program import DeviceError, Program
from texlab.shapes import ConvShape

SHOWN = ("im2win", "im2col", "nchw4c")
#: slider -> (least, most unless the shape asks for more, what it is)
SLIDERS = {
    "c": (1, 4, "C channels"),
    "h": (1, 14, "H height"),
    "w": (1, 14, "W width"),
    "r": (1, 5, "R filter height"),
    "s": (1, 5, "S filter width"),
    "stride": (1, 3, "stride"),
    "padding": (0, 2, "padding"),
    "dilation": (1, 2, "dilation"),
}
GPU_BYTES = 2**31  # layouts above this are not packed on the GPU just for a table

Source = str | Program | Callable[[ConvShape], Program] | None


def layout(shape: ConvShape | None = None, kernel: Source = None) -> LayoutExplorer:
    """See in every layout where the window of an output pixel lies; step, play, or click a pixel.

    ``shape``: where the sliders start (default one 8 x 8 channel, 3 x 3 filter); of a large one a corner is drawn.
    ``kernel``: a layout kernel of yours to look at: a Program for exactly ``shape``'s image, a function from a ConvShape
    to a Program, or a catalog name. If its output has the dimensions of im2win, im2col or NCHW4c it takes that one's
    place and is held against that layout's equation (so is one with the dimensions of another of ``texlab.layouts``); any
    other output is drawn as it is. Its panel comes first.

    Raises ValueError for an unknown name; whatever goes wrong later is shown in the explorer.

    >>> explorer = layout(ConvShape(n=1, c=1, h=6, w=6, k=1, r=3, s=3))
    >>> explorer.controls["stride"].value = 2
    """
    if isinstance(kernel, str) and (kernel not in kernels or kernels[kernel].kind != "layout"):
        names = [name for name, k in kernels.items() if k.kind == "layout"]
        raise ValueError(f"layout: kernel={kernel!r} is no layout kernel of the catalog; choose one of {names}")
    return LayoutExplorer(shape or ConvShape(n=1, c=1, h=8, w=8, k=1, r=3, s=3), kernel)


def check_layout(kernel: Program | Callable[[ConvShape], Program], shape: ConvShape, name: str) -> str:
    """Run a layout kernel of yours in the simulator and say whether it gives layout ``name`` of ``texlab.layouts``: that
    all elements agree, or the first that does not, what it holds and what it should hold.

    >>> shape = ConvShape(n=1, c=1, h=3, w=4, k=1, r=2, s=2)
    >>> print(check_layout(kernels["im2win"].program, shape, "im2win"))
    All 16 elements are where im2win wants them: xw[n, c, p, w*R + r] = x[n, c, p*stride + r*dilation, w]
    """
    if name not in LAYOUTS:
        raise ValueError(f"check_layout: name={name!r}: the layouts are {sorted(LAYOUTS)}")
    return compare(pack(_program(kernel, shape), shape), name, shape)


@dataclass(frozen=True)
class Study:
    """What the explorer shows: the ``shape`` asked for, the part ``drawn``, what each kernel did there,
    and what is known of its time ``on_gpu``."""

    shape: ConvShape
    drawn: ConvShape
    packed: list[Packed]
    on_gpu: list[str]


class LayoutExplorer(Explorer):
    """What :func:`layout` returns. ``result`` is the :class:`Study` shown, ``controls`` the sliders by name, ``player``
    the picture (``player.save("window.svg")``)."""

    def __init__(self, shape: ConvShape, kernel: Source) -> None:
        self.shape, self.kernel = shape, kernel
        self.start = {name: _first(getattr(shape, name)) for name in SLIDERS}
        controls = {}
        for name, (least, most, text) in SLIDERS.items():
            value = self.start[name]
            controls[name] = widgets.IntSlider(
                value=value,
                min=min(least, value),
                max=max(most, value),
                description=text,
                disabled=isinstance(kernel, Program),
                style={"description_width": "100px"},
                layout={"width": "290px"},
            )
        super().__init__(controls, Player())
        self.table = widgets.HTML()
        sliders = widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
        self.children = [sliders, self.status, self.error, self.player.controls(), self.player, self.table]
        self.request()
        self.wait()
        if self.result is not None:  # open where there is a neighbour on the left to share with
            self.player.step = min(self.result.drawn.q + 1, self.player.steps - 1)

    def compute(self, **values: int) -> Study:
        changed = {name: value for name, value in values.items() if value != self.start[name]}
        shape = self.shape.with_(**changed)
        part = shape if isinstance(self.kernel, Program) else drawn(shape)
        programs = {name: kernels[name].program(part) for name in SHOWN}
        packed = {name: pack(program, part) for name, program in programs.items()}
        if self.kernel is not None:
            own = pack(_program(self.kernel, part), part)
            name = own.layout or "yours"
            packed.pop(name, None)
            packed = {name: own, **packed}
        times = _gpu_times(shape)
        on_gpu = [times[name] if p.program is programs.get(name) else "not timed" for name, p in packed.items()]
        return Study(shape, part, list(packed.values()), on_gpu)

    def show(self, result: Study) -> None:
        self.player.load(**pictures(result.drawn, result.packed))
        self.table.value = table(result)

    def window(self, name: str, pixel: int) -> np.ndarray:
        """Where output ``pixel`` (p*Q + q) finds its window: ascending flat positions in the array of kernel ``name``
        ("im2win", "im2col", "nchw4c", or your Program's name), as the picture shows them; "nchw" is the image itself.

        >>> explorer = layout(ConvShape(n=1, c=1, h=4, w=4, k=1, r=2, s=2))
        >>> explorer.window("nchw", 0), explorer.window("im2win", 0)
        (array([0, 1, 4, 5]), array([0, 1, 2, 3]))
        """
        names = [p.program.name for p in self.result.packed]
        if name == "nchw":
            element = windows(self.result.drawn).element[pixel]
            return np.sort(element[element >= 0])
        if name not in names:
            raise ValueError(f"window: name={name!r}: the picture shows {['nchw', *names]}")
        sizes = [p["rows"] * p["cols"] for p in self.player.panels]
        start = sum(sizes[: 2 + names.index(name)])
        colours = self.player.frames[pixel, start : start + sizes[2 + names.index(name)]]
        return np.flatnonzero(np.isin(colours, (ORANGE, SKY, YELLOW)))


def _first(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]


def _program(kernel: Source, shape: ConvShape) -> Program:
    if isinstance(kernel, Program):
        return kernel
    return kernels[kernel].program(shape) if isinstance(kernel, str) else kernel(shape)


def _gpu_times(shape: ConvShape) -> dict[str, str]:
    """What this machine's GPU needs for the catalog's pack kernels on the whole ``shape``, or why that is not known."""
    from texlab import gpu

    if not gpu.available():
        return dict.fromkeys(SHOWN, "no GPU here")
    largest = max(LAYOUTS[name].bytes(shape) for name in SHOWN)
    if largest > GPU_BYTES:
        return dict.fromkeys(SHOWN, f"not run: {largest / 2**30:.1f} GiB")
    x = np.random.default_rng(0).standard_normal(shape.x_shape, dtype=np.float32)
    try:
        runs = {name: kernels[name].program(shape).run(device="gpu", x=x, repeat=11) for name in SHOWN}
    except DeviceError as error:  # a GPU that fails must not take the picture away
        return dict.fromkeys(SHOWN, escape(str(error)))
    return {name: f"{run.ms:.3f} ms" for name, run in runs.items()}


# the table ---------------------------------------------------------------------------------------------------------
def table(study: Study) -> str:
    """HTML: what each layout costs in bytes, and what its kernel's loads and stores cost."""
    shape, rows = study.shape, []
    input_bytes = 4 * prod(shape.x_shape)
    largest = max(LAYOUTS[name].expansion(shape) for name in SHOWN)
    rows.append(["image (NCHW)", f"{prod(shape.x_shape):,}", f"{input_bytes:,}", _bar(1.0, largest), "", "", "", ""])
    for packed, on_gpu in zip(study.packed, study.on_gpu, strict=True):
        known = packed.layout and study.shape != study.drawn
        elements = LAYOUTS[packed.layout].elements(shape) if known else len(packed.source)
        times = f"{packed.run.ms:.1f} ms"
        rows.append(
            [
                escape(packed.program.name),
                f"{elements:,}",
                f"{4 * elements:,}",
                _bar(elements / prod(shape.x_shape), largest),
                *(_sectors(packed, kind) for kind in ("load", "store")),
                times,
                on_gpu,
            ]
        )
    heads = ["layout", "elements", "bytes", "× the input", "pack kernel's loads", "its stores"]
    heads += ["simulation took", "on the GPU"]
    head = "".join(f"<th style='text-align:left;padding:2px 14px 2px 0'>{h}</th>" for h in heads)
    cell = "<td style='text-align:left;padding:2px 14px 2px 0;font-variant-numeric:tabular-nums'>"
    body = "".join(f"<tr>{''.join(f'{cell}{v}</td>' for v in row)}</tr>" for row in rows)
    notes = [f"Bytes are for {escape(str(shape))} in float32."]
    if study.drawn != study.shape:
        notes.append(f"Drawn and simulated: {escape(str(study.drawn))}, a corner of it.")
    unwritten = {p.program.name: int((p.source == UNWRITTEN).sum()) for p in study.packed}
    notes += [f"{escape(name)} left {n:,} elements unwritten." for name, n in unwritten.items() if n]
    notes.append("Loads and stores: 32-byte sectors per warp-wide request, and the share of their bytes that is used.")
    return f"<table style='border-spacing:0;line-height:1.5'><tr>{head}</tr>{body}</table><div>{' '.join(notes)}</div>"


def _bar(value: float, largest: float) -> str:
    style = f"display:inline-block;height:10px;width:{120 * value / largest:.0f}px;background:var(--jp-brand-color1,#0072B2)"
    return f"<span style='{style}'></span> {value:.2f}×"


def _sectors(packed: Packed, kind: str) -> str:
    frame = packed.run.trace.sectors()
    frame = frame[frame["kind"] == kind]
    requests, sectors, used = (int(frame[name].sum()) for name in ("requests", "sectors", "bytes_used"))
    return f"{sectors / requests:.2f} sectors, {used / (32 * sectors):.0%} used" if requests and sectors else "none"
