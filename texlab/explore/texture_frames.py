"""From a probe's trace to pictures: what each request of a warp reads, in the image and in the lines of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab import cache, texture_probes
from texlab.explore.texture_pictures import face
from texlab.player import EMPTY, GREEN, MUTED, ORANGE, PURPLE, SKY, YELLOW
from texlab.program import Run
from texlab.views import TextureView, resolve, unpack_texels

SIZE = 32  # the picture's rows and columns: one warp reads it in 32 requests
WORDS = cache.LINE // 4  # texels in a line
LEVELS = {"1 KB": 1 << 10, "2 KB": 2 << 10, "4 KB": 4 << 10, "as on the H200": cache.H200[0].bytes}
FILTERS = ("point", "linear")


@dataclass(frozen=True)
class Study:
    """A probe of the little picture that ran, and what the cache model says. ``address`` (SIZE, SIZE): where each texel lies,
    in bytes from the first; per request of the trace ``rows``: ``places`` (lane, y, x) it reads, and of its sectors the
    numbers, hits and what the cache holds afterwards."""

    order: str
    layout: str
    filter: str
    window: int
    path: str
    run: Run
    address: np.ndarray
    behaviour: cache.Behaviour
    rows: np.ndarray
    places: list[np.ndarray]
    held: list[frozenset[int]]

    @property
    def requests(self) -> int:
        return len(self.rows)


def study(
    order: str, layout: str, filter: str = "point", window: int = 1, tile: tuple[int, int] = (4, 8), l1: int = 0
) -> Study:
    """Run the probe kernel on the picture, one warp, and send its trace through the model.

    ``layout``: an address map of ``texlab.cache``; row-major and unfiltered it is plain loads, otherwise a texture. ``l1``:
    bytes of the L1 cache (0: the H200's). Raises ValueError for names that do not exist."""
    if layout not in cache.MAPS or filter not in FILTERS:
        raise ValueError(f"layout={layout!r}, filter={filter!r}: the layouts are {cache.MAPS}, the filters {FILTERS}")
    path = "filtered" if filter == "linear" else "global" if layout == "row-major" else "border"
    orders = {order: texture_probes.places(order, SIZE, SIZE, tile=tile)}
    how = {"blocks": 1, "threads": 32, "steps": SIZE, "window": window}
    program = texture_probes.program(path, orders, (SIZE, SIZE), **how)
    inputs = texture_probes.inputs(program, orders) | {"image": face(SIZE)}
    run = program.run(device="sim", trace=True, **inputs)
    want = texture_probes.expected(path, inputs["image"], inputs["order_0"], window)
    if not np.allclose(run.outputs["y_0"], want, rtol=1e-5, atol=1e-5):
        raise RuntimeError(f"the probe {path!r} read something else than the order says")
    levels = (cache.Cache("L1", l1), cache.H200[1]) if l1 else cache.H200
    behaviour = cache.run(run.trace, levels=levels, layout=layout)
    view = TextureView("picture", "image", (SIZE, SIZE))
    y, x = np.indices((SIZE, SIZE))
    address = cache.texel_address(view, "float32", 0, y, x, layout)
    rows = np.unique(behaviour.row)
    places = [_places(run.trace, row) for row in rows]
    return Study(
        order, layout, filter, window, path, run, address, behaviour, rows, places, _held(behaviour, rows, levels[0])
    )


def _places(trace: Any, row: int) -> np.ndarray:
    """(n, 3) lane, y, x of the texels that a row reads; a filtered fetch reads up to four."""
    on = np.flatnonzero(trace.mask[row] >> np.arange(32) & 1)
    if trace.instructions[trace.instruction[row]].space == "global":
        flat = (trace.address[row, on].astype(np.int64) - trace.buffers["image"].base) // 4
        return np.stack([on, flat // SIZE, flat % SIZE], axis=1)
    number, _, y, x = unpack_texels(trace.address[row, on].view(np.int64))
    view = trace.textures[int(number[0])]
    reach = (0, 1) if view.filter == "linear" else (0,)
    corners = []
    for down in reach:
        for right in reach:
            j, i = resolve(y + down, SIZE, view.address), resolve(x + right, SIZE, view.address)
            inside = (j >= 0) & (i >= 0)
            corners.append(np.stack([on[inside], j[inside], i[inside]], axis=1))
    return np.concatenate(corners)


def _held(behaviour: cache.Behaviour, rows: np.ndarray, l1: cache.Cache) -> list[frozenset[int]]:
    """The sectors in the cache after each request."""
    last = np.searchsorted(behaviour.row, rows, side="right") - 1
    out: dict[int, frozenset[int]] = {}
    wanted = set(last.tolist())

    def watch(n: int, sets: list[dict[int, int]]) -> None:
        if n in wanted:
            out[n] = frozenset(
                line * cache.SECTORS + k
                for lines in sets
                for line, bits in lines.items()
                for k in range(cache.SECTORS)
                if bits >> k & 1
            )

    cache.simulate(behaviour.sector, l1, watch)
    return [out[int(n)] for n in last]


def pictures(s: Study) -> dict[str, Any]:
    """Arguments of ``Player.load``: the image, and the lines of memory it lies in."""
    base_colour = np.where(face(SIZE) > 0.5, EMPTY, MUTED).astype(np.uint8)
    cell = s.address // 4  # where a texel lies in the memory panel
    lines = int(cell.max()) // WORDS + 1
    sector_of = (_start(s) + s.address) // cache.SECTOR
    image = np.zeros((s.requests, SIZE, SIZE), np.uint8)
    memory = np.full((s.requests, lines * WORDS), EMPTY, np.uint8)
    image_tags = np.full((s.requests, SIZE, SIZE), -1, np.int16)
    memory_tags = np.full((s.requests, lines * WORDS), -1, np.int16)
    used = np.zeros((SIZE, SIZE), bool)
    seen: set[int] = set()
    when = np.full((SIZE, SIZE), -1, np.int32)
    captions, hits, asked = [], 0, 0
    bounds = [*np.searchsorted(s.behaviour.row, s.rows, side="left").tolist(), len(s.behaviour.row)]
    for t in range(s.requests):
        mine = slice(bounds[t], bounds[t + 1])
        sectors, hit = s.behaviour.sector[mine], s.behaviour.hit[mine]
        lane, y, x = s.places[t].T
        now = np.zeros((SIZE, SIZE), bool)
        now[y, x] = True
        when[now & (when < 0)] = t
        here = np.isin(sector_of, list(s.held[t]))
        was = np.isin(sector_of, list(seen)) & ~here
        colour = base_colour.copy()
        colour[was] = PURPLE
        colour[here] = np.where(used[here], GREEN, YELLOW)
        colour[now] = np.where(np.isin(sector_of[now], sectors[~hit]), ORANGE, SKY)
        used |= now
        seen |= s.held[t]
        image[t], memory[t, cell] = colour, colour
        image_tags[t, y, x] = lane
        memory_tags[t, cell[y, x]] = lane
        hits, asked = hits + int(hit.sum()), asked + len(hit)
        touched, wanted = len(np.unique(sectors // cache.SECTORS)), len(np.unique(sectors))
        captions.append(
            f"Request {t + 1} of {s.requests}: {len(np.unique(lane))} lanes want {wanted} sectors in {touched} "
            f"line{'s' if touched > 1 else ''}; {len(hit)} lookups: {int(hit.sum())} hits, {len(hit) - int(hit.sum())} misses. "
            f"So far {hits} of {asked} were hits ({hits / asked:.0%})."
        )
    flat = np.arange(SIZE * SIZE).reshape(SIZE, SIZE)
    place_of = np.full(lines * WORDS, -1, np.int64)
    place_of[cell.reshape(-1)] = flat.reshape(-1)
    tips = [f"image[y={k // SIZE}, x={k % SIZE}], line {cell.flat[k] // WORDS}" for k in range(SIZE * SIZE)]
    panels = [
        {
            "name": "image",
            "title": "The image",
            "rows": SIZE,
            "cols": SIZE,
            "x": "x",
            "y": "y",
            "tag_name": "lane",
            "tips": tips,
            "cell": 15,
        },
        {
            "name": "memory",
            "title": f"The same texels as they lie in memory ({s.layout})",
            "rows": lines,
            "cols": WORDS,
            "x": "word of the line; 8 words are a sector",
            "y": "line of 128 bytes",
            "col_breaks": list(range(8, WORDS, 8)),
            "tag_name": "lane",
            "tips": [tips[k] if k >= 0 else "not in the image" for k in place_of],
            "cell": 15,
        },
    ]
    meaning = {
        ORANGE: ("read now: a miss", "cross"),
        SKY: ("read now: a hit", "corner"),
        GREEN: "in the cache, read before",
        YELLOW: "in the cache, brought along, not read yet",
        PURPLE: ("was in the cache and had to go", "outline"),
        MUTED: "a dark texel",
    }
    frames = np.concatenate([image.reshape(s.requests, -1), memory], axis=1)
    present = set(np.unique(frames))
    return {
        "panels": panels,
        "frames": frames,
        "tags": np.concatenate([image_tags.reshape(s.requests, -1), memory_tags], axis=1),
        "captions": captions,
        "legend": {colour: text for colour, text in meaning.items() if colour in present},
        "points": when.reshape(-1),
        "links": np.concatenate([flat.reshape(-1), place_of]).astype(np.int32),
        "page": 8,
        "label": f"requests of a warp that reads a picture in {s.order} order, {s.layout} in memory",
    }


def _start(s: Study) -> int:
    """The address of the first texel, as the trace's sectors have it."""
    if s.path == "global":
        return s.run.trace.buffers["image"].base
    return cache.array_base(s.run.trace, "image")
