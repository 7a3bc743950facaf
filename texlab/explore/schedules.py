"""The schedule explorer: turn a knob and see the loop nest, what changed, the generated code and the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import ipywidgets as widgets

from texlab import gpu
from texlab.compiler import CompileError, resources
from texlab.explore._base import Explorer, Later
from texlab.explore.bank_tables import BAD, GOOD, NEUTRAL, note
from texlab.explore.schedule_views import bars, code_view, difference_view, nest_view
from texlab.program import DeviceError
from texlab.schedules import judge
from texlab.schedules.conv import FORMS, Epilogue, conv
from texlab.schedules.database import best
from texlab.schedules.launch import program
from texlab.schedules.nest import assembly, difference, hottest_loop, nest
from texlab.schedules.tune import measure_candidate
from texlab.schedules.tvm_import import threads
from texlab.schedules.work import Scheduled, Workload, schedule, space
from texlab.shapes import LAYERS, ConvShape

TARGETS = {"this processor (LLVM)": "llvm", "NVIDIA GPU (CUDA)": "cuda"}
LAYOUTS = ("NCHW", "NHWC", "NCHW4c")
FUSED = {"nothing": Epilogue(), "bias + ReLU": Epilogue(shift=True, activation="relu")}
FUSED["scale + shift + ReLU6"] = Epilogue(scale=True, shift=True, activation="relu6")
AGAINST = ("the setting before", "the defaults", "no schedule")
SMALL = {"layout": {"width": "auto"}, "style": {"description_width": "initial"}}


def schedules(
    shape: ConvShape | None = None, *, target: str = "llvm", form: str = "im2win", layout: str = "NHWC", **knobs: Any
) -> ScheduleExplorer:
    """Turn the knobs of a TVM schedule; see its loop nest, what changed, the code that comes out, and its time.

    ``shape``: a convolution of yours instead of a benchmark layer; ``target``: "llvm" or "cuda"; ``form``, ``layout`` and
    ``knobs`` to begin with. On the processor the layer itself is run with one image, checked against the float64 oracle and
    timed. For a GPU the code is compiled and, on a cut-out of the layer, checked and counted in the simulator; it is timed
    where there is a GPU.

    Raises ValueError for an unknown target, form or layout, DeviceError without TVM.

    >>> explorer = schedules(target="llvm", form="direct")  # doctest: +SKIP
    >>> explorer.knobs["UNROLL"].value = 1                  # doctest: +SKIP
    """
    if target not in TARGETS.values():
        raise ValueError(f"schedules: target={target!r}; one of {list(TARGETS.values())}")
    conv(shape or LAYERS["cv9"], form=form, layout=layout)  # its error, if there is one, is the call's
    return ScheduleExplorer(shape, target, form, layout, knobs)


@dataclass(frozen=True, eq=False)
class Study:
    """A schedule as the explorer shows it. ``ms`` is None where it was not timed; ``facts`` are lines about the code."""

    scheduled: Scheduled
    title: str
    code: list[str]
    facts: list[str]
    ms: float | None = None
    most: tuple[float, float] = (0.0, 0.0)  # between which 80 % of the runs lie
    error: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


def cut_out(shape: ConvShape, knobs: Mapping[str, Any]) -> ConvShape:
    """A convolution like ``shape`` that is one thread block's work, with channels for two steps: quick to simulate.

    >>> print(cut_out(LAYERS["cv9"], {"BLOCK_K": 32, "BLOCK_P": 2, "BLOCK_Q": 28, "BLOCK_C": 4}))
    1x8x4x30 -> 32, 3x3
    """
    own = min(shape.c // shape.groups, 2 * knobs["BLOCK_C"])
    many = min(shape.k // shape.groups, knobs["BLOCK_K"])
    groups = min(shape.groups, max(1, knobs["BLOCK_K"] // many))
    (sh, sw), (dh, dw) = shape.stride, shape.dilation
    p, q = min(shape.p, knobs["BLOCK_P"]), min(shape.q, knobs["BLOCK_Q"])
    h, w = (p - 1) * sh + (shape.r - 1) * dh + 1, (q - 1) * sw + (shape.s - 1) * dw + 1
    return ConvShape(
        n=1, c=own * groups, h=h, w=w, k=many * groups, r=shape.r, s=shape.s, stride=shape.stride,
        dilation=shape.dilation, groups=groups,
    )  # fmt: skip


def study_processor(scheduled: Scheduled, title: str) -> Study:
    """Compile for this processor, look at the hottest loop, run, check, time."""
    loop = hottest_loop(assembly(scheduled))
    adds = sum(line.startswith("vf") for line in loop)
    wide = max(
        (width for name, width in (("zmm", 16), ("ymm", 8), ("xmm", 4)) if any(name in i for i in loop)), default=1
    )
    stack = sum("rsp" in line for line in loop)
    facts = (
        [f"The hottest loop has {len(loop)} instructions, {adds} of them multiply-adds of {wide} numbers."]
        if loop
        else []
    )
    if stack:
        facts.append(f"{stack} of them touch the stack: more is held than fits into the registers.")
    return measured(Study(scheduled, title, loop, facts))


def measured(study: Study) -> Study:
    """The same with its time on this machine, its output checked before and after."""
    scheduled = study.scheduled
    row = measure_candidate(scheduled.workload, scheduled.target, dict(scheduled.knobs))
    if row["status"] != "ok":
        return replace(study, error=f"{row['status']}: {row['error']}")
    return replace(study, ms=row["ms"], most=(row["ms_p10"], row["ms_p90"]))


def study_gpu(scheduled: Scheduled, small: Scheduled, title: str) -> Study:
    """Compile the CUDA text; check and count the cut-out in the simulator; time the layer where there is a GPU."""
    whole = program(scheduled)
    work = small.workload
    arrays = judge.sample(work)
    run = program(small).run(device="sim", trace="counts", **work.pack(arrays))
    facts, about = [], {}
    if wrong := judge.fault(work.unpack(run.output), judge.answer(work, arrays)):
        return Study(scheduled, title, whole.source.splitlines(), facts, error=f"wrong: {wrong}")
    last = whole.launches[-1]
    kept = f", and {whole.scratch_bytes / 2**20:.1f} MiB beside x, w and y" if whole.scratch_bytes else ""
    facts.append(f"{last.blocks:,} blocks of {last.threads} threads{kept}.")
    banks = run.trace.bank_conflicts()
    if len(banks):
        about = {"wavefronts": int(banks.wavefronts.sum()), "conflicts": int(banks.conflicts.sum())}
        facts.append(
            f"On the cut-out {work.about['shape']}: {about['wavefronts']:,} shared-memory wavefronts, "
            f"{about['conflicts']:,} of them bank conflicts."
        )
    return Study(scheduled, title, whole.source.splitlines(), facts, about=about | {"program": whole})


class ScheduleExplorer(Explorer):
    """What :func:`schedules` returns. ``knobs``: the knobs' widgets by name; ``result``: the :class:`Study` shown;
    ``tried``: all studies of this workload so far."""

    def __init__(self, shape: ConvShape | None, target: str, form: str, layout: str, knobs: dict[str, Any]) -> None:
        self.shapes = ({"your shape": shape} if shape else {}) | LAYERS
        options = [(f"{name}: {s}", name) for name, s in self.shapes.items()]
        buttons = {"style": {"button_width": "auto", "description_width": "initial"}}
        controls = {
            "target": widgets.ToggleButtons(options=TARGETS, value=target, description="for", **buttons),
            "form": widgets.ToggleButtons(options=FORMS, value=form, description="form", **buttons),
            "layout": widgets.ToggleButtons(options=LAYOUTS, value=layout, description="layout", **buttons),
            "layer": widgets.Dropdown(
                options=options, value="your shape" if shape else "cv9", description="layer",
                style={"description_width": "initial"}, layout={"width": "330px"},
            ),
            "fused": widgets.Dropdown(options=list(FUSED), value="nothing", description="fused with it", **SMALL),
        }  # fmt: skip
        super().__init__({})
        self.controls = controls
        self._rest = Later(self._resources)
        self.tried: list[Study] = []
        self._shown: Study | None = None
        self._before: Study | None = None  # what was shown before that
        self.knobs: dict[str, widgets.Dropdown] = {}
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        self._knob_box = widgets.HBox(layout=wrap)
        self.against = widgets.ToggleButtons(options=AGAINST, description="compare with", **buttons)
        self.use_best = widgets.Button(description="Use the best so far", icon="star", layout={"width": "auto"})
        self.verdict, self.nest, self.difference, self.code, self.times = (widgets.HTML() for _ in range(5))
        self.views = widgets.Tab(
            [self.nest, widgets.VBox([self.against, self.difference]), self.code, self.times],
            titles=("Loop nest", "What changed", "Generated code", "Times"),
        )
        line = lambda *names: widgets.HBox([controls[n] for n in names], layout=wrap)  # noqa: E731
        self.children = [
            line("target", "form", "layout"),
            line("layer", "fused"),
            self._knob_box,
            widgets.HBox([self.use_best, self.status], layout=wrap),
            self.verdict,
            self.error,
            self.views,
        ]
        for control in controls.values():
            control.observe(lambda _: (self._new_workload(), self.request()), "value")
        self.against.observe(lambda _: self._show_difference(), "value")
        self.use_best.on_click(lambda _: self._take_best())
        self._new_workload(knobs)
        self.request()
        self.wait()

    def workload(self, form: str, layout: str, layer: str, fused: str) -> Workload:
        """The convolution that the controls name, with one image."""
        return conv(self.shapes[layer].with_(n=1), form=form, layout=layout, epilogue=FUSED[fused])

    def _now(self) -> tuple[Workload, str]:
        values = {name: control.value for name, control in self.controls.items()}
        target = values.pop("target")
        return self.workload(**values), target

    def _new_workload(self, chosen: Mapping[str, Any] | None = None) -> None:
        """Offer the knobs that this workload's schedule has; a knob keeps its value if it can."""
        workload, target = self._now()
        self.tried, self._shown, self._before = [], None, None
        chosen = {name: knob.value for name, knob in self.knobs.items()} if chosen is None else chosen
        for knob in self.knobs.values():
            knob.close()
        self.knobs = {}
        for name, choices in space(workload, target).items():
            value = chosen.get(name, choices[0])
            if type(value) is not type(choices[0]) or (isinstance(value, str) and value not in choices):
                value = choices[0]  # the other target's
            offered = sorted({*choices, value}, key=lambda v: (isinstance(v, str), v))
            self.knobs[name] = widgets.Dropdown(options=offered, value=value, description=name, **SMALL)
            self.knobs[name].observe(lambda _: self.request(), "value")
        self._knob_box.children = list(self.knobs.values())

    def compute(self, target: str, **which: str) -> Study:
        workload = self.workload(**which)
        knobs = {name: knob.value for name, knob in self.knobs.items()}
        known = next((s for s in self.tried if s.scheduled.knobs == knobs), None)
        if known is not None:
            return known
        scheduled = schedule(workload, target, **knobs)
        defaults = {name: choices[0] for name, choices in space(workload, target).items()}
        own = ", ".join(f"{k}={v}" for k, v in scheduled.knobs.items() if v != defaults[k])
        title = own or "the defaults"
        if target == "llvm":
            return study_processor(scheduled, title)
        about = workload.about
        small = conv(
            cut_out(about["shape"], knobs), form=about["form"], layout=about["layout"], epilogue=about["epilogue"]
        )
        study = study_gpu(scheduled, schedule(small, target, **knobs), title)
        return measured(study) if gpu.available() and not study.error else study

    def show(self, result: Study) -> None:
        if result not in self.tried:
            self.tried.append(result)
        if result is not self._shown:
            self._before, self._shown = self._shown, result
        self.verdict.value = self._judge(result)
        self.nest.value = nest_view(nest(result.scheduled.module))
        self._show_difference()
        self._show_code(result.facts)
        self.times.value = self._chart(result)
        if result.scheduled.target == "cuda":
            self._rest()

    def _show_code(self, facts: list[str]) -> None:
        cpu = self._shown.scheduled.target == "llvm"
        head = "The machine code of the hottest loop." if cpu else "The CUDA text for the whole layer."
        lines = "".join(f"<div>{escape(fact)}</div>" for fact in facts)
        self.code.value = code_view(self._shown.code, f"<b>{head}</b>{lines}")

    def _resources(self) -> None:
        """What the compiler says of the whole layer's kernels; a second's work, so it comes after the rest."""
        made, facts = self._shown.about["program"], []
        try:
            for entry, r in resources(made).items():
                spilled = f", {r.spill_bytes} bytes spilled" if r.spill_bytes else ", nothing spilled"
                facts.append(
                    f"{entry}: {r.registers} registers a thread, {r.shared_bytes / 1024:.1f} KiB shared{spilled}."
                )
        except (CompileError, DeviceError) as error:
            facts.append(f"No resources: {error}")
        self._show_code([*self._shown.facts, *facts])

    def close(self) -> None:
        """Close every widget; nothing runs on in the background."""
        self._rest.cancel()
        super().close()

    def _judge(self, result: Study) -> str:
        shape = result.scheduled.workload.about["shape"]
        if result.error:
            return note(f"<b>{escape(result.error)}</b>", BAD)
        if result.ms is None:
            text = "<b>Right</b> on the cut-out, in the simulator: equals the float64 oracle. There is no GPU here to time it on."
            return note(f"{text} {escape(' '.join(result.facts))}", GOOD)
        rate = shape.flops / result.ms / 1e6
        where = f"this processor, {threads()} cores" if result.scheduled.target == "llvm" else "this GPU"
        text = (
            f"<b>Right:</b> equals the float64 oracle. <b>{result.ms:.3g} ms</b> for one image on {where}: {rate:,.0f} GFLOP/s "
            f"(80 % of the runs took {result.most[0]:.3g} to {result.most[1]:.3g} ms)."
        )
        fastest = min((s for s in self.tried if s.ms is not None), key=lambda s: s.ms)
        if fastest is not result:
            text += f" Best so far: {fastest.ms:.3g} ms with {escape(fastest.title)}."
        return note(text, GOOD)

    def _show_difference(self) -> None:
        result, against = self._shown, self.against.value
        if result is None:
            return
        workload, target = result.scheduled.workload, result.scheduled.target
        if against == "no schedule":
            other = workload.module().script()
        elif against == "the defaults":
            other = schedule(workload, target).script
        elif self._before is None:
            self.difference.value = note("Nothing to compare with yet: turn a knob.", NEUTRAL)
            return
        else:
            other, against = self._before.scheduled.script, f"the setting before ({self._before.title})"
        self.difference.value = difference_view(difference(other, result.scheduled.script), against)

    def _chart(self, result: Study) -> str:
        timed = result.scheduled.target == "llvm" or result.ms is not None
        value = (lambda s: s.ms) if timed else (lambda s: s.about.get("wavefronts"))
        rows = [{"name": s.title, "value": value(s), "error": s.error} for s in self.tried]
        what = "Every setting tried since the workload was chosen."
        if not timed:
            what += (
                " There is no GPU here: compared are shared-memory wavefronts of the cut-out, as the simulator counts."
            )
        return f"<div style='line-height:1.5'>{what}</div>" + bars(
            rows, "ms" if timed else "wavefronts", self.tried.index(result)
        )

    def _take_best(self) -> None:
        """The fastest of the settings tried here and, for this very layer, of what tuning has found."""
        workload, target = self._now()
        timed = [s for s in self.tried if s.ms is not None]
        chosen = dict(min(timed, key=lambda s: s.ms).scheduled.knobs) if timed else {}
        tuned = best(workload, target)
        if tuned is not None and tuned != chosen:
            row = measure_candidate(workload, target, tuned)
            if row["status"] == "ok" and (not timed or row["ms"] < min(s.ms for s in timed)):
                chosen = tuned
        for name, knob in self.knobs.items():
            if name in chosen:
                knob.options = [*knob.options, chosen[name]] if chosen[name] not in knob.options else knob.options
                knob.value = chosen[name]
