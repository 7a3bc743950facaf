"""From a modelled timeline to pictures: what each warp does, and what each shared tile holds, moment by moment. Pure functions.

One frame is one slice of time. A cell of the upper panel is a slice of a warp's time; a cell of the lower one is eight
neighbouring words of a shared tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from texlab.latency import Event, Moment
from texlab.player import BLUE, EMPTY, GREEN, MUTED, ORANGE, SKY, VERMILLION, YELLOW
from texlab.timeline import Timeline
from texlab.trace import active_lanes

SLICES = 84  # frames, and cells of the time axis
GROUP = 8  # words a cell of shared memory stands for
WARPS = 2  # that are drawn
LEGEND = {
    SKY: "tile on its way",
    YELLOW: "issuing its loads",
    GREEN: "multiplying · tile ready",
    VERMILLION: ("waiting", "hatch"),
    ORANGE: ("being read", "corner"),
    MUTED: "used up · this moment",
}


def pictures(
    timeline: Timeline, moments: Sequence[Moment], trace: Any, tiles: Mapping[str, int], buffers: int, pad: int
) -> dict[str, Any]:
    """What ``Player.load`` takes. ``tiles``: BLOCK_K, BLOCK_Q, BLOCK_C; ``buffers``: shared tiles of the kernel; ``pad``: words
    after each row."""
    stamps = timeline.stamps[0]
    end = float(np.nanmax(stamps))
    times = (np.arange(SLICES) + 1) * end / SLICES
    lines, labels, depth = _lines(timeline, times)
    now = np.broadcast_to(lines, (SLICES, *lines.shape)).copy()
    step = np.arange(SLICES)
    column = now[step, :, step]
    now[step, :, step] = np.where(column == EMPTY, MUTED, column)
    clock = np.full((SLICES, 1, SLICES), EMPTY)
    clock[step, 0, step] = BLUE
    upper = np.concatenate([clock, now], axis=1)
    numbers = np.concatenate([np.full((1, SLICES), -1), _numbers(timeline, times, depth)])
    memory, held = _memory(stamps, moments, trace, tiles, buffers, pad, times)
    groups = (tiles["BLOCK_K"] // GROUP, tiles["BLOCK_Q"] // GROUP)
    rows = buffers * tiles["BLOCK_C"]
    frames = np.concatenate([upper.reshape(SLICES, -1), memory.reshape(SLICES, -1)], axis=1)
    tags = np.concatenate(
        [np.broadcast_to(numbers.reshape(-1), (SLICES, numbers.size)), held.reshape(SLICES, -1)], axis=1
    )
    return dict(
        panels=[
            {
                "name": "timeline",
                "title": f"When: {timeline.name}, cycles ({timeline.how})",
                "rows": upper.shape[1],
                "cols": SLICES,
                "cell": 13,
                "row_labels": ["", *labels],
                "row_breaks": [1, *range(1 + depth + 1, upper.shape[1], depth + 1)],
                "col_labels": [f"{t - end / SLICES:.0f}" if i % 12 == 0 else "" for i, t in enumerate(times)],
                "tag_name": "tile",
            },
            {
                "name": "shared memory",
                "title": "Where: the shared tiles; a cell is 8 words, its number the tile it holds",
                "rows": rows,
                "cols": sum(groups),
                "cell": 22 if rows <= 16 else 15,
                "x": "filter values (Ws), then pixels (Xs)",
                "row_labels": [
                    f"buffer {r // tiles['BLOCK_C']}" if r % tiles["BLOCK_C"] == 0 else "" for r in range(rows)
                ],
                "row_breaks": list(range(tiles["BLOCK_C"], rows, tiles["BLOCK_C"])),
                "col_breaks": [groups[0]],
                "tips": _tips(tiles, buffers, groups),
                "tag_name": "tile",
            },
        ],
        frames=frames.astype(np.uint8),
        tags=tags.astype(np.int16),
        captions=[_caption(timeline, t) for t in times - end / SLICES / 2],
        legend=LEGEND,
        points=np.tile(np.arange(SLICES), upper.shape[1]),
        page=SLICES // 12,
        label=f"timeline and shared memory of {timeline.name}",
    )


# when ---------------------------------------------------------------------------------------------------------------
def _slots(spans: np.ndarray) -> np.ndarray:
    """A line for each interval (n, 2) so that those on one line do not overlap, lowest first."""
    free: list[float] = []
    out = np.zeros(len(spans), int)
    for i, (start, end) in enumerate(spans):
        if np.isnan(start):
            continue
        line = next((n for n, until in enumerate(free) if until <= start), len(free))
        free[line : line + 1] = [end]
        out[i] = line
    return out


def _lines(timeline: Timeline, times: np.ndarray) -> tuple[np.ndarray, list[str], int]:
    """Colours (lines, slices) of the first warps, a name for each line, and how many of a warp's lines are for loads."""
    warps = min(WARPS, timeline.stamps.shape[1])
    slots = [_slots(timeline.loads[0, w]) for w in range(warps)]
    depth = 1 + max(int(s.max(initial=0)) for s in slots)
    out = np.full((warps * (depth + 1), len(times)), EMPTY)
    labels = []
    middle = times - times[0] / 2
    for w in range(warps):
        top = w * (depth + 1)
        labels += [f"warp {w} loads", *[""] * (depth - 1), f"warp {w} does"]
        for tile, (start, end) in enumerate(timeline.loads[0, w]):
            out[top + slots[w][tile], (middle >= start) & (middle < end)] = SKY
        spans = ((timeline.waits, VERMILLION), (timeline.issues, YELLOW), (timeline.multiplies, GREEN))
        for intervals, colour in spans:
            for start, end in intervals[0, w]:
                out[top + depth, (middle >= start) & (middle < end)] = colour
    return out, labels, depth


def _numbers(timeline: Timeline, times: np.ndarray, depth: int) -> np.ndarray:
    """The tile's number in the first cell of each load and multiply."""
    warps = min(WARPS, timeline.stamps.shape[1])
    out = np.full((warps * (depth + 1), len(times)), -1)
    middle = times - times[0] / 2
    for w in range(warps):
        slots = _slots(timeline.loads[0, w])
        for intervals, line in ((timeline.loads, None), (timeline.multiplies, depth)):
            for tile, (start, end) in enumerate(intervals[0, w]):
                cells = np.flatnonzero((middle >= start) & (middle < end))
                if len(cells):
                    out[w * (depth + 1) + (slots[tile] if line is None else line), cells[0]] = tile
    return out


def _caption(timeline: Timeline, t: float) -> str:
    """What warp 0 does at time ``t``, and what is on its way for it."""
    doing = "does something else (addresses, barriers, stores)"
    for intervals, words in (
        (timeline.waits, "waits for tile {}"),
        (timeline.issues, "issues the loads of tile {}"),
        (timeline.multiplies, "multiplies tile {}"),
    ):
        for tile, (start, end) in enumerate(intervals[0, 0]):
            if start <= t < end:
                doing = words.format(tile)
    coming = [str(tile) for tile, (start, end) in enumerate(timeline.loads[0, 0]) if start <= t < end]
    return f"cycle {t:,.0f}: warp 0 {doing}; on its way: {'tile ' + ', '.join(coming) if coming else 'nothing'}"


# where --------------------------------------------------------------------------------------------------------------
def _memory(
    stamps: np.ndarray,
    moments: Sequence[Moment],
    trace: Any,
    tiles: Mapping[str, int],
    buffers: int,
    pad: int,
    times: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Colours and tile numbers (slices, rows, columns) of the shared tiles."""
    with np.errstate(all="ignore"):
        ready, used = np.nanmax(stamps[..., Event.ARRIVE], axis=0), np.nanmax(stamps[..., Event.CONSUME], axis=0)
    cell_of = _cells(moments, trace, tiles, buffers, pad)
    shape = (buffers * tiles["BLOCK_C"], (tiles["BLOCK_K"] + tiles["BLOCK_Q"]) // GROUP)
    tile, colours, numbers = np.full(shape[0] * shape[1], -1), [], []
    order = sorted(range(len(moments)), key=lambda i: moments[i].begin)
    at = 0
    for t in times:
        read = np.zeros(tile.size, bool)
        while at < len(order) and moments[order[at]].begin <= t:
            moment, cells = moments[order[at]], cell_of[order[at]]
            if moment.kind == "read":
                read[cells] = True
            else:
                tile[cells] = moment.tile
            at += 1
        held = tile >= 0
        known = np.where(held, tile, 0)
        colour = np.where(t >= ready[known], GREEN, SKY)
        colour = np.where(t >= used[known], MUTED, colour)
        colours.append(np.where(read, ORANGE, np.where(held, colour, EMPTY)).reshape(shape))
        numbers.append(tile.copy().reshape(shape))
    return np.stack(colours), np.stack(numbers)


def _cells(moments: Sequence[Moment], trace: Any, tiles: Mapping[str, int], buffers: int, pad: int) -> list[np.ndarray]:
    """For each moment the cells that its lanes touch."""
    block_c, block_k, block_q = tiles["BLOCK_C"], tiles["BLOCK_K"], tiles["BLOCK_Q"]
    lengths = (block_k + pad, block_q + pad)
    names = [trace.instructions[trace.instruction[m.row]].source for m in moments]
    address = [
        trace.address[m.row][active_lanes(trace.mask[m.row : m.row + 1])[0]].astype(np.int64) // 4 for m in moments
    ]
    bases = [min((int(a.min()) for a, n in zip(address, names, strict=True) if f"{x}s[" in n), default=0) for x in "WX"]
    apart = any("Xs[" in n for n in names)  # two arrays, as in rungs 05 and 07; else one ring of both
    out = []
    for moment, name, words in zip(moments, names, address, strict=True):
        width = max(1, trace.instructions[trace.instruction[moment.row]].width // 4)
        words = (words[:, None] + np.arange(0, width, 4)).reshape(-1)
        if apart:
            pixels = np.full(len(words), "Xs[" in name)
            length = np.where(pixels, lengths[1], lengths[0])
            offset = words - np.where(pixels, bases[1], bases[0])
            row, word = offset // length, offset % length
        else:
            stage, offset = np.divmod(words, block_c * sum(lengths))
            pixels = offset >= block_c * lengths[0]
            offset = offset - np.where(pixels, block_c * lengths[0], 0)
            length = np.where(pixels, lengths[1], lengths[0])
            row, word = stage * block_c + offset // length, offset % length
        column = np.where(pixels, block_k // GROUP, 0) + word // GROUP
        out.append(np.unique(row * ((block_k + block_q) // GROUP) + column))
    return out


def _tips(tiles: Mapping[str, int], buffers: int, groups: tuple[int, int]) -> list[str]:
    out = []
    for buffer in range(buffers):
        for j in range(tiles["BLOCK_C"]):
            for array, count in zip(("Ws", "Xs"), groups, strict=True):
                out += [f"{array}[{buffer}][{j}][{GROUP * g}..{GROUP * g + GROUP - 1}]" for g in range(count)]
    return out
