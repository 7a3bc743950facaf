"""The referee of schedules: random inputs for any Workload, and whether an output is its float64 answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from texlab.schedules.work import Workload

#: error allowed by dtype of the output, as a part of an element's size plus the root mean square of all
TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "float16": 2e-2}


def sample(workload: Workload, seed: int | None = 0) -> dict[str, np.ndarray]:
    """Random arrays as a user has them (NCHW, KCRS), by name, uniform in [-1, 1), of the inputs' dtypes.

    >>> from texlab.schedules.conv import conv
    >>> from texlab.shapes import ConvShape
    >>> shape = ConvShape(n=1, c=3, h=8, w=8, k=4, r=3, s=3)
    >>> {name: a.shape for name, a in sample(conv(shape, layout="NCHW4c")).items()}
    {'x': (1, 3, 8, 8), 'w': (4, 3, 3, 3)}
    """
    random = np.random.default_rng(seed)
    shapes = _user_shapes(workload)
    return {
        buffer.name: random.uniform(-1, 1, shapes.get(buffer.name, buffer.shape)).astype(buffer.dtype)
        for buffer in workload.inputs
    }


def _user_shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Shapes in the user's layouts, of the inputs whose own layout may be another."""
    about = workload.about
    if workload.kind == "conv":
        shape, per_channel = about["shape"], (about["shape"].k,)
        channels = {"scale": per_channel, "shift": per_channel}
        return {"x": shape.x_shape, "w": shape.w_shape, "residual": shape.y_shape, **channels}
    if workload.kind == "pool":
        shape = about["shape"]
        return {"x": (shape.n, shape.c, shape.h, shape.w)}
    return {"x": tuple(about["x_shape"])} if "x_shape" in about else {}


def fault(y: np.ndarray, want: np.ndarray) -> str | None:
    """None if ``y`` is the float64 answer ``want`` as closely as its dtype allows; else the first element that is not.

    >>> fault(np.float32([1, 2, np.nan]), np.array([1.0, 2.0, 3.0]))
    'y[2] is nan, not 3 (1 of 3 elements differ)'
    """
    if y.shape != want.shape:
        return f"y has shape {y.shape}, not {want.shape}"
    size = np.abs(want) + np.sqrt(np.mean(np.square(want)))
    bad = ~(np.abs(y - want) <= TOLERANCE[y.dtype.name] * size)
    if not bad.any():
        return None
    at = tuple(int(i[0]) for i in np.nonzero(bad))
    place = ", ".join(map(str, at))
    return f"y[{place}] is {y[at]:.6g}, not {want[at]:.6g} ({bad.sum()} of {bad.size} elements differ)"


def answer(workload: Workload, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The float64 answer to a user's arrays."""
    return np.asarray(workload.reference(arrays), np.float64)
