"""Tiles of tensors in bulk (TMA): cp.async.bulk.tensor, cp.reduce.async.bulk.tensor. PTX ISA, "Tensors", "Asynchronous copy".

Expected values index NumPy arrays, element by element of a tile; swizzles by the ISA's pictures, 16-byte piece by piece.
"""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import itertools

import numpy as np

from texlab.program import TensorMap

from .case import Collection
from .cases_memory import some

family = Collection()
LOAD, STORE = "Asynchronous copy: cp.async.bulk.tensor, {}d tile", "Asynchronous copy: {}cp.async.bulk.tensor to global"
_HEAD = """struct alignas(64) Map { unsigned long long d[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
"""


def _coordinates(rank: int, first: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(rank)) + "}"


def outside(x: np.ndarray, tensor: TensorMap, index: tuple[int, ...]) -> bool:
    return any(not 0 <= i < d for i, d in zip(index, tensor.dims, strict=True))


def tile(x: np.ndarray, tensor: TensorMap, start: tuple[int, ...], fill: float) -> np.ndarray:
    """The tile's elements in the order of shared memory (unswizzled), read from the bytes of ``x``."""
    flat, out = x.reshape(-1), []
    steps = tensor.element_strides or (1,) * len(start)
    ranges = [range(a, a + b, s) for a, b, s in zip(start, tensor.box, steps, strict=True)]
    for index in itertools.product(*ranges[::-1]):
        index = index[::-1]
        at = index[0] + sum(i * s // x.itemsize for i, s in zip(index[1:], tensor.strides, strict=True))
        out.append(fill if outside(x, tensor, index) else flat[at])
    return np.array(out, x.dtype)


def swizzle(values: np.ndarray, width: int) -> np.ndarray:
    """Pieces of 16 bytes: of every 1024 bytes, line of 128 number n has its pieces where piece ^ n is, as far as the width
    goes (the lowest 1, 2 or 3 bits)."""
    pieces = np.ascontiguousarray(values).view("u1").reshape(-1, 16)
    out = np.empty_like(pieces)
    for p in range(len(pieces)):
        line, column = divmod(p, 8)
        out[line * 8 + (column ^ (line % (width // 16) if width else 0))] = pieces[p]
    return out.reshape(-1).view(values.dtype)


def load(name: str, x: np.ndarray, start: tuple[int, ...], dims, strides, box, fill: float = 0, **how) -> None:
    dtype = how.pop("dtype", str(x.dtype))
    tensor = TensorMap("x", dtype, dims, strides, box, fill="nan" if fill != fill else "zeros", **how)
    rank, count = len(dims), int(np.prod(tensor.tile))
    nbytes = count * x.itemsize
    given = ", ".join(f'"r"({s})' for s in start)
    family.kernel(
        f"tma.load.{name}",
        LOAD.format(rank),
        _HEAD
        + f"""extern "C" __global__ void k(const __grid_constant__ Map map, unsigned char* r) {{
  __shared__ __align__(1024) unsigned char s[{nbytes}];
  __shared__ __align__(8) unsigned long long bar;
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.proxy.async.shared::cta;" : : "r"(at(&bar)) : "memory");
  __syncthreads();
  if (t == 0) {{
    asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {nbytes};" : : "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {_coordinates(rank, 3)}], [%2];"
                 : : "r"(at(s)), "l"(&map), "r"(at(&bar)), {given} : "memory");
  }}
  asm volatile("{{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }}" : : "r"(at(&bar)) : "memory");
  for (int i = t; i < {nbytes}; i += 64) r[i] = s[i];
}}
""",
        block=64,
        args=(tensor, "r"),
        outputs={"r": (count, str(x.dtype))},
        expect=lambda x: swizzle(tile(x, tensor, start, fill), tensor.swizzle),
        alone=True,
        x=x,
    )


def packed(shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(dims, strides) of a C-contiguous array."""
    dims = shape[::-1]
    return dims, tuple(int(np.prod(dims[: i + 1])) * itemsize for i in range(len(dims) - 1))


def whole(name: str, x: np.ndarray, start: tuple[int, ...], box: tuple[int, ...], **how) -> None:
    load(name, x, start, *packed(x.shape, x.itemsize), box, **how)


# an image N, H, W, C: rows in the order of memory, and in window order (every column's rows one after another)
_IMAGE = some("uint16", 2, 10, 12, 16)
whole("row", _IMAGE, (0, 3, 4, 1), (16, 8, 2, 1))
_WINDOW = ((16, 10, 12, 2), (12 * 16 * 2, 16 * 2, 10 * 12 * 16 * 2), (16, 3, 4, 1))
load("window", _IMAGE, (0, 5, 7, 1), *_WINDOW)
load("window.padded", _IMAGE, (0, -1, -1, 0), *_WINDOW)
load("window.past_the_end", _IMAGE, (0, 8, 10, 1), *_WINDOW)
load("window.channels", _IMAGE, (-8, 0, 0, 0), *_WINDOW)
load("window.all_outside", _IMAGE, (0, 0, 0, 2), *_WINDOW)

# ranks, types, swizzles
whole("1d", some("int32", 64), (-4,), (32,))
whole("2d", some("int32", 9, 12), (8, -2), (8, 6))
whole("3d", some("int32", 4, 5, 12), (4, 1, 2), (8, 3, 3))
whole("4d", some("int32", 3, 3, 4, 8), (-4, 1, -1, 1), (8, 2, 3, 2))
whole("5d", some("int32", 2, 3, 3, 2, 8), (0, 1, -1, 1, 0), (4, 2, 3, 2, 2))
for _dtype in ("uint8", "uint16", "uint32", "int64", "float16", "float32", "float64"):
    _inner = 32 // np.dtype(_dtype).itemsize
    _bits = some(f"uint{8 * np.dtype(_dtype).itemsize}", 6, _inner)
    _x = (_bits % 1000).astype(_dtype) if _dtype[0] == "f" else _bits.view(_dtype)
    whole(f"type.{_dtype}", _x, (_inner // 2, 2), (_inner, 5))
    if _dtype[0] == "f":
        whole(f"nan.{_dtype}", _x, (-_inner // 2, 4), (_inner, 4), fill=float("nan"))
for _width in (32, 64, 128):
    whole(f"swizzle{_width}", some("uint16", 40, 64), (8, 3), (_width // 2, 24), swizzle=_width)
    whole(f"swizzle{_width}.padded", some("uint8", 3, 5, _width), (0, -1, 1), (_width, 4, 3), swizzle=_width)
whole("element_strides", some("int32", 12, 11, 8), (0, 1, -1), (8, 7, 6), element_strides=(1, 2, 3))


# stores ---------------------------------------------------------------------------------------------------------------
def store(name: str, x: np.ndarray, shape, start: tuple[int, ...], box, op: str = "", width: int = 0) -> None:
    """All of the output is in the tile, so that none of it stays undefined; ``x`` is the tile in shared memory."""
    dims, strides = packed(shape, x.itemsize)
    tensor = TensorMap("r", str(x.dtype), dims, strides, box, swizzle=width)
    rank, nbytes = len(dims), x.nbytes

    def expected(x):
        out = np.full(shape, 3 if op else 0, x.dtype)
        plain = np.arange(nbytes // 16, dtype="u8").repeat(2)  # which piece of the tile each piece of memory holds
        where = swizzle(plain, width)[::2].astype(int)
        pieces = np.empty((nbytes // 16, 16), "u1")
        pieces[where] = x.view("u1").reshape(-1, 16)
        values = pieces.reshape(-1).view(x.dtype)
        ranges = [range(a, a + b) for a, b in zip(start, box, strict=True)]
        for value, index in zip(values, itertools.product(*ranges[::-1]), strict=True):
            if not outside(out, tensor, index[::-1]):
                out[index] = {"": value, "add": out[index] + value, "max": max(out[index], value)}[op]
        return out

    prefix, reduce = ("cp.reduce", f".{op}") if op else ("cp", "")
    given = ", ".join(f'"r"({s})' for s in start)
    item = {2: "unsigned short", 4: "unsigned"}[x.itemsize]
    first = int(np.array(3, x.dtype).view(f"u{x.itemsize}"))
    fill = f"  for (int i = t; i < {int(np.prod(shape))}; i += 64) r[i] = {first};\n" if op else ""
    family.kernel(
        f"tma.{op or 'store'}.{name}",
        STORE.format("cp.reduce.async.bulk.tensor, " if op else ""),
        _HEAD
        + f"""extern "C" __global__ void k(const {item}* x, const __grid_constant__ Map map, {item}* r) {{
  __shared__ __align__(1024) {item} s[{x.size}];
  int t = threadIdx.x;
{fill}  for (int i = t; i < {x.size}; i += 64) s[i] = x[i];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (t == 0) {{
    asm volatile("{prefix}.async.bulk.tensor.{rank}d.global.shared::cta{reduce}.tile.bulk_group [%0, {_coordinates(rank, 2)}], [%1];"
                 : : "l"(&map), "r"(at(s)), {given} : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    s[0] = 0;   // has been read
  }}
}}
""",
        block=64,
        args=("x", tensor, "r"),
        outputs={"r": (shape, str(x.dtype))},
        expect=expected,
        alone=True,
        x=x,
    )


store("1d", some("int32", 40), (32,), (0,), (40,))
store("2d", some("int32", 8 * 12), (6, 8), (0, 0), (12, 8))
store("3d", some("uint16", 4 * 3 * 16), (3, 2, 16), (0, 0, 0), (16, 3, 4))
store("4d", some("uint32", 2 * 2 * 3 * 4), (1, 2, 2, 4), (0, 0, 0, 0), (4, 3, 2, 2))
store("5d", some("uint32", 2 * 2 * 1 * 2 * 4), (2, 2, 1, 2, 4), (0, 0, 0, 0, 0), (4, 2, 1, 2, 2))
for _width in (32, 64, 128):
    _half = _width // 2
    store(f"swizzle{_width}", some("uint16", 20 * _half), (19, _half), (0, 0), (_half, 20), width=_width)
store("2d.s32", some("int32", 8 * 12) >> 1, (6, 8), (0, 0), (12, 8), op="add")
store("2d.f32", (some("float32", 8 * 12) % 64).astype("f4"), (6, 8), (0, 0), (12, 8), op="add")
store("2d.f16", (some("uint16", 8 * 16) % 64).astype("f2"), (6, 8), (0, 0), (16, 8), op="add")
store("2d.u32", some("uint32", 8 * 12), (6, 8), (0, 0), (12, 8), op="max")
