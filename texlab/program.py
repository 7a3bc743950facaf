"""Programs: source text, named buffers and launches, as plain data that knows nothing of devices.

A device (``gpu``, ``sim``) turns a Program into a Run: outputs plus what was observed on the way.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

#: device name -> "module:function"; imported when first used, so that a Program never needs a GPU library.
DEVICES = {"sim": "texlab.sim:run", "gpu": "texlab.gpu:run"}


class DeviceError(RuntimeError):
    """The device asked for cannot run this here; the message says what would."""


class KernelFault(RuntimeError):
    """A kernel did something wrong while it ran: out of bounds, uninitialised memory, divergent barrier, ..."""


@dataclass(frozen=True)
class Buffer:
    """A named C-contiguous array: ``role`` is "input", "output" or "scratch" (device memory the caller never sees)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: str = "input"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``args``: a str names a buffer, None is a null pointer, anything else is passed by value
    (Python numbers take the type the kernel declares; structs are 0-d NumPy structured arrays)."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Any, ...]
    shared_bytes: int = 0

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        return prod(self.block)


@dataclass(frozen=True)
class Program:
    """Everything needed to compile and run some kernels once.

    ``source`` is what the compiler sees; ``filename`` is how its lines are reported; ``defines`` become ``-DNAME=value``.

    >>> double = Program(
    ...     name="double",
    ...     source='extern "C" __global__ void twice(const float* x, float* y, int n)'
    ...            '{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }',
    ...     buffers=(Buffer("x", (5,)), Buffer("y", (5,), role="output")),
    ...     launches=(Launch("twice", (1, 1, 1), (32, 1, 1), ("x", "y", 5)),),
    ... )
    >>> double.run(device="sim", x=np.arange(5, dtype="float32")).outputs["y"]
    array([0., 2., 4., 6., 8.], dtype=float32)
    """

    name: str
    source: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    defines: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    filename: str = "kernel.cu"
    needs: str = "sm_75"  # the least architecture that has the instructions it uses

    def buffer(self, name: str) -> Buffer:
        """The buffer called ``name``."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise KeyError(f"program {self.name!r} has no buffer {name!r}; it has {[b.name for b in self.buffers]}")

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role == "input")

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role == "output")

    @property
    def scratch_bytes(self) -> int:
        """Device memory beyond inputs and outputs, in bytes."""
        return sum(b.nbytes for b in self.buffers if b.role == "scratch")

    def check_inputs(self, arrays: Mapping[str, Any]) -> None:
        """Raise ValueError unless ``arrays`` are exactly the inputs, with their shapes and dtypes."""
        wanted = {b.name: b for b in self.inputs}
        if set(arrays) != set(wanted):
            raise ValueError(f"program {self.name!r} takes {sorted(wanted)}, got {sorted(arrays)}")
        for name, b in wanted.items():
            got = arrays[name]
            if tuple(got.shape) != b.shape or np.dtype(got.dtype) != np.dtype(b.dtype):
                raise ValueError(
                    f"program {self.name!r}: {name} must be {b.dtype} {b.shape}, got {got.dtype} {tuple(got.shape)}"
                )

    def run(self, device: str = "sim", trace: Any = False, **arrays: Any) -> Run:
        """Run once. ``device``: "sim" or "gpu"; the arrays are the program's inputs by name; ``trace=True`` (simulator)
        records every memory access. Further keywords of the device (``texlab.sim.run``, ``texlab.gpu.run``) pass through.

        Raises DeviceError, CompileError, KernelFault, ValueError (wrong inputs)."""
        names = {b.name for b in self.inputs}
        inputs = {k: v for k, v in arrays.items() if k in names}
        how = {k: v for k, v in arrays.items() if k not in names}
        return device_function(device)(self, inputs, trace=trace, **how)


def device_function(device: str) -> Any:
    """The ``run(program, arrays, *, trace=False, ...)`` function of a device."""
    if device not in DEVICES:
        raise DeviceError(f"device={device!r}: expected one of {sorted(DEVICES)}")
    module, name = DEVICES[device].split(":")
    return getattr(importlib.import_module(module), name)


@dataclass
class Run:
    """What one run of a Program gave.

    ``outputs`` by buffer name (NumPy from "sim", CuPy from "gpu"); ``trace`` a texlab.trace.Trace or None;
    ``ms`` the launches' time (GPU: events; sim: wall clock of the simulation, never a GPU's time); ``counts`` the
    simulator's executed instructions by kind; ``arch`` what it was compiled for.
    """

    program: Program
    device: str
    outputs: dict[str, Any]
    ms: float
    arch: str
    trace: Any = None
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def resources(self) -> dict[str, Any]:
        """Entry -> registers, shared bytes and spills, as ptxas reports them for ``arch`` (no GPU needed)."""
        return importlib.import_module("texlab.compiler").resources(self.program, self.arch)

    @property
    def output(self) -> Any:
        """The single output (ValueError if there are several)."""
        (name,) = self.outputs
        return self.outputs[name]
