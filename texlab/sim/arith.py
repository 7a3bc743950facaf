"""PTX arithmetic that NumPy has no single call for, on scalars and arrays alike.

A value that is the same in all lanes is a NumPy scalar, any other a one-dimensional array; every function here takes
and returns both. Integers wrap, as registers do. ``fma`` rounds once (see ``fma32``); ``div``, ``sqrt``, ``rcp`` with
``.rn`` are correctly rounded; the ``.approx`` functions are computed in double precision and rounded once, so that they
are closer to the true value than the hardware's.
"""

from __future__ import annotations

import numpy as np

U1, U2, U4, U8 = (np.dtype(f"u{n}") for n in (1, 2, 4, 8))
I1, I2, I4, I8 = (np.dtype(f"i{n}") for n in (1, 2, 4, 8))
F2, F4, F8 = (np.dtype(f"f{n}") for n in (2, 4, 8))
_UNSIGNED = {1: U1, 2: U2, 4: U4, 8: U8}
_SIGNED = {1: I1, 2: I2, 4: I4, 8: I8}
_TIE = -(2**63)
_S29 = np.int64(35)  # a double has 29 bits more than a float: shifting by 64-29 keeps just those
_C32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def select(p, a, b):
    """``p ? a : b``; a uniform predicate chooses without touching the lanes."""
    if p.ndim == 0:
        return a if p else b
    return np.where(p, a, b)


# fused multiply-add -------------------------------------------------------------------------------------------------
def fma32(a, b, c):
    """float32 ``a*b+c`` with one rounding, from ``a`` and ``b`` widened to float64.

    The product is exact in double; the sum is rounded to double and then to float. That second rounding goes wrong only
    where the double lies exactly between two floats but the true sum does not: those lanes are found by their bits and
    redone. (Not looked at: results below 2^-126, whose spacing differs.)
    """
    s = a * b
    c = c.astype(F8)
    s = np.add(s, c, out=s) if s.ndim else s + c
    if np.minimum.reduce(s.view(I8) << _S29, axis=None) == _TIE:
        s = _round_to_odd(a * b, np.broadcast_to(c, s.shape), s)
    return s.astype(F4)


def _round_to_odd(p, c, s):
    """The double nearest ``p + c`` towards zero, with its last bit set if the sum is inexact: safe to round again."""
    with np.errstate(all="ignore"):
        t = s - p
        error = (p - (s - t)) + (c - t)
    inexact = np.isfinite(error) & (error != 0)
    bits = s.view(I8) - (inexact & (np.signbit(error) != np.signbit(s))).astype(I8)
    return (bits | inexact.astype(I8)).view(F8)


def _split(a):
    t = a * 134217729.0
    high = t - (t - a)
    return high, a - high


def _two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fma64(a, b, c):
    """float64 ``a*b+c`` with one rounding (Boldo and Melquiond), where no intermediate overflows or underflows."""
    (ah, al), (bh, bl) = _split(a), _split(b)
    uh = a * b
    ul = ((ah * bh - uh) + ah * bl + al * bh) + al * bl
    th, tl = _two_sum(c, ul)
    vh, vl = _two_sum(uh, th)
    z = tl + vl
    z = _round_to_odd(tl, vl, np.asarray(z)) if np.ndim(z) else _round_to_odd(tl, vl, np.float64(z))
    out = vh + z
    plain = uh + c
    return np.where(np.isfinite(ul) & np.isfinite(out), out, plain)[()]


def fma16(a, b, c):
    """float16 ``a*b+c`` with one rounding: product and sum are exact enough in double."""
    return (a.astype(F8) * b.astype(F8) + c.astype(F8)).astype(F2)


def halves(op, *packed):
    """Apply ``op`` to both float16 of 32-bit values."""
    shape = np.broadcast_shapes(*(np.shape(v) for v in packed))
    parts = [np.ascontiguousarray(np.broadcast_to(v, shape or (1,))).view(F2) for v in packed]
    out = op(*parts).astype(F2).view(U4)
    return out if shape else out[0]


def flush(x):
    """``.ftz``: subnormal float32 become zero of the same sign."""
    return select(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def saturate(x):
    """``.sat``: into [0, 1]; NaN becomes 0."""
    one = x.dtype.type(1)
    return np.where(x > 0, np.minimum(x, one), x.dtype.type(0)).astype(x.dtype)[()]


def fmin(a, b):
    """The smaller; a NaN gives way to a number, and -0 is below +0."""
    both = (a == b) & (a == 0)
    return select(both, np.where(np.signbit(a), a, b)[()], np.fmin(a, b)) if both.any() else np.fmin(a, b)


def fmax(a, b):
    """The larger; a NaN gives way to a number, and +0 is above -0."""
    both = (a == b) & (a == 0)
    return select(both, np.where(np.signbit(a), b, a)[()], np.fmax(a, b)) if both.any() else np.fmax(a, b)


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


# conversions --------------------------------------------------------------------------------------------------------
_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def to_integer(x, rounding, kind):
    """float to integer: rounded, clamped to the range, NaN to 0."""
    x = _ROUND[rounding](x.astype(F8))
    info = np.iinfo(kind)
    inside = (x >= float(info.min)) & (
        x < float(info.max) + 1 if kind.itemsize < 8 else x < 2.0 ** (64 - (kind.kind == "i"))
    )
    out = np.where(inside, x, 0.0).astype(kind)
    out = np.where(inside | np.isnan(x), out, np.where(x < 0, info.min, info.max).astype(kind))
    return out.astype(kind)[()]


def clamp_integer(x, kind):
    """integer to integer with ``.sat``."""
    info = np.iinfo(kind)
    low, high = max(info.min, np.iinfo(x.dtype).min), min(info.max, np.iinfo(x.dtype).max)
    return np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(kind)


def narrow(x, rounding, kind):
    """float (or integer) to a narrower float with a directed rounding ``rz``, ``rm`` or ``rp``."""
    near = x.astype(kind)
    back = near.astype(F8)
    exact = x.astype(F8)
    inf = kind.type(np.inf)
    if rounding == "rz":
        wrong = np.abs(back) > np.abs(exact)
        to = np.zeros_like(near)
    else:
        wrong = back < exact if rounding == "rp" else back > exact
        to = np.full_like(near, inf if rounding == "rp" else -inf)
    return np.where(wrong, np.nextafter(near, to), near).astype(kind)[()]


def bf16_to_float(u):
    return (u.astype(U4) << np.uint32(16)).view(F4)


def float_to_bf16(x):
    """Nearest even; NaN becomes 0x7fff."""
    u = x.view(U4)
    out = (u + np.uint32(0x7FFF) + (u >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), out)[()].astype(U2)
