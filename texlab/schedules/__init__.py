"""Apache TVM schedules of the same convolutions, to see, turn and measure. TVM is imported when first used."""

from __future__ import annotations

import importlib
import sys
import types

_HOME = {
    "conv": "conv",
    "Epilogue": "conv",
    "Layout": "conv",
    "schedule": "work",
    "space": "work",
    "Workload": "work",
    "Scheduled": "work",
    "nest": "nest",
    "difference": "nest",
    "program": "launch",
    "program_of": "launch",
    "compiled": "cache",
    "prepared": "cache",
    "packed": "cache",
    "first_inference": "cache",
    "tune": "tune",
    "best": "database",
    "best_scheduled": "database",
    "Database": "database",
    "why_no_tvm": "tvm_import",
}
__all__ = list(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'texlab.schedules' has no attribute {name!r}")
    return getattr(importlib.import_module(f"texlab.schedules.{_HOME[name]}"), name)


class _Package(types.ModuleType):
    """Keeps ``texlab.schedules.conv`` the function when something imports the module of that name, which would shadow it."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, types.ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
