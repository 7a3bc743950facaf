"""``conv2d`` and ``im2win``: arrays in, arrays of the same kind out, through a kernel of the catalog."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

from texlab.catalog import kernels
from texlab.program import DeviceError, device_function
from texlab.shapes import ConvShape, ShapeError

DEFAULT_KERNEL = "im2win_zigzag"


def conv2d(
    x: Any,
    w: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: Any = None,
    kernel: str | None = None,
    device: str | None = None,
    **tunables: int | str,
) -> Any:
    """Convolve ``x (N,C,H,W)`` with ``w (K,C/groups,R,S)``: ``y (N,K,P,Q)``, float32, of the same kind as ``x``.

    Parameters
    ----------
    x, w, bias : NumPy or CuPy arrays, or any tensor that speaks DLPack (PyTorch, JAX, ...); bias ``(K,)`` or None.
        Views, transposes and broadcasts are fine: they are copied to C order when they are not in it.
    stride, padding, dilation, groups : as in :class:`texlab.ConvShape`; padding may be "same" or four-sided.
    kernel : a "conv" kernel of ``texlab.kernels`` (default "im2win_zigzag"); ``tunables`` are its ``#define``s.
    device : "gpu" or "sim" (the simulator). By default arrays in GPU memory run on the GPU, and host arrays on the GPU
        when CuPy finds one, else in the simulator.

    Raises ShapeError, TypeError (dtype), DeviceError, CompileError, KernelFault.

    >>> x = np.arange(25, dtype="float32").reshape(1, 1, 5, 5)
    >>> w = np.array([[2, -1], [-1, 2]], "float32").reshape(1, 1, 2, 2)
    >>> conv2d(x, w, dilation=2, device="sim")[0, 0]
    array([[12., 14., 16.],
           [22., 24., 26.],
           [32., 34., 36.]], dtype=float32)
    """
    kernel = DEFAULT_KERNEL if kernel is None else kernel
    if kernel not in kernels or kernels[kernel].kind != "conv":
        names = [name for name, k in kernels.items() if k.kind == "conv"]
        raise ValueError(f"conv2d: kernel={kernel!r} is no convolution kernel; choose one of {names}")
    arrays = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
    how = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    shape = ConvShape.of(tuple(x.shape), tuple(w.shape), **how)
    if bias is not None and tuple(bias.shape) != (shape.k,):
        raise ShapeError(
            f"conv2d: bias has shape {tuple(bias.shape)} but w has K={shape.k} filters: it must be ({shape.k},)"
        )
    program = kernels[kernel].program(shape, bias=bias is not None, **tunables)
    return _run("conv2d", program, arrays, x, device)


def im2win(
    x: Any,
    filter_size: tuple[int, int],
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    device: str | None = None,
) -> Any:
    """The im2win layout of ``x (N,C,H,W)`` for an (R, S) filter: ``xw (N,C,P,WP*R)``, of the same kind as ``x``.

    ``xw[n,c,p, w*R + r] == padded x[n,c, p*stride_h + r*dilation_h, w]``, WP the padded width. (arXiv:2306.14316)

    >>> im2win(np.arange(6, dtype="float32").reshape(1, 1, 2, 3), (2, 2), device="sim")
    array([[[[0., 3., 1., 4., 2., 5.]]]], dtype=float32)
    """
    r, s = filter_size
    if len(x.shape) != 4:
        raise ShapeError(f"im2win: x has shape {tuple(x.shape)}; it must be (N,C,H,W)")
    n, c, h, w = x.shape
    shape = ConvShape(n, c, h, w, 1, r, s, stride=stride, padding=padding, dilation=dilation)
    return _run("im2win", kernels["im2win"].program(shape), {"x": x}, x, device)


def _run(caller: str, program: Any, arrays: dict[str, Any], like: Any, device: str | None) -> Any:
    """Run ``program`` on ``arrays`` where they live (or where ``device`` says) and give its output the kind of ``like``."""
    for name, a in arrays.items():
        if str(a.dtype).removeprefix("torch.") != "float32":
            raise TypeError(f"{caller}: {name} is {a.dtype}; the kernels take float32: pass {name} as float32")
    on_gpu = {name: _on_gpu(a) for name, a in arrays.items()}
    if len(set(on_gpu.values())) > 1:
        raise DeviceError(f"{caller}: all arrays must lie in the same memory, got GPU memory: {on_gpu}")
    in_gpu_memory = on_gpu["x"]
    if device is None:
        device = "gpu" if in_gpu_memory or _gpu_present() else "sim"
    if device == "sim" and in_gpu_memory:
        raise DeviceError(f"{caller}: the arrays are in GPU memory; copy them to the host to use device='sim'")
    if in_gpu_memory:
        import cupy

        convert = cupy.from_dlpack
    else:
        convert = np.asarray if isinstance(like, np.ndarray) else np.from_dlpack
    inputs = {name: _contiguous(a, convert) for name, a in arrays.items()}
    y = device_function(device)(program, inputs).output
    if device == "gpu" and not in_gpu_memory:
        y = y.get()
    return _as_kind_of(like, y)


def _on_gpu(a: Any) -> bool:
    if isinstance(a, np.ndarray):
        return False
    if not hasattr(a, "__dlpack_device__"):
        raise TypeError(f"expected a NumPy or CuPy array or a DLPack tensor, got {type(a).__name__}")
    kind = int(a.__dlpack_device__()[0])
    if kind not in (1, 2, 3, 13):  # CPU, CUDA, CUDA pinned host, CUDA managed
        raise DeviceError(f"the tensor lies on DLPack device type {kind}; move it to the CPU or to an NVIDIA GPU")
    return kind in (2, 13)


def _gpu_present() -> bool:
    return importlib.import_module("texlab.gpu").available()


def _contiguous(a: Any, convert: Any) -> Any:
    """``a`` as a C-contiguous NumPy or CuPy array: kernels know no strides."""
    if hasattr(a, "requires_grad") and a.requires_grad:
        a = a.detach()
    a = convert(a)
    return a if a.flags.c_contiguous else a.copy(order="C")


def _as_kind_of(like: Any, y: Any) -> Any:
    """``y`` (NumPy or CuPy) as an array of ``like``'s library, without a copy where DLPack allows."""
    if type(y) is type(like):
        return y
    module = sys.modules[type(like).__module__.partition(".")[0]]
    if hasattr(module, "from_dlpack"):
        return module.from_dlpack(y)
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().from_dlpack(y)
    dlpack = getattr(module, "dlpack", None)  # jax.dlpack
    if dlpack is None:
        raise TypeError(f"cannot turn the result into a {type(like).__name__}: its library has no from_dlpack")
    return dlpack.from_dlpack(y)
