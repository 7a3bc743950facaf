"""Print the pip extra for this machine's NVIDIA driver: cuda13, cuda12 or nothing. Plain Python, nothing installed yet.

The driver's own library answers with the newest CUDA version it can run; nvidia-smi only tells whether a card is there.
"""

from __future__ import annotations

import ctypes
import shutil
import sys


def driver_version() -> int | None:
    """The driver's CUDA version as CUDA counts it (13010 for 13.1), or None without a driver."""
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value:
            return version.value
    return None


def extra(version: int | None) -> tuple[str, str]:
    """The extra, and what to tell the person at the screen."""
    if version is None:
        if shutil.which("nvidia-smi"):
            return "", "nvidia-smi is here but libcuda is not: in a container, pass the whole driver through"
        return "", "no NVIDIA driver: kernels run in the simulator"
    text = f"NVIDIA driver for CUDA {version // 1000}.{version % 1000 // 10}"
    if version >= 13000:
        return "cuda13", f"{text}: adding CuPy for CUDA 13"
    if version >= 12000:
        return "cuda12", f"{text}: adding CuPy for CUDA 12"
    return "", f"{text} is too old (12 or newer is needed): kernels run in the simulator"


if __name__ == "__main__":
    name, message = extra(driver_version())
    print(message, file=sys.stderr)
    print(name)
