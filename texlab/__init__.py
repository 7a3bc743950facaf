"""texlab: see the GPU convolution kernel you run.

The public names. Everything is imported when first used, so that ``import texlab`` is quick and needs no GPU library.
"""

import importlib
import sys
import types

__version__ = "0.1.0"

_HOME = {
    "ConvShape": "shapes",
    "LAYERS": "shapes",
    "ShapeError": "shapes",
    "Buffer": "program",
    "Launch": "program",
    "Program": "program",
    "Run": "program",
    "Texture": "textures",
    "TextureView": "views",
    "DeviceError": "program",
    "KernelFault": "program",
    "CompileError": "compiler",
    "kernels": "catalog",
    "conv2d": "conv",
    "im2win": "conv",
    "conv2d_reference": "reference",
    "assert_matches": "reference",
    "bench": "bench",
    "load_results": "results",
    "counters": "counters",
    "timeline": "timeline",
    "occupancy": "occupancy",
    "doctor": "doctor",
}
_MODULES = ("layouts", "explore", "draw", "schedules")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"texlab.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'texlab' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"texlab.{_HOME[name]}"), name)
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """Keeps ``texlab.bench`` the function when something imports the module of that name, which would shadow it."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, types.ModuleType) and _HOME.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
