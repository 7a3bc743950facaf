"""A schedule as a list of lines: its loops, what each is bound to, its buffers and its stores; and what differs in two texts.

This is read from the TIR that is compiled, not from a second description of the schedule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from texlab.schedules.tvm_import import cpu_target, load
from texlab.schedules.work import Scheduled

#: what a loop may be; a thread's name ("threadIdx.x", "vthread.y") stands for itself
SERIAL, PARALLEL, VECTORIZED, UNROLLED, BUFFER, STORE = (
    "serial",
    "parallel",
    "vectorized",
    "unrolled",
    "buffer",
    "store",
)
_KINDS = {0: SERIAL, 1: PARALLEL, 2: VECTORIZED, 3: UNROLLED}


@dataclass(frozen=True)
class Line:
    """``depth`` of nesting; ``kind``: serial, parallel, vectorized, unrolled, a thread's name, "buffer" or "store"; ``text``;
    ``extent`` of a loop, or bytes of a buffer; ``notes``: annotations, such as the stages of a software pipeline."""

    depth: int
    kind: str
    text: str
    extent: int = 0
    notes: tuple[str, ...] = ()


def nest(module: Any) -> list[Line]:
    """The loop nest of the function "main" of an IRModule that still has its blocks (``Scheduled.module``).

    >>> from texlab.schedules.conv import conv
    >>> from texlab.shapes import ConvShape
    >>> module = conv(ConvShape(n=1, c=2, h=4, w=4, k=8, r=1, s=1), form="direct").module()
    >>> [(line.kind, line.text, line.extent) for line in nest(module) if line.extent > 1]
    [('serial', 'k', 8), ('serial', 'p', 4), ('serial', 'q', 4), ('serial', 'c', 2)]
    """
    tvm = load()
    return list(_walk(module["main"].body, 0, tvm, _sizes(module, tvm)))


def _sizes(module: Any, tvm: Any) -> dict[str, tuple[int, ...]]:
    """Buffer -> the shape it really gets: TVM keeps no more of it than lives at a time."""
    from tvm.s_tir import transform

    passes = (
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
    )
    for step in passes:
        module = step(module)
    found: dict[str, tuple[int, ...]] = {}
    todo = [module["main"].body]
    while todo:
        node = todo.pop()
        if type(node).__name__ == "SBlockRealize":
            found |= {str(b.name): tuple(_number(e) for e in b.shape) for b in node.block.alloc_buffers}
            node = node.block
        parts = [getattr(node, name, None) for name in ("body", "then_case", "else_case")]
        todo += [*(part for part in parts if part is not None), *getattr(node, "seq", ())]
    return found


def _walk(node: Any, depth: int, tvm: Any, sizes: dict[str, tuple[int, ...]]) -> Iterator[Line]:
    kind = type(node).__name__
    if kind == "SeqStmt":
        for one in node.seq:
            yield from _walk(one, depth, tvm, sizes)
    elif kind == "For":
        tag = node.thread_binding.thread_tag if node.thread_binding is not None else _KINDS[int(node.kind)]
        notes = tuple(f"{name} = {_plain(value)}" for name, value in node.annotations.items())
        yield Line(depth, tag, str(node.loop_var.name), _number(node.extent), notes)
        yield from _walk(node.body, depth + 1, tvm, sizes)
    elif kind == "SBlockRealize":
        block = node.block
        notes = tuple(f"{name} = {_plain(value)}" for name, value in block.annotations.items())
        for buffer in block.alloc_buffers:
            shape = sizes.get(str(buffer.name)) or tuple(_number(e) for e in buffer.shape)
            size = prod(shape) * np.dtype(str(buffer.dtype)).itemsize
            yield Line(depth, BUFFER, f"{buffer.name} {shape} in {buffer.scope()}", size)
        if type(block.body).__name__ == "BufferStore":
            written = [str(w.source.name) for w in block.writes]
            sums = any(int(axis.iter_type) == 2 for axis in block.iter_vars)  # a reduction
            reads = [r for r in dict.fromkeys(str(r.source.name) for r in block.reads) if not (sums and r in written)]
            value = f"f({', '.join(reads)})" if reads else "a constant"
            target = f"{', '.join(written)} {'+=' if sums else '='} {value}"
            where = "" if str(node.predicate) in ("True", "T.bool(True)") else ", where it is inside"
            yield Line(depth, STORE, f"{block.name_hint}: {target}{where}", 0, notes)
        else:
            yield from _walk(block.body, depth, tvm, sizes)
    elif kind == "IfThenElse":
        yield Line(depth, SERIAL, f"if {node.condition}")
        yield from _walk(node.then_case, depth + 1, tvm, sizes)
        if node.else_case is not None:
            yield from _walk(node.else_case, depth + 1, tvm, sizes)
    elif kind == "BufferStore":
        yield Line(depth, STORE, f"{node.buffer.name} = …")
    elif hasattr(node, "body"):  # attributes and declarations around a statement
        yield from _walk(node.body, depth, tvm, sizes)


def _number(extent: Any) -> int:
    return int(extent.value) if hasattr(extent, "value") else int(extent)


def _plain(value: Any) -> Any:
    if hasattr(value, "value"):
        return value.value
    return [_plain(v) for v in value] if type(value).__name__ == "Array" else value


def difference(before: str, after: str, around: int = 2) -> list[tuple[str, str]]:
    """What two texts differ in: (sign, line) with sign "+", "-", " " for lines around it, and "@" between places.

    >>> difference("a\\nb\\nc", "a\\nB\\nc", around=1)
    [(' ', 'a'), ('-', 'b'), ('+', 'B'), (' ', 'c')]
    """
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=around, lineterm="")
    out = [("@", "") if line.startswith("@@") else (line[0], line[1:]) for line in list(lines)[2:]]
    return out[1:]


def assembly(scheduled: Scheduled) -> str:
    """The machine code of a schedule for this processor, as text."""
    tvm = load()
    with tvm.transform.PassContext(config=dict(scheduled.config)):
        return tvm.compile(scheduled.module, target=cpu_target()).mod.inspect_source("asm")


_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^\s*j\w+\s+(\.L\w+)")


def hottest_loop(assembly: str) -> list[str]:
    """The instructions of the loop with the most multiply-adds in x86 assembly; empty if there is none.

    A loop is taken to be the lines from a label to a jump back to it without another label in between.

    >>> hottest_loop(".LBB0_1:\\n vfmadd231ps %zmm0, %zmm1, %zmm2\\n jne .LBB0_1\\n ret")
    ['vfmadd231ps %zmm0, %zmm1, %zmm2', 'jne .LBB0_1']
    """
    best: list[str] = []
    label, lines = "", []
    for raw in assembly.splitlines():
        if m := _LABEL.match(raw):
            label, lines = m[1], []
            continue
        line = " ".join(raw.split("#")[0].split())
        if not line or line.startswith("."):
            continue
        lines.append(line)
        jump = _JUMP.match(raw)
        if jump and jump[1] == label and _multiply_adds(lines) > _multiply_adds(best):
            best = list(lines)
    return best


def _multiply_adds(lines: list[str]) -> int:
    return sum(line.startswith(("vfmadd", "vfnmadd", "fmla")) for line in lines)
