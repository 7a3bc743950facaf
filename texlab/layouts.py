"""Layouts: where each element of an image lies, in each of the orders the kernels use.

A layout is an index map. ``source(shape)`` gives, for every element of the layout, the flat index of the NCHW element it
holds (-1 for a zero of padding); ``position(shape, n, c, r, s, p, q)`` is the inverse that a convolution needs: where tap
(r, s) of channel c lies for output pixel (p, q). Elements count float by float; bytes are elements times the item size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from texlab.shapes import ConvShape


@dataclass(frozen=True)
class Layout:
    """One order of the image's elements.

    ``dims(shape)`` its extents; ``element(shape, *index)`` -> (n, c, h, w) of the padded image, h and w counted from the
    padding's first row and column (c may lie past the last channel where a layout rounds C up);
    ``at(shape, n, c, r, s, p, q)`` -> index tuple of a tap.
    """

    name: str
    equation: str
    dims: Callable[[ConvShape], tuple[int, ...]]
    element: Callable[..., tuple[Any, Any, Any, Any]]
    at: Callable[..., tuple[Any, ...]]
    padded: bool  # whether it stores the padding's zeros

    def elements(self, shape: ConvShape) -> int:
        """Elements stored."""
        return prod(self.dims(shape))

    def bytes(self, shape: ConvShape, itemsize: int = 4) -> int:
        """Bytes stored."""
        return self.elements(shape) * itemsize

    def expansion(self, shape: ConvShape) -> float:
        """Elements stored per element of the input.

        >>> cv9 = ConvShape(n=256, c=64, h=56, w=56, k=64, r=3, s=3)
        >>> round(LAYOUTS["im2win"].expansion(cv9), 6), round(LAYOUTS["im2col"].expansion(cv9), 6)
        (2.892857, 8.368622)
        """
        return self.elements(shape) / prod(shape.x_shape)

    def source(self, shape: ConvShape) -> np.ndarray:
        """For each element of the layout (its dims), the flat NCHW index it holds; -1 where it holds a zero."""
        n, c, h, w = self.element(shape, *np.indices(self.dims(shape)))
        h, w = h - shape.padding[0], w - shape.padding[2]
        inside = (c < shape.c) & (h >= 0) & (h < shape.h) & (w >= 0) & (w < shape.w)
        return np.where(inside, ((n * shape.c + c) * shape.h + h) * shape.w + w, -1)

    def pack(self, x: np.ndarray, shape: ConvShape) -> np.ndarray:
        """``x (N,C,H,W)`` in this layout, by the index map (the reference that the pack kernels are checked against)."""
        flat = np.append(np.ascontiguousarray(x).ravel(), np.zeros(1, x.dtype))
        return flat[self.source(shape)]

    def position(self, shape: ConvShape, n: Any, c: Any, r: Any, s: Any, p: Any, q: Any) -> np.ndarray:
        """Flat position of tap (r, s) of input channel c for output pixel (n, p, q); -1 where the layout does not
        store it (a tap on the padding of a layout without padding). Arguments are integers or arrays that broadcast."""
        n, c, r, s, p, q = np.broadcast_arrays(n, c, r, s, p, q)
        h = p * shape.stride[0] + r * shape.dilation[0] - shape.padding[0]
        w = q * shape.stride[1] + s * shape.dilation[1] - shape.padding[2]
        stored = np.full(h.shape, True) if self.padded else (h >= 0) & (h < shape.h) & (w >= 0) & (w < shape.w)
        index = [np.where(stored, i, 0) for i in self.at(shape, n, c, r, s, p, q)]
        return np.where(stored, np.ravel_multi_index(index, self.dims(shape)), -1)

    def window(self, shape: ConvShape, n: int, p: int, q: int, group: int = 0) -> np.ndarray:
        """Flat positions of all taps of one output pixel, ascending: its channels, rows and columns together."""
        channels = np.arange(shape.c // shape.groups) + group * (shape.c // shape.groups)
        taps = np.meshgrid(channels, np.arange(shape.r), np.arange(shape.s), indexing="ij")
        positions = self.position(shape, n, *taps, p, q).ravel()
        return np.sort(positions[positions >= 0])


def runs(positions: np.ndarray) -> list[tuple[int, int]]:
    """Ascending positions as contiguous runs: (first, length).

    >>> runs(np.array([0, 1, 2, 8, 9]))
    [(0, 3), (8, 2)]
    """
    if len(positions) == 0:
        return []
    starts = np.flatnonzero(np.diff(positions, prepend=positions[0] - 2) != 1)
    lengths = np.diff(np.append(starts, len(positions)))
    return [(int(positions[i]), int(n)) for i, n in zip(starts, lengths, strict=True)]


def _image(dims: Callable, element: Callable, order: Callable, name: str, equation: str) -> Layout:
    """A layout of the image itself (no padding stored): a tap lies where its image element lies."""

    def at(shape: ConvShape, n: Any, c: Any, r: Any, s: Any, p: Any, q: Any) -> tuple[Any, ...]:
        h = p * shape.stride[0] + r * shape.dilation[0] - shape.padding[0]
        w = q * shape.stride[1] + s * shape.dilation[1] - shape.padding[2]
        return order(n, c, h, w)

    def padded_element(shape: ConvShape, *index: Any) -> tuple[Any, Any, Any, Any]:
        n, c, h, w = element(*index)
        return n, c, h + shape.padding[0], w + shape.padding[2]

    return Layout(name, equation, dims, padded_element, at, padded=False)


NCHW = _image(
    lambda s: s.x_shape,
    lambda n, c, h, w: (n, c, h, w),
    lambda n, c, h, w: (n, c, h, w),
    "nchw",
    "x[n, c, h, w]",
)
NHWC = _image(
    lambda s: (s.n, s.h, s.w, s.c),
    lambda n, h, w, c: (n, c, h, w),
    lambda n, c, h, w: (n, h, w, c),
    "nhwc",
    "x[n, h, w, c]",
)
NCHW4C = _image(
    lambda s: (s.n, -(-s.c // 4), s.h, s.w, 4),
    lambda n, c4, h, w, e: (n, c4 * 4 + e, h, w),
    lambda n, c, h, w: (n, c // 4, h, w, c % 4),
    "nchw4c",
    "x4[n, c/4, h, w, c%4] = x[n, c, h, w]",
)
IM2COL = Layout(
    "im2col",
    "col[n, (c*R + r)*S + s, p*Q + q] = x[n, c, p*stride + r*dilation, q*stride + s*dilation]",
    dims=lambda s: (s.n, s.c * s.r * s.s, s.p * s.q),
    element=lambda s, n, row, pixel: (
        n,
        row // (s.r * s.s),
        pixel // s.q * s.stride[0] + row // s.s % s.r * s.dilation[0],
        pixel % s.q * s.stride[1] + row % s.s * s.dilation[1],
    ),
    at=lambda shape, n, c, r, s, p, q: (n, (c * shape.r + r) * shape.s + s, p * shape.q + q),
    padded=True,
)
IM2WIN = Layout(
    "im2win",
    "xw[n, c, p, w*R + r] = x[n, c, p*stride + r*dilation, w]",
    dims=lambda s: (s.n, s.c, s.p, s.padded_w * s.r),
    element=lambda s, n, c, p, i: (n, c, p * s.stride[0] + i % s.r * s.dilation[0], i // s.r),
    at=lambda shape, n, c, r, s, p, q: (n, c, p, (q * shape.stride[1] + s * shape.dilation[1]) * shape.r + r),
    padded=True,
)
IM2WIN_NHWC = Layout(
    "im2win_nhwc",
    "xw[n, p, w, r, c] = x[n, c, p*stride + r*dilation, w]",
    dims=lambda s: (s.n, s.p, s.padded_w, s.r, s.c),
    element=lambda s, n, p, w, r, c: (n, c, p * s.stride[0] + r * s.dilation[0], w),
    at=lambda shape, n, c, r, s, p, q: (n, p, q * shape.stride[1] + s * shape.dilation[1], r, c),
    padded=True,
)

#: Every layout by name.
LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in (NCHW, NHWC, NCHW4C, IM2COL, IM2WIN, IM2WIN_NHWC)}
