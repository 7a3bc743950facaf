"""The scenarios of the bank explorer: which lanes of a warp hold which outputs, run, verified and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

import numpy as np

from texlab.catalog import kernels
from texlab.compiler import CompileError
from texlab.counters import compare as compare_counters
from texlab.program import Buffer, KernelFault, Launch, Program, Run
from texlab.reference import assert_matches, conv2d_reference, error_bound
from texlab.results import Result, load_results
from texlab.shapes import ConvShape

#: One full block tile of the default kernels (64 channels x 128 pixels); 27 window elements make four steps, the last
#: one not full.
SHAPE = ConvShape(n=1, c=3, h=10, w=18, k=64, r=3, s=3)
OWN = "your own"
WARPS = 4  # that a multiprocessor with 128 FP32 lanes works on at once, all served by one shared memory
MULTIPLY_ADDS = 64  # instructions of a warp in a k-step: the 8 x 8 outputs of each thread
LOADS_PER_STEP = 4  # a thread reads 8 filter values and 8 pixels in a k-step: four float4


@dataclass(frozen=True)
class Scenario:
    """A kernel of the catalog with some tunables, and in one sentence what it shows."""

    kernel: str
    tunables: dict[str, Any]
    story: str


SCENARIOS: dict[str, Scenario] = {
    "naive": Scenario(
        "im2win_tile",
        {"PAD": 0},
        "16 &times; 2 lanes, each with 8 neighbouring pixels: float4 loads 32 bytes apart use half of the banks; "
        "the stores of a column all fall into the same few banks.",
    ),
    "padded": Scenario(
        "im2win_tile",
        {"PAD": 4},
        "Four words more in each row turn the columns aside: the stores are cured. "
        "The loads run along a row, so padding cannot change them.",
    ),
    "split": Scenario(
        "im2win_zigzag",
        {"LANE_K": "lane / 8", "LANE_Q": "lane % 8"},
        "Each lane holds 4 + 4 pixels half a tile apart, so neighbouring lanes read neighbouring float4; "
        "the lanes still go row by row, 4 rows of 8.",
    ),
    "zig-zag": Scenario(
        "im2win_zigzag",
        {},
        "4 + 4 again, and the lanes walk (0,0) (0,1) (1,0) (1,1) …: in every load lanes come in pairs that want the "
        "same address, and the hardware then serves 16 lanes at once instead of 8.",
    ),
    OWN: Scenario(
        "im2win_zigzag",
        {},
        "Your own place for each lane: C expressions of <code>lane</code> (0 to 31) for its row (0 to 3) and its "
        "column (0 to 7) in the warp's 4 &times; 8 grid. Every place must be taken exactly once.",
    ),
}


@dataclass(frozen=True)
class Study:
    """One traced run. ``wrong`` is what the referee said: "" right, None when there was nothing to compare with.

    ``wavefronts`` etc. are totals over all shared-memory loads (stores) of the last launch's blocks.
    """

    run: Run
    wrong: str | None

    @property
    def lines(self) -> Any:
        """``Trace.bank_conflicts()``: a DataFrame with a row per shared-memory instruction."""
        return self.run.trace.bank_conflicts()

    def per_step(self, kind: str = "load") -> float:
        """Wavefronts of one k-step of a warp (four loads), or of one store instruction."""
        rows = self.lines[self.lines["kind"] == kind]
        requests = int(rows["requests"].sum())
        each = float(rows["wavefronts"].sum()) / requests if requests else 0.0
        return each * LOADS_PER_STEP if kind == "load" else each

    @property
    def cycles(self) -> float:
        """Cycles that one k-step of four warps keeps the shared memory of a multiprocessor busy: a wavefront each, the
        stores of the tile spread over its k-steps."""
        loads = int(self.lines.loc[self.lines["kind"] == "load", "requests"].sum())
        return WARPS * LOADS_PER_STEP * float(self.lines["wavefronts"].sum()) / loads

    @property
    def conflicts(self) -> int:
        """Wavefronts in which lanes wait for a bank that others use; loads and stores, over all blocks."""
        return int(self.lines["conflicts"].sum())


def lane_places(trace: Any, warp: int, block: int = 0) -> np.ndarray:
    """Which lane holds which outputs, read off the addresses of a warp's first loads of Ws and Xs.

    int (channels, pixels) of lanes, -1 where none; lanes that read the same filter values share a row, the same
    window elements a column. Raises ValueError if the warp has no such loads.
    """
    order = []
    for tile in ("Ws", "Xs"):
        loads = [n for n, i in enumerate(trace.instructions) if i.kind == "load" and f"&{tile}[" in i.source]
        rows = np.flatnonzero(np.isin(trace.instruction, loads) & (trace.warp == warp) & (trace.block == block))
        if not len(rows):
            raise ValueError(f"warp {warp} of block {block} makes no load of {tile}: choose another warp")
        order.append(np.unique(trace.address[rows[0]], return_inverse=True)[1])
    places = np.full((order[0].max() + 1, order[1].max() + 1), -1)
    for lane in range(31, -1, -1):
        places[order[0][lane], order[1][lane]] = lane
    return places


@lru_cache(maxsize=4)
def example(shape: ConvShape) -> tuple[Mapping[str, np.ndarray], np.ndarray, np.ndarray]:
    """Random ``x`` and ``w`` of a shape (float32, the same every time), the oracle's y and the error it allows."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal(shape.x_shape, "f4"), "w": rng.standard_normal(shape.w_shape, "f4")}
    how = dict(stride=shape.stride, padding=shape.padding, dilation=shape.dilation, groups=shape.groups)
    return arrays, conv2d_reference(**arrays, **how), error_bound(**arrays, **how)


def study(kernel: str, shape: ConvShape = SHAPE, block: int = 0, **tunables: int | str) -> Study:
    """Run a kernel of the catalog in the simulator, traced, and compare its output with the oracle.

    Raises CompileError, KernelFault, ValueError (tunables that do not fit), ShapeError.
    """
    return _study(kernel, shape, block, tuple(sorted(tunables.items())))


@lru_cache(maxsize=32)
def _study(kernel: str, shape: ConvShape, block: int, tunables: tuple[tuple[str, Any], ...]) -> Study:
    program = kernels[kernel].program(shape, **dict(tunables))
    arrays, want, allowed = example(shape)
    run = program.run(device="sim", trace=[block], **arrays)
    try:
        assert_matches(run.outputs["y"], want, rtol=0, atol=allowed, name="y")
    except AssertionError as error:
        return Study(run, str(error))
    return Study(run, "")


def check_expression(name: str, expression: str, top: int) -> np.ndarray:
    """The values of the C expression ``expression`` of ``lane`` for the 32 lanes; int (32,).

    Raises CompileError, with the expression's own text and ``name`` for a file name, or ValueError when a value does
    not lie between 0 and ``top``.

    >>> check_expression("LANE_Q", "lane % 8", 7)[:10].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    """
    if not expression.strip() or any(sign in expression for sign in ("\n", "#", ";", "{", "//", "/*")):
        raise ValueError(f"{name}={expression!r}: write one C expression of lane, for example  lane % 8")
    program = Program(
        name=name,
        source='extern "C" __global__ void lanes(int* value) {\n  const int lane = threadIdx.x;\n  value[lane] = (\n'
        f'#line 1 "{name}"\n{expression});\n#line 5 "lanes.cu"\n}}\n',
        buffers=(Buffer("value", (32,), "int32", role="output"),),
        launches=(Launch("lanes", (1, 1, 1), (32, 1, 1), ("value",)),),
        filename="lanes.cu",
    )
    value = program.run(device="sim").outputs["value"]
    if (outside := np.flatnonzero((value < 0) | (value > top))).size:
        lane = int(outside[0])
        raise ValueError(f"{name} = {expression}: lane {lane} gets {value[lane]}, but it must lie between 0 and {top}")
    return value


def compare(shape: ConvShape = SHAPE, own: tuple[str, str] | None = None, **tiles: int) -> Any:
    """The scenarios side by side, as a pandas DataFrame; units are in the column names.

    ``own``: the learner's (LANE_K, LANE_Q) as one more row; ``tiles``: BLOCK_K, BLOCK_Q, BLOCK_C for all of them.
    """
    import pandas as pd

    rows = []
    for label, scenario in SCENARIOS.items():
        tunables = {**tiles, **scenario.tunables}
        if label == OWN:
            if own is None:
                continue
            tunables |= {"LANE_K": own[0], "LANE_Q": own[1]}
        rows.append(summary(label, study(scenario.kernel, shape, **tunables)))
    return pd.DataFrame(rows).set_index("scenario")


def summary(label: str, s: Study) -> dict[str, Any]:
    """One row of :func:`compare`."""
    loads = s.lines[s.lines["kind"] == "load"]
    return {
        "scenario": label,
        "result": "not compared" if s.wrong is None else "wrong" if s.wrong else "right",
        "wavefronts per k-step": s.per_step(),
        "wavefronts per store": s.per_step("store"),
        "shared loads (warp instructions)": int(loads["requests"].sum()),
        "their wavefronts": int(loads["wavefronts"].sum()),
        "bank conflicts": s.conflicts,
    }


def hardware(shape: ConvShape = SHAPE) -> Any:
    """What an NVIDIA GPU counts in each scenario, beside the prediction: the shared-memory rows of
    ``texlab.counters.compare``, a pandas DataFrame ``scenario, counter, predicted, measured``.

    Raises DeviceError without a GPU, without Nsight Compute or without permission to read counters.
    """
    import pandas as pd

    parts = []
    for label, scenario in SCENARIOS.items():
        if label == OWN:
            continue
        program = kernels[scenario.kernel].program(shape, **scenario.tunables)
        rows = compare_counters(program, **example(shape)[0])
        rows = rows[(rows["source"] == scenario.kernel) & rows["counter"].str.startswith("shared")]
        parts.append(rows.assign(scenario=label)[["scenario", "counter", "predicted", "measured"]])
    return pd.concat(parts).set_index(["scenario", "counter"])


def contestants() -> list[tuple[str, dict[str, Any]]]:
    """The scenarios as ``texlab.bench`` takes them: (kernel, tunables)."""
    return [(s.kernel, dict(s.tunables)) for label, s in SCENARIOS.items() if label != OWN]


def timed(result: Any) -> Any:
    """What the shared memory has to do in each scenario beside the time it took, as a pandas DataFrame.

    ``result``: a Result with times of the scenarios (:func:`contestants`); anything else, as a note that there are none,
    comes back as it is.
    """
    if not isinstance(result, Result):
        return result
    import pandas as pd

    rows = []
    for label, s in SCENARIOS.items():
        found = [r for r in result if (r["kernel"], r.get("tunables") or {}) == (s.kernel, s.tunables) and r.get("ms")]
        if label == OWN or not found:
            continue
        cycles = study(s.kernel, **s.tunables).cycles
        rows.append(
            {
                "scenario": label,
                "shared memory (cycles)": cycles,
                "multiply-adds (cycles)": MULTIPLY_ADDS,
                "longer": "shared memory" if cycles > MULTIPLY_ADDS else "multiply-adds",
                "whole convolution (ms)": found[0]["ms"],
                "convolution kernel alone (ms)": found[0]["kernel_ms"],
            }
        )
    return pd.DataFrame(rows).set_index("scenario")


@lru_cache(maxsize=1)
def recorded() -> Result | None:
    """The recorded counters, or None."""
    try:
        return load_results("counters")
    except FileNotFoundError:
        return None


def recorded_per_step(label: str) -> float | None:
    """Shared-load wavefronts of a k-step as the hardware counted them for a scenario; None if that is not recorded."""
    scenario, result = SCENARIOS[label], recorded()
    found = {
        row["counter"]: row["measured"]
        for row in result or ()
        if row["kernel"] == row["source"] == scenario.kernel and (row.get("tunables") or {}) == scenario.tunables
    }
    requests, wavefronts = found.get("shared_load_requests"), found.get("shared_load_wavefronts")
    return LOADS_PER_STEP * wavefronts / requests if requests and wavefronts else None


@dataclass(frozen=True)
class Verdict:
    """What became of a learner's mapping: ``right`` or not, ``wavefronts`` per k-step (None if it did not run), why."""

    right: bool
    wavefronts: float | None
    message: str

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        colour, word = ("#009E73", "Right") if self.right else ("#D55E00", "Wrong")
        return (
            f"<div style='border-left:4px solid {colour};padding:2px 10px'><b>{word}.</b> "
            f"<span style='white-space:pre-wrap'>{escape(self.message)}</span></div>"
        )


def try_mapping(lane_k: str, lane_q: str, shape: ConvShape = SHAPE) -> Verdict:
    """Build im2win_zigzag with the learner's LANE_K (row 0-3) and LANE_Q (column 0-7), run it, and judge it.

    A mapping is right only if the whole convolution equals the float64 oracle; only then does its wavefront count mean
    anything.

    >>> try_mapping("lane / 8", "lane % 8")
    y equals the oracle. 12 wavefronts per k-step (naive 20, zig-zag 8).
    >>> try_mapping("lane & 3", "lane & 7").right
    False
    """
    try:
        check_expression("LANE_K", lane_k, 3)
        check_expression("LANE_Q", lane_q, 7)
        s = study("im2win_zigzag", shape, LANE_K=lane_k, LANE_Q=lane_q)
    except (CompileError, KernelFault, ValueError) as error:
        return Verdict(False, None, str(error))
    if s.wrong:
        return Verdict(False, s.per_step(), f"{clash(lane_k, lane_q)}The convolution is wrong: {s.wrong}")
    known = {
        label: study(SCENARIOS[label].kernel, shape, **SCENARIOS[label].tunables) for label in ("naive", "zig-zag")
    }
    beside = ", ".join(f"{label} {other.per_step():g}" for label, other in known.items())
    return Verdict(True, s.per_step(), f"y equals the oracle. {s.per_step():g} wavefronts per k-step ({beside}).")


def clash(lane_k: str, lane_q: str) -> str:
    """The first two lanes that an expression pair puts in the same place, as a sentence; "" if there are none."""
    place = list(zip(check_expression("LANE_K", lane_k, 3), check_expression("LANE_Q", lane_q, 7), strict=True))
    for lane, at in enumerate(place):
        if (first := place.index(at)) < lane:
            return f"Lanes {first} and {lane} both sit at row {at[0]}, column {at[1]}, so some outputs have no lane. "
    return ""
