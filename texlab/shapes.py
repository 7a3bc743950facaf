"""Convolution shapes: the vocabulary of the whole project, checked once, here.

Letters (cuDNN and CUTLASS): N batch, C input channels, H x W input, K output channels, R x S filter
(R high, S wide), P x Q output. ``x (N,C,H,W)``, ``w (K,C/groups,R,S)``, ``y (N,K,P,Q)``, and

    y[n,k,p,q] = sum over c,r,s of  x[n, c, p*stride_h + r*dilation_h - top, q*stride_w + s*dilation_w - left] * w[k,c,r,s]

with zeros outside the image: a cross-correlation, as in every deep-learning library (the filter is not flipped).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

INT_MAX = 2**31 - 1  # kernels take extents as 32-bit integers (offsets are 64-bit)


class ShapeError(ValueError):
    """A shape that is no convolution; the message names the values, the convention and the remedy."""


def _integers(name: str, value: object, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """``value`` (an int or a sequence of ints) as a tuple of one of ``lengths``; an int fills the shortest."""
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        items = [operator.index(v) for v in items]
    except TypeError:
        raise ShapeError(f"{name}={value!r}: expected an int or {lengths} ints") from None
    if len(items) == 1:
        items *= lengths[0]
    if len(items) not in lengths:
        raise ShapeError(f"{name}={value!r}: expected an int or {' or '.join(map(str, lengths))} ints")
    return tuple(items)


@dataclass(frozen=True)
class ConvShape:
    """One 2-D convolution: all extents as plain integers.

    Parameters
    ----------
    n, c, h, w : batch, input channels, input height and width
    k, r, s : output channels, filter height and width
    stride, dilation : int or (vertical, horizontal)
    padding : int, (vertical, horizontal), (top, bottom, left, right), "valid" (none) or "same"
        (P = ceil(H / stride); an odd row or column of zeros goes to the bottom or right)
    groups : divides both C and K

    >>> shape = ConvShape(n=1, c=64, h=56, w=56, k=64, r=3, s=3, padding=1)
    >>> shape.p, shape.q, shape.flops
    (56, 56, 231211008)
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, ...] | str = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 (frozen dataclass)
        for name in ("n", "c", "h", "w", "k", "r", "s", "groups"):
            (value,) = _integers(name, getattr(self, name), (1,))
            least = 0 if name in ("n", "k") else 1
            if not least <= value <= INT_MAX:
                raise ShapeError(f"{name}={value}: must lie between {least} and {INT_MAX}")
            put(name, value)
        for name in ("stride", "dilation"):
            pair = _integers(name, getattr(self, name), (2,))
            if not all(1 <= v <= INT_MAX for v in pair):
                raise ShapeError(f"{name}={pair}: each must lie between 1 and {INT_MAX}")
            put(name, pair)
        put("padding", self._padding())
        if self.c % self.groups or self.k % self.groups:
            raise ShapeError(f"groups={self.groups} must divide both C={self.c} and K={self.k}")
        for size, extent, filter_, axis in (
            (self.padded_h, self.h, self.window_h, "high"),
            (self.padded_w, self.w, self.window_w, "wide"),
        ):
            if filter_ > size:
                raise ShapeError(
                    f"the filter spans {filter_} (dilation included) but the input is only {size} {axis} "
                    f"({extent} plus padding {self.padding}): use a smaller filter or dilation, or more padding"
                )
            if size > INT_MAX:
                raise ShapeError(f"the padded input is {size} {axis}; the limit is {INT_MAX}: use less padding")

    def _padding(self) -> tuple[int, int, int, int]:
        if isinstance(self.padding, str):
            if self.padding == "valid":
                return (0, 0, 0, 0)
            if self.padding != "same":
                raise ShapeError(f"padding={self.padding!r}: the words are 'same' and 'valid'")
            out: list[int] = []
            spans = ((self.h, self.window_h, self.stride[0]), (self.w, self.window_w, self.stride[1]))
            for size, window, stride in spans:
                total = max((-(-size // stride) - 1) * stride + window - size, 0)
                out += [total // 2, total - total // 2]
            return tuple(out)
        values = _integers("padding", self.padding, (2, 4))
        if len(values) == 2:
            values = (values[0], values[0], values[1], values[1])
        if not all(0 <= v <= INT_MAX for v in values):
            raise ShapeError(f"padding={values} (top, bottom, left, right): each must lie between 0 and {INT_MAX}")
        return values

    @classmethod
    def of(cls, x_shape: Sequence[int], w_shape: Sequence[int], **how: object) -> ConvShape:
        """The shape of convolving ``x (N,C,H,W)`` with ``w (K,C/groups,R,S)``; ``how``: stride, padding, dilation, groups.

        >>> ConvShape.of((1, 3, 8, 8), (4, 3, 3, 3), stride=2).y_shape
        (1, 4, 3, 3)
        """
        x_shape, w_shape = tuple(x_shape), tuple(w_shape)
        if len(x_shape) != 4 or len(w_shape) != 4:
            raise ShapeError(f"x {x_shape} must be (N,C,H,W) and w {w_shape} must be (K,C/groups,R,S)")
        (groups,) = _integers("groups", how.get("groups", 1), (1,))
        if x_shape[1] != w_shape[1] * groups:
            with_groups = f" x groups={groups}" if groups != 1 else ""
            raise ShapeError(
                f"x has C={x_shape[1]} channels {x_shape} but w expects C={w_shape[1]}{with_groups} {w_shape}; "
                "both are NCHW/KCRS"
            )
        n, c, h, w = x_shape
        k, _, r, s = w_shape
        return cls(n, c, h, w, k, r, s, **how)

    def with_(self, **changes: object) -> ConvShape:
        """A copy with some extents changed."""
        return replace(self, **changes)

    # extents -------------------------------------------------------------------------------------------------
    @property
    def window_h(self) -> int:
        """Rows from the first to the last tap: ``(R-1)*dilation_h + 1``."""
        return (self.r - 1) * self.dilation[0] + 1

    @property
    def window_w(self) -> int:
        """Columns from the first to the last tap: ``(S-1)*dilation_w + 1``."""
        return (self.s - 1) * self.dilation[1] + 1

    @property
    def padded_h(self) -> int:
        return self.h + self.padding[0] + self.padding[1]

    @property
    def padded_w(self) -> int:
        return self.w + self.padding[2] + self.padding[3]

    @cached_property
    def p(self) -> int:
        return (self.padded_h - self.window_h) // self.stride[0] + 1

    @cached_property
    def q(self) -> int:
        return (self.padded_w - self.window_w) // self.stride[1] + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        return (self.n, self.c, self.h, self.w)

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        return (self.k, self.c // self.groups, self.r, self.s)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        return (self.n, self.k, self.p, self.q)

    # work ----------------------------------------------------------------------------------------------------
    @property
    def flops(self) -> int:
        """Floating-point operations (a multiply and an add per tap; taps that fall on padding count too)."""
        return 2 * self.n * self.k * self.p * self.q * (self.c // self.groups) * self.r * self.s

    def min_bytes(self, itemsize: int = 4) -> int:
        """Fewest bytes that must move: x and w read once, y written once."""
        taps = self.k * (self.c // self.groups) * self.r * self.s
        return itemsize * (self.n * self.c * self.h * self.w + taps + self.n * self.k * self.p * self.q)

    def __str__(self) -> str:
        text = f"{self.n}x{self.c}x{self.h}x{self.w} -> {self.k}, {self.r}x{self.s}"
        if self.stride != (1, 1):
            text += f", stride {_short(self.stride)}"
        if any(self.padding):
            text += f", padding {_short(self.padding)}"
        if self.dilation != (1, 1):
            text += f", dilation {_short(self.dilation)}"
        return text + (f", groups {self.groups}" if self.groups != 1 else "")


def _short(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else str(values).replace(" ", "")


def _layer(c: int, size: int, k: int, r: int, stride: int = 1) -> ConvShape:
    return ConvShape(n=1, c=c, h=size, w=size, k=k, r=r, s=r, stride=stride)


#: The twelve benchmark layers of the im2win papers (arXiv:2306.14316), batch 1; ``LAYERS["cv9"].with_(n=128)``.
LAYERS: dict[str, ConvShape] = {
    "cv1": _layer(3, 227, 96, 11, 4),
    "cv2": _layer(3, 231, 96, 11, 4),
    "cv3": _layer(3, 227, 64, 7, 2),
    "cv4": _layer(64, 224, 64, 7, 2),
    "cv5": _layer(96, 24, 256, 5),
    "cv6": _layer(256, 12, 512, 3),
    "cv7": _layer(3, 224, 64, 3),
    "cv8": _layer(64, 112, 128, 3),
    "cv9": _layer(64, 56, 64, 3),
    "cv10": _layer(128, 28, 128, 3),
    "cv11": _layer(256, 14, 256, 3),
    "cv12": _layer(512, 7, 512, 3),
}
