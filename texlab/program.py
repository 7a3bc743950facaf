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

from texlab.views import TextureView

#: device name -> "module:function"; imported when first used, so that a Program never needs a GPU library.
DEVICES = {"sim": "texlab.sim:run", "gpu": "texlab.gpu:run"}


#: what TMA can hold -> bytes of an element
TENSOR_DTYPES = dict(uint8=1, uint16=2, float16=2, bfloat16=2, uint32=4, int32=4, float32=4)
TENSOR_DTYPES |= dict(uint64=8, int64=8, float64=8)


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
class TensorMap:
    """How TMA (``cp.async.bulk.tensor``) sees a buffer: a kernel takes it as a 128-byte ``__grid_constant__`` struct.

    ``dims`` (elements) and ``box`` have 1 to 5 numbers, the fastest first; ``strides`` are the bytes from one element of
    ``dims[1:]`` to the next. A tile begins at any coordinates, also negative ones; what lies outside ``dims`` is ``fill``,
    "zeros" or "nan". In shared memory a tile is dense, its 16-byte pieces permuted by ``swizzle`` (0, or 32, 64, 128 bytes,
    which the box's rows must then have). With ``element_strides`` the box takes every n-th element of a dimension.

    A map that CUDA refuses raises ValueError.

    >>> TensorMap("x", "float16", (64, 24, 20), (128, 3072), (64, 16, 3), swizzle=128).tile
    (64, 16, 3)
    """

    buffer: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: int = 0
    fill: str = "zeros"

    def __post_init__(self) -> None:
        for name in ("dims", "strides", "box", "element_strides"):
            object.__setattr__(self, name, tuple(int(v) for v in getattr(self, name)))
        rank, what = len(self.dims), f"tensor map of {self.buffer!r}"
        if self.dtype not in TENSOR_DTYPES:
            raise ValueError(f"{what}: dtype {self.dtype!r}; one of {', '.join(TENSOR_DTYPES)}")
        if not 1 <= rank <= 5 or len(self.box) != rank or len(self.strides) != rank - 1:
            raise ValueError(
                f"{what}: {rank} dims, {len(self.box)} box sizes, {len(self.strides)} strides; 1 to 5 dims, as many box "
                "sizes, and a stride for each dimension but the first"
            )
        if len(self.element_strides) not in (0, rank):
            raise ValueError(f"{what}: {len(self.element_strides)} element strides for {rank} dims")
        if self.element_strides[:1] not in ((), (1,)):
            raise ValueError(f"{what}: element stride {self.element_strides[0]} of the first dimension; it must be 1")
        for name, values, least, most in (
            ("dimension", self.dims, 1, 1 << 32),
            ("stride", self.strides, 16, (1 << 40) - 16),
            ("box size", self.box, 1, 256),
            ("element stride", self.element_strides, 1, 8),
        ):
            for value in values:
                if not least <= value <= most:
                    raise ValueError(f"{what}: {name} {value}; TMA takes {least} to {most}")
        for value in self.strides:
            if value % 16:
                raise ValueError(
                    f"{what}: stride of {value} bytes; TMA takes multiples of 16 bytes: pad the inner dimension, or load "
                    "without TMA"
                )
        row = self.box[0] * self.itemsize
        if row % 16:
            raise ValueError(f"{what}: rows of the box have {row} bytes; TMA takes multiples of 16 bytes")
        if self.swizzle not in (0, 32, 64, 128) or (self.swizzle and row != self.swizzle):
            raise ValueError(
                f"{what}: swizzle {self.swizzle} with rows of {row} bytes; 0, or 32, 64 or 128 with rows of just as many"
            )
        if self.fill not in ("zeros", "nan") or (self.fill == "nan" and "float" not in self.dtype):
            raise ValueError(f"{what}: fill {self.fill!r} for {self.dtype}; 'zeros', or for floats 'nan'")

    @property
    def itemsize(self) -> int:
        return TENSOR_DTYPES[self.dtype]

    @property
    def steps(self) -> tuple[int, ...]:
        """``element_strides``, ones if there are none."""
        return self.element_strides or (1,) * len(self.dims)

    @property
    def tile(self) -> tuple[int, ...]:
        """Elements of a tile in shared memory, the fastest dimension first."""
        return tuple(-(-size // step) for size, step in zip(self.box, self.steps, strict=True))

    def check(self, nbytes: int) -> None:
        """Raise ValueError unless all of ``dims`` lie within a buffer of ``nbytes``."""
        sizes = (self.itemsize, *self.strides)
        reach = self.itemsize + sum((d - 1) * s for d, s in zip(self.dims, sizes, strict=True))
        if reach > nbytes:
            raise ValueError(
                f"tensor map of {self.buffer!r}: dims {self.dims} with strides {self.strides} reach byte {reach}, the buffer "
                f"has {nbytes}"
            )


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``args``: a str names a buffer (its address) or a texture view (its handle), None is a null
    pointer, a TensorMap describes a buffer to TMA, anything else is passed by value (Python numbers take the type the
    kernel declares; structs are 0-d NumPy structured arrays)."""

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
    ``arch``: the one architecture that has the instructions the source uses ("sm_90a" for wgmma); "" for any.

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
    arch: str = ""
    textures: tuple[TextureView, ...] = ()

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

    @property
    def in_arrays(self) -> tuple[Buffer, ...]:
        """The buffers whose texels lie in a CUDA array, because a texture view says so."""
        names = {view.buffer for view in self.textures if view.memory == "array"}
        return tuple(b for b in self.buffers if b.name in names)

    def check_textures(self) -> None:
        """Raise ValueError unless every texture view fits its buffer, and the buffers are used as the views allow."""
        names = [b.name for b in self.buffers] + [view.name for view in self.textures]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"program {self.name!r}: {twice} name more than one buffer or texture")
        if len(self.textures) > 16:
            raise ValueError(f"program {self.name!r} has {len(self.textures)} texture views; at most 16")
        for view in self.textures:
            b = self.buffer(view.buffer)
            view.check(b.shape, b.dtype, b.role)
        for b in self.in_arrays:
            views = [v for v in self.textures if v.buffer == b.name and (v.memory == "array" or b.role != "input")]
            kinds = {(v.memory, v.size, v.channels) for v in views}
            if len(kinds) > 1:
                raise ValueError(
                    f"program {self.name!r}: the views of {b.name!r} disagree on memory, size or channels: {sorted(kinds)}"
                )
            if b.role != "input" and any(b.name in launch.args for launch in self.launches if launch.args):
                raise ValueError(
                    f"program {self.name!r}: {b.name!r} lies in a CUDA array, which has no address: a launch may take one of "
                    f"its views {[v.name for v in views]}, not the buffer"
                )

    def check_inputs(self, arrays: Mapping[str, Any]) -> None:
        """Raise ValueError unless ``arrays`` are exactly the inputs, with their shapes and dtypes."""
        self.check_textures()
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
