"""Texture fetches and surface accesses as CUDA defines them: tex, tld4, suld, sust.

Texel i lies at coordinate i + 0.5. A point fetch takes texel floor(x). A linear fetch goes to x - 0.5, whose fraction,
rounded to 8 bits, weighs the two (four) texels around. (CUDA C++ Programming Guide, "Texture Fetching".)

Not documented, but what an NVIDIA H200 returned (all recorded fetches; of float16 mixtures all but a few, whose last bit
differs where large texels cancel): the product of the two weights is rounded to 8
bits as well, and the other three weights follow from it; normalized coordinates are cut off after 24 binary places; mixed
float16 texels are rounded to float16, mixed uint8 texels to 1/65535; channels that a texel does not have are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.program import Program
from texlab.sim.memory import Buffer
from texlab.sim.ops import Unsupported
from texlab.sim.ptx import TYPES
from texlab.views import TextureView, pack_texels, resolve

HANDLE = 0x7E << 40  # handles count from here: nothing else the simulator hands out looks like one
_NORMALIZED = 1 << 24  # binary places of a normalized coordinate
_DIMENSIONS = {"1d": 1, "2d": 2, "a1d": 1, "a2d": 2}


@dataclass(frozen=True)
class Bound:
    """A view and the buffer it sees. ``base`` is its handle; ``number`` its place among the program's views."""

    view: TextureView
    number: int
    base: int
    memory: Buffer
    dtype: np.dtype

    @property
    def texels(self) -> np.ndarray:
        """(layers, height, width, channels), a view of the buffer's bytes."""
        v, item = self.view, self.dtype.itemsize
        row, texel = v.row_bytes(str(self.dtype)), v.channels * item
        strides = (row * v.height, row, texel, item)
        return np.lib.stride_tricks.as_strided(
            self.memory.view(self.dtype), (v.layers, v.height, v.width, v.channels), strides
        )


def bind(program: Program, placed: dict[str, Buffer]) -> dict[str, Bound]:
    """Name -> Bound for all views of a program."""
    out = {}
    copies = {b.name: Buffer(b.name, 0, placed[b.name].data) for b in program.in_arrays if b.role == "input"}
    for number, view in enumerate(program.textures):
        buffer = program.buffer(view.buffer)
        texels = copies.get(buffer.name, placed[buffer.name]) if view.memory == "array" else placed[buffer.name]
        out[view.name] = Bound(view, number, HANDLE + number, texels, np.dtype(buffer.dtype))
    return out


@dataclass(frozen=True)
class _Spot:
    """What a Recorder wants of a pointer."""

    offset: np.ndarray
    space: str = "texture"


@dataclass(frozen=True)
class Fetch:
    """One texture or surface instruction. ``geometry``: "1d", "2d", "a1d", "a2d"; ``returns``: PTX types."""

    index: int
    head: str
    geometry: str
    kind: str = "load"
    channels: int = 4
    boundary: str = ""  # surfaces: clamp, zero, trap
    item: int = 4  # surfaces: bytes of one element
    component: int = 0  # tld4
    result: str = "f4"
    plus: int = 0
    cached: str = "global"

    @property
    def width(self) -> int:
        return self.item * self.channels

    # textures -------------------------------------------------------------------------------------------------------
    def texture(self, s: Any, L: Any, handle: Any, *at: Any) -> tuple[np.ndarray, ...]:
        """Four values per lane."""
        bound = self._bound(s, L, handle, surface=False)
        view, n = bound.view, s.active(L)
        at = tuple(np.broadcast_to(c, (n,)) for c in at)
        layer = np.zeros(n, np.int64)
        if self.geometry[0] == "a":
            layer = np.clip(at[0].view(np.int32).astype(np.int64), 0, view.layers - 1)
            at = at[1:]
        x, y = at[0], at[1] if _DIMENSIONS[self.geometry] == 2 else None
        linear = view.filter == "linear" or self.head == "tld4"
        i, wx = _position(x, view.width, view, linear)
        j, wy = _position(y, view.height, view, linear) if y is not None else (np.zeros(n, np.int64), np.zeros(n))
        if s.record is not None:
            s.record(self, L, _Spot(pack_texels(bound.number, layer, j, i)))
        if x.dtype.kind != "f" and view.memory == "linear":  # tex1Dfetch: outside there is nothing
            inside = (i >= 0) & (i < view.width)
            return self._finish(bound, np.where(inside[:, None], _texel(bound, layer, j, i), 0))
        if not linear:
            return self._finish(bound, _texel(bound, layer, j, i))
        down = j + (y is not None)
        corner = [_texel(bound, layer, *p) for p in ((j, i), (j, i + 1), (down, i), (down, i + 1))]
        if self.head == "tld4":
            order = (2, 3, 1, 0)  # counter-clockwise from the lower left
            picked = [self._finish(bound, corner[k])[self.component] for k in order]
            return tuple(picked)
        corner = [_as_float(bound, c) for c in corner]
        both = np.floor(wx * wy / 256 + 0.5)
        weights = (256 - wx - wy + both, wx - both, wy - both, both)
        value = sum(w[:, None] * c for w, c in zip(weights, corner, strict=True)) / 256
        return self._columns(_rounded(bound, value).astype(np.float32))

    def _finish(self, bound: Bound, texel: np.ndarray) -> tuple[np.ndarray, ...]:
        """Texels as the instruction's registers hold them."""
        if bound.dtype.kind == "f" or bound.view.read == "normalized":
            return self._columns(_as_float(bound, texel).astype(np.float32))
        return self._columns(texel.astype(np.uint32))

    def _columns(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """Four registers; missing channels are 0."""
        value = np.ascontiguousarray(value)
        columns = [np.ascontiguousarray(value[:, k]) for k in range(value.shape[1])]
        columns += [np.zeros(len(value), value.dtype)] * (4 - len(columns))
        return tuple(c if c.dtype == self.result else c.view(self.result) for c in columns)

    # surfaces -------------------------------------------------------------------------------------------------------
    def _place(self, s: Any, L: Any, handle: Any, at: tuple[Any, ...]) -> tuple[Bound, Any, np.ndarray]:
        """(view, indices of the texels, whether they are inside); x comes in bytes."""
        bound = self._bound(s, L, handle, surface=True)
        view, n = bound.view, s.active(L)
        at = tuple(np.broadcast_to(c, (n,)).view(np.int32).astype(np.int64) for c in at)
        layer = np.zeros(n, np.int64)
        if self.geometry[0] == "a":
            layer, at = at[0], at[1:]
        x, y = at[0], at[1] if _DIMENSIONS[self.geometry] == 2 else np.zeros(n, np.int64)
        texel = view.texel_bytes(str(bound.dtype))
        if self.width != texel:
            s.fault(
                self.index,
                "surface",
                f"{self.head} of {self.width} bytes from surface {view.name!r}, whose texels have {texel}",
                L,
                0,
            )
        if (x % texel).any():
            lane = int(np.argmax(x % texel != 0))
            s.fault(
                self.index,
                "misaligned",
                f"surface {view.name!r}: x = {x[lane]} bytes is no multiple of the texel's {texel} bytes; surfaces count x "
                f"in bytes: write x * {texel}",
                L,
                lane,
            )
        x = x // texel
        inside = (x >= 0) & (x < view.width) & (y >= 0) & (y < view.height) & (layer >= 0) & (layer < view.layers)
        if self.boundary == "trap" and not inside.all():
            lane = int(np.argmin(inside))
            s.fault(
                self.index,
                "out-of-bounds",
                f"surface {view.name!r} {view.size}: texel x = {x[lane]}, y = {y[lane]}, layer = {layer[lane]} is outside, "
                "and the boundary mode is trap (the default); cudaBoundaryModeZero or Clamp would allow it",
                L,
                lane,
            )
        where = (np.clip(layer, 0, view.layers - 1), np.clip(y, 0, view.height - 1), np.clip(x, 0, view.width - 1))
        if s.record is not None:
            s.record(self, L, _Spot(pack_texels(bound.number, where[0], y, x)))
        return bound, where, inside

    def read(self, s: Any, L: Any, handle: Any, *at: Any) -> Any:
        """suld: as many elements as the texel has."""
        bound, where, inside = self._place(s, L, handle, at)
        raw = bound.texels.view(f"u{bound.dtype.itemsize}")[where]
        if self.boundary == "zero":
            raw = np.where(inside[:, None], raw, raw.dtype.type(0))
        raw = np.ascontiguousarray(raw).reshape(len(raw), -1).view(f"u{self.item}")
        columns = tuple(np.ascontiguousarray(raw[:, k]) for k in range(self.channels))
        return columns if self.channels > 1 else columns[0]

    def write(self, s: Any, L: Any, handle: Any, *rest: Any) -> None:
        """sust: coordinates, then elements. Outside: nothing (zero), the nearest texel (clamp)."""
        at, values = rest[: -self.channels], rest[-self.channels :]
        bound, where, inside = self._place(s, L, handle, at)
        n = s.active(L)
        data = np.stack([np.broadcast_to(v, (n,)) for v in values], axis=1)
        data = np.ascontiguousarray(data).view(f"u{bound.dtype.itemsize}")
        keep = inside if self.boundary == "zero" else np.ones(n, bool)
        bound.texels.view(f"u{bound.dtype.itemsize}")[tuple(w[keep] for w in where)] = data[keep]

    def _bound(self, s: Any, L: Any, handle: Any, surface: bool) -> Bound:
        handles = np.unique(handle)
        bound = s.memory.textures.get(int(handles[0]))
        kind = "surface" if surface else "texture"
        if len(handles) > 1:
            s.fault(self.index, "texture", f"the lanes of this {self.head} name {len(handles)} different handles", L, 0)
        if bound is None or bound.view.surface != surface:
            what = f"that of the {'texture' if surface else 'surface'} {bound.view.name!r}" if bound else "no view's"
            s.fault(self.index, "texture", f"{self.head} wants a {kind}'s handle; {int(handles[0]):#x} is {what}", L, 0)
        dimensions = f"{'a' if len(bound.view.size) == 3 else ''}{min(len(bound.view.size), 2)}d"
        if dimensions != self.geometry:
            s.fault(
                self.index,
                "texture",
                f"{self.head}.{self.geometry} of {kind} {bound.view.name!r} with size {bound.view.size}: its geometry is "
                f"{dimensions}",
                L,
                0,
            )
        return bound


def _position(c: np.ndarray, size: int, view: TextureView, linear: bool) -> tuple[np.ndarray, np.ndarray]:
    """(texel number, weight of the next one in 256ths) for a coordinate; numbers may lie outside."""
    if c.dtype.kind != "f":
        return c.view(np.int32).astype(np.int64), np.zeros(len(c))
    c = c.astype(np.float64)
    c = np.where(np.isfinite(c), c, np.where(c > 0, 1e9, -1e9))
    if view.normalized:
        if view.address == "wrap":
            c = c - np.floor(c)
        c = np.clip(np.floor(c * _NORMALIZED) / _NORMALIZED * size, -1e9, 1e9)
    if not linear:
        return np.floor(c).astype(np.int64), np.zeros(len(c))
    fixed = np.floor((np.clip(c, -1e9, 1e9) - 0.5) * 256 + 0.5).astype(np.int64)
    return fixed >> 8, (fixed & 255).astype(np.float64)


def _texel(bound: Bound, layer: np.ndarray, j: np.ndarray, i: np.ndarray) -> np.ndarray:
    """(lanes, channels) at texel numbers that may lie outside."""
    view = bound.view
    i, j = resolve(i, view.width, view.address), resolve(j, view.height, view.address)
    got = bound.texels[layer, j, i]
    outside = (i < 0) | (j < 0)
    return np.where(outside[:, None], got.dtype.type(0), got) if outside.any() else got


def _as_float(bound: Bound, texel: np.ndarray) -> np.ndarray:
    return texel / np.float64(255) if bound.view.read == "normalized" else texel.astype(np.float64)


def _rounded(bound: Bound, value: np.ndarray) -> np.ndarray:
    """A mixture of texels as the filter hands it over; what lies half way goes away from zero."""
    if bound.dtype == np.float16:
        return (value * (1 + 2.0**-40)).astype(np.float16)
    return np.floor(value * 65535 + (0.5 + 2.0**-20)) / 65535 if bound.dtype == np.uint8 else value


# code generation ----------------------------------------------------------------------------------------------------
def _geometry(ins: Any) -> str:
    found = [p for p in ins.parts if p in _DIMENSIONS]
    if len(found) != 1:
        raise Unsupported
    return found[0]


def _operand(g: Any, operand: str, fetch: Fetch, coordinate: str) -> str:
    """``[handle, {a, b, ...}]`` -> the handle and the coordinates as expressions; padding operands are left out."""
    handle, _, rest = operand.strip("[] ").partition(",")
    names = rest.strip(" {}").replace(",", " ").split()
    wanted = _DIMENSIONS[fetch.geometry] + (fetch.geometry[0] == "a")
    types = [coordinate] * wanted
    if fetch.geometry[0] == "a":
        types[0] = "u4"
    terms = [g.use(name, t) for name, t in zip(names, types, strict=False)]
    return ", ".join([g.use(handle.strip(), "u8"), *terms])


def _items(operand: str) -> list[str]:
    return operand.strip("{}").replace(",", " ").split()


def _tex(g: Any, i: int, ins: Any, hazard: Any, grain: int) -> None:
    parts = ins.parts
    if "v4" not in parts or parts[-2] not in ("f32", "u32", "s32") or parts[-1] not in ("f32", "s32"):
        raise Unsupported
    if "level" in parts and (len(ins.args) != 3 or not _is_zero(g, ins.args[2])):
        raise Unsupported
    if "level" not in parts and len(ins.args) != 2:
        raise Unsupported
    component = "rgba".index(parts[1]) if parts[0] == "tld4" else 0
    fetch = Fetch(i, parts[0], _geometry(ins), component=component, result=TYPES[parts[-2]])
    g.namespace[f"m{i}"] = fetch.texture
    coordinate = "f4" if parts[-1] == "f32" else "u4"
    call = f"m{i}(S, L, {_operand(g, ins.args[1], fetch, coordinate)})"
    g.define_all(_items(ins.args[0]), fetch.result, call)


def _is_zero(g: Any, operand: str) -> bool:
    """Whether a mip level is plainly 0: a literal, or a register that only ever gets one."""
    if operand in ("0f00000000", "0"):
        return True
    moves = [c for c in g.function.code if not isinstance(c, str) and operand in c.args[:1]]
    return bool(moves) and all(c.parts[0] == "mov" and c.args[1] in ("0f00000000", "0") for c in moves)


def _surface(ins: Any, i: int, kind: str) -> Fetch:
    parts = ins.parts
    if parts[1] != "b" or parts[-1] not in ("trap", "clamp", "zero"):
        raise Unsupported
    count = next((int(p[1:]) for p in parts if p in ("v2", "v4")), 1)
    item = int(TYPES[parts[-2]][1:])
    return Fetch(i, parts[0], _geometry(ins), kind, count, parts[-1], item)


def _suld(g: Any, i: int, ins: Any, hazard: Any, grain: int) -> None:
    fetch = _surface(ins, i, "load")
    g.namespace[f"m{i}"] = fetch.read
    g.define_all(_items(ins.args[0]), f"u{fetch.item}", f"m{i}(S, L, {_operand(g, ins.args[1], fetch, 'u4')})")


def _sust(g: Any, i: int, ins: Any, hazard: Any, grain: int) -> None:
    fetch = _surface(ins, i, "store")
    g.namespace[f"m{i}"] = fetch.write
    values = ", ".join(g.use(v, f"u{fetch.item}") for v in _items(ins.args[1]))
    g.emit(f"m{i}(S, L, {_operand(g, ins.args[0], fetch, 'u4')}, {values})")


EMITTERS = {"tex": _tex, "tld4": _tex, "suld": _suld, "sust": _sust}
