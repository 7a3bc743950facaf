"""A texture of one's own: an array and how the texture units shall read it."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.program import Buffer, Launch, Program, device_function
from texlab.views import TextureView

_SOURCE = """
// One fetch a thread; missing channels come as 0.
extern "C" __global__ void fetch(cudaTextureObject_t texture, const float* at, {type}4* out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = {call};
}}
"""
_CALLS = {
    1: "tex1D<{type}4>(texture, at[i])",
    2: "tex2D<{type}4>(texture, at[i], at[n + i])",
    3: "tex2DLayered<{type}4>(texture, at[i], at[n + i], (int)at[2 * n + i])",
    "linear": "tex1Dfetch<{type}4>(texture, (int)at[i])",
}


class Texture:
    """An array seen through the texture units: fetch from it here, or use it in a Program.

    Parameters
    ----------
    array : NumPy or CuPy, float32, float16 or uint8: (width,), (height, width) or (layers, height, width), and with
        ``channels=4`` a last dimension of 4. A copy is made if it is not C-contiguous; changes made to it later show.
    channels, memory, filter, address, normalized, read : as in ``TextureView``

    Raises ValueError that names the value and the rule (wrong dtype or dimensions, a size beyond the hardware's limits, a
    combination that CUDA does not have).

    >>> ramp = Texture(np.array([4, 5, 6], "float32"), filter="linear")
    >>> ramp.fetch([0.5, 0.75, 1.0])                    # texel i lies at i + 0.5
    array([4.  , 4.25, 4.5 ], dtype=float32)

    In a Program of your own, ``buffer`` and ``view`` are its entries, and ``array`` is the input:

    >>> doubled = Program(
    ...     name="double",
    ...     source='extern "C" __global__ void k(cudaTextureObject_t t, float* y)'
    ...            '{ int i = threadIdx.x; y[i] = 2 * tex1D<float>(t, i + 0.5f); }',
    ...     buffers=(ramp.buffer("ramp"), Buffer("y", (3,), role="output")),
    ...     textures=(ramp.view("t", "ramp"),),
    ...     launches=(Launch("k", (1, 1, 1), (3, 1, 1), ("t", "y")),),
    ... )
    >>> doubled.run(ramp=ramp.array).output
    array([ 8., 10., 12.], dtype=float32)
    """

    def __init__(
        self,
        array: Any,
        *,
        channels: int = 1,
        memory: str = "array",
        filter: str = "point",
        address: str = "clamp",
        normalized: bool = False,
        read: str = "element",
    ) -> None:
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            array = np.asarray(array)
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        self.array, self.channels = array, channels
        size = tuple(array.shape[:-1] if channels == 4 else array.shape)
        if channels == 4 and (not array.shape or array.shape[-1] != 4):
            raise ValueError(f"Texture: channels=4 wants a last dimension of 4; the array is {tuple(array.shape)}")
        self.how = {"memory": memory, "filter": filter, "address": address, "normalized": normalized, "read": read}
        self.size = size
        self.view("texture", "texels").check(tuple(array.shape), str(array.dtype), "input")

    def view(self, name: str, buffer: str) -> TextureView:
        """The Program's texture entry."""
        return TextureView(name, buffer, self.size, self.channels, **self.how)

    def buffer(self, name: str) -> Buffer:
        """The Program's buffer entry: an input."""
        return Buffer(name, tuple(self.array.shape), str(self.array.dtype))

    def program(self, count: int) -> Program:
        """The Program that ``fetch`` runs on ``count`` coordinates: inputs ``texels`` and ``at``, output ``out``."""
        whole = str(self.array.dtype) == "uint8" and self.how["read"] == "element"
        kind = "uint" if whole else "float"
        linear = self.how["memory"] == "linear" and len(self.size) == 1
        call = _CALLS["linear" if linear else len(self.size)].format(type=kind)
        out = Buffer("out", (count, 4), "uint32" if whole else "float32", role="output")
        return Program(
            name="fetch",
            source=_SOURCE.format(type=kind, call=call),
            buffers=(self.buffer("texels"), Buffer("at", (len(self.size), count)), out),
            launches=(Launch("fetch", (-(-count // 128), 1, 1), (128, 1, 1), ("texture", "at", "out", count)),),
            filename="fetch.cu",
            textures=(self.view("texture", "texels"),),
        )

    def fetch(self, x: Any, y: Any = None, layer: Any = None, *, device: str | None = None) -> Any:
        """Texels at coordinates, by a kernel: float32 (or uint32 for uint8 elements), shaped like the coordinates
        (broadcast together), with a last dimension of 4 if the texels have four channels.

        ``device``: "sim" or "gpu"; default: the GPU for a CuPy array. ValueError unless there is a coordinate for each
        dimension of the texture; DeviceError without a GPU."""
        coordinates = [c for c in (x, y, layer) if c is not None]
        if len(coordinates) != len(self.size):
            names = ("x", "y", "layer")[: len(self.size)]
            raise ValueError(f"fetch: a texture of size {self.size} is read at {names}; {len(coordinates)} were given")
        on_gpu = hasattr(self.array, "get")
        at = np.broadcast_arrays(*(np.asarray(c.get() if hasattr(c, "get") else c, np.float32) for c in coordinates))
        shape, flat = at[0].shape, np.stack([c.reshape(-1) for c in at])
        program = self.program(flat.shape[1])
        inputs = {"texels": self.array, "at": np.ascontiguousarray(flat)}
        device = device or ("gpu" if on_gpu else "sim")
        if device == "sim" and on_gpu:
            inputs["texels"] = self.array.get()
        out = device_function(device)(program, inputs).output
        return out.reshape(*shape, 4) if self.channels == 4 else out[:, 0].reshape(shape)

    def __repr__(self) -> str:
        how = ", ".join(f"{k}={v!r}" for k, v in self.how.items())
        return f"Texture({self.array.dtype} {self.size}, channels={self.channels}, {how})"
