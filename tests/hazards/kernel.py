"""A small kernel that does something wrong on purpose, or something right that looks wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from texlab.program import Buffer, Launch, Program


@dataclass(frozen=True)
class Seeded:
    """A faulty kernel and what must be reported.

    ``kinds``: the acceptable ``KernelFault.kind``, or ("ValueError",) where the launch cannot even be made. ``where``: what
    else is determined: block, thread, address, offset, buffer. The faulty lines carry the comment ``// here``; any of them
    may be named. ``tool``: the part of compute-sanitizer that sees such a fault on a GPU, "launch" if the driver refuses, ""
    if none can (``note`` says why). ``schedule``: the simulator's schedule that finds it; "lockstep" is the default run.
    """

    name: str
    kinds: tuple[str, ...]
    program: Program
    inputs: dict[str, np.ndarray]
    tool: str
    where: dict[str, Any] = field(default_factory=dict)
    schedule: str = "lockstep"
    says: str = ""
    note: str = ""

    @property
    def lines(self) -> set[int]:
        return {i + 1 for i, text in enumerate(self.program.source.splitlines()) if "// here" in text}


@dataclass(frozen=True)
class Clean:
    """A correct kernel that a checker could mistake, and its outputs. ``note``: where a GPU's tools see it otherwise."""

    name: str
    program: Program
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    note: str = ""


def program(
    name: str,
    source: str,
    *,
    grid: Any = 1,
    block: Any = 32,
    args: Sequence[Any] = (),
    outputs: Mapping[str, tuple[Any, str]] | None = None,
    scratch: Mapping[str, tuple[Any, str]] | None = None,
    shared: int = 0,
    then: Sequence[tuple[Any, ...]] = (),
    inputs: Mapping[str, np.ndarray],
) -> Program:
    """``source``'s kernels k, k2, ... under the case's own name; arguments default to inputs, then outputs."""
    triple = lambda v: (v, 1, 1) if isinstance(v, int) else (*v, 1, 1)[:3]  # noqa: E731
    shape = lambda v: (v,) if isinstance(v, int) else tuple(v)  # noqa: E731
    entry = lambda k: f"{name}_{k}"  # noqa: E731
    outputs = {"r": (32, "float32")} if outputs is None else outputs
    buffers = [Buffer(n, a.shape, str(a.dtype)) for n, a in inputs.items()]
    for role, group in (("output", outputs), ("scratch", scratch or {})):
        buffers += [Buffer(n, shape(s), d, role) for n, (s, d) in group.items()]
    launches = [Launch(entry("k"), triple(grid), triple(block), tuple(args) or (*inputs, *outputs), shared)]
    launches += [Launch(entry(e), triple(g), triple(b), tuple(a)) for e, g, b, a in then]
    source = re.sub(r"(__global__ void )(k\d*)\(", lambda m: f"{m[1]}{entry(m[2])}(", source.strip("\n") + "\n")
    return Program(name, source, tuple(buffers), tuple(launches), filename=f"{name}.cu")


def floats(*shape: int) -> np.ndarray:
    """Different whole numbers, exact in every sum the kernels form."""
    return (np.arange(int(np.prod(shape))) % 509 - 100).astype("float32").reshape(shape)


@dataclass
class Faults:
    """The seeded faults of one module."""

    all: list[Seeded] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        kinds: str,
        tool: str,
        source: str,
        *,
        where: Mapping[str, Any] | None = None,
        schedule: str = "lockstep",
        says: str = "",
        note: str = "",
        inputs: Mapping[str, np.ndarray] | None = None,
        **how: Any,
    ) -> None:
        inputs = dict(inputs or {})
        made = program(name, source, inputs=inputs, **how)
        self.all.append(Seeded(name, tuple(kinds.split()), made, inputs, tool, dict(where or {}), schedule, says, note))


@dataclass
class Cleans:
    """The correct kernels of one module; ``expect`` gives the single output, or a dict, from the inputs."""

    all: list[Clean] = field(default_factory=list)

    def __call__(
        self,
        name: str,
        source: str,
        expect: Callable[..., Any] | Any,
        *,
        note: str = "",
        inputs: Mapping[str, np.ndarray] | None = None,
        **how: Any,
    ) -> None:
        inputs = dict(inputs or {})
        made = program(name, source, inputs=inputs, **how)
        got = expect(**inputs) if callable(expect) else expect
        outputs = got if isinstance(got, dict) else {made.outputs[0].name: got}
        whole = {b.name: np.asarray(outputs[b.name]).astype(b.dtype).reshape(b.shape) for b in made.outputs}
        self.all.append(Clean(name, made, inputs, whole, note))
