"""``conv2d`` and ``im2win``: arrays in, arrays of the same kind out, through a kernel of the catalog."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from texlab import precision as formats
from texlab.catalog import kernels
from texlab.precision import PRECISIONS
from texlab.program import DeviceError, Program, device_function
from texlab.schedules import tvm_import
from texlab.shapes import ConvShape, ShapeError

DEFAULT_KERNEL = "im2win_zigzag"
TENSOR_CORES = "im2win_tensor_core"
#: dtype that needs no conversion -> its precision
OWN_PRECISION = {"float32": "float32", "float16": "float16", "int8": "int8"}


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
    precision: str | None = None,
    layout: str = "NCHW",
    **tunables: int | str,
) -> Any:
    """Convolve ``x (N,C,H,W)`` with ``w (K,C/groups,R,S)``: ``y (N,K,P,Q)``, of the same kind as ``x``.

    =========================  ====================  ==================================================  =======
    x and w                    precision             computed                                            y
    =========================  ====================  ==================================================  =======
    float32                    None or "float32"     in float32, by "im2win_zigzag" unless ``kernel``;   float32
                                                     without a GPU by a TVM schedule for the processor
    float16                    None or "float16"     on tensor cores, summed in float32                  float16
    int8                       None or "int8"        on tensor cores, exactly                            int32
    float32                    "float16",            rounded to it, then on tensor cores                 float32
                               "bfloat16", "tf32"
    float32                    "int8", "e4m3"        quantised (one scale for x, one for each filter),   float32
                                                     then on tensor cores
    =========================  ====================  ==================================================  =======

    Parameters
    ----------
    x, w, bias : NumPy or CuPy arrays, or any tensor that speaks DLPack (PyTorch, JAX, ...); bias ``(K,)`` or None.
        Views, transposes and broadcasts are fine: they are copied to C order when they are not in it.
    stride, padding, dilation, groups : as in :class:`texlab.ConvShape`; padding may be "same" or four-sided.
    kernel : a "conv" kernel of ``texlab.kernels``; ``tunables`` are its ``#define``s.
    device : "gpu", "cpu" (machine code from a TVM schedule; float32, NCHW) or "sim" (the CUDA kernel in the simulator). By
        default arrays in GPU memory run on the GPU, and host arrays on the GPU when CuPy finds one. Without a GPU a call
        that names no kernel and no tunables runs on the "cpu" if it can and TVM is installed, any other in the simulator.
    precision : see above; nothing is converted unless it is asked for (``texlab.precision`` has the formats' rules).
    layout : "NHWC" takes ``x (N,H,W,C)`` and gives ``y (N,P,Q,K)``, on tensor cores only; w stays as it is.

    Raises ShapeError, TypeError (dtype), ValueError, DeviceError, CompileError, KernelFault.

    >>> x = np.arange(25, dtype="float32").reshape(1, 1, 5, 5)
    >>> w = np.array([[2, -1], [-1, 2]], "float32").reshape(1, 1, 2, 2)
    >>> conv2d(x, w, dilation=2, device="sim")[0, 0]
    array([[12., 14., 16.],
           [22., 24., 26.],
           [32., 34., 36.]], dtype=float32)
    >>> conv2d(x.astype("int8"), w.astype("int8"), dilation=2, device="sim").dtype
    dtype('int32')
    """
    own = _own_precision(x, w)
    chosen_freely = kernel is None and not tunables
    precision = own if precision is None else precision
    if own != "float32" and precision != own:
        raise TypeError(
            f"conv2d: precision={precision!r} but x is {own}: pass float32 arrays, which are then converted"
        )
    if precision != "float32":
        formats.precision(precision)
    if kernel is None:
        kernel = DEFAULT_KERNEL if precision == "float32" else TENSOR_CORES
    if kernel not in kernels or kernels[kernel].kind != "conv":
        names = [name for name, k in kernels.items() if k.kind == "conv"]
        raise ValueError(f"conv2d: kernel={kernel!r} is no convolution kernel; choose one of {names}")
    if (kernel == TENSOR_CORES) != (precision != "float32"):
        takes = f"one of {list(PRECISIONS)}" if kernel == TENSOR_CORES else "'float32'"
        raise TypeError(
            f"conv2d: kernel {kernel!r} computes in {takes}, not in {precision!r}; say precision=... with float32 arrays"
        )
    if layout not in ("NCHW", "NHWC"):
        raise ValueError(f"conv2d: layout={layout!r}; it is 'NCHW' or 'NHWC'")
    if layout == "NHWC" and kernel != TENSOR_CORES:
        raise ValueError(
            f"conv2d: kernel {kernel!r} takes NCHW only; layout='NHWC' runs on tensor cores: say precision='tf32', or "
            "'float16', or pass float16 arrays"
        )
    if taken := sorted({"PRECISION", "NHWC"} & set(tunables)):
        raise ValueError(f"conv2d: say precision=... and layout=... instead of {taken}")
    x_shape = tuple(x.shape)
    if layout == "NHWC" and len(x_shape) == 4:
        x_shape = tuple(x_shape[i] for i in (0, 3, 1, 2))
    how = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    shape = ConvShape.of(x_shape, tuple(w.shape), **how)
    if bias is not None and tuple(bias.shape) != (shape.k,):
        raise ShapeError(
            f"conv2d: bias has shape {tuple(bias.shape)} but w has K={shape.k} filters: it must be ({shape.k},)"
        )
    arrays = {"x": x, "w": w} | ({} if bias is None else {"bias": bias})
    if device == "cpu" and not (chosen_freely and precision == "float32"):
        raise ValueError(
            f"conv2d: device='cpu' runs a TVM schedule in float32; it has no kernel={kernel!r}, tunables {sorted(tunables)} or "
            f"precision={precision!r}: leave them out, or say device='sim' to simulate the CUDA kernel"
        )
    if precision == "float32":
        _check_float32("conv2d", arrays)
        if device == "cpu" or (
            device is None and chosen_freely and not any(map(_on_gpu, arrays.values())) and _cpu_is_best()
        ):
            return _on_processor(shape, arrays, x)
        program = kernels[kernel].program(shape, bias=bias is not None, **tunables)
        return _run("conv2d", program, arrays, x, device)
    fixed = {"PRECISION": formats.precision(precision).code, "NHWC": int(layout == "NHWC")}
    wide = 2 if own == "float32" else int(precision == "int8")
    scale = own == "float32" and formats.precision(precision).scaled
    if bias is not None and precision == "int8" and tunables.get("WIDE_OUTPUT", wide) == 1:
        raise TypeError("conv2d: int8 arrays give the exact int32 sums, without a bias: add an int32 one to y yourself")
    chosen = {"WIDE_OUTPUT": wide, **_tiles(shape)} | tunables | fixed
    program = kernels[kernel].program(shape, bias=bias is not None, scale=scale, **chosen)

    def prepare(given: dict[str, Any]) -> dict[str, Any]:
        out = dict(given)
        if own == "float32":
            out["x"], x_scale = formats.quantise(given["x"], precision)
            out["w"], w_scale = formats.quantise(given["w"], precision, per_channel=True)
            out |= {"scale": x_scale * w_scale} if scale else {}
        return out | ({"bias": given["bias"].astype(np.float32)} if bias is not None else {})

    return _run("conv2d", program, arrays, x, device, prepare)


def _cpu_is_best() -> bool:
    return not _gpu_present() and tvm_import.why_no_tvm() is None


def _on_processor(shape: ConvShape, arrays: dict[str, Any], like: Any) -> Any:
    """The convolution of host arrays by a TVM schedule for this processor."""
    on_gpu = {name: _on_gpu(a) for name, a in arrays.items()}
    if any(on_gpu.values()):
        raise DeviceError(f"conv2d: device='cpu' takes host arrays, got GPU memory: {on_gpu}; copy them to the host")
    convert = np.asarray if isinstance(like, np.ndarray) else np.from_dlpack
    given = {name: _contiguous(a, convert) for name, a in arrays.items()}
    y = importlib.import_module("texlab.schedules.cpu").conv2d(shape, given["x"], given["w"], given.get("bias"))
    return _as_kind_of(like, y)


def _own_precision(x: Any, w: Any) -> str:
    """The precision that the arrays' dtype stands for."""
    for name, a in (("x", x), ("w", w)):
        if not hasattr(a, "dtype"):
            raise TypeError(f"conv2d: {name} is a {type(a).__name__}; pass a NumPy or CuPy array or a DLPack tensor")
    found = {"x": _dtype(x), "w": _dtype(w)}
    for name, dtype in found.items():
        if dtype not in OWN_PRECISION:
            raise TypeError(
                f"conv2d: {name} is {dtype}; the kernels take float32, float16 and int8. For other formats pass float32 "
                f"arrays and say precision='bfloat16', 'tf32' or 'e4m3'"
            )
    if found["x"] != found["w"]:
        raise TypeError(f"conv2d: x is {found['x']} but w is {found['w']}: pass both in one dtype")
    return OWN_PRECISION[found["x"]]


def _tiles(shape: ConvShape) -> dict[str, int]:
    """Block tiles that few channels do not leave half empty."""
    return {"BLOCK_K": 32} if shape.k // shape.groups <= 32 else {}


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
    _check_float32("im2win", {"x": x})
    return _run("im2win", kernels["im2win"].program(shape), {"x": x}, x, device)


def _dtype(a: Any) -> str:
    return str(a.dtype).removeprefix("torch.")


def _check_float32(caller: str, arrays: dict[str, Any]) -> None:
    for name, a in arrays.items():
        if _dtype(a) != "float32":
            raise TypeError(f"{caller}: {name} is {a.dtype}; the kernels take float32: pass {name} as float32")


def _run(
    caller: str,
    program: Program,
    arrays: dict[str, Any],
    like: Any,
    device: str | None,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Any:
    """Run ``program`` on ``arrays`` where they live (or where ``device`` says) and give its output the kind of ``like``;
    ``prepare`` makes the program's inputs of them."""
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
    y = device_function(device)(program, prepare(inputs)).output
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
