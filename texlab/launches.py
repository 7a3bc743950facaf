"""What a launch may ask of an NVIDIA GPU, and its arguments as the kernel declares them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from texlab import compiler
from texlab.program import DeviceError, Launch, Program, TensorMap

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)


def arguments(launch: Launch, ptx: str, pointers: Mapping[str, int]) -> tuple[Any, ...]:
    """The launch's arguments as the kernel declares them: NumPy scalars and structs of exactly its sizes.

    ``pointers`` gives each buffer's address. ValueError names the kernel, the argument and both types."""
    declared = compiler.params(ptx, launch.entry)
    if len(declared) != len(launch.args):
        raise ValueError(
            f"kernel {launch.entry!r} takes {len(declared)} arguments {[p.type for p in declared]}, "
            f"the launch gives {len(launch.args)}"
        )
    out = []
    for i, (value, param) in enumerate(zip(launch.args, declared, strict=True)):
        where = f"kernel {launch.entry!r}, argument {i}"
        name = value.buffer if isinstance(value, TensorMap) else value
        if isinstance(name, str) and name not in pointers:
            raise ValueError(f"{where}: no buffer {name!r}; the program has {sorted(pointers)}")
        if isinstance(value, TensorMap):
            value = encode(value, pointers[value.buffer])
        if isinstance(value, str):
            if param.size != 8:
                raise ValueError(f"{where}: buffer {value!r} is an address, but the kernel takes {param} here")
            value = pointers[value]
        out.append(compiler.bind(value, param, where))
    return tuple(out)


def check_arch(program: Program, arch: str) -> None:
    """DeviceError if a card of ``arch`` lacks instructions that the Program needs."""
    if compiler.lacks(program, arch):
        raise DeviceError(
            f"program {program.name!r} uses instructions that begin with {program.needs}; this GPU is {arch}. "
            "device='sim' runs it, and the kernels of texlab.kernels that need less run here"
        )


def encode(tensor: TensorMap, address: int) -> np.ndarray:
    """The 128 bytes of a CUtensorMap, as a struct to pass by value. DeviceError if the driver refuses."""
    from cuda.bindings import driver

    kinds, swizzles, fills = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle, driver.CUtensorMapFloatOOBfill
    rows = f"{tensor.swizzle}B" if tensor.swizzle else "NONE"
    fill = "NONE" if tensor.fill == "zeros" else "NAN_REQUEST_ZERO_FMA"
    error, made = driver.cuTensorMapEncodeTiled(
        getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{tensor.dtype.upper()}"),
        len(tensor.dims),
        address,
        [driver.cuuint64_t(v) for v in tensor.dims],
        # one dimension has no strides, but the driver refuses a null pointer: this one is not read
        [driver.cuuint64_t(v) for v in tensor.strides or (16,)],
        [driver.cuuint32_t(v) for v in tensor.box],
        [driver.cuuint32_t(v) for v in tensor.steps],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{rows}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        getattr(fills, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
    )
    if int(error):
        raise DeviceError(f"the driver refuses {tensor} ({error.name})")
    words = np.zeros((), [("words", "u8", 16)])
    words["words"] = np.frombuffer(ctypes.string_at(made.getPtr(), 128), np.uint64)
    return words


def check_geometry(launch: Launch) -> None:
    """ValueError if no CUDA device takes this grid or block."""
    for what, sizes, limits, least in (("grid", launch.grid, MAX_GRID, 0), ("block", launch.block, MAX_BLOCK, 1)):
        for axis, size, limit in zip("xyz", sizes, limits, strict=True):
            if not least <= size <= limit:
                raise ValueError(
                    f"kernel {launch.entry!r}: {what} {axis} is {size}; it must lie between {least} and {limit}"
                )
    if launch.threads > 1024:
        raise ValueError(f"kernel {launch.entry!r}: block {launch.block} has {launch.threads} threads, over 1024")


def check_shared(launch: Launch, static: int, limit: int) -> None:
    """ValueError if static and dynamic shared memory together exceed ``limit`` bytes a block."""
    total = rounded(static) + launch.shared_bytes
    if total > limit:
        raise ValueError(
            f"kernel {launch.entry!r} asks for {launch.shared_bytes} bytes of dynamic shared memory beside "
            f"{static} bytes of static ({total} in all); this GPU's limit is {limit} bytes a block: use smaller tiles"
        )


def rounded(static: int) -> int:
    """Static shared memory as it counts: dynamic memory starts at the next multiple of 16 bytes."""
    return -(-static // 16) * 16
