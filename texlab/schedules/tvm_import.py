"""Apache TVM, imported when first needed and only in the versions that work together; and the targets texlab compiles for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from functools import lru_cache
from typing import Any

from texlab.program import DeviceError

#: the versions the schedules are written for; a newer apache-tvm-ffi crashes this TVM
PINS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
INSTALL = "pip install " + " ".join(f"{name}=={version}" for name, version in PINS.items())


def why_no_tvm() -> str | None:
    """Why schedules cannot be used here, with the remedy; None if they can. Nothing is imported.

    >>> why_no_tvm() is None or "pip install" in why_no_tvm()
    True
    """
    if importlib.util.find_spec("tvm") is None:
        return f"Apache TVM is not installed: {INSTALL}"
    for name, version in PINS.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "missing"
        if found != version:
            return f"{name} is {found}, but texlab's schedules need {version} (others crash or differ): {INSTALL}"
    return None


def use_all_cores() -> None:
    """Before TVM's runtime is loaded: its threads. By itself it takes every other processor for a core's second thread, and
    where each is a core, as in most virtual machines, half of them stand idle."""
    os.environ.setdefault("TVM_NUM_THREADS", str(threads()))


@lru_cache(maxsize=1)
def load() -> Any:
    """The module ``tvm``. Raises DeviceError if it is missing or not the pinned version."""
    reason = why_no_tvm()
    if reason:
        raise DeviceError(f"TVM schedules cannot be used: {reason}")
    # Without it TVM compiles CUDA text with nvcc or NVRTC itself, which needs a GPU or a toolkit; texlab compiles the text.
    os.environ.setdefault("TVM_COMPILE_FORCE_FALLBACK", "1")
    use_all_cores()
    import tvm

    return tvm


def threads() -> int:
    """Threads that CPU code uses: the processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def cpu_target() -> Any:
    """LLVM for this very processor: without its name the code is three to five times slower."""
    tvm = load()
    name = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": name, "num-cores": threads()})


@lru_cache(maxsize=8)
def cuda_target(arch: str = "sm_90") -> Any:
    """CUDA source for one architecture; needs no GPU."""
    return load().target.Target({"kind": "cuda", "arch": arch})
