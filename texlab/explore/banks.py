"""The bank explorer: one warp's shared-memory accesses over the 32 banks, from the trace of the real kernel."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np

from texlab.catalog import kernels
from texlab.explore import bank_tables as tables
from texlab.explore._base import Explorer, Later
from texlab.explore.bank_frames import bank_frames, fitting, shared_rows
from texlab.explore.bank_scenarios import OWN, SCENARIOS, SHAPE, Study, check_expression, clash, lane_places, study
from texlab.player import Player
from texlab.program import Program
from texlab.reference import assert_matches
from texlab.shapes import ConvShape

TILES = {"BLOCK_K": (32, 64, 128), "BLOCK_Q": (64, 128), "BLOCK_C": (4, 8, 16), "PAD": (0, 4, 8)}
SMALL = {"layout": {"width": "auto"}, "style": {"description_width": "initial"}}
EVERYTHING = [("every access", "any"), ("every load", "load"), ("every store", "store"), ("every atomic", "atomic")]
NARROW = widgets.Layout(width="150px")


def banks(
    kernel: str = "im2win_zigzag",
    shape: ConvShape | None = None,
    program: Program | None = None,
    accesses: int | None = None,
    want: Mapping[str, np.ndarray] | None = None,
    **arrays: np.ndarray,
) -> BankExplorer:
    """Look at one warp's shared-memory accesses bank by bank, and change the kernel while looking.

    ``kernel``: "im2win_zigzag" or "im2win_tile" open with the scenarios naive, padded, split, zig-zag and your own
    mapping; another convolution of the catalog is shown by itself. ``shape``: the convolution (default: one block's
    tile). ``program``: your own Program instead, its inputs in ``arrays`` (default: random numbers).
    ``want``: the outputs that your Program must give, by name; without it the result cannot be judged.
    ``accesses``: how many the picture holds (default: what fits a screen, at most 12).

    Raises ValueError for an unknown kernel; whatever goes wrong later is shown in the explorer.

    >>> explorer = banks("im2win_zigzag")
    >>> explorer.controls["scenario"].value = "naive"
    """
    names = [name for name, k in kernels.items() if k.kind == "conv" and "PRECISION" not in k.tunables]
    if program is None and kernel in kernels and "PRECISION" in kernels[kernel].tunables:
        raise ValueError(
            f"banks: kernel={kernel!r} takes other arrays than float32: give its program, e.g. "
            f"banks(program=texlab.kernels[{kernel!r}].program(shape), x=..., w=...)"
        )
    if program is None and kernel not in names:
        raise ValueError(f"banks: kernel={kernel!r} is no convolution of the catalog; choose one of {names}")
    return BankExplorer(kernel, shape or SHAPE, program, arrays, accesses, want)


class BankExplorer(Explorer):
    """What :func:`banks` returns: controls, the player and the tables. ``result`` is the Study that is shown."""

    def __init__(
        self,
        kernel: str,
        shape: ConvShape,
        program: Program | None,
        arrays: dict[str, np.ndarray],
        accesses: int | None,
        want: Mapping[str, np.ndarray] | None,
    ) -> None:
        self.kernel, self.shape, self.accesses = kernel, shape, accesses
        self.program, self.arrays, self.want = program, arrays, want
        self.guided = program is None and kernel in {s.kernel for s in SCENARIOS.values()}
        controls: dict[str, Any] = {}
        if self.guided:
            start = "padded" if kernel == "im2win_tile" else "zig-zag"
            controls["scenario"] = widgets.ToggleButtons(
                options=list(SCENARIOS), value=start, style={"button_width": "auto"}
            )
            for name in ("LANE_K", "LANE_Q"):
                controls[name] = widgets.Text(
                    kernels["im2win_zigzag"].tunables[name].default,
                    description=f"{name} =",
                    continuous_update=False,
                    layout={"width": "440px"},
                )
        if program is None:
            for name, tunable in kernels[kernel].tunables.items():
                if name in TILES:
                    options = sorted({*TILES[name], tunable.default})
                    controls[name] = widgets.Dropdown(options=options, value=tunable.default, description=name, **SMALL)
        super().__init__(controls, Player())
        self.story, self.verdict, self.side = widgets.HTML(), widgets.HTML(), widgets.HTML(layout={"width": "550px"})
        self.lines = widgets.Dropdown(description="show", layout={"width": "460px"}, style=SMALL["style"])
        self.warp = widgets.Dropdown(description="warp", **SMALL)
        self._redraw = True
        self._others: dict[str, Study | str | None] = {}
        self._compared: dict[str, int] = {}
        self._label = self._lines_html = ""
        self._rest = Later(self._fill)
        for control in (self.lines, self.warp):
            control.observe(self._chosen, "value")
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        tiles = [controls[name] for name in TILES if name in controls]
        rows = [widgets.HBox([self.lines, self.warp, *tiles], layout=wrap), self.verdict, self.error]
        if self.guided:
            self.own = widgets.HBox([controls["LANE_K"], controls["LANE_Q"]], layout=wrap)
            controls["scenario"].observe(self._announce, "value")
            self._announce(None)
            rows = [widgets.HBox([controls["scenario"], self.status], layout=wrap), self.story, self.own, *rows]
        else:
            rows.append(self.status)
        picture = widgets.VBox([self.player.controls(), self.player], layout={"width": "730px", "max_width": "100%"})
        self.children = [*rows, widgets.HBox([picture, self.side], layout=wrap)]
        self.request()
        self.wait()

    def _announce(self, change: Any) -> None:
        """Say what the chosen scenario is, and open what belongs to it, before it has run."""
        scenario = SCENARIOS[self.controls["scenario"].value]
        self.story.value = f"<div style='max-width:75em;line-height:1.5'>{scenario.story}</div>"
        self.controls["PAD"].layout.display = "none" if "PAD" in scenario.tunables else "flex"
        self.own.layout.display = "flex" if self.controls["scenario"].value == OWN else "none"

    # running -----------------------------------------------------------------------------------------------------
    def compute(self, scenario: str | None = None, LANE_K: str = "", LANE_Q: str = "", **tiles: int) -> Study:
        """Run what the controls ask for."""
        if self.program is not None:
            rng = np.random.default_rng(0)
            inputs = {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in self.program.inputs} | self.arrays
            run = self.program.run(device="sim", trace=[0], **inputs)
            return Study(run, None if self.want is None else _differences(run.outputs, self.want))
        if scenario is None:
            return study(self.kernel, self.shape, **tiles)
        tunables = {**tiles, **SCENARIOS[scenario].tunables}
        if scenario == OWN:
            check_expression("LANE_K", LANE_K, 3)
            check_expression("LANE_Q", LANE_Q, 7)
            tunables |= {"LANE_K": LANE_K, "LANE_Q": LANE_Q}
        return study(SCENARIOS[scenario].kernel, self.shape, **tunables)

    # showing -----------------------------------------------------------------------------------------------------
    def show(self, result: Study) -> None:
        """Offer the lines and warps that this run has, draw, and put the tables beside it."""
        trace = result.run.trace
        self._label = label = self.controls["scenario"].value if self.guided else result.run.program.name
        shared = [i for i in trace.instructions if i.space == "shared"]
        lines = [(text, kind) for text, kind in EVERYTHING if kind == "any" or any(i.kind == kind for i in shared)]
        for file, line, kind, source in sorted({(i.file, i.line, i.kind, i.source) for i in shared}):
            lines.append((f"{kind}s of line {line}:  {source}", (file, line, kind)))
        warps = sorted(set(trace.warp[trace.block == 0].tolist()))
        self._redraw = False  # once, below, and not at each of these changes
        _offer(self.lines, lines, "load" if self.guided else "any")
        _offer(self.warp, [(str(w), w) for w in warps], warps[0] if warps else None)
        self._redraw = True
        left_out = self._draw(result)
        self.verdict.value = self._judge(result, left_out)
        self._lines_html = tables.line_table(result)
        self.side.value = self._lines_html
        if self.guided:
            tiles = {name: c.value for name, c in self.controls.items() if name in TILES}
            if tiles != self._compared:
                self._compared, self._others = tiles, {}
            self._others[label] = result
            self._table()
            self._rest()

    def _table(self) -> None:
        """The scenarios with the tile sizes of the result, as far as they have run."""
        studies = {n: self._others.get(n) for n in SCENARIOS if n != OWN or n == self._label}
        default = all(value == kernels[self.kernel].tunables[name].default for name, value in self._compared.items())
        self.side.value = tables.scenario_table(studies, self._label, default) + self._lines_html

    def _fill(self) -> None:
        """Run one scenario that the table lacks, and ask for the next: the controls stay alive meanwhile."""
        missing = [n for n in SCENARIOS if n != OWN and n not in self._others]
        if not missing or self.result is None:
            return
        scenario = SCENARIOS[missing[0]]
        try:
            self._others[missing[0]] = study(scenario.kernel, self.shape, **{**self._compared, **scenario.tunables})
        except (RuntimeError, ValueError) as error:
            self._others[missing[0]] = str(error)
        self._table()
        self._rest()

    def _failed(self, error: Exception) -> None:
        """Nothing that an earlier run earned may stand beside settings that do not run."""
        super()._failed(error)
        self.verdict.value = self._lines_html = self.side.value = ""
        if self.guided and self._compared:
            self._label = self.controls["scenario"].value
            self._others[self._label] = str(error)
            self._table()

    def close(self) -> None:
        """Close every widget; nothing runs on in the background."""
        self._rest.cancel()
        super().close()

    def _chosen(self, change: Any) -> None:
        if self._redraw and self.result is not None:
            try:
                left_out = self._draw(self.result)
            except ValueError as error:
                super()._failed(error)
                return
            self.player.stale, self.error.value = False, ""
            self.verdict.value = self._judge(self.result, left_out)

    def _draw(self, result: Study) -> int:
        """Load the player; returns how many accesses of the selection are not in the picture."""
        trace, choice, warp = result.run.trace, self.lines.value, self.warp.value
        wanted = [
            n
            for n, i in enumerate(trace.instructions)
            if i.space == "shared" and choice in ("any", i.kind, (i.file, i.line, i.kind))
        ]
        places = lane_places(trace, warp) if self.guided else None
        rows = shared_rows(trace, 0, warp, wanted)
        pictures = bank_frames(
            trace, rows, self.accesses or fitting(trace, rows), f"{self._label}, warp {warp}", places
        )
        self.player.load(**pictures.load)
        return pictures.left_out

    def _judge(self, result: Study, left_out: int) -> str:
        run = result.run
        more = f" The picture shows the first {self.player.steps} accesses; {left_out} more follow." * bool(left_out)
        ran = f"{escape(run.program.filename)} ran in the simulator in {run.ms:.0f} ms."
        if result.wrong is None:
            return tables.note(f"{ran} Its result was not compared with anything.{more}", tables.NEUTRAL)
        if not result.wrong:
            with_what = "the float64 oracle" if self.program is None else "what was wanted"
            return tables.note(f"<b>Right:</b> the output equals {with_what}. {ran}{more}", tables.GOOD)
        own = self._label == OWN
        why = clash(self.controls["LANE_K"].value, self.controls["LANE_Q"].value) if own else ""
        text = f"<b>Wrong result,</b> so its wavefronts count for nothing. {escape(why)}{escape(result.wrong)}"
        return tables.note(text, tables.BAD)


def _differences(outputs: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> str:
    """What the referee says of outputs, "" if they are right."""
    try:
        for name, expected in want.items():
            assert_matches(outputs[name], expected, name=name)
    except AssertionError as error:
        return str(error)
    return ""


def _offer(dropdown: widgets.Dropdown, options: list[tuple[str, Any]], default: Any) -> None:
    """Set a dropdown's options; its value stays where it still is one of them."""
    kept = dropdown.value if dropdown.options else default
    if list(dropdown.options) != options:
        dropdown.options = options
    values = [value for _, value in options]
    dropdown.value = kept if kept in values else default if default in values else values[0]
