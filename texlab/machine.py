"""What a measurement must say of where it was made: card, driver, libraries, source commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from texlab import gpu
from texlab.schedules.tvm_import import threads

ROOT = Path(__file__).resolve().parent.parent
#: distributions whose version can change a result, by the name it is recorded under
LIBRARIES = {
    "numpy": ("numpy",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "torch": ("torch",),
    "tvm": ("apache-tvm",),
    "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
}


def describe(device: str = "gpu") -> dict[str, Any]:
    """The machine as recorded beside results: gpu, compute capability, multiprocessors, memory and L2 bytes, driver,
    CUDA, Python and library versions. For the simulator (or without a GPU) ``gpu`` is None; for "cpu" there are also
    ``processor``, its name, and ``threads``, how many this process may use."""
    about: dict[str, Any] = {"gpu": None, "python": platform.python_version()}
    if device == "cpu":
        about |= {"processor": _processor(), "threads": threads()}
    for name, distributions in LIBRARIES.items():
        version = next((v for d in distributions if (v := _version(d))), None)
        if version:
            about[name] = version
    if device != "gpu" or not gpu.available():
        return about
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    capability = f"{properties['major']}.{properties['minor']}"
    about |= {
        "gpu": properties["name"].decode(),
        "compute_capability": capability,
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
        "l2_bytes": properties["l2CacheSize"],
        "driver": _driver_version(),
        "cuda": _dotted(cupy.cuda.runtime.driverGetVersion()),
        "cuda_runtime": _dotted(cupy.cuda.runtime.runtimeGetVersion()),
    }
    if "torch" in about:
        import torch

        if torch.backends.cudnn.is_available():
            about["cudnn"] = str(torch.backends.cudnn.version())
    return about


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.+)$", text, re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def commit() -> str | None:
    """The source's commit: ``TEXLAB_COMMIT`` where set, else git's, with "+" if kernels or code differ from it; None if
    neither is known."""
    if given := os.environ.get("TEXLAB_COMMIT"):
        return given
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "kernels", "texlab", ":!texlab/data")
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_version() -> str | None:
    """The driver's own version, e.g. "580.82.07"."""
    try:
        ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
