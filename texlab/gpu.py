"""Run a Program on an NVIDIA GPU with CuPy: the same source, launches and arguments as in the simulator.

A kernel that faults destroys the CUDA context of its process, and with it all later GPU work there. So programs whose
source is not the catalog's run in a process of their own (``isolate``), which is replaced when a kernel breaks it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from texlab import compiler, gputextures, isolated
from texlab.catalog import kernels, source_of
from texlab.launches import arguments, check_arch, check_geometry, check_shared, rounded
from texlab.program import DeviceError, KernelFault, Launch, Program, Run, TensorMap
from texlab.texture_probes import FILE as PROBE

#: CUDA errors after which every call of the process fails, until it ends.
FATAL = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721}
COPY_IN = "copy into a CUDA array"  # the name of the steps that do that
_lost: list[str] = []  # what destroyed this process' CUDA context, if anything did


NO_DRIVER = (
    "no NVIDIA driver is loaded (this machine has no NVIDIA GPU, or its driver is not installed, or a container was "
    "started without it: docker run --gpus all)"
)


# is there one? ------------------------------------------------------------------------------------------------
@functools.cache
def why_no_gpu() -> str | None:
    """None if a Program can run on a GPU here, else the reason and the remedy."""
    try:
        import cupy

        runtime = cupy.cuda.runtime
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            return f"CuPy is broken ({error}). Reinstall it: pip install --force-reinstall {cupy_package()}"
        if not driver_cuda_version():
            return f"{NO_DRIVER}. CuPy is not installed either"
        return f"CuPy is not installed: pip install {cupy_package()}"
    except Exception as error:
        return (
            f"CuPy is installed but cannot be imported ({type(error).__name__}: {error}). Have exactly one of "
            f"cupy-cuda13x and cupy-cuda12x: pip uninstall cupy-cuda12x cupy-cuda13x; pip install {cupy_package()}"
        )
    try:
        if runtime.getDeviceCount():
            return None
        return "the NVIDIA driver sees no GPU"
    except Exception as error:
        driver = _quietly(runtime.driverGetVersion)
        wants = _quietly(runtime.runtimeGetVersion)
        if not driver:
            return NO_DRIVER
        if driver // 1000 < wants // 1000:
            return (
                f"CuPy is built for CUDA {_dotted(wants)} but the NVIDIA driver goes up to {_dotted(driver)}: update "
                f"the driver, or: pip uninstall cupy-cuda13x; pip install {cupy_package()}"
            )
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        because = f"; CUDA_VISIBLE_DEVICES={hidden!r} hides the others" if hidden is not None else ""
        return f"the NVIDIA driver (CUDA {_dotted(driver)}) gives no GPU: {error}{because}"


def available() -> bool:
    """True if a Program can run on a GPU here."""
    return why_no_gpu() is None


def cupy_package() -> str:
    """The CuPy to install here, by the CUDA version of the NVIDIA driver."""
    version = driver_cuda_version()
    return '"cupy-cuda12x[ctk]>=14,<15"' if version and version < 13000 else '"cupy-cuda13x[ctk]>=14,<15"'


@functools.cache
def driver_cuda_version() -> int:
    """The CUDA version the NVIDIA driver goes up to (13000 for 13.0), asked of the driver; 0 without a driver."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            version = ctypes.c_int(0)
            if ctypes.CDLL(name).cuDriverGetVersion(ctypes.byref(version)) == 0:
                return version.value
        except (OSError, AttributeError):
            continue
    return 0


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _quietly(ask: Callable[[], int]) -> int:
    try:
        return ask()
    except Exception:
        return 0


def _cupy() -> Any:
    """CuPy, on a machine with a GPU and in a process whose CUDA context is whole; else DeviceError."""
    if _lost:
        raise DeviceError(f"this process lost its GPU: {_lost[0]} Restart the Jupyter kernel to use the GPU again")
    reason = why_no_gpu()
    if reason:
        raise DeviceError(f"device='gpu' cannot be used here: {reason}. device='sim' needs no GPU")
    import cupy

    return cupy


# run ----------------------------------------------------------------------------------------------------------
def run(
    program: Program,
    arrays: Mapping[str, Any],
    *,
    trace: Any = False,
    repeat: int | None = None,
    isolate: bool | None = None,
    limit: float | None = 60.0,
) -> Run:
    """Run a Program; ``run.outputs`` are CuPy arrays, ``run.ms`` the time of its launches by CUDA events.

    Parameters
    ----------
    arrays : the inputs by name, NumPy or CuPy. Any that is not C-contiguous and 16-byte aligned is copied first.
    repeat : time that many runs after a first one, and give the median; None times the one run there is, which
        includes a GPU's warm-up. (``texlab.bench`` does careful timing.)
    isolate : run in a process of its own, so that a fault there leaves this session whole. None: whenever the source
        is not exactly the catalog's.
    limit : seconds after which an isolated run is ended; None: never. Interrupting a cell ends it too.

    Outputs and scratch are filled with NaN bytes (0xFF) beforehand: what a kernel does not write shows.
    Raises DeviceError, CompileError, KernelFault, ValueError (wrong inputs, impossible launches).
    """
    if trace:
        raise DeviceError("device='gpu' records no trace: use device='sim', or texlab.counters for the GPU's counts")
    program.check_inputs(arrays)
    cupy = _cupy()
    if isolate or (isolate is None and not trusted(program)):
        return _run_isolated(cupy, program, arrays, repeat, limit)
    with _device_of(cupy, arrays) as device:
        _check_context(device)
        steps, outputs, arch = _prepare(cupy, program, arrays)
        ms = sum(_timed(cupy, [step], name) for name, step in steps)
        if repeat is not None:
            name = " or ".join(dict.fromkeys(name for name, _ in steps))
            ms = statistics.median(_timed(cupy, [step for _, step in steps], name) for _ in range(repeat))
    return Run(program, "gpu", outputs, ms, arch)


def prepare(
    program: Program, arrays: Mapping[str, Any], *, refresh: bool = True
) -> tuple[Callable[[], None], dict[str, Any]]:
    """A function that queues all launches on CuPy's current stream, and the output arrays it writes: for timing without
    allocation, copies or checks in between. Call it inside ``faults(program.name)`` and synchronise there.

    ``refresh``: each call copies textures' inputs into their CUDA arrays again; False: once, now, and the launches alone
    are queued. Arguments, poisoning and errors as in ``run``, but never isolated."""
    program.check_inputs(arrays)
    cupy = _cupy()
    with _device_of(cupy, arrays) as device:
        _check_context(device)
        steps, outputs, _ = _prepare(cupy, program, arrays)
        if not refresh:
            for name, step in steps:
                if name == COPY_IN:
                    step()
            steps = [(name, step) for name, step in steps if name != COPY_IN]

    def launch() -> None:
        for _, step in steps:
            step()

    return launch, outputs


def poison(array: Any) -> None:
    """Fill a contiguous CuPy array with 0xFF bytes: NaN in every float type."""
    if array.nbytes:
        array.data.memset_async(0xFF, array.nbytes)


def trusted(program: Program) -> bool:
    """True if the source is a catalog kernel's and its tunables are numbers: then no line in it is the user's."""
    numbers = all(isinstance(value, int | np.integer) for value in program.defines.values())
    return (
        numbers
        and not program.options
        and program.source in {source_of(files) for files in ((PROBE,), *(k.files for k in kernels.values()))}
    )


@contextlib.contextmanager
def faults(name: str) -> Iterator[None]:
    """Turn CUDA errors inside into a KernelFault that names the kernel and says what is left."""
    import cupy

    try:
        yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        if error.status not in FATAL:
            raise DeviceError(f"kernel {name!r} could not be launched: {error}") from error
        _lost.append(f"kernel {name!r} faulted ({error}).")
        raise KernelFault(
            f"kernel {name!r}: {error}. The CUDA context is lost: every later GPU call of this process fails, so "
            "restart the Jupyter kernel. device='sim' finds the same fault harmlessly, with line, thread and address"
        ) from error


def _timed(cupy: Any, steps: list[Callable[[], None]], name: str) -> float:
    """Milliseconds between the events around ``steps``, which have run when this returns."""
    with faults(name):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for step in steps:
            step()
        stop.record()
        stop.synchronize()
        return cupy.cuda.get_elapsed_time(start, stop)


def _check_context(device: Any) -> None:
    """DeviceError if some other library's kernel destroyed the CUDA context: ours is not to blame for it."""
    try:
        device.synchronize()
    except Exception as error:
        _lost.append(f"a kernel faulted before texlab launched any ({error}).")
        _cupy()


def _device_of(cupy: Any, arrays: Mapping[str, Any]) -> Any:
    return next((a.device for a in arrays.values() if isinstance(a, cupy.ndarray)), cupy.cuda.Device())


def _prepare(
    cupy: Any, program: Program, arrays: Mapping[str, Any]
) -> tuple[list[tuple[str, Callable[[], None]]], dict[str, Any], str]:
    """(entry, launch function) for each launch, outputs, architecture."""
    device = cupy.cuda.Device()
    arch = f"sm_{device.compute_capability}"
    check_arch(program, arch)
    if program.arch and program.arch.rstrip("af") != arch:
        raise DeviceError(f"program {program.name!r} is for {program.arch} alone, this GPU is {arch}")
    arch = program.arch or arch
    code = compiler.cubin(program, arch)
    text = compiler.ptx(program, arch)  # for the signatures
    try:
        hidden = {b.name for b in program.in_arrays if b.role == "scratch"}  # in a CUDA array and nowhere else
        buffers = {b.name: _buffer(cupy, b, arrays) for b in program.buffers if b.name not in hidden}
        textures = gputextures.bind(cupy, program, buffers)
    except cupy.cuda.memory.OutOfMemoryError as error:
        free, total = device.mem_info
        needed = sum(b.nbytes for b in program.buffers)
        raise DeviceError(
            f"program {program.name!r} needs {needed / 2**30:.2f} GiB of device memory, of which "
            f"{program.scratch_bytes / 2**30:.2f} GiB are scratch; {free / 2**30:.2f} of {total / 2**30:.2f} GiB are "
            "free: use a smaller shape or batch, or free other arrays"
        ) from error
    pointers = {name: array.data.ptr for name, array in buffers.items()} | textures.handles
    steps = [(COPY_IN, step) for step in textures.before]
    for launch in program.launches:
        for tensor in launch.args:
            if isinstance(tensor, TensorMap):
                tensor.check(program.buffer(tensor.buffer).nbytes)
        values = arguments(launch, text, pointers)
        check_geometry(launch)
        if launch.blocks == 0:
            continue  # nothing to do, and CUDA refuses an empty grid
        with faults(launch.entry):
            function = _function(code, launch.entry, device.id)
            _allow(cupy, function, launch, device.id)
        steps.append((launch.entry, _step(function, launch, values, (buffers, textures))))
    steps += [("copy out of a CUDA array", step) for step in textures.after]
    return steps, {b.name: buffers[b.name] for b in program.outputs}, arch


def _step(function: Any, launch: Launch, values: tuple[Any, ...], memory: Any) -> Callable[[], None]:
    """A function that queues the launch."""

    def step() -> None:
        function(launch.grid, launch.block, values, shared_mem=launch.shared_bytes)

    step.memory = memory  # what its pointers and handles lead to lives as long as it does
    return step


def _buffer(cupy: Any, buffer: Any, arrays: Mapping[str, Any]) -> Any:
    if buffer.role != "input":
        fresh = cupy.empty(buffer.shape, buffer.dtype)
        poison(fresh)
        return fresh
    array = arrays[buffer.name]
    if not isinstance(array, cupy.ndarray):
        return cupy.asarray(np.ascontiguousarray(array))
    if not array.flags.c_contiguous or array.data.ptr % 16:
        return array.copy(order="C")  # a kernel knows no strides, and its wide loads need their alignment
    return array


@functools.lru_cache(maxsize=256)
def _module(code: bytes, device: int) -> Any:
    import cupy

    module = cupy.cuda.Module()
    module.load(code)
    return module


def _function(code: bytes, entry: str, device: int) -> Any:
    return _module(code, device).get_function(entry)  # entries of one module share its variables


def _allow(cupy: Any, function: Any, launch: Launch, device: int) -> None:
    """Check what the launch asks of the card, and opt in to dynamic shared memory beyond 48 KB."""
    driver, runtime = cupy.cuda.driver, cupy.cuda.runtime
    static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    limit = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, device)
    check_shared(launch, static, limit)
    most = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function.ptr)
    if launch.threads > most:
        registers = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, function.ptr)
        raise ValueError(
            f"kernel {launch.entry!r}: {launch.threads} threads a block, but with its {registers} registers a thread "
            f"at most {most} fit; use smaller blocks, or __launch_bounds__({launch.threads}) in the source"
        )
    if launch.shared_bytes:
        driver.funcSetAttribute(
            function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit - rounded(static)
        )


# a process of its own -----------------------------------------------------------------------------------------
def _run_isolated(
    cupy: Any, program: Program, arrays: Mapping[str, Any], repeat: int | None, limit: float | None
) -> Run:
    """``run`` in a child process: a fault ends that process, and this one stays whole."""
    host = {name: a.get() if isinstance(a, cupy.ndarray) else np.ascontiguousarray(a) for name, a in arrays.items()}
    unharmed = "It ran in a process of its own; this session is unharmed"
    with _device_of(cupy, arrays) as device:
        try:
            outputs, ms, arch = isolated.call("texlab.gpu", "_in_child", program, host, repeat, device.id, limit=limit)
        except isolated.Died as died:
            raise KernelFault(f"program {program.name!r} {died}. {unharmed}") from None
        except KernelFault as fault:
            isolated.close()  # the child's CUDA context is lost
            text = str(fault).split(" The CUDA context is lost")[0]
            raise KernelFault(
                f"{text} {unharmed}. device='sim' finds the same fault with line, thread and address"
            ) from None
        return Run(program, "gpu", {name: cupy.asarray(a) for name, a in outputs.items()}, ms, arch)


def _in_child(
    program: Program, arrays: Mapping[str, Any], repeat: int | None, device: int
) -> tuple[dict[str, np.ndarray], float, str]:
    """What the child does: run, copy the outputs to the host, free the memory."""
    cupy = _cupy()
    with cupy.cuda.Device(device):
        done = run(program, arrays, repeat=repeat, isolate=False)
        answer = {name: a.get() for name, a in done.outputs.items()}, done.ms, done.arch
        del done
        cupy.get_default_memory_pool().free_all_blocks()
        return answer
