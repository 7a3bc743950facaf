"""Record what an NVIDIA GPU does with textures: ``python -m texlab.bench record texture``.

Four kinds of rows, told by ``kernel``: "texture_probe" (a path and an order: sectors and hit rates, modelled and measured),
"texture_time" (a path and an order over a large image: milliseconds), "fetch" (texels that the hardware returned, for every
mode, at awkward coordinates), "neighbours" (which texels share a sector, told by how long a fetch takes).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from texlab import cache, gpu, machine, texture_probes
from texlab.counters import available, measure, profiler
from texlab.program import device_function
from texlab.results import RESULTS, Result, write_atomically
from texlab.texture_cases import REACH, fetch_cases, neighbour_pairs, neighbour_program
from texlab.texture_probes import ORDERS, PATHS, places
from texlab.textures import Texture

#: counter -> Nsight Compute metric. "tex" is the pipe of textures and surfaces, "ld" that of global loads.
METRICS = {
    "tex_requests": "l1tex__t_requests_pipe_tex.sum",
    "tex_sectors": "l1tex__t_sectors_pipe_tex.sum",
    "tex_hits": "l1tex__t_sectors_pipe_tex_lookup_hit.sum",
    "tex_misses": "l1tex__t_sectors_pipe_tex_lookup_miss.sum",
    "texture_requests": "l1tex__t_requests_pipe_tex_mem_texture.sum",
    "texture_sectors": "l1tex__t_sectors_pipe_tex_mem_texture.sum",
    "texture_hits": "l1tex__t_sectors_pipe_tex_mem_texture_lookup_hit.sum",
    "surface_sectors": "l1tex__t_sectors_pipe_tex_mem_surface_op_ld.sum",
    "surface_hits": "l1tex__t_sectors_pipe_tex_mem_surface_op_ld_lookup_hit.sum",
    "ld_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "ld_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "ld_hits": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "ld_misses": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_miss.sum",
    "instructions": "smsp__inst_executed_op_texture.sum",
    "filled_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
    "l2_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
    "l2_hits": "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
    "memory_sectors": "dram__sectors_read.sum",
}


@dataclass(frozen=True)
class Scene:
    """Probes that are profiled together. One warp a block and few blocks: a multiprocessor each, one request at a time."""

    name: str
    image: tuple[int, int]
    orders: tuple[str, ...]
    paths: tuple[str, ...]
    blocks: int
    steps: int
    window: int = 1

    def sequences(self) -> dict[str, np.ndarray]:
        return {order: self._sequence(order) for order in self.orders}

    def _sequence(self, order: str) -> np.ndarray:
        if not order.startswith("column of "):
            return places(order, *self.image)
        return places("column", int(order.removeprefix("column of ")), self.image[1])

    def program(self, paths: tuple[str, ...] | None = None, orders: Mapping[str, np.ndarray] | None = None) -> Any:
        how = {"blocks": self.blocks, "threads": 32, "steps": self.steps, "window": self.window}
        return texture_probes.program(paths or self.paths, orders or self.sequences(), self.image, **how)


HEIGHTS = (512, 1024, 1536, 1664, 1792, 1920, 2048, 2304, 2560, 3072, 4096)
SCENES = (
    Scene("square", (256, 256), ORDERS, tuple(PATHS), blocks=4, steps=256),
    Scene("tall", (4096, 64), ORDERS, tuple(PATHS), blocks=2, steps=512),
    Scene("windows", (256, 256), ORDERS, tuple(PATHS), blocks=4, steps=64, window=3),
    Scene("capacity", (4096, 64), tuple(f"column of {h}" for h in HEIGHTS), ("global", "texture"), blocks=1, steps=512),
)


def record_texture(out: Path | str | None = None) -> Path:
    """Measure everything on this GPU and save the topic "texture", part by part. ``predict`` then puts the model's figures
    beside it, on any machine."""
    ncu, rows = profiler(), []
    known = available(ncu)
    metrics = {c: m for c, m in METRICS.items() if not known or m.rpartition(".")[0] in known}
    texture_names = sorted(m for m in known if "pipe_tex" in m or "xbar2l1tex_read" in m)
    rows.append(
        {
            "kernel": "metrics",
            "measured_with": metrics,
            "missing": sorted(set(METRICS) - set(metrics)),
            "names": texture_names,
        }
    )
    for part in (_fetch_rows, _neighbour_rows, _time_rows, lambda: _probe_rows(metrics)):
        start = time.perf_counter()
        new = list(part())
        rows += new
        print(f"{new[0]['kernel']}: {len(new)} rows in {time.perf_counter() - start:.1f} s", flush=True)
        path = Result(rows, machine.describe("gpu"), time.strftime("%Y-%m-%d"), machine.commit()).save("texture", out)
    return path


# probes: measured and modelled ------------------------------------------------------------------------------------
def _probe_rows(metrics: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """What the hardware counted, a row for each path and order of every scene."""
    for scene in SCENES:
        orders = scene.sequences()
        program = scene.program()
        inputs = texture_probes.inputs(program, orders)
        outputs = gpu.run(program, inputs, isolate=False).outputs
        counted: dict[int, dict[str, float | None]] = {}
        for launch, _, counter, value in measure(program, inputs, 300.0, metrics):
            counted.setdefault(launch, {})[counter] = None if math.isnan(value) else value
        for n, (path, order) in enumerate((p, o) for p in scene.paths for o in scene.orders):
            image = inputs["image4" if PATHS[path].channels == 4 else "image"]
            want = texture_probes.expected(path, image, inputs[f"order_{scene.orders.index(order)}"], scene.window)
            yield {
                "kernel": "texture_probe",
                "scene": scene.name,
                "image": list(scene.image),
                "window": scene.window,
                "path": path,
                "order": order,
                "correct": bool(np.allclose(outputs[f"y_{n}"].get(), want, rtol=1e-5)),
                "counters": counted.get(n, {}),
            }


def predict(path: Path | str) -> None:
    """Put the model's figures into the probes' rows of a recorded file; needs no GPU."""
    path = Path(path)
    data = json.loads(path.read_text())
    found = {(row["scene"], row["path"], row["order"]): row for row in data["rows"] if row["kernel"] == "texture_probe"}
    for scene in SCENES:
        orders = scene.sequences()
        for way in scene.paths:
            for order in scene.orders:
                if row := found.get((scene.name, way, order)):
                    row["modelled"] = modelled(scene, way, order, orders[order])
    write_atomically(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def modelled(scene: Scene, path: str, order: str, sequence: np.ndarray, levels: Any = cache.H200) -> dict[str, float]:
    """Simulate one probe and send its trace through the cache model."""
    program = scene.program((path,), {order: sequence})
    run = device_function("sim")(program, texture_probes.inputs(program, {order: sequence}), trace=True, limit=None)
    served = cache.run(run.trace, levels=levels)
    return {
        "requests": len(np.unique(served.row)),
        "sectors": len(served.hit),
        "hits": int(served.hit.sum()),
        "hit_rate": served.hit_rate,
        "l2_sectors": served.bytes["L2"] // cache.SECTOR,
        "memory_sectors": served.bytes["memory"] // cache.SECTOR,
    }


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """``requests``, ``sectors``, ``hits`` and ``hit_rate`` that the hardware counted for a probe's row; NaN where it did not.

    The loads' counters also count the order on its way past the L1 (cp.async.cg, 16 bytes a lane, always missing): it is
    taken off."""
    counted = {name: math.nan if value is None else value for name, value in row["counters"].items()}
    path = PATHS[row["path"]]
    pipes = ("ld",) if path.view is None else ("surface" if path.surface else "texture", "tex")
    scene = next(s for s in SCENES if s.name == row["scene"])
    orders = {"requests": scene.blocks * scene.steps // 4, "sectors": scene.blocks * scene.steps * 4, "hits": 0}
    out = {}
    for what, of_order in orders.items():
        values = [counted.get(f"{pipe}_{what}", math.nan) for pipe in pipes]
        out[what] = next((v for v in values if not math.isnan(v)), math.nan) - (of_order if "ld" in pipes else 0)
    return out | {"hit_rate": out["hits"] / out["sectors"] if out["sectors"] else math.nan}


def agreement(rows: list[dict[str, Any]]) -> Any:
    """DataFrame of the recorded probes, modelled beside measured: a row for each scene, path and order.

    Columns: ``scene, path, order``; sector ``lookups`` a request of a warp and ``hit rate (%)`` of the L1, modelled and measured;
    ``difference (points)``: modelled minus measured hit rate; ``missed sectors`` of both; ``what it says``."""
    import pandas as pd

    out = []
    for row in rows:
        if row["kernel"] != "texture_probe":
            continue
        m, c = row.get("modelled", {}), measured(row)
        requests = m.get("requests", math.nan)
        gap = 100 * (m.get("hit_rate", math.nan) - c["hit_rate"])
        missed = m.get("sectors", math.nan) - m.get("hits", math.nan), c["sectors"] - c["hits"]
        out.append(
            {
                "scene": row["scene"],
                "path": row["path"],
                "order": row["order"],
                "lookups a request, modelled": m.get("sectors", math.nan) / requests,
                "lookups a request, measured": c["sectors"] / requests,
                "hit rate modelled (%)": 100 * m.get("hit_rate", math.nan),
                "hit rate measured (%)": 100 * c["hit_rate"],
                "difference (points)": gap,
                "missed sectors, modelled": missed[0],
                "missed sectors, measured": missed[1],
                "what it says": _verdict(gap, m, c, missed),
            }
        )
    return pd.DataFrame(out)


def _verdict(gap: float, m: Mapping[str, float], c: Mapping[str, float], missed: tuple[float, float]) -> str:
    """In words, why a modelled hit rate is what was measured, or is not."""
    if not m or math.isnan(c["hit_rate"]):
        return "not measured" if m else "not modelled"
    if abs(gap) <= 5:
        return "agrees"
    lookups = c["sectors"] / m["sectors"]
    if abs(missed[0] - missed[1]) <= 0.05 * max(missed):
        how = f"{lookups:.2f} times as many lookups" if lookups > 1 else f"only {lookups:.0%} of the lookups"
        return f"the same sectors were brought in; the hardware counts {how}, and so another share of hits"
    if missed[1] > missed[0]:
        more = f"{missed[1] / max(missed[0], 1):.1f} times as many sectors were brought in as the model's"
        return f"the walk comes back to most of the L1, where the hardware's lines compete for places: {more}"
    less = f"only {missed[1] / missed[0]:.0%} of the model's sectors were brought in"
    return f"LRU throws every line out just before it is wanted; the hardware is not strictly LRU: {less}"


# times --------------------------------------------------------------------------------------------------------------
LARGE = (2048, 2048)


def _time_rows() -> Iterator[dict[str, Any]]:
    """Every path and order over a large image, all multiprocessors busy, L2 emptied before each launch."""
    import cupy

    from texlab.timing import Stopwatch

    stopwatch, threads, steps = Stopwatch(), 256, 16
    blocks = math.prod(LARGE) // (threads * steps)
    rng = np.random.default_rng(0)
    images = {1: rng.integers(0, 256, LARGE).astype("f4"), 4: rng.integers(0, 256, (*LARGE, 4)).astype("f4")}
    on_gpu = {channels: cupy.asarray(image) for channels, image in images.items()}
    for order in ORDERS:
        sequence = places(order, *LARGE)
        packed = texture_probes.packed_order(sequence, blocks, threads, steps)
        packed_gpu = cupy.asarray(packed)
        for path, how in PATHS.items():
            name = "image4" if how.channels == 4 else "image"
            program = texture_probes.program(
                path, {order: sequence}, LARGE, blocks=blocks, threads=threads, steps=steps
            )
            arrays = {name: on_gpu[how.channels], "order_0": packed_gpu}
            want = texture_probes.expected(path, images[how.channels], packed).astype(np.float32)
            launch, outputs = gpu.prepare(program, arrays, refresh=False)
            launch()
            right = [np.allclose(outputs["y_0"].get(), want, rtol=1e-5)]
            times = stopwatch.times(launch, repeat=9)
            gpu.poison(outputs["y_0"])
            launch()
            right.append(np.allclose(outputs["y_0"].get(), want, rtol=1e-5))
            row = {
                "kernel": "texture_time",
                "image": list(LARGE),
                "path": path,
                "order": order,
                "verified": bool(all(right)),
            }
            if all(right):
                low, middle, high = (float(v) for v in np.percentile(times, (10, 50, 90)))
                row |= {"ms": middle, "ms_p10": low, "ms_p90": high}
                if order == "row" and how.view is not None and how.view.get("memory") != "linear":
                    whole = stopwatch.times(gpu.prepare(program, arrays)[0], repeat=9)
                    row["copy_ms"] = float(np.median(whole)) - middle
            yield row


def time_program(path: str, order: str, repeat: int = 5) -> float:
    """Milliseconds of one probe over the large image on this machine's GPU (median; the L2 is warm). Raises DeviceError."""
    threads, steps = 256, 16
    sequence = places(order, *LARGE)
    how = {"blocks": math.prod(LARGE) // (threads * steps), "threads": threads, "steps": steps}
    program = texture_probes.program(path, {order: sequence}, LARGE, **how)
    return gpu.run(program, texture_probes.inputs(program, {order: sequence}), repeat=repeat).ms


# what the hardware returns ----------------------------------------------------------------------------------------
def _fetch_rows() -> Iterator[dict[str, Any]]:
    for name, (texture, at) in fetch_cases().items():
        values = _fetch_on_gpu(texture, at)
        yield {
            "kernel": "fetch",
            "case": name,
            "values": [float(v) for v in np.asarray(values, np.float64).reshape(-1)],
        }


def _fetch_on_gpu(texture: Texture, at: np.ndarray) -> np.ndarray:
    """All four registers of every fetch."""
    inputs = {"texels": texture.array, "at": at}
    return gpu.run(texture.program(at.shape[1]), inputs, isolate=False).output.get()


# which texels share a sector --------------------------------------------------------------------------------------
def _neighbour_rows() -> Iterator[dict[str, Any]]:
    import cupy

    image = cupy.zeros((2048, 2048), "f4")
    for memory in ("array", "linear"):
        for anchor, pairs in neighbour_pairs().items():
            program = neighbour_program(memory, pairs)
            cycles = []
            for _ in range(5):
                launch, outputs = gpu.prepare(program, {"image": image, "pairs": cupy.asarray(pairs)})
                launch()
                cycles.append(outputs["cycles"].get())
            yield {
                "kernel": "neighbours",
                "memory": memory,
                "anchor": list(anchor),
                "reach": list(REACH),
                "cycles": np.median(cycles, 0).astype(int).tolist(),
            }


def load(folder: Path | str | None = None) -> Any:
    """The recorded topic, or None where there is none."""
    from texlab.results import load_results

    try:
        return load_results("texture", folder=folder or RESULTS)
    except FileNotFoundError:
        return None
