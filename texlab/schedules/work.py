"""What the schedules share: a Workload (what is computed) and a Scheduled (how), as plain data."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from texlab.program import Buffer
from texlab.schedules.tvm_import import load

TARGETS = ("llvm", "cuda")
#: (kind of workload, target) -> the module whose ``schedule(workload, **knobs)`` and ``space(workload)`` know it
_MODULES = {
    ("conv", "llvm"): "texlab.schedules.conv_cpu",
    ("conv", "cuda"): "texlab.schedules.conv_cuda",
    ("pool", "llvm"): "texlab.schedules.pool",
    ("pool", "cuda"): "texlab.schedules.pool",
    ("reduce", "llvm"): "texlab.schedules.reduce",
    ("reduce", "cuda"): "texlab.schedules.reduce",
    ("elementwise", "llvm"): "texlab.schedules.fusion",
    ("elementwise", "cuda"): "texlab.schedules.fusion",
}


@dataclass(frozen=True)
class Workload:
    """A computation without any schedule.

    ``name`` becomes the function's and the kernels' name. ``buffers``: the function's parameters in order, inputs first, one
    output last, in the layout it works in. ``make()`` gives the TIR function. ``pack(arrays)`` turns what a user has (NCHW
    activations, KCRS filters, by name) into the inputs; ``unpack(y)`` turns the output back. ``reference(arrays)`` is the
    float64 answer to the user's arrays, in the user's layout. Everything can be pickled.
    """

    kind: str
    name: str
    buffers: tuple[Buffer, ...]
    make: Callable[[], Any]
    pack: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
    unpack: Callable[[np.ndarray], np.ndarray]
    reference: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    flops: int
    about: Mapping[str, Any] = field(default_factory=dict)  # shape, form, layout, ... whatever its schedule asks for

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return self.buffers[:-1]

    @property
    def output(self) -> Buffer:
        return self.buffers[-1]

    def module(self) -> Any:
        """The unscheduled IRModule, its one function called "main"."""
        tvm = load()
        return tvm.IRModule({"main": self.make().with_attr("global_symbol", "main")})


@dataclass(frozen=True)
class Scheduled:
    """A Workload with a schedule applied: ``module`` is an IRModule with the function "main".

    ``knobs``: all of them, defaults included. ``config``: what TVM's PassContext needs when it is compiled.
    """

    workload: Workload
    target: str
    knobs: Mapping[str, Any]
    module: Any
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def script(self) -> str:
        """The loop nest as TVMScript text."""
        return self.module.script()


def schedule(workload: Workload, target: str = "llvm", **knobs: Any) -> Scheduled:
    """Apply the schedule of a workload's kind, with ``knobs`` in place of its defaults.

    Raises ValueError for an unknown target or knob, and for a value its schedule cannot use.
    """
    space_ = space(workload, target)
    for name, value in knobs.items():
        if name not in space_:
            raise ValueError(f"{workload.name} on {target} has no knob {name!r}; it has {list(space_)}")
        if isinstance(value, bool) != isinstance(space_[name][0], bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{workload.name}: {name}={value!r}; for example one of {list(space_[name])}")
    chosen = {name: choices[0] for name, choices in space_.items()} | knobs
    return _module(workload, target).schedule(workload, target, **chosen)


def space(workload: Workload, target: str = "llvm") -> dict[str, tuple[Any, ...]]:
    """The knobs of a workload's schedule: name -> the values worth trying, the default first."""
    return _module(workload, target).space(workload, target)


def _module(workload: Workload, target: str) -> Any:
    if target not in TARGETS:
        raise ValueError(f"target={target!r}; there are {list(TARGETS)}")
    return importlib.import_module(_MODULES[workload.kind, target])
