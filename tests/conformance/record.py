"""Run every case on this GPU and keep what it computes: ``python -m tests.conformance.record [--out FOLDER] [name ...]``.

Writes ``<out>/<gpu>.xz`` (default: ``tests/conformance/recorded``) and the table of passed and total, per family, to the
package's results (with ``--out``: there). A case that faults or hangs is reported, and the others run.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from texlab import compiler, gpu, machine
from texlab.results import Result, gpu_slug

from . import CASES, recording
from .case import Case, difference

LIMIT = 20.0  # seconds a case may take on the GPU


def compiled(name: str, arch: str) -> str:
    """Compile one case's source, for the GPU and for the simulator; what went wrong, or ""."""
    case = next(c for c in CASES if c.name == name)
    try:
        compiler.cubin(case.program, case.program.arch or arch)
        compiler.ptx(case.program, case.program.arch or compiler.SIM_ARCH)
    except compiler.CompileError as error:
        return str(error)
    return ""


def simulated(name: str, on_gpu: dict[str, np.ndarray] | None) -> str:
    """How the simulator's result compares with the GPU's: "" if equal."""
    case = next(c for c in CASES if c.name == name)
    try:
        got = case.program.run(device="sim", **case.inputs).outputs
    except Exception as error:  # a fault, an unknown instruction: all are findings
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if on_gpu is None:
        return "nothing to compare with"
    return difference(case, got, on_gpu, slack=2) or ""


def on_gpu(cases: list[Case]) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    """(outputs, failures) by name. Cases that may hang or fault come last; each failure costs a new process."""
    outputs, failures = {}, {}
    for case in sorted(cases, key=lambda c: c.alone):
        try:
            run = case.program.run(device="gpu", isolate=True, limit=LIMIT, **case.inputs)
            outputs[case.name] = {name: a.get() for name, a in run.outputs.items()}
        except Exception as error:
            failures[case.name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return outputs, failures


def table(cases: list[Case], outputs: dict[str, Any], sim: dict[str, str]) -> list[dict[str, Any]]:
    """Rows per family, then all: cases, how many the GPU computes as PTX defines, how many the simulator as the GPU."""
    rows = []
    for family in [*dict.fromkeys(c.family for c in cases), "all"]:
        mine = [c for c in cases if family in (c.family, "all")]
        right = [c for c in mine if c.name in outputs and not difference(c, outputs[c.name], c.expected() or {})]
        equal = [c for c in mine if not sim[c.name]]
        rows.append({"family": family, "total": len(mine), "gpu_passed": len(right), "simulator_passed": len(equal)})
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.record", description=__doc__)
    parser.add_argument("--out", type=Path, help="write both files here")
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these; then nothing is written")
    given = parser.parse_args(arguments)
    if reason := gpu.why_no_gpu():
        sys.exit(f"the conformance suite is recorded on a GPU: {reason}")
    about = machine.describe()
    arch = f"sm_{about['compute_capability'].replace('.', '')}"
    cases = [c for c in CASES if not given.names or any(n in c.name for n in given.names)]
    clock = time.perf_counter()
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), get_context("spawn")) as pool:
        first = {c.program.source: c.name for c in cases}
        refused = [text for text in pool.map(compiled, first.values(), [arch] * len(first)) if text]
        print(f"{len(first)} sources compiled for {arch} in {time.perf_counter() - clock:.0f} s", flush=True)
        outputs, failures = on_gpu(cases)
        print(f"{len(outputs)} of {len(cases)} cases ran on the GPU, {time.perf_counter() - clock:.0f} s", flush=True)
        names = [c.name for c in cases]
        answers = pool.map(simulated, names, [outputs.get(n) for n in names], chunksize=8)
        sim = dict(zip(names, answers, strict=True))
    for text in refused:
        print("refused by the compiler:", text)
    for case in cases:
        if case.name in failures:
            print(f"GPU   {case.name}: {failures[case.name]}")
        elif case.expect and (wrong := difference(case, outputs[case.name], case.expected())):
            print(f"GPU   {case.name}: not as PTX defines it: {wrong}")
        if sim[case.name]:
            print(f"sim   {case.name}: {sim[case.name]}")
    rows = table(cases, outputs, sim)
    for row in rows:
        print("{family:12} {total:4} cases  GPU {gpu_passed:4}  simulator {simulator_passed:4}".format(**row))
    print("most frequent:", collections.Counter(s.split(":")[0] for s in sim.values() if s).most_common(3))
    if not given.names:
        date, commit = datetime.date.today().isoformat(), machine.commit()
        slug = gpu_slug(about["gpu"])
        keyed = {c.name: (c.key, outputs[c.name]) for c in cases if c.name in outputs}
        path = (given.out or recording.FOLDER) / f"{slug}.xz"
        recording.write(path, {"machine": about, "date": date, "commit": commit}, keyed)
        saved = Result(rows, about, date, commit).save("conformance", given.out)
        print(f"wrote {path} ({path.stat().st_size:,} bytes) and {saved}; {time.perf_counter() - clock:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
