"""What NVIDIA's compute-sanitizer says of the same kernels: ``python -m tests.hazards.sanitizer [--out FOLDER]``.

On a GPU machine. Each fault runs in a process of its own under the one tool that looks for its kind; the clean kernels run
together, once under each tool. Prints a table (case, simulator, compute-sanitizer, agree) and saves it as the result
"hazards". ``--limit``: seconds in all; ``--names``: only cases whose name contains one of these.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from texlab import compiler, gpu, machine
from texlab.program import Program
from texlab.results import Result

from . import CLEAN, FAULTS, Clean, Seeded
from .verdict import simulated

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
EACH = 40.0  # seconds one process may take
WORKERS = 8
#: what a tool prints first for an error of its kind
_REPORT = re.compile(
    r"========= (?:Error: |Warning: )?((?:Invalid|Misaligned|Uninitialized|Race|Potential|Barrier|Divergent|Missing|Address"
    r"|Program hit|Kernel)\b.*)"
)


def execute(program: Program, inputs: dict[str, Any]) -> None:
    """Run a Program in this process: one plain allocation a buffer, of exactly its size, and nothing written into outputs
    and scratch beforehand (texlab.gpu fills them, which would count as initialising)."""
    import cupy

    cupy.cuda.set_allocator(None)
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    module = cupy.cuda.Module()
    module.load(compiler.cubin(program, arch))
    text = compiler.ptx(program, arch)
    buffers = {b.name: cupy.asarray(inputs[b.name]) for b in program.inputs}
    buffers |= {b.name: cupy.empty(b.shape, b.dtype) for b in program.buffers if b.role != "input"}
    for launch in program.launches:
        gpu.check_geometry(launch)
        values = gpu.arguments(launch, text, {name: a.data.ptr for name, a in buffers.items()})
        module.get_function(launch.entry)(launch.grid, launch.block, values, shared_mem=launch.shared_bytes)
        cupy.cuda.Device().synchronize()


def child(names: Sequence[str]) -> int:
    """The process under the tool: run the named cases one after the other."""
    for name in names:
        case = next(c for c in [*FAULTS, *CLEAN] if c.name == name)
        execute(case.program, case.inputs)
    return 0


def under(tool: str, names: Sequence[str], sanitizer: str, limit: float) -> tuple[str, str]:
    """(verdict, all that was printed): "clean", "reported: ...", "timed out" or "failed: ..."."""
    options = ["--tool", tool, "--error-exitcode", "86", "--print-limit", "200"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]
    command = [sanitizer, *options, sys.executable, "-m", "tests.hazards.sanitizer", "--child", *names]
    if not tool:
        command = command[1 + len(options) :]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as p:
        try:
            text, _ = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)  # the tool and the process it watches
            text, _ = p.communicate()
            found = _REPORT.search(text)
            return (f"reported: {found[1].strip()}" if found else f"timed out after {limit:.0f} s"), text
    if found := _REPORT.search(text):
        return f"reported: {found[1].strip()}", text
    if p.returncode == 0:
        return "clean", text
    return f"failed: {text.strip().splitlines()[-1] if text.strip() else p.returncode}", text


def judge(fault: Seeded, sim: str, sanitizer: str, limit: float) -> dict[str, Any]:
    """One row of the table for a seeded fault; ``sim``: what the simulator says."""
    row = {
        "case": fault.name,
        "seeded": " or ".join(fault.kinds),
        "simulator": sim,
        "tool": fault.tool,
        "note": fault.note,
    }
    if not fault.tool:
        return row | {"sanitizer": "not asked: no tool ends a kernel", "agree": None}
    if limit <= 3:
        return row | {"sanitizer": "not asked: no time left", "agree": None}
    verdict, _ = under("" if fault.tool == "launch" else fault.tool, [fault.name], sanitizer, min(EACH, limit))
    if fault.tool == "launch":
        verdict = "accepted" if verdict == "clean" else verdict.replace("failed:", "reported: refused:")
    found = verdict.startswith("reported")
    return row | {"sanitizer": verdict, "agree": found == sim.startswith("found")}


def judge_clean(tool: str, cases: Sequence[Clean], sanitizer: str, limit: float) -> dict[str, str]:
    """Clean case -> what the tool reported of it ("" if nothing), from one process."""
    verdict, text = under(tool, [c.name for c in cases], sanitizer, limit)
    out = {}
    reports = re.split(r"\n========= \n|\n=========\s*\n", text)
    for case in cases:
        mine = [r for r in reports if re.search(rf"\b{case.name}_k", r) and _REPORT.search(r)]
        out[case.name] = _REPORT.search(mine[0])[1].strip() if mine else ""
    if verdict.startswith(("failed", "timed out")):
        print(f"{tool}, clean kernels: {verdict}\n{text[-2000:]}")
        out = {name: got or verdict for name, got in out.items()}
    return out


def prepared(name: str, arch: str) -> str:
    """Compile a case into the cache on disk, where the processes under the tools find it; the simulator's verdict."""
    case = next(c for c in [*FAULTS, *CLEAN] if c.name == name)
    with contextlib.suppress(compiler.CompileError):  # it fails later, by name
        compiler.cubin(case.program, arch)
        compiler.ptx(case.program, arch)
    return simulated(case)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hazards.sanitizer", description=__doc__)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=230.0)
    parser.add_argument("--out", type=Path, help="write the result here")
    parser.add_argument("--names", nargs="*", default=[""])
    parser.add_argument(
        "--sanitizer", default=shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    )
    given = parser.parse_args(arguments)
    if given.child:
        return child(given.child)
    if reason := gpu.why_no_gpu():
        sys.exit(f"compute-sanitizer needs a GPU: {reason}")
    if not Path(given.sanitizer).exists():
        sys.exit(f"no compute-sanitizer at {given.sanitizer}: it comes with the CUDA toolkit; give --sanitizer PATH")
    about = machine.describe()
    clock = time.perf_counter()
    left = lambda: given.limit - (time.perf_counter() - clock)  # noqa: E731
    chosen = lambda cases: [c for c in cases if any(n in c.name for n in given.names)]  # noqa: E731
    faults, cleans = chosen(FAULTS), chosen(CLEAN)
    names = [c.name for c in [*faults, *cleans]]
    arch = f"sm_{about['compute_capability'].replace('.', '')}"
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), get_context("spawn")) as pool:
        sim = dict(zip(names, pool.map(prepared, names, [arch] * len(names)), strict=True))
    print(f"compiled and simulated, {time.perf_counter() - clock:.0f} s", flush=True)
    with ThreadPoolExecutor(WORKERS) as pool:
        batches = [pool.submit(judge_clean, tool, cleans, given.sanitizer, left()) for tool in TOOLS if cleans]
        jobs = [pool.submit(lambda f: judge(f, sim[f.name], given.sanitizer, left()), f) for f in faults]
        rows = [job.result() for job in jobs]
        by_tool = dict(zip(TOOLS, (b.result() for b in batches), strict=False))
    for case in cleans:
        said = [f"{tool}: {by_tool[tool][case.name]}" for tool in TOOLS if by_tool[tool][case.name]]
        verdict = "reported: " + "; ".join(said) if said else "clean"
        row = {"case": case.name, "seeded": "", "simulator": sim[case.name], "tool": "all", "note": case.note}
        rows.append(row | {"sanitizer": verdict, "agree": (verdict == "clean") == (sim[case.name] == "clean")})
    for row in rows:
        mark = {True: "   ", False: "!= ", None: " . "}[row["agree"]]
        print(f"{mark}{row['case']:38} {row['simulator'][:60]:60} {row['tool']:10} {row['sanitizer'][:90]}")
    asked = [row for row in rows if row["agree"] is not None]
    print(f"{sum(row['agree'] for row in asked)} of {len(asked)} agree; {len(rows) - len(asked)} not asked")
    if given.names == [""]:
        print(Result(rows, about, datetime.date.today().isoformat(), machine.commit()).save("hazards", given.out))
    print(f"{time.perf_counter() - clock:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
