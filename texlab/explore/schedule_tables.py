"""Fusion measured; and what was recorded of TVM's schedules, on processors and on GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from texlab.explore.bank_tables import GOOD, NEUTRAL, note, table
from texlab.explore.costs import Html
from texlab.explore.schedule_views import bars
from texlab.results import load_results
from texlab.schedules import judge
from texlab.schedules.cache import compiled
from texlab.schedules.conv import Epilogue
from texlab.schedules.fusion import bytes_moved, run_chain, variants
from texlab.schedules.tvm_import import threads
from texlab.schedules.work import Workload, schedule
from texlab.shapes import LAYERS, ConvShape

AFTER = Epilogue(scale=True, shift=True, activation="relu")  # a batch norm and a ReLU
LAYER = ConvShape(n=1, c=64, h=114, w=114, k=64, r=1, s=1)  # 1x1: little arithmetic for the memory it moves
ROUNDS, SECONDS = 5, 0.5
RIVALS = ("onednn", "numpy_im2col")


def fusion(shape: ConvShape = LAYER, *, form: str = "direct", layout: str = "NHWC", epilogue: Epilogue = AFTER) -> Html:
    """Measure a convolution and what follows it on this processor: fused, folded and one kernel after the other.

    Each way's output is compared with float64 before and after. The ways take turns, so that what else the machine does
    meets them all. Raises DeviceError without TVM.

    >>> fusion(ConvShape(n=1, c=8, h=16, w=16, k=8, r=3, s=3))   # doctest: +SKIP
    """
    ways = variants(shape, form=form, layout=layout, epilogue=epilogue)
    arrays = judge.sample(ways["fused"][0])
    want = judge.answer(ways["fused"][0], arrays)
    calls = {}
    for way, works in ways.items():
        built = {work.name: compiled(schedule(work, "llvm")) for work in works}
        _judged(way, works, arrays, want, built)
        calls[way] = built
    times = _rounds(ways, calls, arrays)
    for way, works in ways.items():
        _judged(way, works, arrays, want, calls[way])
    rows = [{"name": f"{way}: {_kernels(works)}", "value": times[way]} for way, works in ways.items()]
    moved = {way: sum(map(bytes_moved, works)) / 2**20 for way, works in ways.items()}
    about = ", ".join(f"{way} {mib:.1f} MiB" for way, mib in moved.items())
    gain = times["unfused"] / times["fused"]
    text = (
        f"<b>{gain:.2f} times</b> as fast fused as one kernel after the other, on this processor, {threads()} cores "
        f"({escape(str(shape))}, {layout}). Bytes that must move at least: {about}. Every output equals the float64 oracle."
    )
    plain = "; ".join(f"{way} {ms:.3g} ms" for way, ms in times.items())
    return Html(bars(rows) + note(text, GOOD), f"{plain}\n{about}")


def processor_times() -> Html:
    """What was recorded on a processor (``python -m texlab.bench record cpu``): ``conv2d`` by its TVM schedule, PyTorch's oneDNN
    and NumPy's im2col with BLAS on the twelve layers, in one run."""
    try:
        result = load_results("cpu")
    except FileNotFoundError as error:
        return Html(note(f"Nothing to show yet: {escape(str(error))}", NEUTRAL), str(error))
    times: dict[tuple[int, str], dict[str, float]] = {}
    for row in result:
        if row.get("ms") is not None:
            times.setdefault((row["n"], row["layer"]), {})[row["kernel"]] = row["ms"]
    rows, lines = [], [result.label]
    for n in sorted({n for n, _ in times}):
        of_n = {layer: ms for (m, layer), ms in times.items() if m == n}
        for layer in (name for name in LAYERS if name in of_n):
            ms = of_n[layer]
            ratios = [ms[rival] / ms["tvm_cpu"] if rival in ms else "" for rival in RIVALS]
            rows.append([f"{layer}, {n} image{'s' * (n > 1)}", *(ms.get(k, "") for k in ("tvm_cpu", *RIVALS)), *ratios])
        means = []
        for rival in RIVALS:
            both = [ms[rival] / ms["tvm_cpu"] for ms in of_n.values() if rival in ms]
            means.append(float(np.exp(np.mean(np.log(both)))) if both else "")
        rows.append([f"<b>geometric mean, {n} image{'s' * (n > 1)}</b>", "", "", "", *means])
        lines.append(f"{n} images: geometric means {dict(zip(RIVALS, means, strict=True))}")
    heads = ["layer", "texlab, ms", "oneDNN, ms", "NumPy, ms", "oneDNN /<br>texlab", "NumPy /<br>texlab"]
    foot = f"Above 1: texlab is faster. {escape(result.label)}."
    return Html(table("Twelve layers on a processor", heads, rows, foot=foot), "\n".join(lines))


def _kernels(works: Sequence[Workload]) -> str:
    return f"{len(works)} kernel{'s' * (len(works) > 1)}"


def _judged(way: str, works: Sequence[Workload], arrays: dict[str, np.ndarray], want: np.ndarray, built: Any) -> None:
    y = run_chain(works, arrays, lambda work, inputs: built[work.name](**inputs))
    if wrong := judge.fault(y, want):
        raise AssertionError(f"{way}: {wrong}")


def _rounds(ways: dict[str, list[Workload]], calls: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """The least median ms of each way over ROUNDS rounds; what is packed beforehand is not timed."""
    best = dict.fromkeys(ways, np.inf)
    ready = {way: [work.pack(arrays) for work in works] for way, works in ways.items()}
    for _ in range(ROUNDS):
        for way, works in ways.items():
            times, end = [], time.perf_counter() + SECONDS / ROUNDS / len(ways)
            while len(times) < 3 or time.perf_counter() < end:
                start = time.perf_counter()
                y = calls[way][works[0].name](**ready[way][0])
                for work, packed in zip(works[1:], ready[way][1:], strict=True):
                    y = calls[way][work.name](**({"sums": y} | packed))
                times.append(1000 * (time.perf_counter() - start))
            best[way] = min(best[way], float(np.median(times)))
    return best
