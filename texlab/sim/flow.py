"""Control flow of a kernel: basic blocks, which registers live across them, where barriers separate shared accesses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from texlab.sim.ptx import TYPES, Function, Instruction, PTXError

#: Executed by a warp as a whole: all its lanes that have not exited must be there.
COLLECTIVE = frozenset("shfl vote match redux ldmatrix stmatrix movmatrix mma elect wgmma".split())
_NO_RESULT = frozenset("st red bar barrier bra ret exit membar fence prefetch nanosleep trap stmatrix discard".split())
_TOKEN = re.compile(r"[%A-Za-z_$][\w$%.~:@]*")


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


@dataclass
class Block:
    """Instructions ``start:stop``; ``kind``: how it ends ("fall", "bra", "exit", "bar"), ``target`` a block index."""

    index: int
    start: int
    stop: int
    kind: str = "fall"
    guarded: bool = False
    target: int = -1
    collective: bool = False
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    source: str = ""
    run: Callable[..., Any] | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def successors(self) -> list[int]:
        out = [self.target] if self.kind == "bra" else []
        if self.kind in ("fall", "bar") or self.guarded:
            out.append(self.index + 1)
        return out


def is_barrier(ins: Instruction) -> bool:
    return ins.parts[0] in ("bar", "barrier") and ins.parts[1] != "warp"


def is_collective(ins: Instruction) -> bool:
    return ins.parts[0] in COLLECTIVE or (ins.parts[0] == "bar" and ins.parts[1] == "warp")


def basic_blocks(function: Function) -> tuple[list[Instruction], list[Block]]:
    """The kernel's instructions without labels, and its blocks. A barrier ends a block; the first warp-wide
    instruction after any place where lanes may part begins one."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for item in function.code:
        if isinstance(item, str):
            labels[item] = len(code)
        else:
            code.append(item)
            if is_barrier(item) and "red" in item.parts:  # its result is read in a step of its own, behind the barrier
                op = next(p for p in item.parts if p in ("popc", "and", "or"))
                voted = Instruction("", False, ["voted", op, item.parts[-1]], item.args[:1], item.where, item.text)
                code.append(voted)
    if not code or code[-1].parts[0] not in ("ret", "exit", "bra") or code[-1].guard or len(code) in labels.values():
        code.append(Instruction("", False, ["exit"], [], code[-1].where if code else (0, 0, 0), "end of kernel"))
    leaders = {0, *labels.values()}
    for i, ins in enumerate(code):
        if ins.parts[0] in ("bra", "ret", "exit") or is_barrier(ins):
            leaders.add(i + 1)
    fresh = True
    for i, ins in enumerate(code):
        fresh = fresh or i in leaders
        if is_collective(ins) and fresh:
            leaders.add(i)
            fresh = False
    starts = sorted(s for s in leaders if s < len(code))
    at = {start: n for n, start in enumerate(starts)}
    blocks = []
    for n, start in enumerate(starts):
        stop = starts[n + 1] if n + 1 < len(starts) else len(code)
        last = code[stop - 1]
        block = Block(n, start, stop, collective=is_collective(code[start]))
        block.guarded = bool(last.guard) and last.parts[0] in ("bra", "ret", "exit")
        if last.parts[0] == "bra":
            if last.args[0] not in labels:
                raise PTXError(f"branch to an unknown label: {last.text}")
            block.kind, block.target = "bra", at[labels[last.args[0]]]
        elif last.parts[0] in ("ret", "exit"):
            block.kind = "exit"
        elif is_barrier(last):
            block.kind = "bar"
        blocks.append(block)
    return code, blocks


def operands(ins: Instruction, registers: dict[str, str]) -> tuple[list[str], list[str]]:
    """(registers read, registers written) by an instruction."""
    head = ins.parts[0]
    args = ins.args

    def named(operand: str) -> list[str]:
        if operand in registers:
            return [operand]
        return [r for r in tokens(operand) if r in registers] if not operand.isdigit() else []

    results = 0 if head in _NO_RESULT or (head == "cp") else 1
    if head in ("bar", "barrier") and "red" in ins.parts:
        args = args[1:]
    writes = [r for a in args[:results] for r in named(a)]
    if results and args and args[0][0] == "[":
        results, writes = 0, []
    reads = [r for a in args[results:] for r in named(a)]
    if head == "wgmma":
        reads += writes  # the accumulators
    if ins.guard:
        reads += [ins.guard]
        reads += writes  # where the guard is false the old value stays
    if "cc" in ins.parts:
        writes = [*writes, "%cc"]
    if head in ("addc", "subc", "madc"):
        reads.append("%cc")
    return reads, writes


def liveness(blocks: list[Block], code: list[Instruction], registers: dict[str, str]) -> list[list[list[str]]]:
    """Fill each block's ``reads`` and ``writes`` (what it takes from and gives to others); return, per block and
    instruction, the registers whose value is not needed after it."""
    ops = [operands(ins, registers) for ins in code]
    used, defined = [], []
    for block in blocks:
        use: set[str] = set()
        define: set[str] = set()
        for reads, writes in ops[block.start : block.stop]:
            use.update(r for r in reads if r not in define)
            define.update(writes)
        used.append(use)
        defined.append(define)
    live_in = [set(u) for u in used]
    live_out: list[set[str]] = [set() for _ in blocks]
    before: list[list[int]] = [[] for _ in blocks]
    for block in blocks:
        for s in block.successors:
            if s < len(blocks):
                before[s].append(block.index)
    todo = set(range(len(blocks)))
    while todo:
        n = max(todo)
        todo.discard(n)
        out: set[str] = set().union(*(live_in[s] for s in blocks[n].successors if s < len(blocks)))
        live_out[n] = out
        new = used[n] | (out - defined[n])
        if new != live_in[n]:
            live_in[n] = new
            todo.update(before[n])
    dies = []
    for n, block in enumerate(blocks):
        block.reads = used[n]
        block.writes = defined[n] & live_out[n]
        alive = set(live_out[n])
        rows: list[list[str]] = []
        for reads, writes in reversed(ops[block.start : block.stop]):
            rows.append([r for r in {*reads, *writes} if r not in alive])
            alive.difference_update(writes)
            alive.update(reads)
        dies.append(rows[::-1])
    return dies


# shared memory between barriers -------------------------------------------------------------------------------------
def _touches_shared(ins: Instruction) -> str:
    """ "r", "w", "a" (atomic) or "" for what an instruction may do to shared memory."""
    head = ins.parts[0]
    if head in ("ldmatrix", "stmatrix"):
        return "r" if head == "ldmatrix" else "w"
    if head == "wgmma":
        return "r" if ins.parts[1] == "mma_async" else ""
    if head == "cp":
        target = next((p for p in ins.parts if p == "global" or p.startswith("shared")), "")
        if not target or ins.parts[2] == "mbarrier":
            return ""
        return "r" if target == "global" else "w"
    if head in ("ld", "st", "atom", "red") and not {"global", "const", "local", "param"} & {
        p.split("::")[0] for p in ins.parts
    }:
        return {"ld": "r", "st": "w"}.get(head, "a")
    return ""


def reads_shared(ins: Instruction) -> bool:
    return _touches_shared(ins) == "r"


def _access_bytes(ins: Instruction) -> int:
    if ins.parts[0] in ("cp", "ldmatrix", "stmatrix", "wgmma"):
        return 4
    return int(TYPES.get(ins.parts[-1], "u4")[1])


def shared_hazards(blocks: list[Block], code: list[Instruction]) -> tuple[dict[int, Any], int]:
    """Which shared accesses can meet a write or a read of another warp between two barriers, and the smallest access.

    Returns ({instruction: (may meet a write, may meet a read)}, granule in bytes). Two accesses can meet if both can be
    reached from the kernel's entry, or from one barrier, without passing another; only those need a race check at run
    time. With barriers of part of the block (``partly_ordered``) there are no such intervals: any can meet any."""
    kinds = [_touches_shared(ins) for ins in code]
    sizes = [_access_bytes(code[i]) for i, k in enumerate(kinds) if k]
    grain = min([4, *sizes])
    if partly_ordered(code):
        hazard = (bool({"w", "a"} & set(kinds)), "r" in kinds)
        return {i: hazard for i, k in enumerate(kinds) if k}, grain
    touched = [{k for k in kinds[b.start : b.stop] if k} for b in blocks]
    meets: list[set[str]] = [set() for _ in blocks]
    for first in [0, *(b.index + 1 for b in blocks if b.kind == "bar")]:
        todo, reached = [first], {first}
        while todo:
            block = blocks[todo.pop()]
            ahead = set() if block.kind == "bar" else set(block.successors) - reached
            reached |= ahead
            todo += ahead
        together = set().union(*(touched[n] for n in reached))
        for n in reached:
            meets[n] |= together
    out = {}
    for block in blocks:
        hazard = (bool(meets[block.index] & {"w", "a"}), "r" in meets[block.index])
        out.update((i, hazard) for i in range(block.start, block.stop) if kinds[i])
    return out, grain


def partly_ordered(code: list[Instruction]) -> bool:
    """Whether there are barriers of part of the block: ``bar.arrive``, numbers of threads, mbarriers."""
    return any(
        ins.parts[0] == "mbarrier" or (is_barrier(ins) and ("arrive" in ins.parts or _counted(ins))) for ins in code
    )


def _counted(ins: Instruction) -> bool:
    """Whether a barrier names a number of threads (``bar.red`` has a result and a predicate besides)."""
    return len(ins.args) - (2 if "red" in ins.parts else 0) > 1
