"""What each step towards the pipeline is worth: the steps, what their kernels use, and the factors between them.

The im2win paper (arXiv:2306.14316) takes its optimisations away one by one; here each is added to the one before. The
figures are recorded with ``python -m texlab.bench record pipeline`` and shown as they are, losses included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

from texlab.catalog import kernels
from texlab.occupancy import LIMITS, occupancy
from texlab.results import Result, title
from texlab.shapes import ConvShape

LAYER = "cv9"  # the layer whose timelines are recorded: 64 channels of 56 x 56, 64 filters of 3 x 3


@dataclass(frozen=True)
class Step:
    """One kernel of the ablation: ``what`` it adds to the step called ``after``."""

    name: str
    what: str
    kernel: str
    tunables: Mapping[str, int] = field(default_factory=dict)
    after: str | None = None

    @property
    def title(self) -> str:
        return title({"kernel": self.kernel, "tunables": self.tunables})


def _ring(stages: int, after: str, what: str) -> Step:
    return Step(f"cp.async, {stages} stage{'s' * (stages > 1)}", what, "im2win_pipeline", {"STAGES": stages}, after)


STEPS: tuple[Step, ...] = (
    Step("none", "one shared tile, scalar loads, no padding", "im2win_tile", {"PAD": 0, "VECTOR": 1}),
    Step("padding", "4 words after each row of a shared tile", "im2win_tile", {"VECTOR": 1}, "none"),
    Step("vector loads", "float4 loads from shared memory", "im2win_tile", {}, "padding"),
    Step("zig-zag", "partner lanes read the same words", "im2win_zigzag", {}, "vector loads"),
    Step("register prefetch", "the next slice waits in registers", "im2win_double_buffer", {"TILES": 1}, "zig-zag"),
    Step("two tiles", "and has a tile of its own: one barrier a step", "im2win_double_buffer", {}, "register prefetch"),
    _ring(1, "zig-zag", "copies bypass registers, 16 bytes wide for the filter"),
    _ring(2, "cp.async, 1 stage", "one slice is on its way while one is multiplied"),
    *(_ring(n, f"cp.async, {n - 1} stages", f"{n - 1} slices are on their way") for n in (3, 4, 5)),
)

#: kernels whose timelines are recorded
TIMELINES: tuple[tuple[str, dict[str, int]], ...] = (
    ("im2win_zigzag", {}),
    ("im2win_double_buffer", {}),
    *(("im2win_pipeline", {"STAGES": n}) for n in (1, 2, 3, 4, 5)),
)


def contestants() -> list[tuple[str, dict[str, int]]]:
    """The steps as ``texlab.bench.bench`` takes them."""
    return [(step.kernel, dict(step.tunables)) for step in STEPS]


def achieved(row: Mapping[str, Any], shape: ConvShape, arch: str) -> dict[str, Any]:
    """What the kernel of a row uses on a card of ``arch``, and what its convolution alone (without the layout transform)
    achieves: ``registers`` a thread, ``shared_bytes`` a block, ``resident_blocks`` of a multiprocessor, ``occupancy``,
    ``limited_by``; ``kernel_tflops``, and ``kernel_gbps``, for xw and wt read once and y written once."""
    program = kernels[row["kernel"]].program(shape, **row["tunables"])
    fields: dict[str, Any] = {}
    if arch in LIMITS:
        o = occupancy(program, arch)
        fields |= {"registers": o.registers, "shared_bytes": o.shared_bytes, "resident_blocks": o.blocks}
        fields |= {"occupancy": o.occupancy, "limited_by": o.limited_by}
    if row.get("kernel_ms") is not None:
        moved = sum(program.buffer(name).nbytes for name in program.launches[-1].args if isinstance(name, str))
        fields |= {"kernel_tflops": shape.flops / row["kernel_ms"] / 1e9, "kernel_gbps": moved / row["kernel_ms"] / 1e6}
    return fields


# reading what was recorded ------------------------------------------------------------------------------------------
def factors(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each step: how many times faster its convolution kernel is than the step's before, over the layers in ``rows``.

    ``factor`` is the geometric mean over layers, ``least`` and ``most`` the layers' extremes and ``layers`` their number;
    ``losses`` counts the layers whose factor is below 1 beyond the spread (the 90th percentile of the one before is less
    than the 10th of this one). ``registers``, ``shared_bytes``, ``resident_blocks``, ``occupancy``, ``kernel_tflops`` and
    ``kernel_gbps``: of the step's kernel, the last two as means. A step without rows has only its names.

    >>> table = factors([])
    >>> table[3]["step"], table[3]["after"]
    ('zig-zag', 'vector loads')
    """
    timed = {(title(row), row["layer"], row["n"]): row for row in rows if row.get("kernel_ms") is not None}
    by_name, out = {step.name: step for step in STEPS}, []
    for step in STEPS:
        mine = {key[1:]: row for key, row in timed.items() if key[0] == step.title}
        entry: dict[str, Any] = {"step": step.name, "what": step.what, "kernel": step.title, "after": step.after}
        if mine:
            first = next(iter(mine.values()))
            names = ("registers", "shared_bytes", "resident_blocks", "occupancy", "limited_by")
            entry |= {name: first[name] for name in names if name in first}
            for name in ("kernel_tflops", "kernel_gbps"):
                values = [row[name] for row in mine.values() if name in row]
                entry |= {name: sum(values) / len(values)} if values else {}
            entry["layers"] = len(mine)
        if step.after and mine:
            before = {key[1:]: row for key, row in timed.items() if key[0] == by_name[step.after].title}
            pairs = [(before[key], row) for key, row in mine.items() if key in before]
            ratios = [b["kernel_ms"] / m["kernel_ms"] for b, m in pairs]
            if ratios:
                entry |= {"factor": geometric_mean(ratios), "least": min(ratios), "most": max(ratios)}
                entry["losses"] = sum(b["kernel_ms_p90"] < m["kernel_ms_p10"] for b, m in pairs)
        out.append(entry)
    return out


def per_layer(result: Result) -> Any:
    """A DataFrame: a row per layer, a column per step, the convolution kernel's milliseconds."""
    import pandas as pd

    rows = {(row["layer"], title(row)): row.get("kernel_ms") for row in result}
    layers = list(dict.fromkeys(row["layer"] for row in result))
    table = {step.name: [rows.get((layer, step.title)) for layer in layers] for step in STEPS}
    return pd.DataFrame(table, index=pd.Index(layers, name="kernel alone, ms"))
