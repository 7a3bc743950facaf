"""How fast the simulator is here: ``python -m texlab.sim.speed``."""

from __future__ import annotations

import time

import numpy as np

from texlab import compiler
from texlab.catalog import kernels
from texlab.shapes import ConvShape
from texlab.sim.codegen import compile_kernel
from texlab.sim.ptx import parse

SMALL = ConvShape(n=1, c=3, h=64, w=64, k=16, r=3, s=3)
LARGE = ConvShape(n=1, c=16, h=64, w=64, k=64, r=3, s=3)
LADDER = ("direct", "im2win_direct", "im2win_tile", "im2win_zigzag")
#: the last two have the most instructions; "direct" is left out where its rows would fill a small machine's memory
CASES = [(name, SMALL) for name in (*LADDER, "im2win_pipeline", "im2win_tensor_core")]
CASES += [(name, LARGE) for name in LADDER[1:]]


def measure(name: str, shape: ConvShape, repeat: int = 3) -> dict[str, float]:
    """Best of ``repeat`` runs: ms to read and compile the PTX, ms and million lane-instructions per second of a run
    without a trace, with totals only, and with all rows."""
    program = kernels[name].program(shape)
    text = compiler.ptx(program)
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in program.inputs}
    out: dict[str, float] = {"setup_ms": np.inf}
    for _ in range(2 * repeat):  # cheap, and what is wanted is the quiet machine
        compile_kernel.cache_clear()
        parse.cache_clear()
        start = time.perf_counter()
        for launch in program.launches:
            compile_kernel(text, launch.entry, program.filename)
        out["setup_ms"] = min(out["setup_ms"], 1000 * (time.perf_counter() - start))
    for label, trace in (("plain", False), ("totals", "counts"), ("rows", True)):
        runs = [program.run(device="sim", trace=trace, **arrays) for _ in range(repeat + 1)]  # the first one compiles
        best = min(run.ms for run in runs)
        out[f"{label}_ms"], out[f"{label}_millions"] = best, runs[0].counts["thread_instructions"] / best / 1000
    return out


def main() -> None:
    print(f"{'kernel':20}{'shape':34}{'set-up':>8}{'run':>9}{'':>10}{'totals':>9}{'':>10}{'rows':>9}")
    print(f"{'':54}{'ms':>8}{'ms':>9}{'M lanes/s':>10}{'ms':>9}{'M lanes/s':>10}{'ms':>9}{'M lanes/s':>10}")
    for name, shape in CASES:
        m = measure(name, shape)
        cells = f"{m['setup_ms']:8.0f}"
        for label in ("plain", "totals", "rows"):
            cells += f"{m[label + '_ms']:9.0f}{m[label + '_millions']:10.0f}"
        print(f"{name:20}{shape!s:34}{cells}")


if __name__ == "__main__":
    main()
