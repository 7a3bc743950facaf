"""Maximum and average pooling, in the layouts of ``conv``, with schedules for LLVM and CUDA; the rules are PyTorch's.

    y[n,c,p,q] = max or mean over r,s of  x[n, c, p*stride_h + r*dilation_h - top, q*stride_w + s*dilation_w - left]

Outside the image a maximum sees -inf, which never wins, and an average sees nothing: it divides by the elements that are
there (``count_include_pad``: and by those of the padding). With ``ceil_mode`` a last window may hang over the end, if it
begins inside the image or its left padding; what hangs over the padding is not counted either way. A NaN gives NaN.

The stages: "pad" (absent where no window leaves the image), "pool" and, for an average, "average", which divides.

====== =========================================================== ==================================================
knob   LLVM                                                        CUDA
====== =========================================================== ==================================================
PAD    "staged": a tile's rows copied with padding; or "inline"    always inline
ROWS   output rows of one task
VECTOR lanes: columns of NCHW, channels of NHWC (NCHW4c: its own)  channels of one load (not NCHW)
ITEMS  vectors kept at once                                        outputs of one thread
BLOCK                                                              threads of a block
====== =========================================================== ==================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from texlab.program import Buffer
from texlab.schedules.conv import Layout
from texlab.schedules.reduce import maximum
from texlab.schedules.tvm_import import load
from texlab.schedules.work import Scheduled, Workload
from texlab.shapes import INT_MAX, ShapeError, _integers

OPS = ("max", "avg")


@dataclass(frozen=True)
class PoolShape:
    """One 2-D pooling. ``size``, ``stride`` (None: the size) and ``dilation``: int or (vertical, horizontal); ``padding``: int,
    pair, or (top, bottom, left, right). Raises ShapeError for a padding above half a window, and where no window fits.

    >>> PoolShape(n=1, c=64, h=112, w=112, size=3, stride=2, padding=1).y_shape
    (1, 64, 56, 56)
    >>> PoolShape(n=1, c=1, h=6, w=6, size=3, stride=2, ceil_mode=True).y_shape
    (1, 1, 3, 3)
    """

    n: int
    c: int
    h: int
    w: int
    size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, int] = 1
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 (frozen dataclass)
        for name in ("n", "c", "h", "w"):
            put(name, *_integers(name, getattr(self, name), (1,)))
        put("size", _integers("size", self.size, (2,)))
        put("stride", self.size if self.stride is None else _integers("stride", self.stride, (2,)))
        put("dilation", _integers("dilation", self.dilation, (2,)))
        for name in ("n", "c", "h", "w", "size", "stride", "dilation"):
            value = getattr(self, name)
            if not all(1 <= v <= INT_MAX for v in (value if isinstance(value, tuple) else (value,))):
                raise ShapeError(f"{name}={value}: must be at least 1 (and at most {INT_MAX})")
        padding = _integers("padding", self.padding, (2, 4))
        put("padding", (padding[0], padding[0], padding[1], padding[1]) if len(padding) == 2 else padding)
        for axis, extent, window, (before, after), count in zip(
            ("high", "wide"),
            (self.h, self.w),
            self.window,
            (self.padding[:2], self.padding[2:]),
            self.y_shape[2:],
            strict=True,
        ):
            if min(before, after) < 0 or max(before, after) > window // 2:
                raise ShapeError(
                    f"padding={self.padding} (top, bottom, left, right) of a window {window} {axis} (dilation included): "
                    f"from 0 to half the window, {window // 2}"
                )
            if count < 1:
                raise ShapeError(
                    f"the window is {window} {axis} (dilation included) but the input is only {before + extent + after} "
                    f"({extent} plus padding {self.padding}): use a smaller window or dilation, or more padding"
                )
        if max(prod(self.y_shape), self.n * self.c * self.h * self.w) > INT_MAX:
            raise ShapeError(f"{self}: more than 2^31 - 1 elements; pool fewer images at once")

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns from the first to the last element of a window."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.size, self.dilation, strict=True))

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """(N,C,P,Q)."""
        out = []
        for axis, (extent, window, stride) in enumerate(zip((self.h, self.w), self.window, self.stride, strict=True)):
            before, after = self.padding[2 * axis : 2 * axis + 2]
            room = before + extent + after - window
            count = room // stride + 1
            if self.ceil_mode and room % stride and count * stride < before + extent:
                count += 1  # a window over the end, which begins before it
            out.append(count)
        return (self.n, self.c, *out)

    def bounds(self, axis: int, include_pad: bool) -> tuple[int, int]:
        """The first row (column) that counts and the first that no longer does, 0 being the image's first."""
        extent = (self.h, self.w)[axis]
        before, after = self.padding[2 * axis : 2 * axis + 2]
        return (-before, extent + after) if include_pad else (0, extent)

    def taps(self, axis: int, include_pad: bool) -> np.ndarray:
        """How many rows (columns) of each window count, int64 (P,) or (Q,)."""
        first, end = self.bounds(axis, include_pad)
        start = np.arange(self.y_shape[2 + axis])[:, None] * self.stride[axis] - self.padding[2 * axis]
        at = start + np.arange(self.size[axis]) * self.dilation[axis]
        return ((at >= first) & (at < end)).sum(1)


def pool2d(
    x_shape: tuple[int, int, int, int],
    op: str = "max",
    size: int | tuple[int, int] = 2,
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = "NCHW",
) -> Workload:
    """Pool a float32 ``x (N,C,H,W)``, stored in ``layout``, to ``y (N,C,P,Q)``; see PoolShape for the sizes.

    Raises ValueError for an unknown op or layout, sizes that PoolShape refuses, and an average over a window of padding alone.

    >>> work = pool2d((1, 6, 9, 9), "avg", size=3, stride=2, padding=1, layout="NCHW4c")
    >>> [(b.name, b.shape) for b in work.buffers]
    [('x', (1, 2, 9, 9, 4)), ('y', (1, 2, 5, 5, 4))]
    """
    if op not in OPS:
        raise ValueError(f"op={op!r}; one of {list(OPS)}")
    if len(x_shape) != 4:
        raise ValueError(f"x_shape={tuple(x_shape)}: must be (N,C,H,W)")
    if count_include_pad and op == "max":
        raise ValueError("count_include_pad is for averages; the maximum of padding is -inf")
    shape = PoolShape(*x_shape, size, stride, padding, dilation, ceil_mode)
    if op == "avg" and not all(shape.taps(axis, count_include_pad).all() for axis in (0, 1)):
        raise ValueError(
            f"{shape}: a window lies on padding alone, so its average divides by nothing; use less padding"
        )
    lay = Layout(layout)
    n, c, p, q = shape.y_shape
    return Workload(
        kind="pool",
        name=f"{op}_pool2d",
        buffers=(
            Buffer("x", lay.extents(n, c, (shape.h, shape.w))),
            Buffer("y", lay.extents(n, c, (p, q)), role="output"),
        ),
        make=partial(_make, shape, op, count_include_pad, layout),
        pack=partial(_pack, shape, layout),
        unpack=partial(lay.unpack, k=c),
        reference=partial(reference, shape, op, count_include_pad),
        flops=n * c * p * q * prod(shape.size),
        about={"shape": shape, "op": op, "layout": layout, "count_include_pad": count_include_pad},
    )


def _pack(shape: PoolShape, layout: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = np.asarray(arrays["x"])
    if x.shape != (shape.n, shape.c, shape.h, shape.w):
        raise ValueError(f"x is {x.shape}; this workload is for {(shape.n, shape.c, shape.h, shape.w)}")
    return {"x": Layout(layout).pack(x)}


def reference(shape: PoolShape, op: str, count_include_pad: bool, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The float64 answer, one tap of all windows at a time."""
    x = np.asarray(arrays["x"], np.float64)
    (sh, sw), (dh, dw), (top, _, left, _) = shape.stride, shape.dilation, shape.padding
    *_, p, q = shape.y_shape
    reach = [max((count - 1) * s + w, before + extent) for count, s, w, before, extent in
             zip((p, q), shape.stride, shape.window, (top, left), (shape.h, shape.w), strict=True)]  # fmt: skip
    padded = np.full((shape.n, shape.c, *reach), -np.inf if op == "max" else 0.0)
    padded[:, :, top : top + shape.h, left : left + shape.w] = x
    taps = [
        padded[:, :, r * dh : r * dh + (p - 1) * sh + 1 : sh, s * dw : s * dw + (q - 1) * sw + 1 : sw]
        for r in range(shape.size[0])
        for s in range(shape.size[1])
    ]
    if op == "max":
        return np.maximum.reduce(taps)
    return np.add.reduce(taps) / np.outer(shape.taps(0, count_include_pad), shape.taps(1, count_include_pad))


def _make(shape: PoolShape, op: str, count_include_pad: bool, layout: str) -> Any:
    """The TIR function."""
    te = load().te
    from tvm import tirx

    lay, at = (
        Layout(layout),
        1 if layout == "NHWC" else 2,
    )  # ``at``: where the rows stand in an index, the columns after
    (sh, sw), (dh, dw), (top, _, left, _) = shape.stride, shape.dilation, shape.padding
    n, c, p, q = shape.y_shape
    x = te.placeholder(lay.extents(n, c, (shape.h, shape.w)), "float32", name="x")
    y_shape = lay.extents(n, c, (p, q))
    rows, columns = (p - 1) * sh + shape.window[0], (q - 1) * sw + shape.window[1]
    source = x
    if top or left or rows > top + shape.h or columns > left + shape.w:

        def pad(*index: Any) -> Any:
            row, column = index[at] - top, index[at + 1] - left
            inside = tirx.all(row >= 0, row < shape.h, column >= 0, column < shape.w)
            outside = tirx.const(float("-inf") if op == "max" else 0.0, "float32")
            return tirx.if_then_else(inside, x[(*index[:at], row, column, *index[at + 2 :])], outside)

        source = te.compute(lay.extents(n, c, (rows, columns)), pad, name="pad")
    r, s = te.reduce_axis((0, shape.size[0]), name="r"), te.reduce_axis((0, shape.size[1]), name="s")

    def window(*index: Any) -> Any:
        tap = (index[at] * sh + r * dh, index[at + 1] * sw + s * dw)
        return (maximum() if op == "max" else te.sum)(source[(*index[:at], *tap, *index[at + 2 :])], axis=[r, s])

    y = te.compute(y_shape, window, name="pool")
    if op == "avg":
        total = y
        whole = [bool((shape.taps(axis, count_include_pad) == shape.size[axis]).all()) for axis in (0, 1)]

        def count(axis: int, place: Any) -> Any:
            """Taps within bounds: those before the end less those before the beginning."""
            if whole[axis]:
                return shape.size[axis]
            first, end = shape.bounds(axis, count_include_pad)
            start, step = place * shape.stride[axis] - shape.padding[2 * axis], shape.dilation[axis]
            before = lambda limit: tirx.max(0, tirx.floordiv(limit - start + step - 1, step))  # noqa: E731
            return tirx.min(shape.size[axis], before(end)) - before(first)

        def average(*index: Any) -> Any:
            counted = count(0, index[at]) * count(1, index[at + 1])
            return total[index] / (float(counted) if all(whole) else tirx.Cast("float32", counted))

        y = te.compute(y_shape, average, name="average")
    return te.create_prim_func([x, y])


def _first(value: int, *others: int) -> tuple[int, ...]:
    return (value, *(v for v in others if v != value))


# schedules ---------------------------------------------------------------------------------------------------------


def space(workload: Workload, target: str = "llvm") -> dict[str, tuple[Any, ...]]:
    """Knob -> values worth trying, the default first."""
    shape, layout = workload.about["shape"], workload.about["layout"]
    *_, p, q = shape.y_shape
    if target == "llvm":
        lanes = shape.c if layout == "NHWC" else q
        vector = next(v for v in (16, 8, 4, 1) if v <= lanes or v == 1)
        items = 2 if 2 * vector <= lanes else 1
        narrow_max = workload.about["op"] == "max" and Layout(layout).block == 4
        knobs = {
            "PAD": ("staged", "inline") if layout == "NCHW" or narrow_max else ("inline", "staged"),
            "ROWS": _first(min(p, 4), 1, 2, 4, 8, 16),
            "VECTOR": _first(vector, 1, 4, 8, 16),
            "ITEMS": _first(8 if narrow_max else items, 1, 2, 4, 8),
            # below, waking the threads costs more than they save
            "PARALLEL": (True, False) if workload.flops >= 1 << 20 else (False, True),
        }
        if Layout(layout).block > 1:
            del knobs["VECTOR"]
        return knobs
    lanes = shape.c if layout == "NHWC" else Layout(layout).block
    return {
        "BLOCK": (256, 64, 128, 512),
        "VECTOR": (4, 1, 2) if lanes % 4 == 0 else (2, 1) if lanes % 2 == 0 else (1,),
        "ITEMS": (1, 2, 4),
    }


def schedule(workload: Workload, target: str = "llvm", **knobs: Any) -> Scheduled:
    """The schedule for ``target`` with ``knobs`` (see the table above; ``space`` has the defaults)."""
    chosen = {name: values[0] for name, values in space(workload, target).items()} | knobs
    for name, value in chosen.items():
        if name == "PAD" and value not in ("staged", "inline"):
            raise ValueError(f"{workload.name}: PAD={value!r}; 'staged' or 'inline'")
        if name not in ("PAD", "PARALLEL") and not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{workload.name}: {name}={value!r} must be a positive integer")
    if target == "cuda":
        vectors = space(workload, target)["VECTOR"]
        if chosen["BLOCK"] > 1024 or chosen["VECTOR"] not in vectors:
            raise ValueError(
                f"{workload.name}: BLOCK={chosen['BLOCK']}, VECTOR={chosen['VECTOR']}; a block has up to 1024 threads, and "
                f"{workload.about['layout']} of these channels can be read by {sorted(vectors)}"
            )
    sch = load().s_tir.Schedule(workload.module())
    {"llvm": _cpu, "cuda": _cuda}[target](sch, workload, chosen)
    # the full vectors of a loop become one without a condition, and the tail another
    config = {"s_tir.LoopPartition": {"partition_const_loop": True}} if target == "llvm" else {}
    return Scheduled(workload, target, chosen, sch.mod, config)


def _stages(sch: Any) -> dict[str, Any]:
    return {sch.get(b).name_hint: b for b in sch.get_child_blocks(sch.get_sblock("root"))}


def _cpu(sch: Any, workload: Workload, knobs: Mapping[str, Any]) -> None:
    layout, stages = workload.about["layout"], _stages(sch)
    pool, writer = stages["pool"], _writer(sch, stages)
    *kept, r, s = sch.get_loops(pool)
    lane = kept.pop()
    at = 1 if layout == "NHWC" else 2
    rows, row = sch.split(kept[at], [None, knobs["ROWS"]])
    if layout == "NCHW":  # n c p | q
        between, (tile, item, lane) = [], sch.split(lane, [None, knobs["ITEMS"], knobs["VECTOR"]])
    elif layout == "NHWC":  # n p q | c
        between, (tile, item, lane) = [kept[2]], sch.split(lane, [None, knobs["ITEMS"], knobs["VECTOR"]])
    else:  # n c/4 p q | 4
        between, (tile, item) = [], sch.split(kept[3], [None, knobs["ITEMS"]])
    sch.reorder(*kept[:at], rows, row, *between, tile, r, s, item, lane)
    task = sch.fuse(*kept[:at], rows)
    if "pad" in stages:
        if knobs["PAD"] == "staged":
            sch.compute_at(stages["pad"], task, preserve_unit_loops=True)
            if layout != "NCHW":
                last = sch.get_loops(stages["pad"])[-1]
                sch.vectorize(sch.split(last, [None, knobs["VECTOR"]])[-1] if layout == "NHWC" else last)
        else:
            sch.compute_inline(stages["pad"])
    sch.reverse_compute_at(writer, tile)
    sch.unroll(item)
    sch.vectorize(lane)
    if knobs["PARALLEL"]:
        sch.parallel(task)
    sch.annotate(tile, "pragma_loop_partition_hint", 1)
    sch.decompose_reduction(pool, r)


def _writer(sch: Any, stages: Mapping[str, Any]) -> Any:
    """The stage that writes y from the registers in which "pool" keeps its windows.

    Made before any split: afterwards TVM 0.27 rounds it up to whole tiles and drops its guard.
    """
    if "average" not in stages:
        return sch.cache_write(stages["pool"], 0, "local")
    sch.set_scope(stages["pool"], 0, "local")
    return stages["average"]


def _cuda(sch: Any, workload: Workload, knobs: Mapping[str, Any]) -> None:
    stages = _stages(sch)
    pool, writer = stages["pool"], _writer(sch, stages)
    *kept, r, s = sch.get_loops(pool)
    lane = None
    if knobs["VECTOR"] > 1:
        kept[-1], lane = sch.split(kept[-1], [None, knobs["VECTOR"]])
    outputs = sch.fuse(*kept)
    total = int(sch.get(outputs).extent)
    threads = min(knobs["BLOCK"], total)  # for a single output TVM 0.27 drops the guard of the other threads
    grid, item, thread = sch.split(outputs, [None, min(knobs["ITEMS"], -(-total // threads)), threads])
    sch.reorder(grid, item, thread, r, s, *([lane] if lane else []))
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if lane is None:
        if "pad" in stages:
            sch.compute_inline(stages["pad"])
    else:
        read = stages["pad"] if "pad" in stages else sch.cache_read(pool, 0, "local")
        sch.compute_at(read, s)
        if "pad" in stages:
            sch.set_scope(read, 0, "local")
        sch.vectorize(sch.get_loops(read)[-1])
    sch.reverse_compute_at(writer, thread)
    if lane is not None:
        sch.vectorize(sch.get_loops(writer)[-1])
