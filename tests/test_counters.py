"""Reading Nsight Compute's output, and its failures; predictions from a trace. The real thing is marked ``gpu``."""

from __future__ import annotations

import importlib
import math
import os
import stat
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from texlab import gpu
from texlab.catalog import kernels
from texlab.doctor import counters_locked, find_ncu
from texlab.program import Buffer, DeviceError, Launch, Program
from texlab.shapes import ConvShape

module = importlib.import_module("texlab.counters")  # the name texlab.counters is the function
METRICS = {counter: metric for counter, (metric, _) in module.COUNTERS.items()}
HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
NOISE = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "im2win" - 0: 0%....50%....100% - 3 passes
==PROF== Profiling "direct" - 1: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"""
SHAPE = ConvShape(n=1, c=3, h=9, w=8, k=5, r=3, s=3)


def report(*launches: tuple[str, dict[str, str]], noise: str = NOISE) -> str:
    """Text in the form of ``ncu --csv --page raw``."""
    names = list(launches[0][1])
    lines = [HEAD + "".join(f',"{name}"' for name in names), '""' + ',""' * 10 + ',"inst"' * len(names)]
    for i, (kernel, values) in enumerate(launches):
        about = f'"{i}","4242","python3.12","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(9, 5, 1)","0","9.0"'
        lines.append(about + "".join(f',"{values[name]}"' for name in names))
    return noise + "\n".join(lines) + "\n"


def all_metrics(start: int) -> dict[str, str]:
    return {metric: f"{start + i:,}" for i, metric in enumerate(METRICS.values())}


def test_report_with_messages_units_and_thousands():
    text = report(
        ("im2win(const float *, float *, Conv)", {"smsp__inst_executed.sum": "1,234,567", "l1tex__x.sum": "92928"}),
        ("direct", {"smsp__inst_executed.sum": "7.5", "l1tex__x.sum": "n/a"}),
    )
    first, second = module.parse(text)
    assert first == (
        "im2win(const float *, float *, Conv)",
        {"smsp__inst_executed.sum": 1234567, "l1tex__x.sum": 92928},
    )
    assert second[0] == "direct"
    assert second[1]["smsp__inst_executed.sum"] == 7.5
    assert math.isnan(second[1]["l1tex__x.sum"])


@pytest.mark.parametrize("text", ["", NOISE, "==WARNING== No kernels were profiled.\n"])
def test_report_without_kernels(text):
    assert module.parse(text) == []


def test_report_with_messages_after_it():
    assert len(module.parse(report(("k", {"a__b": "1"})) + "==WARNING== late\n")) == 1


# a profiler of our own stands in for ncu ------------------------------------------------------------------------------
@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Install a script as ``ncu`` that writes ``report`` where it is told to and prints ``printed``."""
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(report: str, printed: str = "", code: int = 0, sleep: float = 0) -> None:
        script = tmp_path / "ncu"
        script.write_text(
            f"#!{sys.executable}\nimport pathlib, sys, time\n"
            "assert '--clock-control' in sys.argv and '--profile-from-start' in sys.argv\n"
            f"pathlib.Path(sys.argv[sys.argv.index('--log-file') + 1]).write_text({report!r})\n"
            f"print({printed!r}); time.sleep({sleep}); sys.exit({code})\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return install


def inputs(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in program.inputs}


def test_table_of_launches_and_counters(stand_in):
    program = kernels["im2win_direct"].program(SHAPE)
    entries = [launch.entry for launch in program.launches]
    stand_in(report(*[(entry, all_metrics(1000 * i)) for i, entry in enumerate(entries)]))
    table = module.counters(program, **inputs(program))
    assert list(table.columns) == ["launch", "entry", "counter", "value"]
    assert len(table) == len(entries) * len(module.COUNTERS)
    last = table[table.launch == len(entries) - 1]
    assert set(last.entry) == {entries[-1]}
    assert list(last.counter) == list(module.COUNTERS)
    assert list(last.value) == [1000 * (len(entries) - 1) + i for i in range(len(METRICS))]


def test_a_missing_metric_is_nan(stand_in):
    program = kernels["copy"].program(SHAPE)
    stand_in(report(("copy", {METRICS["instructions"]: "12"})))
    table = module.counters(program, **inputs(program)).set_index("counter").value
    assert table["instructions"] == 12
    assert table.drop("instructions").isna().all()


@pytest.mark.parametrize("found", [[], ["copy", "copy"], ["other"]])
def test_launches_that_do_not_match_are_an_error(stand_in, found):
    program = kernels["copy"].program(SHAPE)
    stand_in(report(*[(name, all_metrics(0)) for name in found]) if found else NOISE)
    with pytest.raises(RuntimeError, match=r"reports the kernels .* but the program launched .*copy"):
        module.counters(program, **inputs(program))


def test_empty_grids_are_not_profiled(monkeypatch):
    monkeypatch.setattr(module, "profiler", lambda: "/nowhere/ncu")
    nothing = Program("p", "", (Buffer("y", (1,), role="output"),), (Launch("k", (0, 1, 1), (32, 1, 1), ("y",)),))
    assert module.counters(nothing).empty


@pytest.mark.parametrize(
    ("log", "printed", "code", "error", "message"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters\n",
            *("", 1, DeviceError, "only administrators.*NVreg_RestrictProfilingToAdminUsers"),
        ),
        (NOISE, "==ERROR== ERR_NVGPUCTRPERM - ...", 0, DeviceError, "only administrators"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "", 1, DeviceError, "cannot profile on"),
        (
            NOISE,
            "texlab.program.KernelFault: kernel 'copy': illegal address",
            1,
            RuntimeError,
            "'copy': illegal address",
        ),
        ("==ERROR== unknown trouble\n", "", 0, RuntimeError, "unknown trouble"),
    ],
)
def test_failures_say_what_to_do(stand_in, log, printed, code, error, message):
    program = kernels["copy"].program(SHAPE)
    stand_in(log, printed, code)
    with pytest.raises(error, match=message):
        module.counters(program, **inputs(program))


def test_a_hanging_profiler_is_ended(stand_in):
    program = kernels["copy"].program(SHAPE)
    stand_in(NOISE, sleep=60)
    with pytest.raises(RuntimeError, match=r"ended after 0\.5 s.*smaller shape"):
        module.counters(program, limit=0.5, **inputs(program))


def test_without_gpu_or_profiler(monkeypatch):
    program = kernels["copy"].program(SHAPE)
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: "no NVIDIA driver is loaded")
    with pytest.raises(DeviceError, match=r"no NVIDIA driver.*load_results"):
        module.counters(program, **inputs(program))
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: None)
    monkeypatch.setattr(module, "find_ncu", lambda: None)
    with pytest.raises(DeviceError, match=r"ncu.*not installed.*developer.nvidia.com"):
        module.counters(program, **inputs(program))


def test_wrong_inputs_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="takes"):
        module.counters(kernels["copy"].program(SHAPE), y=np.zeros(3, "float32"))


# predictions ------------------------------------------------------------------------------------------------------
def made_up_trace() -> SimpleNamespace:
    rows = [
        ("im2win", "global", "load", "ld.global.f32"),
        ("tile", "shared", "load", "ld.shared.f32"),
        ("tile", "shared", "load", "ld.shared.v4.f32"),
        ("tile", "shared", "store", "st.shared.f32"),
    ]
    return SimpleNamespace(
        instructions=[SimpleNamespace(entry=e, space=s, kind=k, opcode=o) for e, s, k, o in rows],
        totals={
            "requests": np.array([5, 10, 20, 4]),
            "wavefronts": np.array([0, 40, 80, 8]),
            "ideal_wavefronts": np.array([0, 10, 80, 8]),
            "sectors": np.array([22, 0, 0, 0]),
        },
    )


def test_predictions_add_up_instructions_of_one_kind():
    table = module.predicted(made_up_trace()).set_index(["entry", "counter"]).value
    assert table["tile", "shared_load_requests"] == 30
    assert table["tile", "shared_load_wavefronts"] == 120
    assert table["tile", "shared_load_conflicts"] == 30
    assert table["tile", "shared_store_conflicts"] == 0
    assert table["im2win", "global_load_sectors"] == 22
    assert table["im2win", "shared_load_requests"] == 0
    assert ("tile", "instructions") not in table.index


def test_predictions_from_the_simulator():
    """copy moves whole, aligned float4: 4 sectors for each 128 bytes, both ways, and no shared memory."""
    shape = ConvShape(n=1, c=8, h=16, w=16, k=1, r=1, s=1)
    program = kernels["copy"].program(shape)
    run = program.run(device="sim", trace="counts", **inputs(program))
    table = module.predicted(run.trace).set_index("counter").value
    for counter in ("global_load_sectors", "global_store_sectors"):
        assert table[counter] == program.inputs[0].nbytes / 32
    assert table["global_load_requests"] == program.inputs[0].nbytes / 512
    assert table["shared_load_wavefronts"] == 0


def test_comparison_sums_launches_of_one_entry_and_drops_empty_rows(stand_in):
    program = kernels["copy"].program(SHAPE)
    program = Program(program.name, program.source, program.buffers, 2 * program.launches, filename=program.filename)
    stand_in(report(("copy", all_metrics(0)), ("copy", all_metrics(0))))
    table = module.compare(program, **inputs(program))
    assert list(table.columns) == ["kernel", "source", "counter", "predicted", "measured"]
    assert set(table.source) == {"copy"}
    row = table.set_index("counter").loc["global_load_sectors"]
    assert row.measured == 2 * list(METRICS).index("global_load_sectors")
    assert row.predicted > 0
    assert "instructions" not in set(table.counter)


# on a GPU -----------------------------------------------------------------------------------------------------------
def profiler_missing() -> str | None:
    return None if find_ncu() and not counters_locked() else "no Nsight Compute, or locked"


@pytest.mark.gpu
@pytest.mark.skipif(profiler_missing() is not None, reason="Nsight Compute cannot be used here")
@pytest.mark.parametrize("name", list(kernels))
def test_hardware_counts_what_the_simulator_predicts(name):
    program = kernels[name].program(ConvShape(n=2, c=5, h=13, w=11, k=7, r=3, s=3, padding=1))
    table = module.compare(program, **inputs(program))
    different = table[table.predicted != table.measured]
    assert len(table)
    assert different.empty, f"\n{different}"
