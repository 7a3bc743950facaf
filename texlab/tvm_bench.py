"""TVM's CUDA schedules against the ladder and the libraries on the twelve layers: ``python -m texlab.bench record tvm``."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from texlab import compiler, gpu
from texlab.measure import Timed
from texlab.program import Program
from texlab.results import Result
from texlab.schedules.conv import conv
from texlab.schedules.conv_cuda import ROOMY, shared_bytes
from texlab.schedules.launch import program
from texlab.schedules.work import schedule, space
from texlab.shapes import LAYERS, ConvShape

Bench = Callable[..., Result]
FORMS = ("direct", "im2win")
RIVALS = ("im2win_zigzag", "im2win_pipeline", "im2col_gemm", "cudnn")
#: knobs that are turned one at a time on ABLATION's layer, from the best found there -> their values
TURNED = {"VTHREAD_Q": (1,), "VTHREAD_K": (2,), "PIPELINE": ("none", "double_buffer", "async"), "STAGE_X": (False,),
          "STAGE_W": (False,), "VECTOR": (2,), "UNROLL": (False,)}  # fmt: skip
ABLATION = "cv9"


def candidates(shape: ConvShape, form: str) -> list[dict[str, Any]]:
    """The knob settings that are looked at for a layer in NCHW: the schedule's own default first, then other tiles of channels
    and pixels of which two blocks fit into shared memory, each
    with and without cp.async.

    >>> settings = candidates(LAYERS["cv9"].with_(n=128), "direct")
    >>> settings[0], len(settings) > 4
    ({}, True)
    """
    work = conv(shape, form=form, layout="NCHW")
    knobs = space(work, "cuda")
    default = {name: values[0] for name, values in knobs.items()}
    k, p, q, c = (default[f"BLOCK_{axis}"] for axis in "KPQC")
    rows = shape.k // shape.groups
    tiles: list[dict[str, Any]] = [
        {},
        {"BLOCK_P": 2 * p},
        {"BLOCK_K": 2 * k},
        {"BLOCK_P": max(1, p // 2)},
        *({"BLOCK_C": size} for size in (2 * c, c // 2) if size in knobs["BLOCK_C"]),
        *({"THREAD_Q": size, "VTHREAD_Q": size} for size in sorted(knobs["THREAD_Q"], reverse=True) if size > 2),
        {"BLOCK_K": 2 * k, "BLOCK_P": max(1, p // 2)},
        {"BLOCK_K": k // 2, "BLOCK_P": 2 * p},
        {"THREAD_K": 4},
    ]
    out: list[dict[str, Any]] = []
    for tile in tiles:
        whole = default | tile
        threads = whole["BLOCK_K"] // whole["THREAD_K"] * whole["BLOCK_P"] * q // whole["THREAD_Q"]
        fits = shared_bytes(work, whole) <= ROOMY and 32 <= threads <= 512
        if tile and (not fits or whole["BLOCK_K"] > max(k, rows) or whole in [default | o for o in out]):
            continue
        out += [tile, tile | {"PIPELINE": "async"}]
    return out


def made(shape: ConvShape, form: str, knobs: Mapping[str, Any], arch: str) -> Program | str:
    """The Program of a setting, its machine code compiled into the cache; or why there is none."""
    try:
        scheduled = schedule(conv(shape, form=form, layout="NCHW"), "cuda", **knobs)
        found = replace(program(scheduled, name=f"tvm_{form}", arch=arch), defines=dict(scheduled.knobs))
        compiler.cubin(found, arch)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return found


def record(
    bench: Bench,
    layers: Sequence[str],
    n: int,
    out: Path | str | None = None,
    *,
    most: int = 10,
    seconds: float = 600.0,
) -> Path:
    """For each layer the fastest of ``most`` settings a form, measured beside RIVALS, every output verified; then one knob at
    a time on ABLATION. Saved after each layer; ends early, and says so, when ``seconds`` are over."""
    began, arch = time.monotonic(), _arch()
    path = Path()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {}
        for layer in layers:
            shape = LAYERS[layer].with_(n=n)
            for form in FORMS:
                settings = candidates(shape, form)[:most]
                asked[layer, form] = [pool.submit(made, shape, form, knobs, arch) for knobs in settings]
        for layer in layers:
            if time.monotonic() - began > seconds:
                print(f"stopped before {layer}: {seconds:.0f} s are over", flush=True)
                pool.shutdown(cancel_futures=True)
                break
            shape = LAYERS[layer].with_(n=n)
            best = {form: _fastest(shape, (f.result() for f in asked[layer, form])) for form in FORMS}
            contestants: list[Any] = [b for b in best.values() if b is not None]
            if layer == ABLATION and best["im2win"] is not None:
                contestants += _turned(shape, best["im2win"], arch)
            table = bench([*contestants, *RIVALS], shape, device="gpu", repeat=20)
            path = table.save("tvm", out)
            print(f"{table}\n", flush=True)
    return path


def _fastest(shape: ConvShape, programs: Iterable[Program | str]) -> Program | None:
    """The Program that takes the least time here, by a quick look whose output nobody checks."""
    timed, times = Timed(shape), []
    for found in programs:
        if isinstance(found, str):
            print(f"  not looked at: {found[:200]}", flush=True)
            continue
        with gpu.faults(found.name):
            times.append((timed.glance(found), len(times), found))
    return min(times)[2] if times else None


def _turned(shape: ConvShape, best: Program, arch: str) -> list[Program]:
    """The best schedule with one knob turned at a time."""
    out = []
    for name, values in TURNED.items():
        for value in values:
            if best.defines[name] == value:
                continue
            found = made(shape, "im2win", {**best.defines, name: value}, arch)
            if isinstance(found, Program):
                out.append(found)
            else:
                print(f"  {name}={value}: {found[:200]}", flush=True)
    return out


def _arch() -> str:
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


# what was recorded ----------------------------------------------------------------------------------------------------
def per_layer(rows: Iterable[Mapping[str, Any]]) -> Any:
    """DataFrame: a line for each layer, a column for each kernel, the least verified time in ms.

    >>> rows = [{"layer": "cv9", "kernel": "tvm_direct", "ms": 2.0}, {"layer": "cv9", "kernel": "tvm_direct", "ms": 1.5}]
    >>> per_layer(rows).loc["cv9", "tvm_direct"].item()
    1.5
    """
    import pandas

    least: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("ms") is not None:
            line = least.setdefault(row["layer"], {})
            line[row["kernel"]] = min(row["ms"], line.get(row["kernel"], row["ms"]))
    order = [layer for layer in LAYERS if layer in least]
    return pandas.DataFrame.from_dict(least, orient="index").reindex(order).rename_axis("layer")


def turned(rows: Iterable[Mapping[str, Any]]) -> Any:
    """DataFrame of ABLATION's im2win schedules: which knob was turned, ms, and how many times slower than the best one."""
    import pandas

    own = [r for r in rows if r["layer"] == ABLATION and r["kernel"] == "tvm_im2win" and r.get("ms") is not None]
    if not own:
        return pandas.DataFrame(columns=["knob", "ms", "times slower"])
    first = own[0] if len(own) == 1 else _centre(own)
    out = []
    for row in own:
        other = {k: v for k, v in row["tunables"].items() if v != first["tunables"].get(k)}
        name = ", ".join(f"{k}={v}" for k, v in other.items()) or "the best found"
        out.append({"knob": name, "ms": row["ms"], "times slower": row["ms"] / first["ms"]})
    return pandas.DataFrame(out).sort_values("ms", ignore_index=True)


def _centre(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row from which every other one differs in one knob."""
    apart = lambda a, b: sum(a["tunables"][k] != b["tunables"].get(k) for k in a["tunables"])  # noqa: E731
    return min(rows, key=lambda row: sum(apart(row, other) for other in rows))
