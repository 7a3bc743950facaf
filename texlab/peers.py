"""What kernels are measured against: cuDNN, and im2col followed by cuBLAS, both through PyTorch.

Each peer gets its best: cuDNN picks its algorithm by timing (``benchmark=True``), im2col tries two ways to build the
column matrix and keeps the faster; "unfold+cublas" builds it as PyTorch itself does (``unfold``). TF32 is off for float32.
What a peer allocates beyond its output counts. In float16 and bfloat16 the arrays are of that type; "cudnn_nhwc" has them
with channels innermost (PyTorch's ``channels_last``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

from texlab.program import DeviceError
from texlab.shapes import ConvShape


def torch_conv(x: Any, w: Any, shape: ConvShape) -> Any:
    """``torch.nn.functional.conv2d`` of torch tensors for any :class:`ConvShape`, uneven padding included."""
    import torch.nn.functional as F

    top, bottom, left, right = shape.padding
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.conv2d(x, w, None, shape.stride, (top, left), shape.dilation, shape.groups)


def _col_unfold(x: Any, shape: ConvShape) -> Any:
    """The column matrix (N, C*R*S, P*Q) by PyTorch's own im2col kernel, one launch an image."""
    import torch.nn.functional as F

    top, bottom, left, right = shape.padding
    if (top, left) != (bottom, right):
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return F.unfold(x, (shape.r, shape.s), shape.dilation, (top, left), shape.stride)


def _col_strided(x: Any, shape: ConvShape) -> Any:
    """The column matrix (N, C*R*S, P*Q) as one strided copy of the whole batch."""
    import torch.nn.functional as F

    top, bottom, left, right = shape.padding
    if any(shape.padding):
        x = F.pad(x, (left, right, top, bottom))
    sn, sc, sh, sw = x.stride()
    (vertical, horizontal), (dh, dw) = shape.stride, shape.dilation
    windows = x.as_strided(
        (shape.n, shape.c, shape.r, shape.s, shape.p, shape.q),
        (sn, sc, sh * dh, sw * dw, sh * vertical, sw * horizontal),
    )
    return windows.reshape(shape.n, shape.c * shape.r * shape.s, shape.p * shape.q)


def _gemm(col: Any, w: Any, shape: ConvShape) -> Any:
    """``y (N,K,P,Q)`` from the column matrix: one batched matrix product."""
    terms = prod(shape.w_shape[1:])
    a = w.reshape(shape.groups, shape.k // shape.groups, terms)
    b = col.reshape(shape.n, shape.groups, terms, shape.p * shape.q)
    return (a @ b if shape.groups > 1 else a[0] @ b[:, 0]).reshape(shape.y_shape)


class Peer:
    """A peer ready to run one shape: ``launch()`` computes ``output`` from the arrays last given to ``load``.

    ``extra_bytes``: the most PyTorch allocated during a call beyond the output.

    Raises DeviceError if PyTorch or its GPU support is missing.
    """

    def __init__(self, name: str, shape: ConvShape, arrays: dict[str, Any], precision: str = "float32") -> None:
        torch = _torch()
        if precision not in _TORCH:
            raise DeviceError(f"{name}: PyTorch convolves on the GPU in {list(_TORCH)}, not in {precision}")
        self.output: Any = None
        self._shape, self._torch, self._nhwc = shape, torch, name.endswith("_nhwc")
        self._type, self._libraries = getattr(torch, _TORCH[precision]), partial(chosen_libraries, precision == "tf32")
        self.itemsize = self._type.itemsize
        self.load(arrays)
        _release(torch)
        before = torch.cuda.memory_allocated()
        with self._libraries():
            ways = _WAYS[name]
            self._way = min(ways, key=lambda way: _quick_ms(torch, lambda: way(*self._tensors, shape)))
            torch.cuda.reset_peak_memory_stats()
            self.output = None
            self.launch()
            torch.cuda.synchronize()
        own = prod(shape.y_shape) * self.itemsize
        self.extra_bytes = max(torch.cuda.max_memory_allocated() - before - own, 0)
        self.way = self._way.__name__.removeprefix("_")

    def load(self, arrays: dict[str, Any]) -> None:
        """Take the inputs from float32 NCHW CuPy arrays; converted now, not when timed."""
        order = self._torch.channels_last if self._nhwc else self._torch.contiguous_format
        self._tensors = tuple(
            self._torch.as_tensor(arrays[name], device="cuda").to(self._type, memory_format=order)
            for name in ("x", "w")
        )

    def launch(self) -> None:
        with self._libraries():
            self.output = self._way(*self._tensors, self._shape)

    def result(self) -> Any:
        """The output as a CuPy array (N,K,P,Q)."""
        import cupy

        return cupy.asarray(self.output.float() if self._type == self._torch.bfloat16 else self.output)

    def close(self) -> None:
        """Give the memory back."""
        self.output, self._tensors = None, ()
        _release(self._torch)


def _cudnn(x: Any, w: Any, shape: ConvShape) -> Any:
    return torch_conv(x, w, shape)


def _unfold_then_gemm(x: Any, w: Any, shape: ConvShape) -> Any:
    return _gemm(_col_unfold(x, shape), w, shape)


def _strided_copy_then_gemm(x: Any, w: Any, shape: ConvShape) -> Any:
    return _gemm(_col_strided(x, shape), w, shape)


_WAYS: dict[str, tuple[Callable[..., Any], ...]] = {
    "cudnn": (_cudnn,),
    "cudnn_nhwc": (_cudnn,),
    "im2col+cublas": (_unfold_then_gemm, _strided_copy_then_gemm),
    "unfold+cublas": (_unfold_then_gemm,),
}
#: precision -> PyTorch's dtype
_TORCH = {"float32": "float32", "tf32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
#: names ``bench`` takes beside the catalog's
PEERS = tuple(_WAYS)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise DeviceError(f"cudnn and im2col+cublas run through PyTorch, which is missing: {error}") from None
    if not torch.cuda.is_available():
        raise DeviceError("cudnn and im2col+cublas need PyTorch with CUDA; this PyTorch sees no NVIDIA GPU")
    return torch


@contextmanager
def chosen_libraries(tf32: bool = False) -> Iterator[None]:
    """cuDNN chooses by timing; neither cuDNN nor cuBLAS may round float32 to TF32 unless ``tf32``."""
    import torch

    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, tf32
    try:
        with (
            torch.no_grad(),
            torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32),
        ):
            yield
    finally:
        matmul.allow_tf32 = before


def _quick_ms(torch: Any, call: Callable[[], Any]) -> float:
    """Milliseconds of the faster of two calls, after one that lets the libraries choose."""
    call()
    times = []
    for _ in range(2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times)


def _release(torch: Any) -> None:
    """Free what the libraries cached, so that the next measurement of memory starts clean."""
    torch.cuda.synchronize()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # otherwise only the first user would be charged
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
