"""Small kernels for the simulator's tests: run one piece of CUDA C++ with named arrays."""

from __future__ import annotations

import numpy as np

from texlab.program import Buffer, Launch, Program


def program(source, *, grid=1, block=32, args=(), shared=0, entry="k", scratch=(), outputs=(), options=(), **arrays):
    """A Program with one launch; array arguments are named strings, outputs are given as ``name=(shape, dtype)``."""
    triple = lambda v: (v, 1, 1) if isinstance(v, int) else (*v, 1, 1)[:3]  # noqa: E731
    buffers = [Buffer(n, a.shape, str(a.dtype)) for n, a in arrays.items()]
    buffers += [Buffer(n, shape, dtype, "output") for n, (shape, dtype) in dict(outputs).items()]
    launch = Launch(entry, triple(grid), triple(block), tuple(args), shared)
    return Program("test", source, tuple(buffers), (launch,), options=tuple(options), filename="test.cu")


def run(source, *, trace=False, blocks=None, schedule="lockstep", limit=60.0, **how):
    """Simulate it; returns the Run."""
    arrays = {n: a for n, a in how.items() if isinstance(a, np.ndarray)}
    how = dict(trace=trace, blocks=blocks, schedule=schedule, limit=limit), program(source, **how)
    return how[1].run(device="sim", **how[0], **arrays)
