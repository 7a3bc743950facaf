"""One contestant on one shape: check, time (or count), check again.

``Counted`` does it in the simulator, ``Timed`` on a GPU; both turn a Program or a peer's name into the fields of a row
that ``texlab.bench.bench`` documents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from texlab import gpu
from texlab.peers import Peer
from texlab.program import DeviceError, Program
from texlab.referee import Check, Trial, kind_of, layout_of, peer_rules, rules
from texlab.shapes import ConvShape
from texlab.timing import Stopwatch

Row = dict[str, Any]
SIMULATED_FLOPS = 1e9  # about a minute of simulation, twice


class Counted:
    """Measures on the simulator: exact counts of what was executed, never a time."""

    def __init__(self, shape: ConvShape, precision: str = "float32") -> None:
        self._shape, self._precision = shape, precision

    @cached_property
    def _trials(self) -> tuple[Trial, Trial]:
        return Trial(self._shape, precision=self._precision), Trial(self._shape, precision=self._precision)

    def peer(self, name: str) -> Row:
        raise DeviceError(f"{name} needs an NVIDIA GPU: the simulator runs kernels whose source is here")

    def program(self, program: Program) -> Row:
        """Run twice with different inputs; counts come from the first run."""
        if self._shape.flops > SIMULATED_FLOPS:  # said before the inputs alone fill the memory
            raise ValueError(
                f"{self._shape} takes {self._shape.flops / 1e9:.3g} GFLOP, too many to simulate (limit "
                f"{SIMULATED_FLOPS / 1e9:g}): use batch 1 and a smaller image, whose counts per output are much the same"
            )
        kind, first, second = kind_of(program, self._shape), *self._trials
        run = program.run(device="sim", trace="counts", **first.inputs(program))
        checks = [check(first, program, kind, run.output)]
        if checks[0]["verified"]:
            again = program.run(device="sim", **second.inputs(program))
            checks.append(check(second, program, kind, again.output))
        row = {"extra_bytes": extra_bytes(program, kind)} | verdict(checks)
        return row | (_counts(run, program) if row["verified"] else {})


def _counts(run: Any, program: Program) -> Row:
    """What a simulated run executed, in all and per element of the output."""
    totals, spaces = run.trace.totals, np.array([i.space for i in run.trace.instructions])
    counts = {
        "instructions": int(run.counts["warp_instructions"]),
        "shared_wavefronts": int(np.asarray(totals["wavefronts"])[spaces == "shared"].sum()),
        "global_sectors": int(np.asarray(totals["sectors"])[spaces == "global"].sum()),
    }
    outputs = max(prod(program.outputs[0].shape), 1)
    return counts | {f"{name}_per_output": value / outputs for name, value in counts.items()}


class Timed:
    """Measures on the GPU. Raises DeviceError where there is none.

    Inputs are worked on in copies, so that a kernel that writes into them spoils nothing but its own check.
    """

    def __init__(self, shape: ConvShape, repeat: int | None = None, precision: str = "float32") -> None:
        if reason := gpu.why_no_gpu():
            raise DeviceError(f"bench: device='gpu' cannot be used here: {reason}. device='sim' counts, without times")
        import cupy

        self._cupy, self._shape, self._repeat = cupy, shape, repeat
        self._precision = precision
        self._stopwatch = Stopwatch()
        self._trials = (Trial(shape, cupy, precision=precision), Trial(shape, cupy, precision=precision))

    def peer(self, name: str) -> Row:
        """cuDNN or im2col + cuBLAS; ``way``: the variant it chose."""
        peer = Peer(name, self._shape, self._trials[0].arrays, self._precision)

        def judge(trial: Trial) -> Check:
            peer.load(trial.arrays)
            peer.launch()
            return trial.check("conv", peer.result(), how=peer_rules(self._precision, self._shape))

        try:
            checks, times = [judge(self._trials[0])], None
            if checks[0]["verified"]:
                times = self._stopwatch.times(peer.launch, repeat=self._repeat)
                checks.append(judge(self._trials[1]))
        finally:
            peer.close()
        row = {"extra_bytes": peer.extra_bytes, "way": peer.way} | verdict(checks)
        if row["verified"]:
            row |= _rates(times, self._shape, "conv", self._shape.min_bytes(peer.itemsize))
        return row

    def program(self, program: Program) -> Row:
        """All launches of the program, and its last launch alone, each with a cold L2."""
        kind = kind_of(program, self._shape)
        extra = {"extra_bytes": extra_bytes(program, kind)}
        self._cupy.get_default_memory_pool().free_all_blocks()
        _check_fits(program)
        if not gpu.trusted(program):  # the user's own kernel first runs where a fault does no harm
            trial = self._trials[0]
            first = check(trial, program, kind, gpu.run(program, trial.inputs(program)).output)
            if not first["verified"]:
                return extra | verdict([first])
        inputs = {name: array.copy() for name, array in self._trials[0].inputs(program).items()}
        with gpu.faults(program.name):
            # Scratch counts as output here: it can be poisoned between runs, and handed to the last launch alone.
            launch, memory = gpu.prepare(_with_roles(program, scratch="output"), inputs)

            def judge(trial: Trial) -> Check:
                for name, array in trial.inputs(program).items():
                    self._cupy.copyto(inputs[name], array)
                for array in memory.values():
                    gpu.poison(array)
                launch()
                return check(trial, program, kind, memory[program.outputs[0].name])

            checks = [judge(self._trials[0])]
            if not checks[0]["verified"]:
                return extra | verdict(checks)
            times = last = self._stopwatch.times(launch, repeat=self._repeat)
            if len(program.launches) > 1:
                alone = replace(program, launches=program.launches[-1:])
                alone = _with_roles(alone, scratch="input", output="input")
                last = self._stopwatch.times(gpu.prepare(alone, inputs | memory, refresh=False)[0], repeat=self._repeat)
            checks.append(judge(self._trials[1]))
        row = extra | verdict(checks)
        if row["verified"]:
            moved = sum(b.nbytes for b in program.inputs + program.outputs)
            low, middle, high = (float(v) for v in np.percentile(last, (10, 50, 90)))
            row |= _rates(times, self._shape, kind, moved)
            row |= {"kernel_ms": middle, "kernel_ms_p10": low, "kernel_ms_p90": high}
        return row

    def glance(self, program: Program) -> float:
        """Milliseconds of the fastest of five runs, output unchecked: to choose what to measure."""
        inputs = {name: array.copy() for name, array in self._trials[0].inputs(program).items()}
        launch, _ = gpu.prepare(program, inputs)
        return float(self._stopwatch.times(launch, repeat=5).min())


def _with_roles(program: Program, **new: str) -> Program:
    """The program with each buffer of role ``old`` made one of role ``new[old]``."""
    return replace(program, buffers=tuple(replace(b, role=new.get(b.role, b.role)) for b in program.buffers))


def _check_fits(program: Program) -> None:
    """MemoryError, before anything is allocated, if outputs and scratch do not fit into free GPU memory."""
    import cupy

    free = cupy.cuda.runtime.memGetInfo()[0]
    needed = sum(b.nbytes for b in program.buffers if b.role != "input")
    if needed > 0.95 * free:
        raise MemoryError(
            f"{program.name} needs {needed / 2**30:.1f} GiB for outputs and scratch "
            f"({program.scratch_bytes / 2**30:.1f} GiB of it scratch); {free / 2**30:.1f} GiB of GPU memory are free: "
            "use a smaller batch"
        )


def _rates(times: np.ndarray, shape: ConvShape, kind: str, moved: int) -> Row:
    low, middle, high = (float(v) for v in np.percentile(times, (10, 50, 90)))
    rate = {"tflops": shape.flops / middle / 1e9} if kind == "conv" else {"gbps": moved / middle / 1e6}
    row = {"ms": middle, "ms_p10": low, "ms_p90": high, "launches_timed": len(times), "min_bytes": moved}
    return row | rate | {"includes_transform": True}


def check(trial: Trial, program: Program, kind: str, got: Any) -> Check:
    """Judge a program's output by the rules for its precision and layout."""
    bias = any(b.name == "bias" for b in program.inputs)
    how = rules(program, trial.shape) if kind == "conv" else None
    return trial.check(kind, got, bias, how, layout_of(program))


def extra_bytes(program: Program, kind: str) -> int:
    """Device memory beyond a convolution's x, w and y: scratch, and what a layout kernel writes."""
    layout = kind not in ("conv", "copy")
    return program.scratch_bytes + (sum(b.nbytes for b in program.outputs) if layout else 0)


def verdict(checks: list[Check]) -> Row:
    """One verdict of the check before and the check after: the first that failed, else the larger error."""
    for i, check in enumerate(checks):
        if not check["verified"]:
            when = "in the second check, with new inputs and poisoned memory: " if i else ""
            return {**check, "error": f"{when}{check['error']}"}
    return {**checks[0], "rel_err": max(check["rel_err"] for check in checks)}
