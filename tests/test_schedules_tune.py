"""Tuning: it finds the best, survives what candidates do to it, and forgets nothing it measured."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tvm")

from candidates import crash, misbehave, pretend
from texlab import gpu, isolated
from texlab.program import DeviceError
from texlab.schedules import cache, judge, search, work
from texlab.schedules import database as databases
from texlab.schedules.conv import Epilogue, conv
from texlab.schedules.database import Database, best, best_scheduled
from texlab.schedules.tune import measure_candidate, text_progress, tune
from texlab.shapes import ConvShape

HERE = Path(__file__).resolve().parent
WORK = conv(ConvShape(n=1, c=3, h=9, w=10, k=7, r=3, s=3, stride=2, padding=1), form="im2win", layout="NHWC")
MATMUL = conv(ConvShape(n=1, c=64, h=8, w=8, k=64, r=1, s=1), form="direct", layout="NHWC")  # 64 x 64 x 64
KNOBS = {"A": (1, 2, 3, 4), "B": (True, False), "C": (8, 4, 16, 2)}


@pytest.fixture
def pretended(monkeypatch):
    """WORK with the knobs of KNOBS, and a child process that can import this module."""
    module = SimpleNamespace(
        __file__=__file__, space=lambda w, t: KNOBS, schedule=lambda w, t, **knobs: pytest.fail("scheduled")
    )
    monkeypatch.setitem(sys.modules, "pretended_schedule", module)
    monkeypatch.setitem(work._MODULES, ("conv", "llvm"), "pretended_schedule")
    yield from fresh_child(monkeypatch)


@pytest.fixture
def child(monkeypatch):
    yield from fresh_child(monkeypatch)


def fresh_child(monkeypatch):
    isolated.close()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    yield
    isolated.close()


def silent(tmp_path, **how):
    return {"database": tmp_path / "rows.jsonl", "progress": None, **how}


# search --------------------------------------------------------------------------------------------------------
def drive(method, trials, seed=0):
    """All candidates of a search, as (A, B, C), answered by ``pretend``."""
    proposed = []
    running = search.METHODS[method](WORK, "llvm", trials, seed)
    batch = next(running)
    try:
        while True:
            proposed += [tuple(c.knobs.values()) for c in batch]
            batch = running.send([pretend(WORK, "llvm", c.knobs) for c in batch])
    except StopIteration:
        return proposed


@pytest.mark.parametrize("method", ["grid", "random", "evolutionary"])
@pytest.mark.parametrize("trials", [1, 7, 20, 32, 1000])
def test_searches_propose_so_many_different_candidates_the_defaults_first(pretended, method, trials):
    proposed = drive(method, trials)
    assert len(proposed) == len(set(proposed)) == min(trials, 32)
    assert proposed[0] == (1, True, 8)
    assert proposed == drive(method, trials)
    if method == "random":
        assert proposed == drive(method, trials + 5)[: len(proposed)] and proposed[:7] != drive(method, 7, seed=1)


def test_a_grid_is_evenly_spaced(pretended):
    assert [a for a, _, _ in drive("grid", 4)] == [1, 2, 3, 4]
    assert {b for _, b, _ in drive("grid", 8)} == {True, False}


def test_evolution_is_better_than_chance(pretended):
    found = {m: [min(map(cost, drive(m, 14, seed))) for seed in range(60)] for m in ("evolutionary", "random")}
    assert np.mean(found["evolutionary"]) < np.mean(found["random"])


def cost(knobs):
    return pretend(WORK, "llvm", dict(zip("ABC", knobs, strict=True)))["ms"]


@pytest.mark.parametrize("method", ["grid", "evolutionary"])
def test_the_best_is_found(pretended, tmp_path, method):
    seen = []
    tuned = tune(WORK, method=method, measure=pretend, **silent(tmp_path, progress=lambda *a: seen.append(a)))
    assert (tuned.knobs, tuned.ms, tuned.stopped) == ({"A": 3, "B": False, "C": 16}, 1.0, "")
    assert best(WORK, database=tmp_path / "rows.jsonl") == tuned.knobs
    assert [done for done, *_ in seen] == list(range(1, 33)) and {total for _, total, *_ in seen} == {32}
    assert all(fastest["ms"] == min(r["ms"] for _, _, r, _ in seen[: i + 1]) for i, (*_, fastest) in enumerate(seen))
    assert tuned.table.shape == (32, 9) and tuned.table["ms"].min() == 1.0
    assert "A=3, B=False, C=16" in tuned._repr_html_() and "32 ok" in repr(tuned)


# what candidates do --------------------------------------------------------------------------------------------
def test_bad_candidates_become_rows(pretended, tmp_path):
    tuned = tune(WORK, method="grid", measure=misbehave, limit=3, **silent(tmp_path))
    status = {tuple(r["knobs"].values()): (r["status"], r.get("error", "")) for r in tuned.rows}
    assert {row[0] for (_, b, c), row in status.items() if not b or c != 8} == {"ok"}
    assert status[1, True, 8] == ("failed", "RuntimeError: TVM does not like it")
    assert status[2, True, 8][0] == "crashed" and "ended its process (exit -11)" in status[2, True, 8][1]
    assert status[3, True, 8][0] == "timeout" and "after 3 s" in status[3, True, 8][1]
    assert status[4, True, 8] == ("wrong", "y[0] is 1, not 2")
    assert len(tuned.rows) == 32 and tuned.ms == 1.0
    again = tune(WORK, method="grid", measure=misbehave, limit=3, **silent(tmp_path))
    assert again.measured == 0 and again.rows == tuned.rows


def test_no_usable_candidate(pretended, tmp_path):
    tuned = tune(WORK, trials=1, measure=misbehave, **silent(tmp_path))  # the defaults, which fail
    assert (tuned.best, tuned.knobs, tuned.ms) == (None, None, None) and best(WORK, database=tuned.database) is None
    assert "no candidate could be used (1 failed)" in repr(tuned) and "<table>" not in tuned._repr_html_()
    with pytest.raises(ValueError, match="no candidate could be used"):
        tuned.scheduled()


def test_a_real_candidate_is_verified_and_timed():
    row = measure_candidate(WORK, "llvm", {})
    assert row["status"] == "ok" and 0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"] and row["compile_s"] > 0
    row = measure_candidate(WORK, "llvm", {"NONSENSE": 1})
    assert row["status"] == "failed" and "no knob 'NONSENSE'" in row["error"]


def test_a_wrong_schedule_is_told(monkeypatch):
    """One that computes something else, and one that is right at first only."""
    other = conv(WORK.about["shape"], form="im2win", layout="NHWC", epilogue=Epilogue(activation="relu"))
    real = work.schedule
    monkeypatch.setattr(work, "schedule", lambda w, *a, **k: replace(real(other), workload=w))
    row = measure_candidate(WORK, "llvm", {})
    assert row["status"] == "wrong" and "elements differ" in row["error"] and "ms" not in row
    monkeypatch.undo()
    runs = []

    class Tired:
        def __init__(self, function):
            self.function = function

        def __call__(self, *arrays):
            self.function(*arrays)
            runs.append(1)
            if len(runs) == 4:
                arrays[-1][0, 0, 0, 0] = 7.0
            elif len(runs) > 4:
                arrays[-1][0, 0, 0, 0] = np.nan

    whole = cache.compiled
    monkeypatch.setattr(sys.modules["texlab.schedules.tune"], "compiled", lambda *a, **k: tired(whole(*a, **k), Tired))
    row = measure_candidate(WORK, "llvm", {})
    assert row["status"] == "wrong" and row["error"].startswith("right at first, but after") and "ms" not in row


def tired(call, how):
    call.function = how(call.function)
    return call


def test_the_referee_of_schedules_refuses():
    want = judge.answer(WORK, arrays := judge.sample(WORK))
    y = want.astype(np.float32)
    assert judge.fault(y, want) is None
    for bad in (np.nan, y[0, 3, 2, 1] + 1e-2):
        spoiled = y.copy()
        spoiled[0, 3, 2, 1] = bad
        assert judge.fault(spoiled, want).startswith("y[0, 3, 2, 1] is")
    assert "shape" in judge.fault(y[:, :-1], want)
    assert judge.fault(np.zeros_like(y), want) and arrays["x"].dtype == np.float32


# stopping ------------------------------------------------------------------------------------------------------
def test_an_interrupt_returns_what_was_found(pretended, tmp_path):
    def stop(done, total, row, fastest):
        if done == 3:
            raise KeyboardInterrupt

    tuned = tune(WORK, measure=pretend, **silent(tmp_path, progress=stop))
    assert tuned.stopped == "interrupted" and len(tuned.rows) == 3 and tuned.best in tuned.rows
    assert len(Database(tmp_path / "rows.jsonl").rows()) == 3
    more = tune(WORK, measure=pretend, **silent(tmp_path))
    assert more.measured == 29 and more.rows[:3] == tuned.rows


def test_an_interrupt_ends_a_hanging_candidate(pretended, tmp_path):
    start = time.perf_counter()

    def press_stop(done, *more):
        if done == 2:  # the next one hangs
            threading.Timer(1.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()

    tuned = tune(WORK, method="grid", trials=4, measure=misbehave, **silent(tmp_path, progress=press_stop))
    assert tuned.stopped == "interrupted" and time.perf_counter() - start < 30
    assert [r["status"] for r in tuned.rows] == ["failed", "crashed"]


def test_the_time_budget_is_kept(pretended, tmp_path):
    start = time.perf_counter()
    tuned = tune(WORK, method="grid", trials=4, budget=3.0, measure=misbehave, **silent(tmp_path))
    assert "budget" in tuned.stopped and time.perf_counter() - start < 15
    assert "timeout" not in {r["status"] for r in tuned.rows}  # the one that was cut short is not known to hang
    assert tune(WORK, budget=0.0, measure=pretend, **silent(tmp_path / "none")).rows == []


def test_bad_requests_are_refused(pretended, tmp_path):
    with pytest.raises(ValueError, match="method='best'"):
        tune(WORK, method="best", **silent(tmp_path))
    with pytest.raises(ValueError, match="trials=0"):
        tune(WORK, trials=0, **silent(tmp_path))
    with pytest.raises(ValueError, match="target='metal'"):
        tune(WORK, "metal", **silent(tmp_path))
    with pytest.raises(ValueError, match="meta_schedule is set up for 'llvm'"):
        tune(MATMUL, "cuda", method="meta_schedule", measure=pretend, **silent(tmp_path))
    own = lambda *a: None  # noqa: E731
    own.__module__ = "__main__"
    with pytest.raises(ValueError, match="ThreadPoolExecutor"):
        tune(WORK, measure=own, **silent(tmp_path))


@pytest.mark.skipif(gpu.available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(DeviceError, match="target='llvm' needs none"):
        tune(MATMUL, "cuda", **silent(tmp_path))


# the database --------------------------------------------------------------------------------------------------
def test_more_trials_go_on_where_fewer_ended(pretended, tmp_path):
    first = tune(WORK, trials=5, measure=pretend, **silent(tmp_path))
    second = tune(WORK, trials=9, measure=pretend, **silent(tmp_path))
    assert (first.measured, second.measured) == (5, 4) and second.rows[:5] == first.rows


def test_rows_of_another_machine_version_or_source_are_not_taken(pretended, tmp_path, monkeypatch):
    tune(WORK, trials=3, measure=pretend, **silent(tmp_path))
    path = tmp_path / "rows.jsonl"
    for name, value in (("machine", lambda target: "another"), ("PINS", {"apache-tvm": "0.28"})):
        with monkeypatch.context() as patch:
            patch.setattr(databases, name, value)
            assert best(WORK, database=path) is None
    other = replace(WORK, about={**WORK.about, "form": "direct"})
    assert best(other, database=path) is None
    with monkeypatch.context() as patch:  # another version of the schedule: a hint for best, but measured anew
        patch.setattr(databases, "code", lambda *a: "edited")
        assert best(WORK, database=path) is not None
        assert tune(WORK, trials=3, measure=pretend, **silent(tmp_path)).measured == 3
    with monkeypatch.context() as patch:  # knobs that the schedule no longer has
        patch.setattr(databases.work, "space", lambda *a: {"A": (1,)})
        assert best(WORK, database=path) is None


@pytest.mark.parametrize("tail", [b'{"workload": {"kin', b"\xff\xfe\x00", b"[1, 2]\n", b"\n\n", b"null\n"])
def test_a_line_cut_short_is_passed_over(tmp_path, tail):
    book = Database(tmp_path / "rows.jsonl")
    book.add({"ms": 1})
    with open(book.path, "ab") as file:
        file.write(tail)
    assert book.rows() == [{"ms": 1}]
    book.add({"ms": 2})
    assert book.rows() == [{"ms": 1}, {"ms": 2}] == Database(book.path).rows()
    assert book.rows(ms=2) == [{"ms": 2}]


def test_two_processes_append_at_once(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    code = (
        "import sys; from texlab.schedules.database import Database; b = Database(sys.argv[1]);"
        "[b.add({'who': sys.argv[2], 'i': i, 'long': 'x' * 5000}) for i in range(100)]"
    )
    env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    both = [subprocess.Popen([sys.executable, "-c", code, str(path), who], env=env) for who in "ab"]
    assert [p.wait() for p in both] == [0, 0]
    rows = Database(path).rows()
    assert [sum(r["who"] == who for r in rows) for who in "ab"] == [100, 100]
    assert [r["i"] for r in rows if r["who"] == "a"] == list(range(100))


def test_ten_thousand_rows_are_read_in_a_second(pretended, tmp_path):
    about = databases.about(WORK, "llvm") | {"code": databases.code(WORK, "llvm"), "status": "ok"}
    other = about | {"machine": "another"}
    with open(tmp_path / "rows.jsonl", "w") as file:
        for i in range(10_000):
            knobs = {"A": i, "B": True, "C": 8}
            file.write(json.dumps((about if i % 2 else other) | {"knobs": knobs, "ms": 1.0 + i % 7919}) + "\n")
    start = time.perf_counter()
    assert best(WORK, database=tmp_path / "rows.jsonl") == {"A": 7919, "B": True, "C": 8}
    assert time.perf_counter() - start < 1


def test_a_database_that_cannot_be_written_costs_a_warning(pretended, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="tuning keeps no rows") as caught:
        tuned = tune(WORK, trials=3, measure=pretend, database=tmp_path / "file" / "rows.jsonl", progress=None)
    assert len(tuned.rows) == 3 and tuned.best and len(caught) == 1


# executors -----------------------------------------------------------------------------------------------------
def test_any_executor_can_be_given(pretended, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        tuned = tune(WORK, method="grid", measure=pretend, executor=pool, **silent(tmp_path))
        assert pool.submit(int).result() == 0  # still open
    assert tuned.ms == 1.0 and len(tuned.rows) == 32


def test_a_broken_pool_ends_tuning_with_a_message(pretended, tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        tuned = tune(WORK, method="grid", trials=4, measure=crash, executor=pool, **silent(tmp_path))
    assert "executor is broken" in tuned.stopped and {r["status"] for r in tuned.rows} == {"crashed"}


def test_an_executor_that_hangs_ends_tuning_with_a_message(pretended, tmp_path):
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        wait = lambda *a: gate.wait() and {"status": "failed"}  # noqa: E731
        tuned = tune(WORK, trials=3, measure=wait, executor=pool, limit=0.5, **silent(tmp_path))
        gate.set()
    assert "finished nothing in 0.5 s" in tuned.stopped
    assert [r["status"] for r in tuned.rows] == ["timeout"]  # the one that ran; the others are not known


def test_dask_measures_too(child, tmp_path):
    distributed = pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        tuned = tune(WORK, trials=3, executor=client.get_executor(pure=False), **silent(tmp_path))
        assert [r["status"] for r in tuned.rows] == ["ok"] * 3 and tuned.best
        broken = replace(WORK, name="broken", make=partial(crash))
        lost = tune(broken, trials=1, executor=client.get_executor(pure=False), **silent(tmp_path))
        assert [r["status"] for r in lost.rows] == ["crashed"] and "KilledWorker" in lost.rows[0]["error"]


# TVM's meta_schedule -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["meta_schedule", "meta_schedule_random"])
def test_meta_schedule_in_two_trials(child, tmp_path, method):
    """A 64 x 64 x 64 product, "random" cost model: mixed versions of TVM and its FFI crash here."""
    tuned = tune(MATMUL, method=method, trials=2, **silent(tmp_path))
    assert [r["status"] for r in tuned.rows] == ["ok", "ok"] and tuned.stopped == ""
    assert best(MATMUL, database=tuned.database) is None  # it has no knobs
    kept = best_scheduled(MATMUL, database=tuned.database)
    assert kept.knobs == tuned.knobs == tuned.scheduled().knobs
    call = cache.compiled(kept, folder=tmp_path / "cache")
    arrays = judge.sample(MATMUL, seed=1)
    y = MATMUL.unpack(call(**MATMUL.pack(arrays)))
    assert judge.fault(y, judge.answer(MATMUL, arrays)) is None
    assert cache.compiled(kept, folder=tmp_path / "cache").found
    again = tune(MATMUL, method=method, trials=2, **silent(tmp_path))
    first, second = ({row["knobs"]["ir"] for row in t.rows} for t in (tuned, again))
    assert again.measured == len(second - first)  # TVM's threads may propose others; a known one is not measured


def test_a_crash_of_the_search_is_a_message(child, tmp_path):
    broken = replace(MATMUL, make=partial(crash))
    tuned = tune(broken, method="meta_schedule", trials=2, **silent(tmp_path))
    assert "ended its process (exit -11)" in tuned.stopped and tuned.rows == []


def test_a_candidate_that_crashes_does_not_end_the_search(child, tmp_path):
    tuned = tune(MATMUL, method="meta_schedule_random", trials=2, measure=crash, **silent(tmp_path))
    assert [r["status"] for r in tuned.rows] == ["crashed", "crashed"] and tuned.stopped == ""


# progress ------------------------------------------------------------------------------------------------------
def test_the_text_progress_is_one_line(capsys):
    row = {"status": "ok", "ms": 2.0}
    text_progress(1, 2, {"status": "crashed"}, None)
    text_progress(2, 2, row, row)
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.endswith("\n")
    first, second = printed.strip("\r\n").split("\r")
    assert "1/2  none usable yet  (this one: crashed" in first and "2/2  best 2 ms" in second


# GPU -----------------------------------------------------------------------------------------------------------
def test_cuda_candidates_are_verified_by_what_their_program_computes(monkeypatch):
    """The simulator in the GPU's place: outputs are real, the time is made up."""
    from texlab import sim

    class OnGPU(np.ndarray):
        def get(self):
            return np.array(self)

    def simulated(program, arrays, *, isolate, repeat=None):
        made = sim.run(program, arrays)
        return SimpleNamespace(outputs={n: y.view(OnGPU) for n, y in made.outputs.items()}, ms=0.5)

    monkeypatch.setattr(gpu, "run", simulated)
    small = conv(ConvShape(n=1, c=3, h=6, w=7, k=4, r=3, s=3, padding=1), form="direct", layout="NCHW")
    assert measure_candidate(small, "cuda", {})["ms"] == 0.5
    monkeypatch.setattr(gpu, "run", lambda *a, **k: spoil(simulated(*a, **k)))
    assert measure_candidate(small, "cuda", {})["status"] == "wrong"


def spoil(run):
    run.outputs["y"][0, 1, 2, 3] = np.nan
    return run


@pytest.mark.gpu
def test_cuda_schedules_are_tuned_on_a_gpu(child, tmp_path):
    tuned = tune(WORK_CUDA, "cuda", trials=4, **silent(tmp_path))
    assert tuned.best and {r["status"] for r in tuned.rows} <= {"ok", "failed"}
    assert tuned.best["machine"] == databases.machine("cuda")
    assert best(WORK_CUDA, "cuda", tuned.database) == tuned.knobs


WORK_CUDA = conv(ConvShape(n=2, c=8, h=16, w=16, k=16, r=3, s=3, padding=1), form="direct", layout="NCHW")
