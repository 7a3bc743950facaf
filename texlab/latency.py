"""A simple model of when things happen on one multiprocessor, driven by the trace of a simulated run.

The simulator knows what a kernel does and in which order, but no time. Here the rows of its trace are played back on a
multiprocessor of four schedulers, with the few costs in ``COSTS``; a GPU does much that is left out (caches that fill
up, write-backs, other multiprocessors, instruction replays), so its result is labelled "modelled", never "measured".

The rules, for each warp, in program order:

* an instruction takes one turn of its scheduler (warp number mod 4), which the scheduler's warps share;
* a load from global memory arrives after ``dram`` cycles if the block asks for one of its sectors for the first time, else
  after ``l1``; before that its sectors queue for the way in, ``sectors_per_cycle``;
* a store to shared memory waits for the loads that the warp has under way (their values are what it stores). Loads of a
  tile come first and its stores after them, as the assembler orders them whatever the order in PTX;
* cp.async waits for nothing; the stamp ARRIVE is not before the tile's copies have landed, of all warps of the block;
* an access to shared memory holds the multiprocessor's one shared memory for its wavefronts; the first load after ARRIVE
  waits ``shared`` cycles for its value, later ones overlap with arithmetic;
* a barrier waits for all warps of the block.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from texlab import trace as rules
from texlab.sim.codegen import compile_kernel

SCHEDULERS = 4


class Event(IntEnum):
    """What a kernel stamps (kernels/common.cuh): a tile's loads begin, all are under way; the tile is there; it is used up."""

    ISSUE = 0
    ISSUED = 1
    ARRIVE = 2
    CONSUME = 3


@dataclass(frozen=True)
class Costs:
    """Cycles. Latencies: an H100, arXiv:2402.13499 (pointer chasing), rounded. Rates: 64 bytes a cycle from L2 into
    a multiprocessor, as NVIDIA's and independent measurements of A100 and H100 agree on."""

    dram: int = 480
    l1: int = 41
    shared: int = 29
    sectors_per_cycle: float = 2.0


COSTS = Costs()


@dataclass(slots=True)
class Op:
    """One thing a warp does: ``issue`` instructions, then ``kind``: "load", "copy" (cp.async), "store", "read" (shared
    memory), "bar" or "stamp"."""

    kind: str
    issue: float = 0.0
    cost: float = 0.0  # wavefronts, or sectors
    latency: int = 0
    event: int = 0
    step: int = 0
    row: int = -1  # of the trace


@dataclass(frozen=True)
class Moment:
    """When one access of the first block happened: the ``row`` of the trace, the ``kind`` of Op, the ``tile`` whose loads the
    warp had begun last, from when to when (cp.async: until it has landed)."""

    row: int
    kind: str
    tile: int
    begin: float
    end: float


def operations(run: Any, text: str, steps: int, costs: Costs = COSTS) -> list[list[Op]]:
    """What each warp of the one block in ``run.trace`` does between its first and its last stamp.

    ``run``: a run of a stamped Program in lockstep, with the rows of one block; ``text`` its PTX.
    """
    trace, launch = run.trace, len(run.program.launches) - 1
    entry = run.program.launches[launch].entry
    code = compile_kernel(text, entry, run.program.filename).instructions
    bars = np.array([i for i, ins in enumerate(code) if ins.parts[0] in ("bar", "barrier")])
    stamps = trace.buffers["timeline"]
    seen: set[int] = set()
    rows = trace.select(launch=launch)
    latency = {int(r): _latency(trace, int(r), seen, costs) for r in rows if _loads(trace, r)}
    warps = int(trace.warp[rows].max()) + 1
    static = np.unique([i.pc for i in trace.instructions if i.entry == entry])
    clock = run.outputs["timeline"].reshape(warps, steps + 1, 4)
    cost = _costs(trace, rows)
    out = []
    for warp in range(warps):
        ops, pending, last_pc, last_clock = [], [], None, None
        for r in rows[trace.warp[rows] == warp]:
            ins = trace.instructions[trace.instruction[r]]
            if last_pc is not None and _barrier(bars, static, last_pc, ins.pc):
                pending.append(Op("bar"))
            last_pc = ins.pc
            if ins.space == "global" and ins.kind == "store":
                at = (int(trace.address[r][0]) - stamps.base) // 8
                if not 0 <= at < stamps.nbytes // 8:
                    continue
                step, event = divmod(at % ((steps + 1) * 4), 4)
                if step == steps:
                    continue  # the multiprocessor's number
                now = int(clock[warp, step, event])
                if last_clock is not None:
                    ops += _spread(pending, now - last_clock)
                pending, last_clock = [], now
                ops.append(Op("stamp", event=event, step=step))
            else:
                pending.append(_op(int(r), ins, float(cost[r]), latency))
        out.append(ops)
    return out


def _loads(trace: Any, row: int) -> bool:
    ins = trace.instructions[trace.instruction[row]]
    return ins.space == "global" and ins.kind == "load"


def _latency(trace: Any, row: int, seen: set[int], costs: Costs) -> int:
    """Cycles until a global load arrives; rows in the order of issue."""
    on = rules.active_lanes(trace.mask[row : row + 1])[0]
    touched = set((trace.address[row][on] // np.uint64(rules.SECTOR)).tolist())
    new = not touched <= seen
    seen |= touched
    return costs.dram if new else costs.l1


def _costs(trace: Any, rows: np.ndarray) -> np.ndarray:
    """Sectors (global memory) or wavefronts (shared) of the rows, at their places in the trace."""
    out = np.zeros(len(trace))
    for i in np.unique(trace.instruction[rows]):
        at, ins = rows[trace.instruction[rows] == i], trace.instructions[i]
        rule = {"global": rules.sectors, "shared": rules.wavefronts}.get(ins.space)
        if rule is not None:
            out[at] = rule(trace.address[at], trace.mask[at], ins.width)
    return out


def _op(row: int, ins: Any, cost: float, latency: dict[int, int]) -> Op:
    copies = ins.opcode.startswith("cp.async")
    if ins.space == "global":
        return Op("copy" if copies else "load", cost=cost, latency=latency[row], row=row)
    return Op("landing" if copies else "store" if ins.kind == "store" else "read", cost=cost, row=row)


def _barrier(bars: np.ndarray, static: np.ndarray, before: int, after: int) -> bool:
    """Whether a warp that goes from one access of the code to another passes a barrier: one stands between them, or, at a
    jump back, between the first and the access that follows it in the code, or just ahead of the second."""
    if after > before:
        return bool(((bars > before) & (bars < after)).any())
    following = static[static > before].min(initial=before + 10**6)
    ahead = static[static < after].max(initial=-1)
    return bool((((bars > before) & (bars < following)) | ((bars > ahead) & (bars < after))).any())


def _spread(ops: list[Op], instructions: int) -> list[Op]:
    """The ops between two stamps, loads ahead of stores up to each barrier, with the instructions spread over them."""
    parts: list[list[Op]] = [[]]
    for op in ops:
        if op.kind == "bar":
            parts[-1].append(op)
            parts.append([])
        else:
            parts[-1].append(op)
    out = []
    for part in parts:
        out += sorted(part, key=lambda op: (op.kind == "bar", op.kind == "store"))
    out.append(Op("work"))
    counted = [op for op in out if op.kind not in ("bar", "landing")]
    for op in counted:
        op.issue = instructions / len(counted)
    return out


def play(warps: list[list[Op]], steps: int, resident: int = 1, costs: Costs = COSTS) -> tuple[np.ndarray, list[Moment]]:
    """When each stamp falls, in cycles: float (blocks, warps, steps, 4), NaN where there is none; and when each access of
    the first block to shared memory does.

    ``resident``: equal blocks that share the multiprocessor; each starts a little after the one before, as blocks do that
    came when others ended.
    """
    count = len(warps)
    out = np.full((resident, count, steps, 4), np.nan)
    moments: list[Moment] = []
    scheduler, shared, memory = np.zeros(SCHEDULERS), 0.0, 0.0
    arrived: list[list[tuple[float, int]]] = [[] for _ in range(resident)]
    loads = np.zeros((resident, count))  # when the loads that a warp has under way are all there
    copies: dict[tuple[int, int], float] = {}  # (block, tile) -> when its copies have all landed
    filling = np.full((resident, count), -1)  # the tile whose loads a warp issues
    lands = np.zeros((resident, count))  # when the copy begun last will have landed
    fresh = np.zeros((resident, count), bool)
    offset = costs.dram * 1.5 / resident
    queue: list[tuple[float, int, int, int, int]] = []
    turn = itertools.count()  # of two that are ready at one time, the one that has waited longer goes first

    def push(time: float, b: int, w: int, i: int) -> None:
        heapq.heappush(queue, (time, next(turn), b, w, i))

    for b, w in itertools.product(range(resident), range(count)):
        push(b * offset, b, w, 0)
    while queue:
        now, _, b, w, i = heapq.heappop(queue)
        if i == len(warps[w]):
            continue
        op = warps[w][i]
        if op.kind == "bar":
            arrived[b].append((now, w, i))
            if len(arrived[b]) == count:
                now = max(t for t, *_ in arrived[b])
                for _, other, at in arrived[b]:
                    push(now, b, other, at + 1)
                arrived[b] = []
            continue
        if op.kind == "stamp":
            if op.event == Event.ARRIVE:
                landed = copies.get((b, op.step), 0.0)
                if landed > now:  # come back then: others go on meanwhile
                    push(landed, b, w, i)
                    continue
                fresh[b, w] = True
            elif op.event == Event.ISSUE:
                filling[b, w] = op.step
            out[b, w, op.step, op.event] = now
            push(now, b, w, i + 1)
            continue
        if op.kind == "store" and loads[b, w] > now:
            push(loads[b, w], b, w, i)
            continue
        if op.kind == "landing":
            shared = max(now, shared) + op.cost
            if b == 0:
                moments.append(Moment(op.row, "copy", int(filling[b, w]), now, lands[b, w]))
            push(now, b, w, i + 1)
            continue
        s = w % SCHEDULERS
        start = max(now, scheduler[s])
        if start > now + 1 and op.issue:  # its scheduler is busy: let earlier ones go first
            push(start, b, w, i)
            continue
        now = scheduler[s] = start + op.issue
        if op.kind in ("load", "copy"):
            memory = max(now, memory) + op.cost / costs.sectors_per_cycle
            if op.kind == "load":
                loads[b, w] = max(loads[b, w], memory + op.latency)
            else:
                tile = (b, int(filling[b, w]))
                lands[b, w] = memory + op.latency  # its other half, in shared memory, is the op that follows
                copies[tile] = max(copies.get(tile, 0.0), lands[b, w])
        elif op.kind in ("store", "read"):
            begin = max(now, shared)
            shared = begin + op.cost
            if op.kind == "read":
                now = max(now, begin + (costs.shared if fresh[b, w] else 0.0))
                fresh[b, w] = False
            if b == 0:
                moments.append(Moment(op.row, op.kind, int(filling[b, w]), begin, shared))
        push(now, b, w, i + 1)
    return out, moments
