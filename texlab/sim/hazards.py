"""What a kernel must not do: the limits of a launch, and the report of a fault."""

from __future__ import annotations

from typing import Any

from texlab.program import KernelFault, Launch

STATIC_SHARED = 48 * 1024  # ptxas refuses more in static arrays
SHARED_LIMIT = 227 * 1024  # a block's most on sm_90, after opting in
_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)


def fault(kind: str, message: str, **where: Any) -> KernelFault:
    """A KernelFault with ``kind`` and what is known of the place as attributes (None where it does not apply)."""
    error = KernelFault(message)
    error.kind = kind
    for name in ("entry", "file", "line", "source", "block", "thread", "address", "buffer", "offset"):
        setattr(error, name, where.get(name))
    return error


def check_launch(launch: Launch, static_shared: int) -> None:
    """Refuse what the driver or ptxas would. Raises KernelFault of kind "launch"."""
    name = launch.entry
    for axis, size, limit in zip("xyz", launch.grid, _GRID, strict=True):
        if not 0 <= size <= limit:
            raise fault("launch", f"{name}: grid {axis} {size} > {limit}; put the long axis on x", entry=name)
    for axis, size, limit in zip("xyz", launch.block, _BLOCK, strict=True):
        if not 1 <= size <= limit:
            raise fault("launch", f"{name}: block {axis} {size} is not in 1..{limit}", entry=name)
    if launch.threads > 1024:
        raise fault(
            "launch", f"{name}: a block of {launch.block} has {launch.threads} threads; the limit is 1024", entry=name
        )
    if static_shared > STATIC_SHARED:
        raise fault(
            "launch",
            f"{name}: {static_shared} bytes of static shared memory, {STATIC_SHARED} at most; use dynamic shared memory "
            f"(extern __shared__), up to {SHARED_LIMIT} bytes",
            entry=name,
        )
    if static_shared + launch.shared_bytes > SHARED_LIMIT:
        raise fault(
            "launch",
            f"{name}: {launch.shared_bytes} bytes of dynamic and {static_shared} of static shared memory are "
            f"{static_shared + launch.shared_bytes}; a block on sm_90 has {SHARED_LIMIT} at most",
            entry=name,
        )
