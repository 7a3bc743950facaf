"""The bank explorer: one warp's shared-memory accesses over the 32 banks, from the trace of the real kernel."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
from texlab.explore._base import Later

from texlab.catalog import kernels
from texlab.compiler import CompileError
from texlab.explore import bank_tables as tables
from texlab.explore.bank_frames import bank_frames, shared_rows
from texlab.explore.bank_scenarios import OWN, SCENARIOS, SHAPE, Study, check_expression, clash, lane_places, study
from texlab.player import Player
from texlab.program import KernelFault, Program
from texlab.shapes import ConvShape, ShapeError

SHOWN = 16  # accesses in the picture: four k-steps of the tiled kernels
TILES = {"BLOCK_K": (32, 64, 128), "BLOCK_Q": (64, 128), "BLOCK_C": (4, 8, 16), "PAD": (0, 4, 8)}
LOADS, STORES = "every load", "every store"
NARROW = widgets.Layout(width="150px")


def banks(
    kernel: str = "im2win_zigzag", shape: ConvShape | None = None, program: Program | None = None, **arrays: np.ndarray
) -> BankExplorer:
    """Look at one warp's shared-memory accesses bank by bank, and change the kernel while looking.

    ``kernel``: "im2win_zigzag" or "im2win_tile" open with the scenarios naive, padded, split, zig-zag and your own
    mapping; another convolution of the catalog is shown by itself. ``shape``: the convolution (default: one block's
    tile). ``program``: your own Program instead, its inputs in ``arrays`` (default: random numbers).

    Raises ValueError for an unknown kernel; whatever goes wrong later is shown in the explorer.

    >>> explorer = banks("im2win_zigzag")
    >>> explorer.scenario.value = "naive"
    """
    if program is None and (kernel not in kernels or kernels[kernel].kind != "conv"):
        names = [name for name, k in kernels.items() if k.kind == "conv"]
        raise ValueError(f"banks: kernel={kernel!r} is no convolution of the catalog; choose one of {names}")
    return BankExplorer(kernel, shape or SHAPE, program, arrays)


class BankExplorer(widgets.VBox):
    """What :func:`banks` returns: controls, the player and the tables. ``study`` is the run that is shown."""

    def __init__(self, kernel: str, shape: ConvShape, program: Program | None, arrays: dict[str, np.ndarray]) -> None:
        self.kernel, self.shape, self.program, self.arrays = kernel, shape, program, arrays
        self.study: Study | None = None
        self.player = Player()
        self.guided = program is None and kernel in {s.kernel for s in SCENARIOS.values()}
        start = {"im2win_tile": "padded"}.get(kernel, "zig-zag")
        self.scenario = widgets.ToggleButtons(options=list(SCENARIOS), value=start, style={"button_width": "auto"})
        self.story = widgets.HTML()
        self.lane_k, self.lane_q = (
            widgets.Text(
                kernels["im2win_zigzag"].tunables[name].default,
                description=f"{name} =",
                continuous_update=False,
                layout=widgets.Layout(width="440px"),
            )
            for name in ("LANE_K", "LANE_Q")
        )
        self.own = widgets.HBox([self.lane_k, self.lane_q], layout=widgets.Layout(flex_flow="row wrap", display="none"))
        self.tiles = {}
        if program is None:
            defaults = {name: t.default for name, t in kernels[kernel].tunables.items() if name in TILES}
            for name, value in defaults.items():
                options = sorted({*TILES[name], value})
                self.tiles[name] = widgets.Dropdown(options=options, value=value, description=name, layout=NARROW)
        self.lines = widgets.Dropdown(description="show", layout=widgets.Layout(width="520px"))
        self.warp = widgets.Dropdown(description="warp", options=[0], layout=NARROW)
        self.status, self.side = widgets.HTML(), widgets.HTML()
        picture = widgets.VBox([self.player.controls(), self.player], layout=widgets.Layout(max_width="100%"))
        wrap = widgets.Layout(flex_flow="row wrap", grid_gap="4px 24px")
        rows = [
            *([self.scenario, self.story, self.own] if self.guided else []),
            widgets.HBox([self.lines, self.warp, *self.tiles.values()], layout=wrap),
            self.status,
            widgets.HBox([picture, self.side], layout=wrap),
        ]
        super().__init__(rows)
        self._later = Later(self.recompute, busy=self._busy)
        for control in (self.scenario, self.lane_k, self.lane_q, *self.tiles.values()):
            control.observe(lambda _: self._later(), "value")
        for control in (self.lines, self.warp):
            control.observe(lambda _: self._draw(), "value")
        self.recompute()

    # running -----------------------------------------------------------------------------------------------------
    def _busy(self) -> None:
        self.player.stale = True
        self.status.value = tables.note("running the kernel in the simulator …", tables.NEUTRAL)

    def tunables(self) -> dict[str, Any]:
        """The ``#define``s of the kernel that the controls ask for."""
        chosen = {name: w.value for name, w in self.tiles.items()}
        if not self.guided:
            return chosen
        chosen |= SCENARIOS[self.scenario.value].tunables
        if self.scenario.value == OWN:
            chosen |= {"LANE_K": self.lane_k.value, "LANE_Q": self.lane_q.value}
        return chosen

    def recompute(self) -> None:
        """Run what the controls ask for and show it; a failure is shown, with the last good picture greyed."""
        self.own.layout.display = "flex" if self.scenario.value == OWN else "none"
        if self.guided:
            self.story.value = f"<div style='max-width:75em'>{SCENARIOS[self.scenario.value].story}</div>"
            self.tiles["PAD"].disabled = "PAD" in SCENARIOS[self.scenario.value].tunables
        try:
            self.study = self._run()
        except (CompileError, KernelFault, ShapeError, ValueError, RuntimeError) as error:
            self.player.stale = True
            self.status.value = tables.note(f"{type(error).__name__}: {error}", tables.BAD, mono=True)
            return
        self._choices()
        self._draw()

    def _run(self) -> Study:
        if self.program is not None:
            return Study(self.program.run(device="sim", trace=[0], **self._inputs()), None)
        if self.guided and self.scenario.value == OWN:
            check_expression("LANE_K", self.lane_k.value, 3)
            check_expression("LANE_Q", self.lane_q.value, 7)
        kernel = SCENARIOS[self.scenario.value].kernel if self.guided else self.kernel
        return study(kernel, self.shape, **self.tunables())

    def _inputs(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        given = {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in self.program.inputs}
        return {**given, **self.arrays}

    def _choices(self) -> None:
        """The lines and warps that this kernel has, keeping what was chosen where it still exists."""
        trace = self.study.run.trace
        shared = [i for i in trace.instructions if i.space == "shared"]
        kinds = [(LOADS, "load"), (STORES, "store")]
        options = [(text, kind) for text, kind in kinds if any(i.kind == kind for i in shared)]
        for line in sorted({(i.file, i.line, i.kind, i.source) for i in shared}, key=lambda k: k[1]):
            options.append((f"{line[2]}, line {line[1]}:  {line[3]}", line[:3]))
        for widget, wanted in (
            (self.lines, options or [("no shared-memory access", None)]),
            (self.warp, sorted(set(trace.warp[trace.block == 0].tolist())) or [0]),
        ):
            kept = widget.value
            if list(widget.options) != list(wanted):
                with widget.hold_trait_notifications():
                    widget.options = wanted
                    values = [w[1] if isinstance(w, tuple) else w for w in wanted]
                    widget.value = kept if kept in values else values[0]

    # showing -----------------------------------------------------------------------------------------------------
    def _draw(self) -> None:
        if self.study is None or self.lines.value is None:
            return
        trace, choice = self.study.run.trace, self.lines.value
        wanted = [
            n
            for n, i in enumerate(trace.instructions)
            if i.space == "shared" and choice in (i.kind, (i.file, i.line, i.kind))
        ]
        label = self.scenario.value if self.guided else self.study.run.program.name
        try:
            places = lane_places(trace, self.warp.value) if self.guided else None
            rows = shared_rows(trace, 0, self.warp.value, wanted)
            pictures = bank_frames(trace, rows, SHOWN, f"{label}, warp {self.warp.value}", places)
        except ValueError as error:
            self.player.stale = True
            self.status.value = tables.note(str(error), tables.BAD)
            return
        self.player.load(**pictures.load)
        self.player.stale = False
        self.status.value = self._verdict(pictures.left_out)
        self.side.value = tables.side(self.study, label if self.guided else None, self.shape, self.tunables())

    def _verdict(self, left_out: int) -> str:
        run, wrong = self.study.run, self.study.wrong
        more = (
            f" The picture shows the first {SHOWN} accesses of this warp; {left_out} more follow." if left_out else ""
        )
        ran = f"{escape(run.program.filename)} ran in the simulator in {run.ms:.0f} ms."
        if wrong is None:
            return tables.note(f"{ran} Its result was not compared with anything.{more}", tables.NEUTRAL, html=True)
        if not wrong:
            return tables.note(f"<b>Right:</b> y equals the float64 oracle. {ran}{more}", tables.GOOD, html=True)
        why = clash(self.lane_k.value, self.lane_q.value) if self.guided and self.scenario.value == OWN else ""
        text = f"<b>Wrong result,</b> so its wavefronts count for nothing. {escape(why)}{escape(wrong)}"
        return tables.note(text, tables.BAD, html=True)
