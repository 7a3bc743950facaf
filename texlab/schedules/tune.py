"""Tune a schedule: measure candidates in a process that this one outlives, keep every row, know the best so far.

A candidate that cannot be compiled, gives a wrong answer, crashes or hangs becomes a row that says so. Only what gave the
float64 answer before and after it was timed has a time.
"""

from __future__ import annotations

import concurrent.futures
import functools
import html
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from texlab import isolated
from texlab.program import DeviceError
from texlab.schedules import database as rows_
from texlab.schedules import judge, native, work
from texlab.schedules.cache import compiled
from texlab.schedules.database import Database
from texlab.schedules.keys import describe
from texlab.schedules.search import METHODS, Candidate, SearchDied
from texlab.schedules.work import Scheduled, Workload

BUDGET = 0.15  # seconds for which one candidate is timed
FEWEST, MOST = 5, 200  # calls timed, whatever they take
WINDOW = 64  # candidates handed to an executor of the user's at a time

Progress = Callable[[int, int, dict[str, Any], "dict[str, Any] | None"], None]


# one candidate -----------------------------------------------------------------------------------------------------
def measure_candidate(workload: Workload, target: str, knobs: dict[str, Any], ir: str | None = None) -> dict[str, Any]:
    """One candidate's ``status`` ("ok", "wrong" or "failed"), and ``ms``, ``ms_p10``, ``ms_p90`` or ``error``; ``compile_s``.

    ``ir``: a scheduled module as TVM's JSON, in place of ``knobs``. Runs where it is called: a candidate that crashes ends
    this process. It is what ``tune`` hands to an executor.
    """
    arrays, want = _question(json.dumps(describe(workload), sort_keys=True), workload)
    inputs = workload.pack(arrays)
    try:
        start = time.perf_counter()
        scheduled = rows_.from_ir(workload, target, ir) if ir else work.schedule(workload, target, **knobs)
        run = _on_gpu(scheduled, inputs) if target == "cuda" else _on_cpu(scheduled, inputs)
        took = time.perf_counter() - start
        wrong = judge.fault(workload.unpack(run.output()), want)
        times = run.times() if wrong is None else np.array([])
        if wrong is None and (wrong := judge.fault(workload.unpack(run.output()), want)):
            wrong = f"right at first, but after {len(times)} runs {wrong}"
    except DeviceError:
        raise  # of this machine, not of this candidate
    except Exception as error:
        return {"status": "failed", "error": f"{type(error).__name__}: {str(error).strip()[-500:]}"}
    if wrong is not None:
        return {"status": "wrong", "error": wrong, "compile_s": took}
    p10, ms, p90 = np.percentile(times, (10, 50, 90))
    return {"status": "ok", "ms": float(ms), "ms_p10": float(p10), "ms_p90": float(p90), "compile_s": took}


_asked: dict[str, Any] = {}


def _question(key: str, workload: Workload) -> Any:
    """Inputs and their float64 answer, kept for the next candidate of the same workload."""
    if key not in _asked:
        arrays = judge.sample(workload)
        _asked.clear()
        _asked[key] = arrays, judge.answer(workload, arrays)
    return _asked[key]


@dataclass
class _Runs:
    """``output()``: of a run that began with NaN in its place. ``times()``: milliseconds of several runs."""

    output: Callable[[], np.ndarray]
    times: Callable[[], np.ndarray]


def _on_cpu(scheduled: Scheduled, inputs: dict[str, np.ndarray]) -> _Runs:
    workload = scheduled.workload
    call = compiled(scheduled, keep=False)
    given = [native.aligned(inputs[b.name]) for b in workload.inputs]
    y = native.empty(workload.output.shape, workload.output.dtype)
    floats = y.dtype.kind == "f"

    def output() -> np.ndarray:
        y.fill(np.nan if floats else np.iinfo(y.dtype).min)
        call.function(*given, y)
        return y

    def times() -> np.ndarray:
        out: list[float] = []
        began = time.perf_counter()
        while len(out) < FEWEST or (len(out) < MOST and time.perf_counter() - began < BUDGET):
            start = time.perf_counter()
            call.function(*given, y)
            out.append(1e3 * (time.perf_counter() - start))
        return np.array(out)

    return _Runs(output, times)


def _on_gpu(scheduled: Scheduled, inputs: dict[str, np.ndarray]) -> _Runs:
    from texlab import gpu
    from texlab.schedules.launch import program

    made = program(scheduled)
    name = scheduled.workload.output.name

    def output() -> np.ndarray:
        return gpu.run(made, inputs, isolate=False).outputs[name].get()

    def times() -> np.ndarray:
        return np.array([gpu.run(made, inputs, isolate=False, repeat=20).ms for _ in range(3)])

    return _Runs(output, times)


# tune --------------------------------------------------------------------------------------------------------------
@dataclass
class Tuned:
    """What tuning found. ``rows``: of this run, also those that were known before, in order; ``best``: the fastest, or None.

    ``stopped``: why it ended before all trials ("" if it did not); ``measured``: how many were not known before.
    """

    workload: Workload
    target: str
    method: str
    database: Database
    rows: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    measured: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def knobs(self) -> dict[str, Any] | None:
        """The best row's knobs; None if nothing could be used."""
        return dict(self.best["knobs"]) if self.best else None

    @property
    def ms(self) -> float | None:
        return self.best["ms"] if self.best else None

    @property
    def table(self) -> Any:
        """A DataFrame: a column for each knob, then ``status, ms, ms_p10, ms_p90, compile_s, error``."""
        import pandas

        names = ("status", "ms", "ms_p10", "ms_p90", "compile_s", "error")
        return pandas.DataFrame([{**row["knobs"], **{name: row.get(name) for name in names}} for row in self.rows])

    def scheduled(self) -> Scheduled:
        """The best schedule. Raises ValueError if no candidate could be used."""
        if self.best is None:
            raise ValueError(f"{self.workload.name}: no candidate could be used; see the rows' status and error")
        return rows_.scheduled(self.workload, self.target, self.best)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {s}" for s in rows_.STATUS if (n := sum(r["status"] == s for r in self.rows)))
        best = f"{self.ms:.4g} ms with {self.knobs}" if self.best else "no candidate could be used"
        stopped = f"; stopped: {self.stopped}" if self.stopped else ""
        return (
            f"Tuned {self.workload.name} on {self.target}, {self.method}: {best} ({counts or 'no candidates'}{stopped})"
        )

    def _repr_html_(self) -> str:
        top = sorted((r for r in self.rows if r["status"] == "ok"), key=lambda r: r["ms"])[:5]
        lines = "".join(
            f"<tr><td style='text-align:right'>{row['ms']:.4g}</td><td style='text-align:left'>"
            f"{html.escape(', '.join(f'{k}={v}' for k, v in row['knobs'].items()))}</td></tr>"
            for row in top
        )
        head = "<tr><th>ms</th><th style='text-align:left'>knobs</th></tr>"
        return f"<p>{html.escape(repr(self))}</p>" + (f"<table>{head}{lines}</table>" if top else "")


def text_progress(done: int, total: int, row: dict[str, Any], best: dict[str, Any] | None) -> None:
    """The default progress: one line on stderr, written over again and again."""
    fastest = f"best {best['ms']:.4g} ms" if best else "none usable yet"
    this = f"{row['ms']:.4g} ms" if row["status"] == "ok" else row["status"]
    bar = "#" * (20 * done // max(total, 1))
    end = "\n" if done == total else ""
    print(f"\r[{bar:<20}] {done}/{total}  {fastest}  (this one: {this:<12})", end=end, file=sys.stderr, flush=True)


def tune(
    workload: Workload,
    target: str = "llvm",
    *,
    method: str = "random",
    trials: int = 32,
    budget: float | None = None,
    seed: int = 0,
    executor: Any = None,
    database: Any = None,
    progress: Progress | None = text_progress,
    measure: Callable[..., dict[str, Any]] = measure_candidate,
    limit: float = 60.0,
) -> Tuned:
    """Measure candidates for a workload's schedule and return the best, at the latest when ``budget`` seconds are over.

    Parameters
    ----------
    method : "grid", "random", "evolutionary" (over the knobs of ``space``), "meta_schedule", "meta_schedule_random" (TVM's
        own schedules, target "llvm"); see ``texlab.schedules.search``.
    trials : how many candidates. One that ``database`` knows from this machine, TVM and schedule is not measured again.
    executor : anything with ``submit`` that returns ``concurrent.futures`` futures; stays open. None: one child process,
        replaced when a candidate crashes it, or hangs for ``limit`` seconds.
    database : a Database, a path, or None for the user's (``texlab.schedules.database``).
    progress : called after each candidate with (done, trials, its row, the best row or None); None for silence.
    measure : what runs in the executor: ``measure(workload, target, knobs)``, with ``ir=`` for meta_schedule, returns a
        row's ``status`` and ``ms`` or ``error``. For the child process it must be a function of an importable module.

    An interrupt (Ctrl-C, or the notebook's stop button) returns what was found until then. Raises ValueError for an unknown
    method, target or number of trials, DeviceError without TVM, or without a GPU for "cuda".
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}; one of {list(METHODS)}")
    if trials < 1:
        raise ValueError(f"trials={trials}; at least 1")
    if executor is None and measure.__module__ == "__main__":
        raise ValueError(
            f"measure={measure.__name__} is defined in this notebook, where a child process cannot find it: put it into a "
            "module, or give executor=concurrent.futures.ThreadPoolExecutor(1)"
        )
    _needs(target, executor, measure)
    book = database if isinstance(database, Database) else Database(database)
    about = rows_.about(workload, target) | {"code": rows_.code(workload, target)}
    known = {_identity(row): row for row in book.rows(**about)}
    tuned = Tuned(workload, target, method, book)
    start = time.perf_counter()
    deadline = start + budget if budget is not None else float("inf")
    submit, window = (_in_child(limit, deadline), 1) if executor is None else (executor.submit, WINDOW)

    def take(candidate: Candidate, row: dict[str, Any], new: bool) -> dict[str, Any]:
        row = about | {"method": method, "knobs": dict(candidate.knobs)} | row if new else row
        better = row["status"] == "ok" and (tuned.best is None or row["ms"] < tuned.best["ms"])
        if new:
            row["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            if candidate.ir and better:
                row["ir"] = rows_.pack_ir(candidate.ir)
            book.add(row)
            known[_identity(row)] = row
            tuned.measured += 1
        tuned.rows.append(row)
        if better and (candidate.ir is None or "ir" in row):
            tuned.best = row
        if progress is not None:
            progress(len(tuned.rows), max(trials, len(tuned.rows)), row, tuned.best)
        return row

    search = METHODS[method](workload, target, trials, seed)
    try:
        batch = next(search)
        while batch:
            rows: dict[int, dict[str, Any]] = {}
            ask = []
            for i, candidate in enumerate(batch):
                if old := known.get(_identity({"knobs": dict(candidate.knobs)})):
                    rows[i] = take(candidate, old, new=False)
                else:
                    ask.append((i, candidate))
            call = functools.partial(_submit, submit, measure, workload, target)
            for i, candidate, row in _measured(ask, call, window, limit, deadline):
                rows[i] = take(candidate, row, new=True)
            batch = search.send([rows[i] for i in range(len(batch))])
    except StopIteration:
        pass
    except KeyboardInterrupt:
        tuned.stopped = "interrupted"
    except (_Stop, SearchDied) as reason:
        tuned.stopped = str(reason)
    finally:
        search.close()
        tuned.seconds = time.perf_counter() - start
    return tuned


def _needs(target: str, executor: Any, measure: Any) -> None:
    """DeviceError before anything starts, where no candidate could run."""
    if target == "cuda" and executor is None and measure is measure_candidate:
        from texlab import gpu

        if reason := gpu.why_no_gpu():
            raise DeviceError(
                f"target='cuda' is measured on a GPU, but {reason}. target='llvm' needs none; executor= measures on machines "
                "that have one"
            )


def _identity(row: dict[str, Any]) -> str:
    return json.dumps(row["knobs"], sort_keys=True)


class _Stop(Exception):
    """Tuning ends here; the message says why."""


def _in_child(limit: float, deadline: float) -> Callable[..., Any]:
    """``submit`` of an executor that has answered when it returns."""

    def submit(function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        left = deadline - time.perf_counter()
        try:
            answer = isolated.call(
                function.__module__, function.__qualname__, *arguments, limit=min(limit, max(left, 0.1))
            )
            future.set_result(answer)
        except Exception as error:
            if isinstance(error, isolated.Died) and time.perf_counter() > deadline:
                raise _Stop("the time budget is over") from None
            future.set_exception(error)
        return future

    return submit


def _submit(submit: Any, measure: Any, workload: Workload, target: str, candidate: Candidate) -> Any:
    more = () if candidate.ir is None else (candidate.ir,)
    return submit(measure, workload, target, dict(candidate.knobs), *more)


def _measured(
    ask: Sequence[tuple[int, Candidate]], call: Callable[[Candidate], Any], window: int, limit: float, deadline: float
) -> Iterator[tuple[int, Candidate, dict[str, Any]]]:
    """Each candidate with its row, in the order in which they are done."""
    waiting, running = deque(ask), {}
    try:
        while waiting or running:
            if time.perf_counter() > deadline:
                raise _Stop("the time budget is over")
            while waiting and len(running) < window:
                i, candidate = waiting.popleft()
                running[call(candidate)] = (i, candidate)
            patience = min(limit, max(0.0, deadline - time.perf_counter()))
            done, _ = concurrent.futures.wait(running, patience, concurrent.futures.FIRST_COMPLETED)
            if not done and patience == limit:
                for future, (i, candidate) in running.items():
                    if future.running():
                        yield i, candidate, {"status": "timeout", "error": f"not done after {limit:g} s"}
                raise _Stop(f"the executor finished nothing in {limit:g} s; its workers may have to be restarted")
            for future in done:
                i, candidate = running.pop(future)
                row, broken = _row(future)
                yield i, candidate, row
                if broken:
                    raise _Stop(broken)
    finally:
        for future in running:
            future.cancel()


def _row(future: Any) -> tuple[dict[str, Any], str | None]:
    """A future's row; and why no other can follow, if none can."""
    try:
        return dict(future.result()), None
    except isolated.Died as error:
        status = "timeout" if "was ended after" in str(error) else "crashed"
        return {"status": status, "error": f"the candidate {error}"}, None
    except concurrent.futures.BrokenExecutor as error:
        return {"status": "crashed", "error": str(error)}, f"the executor is broken, give tune a new one: {error}"
    except DeviceError:
        raise
    except Exception as error:
        status = "crashed" if type(error).__name__ == "KilledWorker" else "failed"
        return {"status": status, "error": f"{type(error).__name__}: {str(error).strip()[-500:]}"}, None
