"""What a conformance case is, how small kernels become cases, and how two results are compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from texlab.program import Buffer, Launch, Program

from .values import TYPES, N, seed_of, values

HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
GROUP = 24  # kernels that share one compilation


@dataclass(frozen=True)
class Within:
    """Floats may differ by ``ulp`` units in the last place of the wanted one, or by ``relative`` of it, or by
    ``absolute``: any of the three is enough."""

    ulp: float = 0
    relative: float = 0
    absolute: float = 0


BITS = "bits"  # every bit equal; two NaNs are equal, whatever their payload


@dataclass(frozen=True)
class Case:
    """One small kernel that exercises one feature.

    ``name`` is family.feature; ``feature`` the section of the PTX ISA it follows; ``compare`` BITS or a Within (the
    hardware's stated bound, against the true value); ``expect`` gives the outputs independently, from the inputs, or is
    None; ``text`` is the case's own source, of which ``program.source`` holds several. ``alone``: on a GPU it may hang or
    fault if something is wrong, so it does not share a process with others.
    """

    name: str
    feature: str
    program: Program
    inputs: dict[str, np.ndarray]
    compare: str | Within
    text: str
    expect: Callable[..., dict[str, np.ndarray]] | None = None
    alone: bool = False

    @property
    def family(self) -> str:
        return self.name.split(".")[0]

    @cached_property
    def key(self) -> str:
        """Changes with anything that decides the outputs."""
        h = hashlib.sha256(repr((self.text, self.program.buffers, self._launches())).encode())
        for name in sorted(self.inputs):
            h.update(name.encode() + self.inputs[name].tobytes())
        return h.hexdigest()[:16]

    def _launches(self) -> list[Any]:
        plain = lambda v: v.tobytes() if isinstance(v, np.generic | np.ndarray) else v  # noqa: E731
        return [(n.grid, n.block, [plain(a) for a in n.args], n.shared_bytes) for n in self.program.launches]

    def expected(self) -> dict[str, np.ndarray] | None:
        """The outputs by an independent calculation, or None where there is none."""
        if self.expect is None:
            return None
        got = self.expect(**self.inputs)
        out = {}
        for b in self.program.outputs:
            out[b.name] = np.ascontiguousarray(np.asarray(got[b.name]).astype(b.dtype, copy=False).reshape(b.shape))
        return out


# comparing ----------------------------------------------------------------------------------------------------------
def difference(case: Case, got: Mapping[str, Any], want: Mapping[str, Any], slack: float = 1) -> str | None:
    """None if ``got`` is as good as ``want`` by the case's own measure (a bound times ``slack``: 2 where both sides may
    be off by it); else how many elements differ and the first of them."""
    for b in case.program.outputs:
        x, y = (np.asarray(a[b.name]).reshape(-1) for a in (got, want))
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{b.name}: {x.dtype} {x.shape} instead of {y.dtype} {y.shape}"
        bad = np.flatnonzero(~_close(x, y, case.compare, slack))
        if len(bad):
            i = bad[0]
            given = {n: a[np.unravel_index(i % a.size, a.shape)] for n, a in case.inputs.items() if a.size}
            given = {n: f"{v!r} ({_hex(v)})" for n, v in given.items()}
            return (
                f"{len(bad)} of {x.size} elements of {b.name} differ, first [{i}]: got {x[i]!r} ({_hex(x[i])}), "
                f"expected {y[i]!r} ({_hex(y[i])}); inputs there: {given}"
            )
    return None


def _hex(v: Any) -> str:
    return v.tobytes()[::-1].hex()


def _close(x: np.ndarray, y: np.ndarray, compare: str | Within, slack: float) -> np.ndarray:
    unsigned = f"u{x.itemsize}"
    equal = x.view(unsigned) == y.view(unsigned)
    if x.dtype.kind != "f":
        return equal
    equal |= np.isnan(x) & np.isnan(y)
    if compare == BITS:
        return equal
    with np.errstate(all="ignore"):
        error = np.abs(x.astype("f8") - y.astype("f8"))
        size = np.abs(y)
        ulp = np.where(np.isfinite(y), np.spacing(np.where(np.isfinite(y), size, 0)), 0).astype("f8")
        bound = np.maximum(compare.ulp * ulp, compare.relative * size.astype("f8"))
        return equal | (error <= slack * np.maximum(bound, compare.absolute))


# making -------------------------------------------------------------------------------------------------------------
@dataclass
class Draft:
    """A Case on its way: ``source`` is complete and its kernels are called k, k2, ..."""

    name: str
    feature: str
    source: str
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]
    inputs: dict[str, np.ndarray]
    compare: str | Within = BITS
    expect: Callable[..., dict[str, np.ndarray]] | None = None
    headers: bool = False
    alone: bool = False
    solo: bool = False
    arch: str = ""


@dataclass
class Collection:
    """Cases of one module, in the order they are written down."""

    drafts: list[Draft] = field(default_factory=list)

    def kernel(
        self,
        name: str,
        feature: str,
        source: str,
        *,
        grid: Any = 1,
        block: Any = 32,
        args: Sequence[Any] = (),
        outputs: Mapping[str, tuple[Any, str]],
        scratch: Mapping[str, tuple[Any, str]] | None = None,
        shared: int = 0,
        then: Sequence[tuple[Any, ...]] = (),
        expect: Any = None,
        compare: str | Within = BITS,
        headers: bool = False,
        alone: bool = False,
        solo: bool = False,
        arch: str = "",
        **inputs: np.ndarray,
    ) -> None:
        """A kernel as it stands. ``args`` defaults to inputs, then outputs; ``expect`` an array (single output), a dict,
        or a function of the inputs giving either; ``then``: further launches (entry, grid, block, args); ``solo``: compiled
        by itself; ``arch``: as of a Program."""
        triple = lambda v: (v, 1, 1) if isinstance(v, int) else (*v, 1, 1)[:3]  # noqa: E731
        shape = lambda v: (v,) if isinstance(v, int) else tuple(v)  # noqa: E731
        buffers = [Buffer(n, a.shape, str(a.dtype)) for n, a in inputs.items()]
        for role, group in (("output", outputs), ("scratch", scratch or {})):
            buffers += [Buffer(n, shape(s), d, role) for n, (s, d) in group.items()]
        args = tuple(args) or (*inputs, *outputs)
        launches = [Launch("k", triple(grid), triple(block), args, shared)]
        launches += [Launch(e, triple(g), triple(b), tuple(a)) for e, g, b, a in then]

        def expected(**arrays: np.ndarray) -> dict[str, np.ndarray]:
            got = expect(**arrays) if callable(expect) else expect
            return got if isinstance(got, dict) else {next(iter(outputs)): got}

        self.drafts.append(
            Draft(
                name,
                feature,
                source,
                tuple(buffers),
                tuple(launches),
                inputs,
                compare,
                None if expect is None else expected,
                headers,
                alone,
                solo,
                arch,
            )
        )

    def elementwise(
        self,
        name: str,
        feature: str,
        body: str,
        outs: str,
        ins: str,
        expect: Callable[..., Any] | None = None,
        *,
        compare: str | Within = BITS,
        headers: bool = False,
        domain: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> None:
        """One thread an element. ``ins`` and ``outs`` name types ("s32 u32"); the C++ ``body`` reads a, b, c, ... and sets
        r (several outputs: r0, r1, ...). ``expect`` gets each element as a Python integer (floats: their bits) and gives
        the result, or results, likewise. ``domain`` replaces inputs by a function of them."""
        in_types = [TYPES[t] for t in ins.split()]
        out_types = [TYPES[t] for t in outs.split()]
        names = "abcdefgh"[: len(in_types)]
        results = ["r"] if len(out_types) == 1 else [f"r{i}" for i in range(len(out_types))]
        arrays = {}
        for position, (letter, t) in enumerate(zip(names, in_types, strict=True)):
            arrays[letter] = values(t, seed_of(name), position)
            if domain and letter in domain:
                with np.errstate(all="ignore"):
                    arrays[letter] = domain[letter](arrays[letter]).astype(t.dtype)
        params = [f"const {t.memory}* {n}_" for n, t in zip(names, in_types, strict=True)]
        params += [f"{t.memory}* {n}_" for n, t in zip(results, out_types, strict=True)]
        loads = "".join(f"  {t.c} {n} = {n}_[i];\n" for n, t in zip(names, in_types, strict=True))
        declared = "".join(f"  {t.c} {n};\n" for n, t in zip(results, out_types, strict=True))
        stores = "".join(f"  {n}_[i] = {n};\n" for n in results)
        source = (
            f'extern "C" __global__ void k({", ".join(params)}) {{\n'
            f"  int i = blockIdx.x * blockDim.x + threadIdx.x;\n{loads}{declared}  {body}\n{stores}}}\n"
        )
        shapes = {n: ((N, t.lanes) if t.lanes > 1 else (N,), t.dtype) for n, t in zip(results, out_types, strict=True)}

        def expected(**given: np.ndarray) -> dict[str, np.ndarray]:
            rows = [
                expect(*row)
                for row in zip(*(_integers(given[n], t) for n, t in zip(names, in_types, strict=True)), strict=True)
            ]
            rows = [row if isinstance(row, tuple) else (row,) for row in rows]
            out = {}
            for (n, t), column in zip(zip(results, out_types, strict=True), zip(*rows, strict=True), strict=True):
                wrapped = np.array([v & (1 << t.bits) - 1 for v in column], f"uint{t.bits}")
                out[n] = wrapped.view(t.dtype)
            return out

        self.kernel(
            name,
            feature,
            source,
            grid=N // 128,
            block=128,
            outputs=shapes,
            expect=expected if expect else None,
            compare=compare,
            headers=headers,
            **arrays,
        )

    def ptx(self, name: str, feature: str, text: str, outs: str, ins: str, expect: Any = None, **how: Any) -> None:
        """``elementwise`` with inline PTX, in which $a, $b, ... are the inputs and $r (or $r0, ...) the results."""
        out_types, in_types = [TYPES[t] for t in outs.split()], [TYPES[t] for t in ins.split()]
        results = ["r"] if len(out_types) == 1 else [f"r{i}" for i in range(len(out_types))]
        order = [*results, *"abcdefgh"[: len(in_types)]]
        numbered = re.sub(r"\$([a-h]|r\d*)\b", lambda m: f"%{order.index(m[1])}", text).replace("\n", " ")
        written = ", ".join(f'"={t.constraint}"({n})' for n, t in zip(results, out_types, strict=True))
        read = ", ".join(f'"{t.constraint}"({n})' for n, t in zip("abcdefgh", in_types, strict=False))
        self.elementwise(name, feature, f'asm volatile("{numbered}" : {written} : {read});', outs, ins, expect, **how)


def _integers(array: np.ndarray, t: Any) -> list[int]:
    flat = array.reshape(-1)
    return [int(v) for v in (flat if t.kind in ("s", "u") else flat.view(f"uint{t.bits}"))]


# grouping -----------------------------------------------------------------------------------------------------------
def cases(*collections: Collection) -> list[Case]:
    """All cases, their kernels compiled together in groups: each in a namespace of its own, its lines counted from 1."""
    drafts = [d for c in collections for d in c.drafts]
    names = [d.name for d in drafts]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ValueError(f"two cases called {sorted(twice)}")
    out = {}
    for headers in (False, True):
        groups = []
        for arch in sorted({d.arch for d in drafts}):
            mine = [d for d in drafts if d.headers == headers and d.arch == arch and not d.solo]
            groups += [mine[start : start + GROUP] for start in range(0, len(mine), GROUP)]
        for group in groups + [[d] for d in drafts if d.headers == headers and d.solo]:
            source = (HEADERS if headers else "") + "".join(map(_wrapped, group))
            for d in group:
                out[d.name] = _case(d, source)
    return [out[n] for n in names]


def _entry(draft: Draft, kernel: str) -> str:
    return f"{kernel}_{re.sub(r'[^A-Za-z0-9]', '_', draft.name)}"


def _wrapped(draft: Draft) -> str:
    kernels = r'(extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?)(k\d*)\('
    renamed = re.sub(kernels, lambda m: f"{m[1]}{_entry(draft, m[2])}(", draft.source)
    return f'namespace {_entry(draft, "case")} {{\n#line 1 "{draft.name}.cu"\n{renamed}\n}}\n'


def _case(draft: Draft, source: str) -> Case:
    launches = tuple(replace(n, entry=_entry(draft, n.entry)) for n in draft.launches)
    program = Program(draft.name, source, draft.buffers, launches, filename="group.cu", arch=draft.arch)
    return Case(
        draft.name, draft.feature, program, draft.inputs, draft.compare, draft.source, draft.expect, draft.alone
    )
