"""When each tile of a kernel was asked for, was there, and was used up: stamped by the kernel itself.

A kernel that has STAMP lines (kernels/common.cuh) writes the multiprocessor's clock into a buffer when it is built with
``-DTIMELINE``. On a GPU those are the times. In the simulator, which has no clock, they say the order, and a small model
of latencies (``texlab.latency``) turns the trace into cycles, labelled "modelled".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from texlab import compiler, gpu, latency
from texlab.latency import Event
from texlab.program import Buffer, Program, Run
from texlab.program import device_function as device_of
from texlab.results import Result, load_results, title

if TYPE_CHECKING:
    from pandas import DataFrame

STEPS = 12  # tiles stamped
WINDOW = 2048  # neighbouring blocks that stamp on a GPU; those on one multiprocessor at one time are kept
LABELS = {
    "measured": "measured live on {gpu}: cycles of the multiprocessor's clock",
    "recorded": "recorded on {gpu}: cycles of the multiprocessor's clock",
    "modelled": "modelled: the simulator's order of events, with the latencies of texlab.latency; no GPU measured this",
}
UNIT = "cycles"
RECORDED = 4  # blocks kept in a recording


@dataclass(frozen=True)
class Timeline:
    """What :func:`timeline` returns.

    ``stamps`` (blocks, warps, steps, 4): cycles from the first stamp on, NaN where nothing was stamped; the last axis is
    ``texlab.latency.Event`` (ISSUE, ISSUED, ARRIVE, CONSUME). ``blocks``: their numbers in the grid, the one looked
    at first; all of them ran on multiprocessor ``sm``, and the chart shows the first. ``how``: "measured", "recorded" or
    "modelled"; ``label`` says it in words. ``ms`` and ``ms_stamped``: the Program's time without and with stamps
    (measured ones only).
    """

    name: str
    stamps: np.ndarray
    blocks: tuple[int, ...]
    sm: int
    how: str
    label: str
    ms: float | None = None
    ms_stamped: float | None = None

    # intervals ---------------------------------------------------------------------------------------------------
    @property
    def arrive(self) -> np.ndarray:
        return self.stamps[..., Event.ARRIVE]

    @property
    def loads(self) -> np.ndarray:
        """(blocks, warps, steps, 2): from a tile's first load instruction until the block may use the tile."""
        return np.stack([self.stamps[..., Event.ISSUE], self.arrive], axis=-1)

    @property
    def issues(self) -> np.ndarray:
        """(blocks, warps, steps, 2): the time a warp spends on a tile's load instructions; NaN where it is not stamped."""
        return self.stamps[..., Event.ISSUE : Event.ISSUED + 1]

    @property
    def waits(self) -> np.ndarray:
        """(blocks, warps, steps, 2): from when the warp has nothing else to do until its next tile is there. A kernel that
        does not stamp ISSUED waits from ISSUE on."""
        issued = np.where(np.isnan(self.stamps[..., Event.ISSUED]), self.loads[..., 0], self.stamps[..., Event.ISSUED])
        used = np.full_like(issued, -np.inf)
        used[..., 1:] = self.stamps[..., :-1, Event.CONSUME]
        begin = np.fmax(np.where(issued < self.arrive, issued, -np.inf), used)
        return np.stack([np.minimum(begin, self.arrive), self.arrive], axis=-1)

    @property
    def multiplies(self) -> np.ndarray:
        """(blocks, warps, steps, 2): from when the tile is there, and the loads of a later one are under way if the warp
        issues them first, until it is used up."""
        begin, end = self.arrive.copy(), self.stamps[..., Event.CONSUME]
        issued = self.stamps[..., Event.ISSUED]
        for other in range(issued.shape[-1]):  # the tile whose loads are issued between ARRIVE and CONSUME
            at = issued[..., other, None]
            begin = np.where((at > self.arrive) & (at < end), np.fmax(begin, at), begin)
        return np.stack([begin, end], axis=-1)

    @property
    def overlap(self) -> float:
        """The share of the tiles' loading times during which the warp multiplied, 0 to 1, over all blocks and warps."""
        loads, multiplies = self.loads, self.multiplies
        both = _length(
            np.maximum(loads[..., :, None, 0], multiplies[..., None, :, 0]),
            np.minimum(loads[..., :, None, 1], multiplies[..., None, :, 1]),
        )
        return float(both.sum() / max(_length(loads[..., 0], loads[..., 1]).sum(), 1e-9))

    @property
    def exposed(self) -> float:
        """Cycles a warp waits for a tile, the first one not counted: what is not hidden, on average."""
        waits = _length(self.waits[..., 1:, 0], self.waits[..., 1:, 1])
        known = ~np.isnan(self.arrive[..., 1:])
        return float(waits[known].mean()) if known.any() else 0.0

    @property
    def per_step(self) -> float:
        """Cycles from one tile's arrival to the next, on average: what a step takes a warp."""
        return float(np.nanmean(np.diff(self.arrive, axis=-1))) if self.arrive.shape[-1] > 1 else float("nan")

    @property
    def per_tile(self) -> float:
        """Cycles in which the multiprocessor gets a tile of one block done: from the first stamp to the last, over all tiles
        of all blocks in ``stamps``. For modelled timelines, which hold all that runs."""
        done = self.stamps[:, 0, :, Event.CONSUME]
        return float((np.nanmax(self.stamps) - np.nanmin(self.stamps)) / np.count_nonzero(~np.isnan(done)))

    @property
    def overhead(self) -> float | None:
        """How much longer the Program takes with stamps (0.02: two per cent); None where no GPU measured it."""
        return None if self.ms is None or self.ms_stamped is None else self.ms_stamped / self.ms - 1

    @property
    def df(self) -> DataFrame:
        """One row per interval: ``block``, ``warp``, ``step``, ``event`` ("load", "issue", "wait", "multiply"), ``start``,
        ``end``, ``unit``."""
        import pandas as pd

        rows = []
        spans_of = {"load": self.loads, "issue": self.issues, "wait": self.waits, "multiply": self.multiplies}
        for event, spans in spans_of.items():
            for block, warp, step in np.argwhere(~np.isnan(spans).any(axis=-1)):
                start, end = spans[block, warp, step]
                rows.append((self.blocks[block], int(warp), int(step), event, float(start), float(end), UNIT))
        table = pd.DataFrame(rows, columns=["block", "warp", "step", "event", "start", "end", "unit"])
        return table.sort_values(["block", "warp", "start"], kind="stable", ignore_index=True)

    def summary(self) -> str:
        """Overlap, exposed latency and the cost of stamping, in a sentence."""
        text = (
            f"{self.name}: {self.overlap:.0%} of the loading time is covered by this warp's own multiplying; a step takes "
            f"{self.per_step:,.0f} {UNIT}, of which a warp waits {self.exposed:,.0f}."
        )
        if self.overhead is not None:
            text += f" Stamping changed the time from {self.ms:.4g} to {self.ms_stamped:.4g} ms ({self.overhead:+.1%})."
        return text

    def chart(self, **how: Any) -> Any:
        """The Gantt chart, a matplotlib Figure: see ``texlab.gantt.chart``."""
        from texlab import gantt

        return gantt.chart(self, **how)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<div>{escape(self.summary())}</div><small>{escape(self.label)}</small>"

    # recording ---------------------------------------------------------------------------------------------------
    def row(self) -> dict[str, Any]:
        """The timeline as plain data, for a recorded Result; :func:`from_row` reads it. ``stamps``: for each block and each
        warp a line of numbers, tile by tile the four events, -1 for none; at most RECORDED blocks."""
        whole = np.where(np.isnan(self.stamps), -1, self.stamps).astype(np.int64)[:RECORDED]
        lines = [[" ".join(map(str, warp.reshape(-1).tolist())) for warp in block] for block in whole]
        kept = {"blocks": list(self.blocks[:RECORDED]), "sm": self.sm, "unit": UNIT, "stamps": lines}
        return kept | {"resident": len(self.blocks), "ms_plain": self.ms, "ms_stamped": self.ms_stamped}


def _length(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    return np.nan_to_num(np.maximum(end - start, 0.0))


def from_row(row: Mapping[str, Any], result: Result) -> Timeline:
    """The Timeline of a row of the recorded topic "timeline"."""
    stamps = np.array([[line.split() for line in block] for block in row["stamps"]], float)
    stamps = np.where(stamps < 0, np.nan, stamps).reshape(*stamps.shape[:2], -1, len(Event))
    where = result.label.removeprefix("recorded on ")
    label = f"{row['layer']}, N = {row['n']}; {LABELS['recorded'].format(gpu=where)}"
    blocks, times = tuple(row["blocks"]), (row["ms_plain"], row["ms_stamped"])
    return Timeline(title(row), stamps, blocks, row["sm"], "recorded", label, *times)


def recorded(kernel: str, gpu_name: str | None = None, **tunables: int) -> Timeline:
    """The recorded timeline of a kernel with these tunables. Raises FileNotFoundError naming what is recorded."""
    result = load_results("timeline", gpu_name)
    for row in result:
        if row["kernel"] == kernel and row["tunables"] == tunables:
            return from_row(row, result)
    raise FileNotFoundError(f"no timeline of {kernel} {tunables} is recorded; there are {[title(r) for r in result]}")


# running ------------------------------------------------------------------------------------------------------------
def stamped(program: Program, first: int = 0, blocks: int = 1, steps: int = STEPS) -> Program:
    """The Program with its timeline switched on: ``blocks`` blocks from number ``first`` stamp their first ``steps`` tiles
    into the output ``timeline`` (blocks, warps, steps + 1, 4), int64.

    Raises ValueError for a Program whose last kernel has no STAMP lines.
    """
    launch = program.launches[-1]
    if "TIMELINE_PARAMETERS)" not in program.source or "STAMP(" not in program.source:
        raise ValueError(
            f"timeline: the source of {program.name!r} has no STAMP lines: give the kernel TIMELINE_PARAMETERS as its last "
            "parameter and STAMP(ISSUE, step), STAMP(ARRIVE, step), STAMP(CONSUME, step) where tiles are loaded, there "
            "and used up (kernels/common.cuh; rungs 05, 07 and 09 have them)"
        )
    if not 1 <= steps <= 1024:
        raise ValueError(f"timeline: steps={steps}: between 1 and 1024 tiles can be stamped")
    if first < 0 or blocks < 1 or first + blocks > launch.blocks:
        raise ValueError(f"timeline: blocks {first} to {first + blocks - 1}: the launch has {launch.blocks}")
    warps = -(-launch.threads // 32)
    buffer = Buffer("timeline", (blocks, warps, steps + 1, 4), "int64", role="output")
    last = replace(launch, args=(*launch.args, "timeline", first, blocks))
    return replace(
        program,
        defines={**program.defines, "TIMELINE": steps},
        buffers=(*program.buffers, buffer),
        launches=(*program.launches[:-1], last),
    )


def timeline(
    program: Program,
    *,
    device: str | None = None,
    steps: int = STEPS,
    block: int | None = None,
    resident: int = 1,
    **arrays: Any,
) -> Timeline:
    """When the tiles of a Program's last kernel were asked for, there, and used up, warp by warp.

    Parameters
    ----------
    program : one whose kernel has STAMP lines: ``im2win_zigzag``, ``im2win_double_buffer``, ``im2win_pipeline`` or your
        own.
    device : "gpu" or "sim"; default: the GPU if there is one.
    steps : tiles stamped, from the first.
    block : the block looked at. Default: the middle one on a GPU, where all multiprocessors are busy; 0 in the simulator.
    resident : in the simulator's model, how many such blocks share the multiprocessor (``texlab.occupancy`` says how many
        fit). On a GPU those that do are found by their stamps.
    arrays : the Program's inputs, by name.

    Returns a Timeline: ``df``, ``chart()``, ``overlap``, ``exposed``, ``overhead``.

    Raises ValueError for a Program without STAMP lines, DeviceError as ``Program.run``.

    >>> from texlab.catalog import kernels
    >>> from texlab.shapes import ConvShape
    >>> shape = ConvShape(n=1, c=2, h=10, w=18, k=32, r=3, s=3)
    >>> program = kernels["im2win_zigzag"].program(shape, BLOCK_K=32, BLOCK_Q=64)
    >>> x, w = np.ones(shape.x_shape, "float32"), np.ones(shape.w_shape, "float32")
    >>> look = timeline(program, device="sim", x=x, w=w)
    >>> look.how, look.stamps.shape, look.overlap    # one tile after the other: nothing overlaps
    ('modelled', (1, 1, 3, 4), 0.0)
    """
    device = device or ("gpu" if gpu.available() else "sim")
    device_of(device)  # an unknown device is an error of the call
    if device == "gpu":
        return _measure(program, arrays, steps, block)
    return _model(program, arrays, steps, block or 0, resident)


def _model(program: Program, arrays: Mapping[str, Any], steps: int, block: int, resident: int) -> Timeline:
    if resident < 1:
        raise ValueError(f"timeline: resident={resident}: at least one block runs on the multiprocessor")
    run = stamped(program, block, 1, steps).run(device="sim", trace=[block], blocks=[block], **arrays)
    return modelled(run, _name(program), block, resident)[0]


def modelled(run: Run, name: str, block: int = 0, resident: int = 1) -> tuple[Timeline, list[latency.Moment]]:
    """The modelled Timeline of a simulated run of a stamped Program with the rows of one block, and when each of the block's
    accesses to shared memory falls, in the same cycles."""
    steps = run.program.buffer("timeline").shape[2] - 1
    operations = latency.operations(run, compiler.ptx(run.program, run.arch), steps)
    stamps, moments = latency.play(operations, steps, resident)
    blocks = tuple(range(block, block + resident))
    return Timeline(name, _trimmed(stamps), blocks, 0, "modelled", LABELS["modelled"]), moments


def _measure(program: Program, arrays: Mapping[str, Any], steps: int, block: int | None) -> Timeline:
    from texlab import machine
    from texlab.timing import Stopwatch

    total = program.launches[-1].blocks
    block = total // 2 if block is None else block
    if not 0 <= block < total:
        raise ValueError(f"timeline: block={block}: the launch has blocks 0 to {total - 1}")
    count = min(WINDOW, total)
    first = min(max(block - count // 2, 0), total - count)
    marked = stamped(program, first, count, steps)
    if not gpu.trusted(program):  # the user's own kernel first runs where a fault does no harm
        gpu.run(marked, arrays)
    with gpu.faults(program.name):
        stopwatch = Stopwatch()
        plain, _ = gpu.prepare(program, arrays)
        launch, outputs = gpu.prepare(marked, arrays)
        times = [[float(np.median(stopwatch.times(f, repeat=10))) for f in (plain, launch)] for _ in range(3)]
        stamps = outputs["timeline"].get()
    kept, sm = on_one_multiprocessor(stamps, block - first)
    chosen = _trimmed(np.where(stamps[kept, :, :-1] < 0, np.nan, stamps[kept, :, :-1].astype(float)))
    label = LABELS["measured"].format(gpu=machine.describe("gpu")["gpu"])
    ms, with_stamps = np.median(times, axis=0).tolist()
    return Timeline(_name(program), chosen, tuple(int(k) + first for k in kept), sm, "measured", label, ms, with_stamps)


def on_one_multiprocessor(stamps: np.ndarray, block: int) -> tuple[np.ndarray, int]:
    """The block and those that ran on its multiprocessor while it was stamped, it first, and the multiprocessor's number.

    ``stamps`` (blocks, warps, steps + 1, 4) as the kernel writes them. Clocks of different multiprocessors differ, so
    only such blocks can stand on one time axis.
    """
    times = np.where(stamps[:, :, :-1] < 0, np.nan, stamps[:, :, :-1].astype(float))
    sm = stamps[:, 0, -1, 0]
    begin, end = np.nanmin(times, axis=(1, 2, 3)), np.nanmax(times, axis=(1, 2, 3))
    together = (sm == sm[block]) & (begin < end[block]) & (end > begin[block])
    others = np.flatnonzero(together & (np.arange(len(sm)) != block))
    return np.concatenate([[block], others[np.argsort(begin[others])]]).astype(np.int64), int(sm[block])


def _trimmed(stamps: np.ndarray) -> np.ndarray:
    """Without steps that nobody stamped, and counted from the first stamp on."""
    used = ~np.isnan(stamps).all(axis=(0, 1, 3))
    return stamps[:, :, : int(used.sum())] - np.nanmin(stamps)


def _name(program: Program) -> str:
    return title({"kernel": program.name, "tunables": dict(program.defines)})
