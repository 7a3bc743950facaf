"""What this machine can do, and for each thing it cannot, the command that changes that. ``python -m texlab.doctor``."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from importlib import metadata
from pathlib import Path

from texlab import gpu, nvrtc
from texlab.compiler import cache_dir
from texlab.schedules.tvm_import import INSTALL, PINS, why_no_tvm

#: distributions that matter here, by what they are for; of several on a line, one is enough
PACKAGES = (
    ("arrays and tables", ("numpy",), ("pandas",), ("matplotlib",)),
    ("JupyterLab and widgets", ("jupyterlab",), ("ipywidgets",), ("anywidget",)),
    ("compiler", ("cuda-bindings",), ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), ("nvidia-cuda-runtime",)),
    ("GPU arrays", ("cupy-cuda13x", "cupy-cuda12x", "cupy")),
)


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``ok``: True, False, or None for what is merely stated; ``remedy`` what to do about it."""

    topic: str
    ok: bool | None
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """What ``doctor()`` found; shows itself as a table in a notebook and as text elsewhere."""

    findings: tuple[Finding, ...]

    def __getitem__(self, topic: str) -> Finding:
        """The finding on one topic, e.g. ``doctor()["run on the GPU"].ok``."""
        for finding in self.findings:
            if finding.topic == topic:
                return finding
        raise KeyError(f"no topic {topic!r}; there are {[f.topic for f in self.findings]}")

    def __repr__(self) -> str:
        width = max(len(f.topic) for f in self.findings)
        lines = []
        for f in self.findings:
            lines.append(f"{_SIGNS[f.ok]:3} {f.topic:{width}}  {f.text}")
            if f.remedy:
                lines.append(f"{'':{width + 4}}  -> {f.remedy}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for f in self.findings:
            remedy = f"<br>&rarr; <code>{escape(f.remedy)}</code>" if f.remedy else ""
            rows.append(
                f"<tr><td>{_SIGNS[f.ok]}</td><th scope='row' style='text-align:left'>{escape(f.topic)}</th>"
                f"<td style='text-align:left'>{escape(f.text)}{remedy}</td></tr>"
            )
        return f"<table><caption>What this machine can do</caption>{''.join(rows)}</table>"


_SIGNS = {True: "yes", False: "no", None: ""}


def doctor() -> Report:
    """What this machine can do, what is missing and how to install it; never raises, takes under a second.

    >>> doctor()["simulate kernels"].ok
    True
    """
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("machine", _machine),
        *((what, lambda what=what, names=names: _packages(what, names)) for what, *names in PACKAGES),
        ("simulate kernels", _simulate),
        ("compile for", _compile),
        ("GPU", _card),
        ("run on the GPU", _run),
        ("hardware counters", _counters),
        ("TVM schedules", _tvm),
        ("compiled code", _cache),
    )
    return Report(tuple(_guarded(topic, check) for topic, check in checks))


def _guarded(topic: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # whatever is broken here, the rest of the report still stands
        return Finding(topic, False, f"cannot be found out: {type(error).__name__}: {error}")


def _machine() -> Finding:
    system = (
        platform.freedesktop_os_release()["PRETTY_NAME"] if hasattr(os, "uname") and _linux() else platform.platform()
    )
    text = f"Python {platform.python_version()} on {system}, {platform.machine()}, {os.cpu_count()} processors"
    return Finding("machine", None, text)


def _linux() -> bool:
    return sys.platform == "linux" and Path("/etc/os-release").exists()


def _packages(what: str, wanted: list[tuple[str, ...]]) -> Finding:
    found, missing = [], []
    for names in wanted:
        versions = [f"{name} {v}" for name in names if (v := version_of(name))]
        found += versions
        if not versions:
            missing.append(names[0])
    if what == "GPU arrays" and len(found) > 1:
        clash = " ".join(name.split()[0] for name in found)
        return Finding(
            what,
            False,
            f"{', '.join(found)} overwrite each other",
            f"pip uninstall {clash}; pip install {gpu.cupy_package()}",
        )
    if what == "GPU arrays" and missing and not gpu.driver_cuda_version():
        return Finding(what, None, "CuPy is not installed; without an NVIDIA GPU it is not needed")
    if what == "GPU arrays" and missing:
        return Finding(what, False, "CuPy is not installed", f"pip install {gpu.cupy_package()}")
    if missing and what == "compiler" and sys.platform == "darwin":
        return Finding(what, False, "NVIDIA ships no compiler library for macOS")
    text = ", ".join(found + [f"{name} is missing" for name in missing])
    return Finding(what, not missing, text, f"pip install {' '.join(missing)}" if missing else "")


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _simulate() -> Finding:
    if _nvrtc_error() is None:
        return Finding("simulate kernels", True, "any kernel, also your own")
    return Finding(
        "simulate kernels", True, "the library's kernels with the tunables that the notebooks use, no others"
    )


def _compile() -> Finding:
    error = _nvrtc_error()
    if error:
        return Finding("compile for", False, error)
    text = f"{', '.join(nvrtc.supported_archs())} (NVRTC {nvrtc.version()})"
    if nvrtc.include_dir() is None:
        return Finding("compile for", True, f"{text}, but without cuda_fp16.h", "pip install nvidia-cuda-runtime")
    return Finding("compile for", True, text)


def _nvrtc_error() -> str | None:
    try:
        nvrtc.library()
    except Exception as error:
        return str(error)
    return None


def _card() -> Finding:
    driver = _driver_version()
    cuda = gpu.driver_cuda_version()
    goes = f"driver {driver or 'of unknown version'}, up to CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    if gpu.available():
        import cupy

        runtime = cupy.cuda.runtime
        cards = []
        for i in range(runtime.getDeviceCount()):
            p = runtime.getDeviceProperties(i)
            memory = p["totalGlobalMem"] / 2**30
            cards.append(f"{p['name'].decode()}, compute capability {p['major']}.{p['minor']}, {memory:.0f} GiB")
        return Finding("GPU", True, "; ".join([*cards, goes] if goes else cards))
    names = [
        line.partition(":")[2].strip()
        for path in glob.glob("/proc/driver/nvidia/gpus/*/information")
        for line in Path(path).read_text().splitlines()
        if line.startswith("Model:")
    ]
    if names or cuda:
        return Finding(
            "GPU", None, f"{', '.join(names) or 'none seen'}; {goes or 'its driver is not in this environment'}"
        )
    return Finding("GPU", None, "no NVIDIA GPU")


def _driver_version() -> str | None:
    """The driver's own version (580.82.07), as the Linux kernel module states it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n")[0].split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), None)


def _run() -> Finding:
    reason = gpu.why_no_gpu()
    if reason is None:
        return Finding("run on the GPU", True, "any kernel, also your own")
    text, _, remedy = reason.partition(": pip ")  # the command, if the reason ends with one
    return Finding("run on the GPU", False, text, f"pip {remedy}" if remedy else "")


def find_ncu() -> str | None:
    """Nsight Compute's command line program: on PATH, else in the usual places, newest first; None if not found."""
    on_path = shutil.which("ncu")
    if on_path:
        return on_path
    places = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
    found = [p for place in places for p in sorted(glob.glob(place), reverse=True) if os.access(p, os.X_OK)]
    return found[0] if found else None


def counters_locked() -> bool | None:
    """True if the NVIDIA driver reserves its counters for administrators and this process is none; None if unknown."""
    try:
        settings = Path("/proc/driver/nvidia/params").read_text()
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    if "RmProfilingAdminOnly: 1" not in settings:
        return False
    capabilities = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return not int(capabilities, 16) >> 21 & 1  # CAP_SYS_ADMIN


UNLOCK = (
    "as administrator: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-profiling.conf, "
    "then restart the machine; in a container: docker run --cap-add SYS_ADMIN"
)
GET_NCU = "install Nsight Compute (https://developer.nvidia.com/nsight-compute, or apt install nsight-compute)"


def _counters() -> Finding:
    topic = "hardware counters"
    if not gpu.available():
        return Finding(topic, False, "there is no GPU to count on; recorded counters are shown instead")
    ncu = find_ncu()
    if ncu is None:
        return Finding(topic, False, "Nsight Compute (ncu) is not installed", GET_NCU)
    locked = counters_locked()
    if locked:
        return Finding(topic, False, f"{ncu} is there, but the driver lets only administrators count", UNLOCK)
    return Finding(
        topic, True, ncu + (" (whether the driver permits it shows when it is used)" if locked is None else "")
    )


def _tvm() -> Finding:
    reason = why_no_tvm()
    if reason:
        return Finding("TVM schedules", False, reason.removesuffix(f": {INSTALL}"), INSTALL)
    return Finding("TVM schedules", True, ", ".join(f"{name} {version}" for name, version in PINS.items()))


def _cache() -> Finding:
    folder = cache_dir()
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Finding("compiled code", None, f"is kept in {folder}")
    return Finding(
        "compiled code", False, f"cannot be kept in {folder}", "set TEXLAB_CACHE_DIR to a folder you can write to"
    )


if __name__ == "__main__":
    print(doctor())
