"""Apache TVM schedules of the same convolutions, to see, turn and measure. TVM is imported when first used."""

from __future__ import annotations

import importlib

_HOME = {
    "conv": "conv",
    "Epilogue": "conv",
    "Layout": "conv",
    "schedule": "work",
    "space": "work",
    "Workload": "work",
    "Scheduled": "work",
    "why_no_tvm": "tvm_import",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'texlab.schedules' has no attribute {name!r}")
    return getattr(importlib.import_module(f"texlab.schedules.{_HOME[name]}"), name)
