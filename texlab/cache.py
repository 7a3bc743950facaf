"""A model of the caches between a multiprocessor and memory, fed by a trace.

A cache holds lines of 128 bytes, each of four sectors of 32 bytes that are filled one by one; a miss brings one sector.
Lines sit in sets and the least recently used one of a set makes room. The model knows no time: what is asked for is there
at once. A request of a warp is looked up in groups of lanes, and each group asks for each of its sectors once: all 32 lanes
of a load, 4 lanes of a texture fetch, 8 of a surface read. What one group brought, the next one of the same request hits.

*Documented*: sectors and lines of 32 and 128 bytes, the block-linear map below (recorded fetch times of neighbours confirm
its sectors on an NVIDIA H200), 256 KB a multiprocessor for L1 and shared
memory. *Calibrated* on the counters of an NVIDIA H200 (``texlab/data/results/h200/texture.json``): the groups of lanes, the
192 KB that the L1 has of them, and that a line of a two-dimensional texture over linear memory is 32 bytes x 4 rows. LRU
over one set is a simplification: which lines compete for a place in the hardware is not known. It shows where a walk needs
nearly all of the cache (its hit rate falls gradually, between 128 and 256 KB, where LRU falls off a cliff) and along the
diagonals of a tall image.

Where a texel lies is an *address map*: "row-major" (a plain buffer), "block-linear" (a CUDA array) or "morton". The
block-linear map is the documented one of NVIDIA's graphics memory (Tegra X1 Technical Reference Manual, "Block Linear"):
64 bytes x 8 rows make a block of 512 bytes, of which 16 bytes x 2 rows are one sector and 32 bytes x 4 rows one line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.views import TextureView, padded_pitch, resolve, unpack_texels

SECTOR, LINE = 32, 128
SECTORS = LINE // SECTOR
MAPS = ("row-major", "block-linear", "morton")
_ARRAYS = 1 << 60  # where the addresses of CUDA arrays begin: they have none that a program could know


@dataclass(frozen=True)
class Cache:
    """A level: its size in bytes, and how many lines a set holds (0: one set of all, fully associative)."""

    name: str
    bytes: int
    ways: int = 0

    @property
    def lines(self) -> int:
        return self.bytes // LINE


#: NVIDIA H200 (compute capability 9.0): of 256 KB a multiprocessor for L1, textures and shared memory together, what fits the
#: recorded hit rates of random orders; 60 MB of L2, as the driver reports it.
H200 = (Cache("L1", 192 << 10), Cache("L2", 60 << 20, 16))
#: lanes that are looked up together, by what is read
LANES = {"load": 32, "texture": 4, "surface": 8}


# where texels lie -------------------------------------------------------------------------------------------------
def texel_address(
    view: TextureView, dtype: str, layer: Any, y: Any, x: Any, layout: str = "block-linear"
) -> np.ndarray:
    """Byte offset of texels within their texture, under an address map.

    >>> view = TextureView("t", "x", (64, 64))
    >>> [int(texel_address(view, "float32", 0, *at, "block-linear")) for at in ((0, 0), (0, 1), (1, 0), (2, 0), (0, 4))]
    [0, 4, 16, 64, 32]
    """
    texel = view.texel_bytes(dtype)
    layer, y, x = (np.asarray(v, np.int64) for v in (layer, y, x))
    if layout == "row-major":
        row = view.row_bytes(dtype)
        return (layer * view.height + y) * row + x * texel
    if layout == "morton":
        side = 1 << max(view.height - 1, view.width - 1, 1).bit_length()
        return (layer * side * side + _interleave(y, x)) * texel
    if layout != "block-linear":
        raise ValueError(f"texel_address: layout={layout!r}; choose one of {MAPS}")
    tall = 8 * block_height(view.height)
    across, down = -(-view.width * texel // 64), -(-view.height // tall)
    b = x * texel
    block = ((layer * down + y // tall) * across + b // 64) * (64 * tall)
    inside = b % 64 // 32 * 256 + y % 8 // 2 * 64 + b % 32 // 16 * 32 + y % 2 * 16 + b % 16
    return block + y % tall // 8 * 512 + inside


def block_height(height: int) -> int:
    """How many 8-row blocks stand on each other before the next column begins: a power of two, at most 16."""
    return min(16, 1 << max(0, -(-height // 8) - 1).bit_length())


def _interleave(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = np.zeros(np.broadcast_shapes(y.shape, x.shape), np.int64)
    for bit in range(18):
        out |= (x >> bit & 1) << 2 * bit | (y >> bit & 1) << 2 * bit + 1
    return out


# from a trace to sectors --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Stream:
    """What reached the cache, request by request: ``row`` (accesses,) of the trace, ``sector`` (accesses,) numbers
    (address / 32), each once a group of lanes (``LANES``), in the trace's order."""

    row: np.ndarray
    sector: np.ndarray

    def __len__(self) -> int:
        return len(self.row)


def stream(trace: Any, rows: np.ndarray | None = None, layout: str | Mapping[str, str] | None = None) -> Stream:
    """The sectors that rows of a trace ask of the L1 cache: loads from global memory, texture fetches, surface reads.

    ``rows``: indices (default: all); what is no such load, or goes past the L1 (cp.async.cg), is left out. ``layout``: the
    address map of CUDA arrays, for all or by the view's name (default: block-linear; linear memory is row-major always).
    """
    instructions = trace.instructions
    rows = np.arange(len(trace)) if rows is None else np.asarray(rows)
    cached = np.array([_cached(i) for i in instructions], bool)
    which = trace.instruction[rows]
    rows = rows[cached[which]] if len(instructions) else rows[:0]
    which = trace.instruction[rows]
    texture = np.array([i.space == "texture" for i in instructions], bool)[which] if len(instructions) else which > 0
    parts = []
    for width in np.unique([instructions[i].width for i in np.unique(which[~texture])]).astype(int):
        mine = rows[~texture & np.array([instructions[i].width == width for i in range(len(instructions))])[which]]
        row, lane = np.nonzero(_lanes(trace.mask[mine]))
        address = trace.address[mine[row], lane].astype(np.int64)
        for plus in range(0, width, SECTOR):
            parts.append((mine[row], lane // LANES["load"], (address + plus) // SECTOR))
    mine = rows[texture]
    if len(mine):
        row, lane = np.nonzero(_lanes(trace.mask[mine]))
        number, layer, y, x = unpack_texels(trace.address[mine[row], lane].view(np.int64))
        for n in np.unique(number):
            at = number == n
            group = lane[at] // LANES["surface" if trace.textures[int(n)].surface else "texture"]
            parts += [
                (mine[row[at]][ok], group[ok], s[ok])
                for s, ok in _texel_sectors(trace, int(n), layer[at], y[at], x[at], layout)
            ]
    if not parts:
        return Stream(np.zeros(0, np.int64), np.zeros(0, np.int64))
    row, group, sector = np.unique([np.concatenate(p) for p in zip(*parts, strict=True)], axis=1)
    return Stream(row, sector)


def _cached(instruction: Any) -> bool:
    past = ".cg." in instruction.opcode or instruction.opcode.startswith("st")
    return instruction.kind == "load" and instruction.space in ("global", "texture") and not past


def _lanes(mask: np.ndarray) -> np.ndarray:
    return (mask[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(bool)


def _texel_sectors(
    trace: Any, number: int, layer: Any, y: Any, x: Any, layout: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(sectors, whether there are any) of fetches through one view: for a linear filter of all texels it mixes."""
    view = trace.textures[number]
    placed = trace.buffers[view.buffer]
    linear = view.memory == "linear"
    base = placed.base if linear else array_base(trace, view.buffer)
    name = layout.get(view.name, "block-linear") if isinstance(layout, Mapping) else layout or "block-linear"
    name = "row-major" if linear else name
    across = padded_pitch(view.row_bytes(placed.dtype)) // SECTOR
    reach = (0, 1) if view.filter == "linear" else (0,)
    out = []
    for down in reach if len(view.size) > 1 else (0,):
        for right in reach:
            j, i = resolve(y + down, view.height, view.address), resolve(x + right, view.width, view.address)
            inside = (j >= 0) & (i >= 0)
            j, i = np.maximum(j, 0), np.maximum(i, 0)
            if linear and len(view.size) > 1:  # sectors numbered so that four rows share a line
                line = j // 4 * across + i * view.texel_bytes(placed.dtype) // SECTOR
                number = array_base(trace, view.buffer) // SECTOR + line * SECTORS + j % 4
            else:
                number = (base + texel_address(view, placed.dtype, layer, j, i, name)) // SECTOR
            out.append((number, inside))
    return out


def array_base(trace: Any, buffer: str) -> int:
    """Where the model puts the CUDA array of a buffer: apart from everything that has an address."""
    return _ARRAYS + (list(trace.buffers).index(buffer) << 40)


# the caches -----------------------------------------------------------------------------------------------------------
def simulate(
    sector: np.ndarray, cache: Cache, watch: Callable[[int, list[dict[int, int]]], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Send sector numbers through a cache that starts empty: (hit, reuse distance), one for each.

    The reuse distance is the number of different lines touched since this line was touched last, -1 at the first time: a
    fully associative cache of more lines than that still has it. ``watch`` is called after each access with its number and
    the sets: line -> bits of the sectors it holds.

    >>> hit, distance = simulate(np.array([0, 1, 0, 4, 8, 0]), Cache("two lines", 256))
    >>> hit.tolist(), distance.tolist()
    ([False, False, True, False, False, False], [-1, 0, 0, -1, -1, 2])
    """
    sets = cache.lines // cache.ways if cache.ways else 1
    ways = cache.ways or cache.lines
    held: list[dict[int, int]] = [{} for _ in range(sets)]
    last: dict[int, int] = {}
    times: list[int] = []  # of the last touch of every line, ascending
    hits, distances = np.zeros(len(sector), bool), np.full(len(sector), -1, np.int64)
    for n, s in enumerate(sector.tolist()):
        line, bit = s // SECTORS, 1 << s % SECTORS
        lines = held[line % sets]
        valid = lines.pop(line, 0)
        if valid & bit:
            hits[n] = True
        elif not valid and len(lines) >= ways:
            del lines[next(iter(lines))]  # a dict keeps its order: the first is the least recently used
        lines[line] = valid | bit
        before = last.get(line)
        if before is not None:
            at = bisect_left(times, before)
            distances[n] = len(times) - 1 - at
            del times[at]
        times.append(n)
        last[line] = n
        if watch is not None:
            watch(n, held)
    return hits, distances


@dataclass(frozen=True)
class Behaviour:
    """What one multiprocessor's stream did. Per access of the stream: ``row``, ``sector``, ``hit`` in the L1, ``level`` that
    answered (0: L1, 1: L2, 2: memory), ``distance`` (reuse distance in lines)."""

    row: np.ndarray
    sector: np.ndarray
    hit: np.ndarray
    level: np.ndarray
    distance: np.ndarray

    @property
    def hit_rate(self) -> float:
        """Lookups of sectors that the L1 held, over all lookups."""
        return float(self.hit.mean()) if len(self.hit) else 0.0

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes that left each level: asked of the L1, brought from the L2, brought from memory."""
        names = ("L1", "L2", "memory")
        return {name: SECTOR * int((self.level >= k).sum()) for k, name in enumerate(names)}


def run(
    trace: Any,
    *,
    levels: Sequence[Cache] = H200,
    layout: str | Mapping[str, str] | None = None,
    rows: np.ndarray | None = None,
) -> Behaviour:
    """The trace through the caches: an L1 for each thread block, which starts empty, one L2 for all.

    A block is taken to have a multiprocessor to itself, as it has in a grid no larger than the card. Rows are served in the
    trace's order: the warps of a block take turns.

    >>> behaviour = run(trace, layout="morton")      # doctest: +SKIP
    """
    asked = stream(trace, rows, layout)
    key = trace.launch[asked.row].astype(np.int64) << 32 | trace.block[asked.row]
    hit, distance = np.zeros(len(asked), bool), np.full(len(asked), -1, np.int64)
    for k in np.unique(key):
        mine = np.flatnonzero(key == k)
        mine = mine[np.argsort(trace.step[asked.row[mine]], kind="stable")]
        hit[mine], distance[mine] = simulate(asked.sector[mine], levels[0])
    level = np.where(hit, 0, 1)
    missed = np.flatnonzero(~hit)
    missed = missed[np.argsort(trace.step[asked.row[missed]], kind="stable")]
    for launch in np.unique(trace.launch[asked.row[missed]]):
        mine = missed[trace.launch[asked.row[missed]] == launch]
        found, _ = simulate(asked.sector[mine], levels[1])
        level[mine[~found]] = 2
    return Behaviour(asked.row, asked.sector, hit, level, distance)
