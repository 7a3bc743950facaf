"""The schedule of a convolution for a processor: a register tile of pixels x channels, rows shared out among the cores."""

from __future__ import annotations

from typing import Any

from texlab.schedules.tvm_import import load
from texlab.schedules.work import Scheduled, Workload


def space(workload: Workload, target: str) -> dict[str, tuple[Any, ...]]:
    about = workload.about
    out = {
        "TILE_Q": (8, 1, 2, 4, 6, 12, 14, 16),
        "TILE_K": (32, 8, 16, 64) if about["layout"] == "NHWC" else (4, 1, 2, 8),
        "UNROLL": (True, False),
        "VECTORIZE": (True, False),
        "PARALLEL": (True, False),
    }
    if about["form"] != "direct":
        out["WINDOW"] = ("row", "global")
    return out


def schedule(workload: Workload, target: str, **knobs: Any) -> Scheduled:
    tvm = load()
    sch = tvm.s_tir.Schedule(workload.module())
    layout = workload.about["layout"]
    names = {str(sch.get(b).name_hint) for b in sch.get_child_blocks(sch.get_sblock("root"))}
    if "pad" in names:
        sch.compute_inline(sch.get_sblock("pad"))
    block = sch.get_sblock("conv")
    loops = sch.get_loops(block)
    if layout == "NHWC":
        n, p, q, k, *sums = loops
        inner = k
    elif layout == "NCHW":
        n, k, p, q, *sums = loops
        inner = q
    else:
        n, ko, p, q, ki, *sums = loops
    if layout == "NCHW":
        qo, qi = sch.split(q, [None, knobs["TILE_Q"]])
        ko, ki = sch.split(k, [None, knobs["TILE_K"]])
        sch.reorder(n, p, ko, qo, *sums, ki, qi)
        outer, vector, rows = [n, p], qi, ki
        at = qo
    elif layout == "NHWC":
        qo, qi = sch.split(q, [None, knobs["TILE_Q"]])
        ko, ki = sch.split(k, [None, knobs["TILE_K"]])
        sch.reorder(n, p, qo, ko, *sums, qi, ki)
        outer, vector, rows, at = [n, p], ki, qi, ko
    else:
        qo, qi = sch.split(q, [None, knobs["TILE_Q"]])
        sch.reorder(n, p, ko, qo, *sums, qi, ki)
        outer, vector, rows, at = [n, p], ki, qi, qo
    fused = sch.fuse(*outer)
    if knobs["PARALLEL"]:
        sch.parallel(fused)
    if "window" in names:
        window = sch.get_sblock("window")
        if knobs["WINDOW"] == "row":
            sch.compute_at(window, fused)
        elif knobs["PARALLEL"]:
            sch.parallel(sch.fuse(*sch.get_loops(window)[:2]))
    if "epilogue" in names:
        sch.reverse_compute_at(sch.get_sblock("epilogue"), at)
        sch.set_scope(block, 0, "global")
    else:
        written = sch.cache_write(block, 0, "global")
        sch.reverse_compute_at(written, at)
    if knobs["VECTORIZE"]:
        sch.vectorize(vector)
    if knobs["UNROLL"]:
        sch.unroll(rows)
    sch.decompose_reduction(block, sums[0])
    return Scheduled(workload, target, knobs, sch.mod)
