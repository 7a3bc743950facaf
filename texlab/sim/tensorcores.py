"""ldmatrix and mma.sync: matrices spread over the registers of a warp.

Products of 8- and 16-bit floats (and of TF32, whose lower 13 bits are dropped) are exact in double; a dot product and its addend
are summed in double and rounded once. The hardware sums in a precision and an order of its own, so that last bits
differ. Integers are exact.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from texlab.sim.arith import F2, F4, F8, I1, I4, I8, U1, U2, U4
from texlab.sim.fp8 import KINDS, numbers
from texlab.sim.halves import widen
from texlab.sim.memory import Access
from texlab.sim.ops import Unsupported

_LANE = np.arange(32)
_ROW, _PAIR = _LANE // 4, _LANE % 4  # where a lane sits in an 8 x 8 matrix: its row, and which two columns


def _whole_warps(s: Any, index: int, L: Any) -> int:
    """The number of warps; all 32 lanes of each must be there."""
    n = s.active(L)
    place = s.lanes("place", L)
    if n % 32 or (place[::32] % 32).any() or (np.diff(place.reshape(-1, 32)) != 1).any():
        s.fault(index, "warp-divergence", "a matrix instruction needs all 32 lanes of a warp", L, 0)
    return n // 32


def load_matrix(access: Access, matrices: int, transposed: bool, s: Any, L: Any, address: Any) -> tuple[Any, ...]:
    """``ldmatrix``: lane 8*j+i points at row i (16 bytes) of matrix j; lane l gets two elements of row l // 4 of each."""
    warps = _whole_warps(s, access.index, L)
    where = np.arange(32 * warps).reshape(-1, 32)[:, : 8 * matrices].reshape(-1)
    lanes = s.subset(L, where)
    address = np.broadcast_to(address, (32 * warps,))[where]
    words = access.load(s, lanes, s.shared_pointer(lanes, address))
    rows = np.stack([np.broadcast_to(w, where.shape) for w in words], axis=-1).reshape(warps, matrices, 8, 4)
    if transposed:
        rows = np.ascontiguousarray(np.ascontiguousarray(rows).view(U2).swapaxes(2, 3)).view(U4)
    return tuple(np.ascontiguousarray(rows[:, j, _ROW, _PAIR]).reshape(-1) for j in range(matrices))


def store_matrix(access: Access, matrices: int, transposed: bool, s: Any, L: Any, address: Any, *values: Any) -> None:
    """``stmatrix``: the reverse of ``ldmatrix``."""
    warps = _whole_warps(s, access.index, L)
    rows = np.stack([_move(v, warps, transposed) for v in values], axis=1)  # (warps, matrices, 8, 4)
    where = np.arange(32 * warps).reshape(-1, 32)[:, : 8 * matrices].reshape(-1)
    lanes = s.subset(L, where)
    words = np.moveaxis(rows.reshape(len(where), 4), 1, 0)
    access.store(s, lanes, s.shared_pointer(lanes, np.broadcast_to(address, (32 * warps,))[where]), *words)


def _move(value: Any, warps: int, transposed: bool) -> np.ndarray:
    """A matrix of 8 rows of 4 words, as the lanes of each warp hold it; ``transposed`` as 8 x 8 halves."""
    rows = np.ascontiguousarray(np.broadcast_to(value, (32 * warps,)).reshape(warps, 8, 4))
    return np.ascontiguousarray(rows.view(U2).swapaxes(1, 2)).view(U4) if transposed else rows


def move_matrix(index: int, s: Any, L: Any, value: Any) -> Any:
    """``movmatrix``: the transpose of a matrix spread over the warp."""
    return _move(value, _whole_warps(s, index, L), True).reshape(-1)


# mma ----------------------------------------------------------------------------------------------------------------


def _elements(values: tuple[Any, ...], kind: str, warps: int) -> np.ndarray:
    """Registers of an operand -> (warps, 32 lanes, registers, elements of a register), as double or integers."""
    table = np.stack([np.broadcast_to(v, (32 * warps,)).reshape(warps, 32) for v in values], axis=2)
    table = np.ascontiguousarray(table)
    if kind in ("f64", "f32"):
        return table.astype(F8)[..., None]
    if kind == "tf32":  # the lower 13 bits of a float do not count
        return (table & np.uint32(0xFFFFE000)).view(F4).astype(F8)[..., None]
    if kind in ("s8", "u8"):
        return table.view(I1 if kind == "s8" else U1).reshape(*table.shape, 4).astype(I8)
    if kind in KINDS:
        return numbers(table.view(U1), kind).astype(F8).reshape(*table.shape, 4)
    return widen(table.view(U2), kind).reshape(*table.shape, 2)


def _place(values: np.ndarray, rows: int, k: int) -> np.ndarray:
    """An operand's elements put into its matrix (warps, rows, k): a register is a piece of 8 rows and 4 lanes' columns,
    pieces run down the rows first."""
    warps, _, registers, each = values.shape
    out = np.zeros((warps, rows, k), values.dtype)
    down = rows // 8
    for j in range(registers):
        for e in range(each):
            out[:, _ROW + 8 * (j % down), each * (_PAIR + 4 * (j // down)) + e] = values[:, :, j, e]
    return out


def multiply(
    index: int, k: int, kinds: tuple[str, ...], limit: bool, s: Any, L: Any, a: Any, b: Any, c: Any
) -> tuple[Any, ...]:
    """``mma``: D (m, 8) = A (m, k) B (k, 8) + C, with ``kinds`` of D, A, B, C; ``limit``: integers saturate."""
    warps = _whole_warps(s, index, L)
    d_kind, a_kind, b_kind, _ = kinds
    rows = 8 if a_kind == "f64" else 16
    left = _place(_elements(a, a_kind, warps), rows, k)
    right = _place(_elements(b, b_kind, warps), 8, k).swapaxes(1, 2)
    total = left @ right
    pairs = _PAIR[:, None] * 2 + np.arange(2)  # the two columns of each accumulator row that a lane holds
    total = np.concatenate([total[:, _ROW[:, None] + 8 * r, pairs] for r in range(rows // 8)], axis=2)
    if d_kind == "s32":
        addend = np.stack([np.broadcast_to(v, (32 * warps,)).reshape(warps, 32) for v in c], axis=2).astype(I8)
        total = total + addend
        total = np.clip(total, -(2**31), 2**31 - 1) if limit else total
        return tuple(total[:, :, j].astype(I4).reshape(-1) for j in range(total.shape[2]))
    total = total + _elements(c, d_kind, warps).reshape(warps, 32, -1)
    if d_kind == "f16":
        packed = np.ascontiguousarray(total.astype(F2)).view(U4)
        return tuple(packed[:, :, j].reshape(-1) for j in range(2))
    out = total.astype(F8 if d_kind == "f64" else F4)
    return tuple(np.ascontiguousarray(out[:, :, j]).reshape(-1) for j in range(out.shape[2]))


# emitters -----------------------------------------------------------------------------------------------------------
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_SHAPES = {
    ("f16", "m16n8k8"): 8, ("f16", "m16n8k16"): 16, ("bf16", "m16n8k8"): 8, ("bf16", "m16n8k16"): 16,
    ("tf32", "m16n8k4"): 4, ("tf32", "m16n8k8"): 8, ("s8", "m16n8k16"): 16, ("s8", "m16n8k32"): 32,
    ("u8", "m16n8k16"): 16, ("u8", "m16n8k32"): 32, ("e4m3", "m16n8k16"): 16, ("e4m3", "m16n8k32"): 32,
    ("e5m2", "m16n8k16"): 16, ("e5m2", "m16n8k32"): 32, ("f64", "m8n8k4"): 4,
}  # fmt: skip
_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",), "e4m3": ("f32",),
         "e5m2": ("f32",), "f64": ("f64",)}  # fmt: skip
_REGISTER = {"f64": "f8", "f32": "f4", "s32": "i4"}


def _items(operand: str) -> list[str]:
    return operand.strip("{}").replace(",", " ").split()


def _matrices(g: Any, i: int, ins: Any, kind: str, hazard: tuple[bool, bool], grain: int) -> tuple[Access, int, str]:
    """(access, how many matrices, address register) of ldmatrix and stmatrix."""
    count = next((_COUNTS[p] for p in ins.parts if p in _COUNTS), None)
    if count is None or "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise Unsupported
    base, plus = g.address(ins.args[1 if kind == "load" else 0])
    return Access(i, kind, U4, 4, plus, "shared", hazard, 16 // grain), count, base


def _ldmatrix(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    access, count, base = _matrices(g, i, ins, "load", hazard, grain)
    g.namespace[f"m{i}"] = partial(load_matrix, access, count, "trans" in ins.parts)
    g.define_all(_items(ins.args[0]), "u4", f"m{i}(S, L, {g.use(base, 'u4')}){'[0]' if count == 1 else ''}")


def _stmatrix(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    access, count, base = _matrices(g, i, ins, "store", hazard, grain)
    g.namespace[f"m{i}"] = partial(store_matrix, access, count, "trans" in ins.parts)
    values = ", ".join(g.use(v, "u4") for v in _items(ins.args[1]))
    g.emit(f"m{i}(S, L, {g.use(base, 'u4')}, {values})")


def _movmatrix(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    g.namespace[f"m{i}"] = partial(move_matrix, i)
    g.define(ins.args[0], "u4", f"m{i}(S, L, {g.use(ins.args[1], 'u4')})")


def _mma(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    d, a, b, c = kinds = tuple(ins.parts[-4:])
    k = next((_SHAPES[a, p] for p in ins.parts if (a, p) in _SHAPES), None)
    same = a == b or {a, b} <= {"s8", "u8"} or {a, b} <= set(KINDS)
    if k is None or not same or c != d or d not in _SUMS[a] or "row" not in ins.parts or "col" not in ins.parts:
        raise Unsupported
    g.namespace[f"m{i}"] = partial(multiply, i, k, kinds, "satfinite" in ins.parts)
    t = _REGISTER.get(d, "u4")
    group = lambda operand, kind: "(" + ", ".join(g.use(r, kind) for r in _items(operand)) + ",)"  # noqa: E731
    words = "f8" if a == "f64" else "u4"
    operands = f"{group(ins.args[1], words)}, {group(ins.args[2], words)}, {group(ins.args[3], t)}"
    g.define_all(_items(ins.args[0]), t, f"m{i}(S, L, {operands})")


EMITTERS = {"ldmatrix": _ldmatrix, "stmatrix": _stmatrix, "movmatrix": _movmatrix, "mma": _mma}
