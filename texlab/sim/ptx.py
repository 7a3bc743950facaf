"""Read PTX text: entries with their parameters, variables and instructions, each with the source line it came from.

Device functions are expanded where they are called, and a predicated memory or warp-wide instruction becomes a branch
around it, so that what is executed is one flat list of instructions per kernel.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

#: PTX type -> NumPy type code (bits and unsigned are the same thing to a register)
TYPES = {
    **dict(u8="u1", s8="i1", b8="u1", u16="u2", s16="i2", b16="u2", f16="f2", u32="u4", s32="i4", b32="u4", f32="f4"),
    **dict(
        u64="u8",
        s64="i8",
        b64="u8",
        f64="f8",
        f16x2="u4",
        u16x2="u4",
        s16x2="u4",
        bf16="u2",
        bf16x2="u4",
        **dict(e4m3="u1", e5m2="u1", e4m3x2="u2", e5m2x2="u2"),
        pred="?",
    ),
}

#: Instructions that concern a warp or a block as a whole, or that touch memory: never executed under a select.
_INDIVISIBLE = frozenset(
    "ld ldu st atom red shfl vote match bar barrier activemask elect redux ldmatrix stmatrix movmatrix mma cp call trap "
    "brx tex tld4 suld sust mbarrier wgmma".split()
)


class PTXError(ValueError):
    """PTX that this reader does not understand."""


@dataclass(slots=True)
class Instruction:
    """One PTX instruction: ``@!guard op args``; ``parts`` is the opcode split at its dots."""

    guard: str
    negated: bool
    parts: list[str]
    args: list[str]
    where: tuple[int, int, int]
    text: str

    @property
    def opcode(self) -> str:
        return ".".join(self.parts)


@dataclass(slots=True)
class Variable:
    """A module or function variable: ``size`` in bytes (0: ``extern``, sized at launch), initial bytes or None."""

    name: str
    space: str
    align: int
    size: int
    init: bytes | None = None
    pointers: list[tuple[int, str, int]] = field(default_factory=list)  # (offset, variable, byte offset in it)


@dataclass(slots=True)
class Function:
    """A kernel or device function: parameters (name, type code, size), register types, variables, instructions."""

    name: str
    params: list[tuple[str, str, int, int]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction | str] = field(default_factory=list)
    targets: dict[str, list[str]] = field(default_factory=dict)  # of brx: label of the table -> labels


@dataclass(slots=True)
class Module:
    files: dict[int, str]
    inlined: dict[tuple[int, int, int], tuple[int, int, int]]
    variables: list[Variable]
    functions: dict[str, Function]

    def line(self, where: tuple[int, int, int], own_file: str) -> tuple[str, int]:
        """(file, line) of a location: the innermost place in ``own_file`` on the way out through inlined calls, or
        else the innermost that is no header's."""
        chain = [where]
        while chain[-1] in self.inlined and len(chain) < 64:
            chain.append(self.inlined[chain[-1]])
        places = [(self.files.get(w[0], ""), w[1]) for w in chain]
        for accept in (lambda f: _same_file(f, own_file), lambda f: not f.endswith((".cuh", ".h", ".hpp"))):
            for file, line in places:
                if accept(file):
                    return file.rsplit("/", 1)[-1], line
        return places[0]


def _same_file(path: str, own: str) -> bool:
    return path == own or path.endswith("/" + own)


_scope = itertools.count()
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_HEAD = re.compile(r"(?:\.visible\s+|\.weak\s+|\.extern\s+)*\.(entry|func)\b")
_NAME = r"[\w$%.]+"
_PARAM = re.compile(
    rf"\.(?:param|reg)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\b(?:\s+\.(?:global|shared|const|local|param|generic))?"
    rf"(?:\s+\.align\s+\d+)?\s+)?({_NAME})(?:\[(\d+)\])?"
)
_VARIABLE = re.compile(
    rf"(?:\.visible\s+|\.weak\s+|\.extern\s+|\.common\s+)*\.(shared|const|global|local)\s+(?:\.attribute\(\.\w+\)\s+)?"
    rf"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+({_NAME})((?:\[\d*\])*)(?:\s*=\s*(.+))?$",
    re.S,
)
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)\s*")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_STATEMENT = re.compile(rf"(?:@(!?)({_NAME})\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]]+(?:\s*\+\s*\d+)?")


@lru_cache(maxsize=64)
def parse(text: str) -> Module:
    """Read a whole PTX module. Raises PTXError at what is no PTX."""
    files = {int(n): name for n, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', text, re.M)}
    text = _COMMENT.sub("", text)
    module = Module(files, {}, [], {})
    at = 0
    while found := _HEAD.search(text, at):
        module.variables += _variables(text[at : found.start()])
        at = _function(text, found, module)
    module.variables += _variables(text[at:])
    return module


def _variables(text: str) -> Iterable[Variable]:
    text = re.sub(r"^\s*\.(?:version|target|address_size|file|section)\b[^\n]*", "", text, flags=re.M)
    for statement in text.split(";"):
        if m := _VARIABLE.search(statement.strip()):
            yield _variable(m)


def _variable(m: re.Match[str]) -> Variable:
    space, align, kind, name, dims, init = m.groups()
    item = 1 if kind == "b8" else int(TYPES[kind][1:])
    count = 1
    for d in re.findall(r"\[(\d*)\]", dims or ""):
        count *= int(d or 0)
    data, pointers = None, []
    if init is not None:
        values = []
        for word in re.findall(r"[^\s{},]+", init):
            if m := re.fullmatch(r"(?:generic\()?([A-Za-z_$][\w$]*)\)?(?:\+(\d+))?", word):
                pointers.append((item * len(values), m[1], int(m[2] or 0)))
                values.append(0)
            elif m := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)|(-?(?:0[xX][0-9a-fA-F]+|\d+))U?", word):
                values.append(int(m[1], 16) if m[1] else int(m[2], 0))
            else:
                raise PTXError(f"variable {name}: an initialiser of this kind is not supported: {word}")
        data = b"".join((v & (1 << 8 * item) - 1).to_bytes(item, "little") for v in values).ljust(count * item, b"\0")
    return Variable(name, space, int(align or item), count * item, data, pointers)


def _balanced(text: str, start: int, opening: str, closing: str) -> int:
    """Index just behind the bracket that closes the one at ``start``."""
    depth = 0
    for m in re.compile(f"[{re.escape(opening + closing)}]").finditer(text, start):
        depth += 1 if m[0] == opening else -1
        if depth == 0:
            return m.end()
    raise PTXError("unbalanced brackets")


def _params(text: str) -> list[tuple[str, str, int, int]]:
    out = []
    for align, kind, name, count in _PARAM.findall(text):
        code = TYPES[kind]
        size = int(code[1:]) * int(count or 1)
        out.append((name, code if not count else "b", size, int(align or 0) or int(code[1:])))
    return out


def _function(text: str, head: re.Match[str], module: Module) -> int:
    """Read the function whose ``.entry`` or ``.func`` was found; return the index behind it."""
    at = head.end()
    results: list[tuple[str, str, int, int]] = []
    m = re.compile(r"\s*\(").match(text, at)
    if m:  # ( results ) name
        end = _balanced(text, m.end() - 1, "(", ")")
        results, at = _params(text[m.end() : end - 1]), end
    m = re.compile(rf"\s*({_NAME})\s*").match(text, at)
    name, at = m[1], m.end()
    params: list[tuple[str, str, int, int]] = []
    if at < len(text) and text[at] == "(":
        end = _balanced(text, at, "(", ")")
        params, at = _params(text[at + 1 : end - 1]), end
    brace, stop = text.find("{", at), text.find(";", at)
    if brace < 0 or 0 <= stop < brace:  # a declaration only
        return stop + 1
    end = _balanced(text, brace, "{", "}")
    function = Function(name, params, [r[0] for r in results])
    _body(text[brace + 1 : end - 1], function, module)
    module.functions[name] = function
    return end


def _body(text: str, function: Function, module: Module) -> None:
    where = (0, 0, 0)
    scopes: list[dict[str, str]] = []
    begins: list[int] = []  # where in the code each scope begins
    code, registers = function.code, function.registers
    pending = ""
    for raw in text.split("\n"):
        line = raw.strip()
        if not line:
            continue
        if not pending and line.startswith((".loc ", ".loc\t")):
            m = _LOC.match(line)
            if m[2] == "0":  # made by the compiler: it belongs to what stands before it
                continue
            where = (int(m[1]), int(m[2]), int(m[3]))
            if m[4]:
                module.inlined.setdefault(where, (int(m[4]), int(m[5]), int(m[6])))
            continue
        pending = f"{pending} {line}" if pending else line
        while pending:
            if pending[0] in "{}":
                if pending[0] == "{":
                    scopes.append({"": f"~s{next(_scope)}"})
                    begins.append(len(code))
                elif scopes:
                    _close(function, scopes.pop(), begins.pop())
                pending = pending[1:].lstrip()
                continue
            if ":" in pending and (m := _LABEL.match(pending)):
                code.append(_renamed(m[1], scopes, declare=True))
                pending = pending[m.end() :]
                continue
            statement, semicolon, rest = pending.partition(";")
            if not semicolon:
                break
            pending = rest.lstrip()
            if statement[0] == ".":
                _declaration(statement, function, registers, scopes)
            else:
                code.append(_instruction(statement.rstrip(), where, scopes))


def _renamed(name: str, scopes: list[dict[str, str]], declare: bool = False) -> str:
    """A name local to a ``{ }`` inside the function gets a unique spelling."""
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    if declare and scopes:
        scopes[-1][name] = name + scopes[-1][""]
        return scopes[-1][name]
    return name


def _close(function: Function, names: dict[str, str], begin: int) -> None:
    """At the end of a scope its labels are known: branches to them that stand before them get the unique spelling."""
    if len(names) == 1:
        return
    for item in function.code[begin:]:
        if isinstance(item, Instruction) and item.parts[0] in ("bra", "brx"):
            item.args[-1] = names.get(item.args[-1], item.args[-1])
        elif isinstance(item, str) and item in function.targets:
            function.targets[item] = [names.get(t, t) for t in function.targets[item]]


def _declaration(statement: str, function: Function, registers: dict[str, str], scopes: list[dict[str, str]]) -> None:
    if statement.startswith(".reg"):
        kind, names = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", statement, re.S).groups()
        for name in names.split(","):
            m = re.match(rf"\s*({_NAME})(?:<(\d+)>)?", name)
            if m[2]:
                registers.update((f"{m[1]}{i}", TYPES[kind]) for i in range(int(m[2])))
            else:
                registers[_renamed(m[1], scopes, declare=True)] = TYPES[kind]
    elif m := _VARIABLE.match(statement):
        function.variables.append(_variable(m))
    elif m := re.match(r"\.param\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)", statement):
        _renamed(m[1], scopes, declare=True)  # a call's argument slot
    elif statement.startswith(".branchtargets"):  # the table whose label stands before it
        function.targets[function.code[-1]] = statement.replace(",", " ").split()[1:]
    elif statement.startswith(".callprototype"):  # its label stands before it
        function.code.pop()
    elif not re.match(r"\.(pragma|maxntid|minnctapersm)", statement):
        raise PTXError(f"unknown directive: {statement}")


def _instruction(statement: str, where: tuple[int, int, int], scopes: list[dict[str, str]]) -> Instruction:
    m = _STATEMENT.match(statement)
    if not m:
        raise PTXError(f"no instruction: {statement}")
    negated, guard, opcode, rest = m.groups()
    parts = opcode.split(".")
    if parts[0] == "call":
        args = _call_arguments(rest)
    elif "{" in rest or "[" in rest or "+" in rest:
        args = _OPERAND.findall(rest)
    else:
        args = rest.replace(",", " ").split()
    if scopes and any(len(scope) > 1 for scope in scopes):
        rename = lambda n: re.sub(_NAME, lambda t: _renamed(t[0], scopes), n)  # noqa: E731
        args = [rename(a) for a in args]
        guard = guard and rename(guard)
    return Instruction(guard or "", bool(negated), parts, args, where, statement)


def _call_arguments(rest: str) -> list[str]:
    """``(results), name, (arguments)`` -> [name, "results", "arguments"]."""
    m = re.match(rf"(?:\(([^)]*)\)\s*,)?\s*({_NAME})\s*(?:,\s*\(([^)]*)\))?(.*)", rest, re.S)
    return [m[2], " ".join((m[1] or "").replace(",", " ").split()), " ".join((m[3] or "").replace(",", " ").split())]


# flattening ---------------------------------------------------------------------------------------------------------
def flatten(module: Module, entry: str) -> Function:
    """The kernel with device functions expanded and indivisible guarded instructions turned into branches."""
    kernel = module.functions[entry]
    flat = Function(entry, kernel.params, [], dict(kernel.registers), list(kernel.variables))
    _Flattener(module, flat).expand(kernel, "", (entry,))
    return flat


_REWRITTEN = frozenset(["call", "brx"])


class _Flattener:
    """Copies instructions into ``flat``; argument slots of expanded calls become registers (``alias``: name -> slot)."""

    def __init__(self, module: Module, flat: Function) -> None:
        self.module, self.flat = module, flat
        self.alias: dict[str, str] = {}
        self.own = {p[0] for p in flat.params}

    def expand(self, function: Function, suffix: str, stack: tuple[str, ...]) -> None:
        code = self.flat.code
        local = {v.name for v in function.variables} | {p[0] for p in function.params} | set(function.results)
        known = function.registers

        def rename(text: str) -> str:
            if not suffix:
                return text
            one = lambda m: m[0] + suffix if m[0] in known or m[0] in local or "~" in m[0] else m[0]  # noqa: E731
            return re.sub(r"[%A-Za-z_$][\w$%.~]*", one, text)

        for item in function.code:
            if isinstance(item, str):
                code.append(item + suffix)
                continue
            parts, args = item.parts, item.args
            if not suffix and not item.guard and parts[0] not in _REWRITTEN and parts[1:2] != ["param"]:
                code.append(item)
                continue
            if suffix and parts[0] != "call":
                labels = parts[0] == "bra"
                args = [a + suffix for a in args] if labels else [rename(a) for a in args]
            ins = Instruction(rename(item.guard), item.negated, parts, args, item.where, item.text)
            if suffix and parts[0] == "ret":
                ins.parts, ins.args = ["bra"], [f"$leave{suffix}"]
            over = ""
            if item.guard and parts[0] in _INDIVISIBLE:
                over = f"$over{len(code)}"
                code.append(Instruction(ins.guard, not ins.negated, ["bra"], [over], ins.where, ins.text))
                ins.guard, ins.negated = "", False
            if parts[0] == "call" and args[0] in self.module.functions:
                self.call(ins, [rename(a) for a in args[1:]], stack)
            elif parts[0] == "call" and args[0][0] == "%":
                self.indirect(ins, [rename(a) for a in args], stack)
            elif parts[:2] == ["brx", "idx"]:
                self.table(ins, [t + suffix for t in function.targets.get(item.args[1], [])])
            elif parts[:2] in (["ld", "param"], ["st", "param"]) and not self._of_kernel(ins):
                self.slot(ins)
            else:  # a call to something outside the module is named as unsupported when it is reached
                code.append(ins)
            if over:
                code.append(over)

    def _of_kernel(self, ins: Instruction) -> bool:
        m = re.match(r"\[\s*([^\s+\]]+)", ins.args[1 if ins.parts[0] == "ld" else 0])
        return m[1] in self.own or m[1].startswith("%")

    def table(self, ins: Instruction, targets: list[str]) -> None:
        """``brx.idx``: a comparison and a branch for each target."""
        if not targets:
            raise PTXError(f"no branch targets: {ins.text}")
        for k, target in enumerate(targets):
            p = f"%brx{len(self.flat.code)}"
            self.flat.registers[p] = "?"
            self.flat.code.append(
                Instruction("", False, ["setp", "eq", "u32"], [p, ins.args[0], str(k)], ins.where, ins.text)
            )
            self.flat.code.append(Instruction(p, False, ["bra"], [target], ins.where, ins.text))
        self.flat.code.append(Instruction("", False, ["trap"], [], ins.where, ins.text))  # no such index

    def indirect(self, ins: Instruction, slots: list[str], stack: tuple[str, ...]) -> None:
        """A call through a register: a comparison with each function whose address is taken somewhere, if it has as many
        parameters and results."""
        code, done = self.flat.code, f"$done{len(self.flat.code)}"
        counts = [len(s.split()) for s in slots[:0:-1]]
        functions = self.module.functions
        named = {
            i.args[-1] for f in functions.values() for i in f.code if not isinstance(i, str) and i.parts[0] == "mov"
        }
        for name, callee in functions.items():
            if name not in named or [len(callee.params), len(callee.results)] != counts or name in stack:
                continue
            p, other = f"%call{len(code)}", f"$other{len(code)}"
            self.flat.registers[p] = "?"
            code.append(Instruction("", False, ["setp", "ne", "u64"], [p, slots[0], name], ins.where, ins.text))
            code.append(Instruction(p, False, ["bra"], [other], ins.where, ins.text))
            self.call(Instruction("", False, ["call"], [name], ins.where, ins.text), slots[1:], stack)
            code.append(Instruction("", False, ["bra"], [done], ins.where, ins.text))
            code.append(other)
        code.append(Instruction("", False, ["call"], [slots[0]], ins.where, ins.text))  # none of them: an error
        code.append(done)

    def call(self, ins: Instruction, slots: list[str], stack: tuple[str, ...]) -> None:
        callee = self.module.functions[ins.args[0]]
        if callee.name in stack:
            raise PTXError(f"recursive call of {callee.name}: {ins.text}")
        here = f"~{len(self.flat.code)}"
        self.flat.registers.update((name + here, kind) for name, kind in callee.registers.items())
        self.flat.variables += [Variable(v.name + here, v.space, v.align, v.size, v.init) for v in callee.variables]
        names = [p[0] for p in callee.params] + callee.results
        for name, slot in zip(names, [*slots[1].split(), *slots[0].split()], strict=True):
            self.alias[name + here] = self.alias.get(slot, slot)
        self.expand(callee, here, (*stack, callee.name))
        self.flat.code.append(f"$leave{here}")

    def slot(self, ins: Instruction) -> None:
        """``ld.param`` / ``st.param`` of a call's argument: a move from or to a register of its own."""
        load = ins.parts[0] == "ld"
        name, offset = re.match(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(\d+))?", ins.args[1 if load else 0]).groups()
        values = ins.args[0 if load else 1].strip("{}").replace(",", " ").split()
        kind = ins.parts[-1]
        for i, value in enumerate(values):
            at = int(offset or 0) + i * int(TYPES[kind][1:])
            register = f"%slot:{self.alias.get(name, name)}@{at}"
            self.flat.registers.setdefault(register, TYPES[kind])
            args = [value, register] if load else [register, value]
            self.flat.code.append(Instruction("", False, ["mov", kind], args, ins.where, ins.text))
