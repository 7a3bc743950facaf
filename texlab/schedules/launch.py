"""A TVM CUDA module as a texlab Program, to be run, traced, counted and drawn like any kernel file.

TVM lowers the schedule and writes CUDA text; nothing is compiled by TVM, so no GPU and no CUDA toolkit is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from texlab.program import Buffer, Launch, Program
from texlab.schedules.tvm_import import cuda_target, load
from texlab.schedules.work import Scheduled

_TYPES = """typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;
"""


#: what a block may have; the second number is what a kernel gets that asks for it as dynamic shared memory on sm_90
THREADS, STATIC_SHARED, DYNAMIC_SHARED, GRID_YZ = 1024, 48 * 1024, 227 * 1024, 65535
_CALL = re.compile(r'call_ffi_kernel\("(\w+)", (.*?), launch_params=\[(.*?)\]')
_NUMBER = re.compile(r"(\d+)\)?$")  # also of T.int64(...)
_SCRATCH = re.compile(r"(\w+) = T\.alloc_buffer\(\((?:T\.int64\()?(\d+)\)?,\)(?:, \"(\w+)\")?")
_SHARED = re.compile(r"__shared__\s+(?:alignas\(\d+\)\s+)?(\w+)\s+\w+\[(\d+)\]")


def program(scheduled: Scheduled, *, arch: str = "sm_90", name: str | None = None) -> Program:
    """The Program of a Workload scheduled for "cuda": its inputs and output are the Workload's, by name.

    Raises ValueError for another target, and for a schedule that no GPU could launch: too many threads or too much shared
    memory in a block, too many blocks along y or z. DeviceError without TVM.

    >>> from texlab.schedules import conv, schedule
    >>> from texlab.shapes import ConvShape
    >>> work = conv(ConvShape(n=1, c=2, h=6, w=6, k=4, r=3, s=3), form="direct")
    >>> prog = program(schedule(work, "cuda"))
    >>> [b.name for b in prog.inputs], [launch.entry for launch in prog.launches]
    (['x', 'w'], ['conv2d_direct_kernel'])
    """
    if scheduled.target != "cuda":
        raise ValueError(f"program: scheduled for {scheduled.target!r}; a Program is made of a schedule for 'cuda'")
    work = scheduled.workload
    return program_of(scheduled.module, work.buffers, name=name or work.name, config=scheduled.config, arch=arch)


def program_of(
    module: Any,
    buffers: Sequence[Buffer],
    *,
    name: str = "tvm",
    config: Mapping[str, Any] | None = None,
    arch: str = "sm_90",
) -> Program:
    """The Program of any IRModule whose function "main" is scheduled for a GPU; ``buffers`` are its parameters in order.

    Buffers between its kernels become scratch memory. ``config`` is TVM's PassContext's. Raises as :func:`program`.
    """
    parameters = [str(p.name) for p in module["main"].params]
    if len(parameters) != len(buffers):
        raise ValueError(f"program_of: the function takes {parameters}, but there are {len(buffers)} buffers")
    text, host, kernels = _lower(module, name, dict(config or {}), arch)
    called = dict(zip(parameters, (b.name for b in buffers), strict=True))
    scratch = {}
    for found, count, dtype in _SCRATCH.findall(host):
        scratch[found] = Buffer(_free(found, called), (int(count),), dtype or "float32", "scratch")
    called |= {found: b.name for found, b in scratch.items()}
    launches = []
    for entry, given, params in _CALL.findall(host):
        tags = [tag.strip().strip('"') for tag in params.split(",")]
        values = given.rsplit(", ", len(tags))[1:]
        extent = {tag: int(_NUMBER.search(value)[1]) for tag, value in zip(tags, values, strict=True)}
        grid, block = (tuple(extent.get(f"{kind}.{axis}", 1) for axis in "xyz") for kind in ("blockIdx", "threadIdx"))
        args = tuple(called[str(p.name).removesuffix("_ptr")] for p in kernels[entry].params)
        launches.append(Launch(entry, grid, block, args, extent.get("tirx.use_dyn_shared_memory", 0)))
    made = Program(
        name=name,
        source=text,
        buffers=(*buffers, *scratch.values()),
        launches=tuple(launches),
        filename=f"{name}.cu",
        needs="sm_80" if "cp.async" in text else "sm_75",
    )
    _check(made)
    return made


def _lower(module: Any, name: str, config: dict[str, Any], arch: str) -> tuple[str, str, dict[str, Any]]:
    """(CUDA text, TVM's host code as text, kernel -> its device function)."""
    tvm = load()
    from tvm import tirx
    from tvm.tirx import compilation_pipeline as pipeline
    from tvm.tirx.build import split_host_device_mods

    target = cuda_target(arch).with_host("llvm")
    module = tvm.IRModule({name: module["main"].with_attr("global_symbol", name)})
    with tvm.transform.PassContext(config=config):
        lower, _, finish = pipeline.PIPELINE_MAP["s_tir"]()
        host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target)(module)))
        if not devices:
            raise ValueError(
                f"{name}: nothing is bound to a GPU's blocks and threads; it is a schedule for a processor"
            )
        ((device_target, device),) = devices.items()
        device = finish()(device)
        source = tvm.get_global_func("target.build.cuda")(device, device_target).inspect_source()
    return _own_text(source), host.script(), {str(gv.name_hint): f for gv, f in device.functions.items()}


def _own_text(source: str) -> str:
    """TVM's text without what stands before its kernels for other compilers: NVRTC needs the names of the types alone."""
    body = source[source.index('extern "C" __global__') :]
    helpers = source[source.index("#define ushort unsigned short") :].partition("#endif")[2]
    helpers = helpers[: helpers.index('extern "C" __global__')].strip()
    if helpers:
        body = f"{helpers}\n{body}"
    for short in ("uchar", "ushort", "uint"):
        if re.search(rf"\b{short}\b", body):
            body = f"typedef unsigned {short.removeprefix('u')} {short};\n{body}"
    if "CUDART_INF_F" in body:
        body = f"#define CUDART_INF_F __int_as_float(0x7f800000)\n{body}"
    types = _TYPES if re.search(r"\bu?int(8|16|32|64)_t\b", body) else ""
    return types + re.sub(r"\b__(asm|volatile)__\b", r"\1", body)


def _free(name: str, taken: Mapping[str, str]) -> str:
    while name in taken.values():
        name += "_"
    return name


def _check(made: Program) -> None:
    for launch in made.launches:
        if launch.threads > THREADS:
            raise ValueError(
                f"{launch.entry}: {launch.threads} threads a block {launch.block}; a GPU takes {THREADS}: smaller tiles"
            )
        for axis, blocks in zip("yz", launch.grid[1:], strict=True):
            if blocks > GRID_YZ:
                raise ValueError(f"{launch.entry}: grid {axis} {blocks} > {GRID_YZ}: bind the long axis to blockIdx.x")
        if launch.shared_bytes > DYNAMIC_SHARED:
            raise ValueError(
                f"{launch.entry}: {launch.shared_bytes} bytes of shared memory; at most {DYNAMIC_SHARED}: smaller tiles"
            )
        body = made.source[made.source.rindex(f" {launch.entry}(") :].partition('extern "C" __global__')[0]
        static = sum(int(count) * np.dtype(_WIDTH.get(kind, kind)).itemsize for kind, count in _SHARED.findall(body))
        if static > STATIC_SHARED:
            raise ValueError(
                f"{launch.entry}: {static} bytes of shared memory; a kernel gets {STATIC_SHARED}: smaller tiles"
            )


_WIDTH = {"float": "f4", "half": "f2", "int": "i4", "uint": "u4", "signed": "i1", "char": "i1", "double": "f8"}
