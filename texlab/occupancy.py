"""How many blocks of a kernel fit on one multiprocessor at a time, from what the compiler says it uses."""

from __future__ import annotations

from dataclasses import dataclass

from texlab import compiler
from texlab.program import Program

WARP = 32
REGISTERS = 65536  # 32-bit registers of a multiprocessor, compute capability 7.5 to 12.0
REGISTER_UNIT = 256  # registers are handed out to a warp in pieces of this many
WARP_UNIT = 4  # and to this many warps at a time
SHARED_UNIT = 128  # bytes; shared memory is handed out to a block in pieces of this many
#: architecture -> (threads, blocks, bytes of shared memory) of a multiprocessor, and bytes the system takes of each block.
#: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
LIMITS = {
    "sm_75": (1024, 16, 64 << 10, 0),
    "sm_80": (2048, 32, 164 << 10, 1024),
    "sm_86": (1536, 16, 100 << 10, 1024),
    "sm_89": (1536, 24, 100 << 10, 1024),
    "sm_90": (2048, 32, 228 << 10, 1024),
    "sm_100": (2048, 32, 228 << 10, 1024),
    "sm_120": (1536, 24, 100 << 10, 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """``blocks`` of a kernel's last launch that one multiprocessor holds, the ``warps`` in them and their share of the
    most it can hold (``occupancy``, 0 to 1), what sets the limit (``limited_by``: "registers", "shared memory",
    "threads" or "blocks"), and what they use: ``registers`` a thread, ``shared_bytes`` a block, static and dynamic."""

    blocks: int
    warps: int
    occupancy: float
    limited_by: str
    registers: int
    shared_bytes: int


def occupancy(program: Program, arch: str = compiler.SIM_ARCH) -> Occupancy:
    """The occupancy of a Program's last launch on a card of architecture ``arch``. Needs no GPU.

    Raises ValueError for an architecture whose limits are not known here; CompileError, DeviceError as the compiler.

    >>> from texlab.catalog import kernels
    >>> from texlab.shapes import ConvShape
    >>> shape = ConvShape(n=1, c=8, h=10, w=18, k=64, r=3, s=3)
    >>> occupancy(kernels["im2win_pipeline"].program(shape)).shared_bytes
    12800
    """
    if arch not in LIMITS:
        raise ValueError(f"occupancy: arch={arch!r}: the limits are known of {sorted(LIMITS)}")
    launch = program.launches[-1]
    used = compiler.resources(program, arch)[launch.entry]
    return fit(launch.threads, used.registers, used.shared_bytes + launch.shared_bytes, arch)


def fit(threads: int, registers: int, shared_bytes: int, arch: str = compiler.SIM_ARCH) -> Occupancy:
    """The occupancy of blocks of ``threads`` with ``registers`` a thread and ``shared_bytes`` a block.

    >>> fit(128, 128, 12800), fit(128, 32, 60000).limited_by
    (Occupancy(blocks=4, warps=16, occupancy=0.25, limited_by='registers', registers=128, shared_bytes=12800), 'shared memory')
    """
    most_threads, most_blocks, memory, taken = LIMITS[arch]
    warps = -(-threads // WARP)
    per_warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    room = REGISTERS // per_warp // WARP_UNIT * WARP_UNIT  # warps that the registers are enough for
    per_block = -(-(shared_bytes + taken) // SHARED_UNIT) * SHARED_UNIT
    bounds = {
        "registers": room // warps,
        "shared memory": memory // per_block if per_block else most_blocks,
        "threads": most_threads // WARP // warps,
        "blocks": most_blocks,
    }
    limit = min(bounds, key=lambda name: bounds[name])
    blocks = bounds[limit]
    share = blocks * warps * WARP / most_threads
    return Occupancy(blocks, blocks * warps, share, limit, registers, shared_bytes)
