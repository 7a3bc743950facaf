"""The schedule of a convolution for a processor: which loops its cores share, and what its vector registers hold.

A register tile of TILE_Q output pixels x TILE_K output channels is summed over the whole window before it is stored. Either
the channels lie in the vector's lanes, a pixel's input is broadcast and the weights are read as vectors (layout NCHW first
copies them so that TILE_K of them are neighbours); or, with NCHW's VECTOR="pixels", the lanes are pixels of a row, and
weights are broadcast as they lie. Cores share the rows of the output, or (SHARE="channels") its channels.
"""

from __future__ import annotations

from math import prod
from typing import Any

from texlab.schedules.tvm_import import load, threads
from texlab.schedules.work import Scheduled, Workload

LANES = 16  # float32 lanes of the widest vector registers, AVX-512's
REGISTERS = 15  # of them for sums: they hide an addition's latency, and fit into the 1024 bytes TVM keeps on the stack
FILTERS = 256 * 1024  # bytes of filters, a quarter of a usual second-level cache


def space(workload: Workload, target: str) -> dict[str, tuple[Any, ...]]:
    """Knobs, the default first; defaults depend on the shape.

    ``TILE_Q, TILE_K``: pixels and channels of a register tile; TILE_K divides K/groups. ``VECTOR`` (NCHW): what is in the
    lanes. ``SHARE``: what the cores share out. ``WINDOW`` (im2win, im2col, and direct with padding): a core makes the rows
    of the window that it needs when it needs them ("row"), or all is made before the convolution starts ("global").
    ``WEIGHTS`` (NCHW, channels in the lanes): copied once for all ("global"), or by each core as it needs them ("local",
    which goes with SHARE="channels"). ``UNROLL, VECTORIZE, PARALLEL``: whether these loops are.
    """
    about = workload.about
    shape, layout = about["shape"], about["layout"]
    block = _block(layout)
    own = workload.output.shape[1] * block // shape.groups if block > 1 else shape.k // shape.groups
    divisors = [d for d in (32, 16, 64, 8, 4, 2, 1) if own % d == 0 and d % block == 0]
    tile_k = divisors or [block]
    vector = ("channels",)
    if layout == "NCHW":
        vector = ("channels", "pixels") if max(tile_k) >= 8 else ("pixels", "channels")
    if vector[0] == "pixels":
        tile_k = sorted(tile_k, key=lambda d: (d > 8, -d))
        lanes = [q for q in (32, 16, 64, 8, 4) if q <= shape.q] or [shape.q]
        tile_q = lanes
    else:
        best = best_tile_q(shape.q, tile_k[0])
        tile_q = [best, *(q for q in (6, 1, 2, 4, 7, 12, 14) if q != best and q <= shape.q)]
    out: dict[str, tuple[Any, ...]] = {"TILE_Q": tuple(tile_q), "TILE_K": tuple(tile_k)}
    share, weights = ("rows", "channels"), ("global", "local")
    if layout == "NCHW":
        # filters that would push the image out of a core's cache are better kept apart, each core its own
        large = vector[0] == "channels" and prod(shape.w_shape) * 4 > FILTERS and own // tile_k[0] >= 2 * threads()
        if large and shape.groups == 1:
            share, weights = share[::-1], weights[::-1]
        out["VECTOR"] = vector
        out["WEIGHTS"] = weights
    out["SHARE"] = share
    if about["form"] != "direct" or any(shape.padding):
        out["WINDOW"] = ("row", "global")
    return out | {"UNROLL": (True, False), "VECTORIZE": (True, False), "PARALLEL": (True, False)}


def best_tile_q(q: int, tile_k: int) -> int:
    """Pixels of a register tile that fill the registers and leave the last tile of a row of ``q`` least empty.

    >>> best_tile_q(54, 32), best_tile_q(5, 32), best_tile_q(110, 16)
    (6, 5, 14)
    """
    vectors = -(-tile_k // LANES)
    most = min(q, max(1, REGISTERS // vectors))
    # a tile's time: its multiplications, and loads of weights that more pixels would share
    cost = {t: -(-q // t) * (t * vectors + vectors) for t in range(1, most + 1)}
    return min(cost, key=lambda t: (cost[t], -t))


def schedule(workload: Workload, target: str, **knobs: Any) -> Scheduled:
    """See ``space``. Raises ValueError for a tile that does not fit the shape."""
    tvm = load()
    about = workload.about
    layout, form = about["layout"], about["form"]
    _check(workload, knobs)
    lanes = knobs.get("VECTOR", "channels")
    tile_q, tile_k, by_rows = knobs["TILE_Q"], knobs["TILE_K"], knobs["SHARE"] == "rows"
    copied = (
        layout == "NCHW" and lanes == "channels"
    )  # w, so that TILE_K channels are neighbours; and y's tile likewise

    sch = tvm.s_tir.Schedule(workload.module())
    names = {str(sch.get(block).name_hint) for block in sch.get_child_blocks(sch.get_sblock("root"))}
    conv = sch.get_sblock("conv")
    if "pad" in names and "window" in names:
        sch.compute_inline(sch.get_sblock("pad"))
    source = sch.get_sblock("window") if "window" in names else sch.get_sblock("pad") if "pad" in names else None
    weights = None
    if copied:
        taps = (lambda r, s: (s, r)) if form == "im2win" else (lambda r, s: (r, s))
        weights = sch.cache_read(conv, 1, "global")
        sch.transform_layout(conv, ("read", 1), lambda k, c, r, s: (k // tile_k, c, *taps(r, s), k % tile_k))

    n, ko, p, qo, sums, qi, ki = _tiles(sch, sch.get_loops(conv), layout, tile_q, tile_k)
    inner = (qi, *ki) if lanes == "channels" else (*ki, qi)
    if by_rows:
        sch.reorder(n, p, ko, qo, *sums, *inner)
        shared = row = sch.fuse(n, p)
    else:
        sch.reorder(ko, n, p, qo, *sums, *inner)
        shared, row = (ko, p) if knobs.get("WEIGHTS") == "local" else (sch.fuse(ko, n), p)

    if "epilogue" in names:
        written = sch.get_sblock("epilogue")
        sch.set_scope(conv, 0, "local")
    else:
        written = sch.cache_write(conv, 0, "local")
    if copied:
        sch.transform_layout(conv, ("write", 0), lambda n, k, p, q: (n, k // tile_k, p, q, k % tile_k))
    sch.reverse_compute_at(written, qo)

    if source is not None and knobs["WINDOW"] == "row":
        sch.compute_at(source, row)
    elif source is not None and knobs["PARALLEL"]:
        sch.parallel(sch.fuse(*sch.get_loops(source)[:3]))
    if weights is not None and knobs["WEIGHTS"] == "local":
        sch.compute_at(weights, shared)
        *_, lane, c, _r, _s = sch.get_loops(weights)
        if tile_k > 1:
            sch.reorder(c, lane)  # a few cache lines at a time are filled, lane by lane
    elif weights is not None:
        k, c, *_ = sch.get_loops(weights)
        k, lane = sch.split(k, [None, tile_k])
        sch.reorder(k, c, lane)
        if knobs["PARALLEL"]:
            sch.parallel(sch.fuse(k, c))

    vector, broadcast = (ki[-1], [qi, *ki[:-1]]) if lanes == "channels" else (qi, ki)
    if knobs["UNROLL"]:
        for loop in broadcast:
            sch.unroll(loop)
    if knobs["VECTORIZE"]:
        sch.vectorize(vector)
        tile = sch.get_loops(written)[1 + _depth(sch, conv, qo) :]  # none where the tile is a single number
        if tile and not copied:
            sch.vectorize(tile[-1])
    if knobs["PARALLEL"]:
        sch.parallel(shared)
    sch.decompose_reduction(conv, sums[0])
    return Scheduled(workload, target, knobs, sch.mod)


def _block(layout: str) -> int:
    """Channels that the layout stores side by side."""
    return int(layout[4:-1]) if layout.endswith("c") else 1


def _tiles(sch: Any, loops: Any, layout: str, tile_q: int, tile_k: int) -> tuple[Any, ...]:
    """(n, ko, p, qo, the sum's loops, qi, [ki]) of the convolution's loops; a layout's own block of channels is part of ki."""
    block = _block(layout)
    if layout == "NHWC":
        n, p, q, k, *sums = loops
    elif layout == "NCHW":
        n, k, p, q, *sums = loops
    else:
        n, k, p, q, own, *sums = loops
    qo, qi = sch.split(q, [None, tile_q])
    ko, ki = sch.split(k, [None, tile_k // block])
    return n, ko, p, qo, sums, qi, [ki] if block == 1 else [ki, own]


def _depth(sch: Any, block: Any, loop: Any) -> int:
    """How many loops are around ``loop``, itself one of ``block``'s."""
    variables = [sch.get(each).loop_var for each in sch.get_loops(block)]
    return next(i for i, variable in enumerate(variables) if variable.same_as(sch.get(loop).loop_var))


def _check(workload: Workload, knobs: dict[str, Any]) -> None:
    shape, layout = workload.about["shape"], workload.about["layout"]
    block = _block(layout)
    own = -(-(shape.k // shape.groups) // block) * block  # each group's channels are filled up to whole blocks
    if not 1 <= knobs["TILE_Q"] <= shape.q:
        raise ValueError(f"TILE_Q={knobs['TILE_Q']}: a row of y has Q={shape.q} pixels; take 1 to {shape.q}")
    if knobs["TILE_K"] < 1 or own % knobs["TILE_K"] or knobs["TILE_K"] % block:
        fit = [d for d in range(block, own + 1, block) if own % d == 0]
        raise ValueError(
            f"TILE_K={knobs['TILE_K']}: must divide the {own} channels of {layout} that a group computes; one of {fit}"
        )
    if knobs.get("WEIGHTS") == "local" and knobs["SHARE"] != "channels":
        raise ValueError("WEIGHTS='local' needs SHARE='channels': cores that share rows all need all the weights")
    choices = {"VECTOR": ("channels", "pixels"), "WEIGHTS": ("global", "local"), "WINDOW": ("row", "global")}
    choices["SHARE"] = ("rows", "channels")
    for name, values in choices.items():
        if name in knobs and knobs[name] not in values:
            raise ValueError(f"{name}={knobs[name]!r}; one of {list(values)}")
