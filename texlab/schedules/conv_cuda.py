"""The schedule of a convolution for a GPU: a block's tile of pixels x channels, staged in shared memory, a piece a thread.

A block computes BLOCK_K channels of BLOCK_P x BLOCK_Q pixels; a thread THREAD_K x THREAD_Q of them. What BLOCK_C input channels
and BLOCK_R rows of the filter contribute is staged at a time: the filters with their channels innermost, and of the image the
tile with its halo (direct), in window order (im2win) or one column a pixel (im2col).
"""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import numpy as np

from texlab.schedules.conv import Layout
from texlab.schedules.tvm_import import load
from texlab.schedules.work import Scheduled, Workload
from texlab.shapes import ConvShape
from texlab.trace import wavefronts

PIPELINES = ("async", "double_buffer", "none")
WINDOWS = ("staged", "global")
GRID_YZ = 65535  # blocks along y; along x there may be 2**31 - 1
WIDTHS = (4, 7, 8, 14, 16, 28, 32, 56, 64)  # of a block's tile of pixels
SHARED = 48 * 1024  # bytes that a block has without asking for more
ROOMY = 96 * 1024  # bytes of which two blocks find room in a multiprocessor of an H200


def space(workload: Workload, target: str) -> dict[str, tuple[Any, ...]]:
    """The knobs: tile sizes (BLOCK_*, THREAD_*), VTHREAD_* (a thread's pieces lie that many apart in the tile), STAGE_X and
    STAGE_W (through shared memory?), VECTOR (numbers a cooperative load moves), UNROLL (of the loops over the taps),
    PIPELINE ("none", "double_buffer": two tiles, "async": two tiles filled by cp.async) and, but for direct, WINDOW
    ("staged": built in shared memory; "global": built by a kernel of its own)."""
    shape: ConvShape = workload.about["shape"]
    nchw = workload.about["layout"] == "NCHW"  # rows that seldom begin at a multiple of 16 bytes
    own = max(1, shape.k // shape.groups)
    k = 64 if own > 32 else 32 if own > 16 else 16 if own > 8 else 8
    channels, rows = _channels(workload), _rows(workload)
    r = max((d for d in rows if d * shape.s <= 40), default=rows[0])
    c = max(d for d in channels if d * r * shape.s <= 40 or d == 1)
    p, q, mine = _pixels(workload, {"BLOCK_K": k, "BLOCK_C": c, "BLOCK_R": r, "THREAD_K": min(8, k)})
    out: dict[str, tuple[Any, ...]] = {
        "BLOCK_K": _first(k, (8, 16, 32, 64, 128)),
        "BLOCK_P": _first(p, (1, 2, 4, 8)),
        "BLOCK_Q": _first(q, WIDTHS),
        "BLOCK_C": _first(c, channels),
        "BLOCK_R": _first(r, rows),
        "THREAD_K": _first(min(8, k), (1, 2, 4, 8)),
        "THREAD_Q": _first(mine, tuple(t for t in range(1, 9) if q % t == 0)),
        "VTHREAD_K": (1, 2, 4),
        "VTHREAD_Q": _first(mine, tuple(t for t in range(1, mine + 1) if mine % t == 0)),
        "STAGE_X": (True, False),
        "STAGE_W": (True, False),
        "VECTOR": (1, 2, 4) if nchw else (4, 2, 1),
        "UNROLL": (True, False),
        "PIPELINE": ("double_buffer", "async", "none") if nchw else ("async", "double_buffer", "none"),
    }
    if workload.about["form"] != "direct":
        out["WINDOW"] = WINDOWS
    return out


def _channels(workload: Workload) -> tuple[int, ...]:
    """The block sizes up to 16 that divide a group's input channels, as the layout fills them up."""
    shape: ConvShape = workload.about["shape"]
    own = Layout(workload.about["layout"]).channels(shape.c // shape.groups, 1)
    return tuple(d for d in range(1, 17) if own % d == 0)


def _rows(workload: Workload) -> tuple[int, ...]:
    """How many of a filter's rows may be staged at a time: the divisors of R; all, where the window holds a column's taps side
    by side."""
    r = workload.about["shape"].r
    return (r,) if workload.about["form"] == "im2win" else tuple(d for d in range(1, r + 1) if r % d == 0)


def shared_bytes(workload: Workload, tile: dict[str, int]) -> int:
    """At most so many bytes of shared memory have two tiles of the image and of the filters."""
    shape: ConvShape = workload.about["shape"]
    form, r = workload.about["form"], tile["BLOCK_R"]
    width = (tile["BLOCK_Q"] - 1) * shape.stride[1] + shape.window_w
    rows, width = {
        "direct": ((tile["BLOCK_P"] - 1) * shape.stride[0] + (r - 1) * shape.dilation[0] + 1, width),
        "im2win": (tile["BLOCK_P"], width * shape.r),
        "im2col": (tile["BLOCK_P"] * r * shape.s, tile["BLOCK_Q"]),
    }[form]
    own = max(1, shape.k // shape.groups)
    groups = (
        1
        if own % tile["BLOCK_K"] == 0
        else min(shape.groups, ceil(tile["BLOCK_K"] / own) + (tile["BLOCK_K"] % own > 0))
    )
    return 2 * 4 * tile["BLOCK_C"] * (groups * rows * (width + 31) + (tile["BLOCK_K"] + 4) * r * shape.s)


def _first(value: Any, choices: tuple[Any, ...]) -> tuple[Any, ...]:
    return (value, *(c for c in choices if c != value))


def _pixels(workload: Workload, tile: dict[str, int]) -> tuple[int, int, int]:
    """BLOCK_P, BLOCK_Q, THREAD_Q for the rest of a block's tile: few pixels outside the output, whole warps, more
    multiplications than loads from shared memory, of which two blocks find room."""
    shape: ConvShape = workload.about["shape"]
    rows = tile["BLOCK_K"] // tile["THREAD_K"]

    def cost(tile: tuple[int, int, int]) -> tuple[float, int]:
        p, q, mine = tile
        outside = ceil(shape.p / p) * p * ceil(shape.q / q) * q / (shape.p * shape.q)
        threads = rows * p * q // mine
        idle = ceil(threads / 32) * 32 / threads
        halo = (p + shape.r - 1) * (q + shape.s - 1) / (p * q)
        loads = (4 + mine) / (2 * mine)  # from shared memory, a multiplication; 8 channels a thread
        narrow = 1 + mine / (3 * q)  # rows of few threads are stored in many sectors
        many = 1.5 if mine * 8 > 56 else 1.0  # sums of a thread: with more, one block a multiprocessor has registers
        return many * narrow * outside * idle * max(1.0, loads) * (1 + halo / 8) * (
            1 + abs(log2(threads / 192)) / 8
        ), -mine

    widths = {*WIDTHS, *(d for d in range(1, min(shape.q, 128) + 1) if shape.q % d == 0)}
    heights = {1, 2, 4, 8, *(d for d in range(1, min(shape.p, 16) + 1) if shape.p % d == 0)}
    tiles = [(p, q, t) for p in heights for q in widths for t in range(1, 9) if q % t == 0 and p * q <= 256]
    tiles = [(p, q, t) for p, q, t in tiles if rows * p * q // t <= 512 or p * q == 1]
    fit = [t for t in tiles if shared_bytes(workload, tile | {"BLOCK_P": t[0], "BLOCK_Q": t[1]}) <= ROOMY]
    return min(fit or [(1, 1, 1)], key=cost)


def schedule(workload: Workload, target: str, **knobs: Any) -> Scheduled:
    """The schedule with all knobs of :func:`space`. Raises ValueError for sizes that do not fit together."""
    _check(workload, knobs)
    tvm = load()
    layout, shape = workload.about["layout"], workload.about["shape"]
    sch = tvm.s_tir.Schedule(workload.module())
    names = {str(sch.get(b).name_hint) for b in sch.get_child_blocks(sch.get_sblock("root"))}
    block = sch.get_sblock("conv")
    shared = "shared" if shared_bytes(workload, knobs) <= SHARED else "shared.dyn"
    staged = _stage_source(sch, block, names, shared, knobs)
    n, k, p, q, sums = _axes(sch, block, layout)
    ko, kv, kt, ki = sch.split(
        k, [None, knobs["VTHREAD_K"], knobs["BLOCK_K"] // knobs["THREAD_K"], knobs["THREAD_K"] // knobs["VTHREAD_K"]]
    )
    qo, qv, qt, qi = sch.split(
        q, [None, knobs["VTHREAD_Q"], knobs["BLOCK_Q"] // knobs["THREAD_Q"], knobs["THREAD_Q"] // knobs["VTHREAD_Q"]]
    )
    po, pt = sch.split(p, [None, knobs["BLOCK_P"]])
    c, *taps = sums
    tap_r, tap_s = taps
    co, ci = sch.split(c, [None, knobs["BLOCK_C"]])
    ro, ri = sch.split(tap_r, [None, knobs["BLOCK_R"]])
    sch.reorder(n, po, qo, ko, kv, qv, kt, pt, qt, co, ro, ci, ri, tap_s, ki, qi)
    co = sch.fuse(co, ro)
    if ceil(shape.q / knobs["BLOCK_Q"]) <= GRID_YZ:  # of its own, as TVM then knows a tile's columns best
        sch.reorder(qo, n, po, ko)
        sch.bind(qo, "blockIdx.y")
        blocks = sch.fuse(n, po, ko)
    else:
        blocks = sch.fuse(n, po, qo, ko)
    rows = sch.fuse(kt)
    columns = sch.fuse(pt, qt)
    sch.bind(blocks, "blockIdx.x")
    sch.bind(kv, "vthread.y")
    sch.bind(qv, "vthread.x")
    sch.bind(rows, "threadIdx.y")
    sch.bind(columns, "threadIdx.x")
    size = (knobs["BLOCK_K"] // knobs["THREAD_K"], knobs["BLOCK_P"] * (knobs["BLOCK_Q"] // knobs["THREAD_Q"]))
    if "epilogue" in names:
        sch.set_scope(block, 0, "local")
        sch.reverse_compute_at(sch.get_sblock("epilogue"), columns)
    else:
        sch.reverse_compute_at(sch.cache_write(block, 0, "local"), columns)
    copies = []
    if staged is not None:
        sch.compute_at(staged, co)
        copies.append(staged)
        if (
            layout == "NCHW" and shape.q >= knobs["THREAD_Q"]
        ):  # beside a shorter row a vector would read what nobody wrote
            row, pad = _row_padding(workload, knobs)
            sch.storage_align(staged, 0, row, 32, pad)
    if knobs["STAGE_W"]:
        weights = sch.cache_read(block, 1, shared)
        sch.compute_at(weights, co)
        if layout == "NCHW":
            sch.transform_layout(weights, ("write", 0), lambda k, c, r, s: (c, r, s, k))
            if min(shape.k, knobs["BLOCK_K"]) % 4 == 0 and shape.k % knobs["THREAD_K"] == 0:
                sch.storage_align(weights, 0, 2, 8, 4)  # rows of k apart, for stores that go along c, r, s
        copies.append(weights)
    for copy in copies:
        _cooperate(sch, copy, size, _width(workload, copy is not staged, knobs))
    held = _registers(sch, block, tap_s, shape, knobs)
    if knobs["UNROLL"]:
        few = shape.r * shape.s <= 9  # more taps written out would only fill the instruction cache
        for loop in (*((ri, tap_s) if few else ()), ki, qi, *held):
            sch.unroll(loop)
    sch.decompose_reduction(block, co)
    config: dict[str, Any] = {"tirx.UnrollLoop": {"explicit_unroll": 0}}  # "#pragma unroll" instead of a long text
    if copies and knobs["PIPELINE"] != "none":
        sch.annotate(co, "software_pipeline_stage", [0] * len(copies) + [1])
        sch.annotate(co, "software_pipeline_order", list(range(len(copies) + 1)))
        if knobs["PIPELINE"] == "async":
            sch.annotate(co, "software_pipeline_async_stages", [0])
            config["tirx.use_async_copy"] = True
    return Scheduled(workload, target, knobs, sch.mod, config)


def _axes(sch: Any, block: Any, layout: str) -> tuple[Any, Any, Any, Any, list[Any]]:
    """(n, k, p, q, [c, then the taps]) of the convolution's loops, whatever their order."""
    loops = sch.get_loops(block)
    named = {str(sch.get(loop).loop_var.name): loop for loop in loops}
    if "ki" in named:
        n, ko, p, q, ki, *_ = loops
        sch.reorder(n, ko, ki, p, q)
        named["k"] = sch.fuse(ko, ki)
    order = [named[a] for a in "crs"]
    return named["n"], named["k"], named["p"], named["q"], order


def _stage_source(sch: Any, block: Any, names: set[str], shared: str, knobs: dict[str, Any]) -> Any:
    """What brings the image into ``shared`` memory: the padding, the window, or a copy; None if it is read where it lies."""
    if "window" in names:
        if "pad" in names:
            sch.compute_inline(sch.get_sblock("pad"))
        window = sch.get_sblock("window")
        if knobs["WINDOW"] == "global":
            loops = sch.get_loops(window)
            outer, inner = sch.split(sch.fuse(*loops), [None, 256])
            sch.bind(outer, "blockIdx.x")
            sch.bind(inner, "threadIdx.x")
        elif not knobs["STAGE_X"]:
            sch.compute_inline(window)
            return None
        else:
            sch.set_scope(window, 0, shared)
            return window
    elif "pad" in names:
        pad = sch.get_sblock("pad")
        if not knobs["STAGE_X"]:
            sch.compute_inline(pad)
            return None
        sch.set_scope(pad, 0, shared)
        return pad
    return sch.cache_read(block, 0, shared) if knobs["STAGE_X"] else None


def _registers(sch: Any, block: Any, tap: Any, shape: ConvShape, knobs: dict[str, Any]) -> list[Any]:
    """What a thread multiplies at one tap is read once into registers, filters four numbers at a time where they lie side by
    side. Not pixels that differ between a thread's channels, which are of several groups, and nothing of which a thread may
    need a part: the compiler would read the rest too, which nobody wrote. Returns the loops to unroll."""
    loops = []
    k, q = (knobs[f"THREAD_{axis}"] // knobs[f"VTHREAD_{axis}"] for axis in "KQ")  # numbers side by side
    one_group = shape.groups == 1 or shape.k // shape.groups % k == 0
    pixels, filters = knobs["STAGE_X"] and one_group and shape.q % q == 0, knobs["STAGE_W"] and shape.k % k == 0
    for index, wanted in enumerate((pixels, filters)):
        if not wanted:
            continue
        held = sch.cache_read(block, index, "local")
        sch.compute_at(held, tap)
        own = [loop for loop in sch.get_loops(held) if str(sch.get(loop).loop_var.name).startswith("ax")]
        loops += own[-2:]
    return loops


def _row_padding(workload: Workload, knobs: dict[str, Any]) -> tuple[int, int]:
    """(axis, stride modulo 32) of the staged image's rows at which a warp's loads meet in the fewest banks."""
    shape: ConvShape = workload.about["shape"]
    form, (sh, sw) = workload.about["form"], shape.stride
    down, across = {"direct": (sh, sw), "im2win": (1, sw * shape.r), "im2col": (1, 1)}[form]
    columns = knobs["BLOCK_Q"] // knobs["THREAD_Q"]
    threads = np.arange(ceil(knobs["BLOCK_K"] // knobs["THREAD_K"] * knobs["BLOCK_P"] * columns / 32) * 32)
    p, q = threads // columns % knobs["BLOCK_P"], threads % columns * (knobs["THREAD_Q"] // knobs["VTHREAD_Q"])
    mask = np.full(len(threads) // 32, 2**32 - 1, np.uint32)

    def passes(stride: int) -> int:
        address = 4 * (p * down * (stride + 32) + q * across).astype(np.uint64)
        return int(wavefronts(address.reshape(-1, 32), mask, 4).sum())

    return {"direct": 2, "im2win": 2, "im2col": 4}[form], min(range(32), key=passes)


def _width(workload: Workload, filters: bool, knobs: dict[str, Any]) -> int:
    """Numbers a copy may move at once. TVM proves the alignment of plain loads itself, but not of cp.async, where rows must
    be multiples of the width."""
    layout, vector = workload.about["layout"], knobs["VECTOR"]
    if knobs["PIPELINE"] != "async":
        return vector
    if layout == "NCHW":
        return 1
    row = (workload.inputs[1] if filters else workload.inputs[0]).shape[-1]
    while vector > 1 and row % vector:
        vector //= 2
    return vector


def _cooperate(sch: Any, copy: Any, size: tuple[int, int], vector: int) -> None:
    """All threads of the block share out a copy into shared memory, ``vector`` numbers each in turn."""
    own = [loop for loop in sch.get_loops(copy) if str(sch.get(loop).loop_var.name).startswith("ax")]
    own = own or [sch.add_unit_loop(copy)]  # a single number
    row = getattr(sch.get(own[-1]).extent, "value", 1)  # no constant where the tile is cut off
    while vector > 1 and int(row) % vector:  # a vector must not run from one row into the next
        vector //= 2
    fused = sch.fuse(*own)
    _, y, x, v = sch.split(fused, [None, *size, vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    if vector > 1:
        sch.vectorize(v)


def _check(workload: Workload, knobs: dict[str, Any]) -> None:
    for axis in "KQ":
        block, thread, virtual = knobs[f"BLOCK_{axis}"], knobs[f"THREAD_{axis}"], knobs[f"VTHREAD_{axis}"]
        for name in (f"BLOCK_{axis}", f"THREAD_{axis}", f"VTHREAD_{axis}", "BLOCK_P", "BLOCK_C", "VECTOR"):
            if knobs[name] < 1:
                raise ValueError(f"{workload.name}: {name}={knobs[name]}; at least 1")
        if block % thread or thread % virtual:
            raise ValueError(
                f"{workload.name}: THREAD_{axis}={thread} must divide BLOCK_{axis}={block}, and VTHREAD_{axis}={virtual} "
                f"must divide THREAD_{axis}"
            )
    if knobs["BLOCK_C"] not in _channels(workload):
        raise ValueError(
            f"{workload.name}: BLOCK_C={knobs['BLOCK_C']} must divide a group's input channels: one of {_channels(workload)}"
        )
    if knobs["BLOCK_R"] not in _rows(workload):
        raise ValueError(
            f"{workload.name}: BLOCK_R={knobs['BLOCK_R']}; for this filter and form one of {_rows(workload)}"
        )
    if knobs.get("WINDOW", WINDOWS[0]) not in WINDOWS:
        raise ValueError(f"{workload.name}: WINDOW={knobs['WINDOW']!r}; one of {list(WINDOWS)}")
    if knobs["PIPELINE"] not in PIPELINES:
        raise ValueError(f"{workload.name}: PIPELINE={knobs['PIPELINE']!r}; one of {list(PIPELINES)}")
    threads = knobs["BLOCK_K"] // knobs["THREAD_K"] * knobs["BLOCK_P"] * knobs["BLOCK_Q"] // knobs["THREAD_Q"]
    if threads == 1 and knobs["PIPELINE"] == "async":
        raise ValueError(
            f"{workload.name}: PIPELINE='async' needs more than one thread a block; TVM has no cp.async for one"
        )
    if threads > 1024:
        raise ValueError(f"{workload.name}: {threads} threads a block; a GPU takes 1024: larger THREAD_K or THREAD_Q")
