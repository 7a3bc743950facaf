"""CUDA arrays, texture and surface objects for a program's views, made with CuPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from texlab.program import DeviceError, Program
from texlab.views import TextureView, padded_pitch

LAYERED = 1  # cudaArrayLayered, which CuPy does not name


@dataclass
class Bound:
    """What a program's views became. ``handles`` by view name; ``before`` and ``after``: what must be queued around the
    launches each time (inputs into arrays, outputs out of them); ``objects`` live as long as this does."""

    handles: dict[str, int] = field(default_factory=dict)
    before: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)


def bind(cupy: Any, program: Program, memory: Mapping[str, Any]) -> Bound:
    """Make the objects. ``memory``: the buffers as CuPy arrays; those that live in a CUDA array alone have none.

    Raises DeviceError if CUDA refuses a view, or its array does not fit into the GPU's memory."""
    bound = Bound()
    arrays = {}
    for b in program.in_arrays:
        view = next(v for v in program.textures if v.buffer == b.name)
        with _explained(cupy, view):
            array = arrays[b.name] = _array(cupy, view, b.dtype)
        pixels = memory.get(b.name)
        if b.role == "input":
            bound.before.append(_copy(array.copy_from, _rows(view, pixels)))
            continue
        nothing = cupy.empty(b.shape, b.dtype)
        nothing.data.memset_async(0xFF, nothing.nbytes)  # NaN: what nobody writes shows
        array.copy_from(_rows(view, nothing))
        if b.role == "output":
            bound.after.append(_copy(array.copy_to, _rows(view, pixels)))
    for view in program.textures:
        dtype = program.buffer(view.buffer).dtype
        with _explained(cupy, view):
            if view.memory == "array":
                resource = cupy.cuda.texture.ResourceDescriptor(
                    cupy.cuda.runtime.cudaResourceTypeArray, cuArr=arrays[view.buffer]
                )
            else:
                resource = _linear(cupy, view, dtype, memory[view.buffer], bound)
            if view.surface:
                made = cupy.cuda.texture.SurfaceObject(resource)
            else:
                made = cupy.cuda.texture.TextureObject(resource, _sampling(cupy, view))
        bound.handles[view.name] = made.ptr
        bound.objects.append(made)
    return bound


def _copy(copy: Callable[[Any], None], pixels: Any) -> Callable[[], None]:
    return lambda: copy(pixels)


def _channels(cupy: Any, view: TextureView, dtype: str) -> Any:
    runtime, item = cupy.cuda.runtime, np.dtype(dtype)
    bits = [8 * item.itemsize] * view.channels + [0] * (4 - view.channels)
    kind = runtime.cudaChannelFormatKindFloat if item.kind == "f" else runtime.cudaChannelFormatKindUnsigned
    return cupy.cuda.texture.ChannelFormatDescriptor(*bits, kind)


def _array(cupy: Any, view: TextureView, dtype: str) -> Any:
    extents = (view.width, view.height if len(view.size) > 1 else 0, view.layers if len(view.size) > 2 else 0)
    flags = cupy.cuda.runtime.cudaArraySurfaceLoadStore | (LAYERED if len(view.size) > 2 else 0)
    return cupy.cuda.texture.CUDAarray(_channels(cupy, view, dtype), *extents, flags)


def _rows(view: TextureView, pixels: Any) -> Any:
    """The pixels with channels side by side, as CUDAarray copies them."""
    return pixels.reshape(*view.size[:-1], view.width * view.channels)


def _linear(cupy: Any, view: TextureView, dtype: str, pixels: Any, bound: Bound) -> Any:
    runtime, descriptor = cupy.cuda.runtime, cupy.cuda.texture.ResourceDescriptor
    channels = _channels(cupy, view, dtype)
    if len(view.size) == 1:
        return descriptor(runtime.cudaResourceTypeLinear, arr=pixels, chDesc=channels, sizeInBytes=pixels.nbytes)
    pitch = view.row_bytes(dtype)
    if padded_pitch(pitch) != pitch:  # an input: a copy with longer rows
        wide = cupy.zeros((view.height, padded_pitch(pitch)), np.uint8)
        source, copy = pixels, runtime.memcpy2DAsync
        across, down, how = pitch, view.height, runtime.memcpyDeviceToDevice

        def spread() -> None:
            stream = cupy.cuda.get_current_stream().ptr
            copy(wide.data.ptr, wide.shape[1], source.data.ptr, across, across, down, how, stream)

        bound.before.append(spread)
        pixels, pitch = wide, wide.shape[1]
    extents = {"width": view.width, "height": view.height, "pitchInBytes": pitch}
    return descriptor(runtime.cudaResourceTypePitch2D, arr=pixels, chDesc=channels, **extents)


def _sampling(cupy: Any, view: TextureView) -> Any:
    runtime = cupy.cuda.runtime
    mode = getattr(runtime, f"cudaAddressMode{view.address.capitalize()}")
    # A one-dimensional array is one row, at whose edge every fetch lies: with a border there, half of each mixture is border.
    other = mode if len(view.size) > 1 else runtime.cudaAddressModeClamp
    return cupy.cuda.texture.TextureDescriptor(
        (mode, other, other),
        getattr(runtime, f"cudaFilterMode{view.filter.capitalize()}"),
        runtime.cudaReadModeNormalizedFloat if view.read == "normalized" else runtime.cudaReadModeElementType,
        normalizedCoords=int(view.normalized),
        borderColors=(0.0, 0.0, 0.0, 0.0),
    )


class _explained:
    """Turns what CUDA says of a view into a DeviceError that shows the view."""

    def __init__(self, cupy: Any, view: TextureView) -> None:
        self.cupy, self.view = cupy, view

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, self.cupy.cuda.runtime.CUDARuntimeError):
            raise DeviceError(f"texture {self.view.name!r} cannot be made: {error}. It is {self.view}") from error
