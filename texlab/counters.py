"""The hardware's own counts of a Program, by NVIDIA Nsight Compute, beside what the simulator predicts.

``counters`` runs the Program in a child process under ``ncu`` and gives one row per launch and counter; ``predicted``
gives the same counters from a Trace, and ``compare`` puts both side by side.
"""

from __future__ import annotations

import csv
import functools
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from texlab import gpu
from texlab.doctor import GET_NCU, UNLOCK, find_ncu
from texlab.program import DeviceError, Program, device_function

#: counter -> (Nsight Compute metric, what a Trace adds up for it: space, kinds, totals with their signs).
#: ``instructions`` has no prediction: the simulator executes PTX, not machine code. A ``cp.async`` is neither a load nor a
#: store of shared memory to the card, and its passes over shared memory are counted nowhere beside those of loads and
#: stores. The requests of loads are counted by instruction: ``smsp__inst_executed_op_shared_ld`` also has three for
#: every group of copies that is committed.
COUNTERS: dict[str, tuple[str, tuple[str, tuple[str, ...], dict[str, int]] | None]] = {
    "instructions": ("smsp__inst_executed.sum", None),
    "shared_load_requests": ("smsp__sass_inst_executed_op_shared_ld.sum", ("shared", ("load",), {"requests": 1})),
    "matrix_load_requests": ("smsp__inst_executed_op_ldsm.sum", ("shared", ("ldmatrix",), {"requests": 1})),
    "shared_load_wavefronts": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        ("shared", ("load", "ldmatrix"), {"wavefronts": 1}),
    ),
    "shared_load_conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        ("shared", ("load", "ldmatrix"), {"wavefronts": 1, "ideal_wavefronts": -1}),
    ),
    "shared_store_requests": ("smsp__inst_executed_op_shared_st.sum", ("shared", ("store",), {"requests": 1})),
    "shared_store_wavefronts": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
        ("shared", ("store",), {"wavefronts": 1}),
    ),
    "shared_store_conflicts": (
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
        ("shared", ("store",), {"wavefronts": 1, "ideal_wavefronts": -1}),
    ),
    "async_copy_requests": ("smsp__inst_executed_op_ldgsts.sum", ("shared", ("cp.async",), {"requests": 1})),
    "global_load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", ("global", ("load",), {"requests": 1})),
    "global_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", ("global", ("load",), {"sectors": 1})),
    "global_store_requests": (
        "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        ("global", ("store",), {"requests": 1}),
    ),
    "global_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum", ("global", ("store",), {"sectors": 1})),
}


# measured -----------------------------------------------------------------------------------------------------
def counters(program: Program, *, limit: float | None = 300.0, **arrays: Any) -> Any:
    """Run a Program once under Nsight Compute and read the hardware's counters.

    Parameters
    ----------
    arrays : the program's inputs by name, NumPy or CuPy.
    limit : seconds after which the run is ended; None: never.

    Returns
    -------
    DataFrame ``launch, entry, counter, value``: for each launch (counted from 0; an empty grid has no rows), each name of
    ``COUNTERS``. Units: instructions and requests are warp-level instructions; wavefronts are passes over shared memory
    and conflicts those beyond the fewest possible; sectors are 32 bytes. A counter the card lacks is NaN.

    Caches are emptied first, clocks are left alone, and no time is taken: a profiled run is slow.

    Raises DeviceError without a GPU, without Nsight Compute or without permission (``texlab.doctor()`` tells beforehand);
    CompileError, ValueError (wrong inputs); RuntimeError if the program or the profiler fails.

    >>> counters(program, x=x, w=w).query("counter == 'shared_load_wavefronts'")   # doctest: +SKIP
    """
    import pandas

    program.check_inputs(arrays)
    rows = _measure(program, arrays, limit)
    return pandas.DataFrame(rows, columns=["launch", "entry", "counter", "value"])


def measure(
    program: Program, arrays: Mapping[str, Any], limit: float | None, metrics: Mapping[str, str]
) -> list[tuple[int, str, str, float]]:
    """(launch, entry, counter, value) for each launch and each name of ``metrics`` (counter -> Nsight Compute's name); NaN
    where there is no number. Raises as ``counters``."""
    ncu = profiler()
    launches = [(i, launch.entry) for i, launch in enumerate(program.launches) if launch.blocks]
    if not launches:
        return []
    host = {name: a.get() if hasattr(a, "get") else np.ascontiguousarray(a) for name, a in arrays.items()}
    with tempfile.TemporaryDirectory(prefix="texlab-ncu-") as folder:
        request, log = Path(folder, "request.pickle"), Path(folder, "ncu.csv")
        request.write_bytes(pickle.dumps((program, host), protocol=5))
        child = [sys.executable, "-c", "from texlab.counters import _profiled; _profiled()", str(request)]
        code, printed = _run(command(ncu, log, tuple(metrics.values())) + child, limit)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    _raise_for(code, text, printed, program)
    found = parse(text)
    names = [kernel for kernel, _ in found]
    if len(found) != len(launches) or any(entry not in n for (_, entry), n in zip(launches, names, strict=False)):
        raise RuntimeError(f"Nsight Compute reports the kernels {names}, but the program launched {launches}")
    return [
        (i, entry, counter, values.get(metric, math.nan))
        for (i, entry), (_, values) in zip(launches, found, strict=True)
        for counter, metric in metrics.items()
    ]


def _measure(program: Program, arrays: Mapping[str, Any], limit: float | None) -> list[tuple[int, str, str, float]]:
    return measure(program, arrays, limit, {counter: metric for counter, (metric, _) in COUNTERS.items()})


@functools.cache
def available(ncu: str) -> frozenset[str]:
    """The names of all metrics of this card, without suffixes such as ``.sum``; empty if Nsight Compute does not say."""
    code, text = _run([ncu, "--config-file", "off", "--query-metrics"], 60.0)
    return frozenset(re.findall(r"^([a-z][a-z0-9_]*__\w+)", text, re.MULTILINE)) if code == 0 else frozenset()


def profiler() -> str:
    """The path of Nsight Compute; DeviceError without a GPU or without it."""
    reason = gpu.why_no_gpu()
    if reason:
        raise DeviceError(f"counters: {reason}. Recorded ones: texlab.load_results('counters')")
    ncu = find_ncu()
    if ncu is None:
        raise DeviceError(f"counters: Nsight Compute (ncu) is not installed: {GET_NCU}")
    return ncu


def command(ncu: str, log: Path, metrics: Sequence[str]) -> list[str]:
    """Nsight Compute's command line, up to the program it runs."""
    return [
        *(ncu, "--config-file", "off", "--clock-control", "none", "--profile-from-start", "off"),
        *("--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics), "--log-file", str(log)),
    ]


def _run(command: list[str], limit: float | None) -> tuple[int, str]:
    """Exit code and output; ends the profiler and what it profiles after ``limit`` seconds."""
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except BaseException as error:  # too late, or interrupted
        if os.name == "posix":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RuntimeError(
                f"counters: the profiled program was ended after {limit:g} s; each launch is repeated once or more, so use "
                "a smaller shape (the counts per block are the same), or limit=None"
            ) from None
        raise
    return process.returncode, printed


def _raise_for(code: int, text: str, printed: str, program: Program) -> None:
    """Nothing if the profiler did its work; else an error with the remedy."""
    said = "\n".join(line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING==")))
    everything = f"{said}\n{printed}"
    if "ERR_NVGPUCTRPERM" in everything:
        raise DeviceError(f"counters: the NVIDIA driver lets only administrators read counters. {UNLOCK}")
    if "LibraryNotLoaded" in everything or "not supported on this" in everything.lower():
        raise DeviceError(f"counters: Nsight Compute cannot profile on this machine: {everything.strip()[-1000:]}")
    if code or "==ERROR==" in text:
        raise RuntimeError(f"counters: profiling {program.name!r} failed (exit {code}):\n{everything.strip()[-3000:]}")


def _profiled() -> None:
    """The child: one run of the program, with the profiler looking at its launches and at nothing else."""
    import cupy

    program, arrays = pickle.loads(Path(sys.argv[1]).read_bytes())
    launch, _ = gpu.prepare(program, arrays, refresh=False)
    with gpu.faults(program.name):
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStart()
        launch()
        cupy.cuda.Device().synchronize()
        cupy.cuda.runtime.profilerStop()


def parse(text: str) -> list[tuple[str, dict[str, float]]]:
    """(kernel name, metric -> value) per launch, in order, from ``ncu --csv --page raw``: messages, then a header line, a
    line of units, and a line per launch. Numbers may have thousands separators; what was not measured is NaN."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    rows = [row for row in rows if row["ID"]]  # the line of units has no ID
    metrics = [name for name in rows[0] if "__" in name] if rows else []
    return [(row["Kernel Name"], {metric: _number(row[metric]) for metric in metrics}) for row in rows]


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return math.nan  # "n/a", "no data"


# predicted ----------------------------------------------------------------------------------------------------
def predicted(trace: Any) -> Any:
    """The counters as the simulator counts them: DataFrame ``entry, counter, value``, summed over an entry's launches.

    ``trace`` is of a whole run (``trace=True`` or ``trace="counts"``). PTX is counted, before the last compiler stage,
    which may merge or split loads that the source does not spell out.
    """
    import pandas

    entries = list(dict.fromkeys(i.entry for i in trace.instructions))
    rows = []
    for entry in entries:
        for counter, (_, rule) in COUNTERS.items():
            if rule:
                rows.append((entry, counter, _total(trace, entry, *rule)))
    return pandas.DataFrame(rows, columns=["entry", "counter", "value"])


def _total(trace: Any, entry: str, space: str, kinds: tuple[str, ...], terms: Mapping[str, int]) -> float:
    chosen = [n for n, i in enumerate(trace.instructions) if (i.entry, i.space) == (entry, space) and _kind(i) in kinds]
    return float(sum(sign * int(np.asarray(trace.totals[name])[chosen].sum()) for name, sign in terms.items()))


def _kind(instruction: Any) -> str:
    """What the card takes an access for: its kind, or in shared memory "ldmatrix" or "cp.async"."""
    own = ("ldmatrix", "cp.async") if instruction.space == "shared" else ()
    return next((name for name in own if instruction.opcode.startswith(name)), instruction.kind)


def compare(program: Program, *, limit: float | None = 300.0, **arrays: Any) -> Any:
    """Simulate a Program, profile it on the GPU, and put both side by side.

    Returns a DataFrame ``kernel, source, counter, predicted, measured`` (source: the entry), a row for each entry and
    counter of which either count is not zero. Raises as ``counters`` and the simulator do.

    >>> compare(program, x=x, w=w).query("predicted != measured")   # doctest: +SKIP
    """
    import pandas

    measured = _sums((entry, counter, value) for _, entry, counter, value in _measure(program, arrays, limit))
    host = {name: a.get() if hasattr(a, "get") else a for name, a in arrays.items()}
    run = device_function("sim")(program, host, trace="counts", limit=limit)
    guessed = _sums(predicted(run.trace).itertuples(index=False, name=None))
    rows = []
    for entry in dict.fromkeys(launch.entry for launch in program.launches if launch.blocks):
        for counter, (_, rule) in COUNTERS.items():
            if rule is None:
                continue
            pair = guessed.get((entry, counter), 0.0), measured[entry, counter]
            if any(pair):
                rows.append((program.name, entry, counter, *pair))
    return pandas.DataFrame(rows, columns=["kernel", "source", "counter", "predicted", "measured"])


def _sums(rows: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    out: dict[tuple[str, str], float] = {}
    for entry, counter, value in rows:
        out[entry, counter] = out.get((entry, counter), 0.0) + value
    return out
