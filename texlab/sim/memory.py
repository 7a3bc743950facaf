"""Memory of the simulated device: buffers at made-up addresses, shared and local memory, and each access to them.

Every buffer has a region of 64 GiB of addresses for itself, in whose middle it lies, so that a stray address is told by
the buffer it strayed from. Bounds and alignment are checked for every lane of every access, before anything is read or
written. Outputs and scratch know which of their elements have been written; so does shared memory (``shared``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from texlab.sim import halves
from texlab.sim.arith import U1, U4, U8
from texlab.sim.ops import Unsupported
from texlab.sim.ptx import TYPES, Function, Module, PTXError

REGION = 36  # bits of an address within its buffer's region
_HALF = 1 << (REGION - 1)
WINDOWS = {"shared": 1 << 56, "local": 1 << 57}  # where generic addresses of these spaces begin
_MODULE, _CODE, _PARAM = 0x50000, 0x60000, 0x70000
PARAM_BASE = (_PARAM << REGION) + _HALF
CARRIER = {1: U1, 2: np.dtype("u2"), 4: U4, 8: U8, 16: np.dtype("c16")}


# layout -------------------------------------------------------------------------------------------------------------
def _align(n: int, to: int) -> int:
    return -(-n // to) * to


def place(function: Function, module: Module) -> tuple[dict[str, int], int, int]:
    """Addresses of all variables a kernel can name: (symbols, static shared bytes, local bytes of a thread)."""
    symbols: dict[str, int] = {}
    shared = local = 0
    text = " ".join(a for i in function.code if not isinstance(i, str) for a in i.args)
    for i, v in enumerate(module.variables):
        if v.space in ("global", "const"):
            symbols[v.name] = ((_MODULE + i) << REGION) + _HALF
    for i, name in enumerate(module.functions):  # a function's address, for calls through a register
        symbols.setdefault(name, ((_CODE + i) << REGION) + _HALF)
    statics = [v for v in (*module.variables, *function.variables) if v.space == "shared" and v.name in text]
    for v in sorted(statics, key=lambda v: v.size == 0):  # extern arrays begin behind the static ones
        shared = _align(shared, v.align)
        symbols[v.name] = shared
        shared += v.size
    for v in function.variables:
        if v.space == "local":
            local = _align(local, v.align)
            symbols[v.name] = local
            local += v.size
    return symbols, shared, local


def parameter_offsets(params: list[tuple[str, str, int, int]]) -> dict[str, int]:
    """Name -> byte offset of each kernel parameter."""
    out, at = {}, 0
    for name, _, size, align in params:
        at = _align(at, align)
        out[name] = at
        at += size
    return out


def is_space(address: Any, space: str) -> Any:
    """``isspacep``."""
    window = address >> np.uint64(56)
    if space in ("shared", "local"):
        return window == np.uint64(WINDOWS[space] >> 56)
    region = address >> np.uint64(REGION)
    return (region >= np.uint64(_PARAM)) & (window == 0) if space == "param" else (window == 0) & (region > 0)


class Buffer:
    """An allocation: ``data`` are its bytes, padded to whole 16-byte words."""

    def __init__(self, name: str, region: int, data: np.ndarray, read_only: bool = False) -> None:
        self.name, self.base, self.read_only = name, (region << REGION) + _HALF, read_only
        self.nbytes = data.nbytes
        self.data = np.zeros(_align(max(data.nbytes, 1), 16), U1)
        self.data[: data.nbytes] = data.reshape(-1).view(U1)
        self.views: dict[Any, np.ndarray] = {}
        self.written: np.ndarray | None = None  # 255 for each element (or 4-byte word) written; None: all are
        self.grain = 4

    def view(self, dtype: Any) -> np.ndarray:
        if dtype not in self.views:
            self.views[dtype] = self.data.view(dtype)
        return self.views[dtype]

    def begin_empty(self, itemsize: int) -> None:
        """Nothing has been written yet: reads are checked until everything has."""
        self.grain = min(4, itemsize)
        self.written = np.zeros(len(self.data) // self.grain, U1)

    def settle(self) -> None:
        """After a launch: no more checks if all has been written."""
        if self.written is not None and self.written[: self.nbytes // self.grain].all():
            self.written = None

    def mark(self, idx: Any, width: int) -> None:
        """Elements ``idx`` of ``width`` bytes are being written."""
        each = width // self.grain
        if each <= 1:
            self.written[idx if each else idx >> (self.grain // width).bit_length() - 1] = 255
        else:
            self.written.reshape(-1, each)[idx] = 255

    def missing(self, idx: Any, width: int) -> np.ndarray:
        """Which of the elements nobody has written (any part of)."""
        each = width // self.grain
        if each <= 1:
            idx = idx if each else idx >> (self.grain // width).bit_length() - 1
            return self.written.take(np.atleast_1d(idx), mode="wrap") == 0
        words = self.written.view(CARRIER[min(each, 8)]).reshape(-1, max(1, each // 8))
        got = words.take(np.atleast_1d(idx), axis=0)
        return (got != np.iinfo(words.dtype).max).any(axis=1)


class Memory:
    """All global memory of one run: the program's buffers, then module variables and the parameters of a launch."""

    def __init__(self) -> None:
        self.regions: dict[int, Buffer] = {}
        self.textures: dict[int, Any] = {}  # handle -> textures.Bound
        self.maps: dict[int, Any] = {}  # address of a parameter -> the TensorMap it is

    def add(self, name: str, data: np.ndarray) -> Buffer:
        region = len(self.regions) + 1
        self.regions[region] = Buffer(name, region, data)
        return self.regions[region]

    def add_module(self, module: Module) -> None:
        names = [v.name for v in module.variables]
        for i, v in enumerate(module.variables):
            if v.space in ("global", "const") and _MODULE + i not in self.regions:
                data = bytearray(v.init or bytes(v.size))
                for at, name, plus in v.pointers:
                    if name not in names:
                        raise PTXError(f"variable {v.name}: the address of {name} is not supported")
                    address = ((_MODULE + names.index(name)) << REGION) + _HALF + plus
                    data[at : at + 8] = address.to_bytes(8, "little")
                data = np.frombuffer(bytes(data), U1)
                self.regions[_MODULE + i] = Buffer(v.name, _MODULE + i, data, v.space == "const")

    def set_params(self, blob: np.ndarray) -> None:
        self.regions[_PARAM] = Buffer("kernel parameters", _PARAM, blob, read_only=True)

    def at(self, address: int) -> Buffer | None:
        return self.regions.get(address >> REGION)


NOWHERE = Buffer("no buffer", 0, np.zeros(0, U1))
NOWHERE.base = 0


class Pointer:
    """Addresses of the active lanes, seen from one buffer (or the block's shared, or the thread's local memory).

    ``offset``: byte offsets from the buffer's start, an int if uniform; ``lo``, ``hi`` and ``bits`` (all bits set in
    any of them) make the usual check of a whole access a matter of three comparisons. ``at``: where the bytes are in
    the array that holds them. ``parts``: for lanes in different places, (positions, Pointer) of each.
    """

    __slots__ = ("at", "bits", "buffer", "hi", "indices", "lo", "offset", "parts", "space")

    def __init__(self, space: str, buffer: Any, offset: Any, at: Any) -> None:
        self.space, self.buffer, self.offset, self.at = space, buffer, offset, at
        self.indices: dict[int, Any] = {}
        self.parts = None
        if isinstance(offset, int):
            self.lo = self.hi = self.bits = offset
        else:
            self.lo, self.hi = int(offset.min()), int(offset.max())
            self.bits = int(np.bitwise_or.reduce(offset))

    def index(self, plus: int, shift: int) -> Any:
        """Element numbers of ``at + plus`` in an array of ``2**shift``-byte elements."""
        at = self.at
        if isinstance(at, int):
            return (at + plus) >> shift
        if self.bits & ((1 << shift) - 1):  # only base and offset together are aligned
            return (at + plus) >> shift
        base = self.indices.get(shift)
        if base is None:
            base = self.indices[shift] = at >> shift
        return base + (plus >> shift) if plus else base


def mixed(pointers: list[tuple[np.ndarray, Pointer]]) -> Pointer:
    p = Pointer("mixed", NOWHERE, 0, 0)
    p.parts, p.lo, p.bits = pointers, -(1 << 62), 0
    return p


def unpack(v: Any, t: np.dtype, count: int) -> tuple[Any, ...]:
    """The elements of vector loads, one array (or scalar) each."""
    if np.ndim(v) == 0:
        return tuple(np.frombuffer(v.tobytes(), t))
    columns = v.view(t).reshape(-1, count)
    return tuple(columns[:, i] for i in range(count))


def pack(values: tuple[Any, ...], t: np.dtype, carrier: np.dtype) -> Any:
    if len(values) == 1:
        return values[0]
    n = max(np.size(v) for v in values)
    out = np.empty((n, len(values)), t)
    for i, v in enumerate(values):
        out[:, i] = v
    out = out.view(carrier).reshape(-1)
    return out[0] if all(np.ndim(v) == 0 for v in values) else out


NO_HAZARD = (False, False)


@dataclass(slots=True)
class Access:
    """One load, store or atomic of the kernel: how wide, how far from its base register, and what can race with it."""

    index: int
    kind: str
    t: np.dtype
    count: int
    plus: int
    space: str
    hazard: tuple[bool, bool] = NO_HAZARD  # may it meet, between two barriers, a write or a read of another warp
    granules: int = 1
    cached: str = "global"  # the space a trace says
    wanted: np.ndarray | None = None  # which granules of a vector are used at all; None: every one

    @property
    def width(self) -> int:
        return self.t.itemsize * self.count

    def load(self, s: Any, L: Any, p: Pointer) -> Any:
        """Values of all active lanes: an array or scalar, a tuple of them for a vector."""
        width, plus = self.width, self.plus
        if p.lo + plus < 0 or p.hi + plus + width > s.limit(p) or (p.bits | plus) & (width - 1):
            if p.parts is not None:
                return self._load_parts(s, L, p)
            s.check(self, L, p, width)
        if s.record is not None:
            s.record(self, L, p)
        idx = p.index(plus, width.bit_length() - 1)
        if p.space == "shared":
            s.shared.reading(s, self, L, p, idx)
        elif p.space == "global" and p.buffer.written is not None:
            s.check_written(self, L, p, idx)
        carrier = self.t if self.count == 1 else CARRIER[width]
        array = s.array(p, carrier)
        v = array[idx] if isinstance(idx, int) else array.take(idx, mode="wrap")
        return v if self.count == 1 else unpack(v, self.t, self.count)

    def _load_parts(self, s: Any, L: Any, p: Pointer) -> Any:
        out = [np.zeros(s.active(L), self.t) for _ in range(self.count)]
        for where, part in p.parts:
            got = self.load(s, s.subset(L, where), part)
            for o, g in zip(out, got if self.count > 1 else (got,), strict=True):
                o[where] = g
        return out[0] if self.count == 1 else tuple(out)

    def store(self, s: Any, L: Any, p: Pointer, *values: Any) -> None:
        width, plus = self.width, self.plus
        if p.lo + plus < 0 or p.hi + plus + width > s.limit(p) or (p.bits | plus) & (width - 1):
            if p.parts is not None:
                for where, part in p.parts:
                    self.store(s, s.subset(L, where), part, *(v if np.ndim(v) == 0 else v[where] for v in values))
                return
            s.check(self, L, p, width)
        if p.space == "global" and p.buffer.read_only:
            s.fault(self.index, "read-only", f"write to read-only memory {p.buffer.name!r}", L, 0, p.lo + plus)
        if s.record is not None:
            s.record(self, L, p)
        idx = p.index(plus, width.bit_length() - 1)
        carrier = self.t if self.count == 1 else CARRIER[width]
        v = pack(values, self.t, carrier)
        array = s.array(p, carrier)
        if p.space == "global" and p.buffer.written is not None:
            p.buffer.mark(idx, width)
        if p.space == "shared":
            s.shared.writing(s, self, L, p, idx, array, v)
        array[idx] = v[-1] if isinstance(idx, int) and np.ndim(v) else v  # all write one place: the last one wins
        if p.space == "shared":
            s.shared.wrote(s, self, L, p, idx, array, v)

    # atomics --------------------------------------------------------------------------------------------------------
    def atomic(self, s: Any, L: Any, p: Pointer, op: str, *operands: Any) -> Any:
        """Read, combine, write, lane after lane where they meet; returns what each lane read (None for a vector,
        each of whose elements is combined with an operand of its own)."""
        width, plus = self.width, self.plus
        n = s.active(L)
        if p.parts is not None:
            old = np.zeros(n, self.t)
            for where, part in p.parts:
                picked = (v if np.ndim(v) == 0 else v[where] for v in operands)
                got = self.atomic(s, s.subset(L, where), part, op, *picked)
                if got is not None:
                    old[where] = got
            return old
        if p.lo + plus < 0 or p.hi + plus + width > s.limit(p) or (p.bits | plus) & (width - 1):
            s.check(self, L, p, width)
        if s.record is not None:
            s.record(self, L, p)
        idx = np.broadcast_to(np.asarray(p.index(plus, width.bit_length() - 1)), (n,))
        if p.space == "shared":
            s.shared.updating(s, self, L, p, idx)
        elif p.space == "global" and p.buffer.written is not None:
            s.check_written(self, L, p, idx)
        array = s.array(p, self.t)
        values = [np.broadcast_to(v, (n,)) for v in operands]
        if self.count > 1:
            for k, v in enumerate(values):
                _in_turn(array, self.count * idx + k, op, [v], n)
            return None
        return _in_turn(array, idx, op, values, n)


def _in_turn(array: np.ndarray, idx: np.ndarray, op: str, values: list[Any], n: int) -> np.ndarray:
    """Combine ``array[idx]`` with the values, lane after lane where they meet; returns what each lane read."""
    order = np.argsort(idx, kind="stable")
    new_place = np.diff(idx[order], prepend=-1) != 0
    starts = np.flatnonzero(new_place)
    rank = np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    old = np.empty(n, array.dtype)
    by_rank = order[np.argsort(rank, kind="stable")]
    for lanes in np.split(by_rank, np.cumsum(np.bincount(rank))[:-1]):
        at = idx[lanes]
        before = array[at]
        old[lanes] = before
        array[at] = _combine(op, before, *(v[lanes] for v in values)).astype(array.dtype)
    return old


def _combine(op: str, old: Any, a: Any, b: Any = None) -> Any:
    if op == "add":
        return old + a
    if op in halves.KINDS:
        return halves.compute("add", op, (), old, a)
    if op in ("min", "max"):
        return np.minimum(old, a) if op == "min" else np.maximum(old, a)
    if op == "exch":
        return a
    if op == "cas":
        return np.where(old == a, b, old)
    if op in ("and", "or", "xor"):
        return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op](old, a)
    if op == "inc":
        return np.where(old >= a, old.dtype.type(0), old + old.dtype.type(1))
    return np.where((old == 0) | (old > a), a, old - old.dtype.type(1))  # dec


_ATOMICS = frozenset("add min max exch cas and or xor inc dec".split())


# code generation ----------------------------------------------------------------------------------------------------
def _space(ins: Any) -> str:
    """Where a load or store goes, as named by its opcode: "shared", "local", "global" (constants too) or "generic"."""
    for part in ins.parts[1:]:
        name = part.split("::")[0]
        if name in ("shared", "local"):
            return name
        if name in ("global", "const", "param"):
            return "global"
    return "generic"


def _access(g: Any, i: int, ins: Any, operand: str, hazard: Any, grain: int, kind: str) -> tuple[str, str]:
    """Register the access; return (its name in the generated code, the pointer's name)."""
    count = next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
    if ins.parts[-1] in ("b128",) or ins.parts[-1] not in TYPES:
        raise Unsupported
    t = np.dtype(TYPES[ins.parts[-1]])
    space = _space(ins)
    base, plus = g.address(operand)
    access = Access(i, kind, t, count, plus, space, hazard, max(1, t.itemsize * count // grain))
    if "const" in ins.parts or "param" in ins.parts:
        access.cached = "const"
    if access.width > 16:
        raise Unsupported
    method = {"load": access.load, "store": access.store, "atomic": access.atomic}[kind]
    g.namespace[f"m{i}"] = method
    return f"m{i}", g.pointer(base, space)


def _items(operand: str) -> list[str]:
    return operand.strip("{}").replace(",", " ").split()


def _ld(g, i, ins, hazard, grain):
    targets = _items(ins.args[0])
    if "param" in ins.parts:
        base, plus = g.address(ins.args[1])
        if base in g.params:
            t = TYPES[ins.parts[-1]]
            for k, target in enumerate(targets):
                at = g.params[base] + plus + k * int(t[1])
                g.define(target, t, f"S.param({at}, {t})")
            return
    name, pointer = _access(g, i, ins, ins.args[1], hazard, grain, "load")
    access = g.namespace[name].__self__
    if access.space == "shared" and len(targets) > 1 and any(t in g.unused for t in targets):
        # The compiler widens a load where it may; what it then does not use need not have been written.
        access.wanted = np.repeat([t not in g.unused for t in targets], access.granules // len(targets))
    g.define_all(targets, TYPES[ins.parts[-1]], f"{name}(S, L, {pointer})")


def _st(g, i, ins, hazard, grain):
    name, pointer = _access(g, i, ins, ins.args[0], hazard, grain, "store")
    values = ", ".join(g.use(v, TYPES[ins.parts[-1]]) for v in _items(ins.args[1]))
    g.emit(f"{name}(S, L, {pointer}, {values})")


def _atom(g, i, ins, hazard, grain):
    returns = ins.parts[0] == "atom"
    args = ins.args if returns else ["_", *ins.args]
    op = next((p for p in ins.parts[1:] if p in _ATOMICS), None)
    kind = ins.parts[-1]
    values = _items(args[2]) + args[3:4]
    vector = args[2][0] == "{"
    if op is None or (vector and (returns or op != "add" or kind[-3:] != "f32")):
        raise Unsupported
    if kind in halves.KINDS and kind != "f16":  # which NumPy knows
        if op != "add":
            raise Unsupported
        op = kind
    name, pointer = _access(g, i, ins, args[1], hazard, grain, "atomic")
    t = TYPES[kind]
    values = ", ".join(g.use(v, t) for v in values)
    g.define(args[0], t, f"{name}(S, L, {pointer}, {op!r}, {values})") if args[0] != "_" else g.emit(
        f"{name}(S, L, {pointer}, {op!r}, {values})"
    )


EMITTERS = {"ld": _ld, "ldu": _ld, "st": _st, "atom": _atom, "red": _atom}
