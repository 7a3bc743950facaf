"""TMA: cp.async.bulk.tensor, tiles of a tensor of one to five dimensions, described by a TensorMap.

A tile's element lies at the box's coordinates plus its own; outside the tensor a load gives the map's fill and a store
writes nothing. In shared memory the tile is dense, with the bits of its addresses permuted by the map's swizzle.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from texlab.program import TensorMap
from texlab.sim import bulk
from texlab.sim.arith import U1, U4, U8
from texlab.sim.mbarrier import space
from texlab.sim.memory import Access
from texlab.sim.ops import Unsupported

#: all-ones payloads, as the hardware's own NaN
_NAN = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "float32": 0x7FFFFFFF, "float64": 0x7FFFFFFFFFFFFFFF}
_TYPES = {"bfloat16": "u2"}


def swizzled(address: Any, width: int) -> Any:
    """Where a byte of shared memory lies with a swizzle of ``width`` bytes: bits 4.. are combined (exclusive or) with bits
    7.., one for 32 bytes, two for 64, three for 128.

    >>> swizzled(0x90, 32)
    128
    """
    return address ^ ((address >> 3) & (width - 16)) if width else address


def _tile(tensor: TensorMap, start: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(byte offset in the buffer, whether it is inside) of each element of a tile, in its order in shared memory."""
    offset, inside = np.zeros(1, np.int64), np.ones(1, bool)
    sizes = (tensor.itemsize, *tensor.strides)
    for at, count, step, dim, stride in zip(start, tensor.tile, tensor.steps, tensor.dims, sizes, strict=True):
        i = at + step * np.arange(count)
        offset = (i * stride)[:, None] + offset
        inside = ((i >= 0) & (i < dim))[:, None] & inside
        offset, inside = offset.reshape(-1), inside.reshape(-1)
    return offset, inside


def _map(index: int, rank: int, s: Any, L: Any, k: int, address: Any) -> tuple[TensorMap, int]:
    """The tensor map at an address, and where its buffer begins."""
    where = int(np.broadcast_to(address, s.active(L))[k])
    tensor = s.memory.maps.get(where)
    if tensor is None:
        text = f"no tensor map at address {where:#x}: pass a TensorMap as a __grid_constant__ parameter and take its address"
        s.fault(index, "out-of-bounds", text, L, k, where)
    if len(tensor.dims) != rank:
        text = f"copy of {rank} dimensions with a tensor map of {len(tensor.dims)}"
        s.fault(index, "out-of-bounds", f"{text} (of buffer {tensor.buffer!r})", L, k, where)
    base = next(b.base for b in s.memory.regions.values() if b.name == tensor.buffer)
    return tensor, base


def _pieces(index: int, s: Any, L: Any, k: int, tensor: TensorMap, elements: int, at: Any) -> np.ndarray:
    """Byte offsets in shared memory of the 16-byte pieces of a tile."""
    start = int(np.broadcast_to(at, s.active(L))[k])
    if start % 128:
        text = f"tile at byte offset {start} of shared memory; it must be a multiple of 128"
        s.fault(index, "misaligned", text, L, k, start)
    return swizzled(start + np.arange(0, elements * tensor.itemsize, 16), tensor.swizzle)


def _starts(index: int, s: Any, L: Any, k: int, tensor: TensorMap, coordinates: tuple[Any, ...]) -> list[int]:
    """The tile's coordinates. The hardware calls an innermost one that is no multiple of 16 bytes an illegal instruction."""
    out = [int(np.broadcast_to(c, s.active(L))[k]) for c in coordinates]
    if out[0] * tensor.itemsize % 16:
        text = f"tile at innermost coordinate {out[0]}, {out[0] * tensor.itemsize} bytes; it must be a multiple of 16 bytes"
        s.fault(index, "misaligned", f"{text} (tensor map of {tensor.buffer!r}, {tensor.dtype})", L, k)
    return out


def load(
    index: int, target: Access, bar: Access, s: Any, L: Any, to: Any, address: Any, barrier: Any, *coordinates: Any
) -> None:
    """A tile from global to shared memory; ``barrier`` (a Pointer) hears of all its bytes."""
    places = s.mbarriers.place(bar, s, L, barrier)
    with bulk.unrecorded(s):
        for k in range(s.active(L)):
            tensor, base = _map(index, len(coordinates), s, L, k, address)
            offset, inside = _tile(tensor, _starts(index, s, L, k, tensor, coordinates))
            element = np.dtype(f"u{tensor.itemsize}")
            tile = np.full(len(offset), _NAN[tensor.dtype] if tensor.fill == "nan" else 0, element)
            if inside.any():
                many = bulk.lane(L, k, int(inside.sum()))
                pointer = s.global_pointer(many, (base + offset[inside]).astype(U8))
                tile[inside] = Access(index, "load", element, 1, 0, "global").load(s, many, pointer)
            pieces = _pieces(index, s, L, k, tensor, len(tile), to)
            one = bulk.lane(L, k)
            land = bulk.fill(target, s, one, pieces, tile.view(U1).reshape(-1, 16))
            s.mbarriers.begin(bar, s, one, int(places[k]), tile.nbytes, land)


def store(index: int, source: Access, op: str, s: Any, L: Any, address: Any, start: Any, *coordinates: Any) -> None:
    """A tile from shared to global memory, replacing what is there or combining with it."""
    for k in range(s.active(L)):
        tensor, base = _map(index, len(coordinates), s, L, k, address)
        at = _starts(index, s, L, k, tensor, coordinates)
        if min(at) < 0:  # measured: an H200 loads such a tile, and calls its store an illegal instruction
            text = f"tile stored at coordinates {tuple(at)}; none may be negative (past the end is allowed)"
            s.fault(index, "out-of-bounds", f"{text} (tensor map of {tensor.buffer!r})", L, k)
        offset, inside = _tile(tensor, at)
        pieces = _pieces(index, s, L, k, tensor, len(offset), start)
        many = bulk.lane(L, k, len(pieces))
        with bulk.unrecorded(s):
            data = bulk.read(source, s, many, s.shared_pointer(many, pieces.astype(U4)))
        if op and tensor.dtype == "bfloat16":
            s.unsupported(index)
        kind = np.dtype(tensor.dtype) if op else np.dtype(f"u{tensor.itemsize}")
        target = Access(index, "atomic" if op else "store", kind, 1, 0, "global")
        values = np.ascontiguousarray(data).reshape(-1).view(kind)[inside]
        slot = int(s.lanes("slot", many)[0])
        land = partial(bulk.land_in_global, target, op, slot, (base + offset[inside]).astype(U8), values)
        bulk.put(s, L, k, pieces, data, land if inside.any() else lambda s: None)


def emit(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    """``cp.async.bulk.tensor`` and ``cp.reduce.async.bulk.tensor``, tiles only."""
    parts = ins.parts
    args = ins.args[:-1] if "L2::cache_hint" in parts else ins.args
    rank = int(next(p for p in parts if re.fullmatch(r"[1-5]d", p))[0])
    to_shared = parts[parts.index("tensor") + 2].startswith("shared")
    op = next((p for p in parts if p in bulk.REDUCTIONS), "")
    if len(args) != 2 + to_shared or (parts[1] == "reduce") != bool(op) or (to_shared and op):
        raise Unsupported
    m = re.fullmatch(r"\[\s*([^\s,]+)\s*,\s*\{([^}]*)\}\s*\]", args[1 if to_shared else 0])
    coordinates = m[2].replace(",", " ").split()
    if len(coordinates) != rank:
        raise Unsupported
    numbers = ", ".join(g.use(c, "i4") for c in coordinates)
    tensor = bulk.address_of(g, f"[{m[1]}]", "u8")
    shared = bulk.address_of(g, args[0 if to_shared else 1], "u4")
    if to_shared:
        if "mbarrier::complete_tx::bytes" not in parts:
            raise Unsupported
        base, plus = g.address(args[2])
        target, bar = (
            Access(i, "store", U4, 4, 0, "shared", hazard, 16 // grain),
            Access(i, "atomic", U8, 1, plus, "shared"),
        )
        g.namespace[f"m{i}"] = partial(load, i, target, bar)
        return g.emit(f"m{i}(S, L, {shared}, {tensor}, {g.pointer(base, space(ins))}, {numbers})")
    g.namespace[f"m{i}"] = partial(store, i, Access(i, "load", U4, 4, 0, "shared", hazard, 16 // grain), op)
    g.emit(f"m{i}(S, L, {tensor}, {shared}, {numbers})")
