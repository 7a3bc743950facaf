"""Float arithmetic whose rounding NumPy does not offer: fused multiply-add, and rounding towards zero, down or up."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from texlab.sim.arith import F4, F8, I8

_TIE = -(2**63)
_S29 = np.int64(35)  # a double has 29 bits more than a float: shifting by 64-29 keeps just those


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
        s = round_to_odd(a * b, np.broadcast_to(c, s.shape), s)
    return s.astype(F4)


def round_to_odd(p, c, s):
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
    """float64 ``a*b+c`` with one rounding (Boldo and Melquiond); lanes near the ends of the range go through fractions."""
    (ah, al), (bh, bl) = _split(a), _split(b)
    uh = a * b
    ul = ((ah * bh - uh) + ah * bl + al * bh) + al * bl
    th, tl = _two_sum(c, ul)
    vh, vl = _two_sum(uh, th)
    z = round_to_odd(tl, vl, np.asarray(tl + vl))
    out = np.asarray(vh + z)
    size, least = np.abs(uh), np.abs(out)
    middle = (
        (size > 2.0**-900) & (size < 2.0**900) & (least > 2.0**-900) & (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900)
    )
    if not middle.all():
        a, b, c, out = (v.copy() for v in np.broadcast_arrays(a, b, c, out))
        for i in np.argwhere(~np.broadcast_to(middle, out.shape)):
            i = tuple(i)
            out[i] = _fma_exact(float(a[i]), float(b[i]), float(c[i]))
    return out[()]


def _fma_exact(a, b, c):
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)) or a == 0 or b == 0:
        return np.float64(a) * np.float64(b) + np.float64(c)
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        value = exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    return value if exact else 0.0  # a sum that cancels is +0


def narrow(x, rounding, kind):
    """To a narrower float with a directed rounding ``rz``, ``rm`` or ``rp``."""
    near = x.astype(kind)
    return _toward(near, _compare_exactly(near.astype(F8), x), rounding, np.signbit(near))


def _toward(near, above, rounding, negative):
    """The directed rounding of a value from its nearest float: ``above`` is the sign of nearest - exact."""
    kind = near.dtype
    if rounding == "rz":
        wrong = np.where(negative, above < 0, above > 0)
        to = np.zeros_like(near)
    else:
        wrong = above < 0 if rounding == "rp" else above > 0
        to = np.full_like(near, kind.type(np.inf if rounding == "rp" else -np.inf))
    return np.where(wrong, np.nextafter(near, to), near).astype(kind)[()]


def _compare_exactly(y, x):
    """Sign of ``y - x``, ``y`` a float64 next to ``x``, which may be a 64-bit integer."""
    if x.dtype.kind == "f" or x.dtype.itemsize < 8:
        return np.sign(y - x.astype(F8))
    high = x >> x.dtype.type(32)
    return np.sign((y - high.astype(F8) * 2.0**32) - (x - (high << x.dtype.type(32))).astype(F8))


# directed roundings ---------------------------------------------------------------------------------------------------
def directed(op, rounding, *operands):
    """``add sub mul fma div rcp sqrt`` rounded towards zero (rz), down (rm) or up (rp); float32 or float64."""
    if operands[0].dtype == F8:
        operands = np.broadcast_arrays(*operands)
        flat = [
            _directed_exact(op, rounding, *map(float, row))
            for row in zip(*(v.reshape(-1) for v in operands), strict=True)
        ]
        return np.array(flat).reshape(operands[0].shape)[()]
    x = [v.astype(F8) for v in operands]
    if op in ("div", "rcp", "sqrt"):
        if op == "sqrt":
            near = np.sqrt(operands[0])
            above = np.sign(near.astype(F8) ** 2 - x[0])
        else:
            top, bottom = (x[0], x[1]) if op == "div" else (np.float64(1), x[0])
            near = (operands[0] if op == "div" else np.float32(1)) / operands[-1]
            finite = np.isfinite(top) & np.isfinite(bottom) & (bottom != 0)
            distance = near.astype(F8) * bottom - top
            above = np.where(finite, np.sign(distance) * np.sign(bottom), 0)
        return _toward(near, above, rounding, np.signbit(near))
    p, c = (x[0] * x[1], x[2]) if op == "fma" else (x[0], x[1] if op == "add" else -x[1])
    if op == "mul":
        return narrow(x[0] * x[1], rounding, F4)
    s = np.asarray(p + c)
    out = narrow(round_to_odd(p, c, s), rounding, F4)
    if rounding == "rm":  # a sum that cancels is -0
        out = np.where((s == 0) & (np.signbit(p) != np.signbit(c)), np.float32(-0.0), out)[()]
    return out


def _directed_exact(op, rounding, *v):
    """One float64 operation in fractions."""
    a, b, c = (*v, 0.0, 0.0)[:3]
    special = not all(map(math.isfinite, v)) or (op in ("div", "rcp") and v[-1] == 0) or (op == "sqrt" and a <= 0)
    plain = {
        "add": lambda: np.float64(a) + b,
        "sub": lambda: np.float64(a) - b,
        "mul": lambda: np.float64(a) * b,
        "fma": lambda: np.float64(_fma_exact(a, b, c)),
        "div": lambda: np.float64(a) / np.float64(b),
        "rcp": lambda: 1 / np.float64(a),
        "sqrt": lambda: np.sqrt(np.float64(a)),
    }
    near = plain[op]()
    if special:
        return near
    if op == "sqrt":
        above = (Fraction(float(near)) ** 2 > Fraction(a)) - (Fraction(float(near)) ** 2 < Fraction(a))
        return _toward(np.asarray(near), above, rounding, False)
    x, y, z = Fraction(a), Fraction(b), Fraction(c)
    exact = {"add": x + y, "sub": x - y, "mul": x * y, "fma": x * y + z}.get(op)
    if exact is None:
        exact = x / y if op == "div" else 1 / x
    if exact == 0:
        cancels = op in ("add", "sub", "fma") and rounding == "rm"
        terms = (a * b, c) if op == "fma" else (a, b if op == "add" else -b)
        return -0.0 if cancels and math.copysign(1, terms[0]) != math.copysign(1, terms[1]) else near
    if math.isinf(near):  # beyond the largest number: on the far side of the exact value
        return _toward(np.asarray(near), 1 if near > 0 else -1, rounding, exact < 0)
    here = Fraction(float(near))
    above = (here > exact) - (here < exact)
    return _toward(np.asarray(near), above, rounding, exact < 0)
