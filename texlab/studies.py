"""Two studies of the tensor cores: what each precision loses and gains, and the twelve layers against the libraries.

``study`` is one experiment: inputs that are hard in a known way, rounded or quantised to a precision, convolved by the
kernel, compared with the float64 oracle. ``python -m texlab.bench record precision`` and ``record twelve_layers`` run
them over the layers on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import exp, log, prod
from pathlib import Path
from typing import Any

import numpy as np

from texlab import gpu
from texlab import precision as formats
from texlab.catalog import kernels
from texlab.measure import Timed
from texlab.precision import PRECISIONS
from texlab.program import Program
from texlab.referee import whole_answer
from texlab.reference import conv2d_reference, tolerance
from texlab.results import Result
from texlab.shapes import LAYERS, ConvShape

Bench = Callable[..., Result]

#: kind of inputs -> what is hard about them
INPUTS = {
    "uniform": "uniform in [-1, 1)",
    "wide range": "magnitudes from 2^-12 to 2^12 side by side: most terms of a sum are small beside the largest",
    "cancellation": "terms nearly cancel: sums are about a thousandth of their largest term or less",
    "subnormal": "x about 2^-17, where float16 has lost bits to gradual underflow; bfloat16 and tf32 have not",
    "overflow": "x up to 60000: sums exceed what float16 holds, 65504",
}
TENSOR_CORES = "im2win_tensor_core"
#: tiles tried for each layer; the fastest is measured
TILES: tuple[dict[str, int], ...] = (
    {},
    {"STAGES": 3},
    {"BLOCK_K": 128},
    {"BLOCK_K": 128, "STAGES": 3},
    {"BLOCK_Q": 256},
)


def hard_inputs(kind: str, shape: ConvShape, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """``x`` and ``w`` of a shape, float32, of a kind of ``INPUTS``; the same for the same seed."""
    if kind not in INPUTS:
        raise ValueError(f"inputs={kind!r}: choose one of {list(INPUTS)}")
    rng = np.random.default_rng(seed)
    x, w = (rng.random(dims, np.float32) * 2 - 1 for dims in (shape.x_shape, shape.w_shape))
    if kind == "wide range":
        x = np.sign(x) * np.exp2(rng.random(x.shape, np.float32) * 24 - 12)
    elif kind == "cancellation":
        x = 1 + x / 1024
        terms = prod(w.shape[1:])
        signs = np.where(np.arange(terms) % 2, -1, 1).reshape(w.shape[1:]).astype(np.float32)
        if terms % 2:
            signs.flat[-1] = 0
        w = signs * (1 + w / 1024)
    elif kind == "subnormal":
        x = x * np.float32(2.0**-17)
    elif kind == "overflow":
        x, w = 45000 + 15000 * x, 0.75 + w / 4
    return x.astype(np.float32), w.astype(np.float32)


def study(
    shape: ConvShape,
    precision: str,
    inputs: str = "uniform",
    device: str = "sim",
    *,
    per_channel: bool = True,
    wide: bool = True,
    layout: str = "NHWC",
    seed: int = 0,
) -> dict[str, Any]:
    """Convolve hard inputs in a precision and say how far the result is from float64.

    Two questions, two answers. ``sum_err``: the largest error of the kernel itself against the oracle of the *rounded*
    inputs, as a share of the sum of |x|*|w|, and ``sum_bound``, which it must not exceed (``within``). ``rel_err``: the
    error (L2 norm) against the oracle of the inputs *before* they were rounded, which is what the user of a precision
    sees. ``infinite``: how many outputs are not finite; they count in neither.

    ``precision``: "float32" (the kernel "im2win_zigzag") or a name of ``texlab.precision``. ``per_channel``: a scale for
    each filter, else one for all (int8 and e4m3 only). ``wide``: y in float32, else in the precision itself.

    >>> row = study(ConvShape(n=1, c=4, h=6, w=6, k=8, r=3, s=3), "bfloat16")
    >>> row["within"], 1e-3 < row["rel_err"] < 1e-2
    (True, True)
    """
    x, w = hard_inputs(inputs, shape, seed)
    row = {"inputs": inputs, "precision": precision, "layout": layout, "n": shape.n, "kernel": TENSOR_CORES}
    row["output"] = "float32" if wide else precision
    if precision == "float32":
        row |= {"layout": "NCHW", "kernel": "im2win_zigzag", "output": "float32"}
        got = _numbers(kernels["im2win_zigzag"].program(shape).run(device=device, x=x, w=w).output)
        want, magnitude = _oracle(x, w, shape, device)
        return row | _errors(got, want, want, magnitude, tolerance(shape), 0.0)
    p = formats.precision(precision)
    stored_x, scale_x = formats.quantise(x, precision)
    stored_w, scale_w = formats.quantise(w, precision, per_channel=per_channel)
    scale = np.broadcast_to(scale_x * scale_w, (shape.k,)).astype(np.float32)
    tunables = {"PRECISION": p.code, "NHWC": int(layout == "NHWC"), "WIDE_OUTPUT": 2 if wide else 0}
    program = kernels[TENSOR_CORES].program(shape, scale=p.scaled, **tunables)
    first = np.ascontiguousarray(stored_x.transpose(0, 2, 3, 1)) if layout == "NHWC" else stored_x
    arrays = {"x": first, "w": stored_w} | ({"scale": scale} if p.scaled else {})
    got = _numbers(program.run(device=device, **arrays).output)
    got = formats.decode(got, precision) if not wide else got
    got = got.transpose(0, 3, 1, 2) if layout == "NHWC" else got
    want, magnitude = _oracle(formats.decode(stored_x, precision), formats.decode(stored_w, precision), shape, device)
    times = scale[:, None, None].astype(np.float64)
    exact = _exact(inputs, shape, seed, device)
    unit = 2.0**-23 if wide else p.unit  # the output's own rounding; scaling rounds once more
    row |= {"scales": "per channel" if per_channel else "per tensor"} if p.scaled else {}
    bound = formats.accumulation_bound(shape, precision)
    return row | _errors(got, exact, want * times, magnitude * times, bound, unit)


def _numbers(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def _oracle(x: np.ndarray, w: np.ndarray, shape: ConvShape, device: str) -> tuple[np.ndarray, np.ndarray]:
    """The convolution in float64, and the sum of |x|*|w|."""
    if device == "gpu":
        import cupy

        if (whole := whole_answer(cupy.asarray(x), cupy.asarray(w), shape)) is not None:
            return tuple(a.get().astype(np.float64) for a in whole)
    how = {f: getattr(shape, f) for f in ("stride", "padding", "dilation", "groups")}
    return conv2d_reference(x, w, **how), conv2d_reference(abs(x), abs(w), **how)


@lru_cache(maxsize=2)
def _exact(inputs: str, shape: ConvShape, seed: int, device: str) -> np.ndarray:
    return _oracle(*hard_inputs(inputs, shape, seed), shape, device)[0]


def _errors(
    got: np.ndarray, exact: np.ndarray, want: np.ndarray, magnitude: np.ndarray, sums: float, unit: float
) -> dict[str, Any]:
    """What ``study`` says of a result. ``exact``: of the inputs as given, ``want``: of the inputs as rounded."""
    got = got.astype(np.float64)
    good = np.isfinite(got)
    error = np.where(good, abs(np.where(good, got, 0) - want), 0)
    allowed = sums * magnitude + unit * abs(want) + np.finfo(np.float32).tiny
    share = error / np.maximum(magnitude, np.finfo(np.float32).tiny)
    norm = np.linalg.norm(exact[good])
    return {
        "sum_err": float(share.max(initial=0)),
        "sum_bound": float(sums + unit),
        "within": bool((error <= allowed).all()),
        "rel_err": float(np.linalg.norm(got[good] - exact[good]) / norm) if norm else 0.0,
        "infinite": int((~good).sum()),
    }


# recording ----------------------------------------------------------------------------------------------------------
def record_precision(bench: Bench, layers: Sequence[str], n: int, out: Path | str | None = None) -> Path:
    """Each precision on each layer: errors for every kind of inputs at batch 1, and the time at batch ``n``."""
    for layer in layers:
        shape = LAYERS[layer]
        timed = [bench(["im2win_zigzag"], shape.with_(n=n), device="gpu", repeat=20)]
        for name in PRECISIONS:
            own = (TENSOR_CORES, {"NHWC": 1, "WIDE_OUTPUT": 2})
            timed.append(bench([own], shape.with_(n=n), device="gpu", precision=name, repeat=20))
        rows = []
        for kind in INPUTS:
            ways = [(name, {}) for name in ("float32", *PRECISIONS)]
            ways += [(name, {"per_channel": False}) for name in ("int8", "e4m3") if kind in ("uniform", "wide range")]
            ways += [("float16", {"wide": False})] if kind == "overflow" else []
            for name, how in ways:
                rows.append({"layer": layer, "kind": "error", **study(shape, name, kind, "gpu", **how)})
        whole = Result(
            [*rows, *(row for part in timed for row in part)], timed[0].machine, timed[0].date, timed[0].commit
        )
        path = whole.save("precision", out)
        outside = [r for r in rows if not r["within"]]
        unverified = [r for part in timed for r in part if not r["verified"]]
        times = ", ".join(f"{r['precision']} {r['ms']:.4f} ms" for part in timed for r in part if r["verified"])
        print(f"{layer}: {len(rows)} errors, {len(outside)} outside their bound; {times}", flush=True)
        for row in outside:
            print(f"  OUTSIDE: {row}", flush=True)
        for row in unverified:
            print(f"  UNVERIFIED: {row['kernel']} {row['precision']}: {row['error']}", flush=True)
    return path


def record_twelve_layers(bench: Bench, layers: Sequence[str], n: int, out: Path | str | None = None) -> Path:
    """Tensor cores in float16 against float32 im2win, im2col + cuBLAS and cuDNN; the geometric means are printed."""
    saved: list[dict[str, Any]] = []
    for layer in layers:
        shape = LAYERS[layer].with_(n=n)
        own = [(TENSOR_CORES, {"NHWC": nhwc, **fastest_tiles(shape, nhwc)}) for nhwc in (1, 0)]
        half = bench(
            [*own, "cudnn", "cudnn_nhwc", "im2col+cublas", "unfold+cublas"],
            shape,
            device="gpu",
            precision="float16",
            repeat=30,
        )
        single = bench(["im2win_zigzag", "cudnn"], shape, device="gpu", repeat=20)
        both = Result(half.rows + single.rows, half.machine, half.date, half.commit)
        path = both.save("twelve_layers", out)
        saved += both.rows
        print(f"{both}\n", flush=True)
    print(geomeans(saved))
    return path


def fastest_tiles(shape: ConvShape, nhwc: int, precision: str = "float16") -> dict[str, int]:
    """The entry of ``TILES`` that takes the least time on this GPU; a quick look, whose output nobody checks."""
    timed = Timed(shape, precision=precision)
    code, times = PRECISIONS[precision].code, []
    for tiles in TILES:
        program: Program = kernels[TENSOR_CORES].program(shape, PRECISION=code, NHWC=nhwc, **tiles)
        with gpu.faults(program.name):
            times.append(timed.glance(program))
    return TILES[int(np.argmin(times))]


#: name -> the rows it stands for
CONTESTANTS: dict[str, dict[str, Any]] = {
    "tensor cores, better layout": {"kernel": TENSOR_CORES},
    "tensor cores NHWC": {"kernel": TENSOR_CORES, "layout": "NHWC"},
    "tensor cores NCHW": {"kernel": TENSOR_CORES, "layout": "NCHW"},
    "im2win_zigzag float32": {"kernel": "im2win_zigzag"},
    "im2col+cuBLAS float16": {"kernel": "im2col+cublas", "precision": "float16"},
    "unfold+cuBLAS float16": {"kernel": "unfold+cublas", "precision": "float16"},
    "cuDNN float16 NHWC": {"kernel": "cudnn_nhwc", "precision": "float16"},
    "cuDNN float16 NCHW": {"kernel": "cudnn", "precision": "float16"},
    "cuDNN float32": {"kernel": "cudnn", "precision": "float32"},
}


def best_ms(rows: Iterable[dict[str, Any]], contestant: str) -> dict[str, float]:
    """Layer -> least time (ms) of the verified rows of a name in ``CONTESTANTS``."""
    out: dict[str, float] = {}
    for row in rows:
        if row.get("ms") and all(row.get(f) == v for f, v in CONTESTANTS[contestant].items()):
            out[row["layer"]] = min(row["ms"], out.get(row["layer"], row["ms"]))
    return out


def geomean(rows: Iterable[dict[str, Any]], mine: str, theirs: str) -> tuple[float, int]:
    """How many times faster ``mine`` is than ``theirs`` (names of ``CONTESTANTS``), geometric mean over the layers that
    have both, and the number of these layers. ValueError if there is none."""
    rows = list(rows)
    a, b = best_ms(rows, mine), best_ms(rows, theirs)
    ratios = [log(b[layer] / a[layer]) for layer in a if layer in b]
    if not ratios:
        raise ValueError(f"geomean: no layer has a verified time of both {mine!r} and {theirs!r}")
    return exp(sum(ratios) / len(ratios)), len(ratios)


def geomeans(rows: Iterable[dict[str, Any]]) -> str:
    """The geometric means of all comparisons, as lines of text."""
    rows, lines = list(rows), []
    mine = [name for name in CONTESTANTS if name.startswith("tensor")]
    for name in mine:
        for other in [c for c in CONTESTANTS if c not in mine]:
            try:
                ratio, layers = geomean(rows, name, other)
            except ValueError:
                continue
            lines.append(f"{name} against {other}: {ratio:.2f}x (geometric mean of {layers} layers)")
    return "\n".join(lines)
