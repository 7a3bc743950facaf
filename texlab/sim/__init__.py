"""The warp simulator: run a Program from its PTX, in NumPy, without a GPU.

    run = program.run(device="sim", trace=True, x=x, w=w)

Compiled like this: ``ptx`` reads the text, ``flow`` finds basic blocks, ``codegen`` turns each into Python over whole
arrays (``ops``, ``bits``, ``memory``, ...), ``warps`` schedules them over the lanes of a ``batch`` of thread blocks.

Every access of every lane is checked, and recorded if asked for. KernelFault (``kind``, ``file``, ``line``, ``block``,
``thread``, ``address``, ...) reports: "out-of-bounds", "misaligned", "read-only", "uninitialised" (shared memory, and
outputs or scratch, that nobody wrote), "race" (shared-memory accesses that no barrier, or within a warp no __syncwarp,
keeps apart; cp.async or a bulk copy that was not waited for), "barrier", "warp-divergence", "launch", "endless", "trap" and
"unsupported" (an instruction that the simulator does not know, when it is reached).

Not looked for: races in global memory, and a missing fence.proxy.async before a bulk copy.
What the simulator runs is PTX: the last compiler stage may still merge, split or reorder instructions.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from texlab import compiler
from texlab.program import Launch, Program, Run, TensorMap
from texlab.sim import textures
from texlab.sim.batch import Batch
from texlab.sim.codegen import compile_kernel
from texlab.sim.hazards import check_launch
from texlab.sim.memory import PARAM_BASE, Memory, parameter_offsets
from texlab.sim.ptx import parse
from texlab.sim.record import Recorder
from texlab.sim.warps import OutOfTime, Scheduler
from texlab.trace import Placed

LANES = 8192  # lanes that run together; more than that falls out of the processor's cache


class TooLong(RuntimeError):
    """The simulation would take longer than ``limit`` seconds; the message says how long, and what would fit."""


def run(
    program: Program,
    arrays: Mapping[str, np.ndarray],
    *,
    trace: Any = False,
    blocks: Iterable[int] | None = None,
    schedule: str = "lockstep",
    limit: float | None = 60.0,
) -> Run:
    """Simulate ``program`` once.

    Parameters
    ----------
    arrays : the program's inputs by name (NumPy)
    trace : False; True (every access, rows with 32 addresses); "counts" (totals per instruction only); or the linear
        numbers of the thread blocks whose rows are kept (totals are over all that ran)
    blocks : linear numbers of the thread blocks of the last launch to run; the others do not run. Default: all
    schedule : "lockstep", or "warps": warps one after another up to each barrier, so that a missing one shows
    limit : seconds; a run estimated to take longer raises TooLong. None: no limit

    Raises KernelFault (what the kernel did wrong), TooLong, CompileError, ValueError (wrong inputs).
    """
    program.check_inputs(arrays)
    if schedule not in ("lockstep", "warps"):
        raise ValueError(f"schedule={schedule!r}: expected 'lockstep' or 'warps'")
    arch = program.arch or compiler.SIM_ARCH
    text = compiler.ptx(program, arch)
    module = parse(text)
    memory = Memory()
    placed = {}
    for b in program.buffers:
        poison = np.broadcast_to(np.uint8(255), b.nbytes)  # NaN, or -1: what nobody writes shows
        data = np.ascontiguousarray(arrays[b.name]) if b.role == "input" else poison
        placed[b.name] = memory.add(b.name, data)
        if b.role != "input":
            placed[b.name].begin_empty(np.dtype(b.dtype).itemsize)
    memory.add_module(module)
    bound = textures.bind(program, placed)
    memory.textures = {b.base: b for b in bound.values()}
    sources = _source_lines(program.source, program.filename)
    recorder = None if trace is False else Recorder(None if trace is True else () if trace == "counts" else trace)
    counts = dict.fromkeys(("warp_instructions", "thread_instructions", "barriers", "blocks"), 0)
    clock = time.perf_counter()
    for number, launch in enumerate(program.launches):
        kernel = compile_kernel(text, launch.entry, program.filename)
        check_launch(launch, kernel.static_shared)
        params = _parameters(text, launch, placed | bound, kernel.params)
        memory.set_params(params)
        memory.maps = _maps(program, launch, kernel.params)
        last = number == len(program.launches) - 1
        ids = range(launch.blocks)
        if blocks is not None and last:
            ids = [operator.index(b) for b in blocks]
            if ids and (min(ids) < 0 or max(ids) >= launch.blocks):
                raise ValueError(
                    f"blocks: {launch.entry} has blocks 0..{launch.blocks - 1}, got {min(ids)}..{max(ids)}"
                )
        watch = _Watch(launch, len(ids), clock, limit, last)
        per = max(1, LANES // launch.threads)
        for at in range(0, len(ids), per):
            some = np.asarray(ids[at : at + per], np.int64)
            batch = Batch(kernel, launch, memory, params, some, lambda *at: sources.get(at, ""))
            if recorder is not None:
                recorder.attach(batch, number)
            try:
                with np.errstate(all="ignore"):
                    Scheduler(batch, schedule == "warps", watch.deadline).run()
                    batch.stores.finish(batch)
            except OutOfTime:
                raise TooLong(watch.first_batch(len(some))) from None
            for key in ("warp_instructions", "thread_instructions", "barriers"):
                counts[key] += getattr(batch, key)
            counts["blocks"] += len(some)
            watch.done(len(some))
        for buffer in placed.values():
            buffer.settle()
    seconds = time.perf_counter() - clock
    outputs = {}
    for b in program.outputs:
        outputs[b.name] = placed[b.name].data[: b.nbytes].view(b.dtype).reshape(b.shape)
    where = {b.name: Placed(placed[b.name].base, b.nbytes, b.dtype, b.shape) for b in program.buffers}
    recorded = recorder.trace(where, program.textures) if recorder is not None else None
    return Run(program, "sim", outputs, 1000 * seconds, arch, recorded, counts)


class _Watch:
    """Estimates how long a launch takes, from the batches after the first (which also compiles), and stops in time."""

    def __init__(self, launch: Launch, blocks: int, clock: float, limit: float | None, last: bool) -> None:
        self.launch, self.blocks, self.clock, self.limit, self.last = launch, blocks, clock, limit, last
        self.ran = self.first = 0
        self.after_first = clock

    @property
    def deadline(self) -> float | None:
        """When the first batch is interrupted; later ones are covered by the estimate."""
        return None if self.limit is None or self.ran else self.clock + self.limit

    def first_batch(self, size: int) -> str:
        return (
            f"{self.launch.entry}: the first {size} of {self.blocks} blocks were still running after "
            f"{time.perf_counter() - self.clock:.0f} s; limit={self.limit:g} s. Choose a smaller shape, a few blocks "
            "(blocks=[0]), or limit=None to wait"
        )

    def done(self, blocks: int) -> None:
        """Some more blocks have run. Raises TooLong if all of them would take too long; the first half is enough to tell,
        and a second's worth (or a quarter of the limit) the least to tell from."""
        now = time.perf_counter()
        self.ran += blocks
        if not self.first:
            self.first, self.after_first = self.ran, now
        if self.limit is None or self.ran == self.first or 2 * self.ran > self.blocks:
            return
        if now - self.after_first < min(1.0, self.limit / 4):
            return
        left = (now - self.after_first) / (self.ran - self.first) * (self.blocks - self.ran)
        total = now - self.clock + left
        if total <= self.limit:
            return
        share = self.limit / total
        fit = max(1, int(share * self.blocks))
        some = f"about {fit} blocks (blocks=range({fit})), or " if self.last else ""
        raise TooLong(
            f"{self.launch.entry}: simulating {self.blocks} blocks would take about {total:.0f} s, more than "
            f"limit={self.limit:g} s. What fits: {some}a shape with {100 * share:.2g} % of the work; limit=None waits"
        )


@lru_cache(maxsize=64)
def _source_lines(source: str, filename: str) -> dict[tuple[str, int], str]:
    """(file, line) -> text, stripped; ``#line`` directives say where the text comes from."""
    out, file, line = {}, filename, 0
    for text in source.splitlines():
        if m := re.match(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"([^"]*)")?\s*$', text):
            line, file = int(m[1]) - 1, m[2] or file
            continue
        line += 1
        out[file.rsplit("/", 1)[-1], line] = text.strip()
    return out


def _maps(program: Program, launch: Launch, layout: list[Any]) -> dict[int, TensorMap]:
    """Address -> tensor map, of the launch's arguments."""
    offsets = parameter_offsets(layout)
    out = {}
    for arg, (name, *_) in zip(launch.args, layout, strict=True):
        if isinstance(arg, TensorMap):
            arg.check(program.buffer(arg.buffer).nbytes)
            out[PARAM_BASE + offsets[name]] = arg
    return out


def _parameters(text: str, launch: Launch, placed: Mapping[str, Any], layout: list[Any]) -> np.ndarray:
    """The launch's arguments as the bytes a kernel reads its parameters from."""
    declared = compiler.params(text, launch.entry)
    if len(declared) != len(launch.args):
        raise ValueError(f"{launch.entry} takes {len(declared)} arguments, the launch has {len(launch.args)}")
    offsets = parameter_offsets(layout)
    size = max((offsets[name] + n for name, _, n, _ in layout), default=0)
    blob = np.zeros(size, np.uint8)
    for i, (arg, param, (name, *_)) in enumerate(zip(launch.args, declared, layout, strict=True)):
        if isinstance(arg, TensorMap):
            if param.size != 128:
                raise ValueError(
                    f"{launch.entry}, argument {i + 1}: a tensor map has 128 bytes, the kernel takes {param}"
                )
            continue  # the simulator knows it by its address
        value = placed[arg].base if isinstance(arg, str) else arg
        data = compiler.bind(value, param, f"{launch.entry}, argument {i + 1}")
        raw = np.frombuffer(np.asarray(data).tobytes(), np.uint8)
        blob[offsets[name] : offsets[name] + len(raw)] = raw
    return blob
