"""Sum, mean and maximum over any axes, and the global average pool, with schedules for LLVM and CUDA.

Neighbouring axes that are all kept, or all reduced, count as one, and axes of length 1 as none: whatever the array, it is
*rows* (the last axis is reduced: each output reads memory in sequence) or *columns* (the last axis is kept: neighbouring
outputs read neighbours). The stages are "reduce" and, for a mean, "mean", which divides.

====== ================================================== ===================================================
knob   LLVM                                               CUDA
====== ================================================== ===================================================
SPLIT  parts of the reduction, each a task of its own     parts, each a block of its own, and a second kernel
VECTOR lanes of one vector                                elements of one load (of columns always 1)
ITEMS  vectors kept at once, so additions do not wait     steps of the loop unrolled
BLOCK                                                     threads along memory
ROWS                                                      rows: outputs of a block, the most up to this that divide
                                                          them; columns: threads that share an output
====== ================================================== ===================================================

PARALLEL (LLVM) spreads tasks over cores. Sums are float32. Of a row ``VECTOR * ITEMS * SPLIT`` of them (of a column SPLIT) run
side by side, each over that fraction of the elements: rounding errors grow with the fraction, and a sum of 2^24 ones and more
does not stop there, as that of a single accumulator would.

The maximum is NumPy's: a NaN anywhere gives NaN, and of nothing but -inf it is -inf. TVM's own ``te.max`` does neither.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from texlab.program import Buffer
from texlab.schedules.conv import Layout
from texlab.schedules.tvm_import import load, threads
from texlab.schedules.work import Scheduled, Workload
from texlab.shapes import INT_MAX

OPS = ("sum", "mean", "max")


def reduce(
    x_shape: Sequence[int], op: str = "sum", axes: int | Sequence[int] | None = None, keepdims: bool = False
) -> Workload:
    """``op`` ("sum", "mean" or "max") of a float32 ``x`` over ``axes`` (all of them if None), as in NumPy.

    The workload's x and y are views of the user's with merged axes: ``pack`` and ``unpack`` copy nothing if x is contiguous.
    Raises ValueError for an unknown op, an axis x does not have or that is named twice, and for empty arrays.

    >>> work = reduce((2, 3, 4, 5), "mean", axes=(1, 2))
    >>> [(b.name, b.shape) for b in work.buffers]
    [('x', (2, 12, 5)), ('y', (2, 5))]
    >>> work.reference({"x": np.ones((2, 3, 4, 5), "float32")}).shape
    (2, 5)
    """
    shape = tuple(operator.index(v) for v in x_shape)
    if op not in OPS:
        raise ValueError(f"op={op!r}; one of {list(OPS)}")
    if not shape or min(shape) < 1 or prod(shape) > INT_MAX:
        raise ValueError(
            f"x_shape={shape}: needs at least one axis, each of at least 1, and up to 2^31 - 1 elements in all"
        )
    over = _axes(shape, axes)
    y_shape = tuple(1 if i in over else v for i, v in enumerate(shape) if keepdims or i not in over)
    return _workload(f"reduce_{op}", op, *_merged(shape, over), _View(shape, over, y_shape, None))


def global_average_pool(x_shape: Sequence[int], layout: str = "NCHW") -> Workload:
    """Each channel's mean: x (N,C,H,W) -> y (N,C), x stored in ``layout``.

    >>> [b.shape for b in global_average_pool((2, 6, 7, 7), "NHWC").buffers]
    [(2, 49, 6), (2, 6)]
    """
    shape = tuple(operator.index(v) for v in x_shape)
    if len(shape) != 4 or min(shape) < 1 or prod(shape) > INT_MAX:
        raise ValueError(f"x_shape={shape}: must be (N,C,H,W), each at least 1, with up to 2^31 - 1 elements in all")
    n, c, h, w = shape
    stored = Layout(layout).extents(n, c, (h, w))
    over = (1, 2) if layout == "NHWC" else (2, 3)
    return _workload("global_average_pool", "mean", *_merged(stored, over), _View(shape, (2, 3), (n, c), layout))


def _axes(shape: tuple[int, ...], axes: int | Sequence[int] | None) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(len(shape)))
    given = tuple(operator.index(a) for a in (axes if isinstance(axes, Sequence) else (axes,)))
    over = tuple(a + len(shape) if a < 0 else a for a in given)
    if not over or len(set(over)) < len(over) or not set(over) <= set(range(len(shape))):
        raise ValueError(
            f"axes={given} of an array {shape}: name at least one, none twice, from {-len(shape)} to {len(shape) - 1}"
        )
    return over


def _merged(shape: tuple[int, ...], over: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Extents with neighbours of one kind merged, and which of them are reduced (at least one is)."""
    long = [(i in over, extent) for i, extent in enumerate(shape) if extent > 1]
    runs = [(reduced, prod(extent for _, extent in run)) for reduced, run in groupby(long, key=lambda pair: pair[0])]
    if not any(reduced for reduced, _ in runs):
        runs.append((True, 1))
    return tuple(extent for _, extent in runs), tuple(reduced for reduced, _ in runs)


class _View:
    """How a user's array becomes merged extents, the answer comes back, and what it should be. Plain data, can be pickled."""

    def __init__(
        self, shape: tuple[int, ...], over: tuple[int, ...], y_shape: tuple[int, ...], layout: str | None
    ) -> None:
        self.shape, self.over, self.y_shape, self.layout = shape, over, y_shape, layout

    def pack(self, extents: tuple[int, ...], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = np.asarray(arrays["x"])
        if x.shape != self.shape:
            raise ValueError(f"x is {x.shape}; this workload is for {self.shape}")
        x = np.ascontiguousarray(x) if self.layout is None else Layout(self.layout).pack(x)
        return {"x": x.reshape(extents)}

    def unpack(self, y: np.ndarray) -> np.ndarray:
        if self.layout is None:
            return y.reshape(self.y_shape)
        n, c = self.y_shape
        return y.reshape(n, -1)[:, :c]

    def reference(self, op: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        x = np.asarray(arrays["x"], np.float64)
        return getattr(np, op)(x, axis=self.over).reshape(self.y_shape)


def _workload(name: str, op: str, extents: tuple[int, ...], reduced: tuple[bool, ...], rows: _View) -> Workload:
    y = tuple(e for e, r in zip(extents, reduced, strict=True) if not r) or (1,)
    return Workload(
        kind="reduce",
        name=name,
        buffers=(Buffer("x", extents), Buffer("y", y, role="output")),
        make=partial(_make, op, extents, reduced),
        pack=partial(rows.pack, extents),
        unpack=rows.unpack,
        reference=partial(rows.reference, op),
        flops=prod(rows.shape),
        about={"op": op, "extents": extents, "reduced": reduced, "axes": rows.over, "x_shape": rows.shape},
    )


def _make(op: str, extents: tuple[int, ...], reduced: tuple[bool, ...], per: int = 0, across: int = 1) -> Any:
    """The TIR function. ``per``: a stage "partial" reduces so many steps of the first reduced axis at a time (a multiple of
    ``across``). ``across``: stages "partial_sums", "reduce_sums" whose first axis takes every ``across``-th element of the
    last reduced axis, added up by the stages after them."""
    te = load().te
    from tvm import tirx

    x = te.placeholder(extents, "float32", name="x")
    y_shape = tuple(e for e, r in zip(extents, reduced, strict=True) if not r) or (1,)
    combine = maximum() if op == "max" else te.sum
    over = [e for e, r in zip(extents, reduced, strict=True) if r]
    neutral = tirx.const(float("-inf") if op == "max" else 0.0, "float32")
    divisor = float(prod(over)) if op == "mean" else None

    def stage(name: str, shape: tuple[int, ...], lengths: list[int], term: Any, last: float | None = None) -> Any:
        """``combine`` of ``term(index, steps)`` over steps below ``lengths``; divided by ``last``."""
        steps = [*lengths[:-1], -(-lengths[-1] // across)]

        def sums(*index: Any) -> Any:
            axes = [te.reduce_axis((0, length), name=f"r{i}") for i, length in enumerate(steps)]
            if across == 1:
                return combine(term(index, axes), axis=axes)
            at = axes[-1] * across + index[0]
            value = term(index[1:], [*axes[:-1], at])
            return combine(_guarded(at, lengths[-1], value, neutral, steps[-1] * across), axis=axes)

        if across == 1:
            total = te.compute(shape, sums, name=name)
            return total if last is None else te.compute(shape, lambda *index: total[index] / last, name="mean")
        split = te.compute((across, *shape), sums, name=f"{name}_sums")

        def whole(*index: Any) -> Any:
            value = split[(0, *index)]
            for i in range(1, across):
                if op == "max":  # named, for it stands three times in the next
                    so_far = tirx.Var(f"m{i}", "float32")
                    value = tirx.Let(so_far, value, _larger(so_far, split[(i, *index)]))
                else:
                    value = value + split[(i, *index)]
            return value if last is None else value / last

        return te.compute(shape, whole, name=name)

    def element(kept: tuple[Any, ...], steps: list[Any]) -> Any:
        kept_, steps_ = iter(kept), iter(steps)
        return x[tuple(next(steps_) if r else next(kept_) for r in reduced)]

    if per:
        parts = -(-over[0] // per)

        def term(index: tuple[Any, ...], steps: list[Any]) -> Any:
            first = index[0] * per + steps[0]
            return _guarded(first, over[0], element(index[1:], [first, *steps[1:]]), neutral, parts * per)

        made = stage("partial", (parts, *y_shape), [per, *over[1:]], term)
        y = stage("reduce", y_shape, [parts], lambda index, steps: made[(steps[0], *index)], divisor)
    else:
        y = stage("reduce", y_shape, over, element, divisor)
    return te.create_prim_func([x, y])


def _guarded(at: Any, length: int, value: Any, neutral: Any, reach: int) -> Any:
    """``value``, but ``neutral`` from ``length`` on; no condition if ``at`` does not reach that far."""
    from tvm import tirx

    return value if reach <= length else tirx.if_then_else(at < length, value, neutral)


@lru_cache(maxsize=1)
def maximum() -> Any:
    """NumPy's maximum as a TE reduction: ``maximum()(expression, axis=[...])``, and known to TVM's schedules from then on.

    Whoever compiles a scheduled maximum in another process calls this there first. Only float types.
    """
    tvm = load()
    import tvm_ffi
    from tvm import te, tirx

    def least(dtype: str) -> Any:
        return tirx.const(float("-inf"), dtype) if "float" in dtype else tirx.min_value(dtype)

    # To split a reduction TVM must find it in its registry. The registry is destroyed after Python's end, where releasing a
    # Python function crashes: so these two are never released.
    known = (
        tvm_ffi.convert(lambda a, b: [_larger(a[0], b[0])]),
        tvm_ffi.convert(lambda values: [least(str(values[0].ty.dtype))]),
    )
    for function in known:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    tvm.get_global_func("s_tir.schedule.RegisterReducer")(1, *known)
    return te.comm_reducer(_larger, least, name="maximum")


def _larger(a: Any, b: Any) -> Any:
    from tvm import tirx

    return tirx.Select(tirx.any(a > b, tirx.isnan(a)), a, b)  # not ``a != a``, which TVM simplifies to False


# schedules ---------------------------------------------------------------------------------------------------------


def _sizes(workload: Workload) -> tuple[bool, int, int, int]:
    """(rows?, outputs, elements of each, length of the last axis)."""
    extents, reduced = workload.about["extents"], workload.about["reduced"]
    outputs = prod(e for e, r in zip(extents, reduced, strict=True) if not r)
    return reduced[-1], outputs, prod(extents) // outputs, extents[-1]


def _first(value: int, *others: int) -> tuple[int, ...]:
    return (value, *(v for v in others if v != value))


def space(workload: Workload, target: str = "llvm") -> dict[str, tuple[Any, ...]]:
    """Knob -> values worth trying, the default first."""
    rows, outputs, elements, last = _sizes(workload)
    if target == "llvm":
        vector = next(v for v in ((8, 4, 1) if rows else (16, 8, 4, 1)) if v <= last or v == 1)
        items = next(v for v in (8, 4, 2, 1) if v * vector * (8 if rows else 1) <= last or v == 1)
        tasks = outputs if rows else outputs // min(last, vector * items)
        large = prod(workload.about["extents"]) >= 1 << 20  # below, waking the threads costs more than they save
        return {
            "SPLIT": _first(threads() if large and tasks < 4 * threads() else 1, 1, 2, 4, 8),
            "VECTOR": _first(vector, 1, 4, 8, 16),
            "ITEMS": _first(items, 1, 2, 4, 8),
            "PARALLEL": (large, not large),
        }
    along = elements if rows else last
    block = next(b for b in (32, 64, 128, 256) if along <= 4 * b or b == (256 if rows else 32))
    across = max(1, 256 // block) if rows else next(r for r in (8, 4, 2, 1) if r <= elements or r == 1)
    blocks = -(-outputs // across) if rows else -(-outputs // block)
    # two waves of an H200's 132 multiprocessors, but no part shorter than 8 elements for each of its threads
    split = max(1, min(256 // blocks, elements // (8 * (block if rows else across)))) if blocks < 128 else 1
    split = 1 << (split.bit_length() - 1)
    return {
        "SPLIT": _first(split, 1, 16, 64, 256),
        "BLOCK": _first(block, 32, 64, 128, 256, 512),
        "ROWS": _first(across, 1, 2, 4, 8),
        "VECTOR": ((4, 1, 2) if last % 4 == 0 else (2, 1) if last % 2 == 0 else (1,)) if rows else (1,),
        "ITEMS": _first(
            next(v for v in (4, 2, 1) if v * (block if rows else across) * 4 <= elements or v == 1), 1, 2, 4, 8
        ),
    }


def schedule(workload: Workload, target: str = "llvm", **knobs: Any) -> Scheduled:
    """The schedule for ``target`` with ``knobs`` (see the table above; ``space`` has the defaults)."""
    chosen = {name: values[0] for name, values in space(workload, target).items()} | knobs
    for name, value in chosen.items():
        if not isinstance(value, bool) and not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{workload.name}: {name}={value!r} must be a positive integer")
    module = {"llvm": _cpu, "cuda": _cuda}[target](workload, chosen)
    # the full vectors of a loop become one without a condition, and the tail another
    config = {"s_tir.LoopPartition": {"partition_const_loop": True}} if target == "llvm" else {}
    return Scheduled(workload, target, chosen, module, config)


def _cpu(workload: Workload, knobs: Mapping[str, Any]) -> Any:
    sch = load().s_tir.Schedule(workload.module())
    rows, _, _, last = _sizes(workload)
    vector, items = knobs["VECTOR"], knobs["ITEMS"]
    if rows:  # no lane and no part without an element: TVM 0.27 would not begin it with the neutral one
        vector = min(vector, last)
        items = min(items, last // vector)
    count = len(workload.output.shape)
    block = sch.get_sblock("reduce")
    loops = sch.get_loops(block)
    kept, over = loops[:count], loops[count:]
    fold = rows and min(items, vector) > 1
    if rows:
        over[-1:] = sch.split(over[-1], [None, items * vector])
    if knobs["SPLIT"] > 1:
        length = int(sch.get(over[0]).extent)
        part, _ = sch.split(over[0], [-(-length // -(-length // knobs["SPLIT"])), None])
        block = sch.rfactor(part, 0)
        loops = sch.get_loops(block)
        kept, over = [loops[count], *loops[:count]], loops[count + 1 :]
        sch.reorder(*kept)
    if rows:
        task = sch.fuse(*kept)
        lanes = sch.rfactor(over[-1], 0)
        sums = [block]
        if fold:  # add up whole vectors first, then the lanes of one
            _, lane = sch.split(sch.get_loops(block)[-1], [None, vector])
            sums.insert(0, sch.rfactor(lane, 0))
        task, *over, lane = sch.get_loops(lanes)
        tile = sch.split(lane, [items, vector])
        for made in sums:  # not compute_at(lanes, ...), which in TVM 0.27 forgets the condition that guards the tail
            sch.reverse_compute_at(made, task)
        for made in (lanes, *sums[:-1]):
            sch.set_scope(made, 0, "local")
        if fold:
            lane, item = sch.get_loops(sums[0])[-2:]
            sch.reorder(item, lane)
            sch.vectorize(lane)
        block = lanes
    else:
        written = sch.cache_write(block, 0, "local")  # before the split, or TVM 0.27 rounds it up to whole tiles
        outer, *tile = sch.split(kept[-1], [None, items, vector])
        sch.reorder(*kept[:-1], outer, *over, *tile)
        task = sch.fuse(*kept[:-1], outer)
        sch.reverse_compute_at(written, task, preserve_unit_loops=True)
        sch.vectorize(sch.split(sch.get_loops(written)[-1], [None, vector])[-1])
    sch.unroll(tile[0])
    sch.vectorize(tile[1])
    if knobs["PARALLEL"]:
        sch.parallel(task)
    sch.annotate(over[-1] if rows else task, "pragma_loop_partition_hint", 1)
    sch.decompose_reduction(block, over[0])
    if fold:
        sch.decompose_reduction(sums[0], item)
    return sch.mod


def _cuda(workload: Workload, knobs: Mapping[str, Any]) -> Any:
    tvm = load()
    about, (rows, outputs, *_) = workload.about, _sizes(workload)
    op, extents, reduced = about["op"], about["extents"], about["reduced"]
    block, across = knobs["BLOCK"], knobs["ROWS"]
    if block * across > 1024:
        raise ValueError(f"{workload.name}: BLOCK={block} x ROWS={across} threads; a block has up to 1024")
    if rows:  # only so many rows as divide them: TVM 0.27 drops the guard of a last block's outputs after an exchange
        across = next(d for d in range(across, 0, -1) if outputs % d == 0)
    # The parts are a stage of the definition, not an rfactor, whose guard of a last part that is shorter makes TVM 0.27 drop
    # the exchange between threads without a word.
    length = next(e for e, r in zip(extents, reduced, strict=True) if r)
    step = (block * knobs["VECTOR"] if rows else across) if sum(reduced) == 1 else 1
    per = -(-length // (knobs["SPLIT"] * step)) * step
    split = per < length
    function = _make(op, extents, reduced, per if split else 0, 1 if rows else across)
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    mean = sch.get_sblock("mean") if op == "mean" and (rows or across == 1) else None
    bind = partial(
        _bind_rows if rows else _bind_columns, sch, len(workload.output.shape), block, across, knobs["ITEMS"]
    )
    if split:
        bind("partial", 1, knobs["VECTOR"], None)
    bind("reduce", 0, 1 if split else knobs["VECTOR"], mean)
    if rows and block > 1:
        lowered = tvm.s_tir.transform.LowerCrossThreadReduction()(tvm.s_tir.transform.CanonicalizeLoop()(sch.mod))
        if lowered.script().count("tvm_thread_allreduce") != 1 + split:
            raise ValueError(f"{workload.name}: TVM drops the exchange between threads with {dict(knobs)}")
    return sch.mod


def _bind_rows(
    sch: Any, count: int, block: int, across: int, items: int, name: str, skip: int, vector: int, mean: Any
) -> None:
    """A kernel in which ``block`` threads share an output: each adds up some, then they exchange their sums in shuffles."""
    stage = sch.get_sblock(name)
    written = None if block > 1 or mean is not None else sch.cache_write(stage, 0, "local")
    loops = sch.get_loops(stage)
    kept, over = loops[skip : skip + count], loops[skip + count :]
    grid, row = sch.split(sch.fuse(*kept), [None, across])
    _, item, thread, lane = sch.split(over[-1], [None, items, block, vector])
    for part in loops[:skip]:
        sch.bind(part, "blockIdx.y")
    sch.bind(grid, "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    if block > 1:
        sch.bind(thread, "threadIdx.x")
    sch.unroll(item)
    sch.unroll(lane)
    if vector > 1:
        read = sch.cache_read(stage, 0, "local")
        sch.compute_at(read, thread)
        sch.vectorize(sch.get_loops(read)[-1])
    if mean is not None:
        sch.set_scope(stage, 0, "local")
        sch.reverse_compute_at(mean, row)
    elif written is not None:
        sch.reverse_compute_at(written, row)


def _bind_columns(
    sch: Any, count: int, block: int, across: int, items: int, name: str, skip: int, vector: int, mean: Any
) -> None:
    """A kernel in which neighbouring threads own neighbouring outputs, and ``across`` share one through shared memory."""
    last = sch.get_sblock(name) if mean is None else mean  # the stage that writes
    sums = sch.get_sblock(f"{name}_sums" if across > 1 else "reduce" if mean is not None else name)
    if across > 1:
        copy = sch.cache_write(sums, 0, "local")
        sch.set_scope(copy, 0, "shared")
    elif mean is None:  # before any split: afterwards TVM 0.27 rounds the copy up to whole blocks and drops its guard
        last = sch.cache_write(sums, 0, "local")
    else:
        sch.set_scope(sums, 0, "local")
    loops = sch.get_loops(last)
    grid, thread = sch.split(loops[-1], [None, min(block, int(sch.get(loops[-1]).extent))])
    grid = sch.fuse(*loops[skip:-1], grid)
    for part in loops[:skip]:
        sch.bind(part, "blockIdx.y")
    sch.bind(grid, "blockIdx.x")
    if across > 1:
        sch.compute_at(copy, grid, preserve_unit_loops=True)
        *outer, own = sch.get_loops(copy)
        sch.bind(outer[skip + 1], "threadIdx.y")
        sch.bind(own, "threadIdx.x")
        sch.compute_at(sums, own, preserve_unit_loops=True)
        # the threads with a threadIdx.y of 0 add up what the others left
        _, first = sch.split(sch.add_unit_loop(thread), [None, across])
        sch.bind(first, "threadIdx.y")
    else:
        sch.compute_at(sums, thread, preserve_unit_loops=True)
    sch.bind(thread, "threadIdx.x")
    _, item = sch.split(sch.get_loops(sums)[-1], [None, items])
    sch.unroll(item)
