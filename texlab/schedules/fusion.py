"""What follows a convolution, batch norm, residual, activation, in three ways that give the same answer, to be compared:

* **fused**: one kernel, which finishes each sum before it stores it (``conv(..., epilogue=...)``);
* **folded**: the batch norm's scale multiplied into the filters beforehand, its shift and the rest fused;
* **unfused**: the convolution, then one kernel a step, each reading and writing all of y.

A batch norm in inference is ``gamma * (y - mean) / sqrt(var + eps) + beta``: a scale and a shift of each channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from texlab.program import Buffer
from texlab.schedules.conv import Epilogue, Layout, conv
from texlab.schedules.tvm_import import load
from texlab.schedules.work import Scheduled, Workload
from texlab.shapes import INT_MAX, ConvShape


def batchnorm_scale_shift(
    gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray]:
    """A batch norm (each argument (K,)) as ``y * scale + shift``: scale and shift (K,), float64.

    Raises ValueError unless all are (K,) and finite, no ``var`` or ``eps`` is negative, and ``var + eps`` is positive.

    >>> scale, shift = batchnorm_scale_shift([2.0], [1.0], [3.0], [4.0], eps=0.0)
    >>> float(scale[0]), float(shift[0])
    (1.0, -2.0)
    """
    given = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    arrays = {name: np.asarray(value, np.float64) for name, value in given.items()}
    shapes = {name: value.shape for name, value in arrays.items()}
    if len(set(shapes.values())) > 1 or arrays["gamma"].ndim != 1:
        raise ValueError(f"batch norm: {shapes}; all four must be (K,), one value a channel")
    for name, value in arrays.items():
        if not np.isfinite(value).all():
            raise ValueError(f"batch norm: {name} is not finite in channel {int(np.argmin(np.isfinite(value)))}")
    if not (np.isfinite(eps) and eps >= 0):
        raise ValueError(f"batch norm: eps={eps}; it must be finite and not negative")
    below = np.flatnonzero((arrays["var"] < 0) | (arrays["var"] + eps <= 0))
    if below.size:
        channel = int(below[0])
        raise ValueError(
            f"batch norm: var={arrays['var'][channel]:g} with eps={eps:g} in channel {channel}; a variance is not negative, "
            "and var + eps must be positive"
        )
    scale = arrays["gamma"] / np.sqrt(arrays["var"] + eps)
    return scale, arrays["beta"] - arrays["mean"] * scale


def fold_batchnorm(
    w: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    eps: float = 1e-5,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """A convolution's ``w (K,C/groups,R,S)`` and ``bias (K,)`` with the batch norm after it folded in: (w', shift (K,)).

    ``conv(x, w') + shift`` is then the batch norm of ``conv(x, w) + bias``. Computed in float64 and rounded once to the type
    of ``w``. Raises ValueError as batchnorm_scale_shift does, for other shapes, and if w' no longer fits the type.

    >>> w, shift = fold_batchnorm(np.ones((2, 3, 1, 1), "float32"), [2, 0], [1, 5], [3, 0], [4, 1], eps=0.0)
    >>> w[:, 0, 0, 0].tolist(), shift.tolist(), w.dtype.name
    ([1.0, 0.0], [-2.0, 5.0], 'float32')
    """
    w = np.asarray(w)
    scale, shift = batchnorm_scale_shift(gamma, beta, mean, var, eps)
    if w.ndim != 4 or w.shape[0] != scale.size or not np.issubdtype(w.dtype, np.floating):
        raise ValueError(
            f"w {w.dtype} {w.shape}: must be floating (K,C/groups,R,S) with the K={scale.size} of the batch norm"
        )
    if bias is not None:
        bias = np.asarray(bias, np.float64)
        if bias.shape != scale.shape:
            raise ValueError(f"bias {bias.shape}: must be (K,), {scale.shape}")
        shift = shift + bias * scale
    return _scaled(w, scale), shift.astype(w.dtype)


def _scaled(w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``w (K,...)`` times ``scale (K,)`` in float64, rounded once to the type of w."""
    with np.errstate(over="ignore"):
        out = (w.astype(np.float64) * np.asarray(scale, np.float64)[:, None, None, None]).astype(w.dtype)
    if not np.isfinite(out).all() and np.isfinite(w).all():
        channel = int(np.argmin(np.isfinite(out).all((1, 2, 3))))
        raise ValueError(
            f"folding: channel {channel} times its scale {scale[channel]:g} exceeds {w.dtype}; fuse the scale"
        )
    return out


def elementwise(
    shape: tuple[int, int, int, int], epilogue: Epilogue, layout: str = "NCHW", groups: int = 1
) -> Workload:
    """An epilogue as a kernel of its own: inputs ``sums (N,K,P,Q)``, then what ``epilogue`` adds; output y; float32.

    ``groups``: of the convolution before, which NCHW4c fills up group by group. Raises ValueError for an empty epilogue or y.

    >>> work = elementwise((1, 6, 5, 5), Epilogue(shift=True, activation="relu"), "NCHW4c")
    >>> [(b.name, b.shape) for b in work.buffers]
    [('sums', (1, 2, 5, 5, 4)), ('shift', (8,)), ('y', (1, 2, 5, 5, 4))]
    """
    if len(shape) != 4 or min(shape) < 1 or prod(shape) > INT_MAX:
        raise ValueError(
            f"shape={tuple(shape)}: must be (N,K,P,Q), each at least 1, with up to 2^31 - 1 elements in all"
        )
    if not epilogue:
        raise ValueError(f"{epilogue}: nothing to do")
    n, k, p, q = shape
    if k % groups:
        raise ValueError(f"groups={groups} must divide K={k}")
    lay = Layout(layout)
    y = lay.extents(n, k, (p, q), groups)
    extra = {"scale": (lay.channels(k, groups),), "shift": (lay.channels(k, groups),), "residual": y}
    return Workload(
        kind="elementwise",
        name="_".join(("after", *epilogue.names, *([epilogue.activation] if epilogue.activation else []))),
        buffers=(
            Buffer("sums", y),
            *(Buffer(name, extra[name]) for name in epilogue.names),
            Buffer("y", y, role="output"),
        ),
        make=partial(_make, y, lay.channels(k, groups), epilogue, layout),
        pack=partial(_pack, shape, epilogue, layout, groups),
        unpack=partial(lay.unpack, k=k, groups=groups),
        reference=partial(_reference, epilogue),
        flops=prod(shape) * len(_steps(epilogue, apart=True)),
        about={"shape": tuple(shape), "layout": layout, "epilogue": epilogue, "groups": groups},
    )


def _pack(
    shape: tuple[int, ...], epilogue: Epilogue, layout: str, groups: int, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What ``arrays`` has of the inputs; "sums" may be missing, as it comes packed from the kernel before."""
    lay, out = Layout(layout), {}
    k = shape[1]
    for name in ("sums", *epilogue.names):
        if name == "sums" and name not in arrays:
            continue
        array, wanted = np.asarray(arrays[name]), (k,) if name in ("scale", "shift") else tuple(shape)
        if array.shape != wanted:
            raise ValueError(f"{name} is {array.shape}; this workload is for {wanted}")
        if name in ("scale", "shift"):  # filled up as a (1,K,1,1) image would be
            stored = lay.pack(array.reshape(1, k, 1, 1), groups)
            out[name] = np.ascontiguousarray(stored.reshape(-1))
        else:
            out[name] = lay.pack(array, groups)
    return out


def _reference(epilogue: Epilogue, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return epilogue.apply(np.asarray(arrays["sums"], np.float64), arrays)


def _make(y_shape: tuple[int, ...], k: int, epilogue: Epilogue, layout: str) -> Any:
    te = load().te
    from tvm import tirx

    sums = te.placeholder(y_shape, "float32", name="sums")
    given = {n: te.placeholder(y_shape if n == "residual" else (k,), "float32", name=n) for n in epilogue.names}

    def finish(*index: Any) -> Any:
        channel = {"NCHW": index[1], "NHWC": index[-1]}.get(layout, index[1] * Layout(layout).block + index[-1])
        value = sums[index]
        value = value * given["scale"][channel] if epilogue.scale else value
        value = value + given["shift"][channel] if epilogue.shift else value
        value = value + given["residual"][index] if epilogue.residual else value
        if epilogue.activation:
            value = tirx.max(value, tirx.const(0, "float32"))
        return tirx.min(value, tirx.const(6, "float32")) if epilogue.activation == "relu6" else value

    return te.create_prim_func([sums, *given.values(), te.compute(y_shape, finish, name="epilogue")])


def _steps(epilogue: Epilogue, apart: bool = False) -> list[Epilogue]:
    """An epilogue one step at a time: batch norm (``apart``: its scale, its shift), residual, activation."""
    parts = [
        *([Epilogue(scale=epilogue.scale), Epilogue(shift=epilogue.shift)] if apart else []),
        *([] if apart else [Epilogue(scale=epilogue.scale, shift=epilogue.shift)]),
        Epilogue(residual=epilogue.residual),
        Epilogue(activation=epilogue.activation),
    ]
    return [part for part in parts if part]


# the three ways ----------------------------------------------------------------------------------------------------


def variants(
    shape: ConvShape,
    form: str = "direct",
    layout: str = "NCHW",
    epilogue: Epilogue = Epilogue(),  # noqa: B008 (frozen)
) -> dict[str, list[Workload]]:
    """The convolution of ``shape`` and its epilogue as lists of Workloads to run one after the other (``run_chain``).

    "fused" and "unfused" always, "folded" if the epilogue has a scale. The user's arrays are the same for all: x, w, and
    what the epilogue adds; so is the answer: ``variants(...)["fused"][0].reference(arrays)``.

    >>> shape = ConvShape(n=1, c=3, h=8, w=8, k=4, r=3, s=3)
    >>> ways = variants(shape, epilogue=Epilogue(scale=True, shift=True, residual=True, activation="relu"))
    >>> {way: [work.name for work in works] for way, works in ways.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'fused': ['conv2d_direct'], 'folded': ['conv2d_direct'],
     'unfused': ['conv2d_direct', 'after_scale_shift', 'after_residual', 'after_relu']}
    >>> {way: sum(map(bytes_moved, works)) for way, works in ways.items()}
    {'fused': 2384, 'folded': 2368, 'unfused': 5840}
    """
    fused = conv(shape, form=form, layout=layout, epilogue=epilogue)
    ways = {"fused": [fused]}
    if epilogue.scale:
        plain = conv(shape, form=form, layout=layout, epilogue=replace(epilogue, scale=False))
        ways["folded"] = [replace(plain, pack=partial(_fold_and_pack, plain.pack), reference=fused.reference)]
    steps = [elementwise(shape.y_shape, step, layout, shape.groups) for step in _steps(epilogue)]
    ways["unfused"] = [conv(shape, form=form, layout=layout), *steps]
    return ways


def _fold_and_pack(
    pack: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]], arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return pack({**arrays, "w": _scaled(np.asarray(arrays["w"]), np.asarray(arrays["scale"]))})


def bytes_moved(workload: Workload) -> int:
    """The floor of its traffic: every input read once and the output written once, in bytes."""
    return sum(buffer.nbytes for buffer in workload.buffers)


def run_chain(
    works: Sequence[Workload],
    arrays: Mapping[str, np.ndarray],
    run: Callable[[Workload, dict[str, np.ndarray]], np.ndarray],
) -> np.ndarray:
    """y (N,K,P,Q) of ``works`` run one after the other: ``run(work, packed inputs)`` gives its packed output, which is the
    next one's "sums" as it is."""
    y = run(works[0], works[0].pack(arrays))
    for work in works[1:]:
        y = run(work, {"sums": y, **work.pack(arrays)})
    return works[-1].unpack(y)


# schedules ---------------------------------------------------------------------------------------------------------


def space(workload: Workload, target: str = "llvm") -> dict[str, tuple[Any, ...]]:
    """Knob -> values worth trying, the default first. VECTOR: elements of one load and store, and of one lane or thread."""
    shape = workload.output.shape
    if target == "llvm":
        large = prod(shape) >= 1 << 19  # below, waking the threads costs more than they save
        return {"VECTOR": (16, 1, 4, 8), "PARALLEL": (large, not large)}
    whole = [
        v for v in (4, 2, 1) if shape[-1] % v == 0 or (workload.about["layout"] == "NCHW" and _plane(shape) % v == 0)
    ]
    return {"BLOCK": (256, 64, 128, 512), "VECTOR": tuple(whole)}


def _plane(shape: tuple[int, ...]) -> int:
    return shape[-1] * shape[-2]


def schedule(workload: Workload, target: str = "llvm", **knobs: Any) -> Scheduled:
    """One loop over all elements: its vectors spread over cores, or over the threads of blocks."""
    chosen = {name: values[0] for name, values in space(workload, target).items()} | knobs
    for name, value in chosen.items():
        if name != "PARALLEL" and not (isinstance(value, int) and value >= 1):
            raise ValueError(f"{workload.name}: {name}={value!r} must be a positive integer")
    sch = load().s_tir.Schedule(workload.module())
    block = sch.get_sblock("epilogue")
    loops = sch.get_loops(block)
    # rows of what has one channel (NCHW: a plane), so that a vector knows its channel
    rows, inner = (loops[:-2], loops[-2:]) if workload.about["layout"] != "NHWC" else (loops[:-1], loops[-1:])
    if target == "llvm":
        row = sch.fuse(*rows)
        tile, lane = sch.split(sch.fuse(*inner), [None, chosen["VECTOR"]])
        sch.vectorize(lane)
        sch.annotate(tile, "pragma_loop_partition_hint", 1)
        if chosen["PARALLEL"]:
            sch.parallel(row)
        return Scheduled(workload, target, chosen, sch.mod, {"s_tir.LoopPartition": {"partition_const_loop": True}})
    if chosen["VECTOR"] not in space(workload, target)["VECTOR"]:
        raise ValueError(
            f"{workload.name}: VECTOR={chosen['VECTOR']} does not divide the rows of {workload.output.shape}; "
            f"one of {list(space(workload, target)['VECTOR'])}"
        )
    if chosen["BLOCK"] > 1024:
        raise ValueError(f"{workload.name}: BLOCK={chosen['BLOCK']}; a block has up to 1024 threads")
    tile, lane = sch.split(sch.fuse(*inner), [None, chosen["VECTOR"]])
    grid, thread = sch.split(sch.fuse(*rows, tile), [None, chosen["BLOCK"]])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    return Scheduled(workload, target, chosen, sch.mod)
