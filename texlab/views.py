"""Textures and surfaces as data: how a program's buffer is seen through the texture units.

A ``TextureView`` names a buffer and says how its bytes are to be read as texels. It knows nothing of devices: the GPU
makes a CUDA texture or surface object from it, the simulator follows CUDA's rules in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

FORMATS = ("float32", "float16", "uint8")
FILTERS = ("point", "linear")
ADDRESS_MODES = ("clamp", "border", "wrap", "mirror")
PITCH_ALIGNMENT = 32  # bytes: what the rows of a texture over linear memory must be a multiple of
MAX_LAYERS = 2048

#: (memory, dimensions, surface) -> largest size, slowest axis first: CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability" (6.0 and above)
LIMITS = {
    ("array", 1, False): (131072,),
    ("array", 2, False): (65536, 131072),
    ("array", 3, False): (MAX_LAYERS, 32768, 32768),
    ("array", 1, True): (32768,),
    ("array", 2, True): (65536, 131072),
    ("array", 3, True): (MAX_LAYERS, 32768, 32768),
    ("linear", 1, False): (2**28,),
    ("linear", 2, False): (65000, 131072),
}
_AXES = ("layers", "height", "width")


@dataclass(frozen=True)
class TextureView:
    """A buffer seen through the texture units. ``Launch.args`` names a view where the kernel takes its 64-bit handle.

    Parameters
    ----------
    name : what ``Launch.args`` calls it
    buffer : the buffer that holds the texels, in C order ``(*size, channels)``
    size : (width,), (height, width) or (layers, height, width), in texels
    channels : 1 or 4
    memory : "array": the texels live in a CUDA array, which the hardware lays out in blocks. An input is copied into it
        before the first launch, each time the program runs; any other buffer *is* the array, written by surface views.
        All views of a buffer share one array. "linear": the buffer's own memory; one or two dimensions
    pitch : bytes from row to row (linear memory, two dimensions); 0: rows follow each other
    filter : "point" or "linear"
    address : what lies outside: "clamp" (the edge), "border" (zero), "wrap", "mirror" (the last two only with normalized
        coordinates, as in CUDA)
    normalized : coordinates run from 0 to 1 instead of to the size
    read : "element" (uint8 texels are integers) or "normalized" (uint8 texels are floats from 0 to 1)
    surface : for surf1Dread, surf2Dwrite, ...: reads and writes without filter, x counted in bytes

    Raises ValueError that names the view, the value and the rule.

    >>> TextureView("image", "x", (480, 640), filter="linear", address="border").row_bytes("float32")
    2560
    """

    name: str
    buffer: str
    size: tuple[int, ...]
    channels: int = 1
    memory: str = "array"
    pitch: int = 0
    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    read: str = "element"
    surface: bool = False

    def __post_init__(self) -> None:
        where = f"texture {self.name!r}"
        for field, allowed in (("filter", FILTERS), ("address", ADDRESS_MODES), ("read", ("element", "normalized"))):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{where}: {field}={getattr(self, field)!r}; choose one of {allowed}")
        if self.channels not in (1, 4):
            raise ValueError(f"{where}: channels={self.channels}; a texel has 1 or 4")
        limits = LIMITS.get((self.memory, len(self.size), self.surface))
        if limits is None:
            kind = "surface" if self.surface else "texture"
            raise ValueError(
                f"{where}: memory={self.memory!r} with size={self.size} makes no {kind}: memory='array' takes (width,), "
                "(height, width) or (layers, height, width); memory='linear' the first two, and no surfaces"
            )
        for axis, got, most in zip(_AXES[-len(self.size) :], self.size, limits, strict=True):
            if not 1 <= got <= most:
                raise ValueError(f"{where}: {axis}={got} of size={self.size}; it must lie between 1 and {most}")
        if self.address in ("wrap", "mirror") and not self.normalized:
            raise ValueError(
                f"{where}: address={self.address!r} needs normalized=True: CUDA clamps unnormalized coordinates instead"
            )
        if self.pitch and (self.memory != "linear" or len(self.size) != 2):
            raise ValueError(f"{where}: pitch={self.pitch} is for memory='linear' and size=(height, width) only")
        if self.memory == "linear" and len(self.size) == 1 and (self.filter == "linear" or self.normalized):
            raise ValueError(
                f"{where}: a 1-D texture over linear memory is read with tex1Dfetch, which neither filters nor takes "
                "normalized coordinates; use memory='array'"
            )

    # what follows from it --------------------------------------------------------------------------------------------
    @property
    def layers(self) -> int:
        return self.size[0] if len(self.size) == 3 else 1

    @property
    def height(self) -> int:
        return self.size[-2] if len(self.size) > 1 else 1

    @property
    def width(self) -> int:
        return self.size[-1]

    def texel_bytes(self, dtype: str) -> int:
        return self.channels * np.dtype(dtype).itemsize

    def row_bytes(self, dtype: str) -> int:
        """Bytes from one row to the next in the buffer."""
        return self.pitch or self.width * self.texel_bytes(dtype)

    def check(self, shape: tuple[int, ...], dtype: str, role: str) -> None:
        """ValueError unless a buffer of this shape, dtype and role can be seen so."""
        where = f"texture {self.name!r}"
        if dtype not in FORMATS:
            raise ValueError(f"{where}: buffer {self.buffer!r} is {dtype}; a texel is made of {FORMATS}")
        if self.filter == "linear" and dtype == "uint8" and self.read == "element":
            raise ValueError(
                f"{where}: filter='linear' gives fractions, and uint8 elements are none: read='normalized'"
            )
        if self.read == "normalized" and dtype != "uint8":
            raise ValueError(f"{where}: read='normalized' is for uint8; {dtype} texels are floats already")
        row, needed = self.row_bytes(dtype), prod(self.size) * self.texel_bytes(dtype)
        if self.pitch:
            needed = self.pitch * (self.height - 1) + self.width * self.texel_bytes(dtype)
            if self.pitch % PITCH_ALIGNMENT or self.pitch < self.width * self.texel_bytes(dtype):
                raise ValueError(
                    f"{where}: pitch={self.pitch} bytes; it must be a multiple of {PITCH_ALIGNMENT} and hold a row of "
                    f"{self.width * self.texel_bytes(dtype)} bytes"
                )
        have = prod(shape) * np.dtype(dtype).itemsize
        if needed > have or (not self.pitch and needed != have):
            raise ValueError(
                f"{where}: size={self.size} with {self.channels} channels of {dtype} takes {needed} bytes, but buffer "
                f"{self.buffer!r} {shape} has {have}"
            )
        if self.memory == "linear" and len(self.size) == 2 and row % PITCH_ALIGNMENT and role != "input":
            wide = -(-row // PITCH_ALIGNMENT) * PITCH_ALIGNMENT
            raise ValueError(
                f"{where}: rows of {row} bytes over linear memory; the texture units want a multiple of "
                f"{PITCH_ALIGNMENT}. An input is copied to padded rows, but {self.buffer!r} is {role}: give it rows of "
                f"{wide} bytes and the view pitch={wide}"
            )


def padded_pitch(row_bytes: int) -> int:
    """The bytes a row takes in linear memory under a two-dimensional texture.

    >>> [padded_pitch(n) for n in (20, 72, 260, 1280)]
    [32, 96, 288, 1280]
    """
    return -(-row_bytes // PITCH_ALIGNMENT) * PITCH_ALIGNMENT


# texel coordinates in a trace -------------------------------------------------------------------------------------
_X, _Y, _LAYER = 30, 18, 11  # bits of each coordinate; x and y are shifted by half their range, being outside at times
_HALF_X, _HALF_Y = 1 << (_X - 1), 1 << (_Y - 1)


def pack_texels(view: int, layer: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One int64 a fetch: which view (0-15), and the upper left of the texels it reads, which may lie outside."""
    x = np.clip(x, -_HALF_X, _HALF_X - 1).astype(np.int64) + _HALF_X
    y = np.clip(y, -_HALF_Y, _HALF_Y - 1).astype(np.int64) + _HALF_Y
    return x | y << _X | np.asarray(layer, np.int64) << (_X + _Y) | np.int64(view) << (_X + _Y + _LAYER)


def unpack_texels(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(view, layer, y, x) of ``pack_texels``, int64 each.

    >>> [int(v) for v in unpack_texels(pack_texels(3, 2, np.array(-1), np.array(7)))]
    [3, 2, -1, 7]
    """
    p = np.asarray(packed).astype(np.int64)
    take = lambda shift, bits: p >> shift & ((1 << bits) - 1)  # noqa: E731
    return take(_X + _Y + _LAYER, 4), take(_X + _Y, _LAYER), take(_X, _Y) - _HALF_Y, take(0, _X) - _HALF_X


def resolve(i: np.ndarray, size: int, address: str) -> np.ndarray:
    """Texel numbers inside a size, from ones that may lie outside; -1: none, it is border.

    >>> resolve(np.arange(-2, 6), 4, "border").tolist(), resolve(np.arange(-2, 6), 4, "mirror").tolist()
    ([-1, -1, 0, 1, 2, 3, -1, -1], [1, 0, 0, 1, 2, 3, 3, 2])
    """
    if address == "border":
        return np.where((i >= 0) & (i < size), i, -1)
    if address == "wrap":
        return i % size
    if address == "mirror":
        i = i % (2 * size)
        return np.where(i < size, i, 2 * size - 1 - i)
    return np.clip(i, 0, size - 1)
