"""texlab: see the GPU convolution kernel you run.

The public names. Everything is imported when first used, so that ``import texlab`` is quick and needs no GPU library.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "ConvShape": "shapes",
    "LAYERS": "shapes",
    "ShapeError": "shapes",
    "Buffer": "program",
    "Launch": "program",
    "Program": "program",
    "Run": "program",
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
    "doctor": "doctor",
}
_MODULES = ("layouts", "explore", "draw")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"texlab.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'texlab' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"texlab.{_HOME[name]}"), name)
    globals()[name] = value  # also shadows a submodule of the same name (texlab.bench is the function)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
