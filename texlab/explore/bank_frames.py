"""From a trace to pictures of shared memory: which lane goes to which bank, in which wavefront. Pure functions.

One frame is one execution of a load, store or atomic by one warp. Linked panels show it: all the accesses in order,
each with its cost; the warp's 32 lanes; and the 32 banks, over time (a row per wavefront) and in space (a row per 32
words of shared memory). A colour is a wavefront in every panel, and the number in a cell is the lane.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.trace import wavefront_of

BANKS = 32
COLOURS = 7  # colour indexes 1..7; wavefront n has colour 1 + (n - 1) % 7, and its row says n
CURRENT = 8  # the player's grey: the access that is shown


@dataclass(frozen=True)
class BankFrames:
    """What the player draws (``Player.load(**pictures.load)``) and what it is made of.

    ``rows`` (T,) are the rows of the trace, ``wavefronts`` (T,) their costs, ``left_out`` how many more accesses the
    selection holds.
    """

    load: dict[str, Any]
    rows: np.ndarray
    wavefronts: np.ndarray
    left_out: int


def shared_rows(trace: Any, block: int, warp: int, instructions: Collection[int] | None = None) -> np.ndarray:
    """Rows of ``trace`` that are shared-memory accesses of one warp, in program order; int (rows,).

    ``block`` is the linear block, ``warp`` its warp; ``instructions`` keeps only those (indexes of trace.instructions).
    """
    wanted = np.array([i.space == "shared" for i in trace.instructions], dtype=bool)
    if instructions is not None:
        wanted &= np.isin(np.arange(len(wanted)), list(instructions))
    if not wanted.any():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(wanted[trace.instruction] & (trace.block == block) & (trace.warp == warp))


def fitting(trace: Any, rows: np.ndarray, most: int = 12, tall: int = 24) -> int:
    """How many of the first accesses make a picture that fits a screen: at most ``most``, whose memory is at most
    ``tall`` rows of 32 words; at least 1."""
    touched: set[int] = set()
    for count, row in enumerate(rows[:most]):
        lanes = (int(trace.mask[row]) >> np.arange(32)) & 1 == 1
        touched |= set((trace.address[row][lanes] // (4 * BANKS)).tolist())
        if len(touched) > tall and count:
            return count
    return min(len(rows), most)


def bank_frames(
    trace: Any, rows: np.ndarray, limit: int = 32, name: str = "", places: np.ndarray | None = None
) -> BankFrames:
    """The pictures of the first ``limit`` accesses (``rows`` of ``trace``, from :func:`shared_rows`).

    ``places`` (rows, cols), the lane that sits in each place of the warp's tile or -1, adds a panel with that tile.

    Raises ValueError when there is nothing to show.
    """
    if not len(rows):
        raise ValueError(f"{name or 'this selection'} makes no shared-memory access: choose another warp or line")
    left_out, rows = max(0, len(rows) - limit), rows[:limit]
    instructions = [trace.instructions[i] for i in trace.instruction[rows]]
    width = np.array([i.width for i in instructions])
    address, mask = trace.address[rows].astype(np.int64), trace.mask[rows]
    active = (mask[:, None] >> np.arange(32, dtype=np.uint32)) & 1 == 1
    served = np.zeros((len(rows), 32), dtype=np.int64)  # wavefront that serves a lane, from 1; 0 = idle
    for w in np.unique(width):
        served[width == w] = wavefront_of(address[width == w], mask[width == w], int(w))
    cost = served.max(axis=1)
    lanes = np.where(active, 1 + (served - 1) % COLOURS, 0)

    # every (access, lane, word of the lane), last lane first: where lanes share a word, the lowest one is written last
    at, lane, word = (a[::-1] for a in np.nonzero(active[:, :, None] & (4 * np.arange(4) < width[:, None, None])))
    order = np.argsort(-lane, kind="stable")
    at, lane, word = at[order], lane[order], word[order]
    index = address[at, lane] // 4 + word
    memory_rows, row = np.unique(index // BANKS, return_inverse=True)
    paint, bank = lanes[at, lane], index % BANKS
    time, memory = _Cells(len(rows), int(cost.max())), _Cells(len(rows), len(memory_rows))
    time.put(at, served[at, lane] - 1, bank, paint, lane)
    memory.put(at, row, bank, paint, lane)

    steps = np.where(np.eye(len(rows), dtype=bool), CURRENT, 0)
    colours = [steps, lanes, time.colours, memory.colours]
    tags = [np.broadcast_to(cost, steps.shape), np.where(active, np.arange(32), -1), time.tags, memory.tags]
    deep = int(cost.max())
    panels = _panels(instructions, cost, active, address, memory_rows)
    links = [-1] * (len(rows) + 32) + list(range(BANKS)) * (deep + len(memory_rows))  # a bank lights up as a whole
    if places is not None:
        panels.insert(1, _tile_panel(places))
        colours.insert(1, np.where(places < 0, 0, lanes[:, places]))
        tags.insert(1, np.broadcast_to(places, (len(rows), *places.shape)))
        links = [-1] * places.size + links
    load = dict(
        panels=panels,
        frames=np.concatenate([c.reshape(len(rows), -1) for c in colours], axis=1).astype(np.uint8),
        tags=np.concatenate([t.reshape(len(rows), -1) for t in tags], axis=1).astype(np.int16),
        captions=[f"line {i.line}:  {i.source}" for i in instructions],
        legend={c: _legend(c, deep) for c in range(1, min(deep, COLOURS) + 1)},
        points=np.arange(len(rows)),  # a click on an access goes to it
        links=links,
        page=_period(instructions),
        label=f"shared-memory accesses of {name or 'a warp'}, bank by bank",
    )
    return BankFrames(load, rows, cost, left_out)


def _legend(colour: int, deep: int) -> str:
    numbers = [str(n) for n in range(colour, deep + 1, COLOURS)]
    return "wavefront " + ", ".join(numbers[:3]) + (", …" if len(numbers) > 3 else "")


class _Cells:
    """Colours and printed numbers of a grid of ``height`` rows of 32 banks, for every frame."""

    def __init__(self, frames: int, height: int) -> None:
        self.colours = np.zeros((frames, height, BANKS), np.uint8)
        self.tags = np.full((frames, height, BANKS), -1, np.int16)

    def put(self, frame: np.ndarray, row: np.ndarray, bank: np.ndarray, colour: np.ndarray, tag: np.ndarray) -> None:
        self.colours[frame, row, bank] = colour
        self.tags[frame, row, bank] = tag


def _period(instructions: list[Any]) -> int:
    """Accesses from one execution of the first source line to the next: a step of the kernel's loop."""
    first = instructions[0].line
    left = next((i for i, ins in enumerate(instructions) if ins.line != first), 0)
    back = next((i for i, ins in enumerate(instructions) if i > left and ins.line == first), len(instructions))
    return back if left else 4


def _panels(
    instructions: list[Any], cost: np.ndarray, active: np.ndarray, address: np.ndarray, memory_rows: np.ndarray
) -> list[dict[str, Any]]:
    deep, period, count = int(cost.max()), _period(instructions), len(cost)
    who = [_who(*item) for item in zip(instructions, active, address, strict=True)]
    when = [
        f"{c} wavefront{'' if c == 1 else 's'} for this {i.kind} instruction: {n} different words of 4 bytes"
        for c, i, (n, _) in zip(cost.tolist(), instructions, who, strict=True)
    ]
    access = {
        "name": "access",
        "title": "Accesses in order: cost in wavefronts",
        "rows": 1,
        "cols": count,
        "cell": 20,
        "col_breaks": list(range(period, count, period)),
        "outline": [CURRENT],
        "tips": [f"access {i}: {ins.opcode}, line {ins.line}" for i, ins in enumerate(instructions)],
        "tag_name": "wavefronts:",
    }
    lanes = {
        "name": "lanes",
        "title": "Who: the 32 lanes of the warp",
        "rows": 1,
        "cols": 32,
        "cell": 20,
        "tips": [f"lane {lane}" for lane in range(32)],
        "notes": [text for _, text in who],
    }
    words = [f"word {BANKS * r + b} (byte {4 * (BANKS * r + b)}): bank {b}" for r in memory_rows for b in range(BANKS)]
    memory = {
        "name": "banks",
        "title": "When and where: the 32 banks, wavefront by wavefront; below, shared memory",
        "rows": deep + len(memory_rows),
        "cols": BANKS,
        "x": "bank",
        "col_labels": [str(b) for b in range(BANKS)],
        "row_labels": [f"wavefront {i + 1}" for i in range(deep)] + [f"word {BANKS * r}" for r in memory_rows],
        "row_breaks": [deep, *(deep + 1 + np.flatnonzero(np.diff(memory_rows) > 1)).tolist()],
        "tips": [f"bank {b} in wavefront {i + 1}" for i in range(deep) for b in range(BANKS)] + words,
        "tag_name": "lane",
        "notes": when,
        "cell": 20 if deep + len(memory_rows) <= 30 else 13,
    }
    return [access, lanes, memory]


def _tile_panel(places: np.ndarray) -> dict[str, Any]:
    rows, cols = places.shape
    return {
        "name": "tile",
        "title": "The warp's outputs: which lane has them",
        "rows": rows,
        "cols": cols,
        "x": "pixels",
        "y": "channels" if rows > 3 else "",
        "cell": 20,
        "tips": [f"channel group {r}, pixel group {c}" for r in range(rows) for c in range(cols)],
        "tag_name": "lane",
    }


def _who(instruction: Any, active: np.ndarray, address: np.ndarray) -> tuple[int, str]:
    """Number of different 4-byte words, and what the lanes ask for, in words."""
    wanted = address[active]
    words = {int(a) // 4 + i for a in wanted for i in range(max(1, instruction.width // 4))}
    lanes, places = len(wanted), len(set(wanted.tolist()))
    verb = {"load": "read", "store": "write"}.get(instruction.kind, instruction.kind)
    shared = "" if places == lanes else f" at {places} different address{'es' * (places > 1)}"
    return len(words), f"{instruction.opcode}: {lanes} lanes {verb} {instruction.width} bytes each{shared}"
