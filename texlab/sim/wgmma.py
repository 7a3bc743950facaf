"""wgmma.mma_async: a warpgroup multiplies a 64 x k by a k x n matrix, B (and often A) straight from shared memory.

Each of the four warps computes 16 rows. Products and sums are as ``tensorcores`` has them: exact, or rounded once from
double. They are there at once here: their use before wgmma.wait_group is not found. That the operands in shared memory
change before it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from texlab.sim import bulk
from texlab.sim.arith import F2, F4, F8, I1, I4, I8, U1, U2, U4
from texlab.sim.halves import widen
from texlab.sim.memory import Access
from texlab.sim.ops import Unsupported
from texlab.sim.tensorcores import _elements, _place, _whole_warps

_SWIZZLES = {0: 0, 1: 128, 2: 64, 3: 32}
_CODES = {width: code for code, width in _SWIZZLES.items()}


@dataclass(frozen=True)
class Descriptor:
    """What a wgmma descriptor says of a matrix in shared memory; all in bytes but ``base``, the base offset (0..7)."""

    address: int
    leading: int
    stride: int
    swizzle: int = 0
    base: int = 0

    def encode(self) -> int:
        """The 64-bit word. Addresses and offsets are kept in units of 16 bytes, 14 bits each.

        >>> hex(Descriptor(0x400, 16, 1024, 128).encode())
        '0x4000004000010040'
        """
        for name in ("address", "leading", "stride"):
            value = getattr(self, name)
            if value % 16 or not 0 <= value < 1 << 18:
                raise ValueError(f"descriptor: {name} {value}: a multiple of 16 below {1 << 18}")
        if self.swizzle not in _CODES or not 0 <= self.base < 8:
            raise ValueError(f"descriptor: swizzle {self.swizzle}, base offset {self.base}: 0, 32, 64 or 128; 0 to 7")
        word = self.address >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return word | self.base << 49 | _CODES[self.swizzle] << 62

    @staticmethod
    def decode(word: int) -> Descriptor:
        """The fields of a word.

        >>> Descriptor.decode(0xC000000800080000)
        Descriptor(address=0, leading=128, stride=128, swizzle=32, base=0)
        """
        field = lambda at: (word >> at & 0x3FFF) << 4  # noqa: E731
        return Descriptor(field(0), field(16), field(32), _SWIZZLES[word >> 62], word >> 49 & 7)

    def pieces(self, rows: np.ndarray, transposed: bool, k: int) -> np.ndarray:
        """Where the 16-byte pieces of a matrix are: (rows, 2) if k runs along a piece, (k, rows // 8) if the rows do."""
        width = self.swizzle
        if not transposed:
            r, c = rows[:, None], np.arange(2)
            inner = r % 8 * (width or 16) + r // 8 * self.stride
            offset = inner + c * (16 if width else self.leading)
        else:
            j, i = rows[::8] // 8, np.arange(k)[:, None]
            if width:
                per = width // 16
                offset = j % per * 16 + j // per * self.leading + i % 8 * width + i // 8 * self.stride
            else:
                offset = j * self.stride + i % 8 * 16 + i // 8 * self.leading
        at = self.address + offset
        return at ^ ((at - (self.base << 7)) >> 3 & (width - 16)) if width else at


def _from_shared(
    access: Access, kind: str, k: int, transposed: bool, s: Any, L: Any, words: Any, rows: Any
) -> np.ndarray:
    """(warps, rows, k) numbers, for each warp from its own descriptor; ``rows`` (warps, n) which of the matrix."""
    lanes, at = [], []
    for w in range(len(rows)):
        pieces = Descriptor.decode(int(words[32 * w])).pieces(rows[w], transposed, k)
        at.append(pieces.reshape(-1))
        lanes.append(bulk.lane(L, 32 * w, pieces.size))
    many = np.concatenate(lanes)
    with bulk.unrecorded(s):
        p = s.shared_pointer(many, np.concatenate(at).astype(U4))
        data = bulk.read(access, s, many, p)
    source, each = np.asarray(p.at)[:, None] + np.arange(16), len(at[0])
    for w, lane in enumerate(lanes):
        part = slice(w * each, (w + 1) * each)
        bulk.note(s.products, s, lane[:1], source[part], data[part], None)
    values = _numbers(data.reshape(-1), kind).reshape(len(rows), *((k, -1) if transposed else (-1, k)))
    return values.swapaxes(1, 2) if transposed else values


def _numbers(data: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("s8", "u8"):
        return data.view(I1 if kind == "s8" else U1).astype(I8)
    if kind == "tf32":
        return (data.view(U4) & np.uint32(0xFFFFE000)).view(F4).astype(F8)
    return widen(data.view(U2), kind)


@dataclass(frozen=True)
class Shape:
    """One kind of wgmma: sizes, types of D, A and B, which operands have k as their slow dimension, and signs."""

    n: int
    k: int
    kinds: tuple[str, str, str]
    transposed: tuple[bool, bool] = (False, False)
    signs: tuple[int, int] = (1, 1)


def multiply(access: Access, shape: Shape, s: Any, L: Any, add: Any, a: Any, b: Any, d: tuple[Any, ...]) -> Any:
    """D (64, n) = A (64, k) B (k, n), plus D where ``add``. ``a``: a descriptor, or a tuple of registers."""
    warps = _whole_warps(s, access.index, L)
    d_kind, a_kind, b_kind = shape.kinds
    n = 32 * warps
    if isinstance(a, tuple):
        left = _place(_elements(a, a_kind, warps), 16, shape.k)
    else:
        quarter = s.lanes("warp", L)[::32] % 4
        rows = 16 * quarter[:, None] + np.arange(16)
        left = _from_shared(access, a_kind, shape.k, shape.transposed[0], s, L, np.broadcast_to(a, n), rows)
    rows = np.broadcast_to(np.arange(shape.n), (warps, shape.n))
    right = _from_shared(access, b_kind, shape.k, shape.transposed[1], s, L, np.broadcast_to(b, n), rows)
    total = left @ right.swapaxes(1, 2) * (shape.signs[0] * shape.signs[1])
    lane, i = np.arange(32)[:, None], np.arange(shape.n // 2)
    total = total[:, lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2].reshape(n, -1)  # lane's elements
    registers = np.stack([np.broadcast_to(v, n) for v in d], axis=1)
    old = np.ascontiguousarray(registers).view(F2) if d_kind == "f16" else registers
    wide = I8 if d_kind == "s32" else F8
    total = total + np.where(np.broadcast_to(add, n)[:, None], old.astype(wide), wide.type(0))
    if d_kind == "f16":
        total = np.ascontiguousarray(total.astype(F2)).view(U4)
    out = total.astype(I4 if d_kind == "s32" else F4 if d_kind == "f32" else U4)
    return tuple(np.ascontiguousarray(out[:, j]) for j in range(out.shape[1]))


# emitter ------------------------------------------------------------------------------------------------------------
_K = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "u8": 32}
_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",)}


def _items(operand: str) -> list[str]:
    return operand.strip("{}").replace(",", " ").split()


def _wgmma(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    if ins.parts[1] == "commit_group":
        return g.emit("S.products.commit(S, L)")
    if ins.parts[1] == "wait_group":
        g.namespace[f"m{i}"] = partial(_wait, i, int(ins.args[0], 0))
        return g.emit(f"m{i}(S, L)")
    if ins.parts[1] == "fence":
        return None
    m = next(filter(None, (re.fullmatch(r"m64n(\d+)k(\d+)", p) for p in ins.parts)))
    n, k, (d, a, b) = int(m[1]), int(m[2]), ins.parts[-3:]
    if _K.get(a) != k or n % 8 or not 8 <= n <= 256 or d not in _SUMS[a] or (a != b and {a, b} != {"s8", "u8"}):
        raise Unsupported
    target, left, right, add, *numbers = ins.args
    signs, flips = [int(v, 0) for v in numbers[:2]] or [1, 1], [int(v, 0) for v in numbers[2:]]
    flips = flips if len(flips) == 2 else [0, *(flips or [0])]
    shape = Shape(n, k, (d, a, b), (bool(flips[0]), bool(flips[1])), (signs[0], signs[1]))
    t = {"f32": "f4", "s32": "i4", "f16": "u4"}[d]
    group = lambda operand, kind: "(" + ", ".join(g.use(r, kind) for r in _items(operand)) + ",)"  # noqa: E731
    first = group(left, "u4") if left[0] == "{" else g.use(left, "u8")
    access = Access(i, "load", U4, 4, 0, "shared", hazard, 16 // grain)
    g.namespace[f"m{i}"] = partial(multiply, access, shape)
    operands = f"{g.use(add, '?')}, {first}, {g.use(right, 'u8')}, {group(target, t)}"
    g.define_all(_items(target), t, f"m{i}(S, L, {operands})")


def _wait(index: int, pending: int, s: Any, L: Any) -> None:
    s.products.wait(index, pending, False, s, L)


EMITTERS = {"wgmma": _wgmma}
