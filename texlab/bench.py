"""Benchmarks that refuse to show a time whose output was not verified: check, time, check again.

``bench`` gives a Result; ``python -m texlab.bench record ladder`` writes the figures that notebooks show where there is
no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from texlab import ablation, bank_patterns, compiler, gpu, machine, studies, trace, tvm_bench
from texlab.catalog import kernels as catalog
from texlab.layouts import LAYOUTS
from texlab.measure import Counted, Timed
from texlab.peers import PEERS
from texlab.precision import PRECISIONS
from texlab.program import Program, device_function
from texlab.referee import Trial, precision_of
from texlab.results import Result
from texlab.shapes import LAYERS, ConvShape
from texlab.texture_bench import record_texture

#: what a contestant may raise and become a row with an error; anything else is a mistake in the call, and is raised
FAILURES = (RuntimeError, ValueError, MemoryError)


def bench(
    kernels: str | Program | tuple[str, Mapping[str, Any]] | Sequence[Any],
    shape: ConvShape,
    *,
    device: str | None = None,
    precision: str = "float32",
    repeat: int | None = None,
    **tunables: int | str,
) -> Result:
    """Measure kernels, and the peers they must beat, on one shape.

    Parameters
    ----------
    kernels : one or several of: a name of ``texlab.kernels``; ``(name, {tunable: value})``; a Program that takes x, w[,
        bias] and gives y (your own kernel); a peer, "cudnn", "cudnn_nhwc" or "im2col+cublas" (through PyTorch, on a
        GPU).
        "copy" gives the speed of light: where it is among them, rows get ``floor_ms``.
    device : "gpu" or "sim"; default: the GPU if there is one.
    precision : "float32" or a name of ``texlab.precision``. The inputs are numbers of that precision, in which peers
        and kernels that know it (tunable PRECISION) compute; the other kernels compute with the same inputs in float32.
    repeat : launches timed; default: enough for about 0.3 s, between 5 and 100.
    tunables : given to every named kernel that has them.

    Returns
    -------
    Result, fastest first. Every row: ``layer, n, kernel, tunables, kind`` ("conv", "layout" or "copy"),
    ``precision, layout, peer, extra_bytes`` (device memory beyond x, w and y: scratch, or what a peer allocated; for a
    layout kernel the layout), ``verified, verified_by, rel_err`` (L2 norm), ``error``.

    On a GPU also ``ms, ms_p10, ms_p90`` (median and percentiles over launches, L2 flushed before each; all launches of
    the program, so ``includes_transform`` is true), ``kernel_ms``, ``kernel_ms_p10``, ``kernel_ms_p90`` (the last launch
    alone, L2 flushed too), ``tflops``
    or ``gbps``, ``floor_ms`` (what the bytes that must move take at the copy's rate). The output is judged in float64
    before the timing and, with new inputs and all output and scratch memory filled with NaN, after it.

    In the simulator counts instead of times: ``instructions`` (warp-level), ``shared_wavefronts``, ``global_sectors``
    (32 bytes), and each ``_per_output``. They are exact; no time is shown.

    A contestant that fails, or whose output is wrong, keeps its row: ``error`` says why, and there is no time.

    Raises ValueError for a name, tunable or precision that does not exist; DeviceError for an unknown device.

    >>> shape = ConvShape(n=1, c=2, h=5, w=5, k=2, r=3, s=3)
    >>> table = bench(["direct", "cudnn"], shape, device="sim")
    >>> [(row["kernel"], row["verified"], row.get("ms")) for row in table]
    [('direct', True, None), ('cudnn', False, None)]
    """
    if precision != "float32" and precision not in PRECISIONS:
        raise ValueError(f"bench: precision={precision!r}; there are {['float32', *PRECISIONS]}")
    contestants = [c.at(precision) for c in _contestants(kernels, shape, tunables)]
    if device is None:
        device = "gpu" if gpu.available() else "sim"
    device_function(device)  # an unknown device is an error of the call
    measure = Timed(shape, repeat, precision) if device == "gpu" else Counted(shape, precision)
    rows = []
    for contestant in contestants:
        try:
            measured = measure.peer(contestant.name) if contestant.peer else measure.program(contestant.program(shape))
        except FAILURES as error:
            measured = {"verified": False, "rel_err": None, "error": _one_line(error)}
        rows.append(contestant.row(shape) | measured)
    _add_floor(rows)
    return Result(rows, machine.describe(device), _today(), machine.commit())


@dataclass(frozen=True)
class Contestant:
    """A row to be: a peer, or a Program, made when its turn comes so that a refused shape is its own row's error."""

    name: str
    tunables: dict[str, Any] = field(default_factory=dict)
    own: Program | None = None
    precision: str = "float32"

    def at(self, precision: str) -> Contestant:
        """The same in ``precision``, if it is a peer or knows precisions."""
        if self.peer:
            return replace(self, precision=precision)
        if self.own:
            return replace(self, precision=precision_of(self.own))
        if "PRECISION" not in catalog[self.name].tunables:
            return self
        return replace(self, precision=precision)

    @property
    def peer(self) -> bool:
        return self.own is None and self.name in PEERS

    def program(self, shape: ConvShape) -> Program:
        if self.own:
            return self.own
        extra = {}
        if "PRECISION" in catalog[self.name].tunables:
            asked = self.tunables.get("PRECISION")
            if self.precision == "float32" or asked not in (None, PRECISIONS[self.precision].code):
                raise ValueError(
                    f"{self.name!r} computes in {list(PRECISIONS)}, one of which precision=... must say; it says "
                    f"{self.precision!r}"
                )
            extra = {"PRECISION": PRECISIONS[self.precision].code}
            if self.precision == "int8":
                extra["WIDE_OUTPUT"] = 1  # in int8 almost every sum would saturate
        return catalog[self.name].program(shape, **extra | self.tunables)

    def row(self, shape: ConvShape) -> dict[str, Any]:
        """What the row says whatever happens."""
        inner = self.tunables.get("NHWC") or (self.name.endswith("_nhwc") and self.peer)
        return {
            "layer": layer_name(shape),
            "n": shape.n,
            "kernel": self.name,
            "tunables": dict(self.tunables),
            "kind": "conv" if self.own or self.peer else catalog[self.name].kind,
            "precision": self.precision,
            "layout": "NHWC" if inner else "NCHW",
            "peer": self.peer,
        }


def layer_name(shape: ConvShape) -> str:
    """ "cv9" for a layer of ``texlab.LAYERS`` at any batch size, else the shape in words."""
    for name, layer in LAYERS.items():
        if layer.with_(n=shape.n) == shape:
            return name
    return str(shape)


def _contestants(kernels: Any, shape: ConvShape, tunables: dict[str, Any]) -> list[Contestant]:
    single = isinstance(kernels, str | Program) or (
        isinstance(kernels, tuple) and len(kernels) == 2 and isinstance(kernels[1], Mapping)
    )
    out, used = [], set()
    for item in [kernels] if single else kernels:
        if isinstance(item, Program):
            out.append(Contestant(item.name, dict(item.defines), item))
            continue
        name, own = (item, {}) if isinstance(item, str) else item
        if name in PEERS:
            out.append(Contestant(name))
        elif name in catalog:
            has = {t: v for t, v in tunables.items() if t in catalog[name].tunables}
            used |= set(has)
            if unknown := sorted(set(own) - set(catalog[name].tunables)):
                raise ValueError(f"bench: {name!r} has no tunable {unknown}; it has {sorted(catalog[name].tunables)}")
            out.append(Contestant(name, has | dict(own)))
        else:
            raise ValueError(f"bench: no kernel {name!r}; there are {[*catalog, *PEERS]}, or give a Program")
    if unused := sorted(set(tunables) - used):
        raise ValueError(f"bench: none of the kernels given has a tunable {unused}")
    return out


def _add_floor(rows: list[dict[str, Any]]) -> None:
    """``floor_ms``: what the bytes that must move (inputs read once, outputs written once) take at the copy's rate."""
    gbps = next((row["gbps"] for row in rows if row["kernel"] == "copy" and row.get("gbps")), None)
    for row in rows:
        if gbps and row.get("ms") is not None:
            row["floor_ms"] = row["min_bytes"] / gbps / 1e6


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."


def floors(n: int = 128, *, gbps: float | None = None, tflops: float | None = None) -> list[dict[str, Any]]:
    """What no float32 convolution of the twelve layers at batch ``n`` can do with less: one row a layer.

    ``gflop`` (10^9 operations), ``min_mib`` (x and w read once, y written once, MiB), ``flop_per_byte``, ``xw_mib`` and
    ``col_mib`` (what im2win and im2col write in between). With a measured bandwidth (GB/s) and arithmetic rate (TFLOP/s)
    also ``bytes_ms`` and ``flops_ms``; a kernel takes at least the larger.

    >>> row = floors(n=1, gbps=4000.0)[8]
    >>> row["layer"], round(row["gflop"], 4), round(row["min_mib"], 2), round(row["bytes_ms"], 6)
    ('cv9', 0.215, 1.62, 0.000424)
    """
    rows = []
    for name, layer in LAYERS.items():
        shape = layer.with_(n=n)
        moved = shape.min_bytes()
        row = {
            "layer": name,
            "gflop": shape.flops / 1e9,
            "min_mib": moved / 2**20,
            "flop_per_byte": shape.flops / moved,
        }
        row |= {"xw_mib": LAYOUTS["im2win"].bytes(shape) / 2**20, "col_mib": LAYOUTS["im2col"].bytes(shape) / 2**20}
        if gbps is not None:
            row["bytes_ms"] = moved / gbps / 1e6
        if tflops is not None:
            row["flops_ms"] = shape.flops / tflops / 1e9
        rows.append(row)
    return rows


# recording ----------------------------------------------------------------------------------------------------
#: contestants of the "ladder" topic: every float32 kernel of the catalog, and the peers
LADDER = (*(name for name, kernel in catalog.items() if "PRECISION" not in kernel.tunables), "cudnn", "im2col+cublas")
#: contestants of the "counters" topic: the bank-conflict lesson's kernels on two shapes
BANK_KERNELS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("im2win_tile", {"PAD": 0}),
    ("im2win_tile", {"PAD": 4}),
    ("im2win_zigzag", {"LANE_K": "lane / 8", "LANE_Q": "lane % 8"}),
    ("im2win_zigzag", {}),
)
BANK_LAYER = "cv9"  # where the ladder times them too
BANK_SHAPES = (
    ConvShape(n=1, c=8, h=10, w=18, k=64, r=3, s=3),
    ConvShape(n=1, c=3, h=32, w=32, k=64, r=3, s=3, padding=1),
)
#: ... and every kernel of the catalog on three: no extent a multiple of a tile; a first layer's large filter and stride;
#: groups with dilation
SMALL_SHAPES = (
    ConvShape(n=2, c=5, h=13, w=11, k=7, r=3, s=3, padding=1),
    ConvShape(n=1, c=3, h=43, w=43, k=20, r=11, s=11, stride=4),
    ConvShape(n=2, c=12, h=14, w=17, k=18, r=3, s=2, dilation=(2, 3), groups=3),
)


def record_ladder(layers: Sequence[str], n: int, out: Path | str | None = None) -> Path:
    """Time every kernel and peer on the layers at batch ``n`` and save the topic "ladder" after each layer."""
    for name in LADDER:  # compile first, so that nothing is compiled while the clock runs
        if name in catalog:
            for layer in layers:
                with contextlib.suppress(*FAILURES):  # it becomes its row's error below
                    compiler.cubin(catalog[name].program(LAYERS[layer].with_(n=n)), _arch())
    for layer in layers:
        start = time.perf_counter()
        variants = tuple(k for k in BANK_KERNELS if k[1]) if layer == BANK_LAYER else ()
        contestants = LADDER + variants
        result = bench(contestants, LAYERS[layer].with_(n=n), device="gpu")
        path = result.save("ladder", out)
        took = time.perf_counter() - start
        print(f"{result}\n{layer}: {took:.1f} s, saved in {path}\n", flush=True)
    return path


def record_counters(out: Path | str | None = None) -> Path:
    """Compare the simulator's counts with the hardware's (Nsight Compute) and save the topic "counters"."""
    from texlab.counters import compare  # texlab.counters is the function of that name

    scenarios = [(name, tunables, shape) for shape in BANK_SHAPES for name, tunables in BANK_KERNELS]
    scenarios += [(name, {}, shape) for shape in SMALL_SHAPES for name in catalog]
    rows = []
    for name, tunables, shape in scenarios:
        program = catalog[name].program(shape, **tunables)
        compared = compare(program, **Trial(shape, precision=precision_of(program)).inputs(program))
        compared = compared.astype(object).where(compared.notna(), None).to_dict("records")
        rows += [{**row, "kernel": name, "tunables": tunables, "shape": str(shape)} for row in compared]
        path = Result(rows, machine.describe("gpu"), _today(), machine.commit()).save("counters", out)
        different = [
            f"{r['source']} {r['counter']} {r['measured']}" for r in compared if r["predicted"] != r["measured"]
        ]
        equal = len(compared) - len(different)
        print(
            f"{name} {tunables or ''} {shape}: {equal} of {len(compared)} counters equal {different or ''}", flush=True
        )
    return path


def record_pipeline(layers: Sequence[str], n: int, out: Path | str | None = None) -> Path:
    """Time the steps of ``texlab.ablation`` on the layers at batch ``n``, add what each kernel uses and what it achieves, and
    save the topic "pipeline" after each layer."""
    arch = _arch()
    for layer in layers:
        shape = LAYERS[layer].with_(n=n)
        result = bench(ablation.contestants(), shape, device="gpu", repeat=25)
        rows = [row | ablation.achieved(row, shape, arch) for row in result]
        result = Result(rows, result.machine, result.date, result.commit)
        path = result.save("pipeline", out)
        print(f"{result}\n", flush=True)
    return path


def record_timeline(layer: str, n: int, out: Path | str | None = None) -> Path:
    """Record the stamps of ``ablation.TIMELINES`` on a layer at batch ``n`` as the topic "timeline"."""
    from texlab.timeline import timeline

    shape, rows = LAYERS[layer].with_(n=n), []
    for name, tunables in ablation.TIMELINES:
        program = catalog[name].program(shape, **tunables)
        look = timeline(program, device="gpu", **Trial(shape).inputs(program))
        rows.append({"layer": layer, "n": n, "kernel": name, "tunables": tunables} | look.row())
        print(f"{look.summary()} {len(look.blocks)} blocks on multiprocessor {look.sm}", flush=True)
    return Result(rows, machine.describe("gpu"), _today(), machine.commit()).save("timeline", out)


def record_bank_rules(out: Path | str | None = None) -> Path:
    """Read the hardware's shared-load wavefronts of single load instructions (``texlab.bank_patterns``) beside what
    ``texlab.trace.wavefronts`` says of the same addresses, and save the topic "bank_rules"."""
    from texlab.counters import counters

    rows = []
    for width in bank_patterns.WIDTHS:
        program, inputs = bank_patterns.program(width)
        table = counters(program, **inputs)
        measured = table[table.counter == "shared_load_wavefronts"].sort_values("launch").value
        predicted = trace.wavefronts(*bank_patterns.addresses(width), width)
        for name, p, m in zip(bank_patterns.patterns(width), predicted, measured, strict=True):
            row = {"kernel": program.name, "source": name, "shape": f"{width} bytes a lane"}
            rows.append(row | {"counter": "shared_load_wavefronts", "predicted": int(p), "measured": int(m)})
        print(f"{program.name}: {int((predicted == measured.to_numpy()).sum())} of {len(predicted)} patterns equal")
    return Result(rows, machine.describe("gpu"), _today(), machine.commit()).save("bank_rules", out)


def _today() -> str:
    return datetime.date.today().isoformat()


def _arch() -> str:
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m texlab.bench record TOPIC [--layers cv1,cv9] [--n 128] [--out DIR]``."""
    parser = argparse.ArgumentParser(prog="python -m texlab.bench", description=main.__doc__)
    record = parser.add_subparsers(dest="what", required=True).add_parser(
        "record", help="measure on this machine's GPU and write <out>/<gpu>/<topic>.json"
    )
    topics = (
        "ladder",
        "counters",
        "bank_rules",
        "pipeline",
        "timeline",
        "texture",
        "precision",
        "twelve_layers",
        "tvm",
    )
    record.add_argument("topic", choices=topics)
    record.add_argument("--layers", default=",".join(LAYERS), help="comma-separated, default: all twelve")
    record.add_argument("--n", type=int, help="batch size where layers are timed; default 128, of precision 32")
    record.add_argument("--out", default=None, help="folder, default: the results shipped with texlab")
    record.add_argument("--most", type=int, default=8, help="tvm: settings of each schedule that are looked at")
    record.add_argument("--seconds", type=float, default=600, help="tvm: no further layer is begun after these")
    given = parser.parse_args(arguments)
    layers = given.layers.split(",")
    if unknown := sorted(set(layers) - set(LAYERS)):
        parser.error(f"--layers: no layer {unknown}; there are {list(LAYERS)}")
    if reason := gpu.why_no_gpu():
        print(f"Recording needs an NVIDIA GPU: {reason}", file=sys.stderr)
        return 1
    n = given.n or 128
    if given.topic in ("ladder", "pipeline"):
        path = {"ladder": record_ladder, "pipeline": record_pipeline}[given.topic](layers, n, given.out)
    elif given.topic == "timeline":
        path = record_timeline(ablation.LAYER, n, given.out)
    elif given.topic == "precision":
        path = studies.record_precision(bench, layers, given.n or 32, given.out)
    elif given.topic == "twelve_layers":
        path = studies.record_twelve_layers(bench, layers, n, given.out)
    elif given.topic == "tvm":
        path = tvm_bench.record(bench, layers, n, given.out, most=given.most, seconds=given.seconds)
    else:
        path = {"counters": record_counters, "bank_rules": record_bank_rules, "texture": record_texture}[given.topic](
            given.out
        )
    print(f"recorded in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
