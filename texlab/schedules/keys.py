"""What a workload and a processor are, in words that stay the same from one process to the next: keys of what is kept."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from texlab.schedules.work import Workload


def describe(workload: Workload) -> dict[str, Any]:
    """What a workload computes, as JSON: equal for equal workloads, in every process.

    >>> from texlab.schedules.conv import conv
    >>> from texlab.shapes import ConvShape
    >>> describe(conv(ConvShape(n=1, c=3, h=8, w=8, k=4, r=3, s=3)))["buffers"][0]
    ['x', [1, 3, 8, 8], 'float32']
    """
    buffers = [[b.name, list(b.shape), b.dtype] for b in workload.buffers]
    return {"kind": workload.kind, "name": workload.name, "buffers": buffers, "about": plain(workload.about)}


def plain(value: Any) -> Any:
    """A value as JSON: dataclasses by their fields, functions by their names. TypeError for what has no lasting description.

    >>> plain({"size": (3, np.int64(4)), "call": np.mean})
    {'size': [3, 4], 'call': 'numpy.mean'}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, functools.partial):
        return {"call": plain(value.func), "with": plain(value.args), **plain(value.keywords)}
    if callable(value) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(f"{value!r} ({type(value).__name__}) has no description that stays the same")


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """This processor and what it can execute: code for another one may crash here.

    >>> processor() == processor() and len(processor()) > 8
    True
    """
    names = ("vendor_id", "model name", "flags", "Features", "CPU part")
    about = [platform.system(), platform.machine(), platform.processor()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if not line.strip() and len(about) > 3:
                    break  # one of many that are alike
                name, _, value = line.partition(":")
                if name.strip() in names:
                    about.append(value.strip())
    except OSError:
        about.append(platform.platform())
    text = "\n".join(about)
    name = next((a for a in about[3:] if "(" in a or "Processor" in a), platform.machine())
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()[:8]}"
