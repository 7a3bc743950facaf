"""Compile a PTX kernel to Python: one generated function per basic block.

A block's function takes the registers it reads out of the register file, computes on whole arrays (one element per
lane; a NumPy scalar where all lanes hold the same value) and puts back what later blocks need. With some lanes inactive
the same code runs on the active ones, packed. Values are dropped at their last use, which keeps the working set small.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import isfunction
from operator import itemgetter
from threading import Lock
from typing import Any

import numpy as np

from texlab.sim import (
    arith,
    bits,
    collectives,
    copies,
    halves,
    mbarrier,
    memory,
    packed,
    rounding,
    tensorcores,
    textures,
    wgmma,
)
from texlab.sim.flow import Block, basic_blocks, liveness, partly_ordered, reads_shared, shared_hazards, tokens
from texlab.sim.ops import HALVES, Unsupported
from texlab.sim.ptx import TYPES, Function, Instruction, PTXError, flatten, parse
from texlab.sim.variants import OWN_FEATURES, known

_SPECIAL = frozenset("tid ctaid ntid nctaid laneid warpid nwarpid smid clock clock64 clock_hi globaltimer".split())
_ADDRESS = re.compile(r"\[\s*([^\s+\]-]+)\s*(?:([+-])\s*(0x[0-9a-fA-F]+|-?\d+))?\s*\]")
_FLOATING = frozenset("fma add sub mul div mad setp min max neg abs ld st".split())


@dataclass
class Kernel:
    """A compiled kernel. ``lines`` (file, line) go by instruction; ``initial`` are the registers' first values.

    ``grain``: the smallest shared access in bytes; ``races``: whether accesses are looked at for races (and
    ``marks_reads``, whether reads are noted for it); ``atomics``: whether blocks update global memory atomically;
    ``ordered``: whether barriers of part of the block order its accesses (``order``)."""

    function: Function
    blocks: list[Block]
    instructions: list[Instruction]
    lines: list[tuple[str, int]]
    initial: list[np.generic]
    static_shared: int
    local_bytes: int
    grain: int
    races: bool
    marks_reads: bool
    atomics: bool
    ordered: bool

    @property
    def params(self) -> list[tuple[str, str, int, int]]:
        return self.function.params


_UFUNCS = dict(
    add="add", sub="subtract", mul="multiply", min="minimum", max="maximum", abs="abs", sqrt="sqrt", exp2="exp2"
)
_UFUNCS |= dict(log2="log2", sin="sin", cos="cos", tanh="tanh", copysign="copysign", isfinite="isfinite", isinf="isinf")
_UFUNCS |= dict(isnan="isnan", finfo="finfo", rni="rint", rzi="trunc", rmi="floor", rpi="ceil")
_HELPERS = {**vars(arith), **vars(rounding), **vars(packed)}
#: What generated code can name: types, NumPy's functions as np_..., and the functions of arith, rounding and packed.
_NAMES = {
    **{t: np.dtype(t) for t in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")},
    **{f"np_{n}": getattr(np, f) for n, f in _UFUNCS.items()},
    **{n: f for n, f in _HELPERS.items() if isfunction(f) and n[0] != "_"},
    "is_space": memory.is_space,
}


_FAMILIES = (memory, copies, tensorcores, mbarrier, wgmma, textures)
_MEMORY = {name: emit for family in _FAMILIES for name, emit in family.EMITTERS.items()}


class Generator:
    """Turns instructions into lines of Python; the emitters of ``ops`` talk to it."""

    def __init__(self, function: Function, symbols: dict[str, int], params: dict[str, int]) -> None:
        self.function, self.symbols, self.params = function, symbols, params
        self.registers = {**function.registers, "%cc": "?"}
        self.names = list(self.registers)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.preferred = dict(self.registers)
        self.constants: dict[tuple[Any, str], str] = {}
        self.namespace: dict[str, Any] = dict(_NAMES)
        self.lines: list[str] = []
        self.current: dict[str, dict[str, str]] = {}
        self.special: dict[str, str] = {}
        self.guard = ""
        self.unused: list[str] = []  # registers that the instruction at hand writes or reads for the last time
        self.count = self.slots = 0
        self.free: list[str] = []
        self.stale: list[str] = []

    # what emitters use ----------------------------------------------------------------------------------------------
    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def temporary(self, expression: str) -> str:
        """``expression`` under a name, so that it is computed once; plain names stay as they are."""
        if expression.isidentifier():
            return expression
        self.count += 1
        self.emit(f"t{self.count} = {expression}")
        return f"t{self.count}"

    def slot(self) -> str:
        """A Python name for a value: one whose value is not needed any more, so that arrays are let go early."""
        if self.free:
            return self.free.pop()
        self.slots += 1
        return f"a{self.slots}"

    def const(self, value: Any, t: str) -> str:
        key = (value, t) if value == value else ("nan", t)
        if key not in self.constants:
            name = f"k{len(self.constants)}"
            dtype = np.dtype(t)
            if dtype.kind in "iu":  # wrap as a register would
                value = int.from_bytes(
                    (int(value) & (1 << 8 * dtype.itemsize) - 1).to_bytes(dtype.itemsize, "little"), "little"
                )
                self.namespace[name] = np.dtype(f"u{dtype.itemsize}").type(value).view(dtype)
            else:
                self.namespace[name] = dtype.type(value)
            self.constants[key] = name
        return self.constants[key]

    def is_register(self, operand: str) -> bool:
        return operand in self.registers or operand[0] == "%"

    def window(self, space: str) -> int:
        return memory.WINDOWS[space]

    def use(self, operand: str, t: str) -> str:
        """The operand as an expression of type ``t``."""
        kind = self.registers.get(operand)
        if kind is None:
            return self._literal(operand, t)
        held = self.current[operand]
        if t in held:
            return held[t]
        have = next(k for k in held if k in _SIZED)
        if "?" in (kind, t) and kind != t:
            raise PTXError(f"{operand} of type {kind} used as {t}")
        if have[1] == t[1]:
            held[t] = self.slot()
            self.emit(f"{held[t]} = {held[have]}.view({t})")
            return held[t]
        return f"{self.use(operand, 'u' + have[1])}.astype({t})"

    def widened(self, operand: str, t: str, wide: str) -> str:
        """The operand's value converted to a wider type, kept for the next user."""
        if operand not in self.registers:
            return (
                self.const(self.namespace[self._literal(operand, t)].astype(np.dtype(wide)).item(), wide)
                if not self.is_register(operand)
                else f"{self.use(operand, t)}.astype({wide})"
            )
        held = self.current[operand]
        key = f"{t}>{wide}"
        if key not in held:
            value = self.use(operand, t)
            held[key] = self.slot()
            self.emit(f"{held[key]} = {value}.astype({wide})")
        return held[key]

    def define(self, operand: str, t: str, expression: str) -> None:
        """Assign a register; a guarded instruction keeps the old value where the guard is false."""
        if operand == "_":
            return
        kind = self.registers[operand]
        if t != "?" and kind[1] != t[1]:  # narrower value into a wider register: sign- or zero-extended
            expression, t = (
                f"({expression}).astype({t[0] if t[0] in 'iu' else 'u'}{kind[1]})",
                ("i" if t[0] == "i" else "u") + kind[1],
            )
        if self.guard:
            new = self.temporary(expression)
            expression = f"select({self.guard}, {new}, {self.use(operand, t)})"
        name = self.slot()
        self.emit(f"{name} = {expression}")
        self._hold(operand, t, name)

    def _hold(self, operand: str, t: str, name: str) -> None:
        self.stale += self.current.get(operand, {}).values()
        self.current[operand] = {t: name}

    def define_all(self, operands: list[str], t: str, call: str) -> None:
        """Assign the results of one call to several registers."""
        if len(operands) == 1:
            self.define(operands[0], t, call)
            return
        if self.guard or any(o == "_" or self.registers[o][1] != t[1] for o in operands):
            targets = [f"t{self.count + i + 1}" for i in range(len(operands))]
            self.count += len(operands)
            self.emit(f"{', '.join(targets)} = {call}")
            for operand, target in zip(operands, targets, strict=True):
                self.define(operand, t, target)
            return
        targets = [self.slot() for _ in operands]
        self.emit(f"{', '.join(targets)} = {call}")
        for operand, target in zip(operands, targets, strict=True):
            self._hold(operand, t, target)

    def _literal(self, operand: str, t: str) -> str:
        if operand[0] == "%":
            return self._special(operand, t)
        if operand[:2] in ("0f", "0F"):
            return self.const(struct.unpack(">f", bytes.fromhex(operand[2:]))[0], t if t[0] == "f" else "f4") + (
                "" if t[0] == "f" else f".view({t})"
            )
        if operand[:2] in ("0d", "0D"):
            return self.const(struct.unpack(">d", bytes.fromhex(operand[2:]))[0], t if t[0] == "f" else "f8") + (
                "" if t[0] == "f" else f".view({t})"
            )
        if operand == "WARP_SZ":
            return self.const(32, t)
        name, _, offset = operand.partition("+")
        if name in self.symbols:
            return self.const(self.symbols[name] + int(offset or "0", 0), t)
        if name in self.params:
            return self.const(memory.PARAM_BASE + self.params[name] + int(offset or "0", 0), t)
        value = int(operand.rstrip("U"), 0)
        if t == "?":
            return self.const(bool(value), "?")
        return self.const(value, t)

    def _special(self, operand: str, t: str) -> str:
        name = operand[1:]
        if name.split(".")[0] not in _SPECIAL and not name.startswith(
            ("lanemask", "total_smem", "dynamic_smem", "aggr_smem")
        ):
            raise Unsupported
        if name not in self.special:
            self.special[name] = f"s{len(self.special)}"
            self.emit(f"{self.special[name]} = S.special({name!r}, L)")
        value = self.special[name]
        return value if t == "u4" else f"{value}.view({t})" if t[1] == "4" else f"{value}.astype({t})"

    # memory ---------------------------------------------------------------------------------------------------------
    def address(self, operand: str) -> tuple[str, int]:
        """``[base+offset]`` -> (base operand, offset)."""
        m = _ADDRESS.match(operand)
        if not m:
            raise Unsupported
        offset = int(m[3] or "0", 0)
        return m[1], -offset if m[2] == "-" else offset

    def pointer(self, operand: str, space: str) -> str:
        """A Pointer made from a base register, shared by the accesses of a block that use the same one."""
        kind = self.registers.get(operand)
        call = f"S.{space}_pointer(L, "
        if kind is None:
            return self.temporary(call + self.use(operand, "u4" if space == "shared" else "u8") + ")")
        held, key = self.current[operand], "*" + space
        if key not in held:
            value = self.use(operand, "u" + kind[1])
            held[key] = self.slot()
            self.emit(f"{held[key]} = {call}{value})")
        return held[key]

    # blocks ---------------------------------------------------------------------------------------------------------
    def block(
        self, block: Block, code: list[Instruction], dies: list[list[str]], emit: Callable[[int, Instruction], None]
    ) -> str:
        """``def b<index>(S, R, L)`` for one block: registers in, computation, registers out; it returns the branch
        condition, if any."""
        self.lines, self.special, self.free, self.stale, self.current = [], {}, [], [], {}
        self.slots = 0
        reads = sorted(block.reads, key=self.index.__getitem__)
        for r in reads:
            self.current[r] = {self.preferred[r]: self.slot()}
        if reads:
            which = tuple(self.index[r] for r in reads)
            self.namespace[f"which{block.index}"] = which
            self.namespace[f"take{block.index}"] = itemgetter(*which, which[0])  # one more, to have a tuple in any case
            names = ", ".join(self.current[r][self.preferred[r]] for r in reads)
            self.emit(f"{names}, _ = take{block.index}(R) if L is None else S.gather(R, which{block.index}, L)")
        condition = "None"
        for offset, ins in enumerate(code):
            self.count = 0
            sense = "~" if ins.negated else ""
            if ins.parts[0] in ("bra", "ret", "exit"):
                if ins.guard:
                    condition = sense + self.use(ins.guard, "?")
                continue
            if ins.guard:
                self.guard = sense + self.use(ins.guard, "?")
            self.unused = dies[offset]
            emit(block.start + offset, ins)
            self.guard = ""
            for r in dies[offset]:
                self.stale += self.current.pop(r, {}).values()
            self.free += dict.fromkeys(self.stale)
            self.stale = []
        writes = sorted(block.writes, key=self.index.__getitem__)
        if writes:
            self.free = []  # the condition's name must stay
            self.namespace[f"into{block.index}"] = tuple(self.index[r] for r in writes)
            values = ", ".join(self.use(r, self.preferred[r]) for r in writes)
            self.emit(f"S.scatter(R, L, into{block.index}, ({values},))")
        return "\n".join([f"def b{block.index}(S, R, L):", *self.lines, f"  return {condition}"])


_SIZED = frozenset(["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?"])


@lru_cache(maxsize=64)
def compile_kernel(text: str, entry: str, filename: str) -> Kernel:
    """Compile one entry of a PTX text; ``filename`` is the kernel's own file, to which lines are attributed.

    Raises PTXError for PTX that cannot be read at all; an unknown instruction is an error only when it is reached."""
    module = parse(text)
    if entry not in module.functions:
        raise PTXError(f"no kernel {entry!r}; the PTX has {sorted(module.functions)}")
    own_features = re.search(r"^\s*\.target\s+sm_\d+[af]", text, re.M)
    function = flatten(module, entry)
    symbols, static_shared, local_bytes = memory.place(function, module)
    params = memory.parameter_offsets(function.params)
    g = Generator(function, symbols, params)
    code, blocks = basic_blocks(function)
    for ins in code:
        if ins.parts[-1] in ("f32", "f64", "f16") and ins.parts[0] in _FLOATING:
            kind = TYPES[ins.parts[-1]]
            for operand in ins.args:
                if operand[0] == "[":
                    continue
                for r in (operand,) if operand in g.registers else tokens(operand):
                    if g.registers.get(r, "?")[1:] == kind[1:]:
                        g.preferred[r] = kind
    dies = liveness(blocks, code, g.registers)
    hazards, grain = shared_hazards(blocks, code)
    places = {where: module.line(where, filename) for where in {ins.where for ins in code}}
    lines = [places[ins.where] for ins in code]

    def emit(i: int, ins: Instruction) -> None:
        try:
            if not known(ins) or (ins.parts[0] in OWN_FEATURES and not own_features):
                raise Unsupported
            if ins.parts[-1] in halves.KINDS and ins.parts[0] in HALVES:
                HALVES[ins.parts[0]](g, ins)
            elif ins.parts[-1] in packed.KINDS:
                packed.emit_pair(g, ins)
            elif ins.parts[0] in _MEMORY:
                _MEMORY[ins.parts[0]](g, i, ins, hazards.get(i, memory.NO_HAZARD), grain)
            elif ins.parts[0] in collectives.EMITTERS:
                collectives.EMITTERS[ins.parts[0]](g, i, ins)
            elif ins.parts[0] in bits.EMITTERS:
                bits.EMITTERS[ins.parts[0]](g, ins)
            else:
                raise Unsupported
        except (Unsupported, IndexError, ValueError, KeyError):
            g.emit(f"S.unsupported({i})")
            for r in tokens(" ".join(ins.args[:1])):
                if r in g.registers and r not in g.current:  # keep what follows well-formed
                    g.current[r] = {g.registers[r]: g.slot()}
                    g.emit(f"{g.current[r][g.registers[r]]} = {g.const(0, g.registers[r])}")

    lock = Lock()

    def build(block: Block, *state: Any) -> Any:
        """Generate a block when it is first run: most kernels have tails that a given shape never enters."""
        with lock:
            if getattr(block.run, "func", None) is build:
                block.source = g.block(block, code[block.start : block.stop], dies[block.index], emit)
                exec(compile(block.source, f"<{entry}>", "exec"), g.namespace)
                block.run = g.namespace[f"b{block.index}"]
        return block.run(*state)

    for block in blocks:
        block.run = partial(build, block)
    return Kernel(
        function=function,
        blocks=blocks,
        instructions=code,
        lines=lines,
        initial=[np.dtype(g.preferred[r]).type(0) for r in g.names],
        static_shared=static_shared,
        local_bytes=local_bytes,
        grain=grain,
        races=bool(hazards),
        marks_reads=any(h[0] and reads_shared(code[i]) for i, h in hazards.items()),
        ordered=partly_ordered(code),
        atomics=any(ins.parts[0] in ("atom", "red") and "shared" not in ins.opcode for ins in code),
    )
