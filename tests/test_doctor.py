"""The doctor: quick, true, and calm whatever is broken."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time

import pytest

from texlab import gpu, nvrtc
from texlab.doctor import Finding, Report, doctor
from texlab.program import DeviceError

doctor_module = importlib.import_module("texlab.doctor")  # the name texlab.doctor is the function

TOPICS = {"machine", "compiler", "simulate kernels", "compile for", "GPU", "run on the GPU", "hardware counters"}


@pytest.fixture
def whole(monkeypatch):
    """Forget what was found out before, and after."""
    for known in (gpu.why_no_gpu, gpu.driver_cuda_version):
        known.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for known in (gpu.why_no_gpu, gpu.driver_cuda_version):
        known.cache_clear()


def test_every_topic_is_answered():
    report = doctor()
    topics = [f.topic for f in report.findings]
    assert set(topics) >= TOPICS
    assert len(topics) == len(set(topics))
    assert report["simulate kernels"].ok
    assert report["run on the GPU"].ok == gpu.available()
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in report["machine"].text
    with pytest.raises(KeyError, match="no topic 'gpu'; there are"):
        report["gpu"]


def test_text_and_table_say_the_same():
    report = doctor()
    html = report._repr_html_()
    text = repr(report)
    assert html.count("<tr>") == len(report.findings)
    for finding in report.findings:
        assert finding.text in text
        assert finding.topic in html


def test_html_is_escaped():
    html = Report((Finding("a<b", False, "<script>", "pip install 'x>=1'"),))._repr_html_()
    assert "<script>" not in html
    assert "a&lt;b" in html
    assert "x&gt;=1" in html


def test_takes_under_a_second():
    """Processor time in a process of its own, Python's start and all imports included, as the machine may be busy."""
    script = "import time; from texlab.doctor import doctor; repr(doctor()); "
    script += "print(time.process_time())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout.splitlines()[-1]))
        if seconds[-1] < 1:
            break
    limit = 3 if gpu.available() else 1  # CUDA's own start can take its time
    assert min(seconds) < limit


def test_runs_as_a_program():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "texlab.doctor"], env=env, capture_output=True, text=True, check=True)
    assert re.search(r"^yes simulate kernels", done.stdout, flags=re.MULTILINE)


def test_a_missing_compiler_has_its_remedy(whole):
    def missing():
        raise DeviceError("NVRTC cannot be used here: pip install cuda-bindings")

    whole.setattr(nvrtc, "library", missing)
    report = doctor()
    assert not report["compile for"].ok
    assert "pip install" in report["compile for"].text
    assert report["simulate kernels"].ok
    assert "no others" in report["simulate kernels"].text


def test_missing_packages_are_named_with_the_command(whole):
    whole.setattr(doctor_module, "version_of", lambda name: None if name in ("ipywidgets", "anywidget") else "1.0")
    finding = doctor()["JupyterLab and widgets"]
    assert finding == Finding(
        "JupyterLab and widgets",
        False,
        "jupyterlab 1.0, ipywidgets is missing, anywidget is missing",
        "pip install ipywidgets anywidget",
    )


def test_cupy_is_asked_for_by_the_drivers_version(whole):
    whole.setattr(doctor_module, "version_of", lambda name: None if "cupy" in name else "1.0")
    for version, package in ((12040, "cupy-cuda12x"), (13000, "cupy-cuda13x")):
        whole.setattr(gpu, "driver_cuda_version", lambda v=version: v)
        assert package in doctor()["GPU arrays"].remedy
    whole.setattr(gpu, "driver_cuda_version", lambda: 0)
    assert doctor()["GPU arrays"].ok is None


def test_two_cupys_are_one_too_many(whole):
    whole.setattr(doctor_module, "version_of", lambda name: "14.0" if name.startswith("cupy-") else None)
    finding = doctor()["GPU arrays"]
    assert not finding.ok
    assert finding.remedy.startswith("pip uninstall cupy-cuda13x cupy-cuda12x; pip install")


def test_reasons_and_commands_are_parted(whole):
    whole.setattr(gpu, "why_no_gpu", lambda: 'CuPy is not installed: pip install "cupy-cuda13x"')
    assert doctor()["run on the GPU"] == Finding(
        "run on the GPU", False, "CuPy is not installed", 'pip install "cupy-cuda13x"'
    )


def test_whatever_breaks_the_rest_stands(whole):
    def broken(*_):
        raise RuntimeError("broken on purpose")

    for name in ("_machine", "_packages", "_simulate", "_compile", "_card", "_run", "_counters", "_tvm", "_cache"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(doctor_module, name, broken)
            report = doctor()
        assert {f.topic for f in report.findings} >= TOPICS
        assert "cannot be found out: RuntimeError: broken on purpose" in repr(report)


@pytest.mark.parametrize("error", ["ImportError('libcublas')", "OSError('x')", "AttributeError('y')", "RuntimeError()"])
def test_a_broken_cupy_breaks_nothing(tmp_path, error):
    (tmp_path / "cupy.py").write_text(f"raise {error}")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "texlab.doctor"], env=env, capture_output=True, text=True, check=True)
    assert "cannot be imported" in done.stdout
    assert done.stderr == ""


def test_counters_need_a_card_then_ncu_then_permission(whole):
    assert "no GPU" in doctor()["hardware counters"].text or gpu.available()
    whole.setattr(gpu, "available", lambda: True)
    whole.setattr(doctor_module, "find_ncu", lambda: None)
    assert doctor()["hardware counters"].remedy == doctor_module.GET_NCU
    whole.setattr(doctor_module, "find_ncu", lambda: "/opt/ncu")
    for locked, ok in ((True, False), (False, True), (None, True)):
        whole.setattr(doctor_module, "counters_locked", lambda locked=locked: locked)
        assert doctor()["hardware counters"].ok is ok


def test_an_unwritable_cache_is_named(whole, tmp_path):
    (tmp_path / "file").write_text("")
    whole.setenv("TEXLAB_CACHE_DIR", str(tmp_path / "file"))
    finding = doctor()["compiled code"]
    assert not finding.ok
    assert "TEXLAB_CACHE_DIR" in finding.remedy


@pytest.mark.gpu
def test_the_card_is_described():
    start = time.perf_counter()
    report = doctor()
    assert time.perf_counter() - start < 2
    assert re.search(r"NVIDIA .*compute capability \d+\.\d+, \d+ GiB; driver .*up to CUDA \d+\.\d+", report["GPU"].text)
    assert report["run on the GPU"].ok
