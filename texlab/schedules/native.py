"""Call what TVM compiled for the processor, straight from its shared library: neither linking it nor calling it imports tvm.

``import tvm`` takes over a second, of which a compiled function needs nothing: its library asks TVM's small runtime for a
thread pool and for memory, and takes its arguments as DLPack tensors (the C structures of ``dlpack.h`` and of
``tvm/ffi/c_api.h``, apache-tvm-ffi 0.1.14, which texlab pins).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from texlab.program import DeviceError
from texlab.schedules.tvm_import import use_all_cores, why_no_tvm

ALIGNMENT = 64  # bytes; TVM's code reads whole vectors and checks no address: a wrong one ends the process
_NONE, _TENSOR, _ERROR_FIELDS = 0, 7, 24  # type indices; where an error object's fields begin
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # NumPy's kind of a dtype -> DLPack's
#: what a library calls back -> where it keeps the address
_CALLBACKS = ("ParallelLaunch", "ParallelBarrier", "AllocWorkspace", "FreeWorkspace")


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Any(ctypes.Structure):  # TVMFFIAny
    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p)]


class _Text(ctypes.Structure):  # TVMFFIByteArray
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    def __str__(self) -> str:
        return ctypes.string_at(self.data, self.size).decode(errors="replace")


# arrays ------------------------------------------------------------------------------------------------------------
def empty(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """An uninitialised C-contiguous array that compiled code can work on in place, at a multiple of 64 bytes.

    >>> empty((3, 5)).ctypes.data % ALIGNMENT
    0
    """
    dtype = np.dtype(dtype)
    raw = np.empty(prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """The array itself where compiled code can read it in place, else a copy that it can."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


# libraries ---------------------------------------------------------------------------------------------------------
class Library:
    """The function "main" of a shared library that TVM's LLVM code generator filled.

    Call it with arrays that ``aligned`` returned, in the order of the function's parameters; it writes into the last one.
    The caller sees to shapes and dtypes. Raises DeviceError if TVM's runtime is missing, RuntimeError with TVM's message if
    the function refuses its arguments.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._ffi, runtime = _runtime()
        self._library = ctypes.CDLL(os.fspath(path))
        for name in _CALLBACKS:
            try:
                slot = ctypes.c_void_p.in_dll(self._library, f"__TVMBackend{name}")
            except ValueError:
                continue  # this code has no use for it
            slot.value = ctypes.cast(getattr(runtime, f"TVMBackend{name}"), ctypes.c_void_p).value
        self._main = self._library["__tvm_ffi_main"]
        self._main.restype = ctypes.c_int
        self._main.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]

    def __call__(self, *arrays: np.ndarray) -> None:
        tensors = (_Tensor * len(arrays))()
        values = (_Any * len(arrays))()
        shapes = []
        for tensor, value, array in zip(tensors, values, arrays, strict=True):
            shapes.append((ctypes.c_int64 * array.ndim)(*array.shape))
            tensor.data, tensor.device_type, tensor.ndim, tensor.shape = array.ctypes.data, 1, array.ndim, shapes[-1]
            tensor.code, tensor.bits, tensor.lanes = _CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1
            value.type_index, value.value = _TENSOR, ctypes.addressof(tensor)
        result = _Any(_NONE, 0, None)
        if self._main(None, values, len(arrays), ctypes.byref(result)):
            raise RuntimeError(self._error())

    def _error(self) -> str:
        raised = ctypes.c_void_p()
        self._ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(raised))
        if not raised.value:
            return "the compiled function failed and left no message"
        kind, message = (_Text * 2).from_address(raised.value + _ERROR_FIELDS)
        text = f"{kind}: {message}"
        self._ffi.TVMFFIObjectDecRef(raised)
        return text


@functools.lru_cache(maxsize=1)
def _runtime() -> tuple[Any, Any]:
    """TVM's two small libraries: the calling convention and its errors; threads and memory."""
    reason = why_no_tvm()
    if reason:
        raise DeviceError(f"compiled schedules cannot be run: {reason}")
    use_all_cores()
    ends = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(sys.platform, ("lib", ".so"))
    found = []
    for package, name in (("tvm_ffi", "tvm_ffi"), ("tvm", "tvm_runtime")):
        folder = Path(importlib.util.find_spec(package).origin).parent / "lib"
        found.append(ctypes.CDLL(str(folder / name.join(ends)), mode=ctypes.RTLD_GLOBAL))
    found[0].TVMFFIErrorMoveFromRaised.argtypes = [ctypes.c_void_p]
    found[0].TVMFFIErrorMoveFromRaised.restype = None
    found[0].TVMFFIObjectDecRef.argtypes = [ctypes.c_void_p]
    return found[0], found[1]


@functools.lru_cache(maxsize=1)
def linker() -> tuple[str, ...] | None:
    """The command that makes a shared library of object files; None if there is none here.

    Binutils' own ``ld`` where there is one, as it does in milliseconds what a compiler's driver does in a tenth of a second.
    """
    if sys.platform.startswith("linux"):
        for name in ("ld", "ld.lld", "ld.gold", "ld.bfd"):
            if path := shutil.which(name):
                return (path, "-shared")
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path, "-shared", *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))
    return None


def link(module: Any) -> bytes:
    """The shared library of a compiled runtime module (``tvm.compile(...).mod``), as bytes.

    Raises DeviceError where no linker is found (see ``linker``), or if it fails.
    """
    command = linker()
    if command is None:
        raise DeviceError(
            "no linker was found (ld, cc, gcc or clang), so compiled schedules cannot be kept from one process to the next: "
            "install one, for example with: apt-get install binutils, or conda install binutils"
        )
    with tempfile.TemporaryDirectory(prefix="texlab-") as folder:
        module.write_to_file(f"{folder}/code.o")
        done = subprocess.run(
            [*command, "-o", f"{folder}/code.so", f"{folder}/code.o"], capture_output=True, text=True, cwd=folder
        )
        if done.returncode:
            raise DeviceError(f"{command[0]} cannot link TVM's object file: {done.stderr.strip()[-500:]}")
        return Path(folder, "code.so").read_bytes()
