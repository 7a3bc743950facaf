"""Convolution in tensor expressions, before any schedule: direct, im2win and im2col, in three layouts.

============  =====================  ====================  ==================  ===================================
layout        x                      w                     y                   window of im2win, matrix of im2col
============  =====================  ====================  ==================  ===================================
NCHW          (N,C,H,W)              (K,C/g,R,S)           (N,K,P,Q)           (N,C,P,WP*R), (N,C,R,S,P,Q)
NHWC          (N,H,W,C)              (R,S,C/g,K)           (N,P,Q,K)           (N,P,WP*R,C), (N,P,Q,R,S,C)
NCHW4c        (N,C/4,H,W,4)          (K/4,C/g,R,S,4)       (N,K/4,P,Q,4)       (N,C/4,P,WP*R,4), (N,C/4,R,S,P,Q,4)
============  =====================  ====================  ==================  ===================================

WP is the padded width, g the groups. NCHW4c (8 and 16 too) fills each group's channels up with zeros to a multiple of 4.
im2win (arXiv:2306.14316) holds ``window[n, c, p, u*R + r] = padded x[n, c, p*stride_h + r*dilation_h, u]``: the columns that
one output row sees, each column's R taps side by side, so neighbouring windows overlap instead of being copied.

The stages have these names for schedules to find: "pad" (absent without padding), "window" (im2win and im2col), "conv", and
"epilogue" (absent unless something is fused).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from texlab.program import Buffer
from texlab.reference import conv2d_reference
from texlab.schedules.tvm_import import load
from texlab.schedules.work import Workload
from texlab.shapes import ConvShape

FORMS = ("direct", "im2win", "im2col")
ACTIVATIONS = ("", "relu", "relu6")


@dataclass(frozen=True)
class Epilogue:
    """What is done to each output before it is stored, in this order: ``act(sum * scale[k] + shift[k] + residual)``.

    ``scale`` and ``shift`` are (K,): a batch norm's, or ``shift`` alone a bias. ``residual`` has y's shape. ``activation`` is
    "", "relu" or "relu6".
    """

    scale: bool = False
    shift: bool = False
    residual: bool = False
    activation: str = ""

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r}; one of {list(ACTIVATIONS)}")

    def __bool__(self) -> bool:
        return self != Epilogue()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in ("scale", "shift", "residual") if getattr(self, name))

    def apply(self, y: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The same on a NumPy ``y (N,K,...)`` in its own precision."""
        over_k = (-1,) + (1,) * (y.ndim - 2)
        if self.scale:
            y = y * np.asarray(arrays["scale"], y.dtype).reshape(over_k)
        if self.shift:
            y = y + np.asarray(arrays["shift"], y.dtype).reshape(over_k)
        if self.residual:
            y = y + np.asarray(arrays["residual"], y.dtype)
        if self.activation:
            y = np.maximum(y, 0)
        return np.minimum(y, 6) if self.activation == "relu6" else y


@dataclass(frozen=True)
class Layout:
    """A layout by name, for one number of channels: how arrays are brought into it and back."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ("NCHW", "NHWC") and self.block not in (4, 8, 16):
            raise ValueError(f"layout={self.name!r}; one of 'NCHW', 'NHWC', 'NCHW4c', 'NCHW8c', 'NCHW16c'")

    @property
    def block(self) -> int:
        """Channels stored side by side; 1 for NCHW and NHWC."""
        found = re.fullmatch(r"NCHW(\d+)c", self.name)
        return int(found[1]) if found else 1

    def channels(self, count: int, groups: int) -> int:
        """``count`` filled up so that each group has a multiple of the block."""
        own = count // groups
        return groups * -(-own // self.block) * self.block

    def extents(self, n: int, c: int, spatial: tuple[int, ...], groups: int = 1) -> tuple[int, ...]:
        """The shape of an array of ``c`` channels over ``spatial``, (H, W) for an image."""
        if self.name == "NCHW":
            return (n, c, *spatial)
        if self.name == "NHWC":
            return (n, *spatial, c)
        return (n, self.channels(c, groups) // self.block, *spatial, self.block)

    def axes(self, channel: str, *spatial: str) -> tuple[str, ...]:
        """Names of the axes of an array: ``channel`` is "c" or "k"; a blocked one is split into "co" and "ci".

        >>> Layout("NCHW4c").axes("k", "p", "q")
        ('n', 'ko', 'p', 'q', 'ki')
        """
        if self.name == "NCHW":
            return ("n", channel, *spatial)
        if self.name == "NHWC":
            return ("n", *spatial, channel)
        return ("n", f"{channel}o", *spatial, f"{channel}i")

    def pack(self, x: np.ndarray, groups: int = 1) -> np.ndarray:
        """NCHW to this layout, C-contiguous."""
        if self.name == "NCHW":
            return np.ascontiguousarray(x)
        if self.name == "NHWC":
            return np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        n, _, h, w = x.shape
        x = _fill(x, 1, groups, self.block)
        return np.ascontiguousarray(x.reshape(n, -1, self.block, h, w).transpose(0, 1, 3, 4, 2))

    def unpack(self, y: np.ndarray, k: int, groups: int = 1) -> np.ndarray:
        """This layout to NCHW with ``k`` channels; a view."""
        if self.name == "NCHW":
            return y
        if self.name == "NHWC":
            return y.transpose(0, 3, 1, 2)
        n, _, p, q, _ = y.shape
        y = y.transpose(0, 1, 4, 2, 3).reshape(n, groups, -1, p, q)
        return y[:, :, : k // groups].reshape(n, k, p, q)

    def filter_shape(self, shape: ConvShape) -> tuple[int, ...]:
        own = shape.c // shape.groups
        if self.name == "NCHW":
            return (shape.k, own, shape.r, shape.s)
        if self.name == "NHWC":
            return (shape.r, shape.s, own, shape.k)
        own = self.channels(own, 1)
        return (self.channels(shape.k, shape.groups) // self.block, own, shape.r, shape.s, self.block)

    def pack_filter(self, w: np.ndarray, groups: int = 1) -> np.ndarray:
        """KCRS to this layout, C-contiguous."""
        if self.name == "NCHW":
            return np.ascontiguousarray(w)
        if self.name == "NHWC":
            return np.ascontiguousarray(w.transpose(2, 3, 1, 0))
        w = _fill(_fill(w, 1, 1, self.block), 0, groups, self.block)
        _, c, r, s = w.shape
        return np.ascontiguousarray(w.reshape(-1, self.block, c, r, s).transpose(0, 2, 3, 4, 1))


def _fill(a: np.ndarray, axis: int, groups: int, block: int) -> np.ndarray:
    """``a`` with zeros after each group's channels up to a multiple of ``block``."""
    own = a.shape[axis] // groups
    more = -own % block
    if not more:
        return a
    split = a.reshape(*a.shape[:axis], groups, own, *a.shape[axis + 1 :])
    widths = [(0, 0)] * split.ndim
    widths[axis + 1] = (0, more)
    return np.pad(split, widths).reshape(*a.shape[:axis], -1, *a.shape[axis + 1 :])


def conv(
    shape: ConvShape,
    *,
    form: str = "im2win",
    layout: str = "NCHW",
    epilogue: Epilogue = Epilogue(),
    dtype: str = "float32",
) -> Workload:
    """The convolution of ``shape`` as a Workload: inputs x, w, then what ``epilogue`` adds; output y.

    >>> work = conv(ConvShape(n=1, c=3, h=8, w=8, k=4, r=3, s=3, padding=1), form="direct", layout="NHWC")
    >>> [(b.name, b.shape) for b in work.buffers]
    [('x', (1, 8, 8, 3)), ('w', (3, 3, 3, 4)), ('y', (1, 8, 8, 4))]
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r}; one of {list(FORMS)}")
    lay = Layout(layout)
    if 0 in (shape.n, shape.k):
        raise ValueError(f"N={shape.n}, K={shape.k}: there is nothing to compute, and TVM has no empty loops")
    y = lay.extents(shape.n, shape.k, (shape.p, shape.q), shape.groups)
    k = lay.channels(shape.k, shape.groups)
    extra = {"scale": (k,), "shift": (k,), "residual": y}
    buffers = (
        Buffer("x", lay.extents(shape.n, shape.c, (shape.h, shape.w), shape.groups), dtype),
        Buffer("w", lay.filter_shape(shape), dtype),
        *(Buffer(name, extra[name], dtype) for name in epilogue.names),
        Buffer("y", y, dtype, "output"),
    )
    return Workload(
        kind="conv",
        name=f"conv2d_{form}",
        buffers=buffers,
        make=partial(_make, shape, form, layout, epilogue, dtype),
        pack=partial(_pack, shape, layout, epilogue),
        unpack=partial(lay.unpack, k=shape.k, groups=shape.groups),
        reference=partial(_reference, shape, epilogue),
        flops=shape.flops,
        about={"shape": shape, "form": form, "layout": layout, "epilogue": epilogue},
    )


def _pack(shape: ConvShape, layout: str, epilogue: Epilogue, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    lay = Layout(layout)
    out = {"x": lay.pack(arrays["x"], shape.groups), "w": lay.pack_filter(arrays["w"], shape.groups)}
    for name in epilogue.names:
        if name == "residual":
            out[name] = lay.pack(arrays[name], shape.groups)
        else:
            out[name] = np.ascontiguousarray(_fill(np.asarray(arrays[name]), 0, shape.groups, lay.block))
    return out


def _reference(shape: ConvShape, epilogue: Epilogue, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    y = conv2d_reference(
        arrays["x"],
        arrays["w"],
        stride=shape.stride,
        padding=shape.padding,
        dilation=shape.dilation,
        groups=shape.groups,
    )
    return epilogue.apply(y, arrays)


def _make(shape: ConvShape, form: str, layout: str, epilogue: Epilogue, dtype: str) -> Any:
    """The TIR function. Inside, every layout is read through ``at`` (n, channel, row, column) -> its own index order."""
    te = load().te
    from tvm import tirx

    lay = Layout(layout)
    block, groups = lay.block, shape.groups
    own_c, own_k = lay.channels(shape.c // groups, 1), lay.channels(shape.k // groups, 1)
    (sh, sw), (dh, dw) = shape.stride, shape.dilation
    top, _, left, _ = shape.padding
    r_, s_ = shape.r, shape.s

    def order(n: Any, c: Any, spatial: tuple[Any, ...]) -> tuple[Any, ...]:
        """Index of channel ``c`` in this layout."""
        if layout == "NCHW":
            return (n, c, *spatial)
        if layout == "NHWC":
            return (n, *spatial, c)
        return (n, c // block, *spatial, c % block)

    def channel(index: tuple[Any, ...]) -> tuple[Any, Any, tuple[Any, ...]]:
        """(n, channel, spatial) of an index in this layout."""
        if layout == "NCHW":
            return index[0], index[1], index[2:]
        if layout == "NHWC":
            return index[0], index[-1], index[1:-1]
        return index[0], index[1] * block + index[-1], index[2:-1]

    def named(function: Callable[..., Any], channel: str, *spatial: str) -> Callable[..., Any]:
        """The function with its axes' names, which TVM takes for the loops."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        function.__signature__ = inspect.Signature([inspect.Parameter(a, kind) for a in lay.axes(channel, *spatial)])
        return function

    x = te.placeholder(lay.extents(shape.n, shape.c, (shape.h, shape.w), groups), dtype, name="x")
    w = te.placeholder(lay.filter_shape(shape), dtype, name="w")

    padded = x
    if any(shape.padding):

        def pad(*index: Any) -> Any:
            n, c, (row, column) = channel(index)
            inside = tirx.all(row >= top, row < top + shape.h, column >= left, column < left + shape.w)
            return tirx.if_then_else(inside, x[order(n, c, (row - top, column - left))], tirx.const(0, dtype))

        padded = te.compute(
            lay.extents(shape.n, shape.c, (shape.padded_h, shape.padded_w), groups),
            named(pad, "c", "row", "col"),
            name="pad",
        )

    window = None
    if form == "im2win":

        def im2win(*index: Any) -> Any:
            n, c, (p, u) = channel(index)
            return padded[order(n, c, (p * sh + u % r_ * dh, u // r_))]

        window = te.compute(
            lay.extents(shape.n, shape.c, (shape.p, shape.padded_w * r_), groups),
            named(im2win, "c", "p", "u"),
            name="window",
        )
    elif form == "im2col":
        taps_first = layout != "NHWC"  # (R,S,P,Q) with channels outside, (P,Q,R,S) with channels inside
        spatial = (r_, s_, shape.p, shape.q) if taps_first else (shape.p, shape.q, r_, s_)

        def im2col(*index: Any) -> Any:
            n, c, four = channel(index)
            r, s, p, q = four if taps_first else (four[2], four[3], four[0], four[1])
            return padded[order(n, c, (p * sh + r * dh, q * sw + s * dw))]

        names = "rspq" if taps_first else "pqrs"
        window = te.compute(lay.extents(shape.n, shape.c, spatial, groups), named(im2col, "c", *names), name="window")

    def tap(n: Any, c: Any, p: Any, q: Any, r: Any, s: Any) -> Any:
        if form == "im2win":
            return window[order(n, c, (p, (q * sw + s * dw) * r_ + r))]
        if form == "im2col":
            return window[order(n, c, (r, s, p, q) if layout != "NHWC" else (p, q, r, s))]
        return padded[order(n, c, (p * sh + r * dh, q * sw + s * dw))]

    def weight(k: Any, c: Any, r: Any, s: Any) -> Any:
        if layout == "NCHW":
            return w[k, c, r, s]
        if layout == "NHWC":
            return w[r, s, c, k]
        return w[k // block, c, r, s, k % block]

    # the order in which the layout stores a window is the order in which its taps are summed
    axes = {
        "c": te.reduce_axis((0, own_c), name="c"),
        "r": te.reduce_axis((0, r_), name="r"),
        "s": te.reduce_axis((0, s_), name="s"),
    }
    c, r, s = axes.values()
    y_shape = lay.extents(shape.n, shape.k, (shape.p, shape.q), groups)

    def product(*index: Any) -> Any:
        n, k, (p, q) = channel(index)
        first = 0 if groups == 1 else k // own_k * own_c
        return te.sum(
            tap(n, first + c, p, q, r, s) * weight(k, c, r, s), axis=[axes[a] for a in sum_order(form, layout)]
        )

    y = te.compute(y_shape, named(product, "k", "p", "q"), name="conv")
    parameters = [x, w]
    if epilogue:
        k_shape = (lay.channels(shape.k, groups),)
        given = {
            name: te.placeholder(y_shape if name == "residual" else k_shape, dtype, name=name)
            for name in epilogue.names
        }
        parameters += given.values()
        sums = y

        def finish(*index: Any) -> Any:
            _, k, _ = channel(index)
            value = sums[index]
            value = value * given["scale"][k] if epilogue.scale else value
            value = value + given["shift"][k] if epilogue.shift else value
            value = value + given["residual"][index] if epilogue.residual else value
            if epilogue.activation:
                value = tirx.max(value, tirx.const(0, dtype))
            return tirx.min(value, tirx.const(6, dtype)) if epilogue.activation == "relu6" else value

        y = te.compute(y_shape, named(finish, "k", "p", "q"), name="epilogue")
    return te.create_prim_func([*parameters, y])


def sum_order(form: str, layout: str) -> str:
    """The reduction loops of "conv", outermost first: the order in which the form stores a window's elements."""
    if form == "im2win":
        return "csr" if layout != "NHWC" else "src"
    return "crs" if layout != "NHWC" else "rsc"
