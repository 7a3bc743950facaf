"""Probes of the texture cache: the same places of an image read along different paths (``kernels/texture_probe.cu``).

A *path* is how a texel is reached (plain loads, a texture, a surface, ...), an *order* the sequence of places. Every
place of an order is one thread's; 32 neighbours of the sequence are one warp's request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.catalog import source_of
from texlab.program import Buffer, Launch, Program
from texlab.views import TextureView

FILE = "texture_probe.cu"
THREADS, STEPS = 256, 32  # a block visits THREADS * STEPS places
ORDERS = ("row", "column", "diagonal", "zig-zag", "tile", "random")


@dataclass(frozen=True)
class Path:
    """A way to a texel: the kernel's entry, how the texture sees the image (None: a pointer), what it is."""

    entry: str
    view: Mapping[str, Any] | None
    idea: str
    channels: int = 1

    @property
    def surface(self) -> bool:
        return bool(self.view and self.view.get("surface"))


PATHS: dict[str, Path] = {
    "global": Path("probe_global", None, "plain loads, guarded at the edges"),
    "read-only": Path("probe_ldg", None, "__ldg: loads that promise nobody writes"),
    "texture": Path("probe_texture", {}, "tex2D over a CUDA array, point sampling, edges clamped"),
    "border": Path("probe_texture", {"address": "border"}, "tex2D in border mode: zeros around the image for free"),
    "linear memory": Path(
        "probe_texture", {"address": "border", "memory": "linear"}, "tex2D over the plain buffer: row-major texels"
    ),
    "filtered": Path("probe_filter", {"filter": "linear", "address": "border"}, "tex2D between four texels"),
    "surface": Path("probe_surface", {"surface": True}, "surf2Dread of the CUDA array"),
    "global 4": Path("probe_global4", None, "plain float4 loads: four channels", 4),
    "texture 4": Path("probe_texture4", {"address": "border"}, "tex2D of float4 texels: four channels (NCHW4c)", 4),
}


def places(order: str, height: int, width: int, seed: int = 1, tile: tuple[int, int] = (4, 8)) -> np.ndarray:
    """Every texel of an image once: (height*width, 2) int, columns y and x, in the sequence that ``order`` names.

    "row": along the rows. "column": down the columns. "diagonal": down and to the right, around the edge. "zig-zag": the
    Z-curve, (0,0) (0,1) (1,0) (1,1) ... "tile": tiles of ``tile`` rows and columns (4 high and 8 wide: a warp), tile after
    tile. "random": shuffled.

    >>> places("zig-zag", 2, 4)[:4].tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    y, x = (i.reshape(-1) for i in np.indices((height, width)))
    if order == "column":
        key = x * height + y
    elif order == "diagonal":
        key = (x - y) % width * height + y
    elif order == "zig-zag":
        key = interleave(y, x)
    elif order == "tile":
        down, right = tile
        key = ((y // down * -(-width // right) + x // right) * down + y % down) * right + x % right
    elif order == "random":
        key = np.random.default_rng(seed).permutation(height * width)
    elif order == "row":
        key = y * width + x
    else:
        raise ValueError(f"places: order={order!r}; choose one of {ORDERS}")
    at = np.argsort(key, kind="stable")
    return np.stack([y[at], x[at]], axis=1)


def interleave(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Morton code: bits of x and y in turn, x lowest."""
    out = np.zeros(np.broadcast_shapes(np.shape(y), np.shape(x)), np.int64)
    for bit in range(16):
        out |= (np.asarray(x, np.int64) >> bit & 1) << 2 * bit | (np.asarray(y, np.int64) >> bit & 1) << 2 * bit + 1
    return out


def packed_order(sequence: np.ndarray, blocks: int, threads: int = THREADS, steps: int = STEPS) -> np.ndarray:
    """A sequence of places as the kernel takes it: int32 (blocks, steps/4, threads, 4); a warp's request is 32 neighbours.

    Raises ValueError if the sequence is too short, or steps no multiple of 4."""
    wanted = blocks * threads * steps
    if len(sequence) < wanted or steps % 4 or threads % 32:
        raise ValueError(
            f"packed_order: {blocks} blocks of {threads} threads with {steps} steps take {wanted} places, and there are "
            f"{len(sequence)}; steps must be a multiple of 4 and threads of 32"
        )
    flat = sequence[:wanted, 0].astype(np.int32) << 16 | sequence[:wanted, 1].astype(np.int32)
    return np.ascontiguousarray(flat.reshape(blocks, steps // 4, 4, threads).swapaxes(2, 3))


def program(
    paths: Sequence[str] | str,
    orders: Mapping[str, np.ndarray],
    image: tuple[int, int],
    *,
    blocks: int,
    threads: int = THREADS,
    steps: int = STEPS,
    window: int = 1,
) -> Program:
    """A launch for each path and order, path by path. ``orders``: name -> places (n, 2).

    Inputs: ``image`` (height, width), ``image4`` (height, width, 4) if a path has four channels, and ``order_0``, ... as
    ``inputs`` makes them; outputs ``y_0``, ... one a launch, (blocks*threads,): what each thread read, summed.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if unknown := sorted(set(paths) - set(PATHS)):
        raise ValueError(f"texture probes: no path {unknown}; there are {list(PATHS)}")
    height, width = image
    buffers, launches, views = [], [], []
    if any(PATHS[p].channels == 1 for p in paths):
        buffers.append(Buffer("image", image))
    if any(PATHS[p].channels == 4 for p in paths):
        buffers.append(Buffer("image4", (*image, 4)))
    for i in range(len(orders)):
        buffers.append(Buffer(f"order_{i}", (blocks, steps // 4, threads, 4), "int32"))
    for name in paths:
        path = PATHS[name]
        source = "image" if path.channels == 1 else "image4"
        handle, extents = source, (width, height)
        if path.view is not None:
            handle, extents = f"view_{len(views)}", ()
            views.append(TextureView(handle, source, image, path.channels, **path.view))
        for i in range(len(orders)):
            out = f"y_{len(launches)}"
            buffers.append(Buffer(out, (blocks * threads,), role="output"))
            args = (handle, f"order_{i}", out, *extents, steps)
            launches.append(Launch(path.entry, (blocks, 1, 1), (threads, 1, 1), args))
    return Program(
        name="texture_probe",
        source=source_of((FILE,)),
        buffers=tuple(buffers),
        launches=tuple(launches),
        defines={n: v for n, v, default in (("THREADS", threads, 256), ("WINDOW", window, 1)) if v != default},
        filename=FILE,
        textures=tuple(views),
    )


def inputs(prog: Program, orders: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Random images and the packed orders that a probe program takes."""
    rng, out = np.random.default_rng(seed), {}
    sequences = list(orders.values())
    for b in prog.inputs:
        if b.name.startswith("order_"):
            blocks, quarter, threads, _ = b.shape
            out[b.name] = packed_order(sequences[int(b.name[6:])], blocks, threads, 4 * quarter)
        else:
            out[b.name] = rng.integers(0, 256, b.shape).astype(np.float32)
    return out


def expected(path: str, image: np.ndarray, order: np.ndarray, window: int = 1) -> np.ndarray:
    """What each thread must have summed, in float64: ``image`` (height, width) or with 4 channels, ``order`` packed."""
    image = np.asarray(image, np.float64)
    image = image.sum(-1) if image.ndim == 3 else image
    view = PATHS[path].view
    mode = "edge" if view is not None and not view.get("address") and not PATHS[path].surface else "constant"
    around = window // 2 + 1
    wide = np.pad(image, around, mode=mode)
    if PATHS[path].entry == "probe_filter":
        wide = (wide + np.roll(wide, -1, 0) + np.roll(wide, -1, 1) + np.roll(wide, (-1, -1), (0, 1))) / 4
    y, x = order >> 16, order & 0xFFFF
    total = np.zeros(order.shape)
    for v in range(-(window // 2), window // 2 + 1):
        for u in range(-(window // 2), window // 2 + 1):
            total += wide[y + v + around, x + u + around]
    return total.sum(axis=(1, 3)).reshape(-1)
