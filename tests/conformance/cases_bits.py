"""Bits, logic, shifts, dot products and packed integers: PTX ISA, "Integer Arithmetic", "Logic and Shift"."""

from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_integer import clamp, quotient, signed

family = Collection()
ptx = family.ptx
ARITHMETIC, LOGIC, MOVE = "Integer Arithmetic: {}", "Logic and Shift: {}", "Data Movement and Conversion: {}"


def byte(v: np.ndarray) -> np.ndarray:
    """Positions and lengths up to 255: PTX leaves open what more means, and 64-bit fields do mask no bits away."""
    return v & 255


# bits ---------------------------------------------------------------------------------------------------------------
for n in (32, 64):
    u, s, b = f"u{n}", f"s{n}", f"b{n}"
    ptx(f"integer.popc.{b}", ARITHMETIC.format("popc"), f"popc.{b} $r, $a;", "u32", u, lambda a: a.bit_count())
    ptx(f"integer.clz.{b}", ARITHMETIC.format("clz"), f"clz.{b} $r, $a;", "u32", u, lambda a, n=n: n - a.bit_length())
    ptx(
        f"integer.brev.{b}",
        ARITHMETIC.format("brev"),
        f"brev.{b} $r, $a;",
        u,
        u,
        lambda a, n=n: int(f"{a:0{n}b}"[::-1], 2),
    )
    for t in (u, s):
        top = lambda a: (a if a >= 0 else ~a).bit_length() - 1  # noqa: E731
        ptx(f"integer.bfind.{t}", ARITHMETIC.format("bfind"), f"bfind.{t} $r, $a;", "u32", t, top)
        ptx(
            f"integer.bfind.shiftamt.{t}",
            ARITHMETIC.format("bfind"),
            f"bfind.shiftamt.{t} $r, $a;",
            "u32",
            t,
            lambda a, n=n, f=top: n - 1 - f(a) if f(a) >= 0 else -1,
        )

        def extract(a, position, length, n=n, is_signed=t[0] == "s"):
            position, length = position & 255, length & 255
            a &= (1 << n) - 1
            if length == 0:
                return 0
            sign = is_signed and a >> min(position + length - 1, n - 1) & 1
            kept = max(0, min(length, n - position))
            out = a >> position & (1 << length) - 1
            return out | (-1 << kept if sign else 0)

        ptx(
            f"integer.bfe.{t}",
            ARITHMETIC.format("bfe"),
            f"bfe.{t} $r, $a, $b, $c;",
            t,
            f"{t} u32 u32",
            extract,
            domain={"b": byte, "c": byte},
        )

    def insert(a, into, position, length, n=n):
        position, length = position & 255, length & 255
        mask = ((1 << length) - 1) << position & (1 << n) - 1
        return (a << position & mask) | (into & ~mask)

    ptx(
        f"integer.bfi.{b}",
        ARITHMETIC.format("bfi"),
        f"bfi.{b} $r, $a, $b, $c, $d;",
        u,
        f"{u} {u} u32 u32",
        insert,
        domain={"c": byte, "d": byte},
    )


def _dp4a(a, b, c, sa, sb):
    part = lambda v, i, s: signed(v >> 8 * i, 8) if s else v >> 8 * i & 255  # noqa: E731
    return c + sum(part(a, i, sa) * part(b, i, sb) for i in range(4))


def _dp2a(a, b, c, sa, sb, high):
    wide = lambda i: signed(a >> 16 * i, 16) if sa else a >> 16 * i & 0xFFFF  # noqa: E731
    part = lambda i: signed(b >> 8 * i, 8) if sb else b >> 8 * i & 255  # noqa: E731
    return c + sum(wide(i) * part(i + 2 * high) for i in range(2))


for ta in ("u32", "s32"):
    for tb in ("u32", "s32"):
        tc = "u32" if (ta, tb) == ("u32", "u32") else "s32"
        ptx(
            f"integer.dp4a.{ta}.{tb}",
            ARITHMETIC.format("dp4a"),
            f"dp4a.{ta}.{tb} $r, $a, $b, $c;",
            tc,
            f"u32 u32 {tc}",
            lambda a, b, c, sa=ta == "s32", sb=tb == "s32": _dp4a(a, b, c, sa, sb),
        )
for half in ("lo", "hi"):
    ptx(
        f"integer.dp2a.{half}",
        ARITHMETIC.format("dp2a"),
        f"dp2a.{half}.s32.u32 $r, $a, $b, $c;",
        "s32",
        "u32 u32 s32",
        lambda a, b, c, high=half == "hi": _dp2a(a, b, c, True, False, high),
    )


def _szext(a, n, is_signed, wrap):
    n = n & 31 if wrap else min(n, 32)
    low = a & (1 << n) - 1
    return low | (-1 << n if is_signed and n and low >> (n - 1) else 0)


for mode in ("wrap", "clamp"):
    for t in ("s32", "u32"):
        ptx(
            f"integer.szext.{mode}.{t}",
            ARITHMETIC.format("szext"),
            f"szext.{mode}.{t} $r, $a, $b;",
            t,
            f"{t} u32",
            lambda a, b, s=t[0] == "s", w=mode == "wrap": _szext(a, b, s, w),
        )
    ptx(
        f"integer.bmsk.{mode}",
        ARITHMETIC.format("bmsk"),
        f"bmsk.{mode}.b32 $r, $a, $b;",
        "u32",
        "u32 u32",
        lambda a, b, w=mode == "wrap": ((1 << (b & 31 if w else min(b, 32))) - 1) << (a & 31 if w else min(a, 32)),
    )

# logic and shifts ---------------------------------------------------------------------------------------------------
for n in (16, 32, 64):
    u = f"u{n}"
    for op, f in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
        ptx(f"integer.{op}.b{n}", LOGIC.format(op), f"{op}.b{n} $r, $a, $b;", u, f"{u} {u}", f)
    ptx(f"integer.not.b{n}", LOGIC.format("not"), f"not.b{n} $r, $a;", u, u, lambda a: ~a)
    ptx(f"integer.cnot.b{n}", LOGIC.format("cnot"), f"cnot.b{n} $r, $a;", u, u, lambda a: int(a == 0))
    ptx(
        f"integer.shl.b{n}",
        LOGIC.format("shl"),
        f"shl.b{n} $r, $a, $b;",
        u,
        f"{u} u32",
        lambda a, b, n=n: a << min(b, n),
    )
    for t in (u, f"s{n}"):
        ptx(
            f"integer.shr.{t}",
            LOGIC.format("shr"),
            f"shr.{t} $r, $a, $b;",
            t,
            f"{t} u32",
            lambda a, b, n=n: a >> min(b, n),
        )
ptx(
    "integer.shift.constants",
    LOGIC.format("shl"),
    "shl.b32 $r0, $a, 32; shr.s32 $r1, $a, 40;",
    "s32 s32",
    "s32",
    lambda a: (0, a >> 31),
)


def _funnel(low, high, n, left, wrap):
    n = n & 31 if wrap else min(n, 32)
    both = high << 32 | low
    return both << n >> 32 if left else both >> n


for side in "lr":
    for mode in ("wrap", "clamp"):
        ptx(
            f"integer.shf.{side}.{mode}",
            LOGIC.format("shf"),
            f"shf.{side}.{mode}.b32 $r, $a, $b, $c;",
            "u32",
            "u32 u32 u32",
            lambda a, b, c, left=side == "l", w=mode == "wrap": _funnel(a, b, c, left, w),
        )


def _lop3(a, b, c, table):
    return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


for table in (0x96, 0xE8, 0xCA, 0x1A, 0x01, 0x7F):
    ptx(
        f"integer.lop3.{table:#04x}",
        LOGIC.format("lop3"),
        f"lop3.b32 $r, $a, $b, $c, {table};",
        "u32",
        "u32 u32 u32",
        lambda a, b, c, t=table: _lop3(a, b, c, t),
    )
ptx(
    "integer.lop3.BoolOp",
    LOGIC.format("lop3"),
    "{ .reg .pred p, q; setp.ne.u32 q, $c, 3; lop3.or.b32 $r0|p, $a, $b, $c, 0xCA, q; selp.u32 $r1, 1, 0, p; }",
    "u32 u32",
    "u32 u32 u32",
    lambda a, b, c: (_lop3(a, b, c, 0xCA), int(_lop3(a, b, c, 0xCA) != 0 or c != 3)),
)


def _prmt(a, b, c, mode):
    data = (b << 32 | a).to_bytes(8, "little")
    s = c & 3
    picks = {
        "f4e": [s + i & 7 for i in range(4)],
        "b4e": [s - i & 7 for i in range(4)],
        "rc8": [s] * 4,
        "ecl": [max(s, i) for i in range(4)],
        "ecr": [min(s, i) for i in range(4)],
        "rc16": [0, 1, 0, 1] if s & 1 == 0 else [2, 3, 2, 3],
    }
    if mode:
        return sum(data[p] << 8 * i for i, p in enumerate(picks[mode]))
    nibbles = [c >> 4 * i & 15 for i in range(4)]
    return sum((255 * (data[k & 7] >> 7) if k & 8 else data[k & 7]) << 8 * i for i, k in enumerate(nibbles))


for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
    suffix = f".{mode}" if mode else ""
    ptx(
        f"integer.prmt{suffix}",
        MOVE.format("prmt"),
        f"prmt.b32{suffix} $r, $a, $b, $c;",
        "u32",
        "u32 u32 u32",
        lambda a, b, c, m=mode: _prmt(a, b, c, m),
    )

# what C++ makes of them ---------------------------------------------------------------------------------------------
_CXX = {
    "division.constant": (
        "r0 = a / 7; r1 = a % 10; r2 = a / -3;",
        "s32 s32 s32",
        "s32",
        lambda a: (quotient(a, 7), a - 10 * quotient(a, 10), quotient(a, -3)),
    ),
    "division.unsigned": (
        "r0 = a / 7u; r1 = a % 10u; r2 = a / 641u;",
        "u32 u32 u32",
        "u32",
        lambda a: (a // 7, a % 10, a // 641),
    ),
    "division.64bit": (
        "r0 = a / 1000003; r1 = a % 48;",
        "s64 s64",
        "s64",
        lambda a: (quotient(a, 1000003), a - 48 * quotient(a, 48)),
    ),
    "rotate": (
        "r = (a << (b & 31)) | (a >> (-b & 31));",
        "u32",
        "u32 u32",
        lambda a, b: a << (b & 31) | a >> (-b & 31),
    ),
    "bytes": (
        "r0 = (signed char)a; r1 = (unsigned char)(a >> 8); r2 = (short)(a >> 16);",
        "s32 s32 s32",
        "s32",
        lambda a: (signed(a, 8), a >> 8 & 255, signed(a >> 16, 16)),
    ),
    "umul64hi": ("r = __umul64hi(a, b);", "u64", "u64 u64", lambda a, b: a * b >> 64),
    "hadd": ("r0 = __hadd(a, b); r1 = __rhadd(a, b);", "s32 s32", "s32 s32", lambda a, b: (a + b >> 1, a + b + 1 >> 1)),
    "ffs": (
        "r0 = __ffs(a); r1 = __clz(a); r2 = __popc(a);",
        "s32 s32 s32",
        "s32",
        lambda a: ((a & -a).bit_length() if a else 0, 32 - (a & 0xFFFFFFFF).bit_length(), (a & 0xFFFFFFFF).bit_count()),
    ),
    "min_max_chain": (
        "r = min(max(a, b), max(min(a, b), c));",
        "s32",
        "s32 s32 s32",
        lambda a, b, c: min(max(a, b), max(min(a, b), c)),
    ),
}
for key, (body, outs, ins, f) in _CXX.items():
    family.elementwise(f"integer.cxx.{key}", "Integer Arithmetic, from CUDA C++", body, outs, ins, f)


def _packed(f, size):
    """Apply to each ``size``-bit part of 32-bit words."""
    mask = (1 << size) - 1
    return lambda *words: sum((f(*(w >> s & mask for w in words)) & mask) << s for s in range(0, 32, size))


_SIMD = {
    "vadd4": ("__vadd4(a, b)", _packed(lambda x, y: x + y, 8)),
    "vsub2": ("__vsub2(a, b)", _packed(lambda x, y: x - y, 16)),
    "vmaxs2": ("__vmaxs2(a, b)", _packed(lambda x, y: max(signed(x, 16), signed(y, 16)), 16)),
    "vminu4": ("__vminu4(a, b)", _packed(min, 8)),
    "vcmpgtu4": ("__vcmpgtu4(a, b)", _packed(lambda x, y: 255 * (x > y), 8)),
    "vabsdiffu4": ("__vabsdiffu4(a, b)", _packed(lambda x, y: abs(x - y), 8)),
    "vaddss2": ("__vaddss2(a, b)", _packed(lambda x, y: clamp(signed(x, 16) + signed(y, 16), "s16"), 16)),
    "vsads4": ("__vsads4(a, b)", lambda a, b: sum(abs(signed(a >> s, 8) - signed(b >> s, 8)) for s in range(0, 32, 8))),
}
for key, (call, f) in _SIMD.items():
    family.elementwise(f"integer.simd.{key}", "Video and SIMD, from CUDA C++", f"r = {call};", "u32", "u32 u32", f)
