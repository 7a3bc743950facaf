"""The oracle in float64, and the referee that compares a result with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from texlab.shapes import ConvShape


def conv2d_reference(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    """The convolution (cross-correlation) of ``x (N,C,H,W)`` with ``w (K,C/groups,R,S)`` in float64: ``y (N,K,P,Q)``.

    One product per filter tap over shifted views of the padded input: slow, short and independent of every kernel.

    >>> conv2d_reference(np.arange(10.0).reshape(1, 1, 5, 2), np.array([1.0, 2.0]).reshape(1, 1, 2, 1))[0, 0]
    array([[ 4.,  7.],
           [10., 13.],
           [16., 19.],
           [22., 25.]])
    """
    shape = ConvShape.of(x.shape, w.shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    top, bottom, left, right = shape.padding
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    x = x.reshape(shape.n, shape.groups, shape.c // shape.groups, *x.shape[2:])
    w = np.asarray(w, np.float64).reshape(shape.groups, shape.k // shape.groups, *shape.w_shape[1:])
    y = np.zeros((shape.n, shape.groups, shape.k // shape.groups, shape.p, shape.q))
    (sh, sw), (dh, dw) = shape.stride, shape.dilation
    for r in range(shape.r):
        for s in range(shape.s):
            rows = slice(r * dh, r * dh + (shape.p - 1) * sh + 1, sh)
            cols = slice(s * dw, s * dw + (shape.q - 1) * sw + 1, sw)
            y += np.einsum("ngchw,gkc->ngkhw", x[:, :, :, rows, cols], w[..., r, s], optimize=True)
    y = y.reshape(shape.y_shape)
    return y if bias is None else y + np.asarray(bias, np.float64)[:, None, None]


def tolerance(shape: ConvShape, dtype: Any = np.float32) -> float:
    """A bound on |error| / (sum of |x|*|w| of one output) for accumulation in ``dtype``, any order of the terms.

    Each of the m = C/groups*R*S products and additions rounds once; the classical bound is m*eps/2 and random rounding
    gives about sqrt(m). Four times the root, plus a floor for short sums, accepts every honest order and rejects a
    result of lower precision or with a term missing.
    """
    terms = (shape.c // shape.groups) * shape.r * shape.s + 1
    return float(np.finfo(dtype).eps) * (4 + 4 * terms**0.5)


def error_bound(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, **how: Any) -> np.ndarray:
    """Per output, how far a float32 convolution may stand from the oracle: ``tolerance * sum |x|*|w|`` (N,K,P,Q)."""
    shape = ConvShape.of(x.shape, w.shape, **how)
    magnitude = conv2d_reference(abs(x), abs(w), None if bias is None else abs(bias), **how)
    return tolerance(shape) * magnitude + np.finfo(np.float32).tiny


def assert_matches(
    got: np.ndarray, want: np.ndarray, rtol: float = 1e-5, atol: float | np.ndarray = 1e-6, name: str = "result"
) -> None:
    """Raise AssertionError unless ``|got - want| <= atol + rtol*|want|`` everywhere; NaN never passes.

    The message gives how many differ, and where the first and the worst are: index, got, expected.

    >>> assert_matches(np.array([1.0, np.nan]), np.array([1.0, 2.0]), name="y")
    Traceback (most recent call last):
    AssertionError: y: 1 of 2 elements differ; first at (1,): got nan, expected 2; worst at (1,): got nan, expected 2
    """
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise AssertionError(f"{name}: shape {got.shape}, expected {want.shape}")
    with np.errstate(invalid="ignore"):
        error = abs(got.astype(np.float64) - want)
        bad = ~(error <= atol + rtol * abs(want)) & ~(got == want)  # the second term lets equal infinities pass
    if not bad.any():
        return
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    worst = tuple(
        int(i) for i in np.unravel_index(np.where(bad, np.nan_to_num(error, nan=np.inf), -1).argmax(), bad.shape)
    )
    where = "; ".join(
        f"{label} at {at}: got {float(got[at]):.6g}, expected {float(want[at]):.6g}"
        for label, at in (("first", first), ("worst", worst))
    )
    raise AssertionError(f"{name}: {int(bad.sum())} of {bad.size} elements differ; {where}")
