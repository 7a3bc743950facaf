"""PTX arithmetic that NumPy has no single call for, on scalars and arrays alike.

A value that is the same in all lanes is a NumPy scalar, any other a one-dimensional array; every function here takes
and returns both. Integers wrap, as registers do. ``div``, ``sqrt``, ``rcp`` with ``.rn`` are correctly rounded; fused and
directed operations are in ``rounding``; the ``.approx`` functions are computed in double precision and rounded once, so that they
are closer to the true value than the hardware's.
"""

from __future__ import annotations

import numpy as np

U1, U2, U4, U8 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
I1, I2, I4, I8 = (np.dtype(f"i{n}") for n in (1, 2, 4, 8))
F2, F4, F8 = (np.dtype(f"f{n}") for n in (2, 4, 8))
_UNSIGNED = {1: U1, 2: U2, 4: U4, 8: U8}
_SIGNED = {1: I1, 2: I2, 4: I4, 8: I8}
_C32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def select(p, a, b):
    """``p ? a : b``; a uniform predicate chooses without touching the lanes."""
    if p.ndim == 0:
        return a if p else b
    return np.where(p, a, b)


def flush(x):
    """``.ftz``: subnormal float32 become zero of the same sign."""
    return select(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def saturate(x):
    """``.sat``: into [0, 1]; NaN becomes 0."""
    one = x.dtype.type(1)
    return np.where(x > 0, np.minimum(x, one), x.dtype.type(0)).astype(x.dtype)[()]


def rectify(x):
    """``.relu``: negative numbers and -0 become +0; NaN stays."""
    return select(x <= 0, x.dtype.type(0), x)


def fmin(a, b, nan=False):
    """The smaller, -0 below +0; a NaN gives way to a number, or with ``nan`` prevails."""
    out = np.minimum(a, b) if nan else np.fmin(a, b)
    both = (a == b) & (a == 0)
    return np.where(both, np.where(np.signbit(a), a, b), out)[()] if both.any() else out


def fmax(a, b, nan=False):
    """The larger, +0 above -0; NaN as in ``fmin``."""
    out = np.maximum(a, b) if nan else np.fmax(a, b)
    both = (a == b) & (a == 0)
    return np.where(both, np.where(np.signbit(a), b, a), out)[()] if both.any() else out


# integers -----------------------------------------------------------------------------------------------------------
def mul_wide(a, b):
    """Product of two 16- or 32-bit integers in twice the width."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


def mul_high(a, b):
    """The upper half of the double-width product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return (mul_wide(a, b) >> np.dtype(f"{a.dtype.kind}{bits // 4}").type(bits)).astype(a.dtype)
    x, y = a.view(U8), b.view(U8)
    xl, xh, yl, yh = x & _LOW, x >> _C32, y & _LOW, y >> _C32
    mid = xh * yl + (xl * yl >> _C32)
    high = xh * yh + (mid >> _C32) + ((mid & _LOW) + xl * yh >> _C32)
    if a.dtype.kind == "i":  # signed from unsigned: take off the other factor for each negative one
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero)[()] - np.where(b < 0, x, zero)[()]
    return high.view(a.dtype)


def divide(a, b):
    """Integer quotient towards zero; dividing by zero gives all ones, as the hardware does."""
    kind = a.dtype
    if b.ndim == 0 and b == 0:
        return np.zeros_like(a)[()] - kind.type(1)
    if kind.itemsize <= 4:
        q = np.trunc(a.astype(F8) / b.astype(F8))
        if b.ndim and not b.all():
            q = np.where(b == 0, -1.0, q)
        return q.astype(I8).astype(kind)
    zero = b == 0
    b = np.where(zero, kind.type(1), b)[()]
    if kind.kind == "u":
        q = a // b
    else:
        q = (np.abs(a).view(U8) // np.abs(b).view(U8)).view(I8)
        q = np.where((a < 0) != (b < 0), -q, q)[()]
    return np.where(zero, np.zeros_like(q) - kind.type(1), q)[()]


def remainder(a, b):
    return a - divide(a, b) * b if b.ndim or b != 0 else a


def count_bits(a):
    return np.bitwise_count(a).astype(U4)


def leading_zeros(a):
    """Zero bits above the highest one, as u32 (32 or 64 if there is none)."""
    bits = 8 * a.dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32)[: 5 + (bits == 64)]:
        a = a | a >> a.dtype.type(shift)
    return (np.uint32(bits) - count_bits(a)).astype(U4)


def highest_bit(a, as_shift=False):
    """``bfind``: position of the most significant bit (for signed numbers: that differs from the sign), else ~0."""
    unsigned = _UNSIGNED[a.dtype.itemsize]
    u = a.view(unsigned)
    if a.dtype.kind == "i":
        u = np.where(a < 0, ~u, u)[()]
    zeros = leading_zeros(u)
    at = zeros if as_shift else np.uint32(8 * a.dtype.itemsize - 1) - zeros
    return np.where(u == 0, np.uint32(0xFFFFFFFF), at)[()]


def reverse_bits(a):
    kind, size = a.dtype, a.dtype.itemsize
    for shift, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        m = kind.type(int.from_bytes(bytes([mask]) * size, "little"))
        a = (a >> kind.type(shift) & m) | (a & m) << kind.type(shift)
    return a.byteswap()


def field_extract(a, position, length):
    """``bfe``: ``length`` bits of ``a`` from ``position``, sign-extended for signed types."""
    kind, bits = a.dtype, 8 * a.dtype.itemsize
    pos = np.asarray(position & np.uint32(0xFF)).astype(I8)
    size = np.asarray(length & np.uint32(0xFF)).astype(I8)
    unsigned = _UNSIGNED[kind.itemsize]
    u = a.view(unsigned)
    kept = np.clip(np.minimum(size, bits - pos), 0, bits)
    mask = np.where(kept == bits, ~unsigned.type(0), (unsigned.type(1) << kept.astype(unsigned)) - unsigned.type(1))
    mask = mask.astype(unsigned)
    low = (u >> np.minimum(pos, bits).astype(unsigned)) & mask
    if kind.kind == "i":
        at = np.minimum(pos + size - 1, bits - 1)
        sign = (u >> np.maximum(at, 0).astype(unsigned)) & unsigned.type(1)
        low = np.where((size > 0) & (sign == 1), low | ~mask, low)
    return np.asarray(low).astype(unsigned).view(kind)[()]


def field_insert(a, b, position, length):
    """``bfi``: the low ``length`` bits of ``a`` put into ``b`` at ``position``."""
    kind, bits = a.dtype, 8 * a.dtype.itemsize
    pos = np.asarray(position & np.uint32(0xFF)).astype(I8)
    size = np.asarray(length & np.uint32(0xFF)).astype(I8)
    ones = np.where(size >= bits, ~kind.type(0), (kind.type(1) << np.minimum(size, 63).astype(kind)) - 1).astype(kind)
    shift = np.minimum(pos, bits).astype(kind)
    mask = ones << shift
    return (((a << shift) & mask) | (b & ~mask))[()]


def funnel(low, high, amount, left, wrap):
    """``shf``: 32 bits of the 64-bit value high:low, shifted by ``amount``."""
    n = amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))
    both = high.astype(U8) << _C32 | low.astype(U8)
    n = n.astype(U8)
    return ((both << n >> _C32) if left else both >> n).astype(U4)


def permute_bytes(a, b, selector):
    """``prmt`` (default mode): each nibble of ``selector`` picks a byte of b:a; its top bit spreads that byte's sign."""
    both = b.astype(U8) << _C32 | a.astype(U8)
    out = np.uint32(0)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i)
        byte = (both >> ((nibble & np.uint32(7)).astype(U8) << np.uint64(3)) & np.uint64(0xFF)).astype(U4)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        out = out | np.where((nibble & np.uint32(8)) != 0, sign, byte)[()].astype(U4) << np.uint32(8 * i)
    return out


def logic3(a, b, c, table):
    """``lop3``: any function of three bits, given by its truth table."""
    out = a & a.dtype.type(0)
    for i in range(8):
        if table >> i & 1:
            out = out | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def dot4(a, b, c, signed_a, signed_b):
    """``dp4a``: four products of bytes added to ``c``."""
    total = c.astype(I8)
    for i in range(4):
        x = (a >> np.uint32(8 * i)).astype(I1 if signed_a else U1).astype(I8)
        total = total + x * (b >> np.uint32(8 * i)).astype(I1 if signed_b else U1).astype(I8)
    return total.astype(U4)


def dot2(a, b, c, signed_a, signed_b, high):
    """``dp2a``: two products of a 16-bit and an 8-bit integer added to ``c``; ``high``: with the upper bytes of ``b``."""
    total = c.astype(I8)
    for i in range(2):
        x = (a >> np.uint32(16 * i)).astype(I2 if signed_a else U2).astype(I8)
        total = total + x * (b >> np.uint32(8 * i + 16 * high)).astype(I1 if signed_b else U1).astype(I8)
    return total.astype(U4)


# conversions --------------------------------------------------------------------------------------------------------
_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x, rounding, kind):
    """float to integer: rounded and clamped to the range. NaN becomes 0, or the highest bit alone where the source or
    the result has 64 bits."""
    odd = np.uint64(1 << (8 * kind.itemsize - 1)) if x.dtype.itemsize == 8 or kind.itemsize == 8 else np.uint64(0)
    x = _ROUND[rounding](x.astype(F8))
    info = np.iinfo(kind)
    inside = (x >= float(info.min)) & (x < 2.0 ** (8 * kind.itemsize - (kind.kind == "i")))
    out = np.where(inside, x, 0.0).astype(kind)
    out = np.where(inside, out, np.where(x < 0, kind.type(info.min), kind.type(info.max)))
    return np.where(np.isnan(x), odd.astype(kind), out)[()]


def clamp_integer(x, kind):
    """integer to integer with ``.sat``."""
    info = np.iinfo(kind)
    low, high = max(info.min, np.iinfo(x.dtype).min), min(info.max, np.iinfo(x.dtype).max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(kind)


def to_tf32(x, rounding):
    """float32 with 10 bits of fraction, as a 32-bit pattern; ``rna``: halves away from zero."""
    u = x.view(U4)
    mask = np.uint32(0xFFFFE000)
    if rounding == "rz":
        out = u & mask
    elif rounding == "rna":
        out = (u + np.uint32(0x1000)) & mask
    else:
        out = (u + np.uint32(0xFFF) + (u >> np.uint32(13) & np.uint32(1))) & mask
    return np.where(np.isnan(x), np.uint32(0x7FFFFFFF), np.where(np.isinf(x), u, out))[()]


def bf16_to_float(u):
    return (u.astype(U4) << np.uint32(16)).view(F4)


def float_to_bf16(x, towards_zero=False):
    """float32 to the nearest (ties to even) or the next bfloat16 towards zero; NaN becomes 0x7fff."""
    u = x.view(U4)
    if not towards_zero:
        u = u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(x), np.uint32(0x7FFF), u >> np.uint32(16))[()].astype(U2)
