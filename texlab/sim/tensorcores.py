"""ldmatrix and mma.sync: matrices spread over the registers of a warp.

Products of float16 or bfloat16 are exact in double; a dot product and its addend are summed in double and rounded once.
The hardware sums in a precision and an order of its own, so that last bits differ.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from texlab.sim.arith import F2, F4, F8, U2, U4
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


def _pairs(values: tuple[Any, ...], warps: int, bfloat: bool) -> np.ndarray:
    """Registers of two 16-bit floats each -> float64 (warps, registers, 32, 2)."""
    table = np.stack([np.broadcast_to(v, (32 * warps,)).reshape(warps, 32) for v in values], axis=1)
    halves = np.ascontiguousarray(table).view(U2).reshape(warps, len(values), 32, 2)
    if bfloat:
        return (halves.astype(U4) << np.uint32(16)).view(F4).astype(F8)
    return halves.view(F2).astype(F8)


def multiply(
    index: int,
    k: int,
    bfloat: bool,
    wide: bool,
    s: Any,
    L: Any,
    a: tuple[Any, ...],
    b: tuple[Any, ...],
    c: tuple[Any, ...],
) -> tuple[Any, ...]:
    """``mma.m16n8k8`` / ``m16n8k16``: D = A (16, k) B (k, 8) + C (16, 8). ``wide``: C and D are float32, else float16."""
    warps = _whole_warps(s, index, L)
    left, right = np.zeros((warps, 16, k)), np.zeros((warps, k, 8))
    for j, pair in enumerate(_pairs(a, warps, bfloat).swapaxes(0, 1)):
        for e in (0, 1):
            left[:, _ROW + 8 * (j % 2), 2 * _PAIR + 8 * (j // 2) + e] = pair[..., e]
    for j, pair in enumerate(_pairs(b, warps, bfloat).swapaxes(0, 1)):
        for e in (0, 1):
            right[:, 2 * _PAIR + 8 * j + e, _ROW] = pair[..., e]
    places = [(_ROW + 8 * (j // 2), 2 * _PAIR + j % 2) for j in range(4)]
    total = left @ right
    if wide:
        addends = [np.broadcast_to(v, (32 * warps,)).reshape(warps, 32) for v in c]
    else:
        halves = _pairs(c, warps, False)
        addends = [halves[:, j // 2, :, j % 2] for j in range(4)]
    out = [total[:, r, col] + x for (r, col), x in zip(places, addends, strict=True)]
    if wide:
        return tuple(v.astype(F4).reshape(-1) for v in out)
    packed = [np.stack([out[2 * j], out[2 * j + 1]], axis=-1).astype(F2).view(U4).reshape(-1) for j in (0, 1)]
    return tuple(packed)


# emitters -----------------------------------------------------------------------------------------------------------
def _items(operand: str) -> list[str]:
    return operand.strip("{}").replace(",", " ").split()


def _ldmatrix(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    shapes = {"x1": 1, "x2": 2, "x4": 4}
    count = next((shapes[p] for p in ins.parts if p in shapes), None)
    if count is None or "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise Unsupported
    base, plus = g.address(ins.args[1])
    access = Access(i, "load", U4, 4, plus, "shared", hazard, 16 // grain)
    g.namespace[f"m{i}"] = partial(load_matrix, access, count, "trans" in ins.parts)
    g.define_all(_items(ins.args[0]), "u4", f"m{i}(S, L, {g.use(base, 'u4')}){'[0]' if count == 1 else ''}")


def _mma(g: Any, i: int, ins: Any, hazard: tuple[bool, bool], grain: int) -> None:
    parts = ins.parts
    sizes = {"m16n8k8": 8, "m16n8k16": 16}
    k = next((sizes[p] for p in parts if p in sizes), None)
    d, a, b, c = parts[-4:]
    if k is None or "row" not in parts or "col" not in parts or a != b or c != d:
        raise Unsupported
    if a not in ("f16", "bf16") or d not in ("f32", "f16") or (a == "bf16" and d == "f16"):
        raise Unsupported
    g.namespace[f"m{i}"] = partial(multiply, i, k, a == "bf16", d == "f32")
    t = "f4" if d == "f32" else "u4"
    group = lambda operand, kind: "(" + ", ".join(g.use(r, kind) for r in _items(operand)) + ",)"  # noqa: E731
    operands = f"{group(ins.args[1], 'u4')}, {group(ins.args[2], 'u4')}, {group(ins.args[3], t)}"
    g.define_all(_items(ins.args[0]), t, f"m{i}(S, L, {operands})")


EMITTERS = {"ldmatrix": _ldmatrix, "mma": _mma}
