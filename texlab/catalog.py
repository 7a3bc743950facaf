"""The kernels: what each file needs to become a Program for a given shape.

A kernel file is the source of truth: its header gives the idea, and its ``#ifndef NAME / #define NAME value // meaning``
blocks give the tunables. Here stands only what a ``.cu`` file cannot say: buffers, grids and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from texlab.paths import kernel_dir
from texlab.precision import PRECISIONS, Precision
from texlab.program import Buffer, Launch, Program
from texlab.shapes import ConvShape, ShapeError
from texlab.views import LIMITS, TextureView

#: ``struct Conv`` of kernels/common.cuh, field by field.
CONV_DTYPE = np.dtype(
    [
        (name, np.int32)
        for name in (
            *("N", "C", "H", "W", "K", "R", "S", "P", "Q"),
            *("stride_h", "stride_w", "pad_top", "pad_left", "dilation_h", "dilation_w", "groups", "WP"),
        )
    ]
)


def conv_struct(shape: ConvShape) -> np.ndarray:
    """The shape as the 0-d structured array that kernels take by value."""
    pads = (shape.padding[0], shape.padding[2])
    values = (*(shape.n, shape.c, shape.h, shape.w, shape.k, shape.r, shape.s, shape.p, shape.q), *shape.stride, *pads)
    return np.array((*values, *shape.dilation, shape.groups, shape.padded_w), dtype=CONV_DTYPE)


@dataclass(frozen=True)
class Tunable:
    """A ``#define`` that may be set from Python: an integer, or for some a C expression."""

    default: int | str
    doc: str


#: buffers, launches, and where there are any the texture views
Plan = (
    tuple[tuple[Buffer, ...], tuple[Launch, ...]]
    | tuple[tuple[Buffer, ...], tuple[Launch, ...], tuple[TextureView, ...]]
)


@dataclass(frozen=True)
class Kernel:
    """One kernel of the catalog. ``kind``: "conv" (x, w[, bias] -> y), "layout" (x -> another layout) or "copy";
    ``scales``: whether it can multiply each channel of y by a number."""

    name: str
    files: tuple[str, ...]
    kind: str
    plan: Callable[..., Plan]
    scales: bool = False

    @property
    def file(self) -> str:
        """The file that holds this kernel's idea (others it launches stand before it in ``files``)."""
        return self.files[-1]

    @property
    def rung(self) -> int | None:
        """Its number on the ladder, or None."""
        number = re.match(r"(\d+)_", self.file)
        return int(number[1]) if number else None

    @cached_property
    def text(self) -> str:
        """The kernel file as it stands."""
        return (kernel_dir() / self.file).read_text(encoding="utf-8")

    @cached_property
    def header(self) -> dict[str, str]:
        """The contract at the top of the file: "title", "idea", "shapes", "launch" and, where given, others."""
        out = {"title": ""}
        key = "title"
        for line in self.text.splitlines():
            if not line.startswith("//"):
                break
            line = line[2:]
            if named := re.match(r" (\w+)(?:  +)(\S.*)", line):
                key, out[named[1]] = named[1], named[2]
            elif key == "title" and not out["title"]:
                out["title"] = line.split(" - ", 1)[-1].strip()
            else:
                out[key] += " " + line.strip()
        return out

    @property
    def idea(self) -> str:
        return self.header["idea"]

    @cached_property
    def tunables(self) -> dict[str, Tunable]:
        """Name -> default and meaning, read from all files of the kernel."""
        found: dict[str, Tunable] = {}
        for file in self.files:
            text = (kernel_dir() / file).read_text(encoding="utf-8")
            for name, value, doc in re.findall(r"#ifndef (\w+)\n#define \1 (.+?) *// *(.+)\n#endif", text):
                found[name] = Tunable(int(value) if value.isdigit() else value, doc)
        return found

    def program(self, shape: ConvShape, *, bias: bool = False, scale: bool = False, **tunables: int | str) -> Program:
        """The Program that computes ``shape``; tunables override the file's defaults
        (``kernels["im2win_tile"].tunables`` lists them).

        ``bias=True`` adds an input ``bias (K,)``, ``scale=True`` (tensor cores) an input ``scale (K,)``, both float32:
        ``y[n,k] = scale[k] * sum + bias[k]``.

        >>> shape = ConvShape(n=1, c=3, h=8, w=8, k=4, r=3, s=3)
        >>> [launch.entry for launch in kernels["im2win_direct"].program(shape).launches]
        ['im2win', 'window_filter', 'im2win_direct']
        """
        if unknown := sorted(set(tunables) - set(self.tunables)):
            raise ValueError(f"kernel {self.name!r} has no tunable {unknown}; it has {sorted(self.tunables)}")
        if bias and self.kind != "conv":
            raise ValueError(f"kernel {self.name!r} is a {self.kind} kernel: it takes no bias")
        if scale and not self.scales:
            raise ValueError(
                f"kernel {self.name!r} takes no scale; {[n for n, k in kernels.items() if k.scales]} take one"
            )
        values = {name: tunables.get(name, t.default) for name, t in self.tunables.items()}
        for name, value in values.items():
            wants_int = isinstance(self.tunables[name].default, int)
            if wants_int and (not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 0):
                raise ValueError(f"kernel {self.name!r}: {name}={value!r} must be a non-negative integer")
        names = ("bias" if bias else None, *(("scale" if scale else None,) if self.scales else ()))
        buffers, launches, *textures = self.plan(shape, values, *names)
        buffers += tuple(Buffer(name, (shape.k,)) for name in names if name)
        for launch in launches:
            if launch.grid[0] > 2**31 - 1:
                raise ShapeError(f"{launch.entry}: {shape} needs {launch.grid[0]} blocks; the limit is {2**31 - 1}")
        return Program(
            name=self.name,
            source=source_of(self.files),
            buffers=buffers,
            launches=launches,
            defines={name: value for name, value in values.items() if value != self.tunables[name].default},
            filename=self.file,
            needs=_precision(values).needs if "PRECISION" in values else self.header.get("needs", "sm_75"),
            textures=textures[0] if textures else (),
        )


@cache
def source_of(files: tuple[str, ...]) -> str:
    """common.cuh and the files as one text; ``#line`` keeps each line's own file and number in errors and traces."""
    parts = []
    for file in ("common.cuh", *files):
        parts.append(f'#line 1 "{file}"\n' + (kernel_dir() / file).read_text(encoding="utf-8"))
    return "\n".join(parts)


# plans: buffers, grids and arguments ---------------------------------------------------------------------------
def _limit(what: str, count: int, shape: ConvShape) -> int:
    """``count``, which a kernel keeps in 32 bits and steps past its end by up to a pass of the grid."""
    if count > 2**31 - 2**26:
        raise ShapeError(
            f"{shape} has {what} = {count}; this kernel takes less than 2^31: split the work, or use 'direct'"
        )
    return count


def _blocks(count: int, size: int) -> tuple[int, int, int]:
    return (-(-count // size), 1, 1)


def _xw_shape(shape: ConvShape) -> tuple[int, ...]:
    return (shape.n, shape.c, shape.p, shape.padded_w * shape.r)


def _col_shape(shape: ConvShape) -> tuple[int, ...]:
    return (shape.n, shape.c * shape.r * shape.s, shape.p * shape.q)


def _rows_launch(entry: str, out: str, rows: int, length: int, shape: ConvShape, t: dict[str, Any]) -> Launch:
    """A pack kernel: for each of the N*C planes of x, ``rows`` rows of ``length`` elements of ``out``."""
    _limit(f"elements in a row of {out}", length, shape)
    segments, row_blocks = -(-length // t["SEGMENT"]), -(-rows // t["BLOCK_ROWS"])
    grid = (shape.n * shape.c, min(segments, 65535), min(row_blocks, 65535))  # the kernels loop over what is beyond
    return Launch(entry, grid, (32, t["BLOCK_ROWS"], 1), ("x", out, conv_struct(shape)))


def _im2win_launch(shape: ConvShape, t: dict[str, Any]) -> Launch:
    return _rows_launch("im2win", "xw", shape.p, shape.padded_w * shape.r, shape, t)


def _im2col_launch(shape: ConvShape, t: dict[str, Any]) -> Launch:
    return _rows_launch("im2col", "col", shape.r * shape.s, shape.p * shape.q, shape, t)


def _tile_launch(
    entry: str,
    first: str | None,
    filters: str,
    bias: str | None,
    shape: ConvShape,
    t: dict[str, Any],
    shared_bytes: int = 0,
) -> Launch:
    if t["BLOCK_K"] < 8 or t["BLOCK_Q"] < 8:
        raise ValueError(f"{entry}: BLOCK_K={t['BLOCK_K']} and BLOCK_Q={t['BLOCK_Q']} must be at least 8")
    threads = t["BLOCK_K"] // 8 * (t["BLOCK_Q"] // 8)
    k_tiles = -(-(shape.k // shape.groups) // t["BLOCK_K"])
    _limit("C*R*S", shape.c * shape.r * shape.s, shape)
    pixels = _limit("N*P*Q", shape.n * shape.p * shape.q, shape)
    blocks = k_tiles * shape.groups * -(-pixels // t["BLOCK_Q"])
    args = (first, filters, bias, "y", conv_struct(shape))
    return Launch(entry, (blocks, 1, 1), (threads, 1, 1), args, shared_bytes)


def _outputs(shape: ConvShape) -> tuple[Buffer, ...]:
    return (Buffer("x", shape.x_shape), Buffer("w", shape.w_shape), Buffer("y", shape.y_shape, role="output"))


def _direct(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    grid = _blocks(prod(shape.y_shape), t["BLOCK"])
    return _outputs(shape), (Launch("direct", grid, (t["BLOCK"], 1, 1), ("x", "w", bias, "y", conv_struct(shape))),)


def _im2win(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    return (Buffer("x", shape.x_shape), Buffer("xw", _xw_shape(shape), role="output")), (_im2win_launch(shape, t),)


def _im2win_conv(entry: str) -> Callable[[ConvShape, dict[str, Any], str | None], Plan]:
    def plan(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
        wt = (*shape.w_shape[:2], shape.s * shape.r)
        buffers = (*_outputs(shape), Buffer("xw", _xw_shape(shape), role="scratch"), Buffer("wt", wt, role="scratch"))
        if entry == "im2win_direct":
            args = ("xw", "wt", bias, "y", conv_struct(shape))
            last = Launch(entry, _blocks(prod(shape.y_shape), t["BLOCK"]), (t["BLOCK"], 1, 1), args)
        else:
            last = _tile_launch(entry, "xw", "wt", bias, shape, t)
        return buffers, (
            _im2win_launch(shape, t),
            Launch("window_filter", _blocks(prod(wt), 256), (256, 1, 1), ("w", "wt", conv_struct(shape))),
            last,
        )

    return plan


def _im2win_pipeline(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    taps = shape.w_shape[1] * shape.s * shape.r
    wt = (shape.groups, taps, shape.k // shape.groups)
    buffers = (*_outputs(shape), Buffer("xw", _xw_shape(shape), role="scratch"), Buffer("wt", wt, role="scratch"))
    ring = 4 * t["STAGES"] * t["BLOCK_C"] * (t["BLOCK_K"] + t["BLOCK_Q"] + 2 * t["PAD"])
    return buffers, (
        _im2win_launch(shape, t),
        Launch("window_filter_by_channel", _blocks(prod(wt), 256), (256, 1, 1), ("w", "wt", conv_struct(shape))),
        _tile_launch("im2win_pipeline", "xw", "wt", bias, shape, t, ring),
    )


def _im2win_texture(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    wt = (*shape.w_shape[:2], shape.s * shape.r)
    buffers = (*_outputs(shape), Buffer("wt", wt, role="scratch"))
    views = ()
    if prod(shape.x_shape):
        if t["PLANES"] == 1:
            t["PLANES"] = _planes_in_a_layer(shape)
        size = (shape.n * shape.c // t["PLANES"], t["PLANES"] * shape.h, shape.w)
        views = (TextureView("image", "x", size, address="border"),)
    return (
        buffers,
        (
            Launch("window_filter", _blocks(prod(wt), 256), (256, 1, 1), ("w", "wt", conv_struct(shape))),
            _tile_launch("im2win_texture", "image" if views else None, "wt", bias, shape, t),
        ),
        views,
    )


def _planes_in_a_layer(shape: ConvShape) -> int:
    """How many of the N*C planes share a layer of the texture: 1, or the least number with which its layers suffice."""
    planes, (layers, height, width) = shape.n * shape.c, LIMITS["array", 3, False]
    for each in range(-(-planes // layers), height // shape.h + 1):
        if planes % each == 0 and shape.w <= width:
            return each
    raise ShapeError(
        f"{shape}: {planes} planes of {shape.h} x {shape.w} do not divide into a texture of {layers} layers, {height} high "
        f"and {width} wide; use another batch size, or 'im2win_zigzag'"
    )


def _precision(t: dict[str, Any]) -> Precision:
    for precision in PRECISIONS.values():
        if precision.code == t["PRECISION"]:
            return precision
    codes = {p.code: name for name, p in PRECISIONS.items()}
    raise ValueError(f"PRECISION={t['PRECISION']} is no number format; there are {codes}")


def _im2win_tensor_core(shape: ConvShape, t: dict[str, Any], bias: str | None, scale: str | None) -> Plan:
    precision = _precision(t)
    dtype, wide = precision.dtype, t["WIDE_OUTPUT"]
    if t["BLOCK_K"] % 32 or t["BLOCK_Q"] % 64 or not t["BLOCK_K"] * t["BLOCK_Q"]:
        raise ValueError(f"BLOCK_K={t['BLOCK_K']} must be a multiple of 32 and BLOCK_Q={t['BLOCK_Q']} of 64")
    if wide > 2:
        raise ValueError(f"WIDE_OUTPUT={wide} must be 0 (as the input), 1 (as the sums) or 2 (float32)")
    if wide == 1 and precision.sums == "int32" and (bias or scale):
        raise ValueError(
            f"{precision.name} with WIDE_OUTPUT=1 gives the exact int32 sums: {bias or scale} needs a float32 (2) or "
            "saturated int8 (0) output"
        )
    size, result = np.dtype(dtype).itemsize, (dtype, precision.sums, "float32")[wide]
    group_k, group_c = shape.k // shape.groups, shape.c // shape.groups
    elements = shape.r * shape.s * group_c
    pitch = -(-elements * size // 16) * 16 // size
    pixels = _limit("N*P*Q", shape.n * shape.p * shape.q, shape)
    _limit("C*R*S", shape.c * shape.r * shape.s, shape)
    spanned = min(shape.n, t["BLOCK_Q"] // max(shape.p * shape.q, 1) + 2)
    _limit("elements in the images of one tile", spanned * shape.c * shape.padded_h * shape.padded_w, shape)
    order = (lambda s: (s[0], s[2], s[3], s[1])) if t["NHWC"] else tuple
    buffers = (
        Buffer("x", order(shape.x_shape), dtype),
        Buffer("w", shape.w_shape, dtype),
        Buffer("y", order(shape.y_shape), result, role="output"),
        Buffer("wt", (shape.groups, group_k, pitch), dtype, role="scratch"),
    )
    threads = t["BLOCK_Q"] // 64 * (t["BLOCK_K"] // 32) * 32
    row = (t["BLOCK_K"] if t["NHWC"] else t["BLOCK_Q"]) * np.dtype(result).itemsize + 16
    tile = row * (t["BLOCK_Q"] if t["NHWC"] else t["BLOCK_K"])
    ring = t["STAGES"] * 128 * (t["BLOCK_Q"] + t["BLOCK_K"])
    blocks = -(-group_k // t["BLOCK_K"]) * shape.groups * -(-pixels // t["BLOCK_Q"])
    struct = conv_struct(shape)
    return buffers, (
        Launch("tensor_core_filter", _blocks(shape.k * pitch, 256), (256, 1, 1), ("w", "wt", struct)),
        Launch(
            "im2win_tensor_core",
            (blocks, 1, 1),
            (threads, 1, 1),
            ("x", "wt", scale, bias, "y", struct),
            max(ring, tile),
        ),
    )


def _im2col(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    return (Buffer("x", shape.x_shape), Buffer("col", _col_shape(shape), role="output")), (_im2col_launch(shape, t),)


def _im2col_gemm(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    return (*_outputs(shape), Buffer("col", _col_shape(shape), role="scratch")), (
        _im2col_launch(shape, t),
        _tile_launch("im2col_gemm", "col", "w", bias, shape, t),
    )


def _nchw4c(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    x4 = (shape.n, -(-shape.c // 4), shape.h, shape.w, 4)
    return (Buffer("x", shape.x_shape), Buffer("x4", x4, role="output")), (
        Launch("nchw4c", _blocks(prod(x4) // 4, t["BLOCK"]), (t["BLOCK"], 1, 1), ("x", "x4", conv_struct(shape))),
    )


def _copy(shape: ConvShape, t: dict[str, Any], bias: str | None) -> Plan:
    count = prod(shape.x_shape)
    return (Buffer("x", shape.x_shape), Buffer("y", shape.x_shape, role="output")), (
        Launch("copy", _blocks(-(-count // 4), t["BLOCK"]), (t["BLOCK"], 1, 1), ("x", "y", count)),
    )


#: Every kernel by name (the file's name without its number), ladder first.
kernels: Mapping[str, Kernel] = {
    kernel.name: kernel
    for kernel in (
        Kernel("direct", ("01_direct.cu",), "conv", _direct),
        Kernel("im2win", ("02_im2win.cu",), "layout", _im2win),
        Kernel("im2win_direct", ("02_im2win.cu", "03_im2win_direct.cu"), "conv", _im2win_conv("im2win_direct")),
        Kernel("im2win_tile", ("02_im2win.cu", "04_im2win_tile.cu"), "conv", _im2win_conv("im2win_tile")),
        Kernel("im2win_zigzag", ("02_im2win.cu", "05_im2win_zigzag.cu"), "conv", _im2win_conv("im2win_zigzag")),
        Kernel(
            "im2win_double_buffer",
            ("02_im2win.cu", "07_im2win_double_buffer.cu"),
            "conv",
            _im2win_conv("im2win_double_buffer"),
        ),
        Kernel("im2win_pipeline", ("02_im2win.cu", "09_im2win_pipeline.cu"), "conv", _im2win_pipeline),
        Kernel("im2win_texture", ("02_im2win.cu", "06_im2win_texture.cu"), "conv", _im2win_texture),
        Kernel("im2win_tensor_core", ("08_im2win_tensor_core.cu",), "conv", _im2win_tensor_core, scales=True),
        Kernel("im2col", ("im2col.cu",), "layout", _im2col),
        Kernel("im2col_gemm", ("im2col.cu", "im2col_gemm.cu"), "conv", _im2col_gemm),
        Kernel("nchw4c", ("nchw4c.cu",), "layout", _nchw4c),
        Kernel("copy", ("copy.cu",), "copy", _copy),
    )
}
