"""``conv2d`` on a processor: the direct form in NCHW, as ``conv_cpu`` schedules it for the shape, compiled once and kept.

Which loops the cores share is the schedule's choice (``conv_cpu.space``). The filters are brought into its order in every
call, as PyTorch's oneDNN does too: nobody could tell whether they changed since the last one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from texlab.schedules import native
from texlab.schedules.cache import Compiled, prepared
from texlab.schedules.conv import Epilogue, conv
from texlab.schedules.work import Workload
from texlab.shapes import ConvShape


def workload(shape: ConvShape, bias: bool = False) -> Workload:
    """What ``conv2d`` computes for a shape, NCHW in and out."""
    return conv(shape, form="direct", layout="NCHW", epilogue=Epilogue(shift=bias))


@lru_cache(maxsize=64)
def _ready(shape: ConvShape, bias: bool) -> Compiled:
    return prepared(workload(shape, bias))


def conv2d(shape: ConvShape, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """``y (N,K,P,Q)`` of C-contiguous float32 ``x (N,C,H,W)``, ``w (K,C/groups,R,S)`` and ``bias (K,)``.

    The first call for a shape compiles (about 0.3 s) or finds the code on disk. Raises DeviceError without TVM.

    >>> x, w = np.arange(6, dtype="f4").reshape(1, 1, 2, 3), np.ones((1, 1, 2, 2), "f4")
    >>> conv2d(ConvShape.of(x.shape, w.shape), x, w)
    array([[[[ 8., 12.]]]], dtype=float32)
    """
    arrays: dict[str, Any] = {"x": x, "w": w} | ({} if bias is None else {"shift": bias})
    y = native.empty(shape.y_shape)
    if y.size:
        _ready(shape, bias is not None)(**arrays, out=y)
    return y
