"""Inputs made from a seed, awkward values first: the same on every machine and with every NumPy.

The first 256 elements of up to two operands are all pairs of 16 awkward values; a third operand walks through them in
another order. The rest are random: integers of every magnitude, floats near 1 and floats of any bit pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

N = 512  # elements of an elementwise case


@dataclass(frozen=True)
class Type:
    """A PTX operand type: how C++ stores it (``memory``), what register ``asm`` wants (``c``, ``constraint``), the
    NumPy ``dtype`` of its elements and how many of them (``lanes``) share a register. ``kind``: "s", "u", or the name of
    a float format of ``exact``."""

    name: str
    memory: str
    c: str
    constraint: str
    dtype: str
    kind: str
    bits: int
    lanes: int = 1


def _types() -> dict[str, Type]:
    integer = {8: ("char", "r"), 16: ("short", "h"), 32: ("int", "r"), 64: ("long long", "l")}
    out = {}
    for bits, (word, constraint) in integer.items():
        for letter, sign in (("s", "signed "), ("u", "unsigned ")):
            register = sign + ("int" if bits == 8 else word)
            dtype = f"{'int' if letter == 's' else 'uint'}{bits}"
            out[f"{letter}{bits}"] = Type(f"{letter}{bits}", sign + word, register, constraint, dtype, letter, bits)
    half, word = "unsigned short", "unsigned int"
    for t in (
        Type("f32", "float", "float", "f", "float32", "f32", 32),
        Type("f64", "double", "double", "d", "float64", "f64", 64),
        Type("f16", half, half, "h", "float16", "f16", 16),
        Type("bf16", half, half, "h", "uint16", "bf16", 16),
        Type("f16x2", word, word, "r", "float16", "f16", 16, 2),
        Type("bf16x2", word, word, "r", "uint16", "bf16", 16, 2),
        Type("e4m3x2", half, half, "h", "uint8", "e4m3", 8, 2),
        Type("e5m2x2", half, half, "h", "uint8", "e5m2", 8, 2),
        Type("f32x2", "float2", "float2", "", "float32", "f32", 32, 2),
    ):
        out[t.name] = t
    return out


TYPES = _types()

_F32 = (
    "0 80000000 3f800000 bf800000 3fc00000 40200000 7f800000 ff800000 7fc00000 7f7fffff 00800000 80000001 007fffff "
    "4f000000 3effffff cf000001"
)
_F64 = (
    "0 8000000000000000 3ff0000000000000 bff0000000000000 3ff8000000000000 4004000000000000 7ff0000000000000 "
    "fff0000000000000 7ff8000000000000 7fefffffffffffff 0010000000000000 8000000000000001 000fffffffffffff "
    "41e0000000000000 c3e0000000000001 3fdfffffffffffff"
)
_F16 = "0 8000 3c00 bc00 3e00 4100 7c00 fc00 7e00 7bff 0400 8001 03ff 37ff 6400 c63f"
_BF16 = "0 8000 3f80 bf80 3fc0 4020 7f80 ff80 7f7f 0080 8001 007f 3eff 4f00 ceff 3f81"
SPECIAL_BITS = {"f32": _F32, "f64": _F64, "f16": _F16, "bf16": _BF16}


def raw(seed: int, n: int) -> np.ndarray:
    """uint64 words of a stream that NumPy promises never to change."""
    return np.random.PCG64(seed).random_raw(n)


def seed_of(*parts: object) -> int:
    return crc32("/".join(map(str, parts)).encode())


def specials(t: Type) -> np.ndarray:
    """16 awkward values, as unsigned bit patterns."""
    unsigned = f"uint{t.bits}"
    if t.kind in ("s", "u"):
        top = 1 << (t.bits - 1)
        values = [
            0,
            1,
            2,
            3,
            7,
            31,
            32,
            33,
            top - 1,
            top,
            top + 1,
            2 * top - 1,
            2 * top - 2,
            top // 2,
            0x55,
            2 * top - 7,
        ]
        return np.array([v % (2 * top) for v in values], unsigned)
    if t.bits == 8:
        return np.array([0, 128, 0x38, 0xB8, 0x3C, 0x40, 0x7E, 0xFE, 1, 0x81, 7, 8, 0x77, 0x70, 0x78, 0x4B], unsigned)
    return np.array([int(v, 16) for v in SPECIAL_BITS[t.kind].split()], unsigned)


def _random(t: Type, words: np.ndarray) -> np.ndarray:
    """Random bit patterns: a third anything, the rest of moderate size."""
    unsigned = np.dtype(f"uint{t.bits}")
    anything = words.astype(unsigned)
    choice = (words >> np.uint64(56)) % np.uint64(3)
    if t.kind in ("s", "u"):
        shift = ((words >> np.uint64(48)) % np.uint64(t.bits)).astype(unsigned)
        signed = anything.view(f"int{t.bits}") >> shift.view(f"int{t.bits}")
        moderate = signed.view(unsigned) if t.kind == "s" else anything >> shift
    else:
        fraction = {"f32": 23, "f64": 52, "f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}[t.kind]
        exponent = t.bits - 1 - fraction
        bias = (1 << (exponent - 1)) - 1
        spread = max(2, min(24, bias))
        e = ((words >> np.uint64(40)) % np.uint64(spread)).astype(unsigned) + unsigned.type(bias - spread // 2)
        keep = unsigned.type((1 << fraction) - 1 | 1 << (t.bits - 1))
        moderate = (anything & keep) | (e << unsigned.type(fraction))
    return np.where(choice == 0, anything, moderate)


def values(t: Type, seed: int, position: int = 0, n: int = N) -> np.ndarray:
    """``n`` register values as operand number ``position``: shape (n,), or (n, lanes)."""
    i = np.arange(256)
    pick = (i % 16, i // 16, (7 * i + i // 16) % 16, (3 * i + i // 16) % 16)[position]
    columns = []
    for lane in range(t.lanes):
        out = _random(t, raw(seed_of(seed, position, lane), n))
        head = specials(t)[np.roll(pick, 5 * lane)]
        out[: min(256, n)] = head[:n]
        columns.append(out)
    array = np.stack(columns, 1) if t.lanes > 1 else columns[0]
    return np.ascontiguousarray(array).view(t.dtype)
