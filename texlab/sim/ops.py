"""What each PTX opcode computes, as Python expressions over registers: one emitter per opcode.

An emitter gets the Generator (``g.use(operand, type)`` gives an expression, ``g.define(operand, type, expression)``
assigns) and one Instruction. Here is arithmetic; logic, comparisons and conversions are in ``bits``, memory in
``memory`` and ``copies``, warp-wide instructions in ``collectives`` and ``tensorcores``. An emitter raises Unsupported
for a variant it does not know; reaching that instruction is then an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from texlab.sim.ptx import TYPES

EMITTERS: dict[str, Callable[[Any, Any], None]] = {}
HALVES: dict[str, Callable[[Any, Any], None]] = {}  # the same, for 16-bit floats
_DIRECTED = ("rz", "rm", "rp")


class Unsupported(Exception):
    """An opcode or variant that the simulator does not know."""


def emitter(*names: str):
    def register(function):
        for name in names:
            EMITTERS[name] = function
        return function

    return register


def emitter_for_halves(*names: str):
    return lambda function: [HALVES.__setitem__(name, function) for name in names] and function


def kind_of(ins: Any) -> str:
    try:
        return TYPES[ins.parts[-1]]
    except KeyError:
        raise Unsupported from None


def _float(g: Any, ins: Any, expression: str, t: str) -> None:
    """Define the result of a float operation, with .sat and .ftz applied."""
    if rounding := next((p for p in ins.parts if p in _DIRECTED), None):
        if t == "f2":
            raise Unsupported
        values = ", ".join(sources(g, ins, t))
        op = {"mad": "fma"}.get(ins.parts[0], ins.parts[0])
        expression = f"directed({op!r}, {rounding!r}, {values})"
    if "sat" in ins.parts:
        expression = f"saturate({expression})"
    if "ftz" in ins.parts and t == "f4":
        expression = f"flush({expression})"
    g.define(ins.args[0], t, expression)


def sources(g: Any, ins: Any, t: str) -> list[str]:
    values = [g.use(a, t) for a in ins.args[1:]]
    if "ftz" in ins.parts and t == "f4":
        values = [f"flush({v})" for v in values]
    return values


@emitter("mov")
def _mov(g, ins):
    target, source = ins.args[0], ins.args[1]
    t = kind_of(ins)
    if source[0] == "{":
        parts = source.strip("{}").replace(",", " ").split()
        size = int(t[1]) // len(parts)
        terms = [f"({g.use(p, f'u{size}')}.astype({t}) << {g.const(8 * size * i, t)})" for i, p in enumerate(parts)]
        g.define(target, t, " | ".join(terms))
    elif target[0] == "{":
        parts = target.strip("{}").replace(",", " ").split()
        size = int(t[1]) // len(parts)
        value = g.temporary(g.use(source, t))
        for i, p in enumerate(parts):
            if p != "_":
                g.define(p, f"u{size}", f"({value} >> {g.const(8 * size * i, t)}).astype(u{size})")
    else:
        g.define(target, t, g.use(source, t))


@emitter("add", "sub")
def _add(g, ins):
    t, sign = kind_of(ins), "+" if ins.parts[0] == "add" else "-"
    if t[0] == "f":
        a, b = sources(g, ins, t)
        return _float(g, ins, f"{a} {sign} {b}", t)
    if "cc" in ins.parts:
        return _carry(g, ins, t, with_carry=False)
    if "sat" in ins.parts:
        a, b = sources(g, ins, "i4")
        return g.define(ins.args[0], "i4", f"clamp_integer({a}.astype(i8) {sign} {b}.astype(i8), i4)")
    t = "u" + t[1]
    a, b = sources(g, ins, t)
    g.define(ins.args[0], t, f"{a} {sign} {b}")


@emitter("addc", "subc")
def _addc(g, ins):
    _carry(g, ins, kind_of(ins), with_carry=True)


def _carry(g, ins, t, with_carry, terms=None):
    """32- or 64-bit addition of ``terms`` (by default the operands) with the carry flag in the predicate register %cc (a
    borrow for subtraction)."""
    t = "u" + t[1]
    a, b = (g.temporary(v) for v in (sources(g, ins, t) if terms is None else terms))
    minus = ins.parts[0].startswith("sub")
    total = g.temporary(f"{a} {'-' if minus else '+'} {b}")
    out = f"({a} < {b})" if minus else f"({total} < {a})"
    if with_carry:
        carry = g.temporary(f"{g.use('%cc', '?')}.astype({t})")
        final = g.temporary(f"{total} {'-' if minus else '+'} {carry}")
        out += f" | ({total} < {carry})" if minus else f" | ({final} < {total})"
        total = final
    out = g.temporary(out)
    g.define(ins.args[0], t, total)
    if "cc" in ins.parts:
        g.define("%cc", "?", out)


@emitter("mul24", "mad24")
def _mul24(g, ins):
    """Products of the low 24 bits of 32-bit integers: bits 0..31 (lo) or 16..47 (hi) of the 48."""
    t = kind_of(ins)
    wide = t[0] + "8"
    down = g.const(8, t)
    a, b = (f"(({g.use(x, t)} << {down}) >> {down}).astype({wide})" for x in ins.args[1:3])
    product = f"{a} * {b}" if "lo" in ins.parts else f"(({a} * {b}) >> {g.const(16, wide)})"
    result = f"({product}).astype({t})"
    g.define(ins.args[0], t, result if len(ins.args) == 3 else f"{result} + {g.use(ins.args[3], t)}")


@emitter("sad")
def _sad(g, ins):
    t = kind_of(ins)
    a, b = (g.temporary(g.use(x, t)) for x in ins.args[1:3])
    g.define(ins.args[0], t, f"select({a} > {b}, {a} - {b}, {b} - {a}) + {g.use(ins.args[3], t)}")


@emitter("mul", "mad", "madc")
def _mul(g, ins):
    t, parts = kind_of(ins), ins.parts
    if t[0] == "f":
        return (_fma if parts[0] == "mad" else _fmul)(g, ins)
    if "sat" in parts and (parts[:2] != ["mad", "hi"] or t != "i4"):
        raise Unsupported
    out = t
    if "wide" in parts:
        out = f"{t[0]}{2 * int(t[1])}"
        a, b = g.use(ins.args[1], t), g.use(ins.args[2], t)
        product = (
            f"{g.widened(ins.args[1], t, out)} * {g.widened(ins.args[2], t, out)}"
            if t[1] == "4"
            else f"mul_wide({a}, {b})"
        )
    elif "hi" in parts:
        product = f"mul_high({g.use(ins.args[1], t)}, {g.use(ins.args[2], t)})"
    else:
        out = "u" + t[1]
        product = f"{g.use(ins.args[1], out)} * {g.use(ins.args[2], out)}"
    if "cc" in parts or parts[0] == "madc":
        if "wide" in parts or t[1] not in "48":
            raise Unsupported
        out = "u" + t[1]
        product = product if "lo" in parts else f"({product}).view({out})"
        return _carry(g, ins, t, parts[0] == "madc", [product, g.use(ins.args[3], out)])
    if "sat" in parts:
        total = f"{product}.astype(i8) + {g.use(ins.args[3], t)}.astype(i8)"
        return g.define(ins.args[0], t, f"clamp_integer({total}, i4)")
    if parts[0] == "mad":
        product = f"{product} + {g.use(ins.args[3], out)}"
    g.define(ins.args[0], out, product)


def _fmul(g, ins):
    t = kind_of(ins)
    a, b = sources(g, ins, t)
    _float(g, ins, f"{a} * {b}", t)


@emitter("fma")
def _fma(g, ins):
    if "relu" in ins.parts:
        raise Unsupported
    t = kind_of(ins)
    if t != "f4":
        a, b, c = sources(g, ins, t)
        return _float(g, ins, f"fma{8 * int(t[1])}({a}, {b}, {c})", t)
    if "ftz" in ins.parts:
        a, b, c = sources(g, ins, t)
        a, b = f"{a}.astype(f8)", f"{b}.astype(f8)"
    else:
        a, b = (g.widened(v, "f4", "f8") for v in ins.args[1:3])
        c = g.use(ins.args[3], "f4")
    _float(g, ins, f"fma32({a}, {b}, {c})", t)


@emitter("div")
def _div(g, ins):
    t = kind_of(ins)
    if t[0] != "f":
        a, b = g.use(ins.args[1], t), g.use(ins.args[2], t)
        return g.define(ins.args[0], t, f"divide({a}, {b})")
    a, b = sources(g, ins, t)
    _float(g, ins, f"{a} / {b}", t)


@emitter("rem")
def _rem(g, ins):
    t = kind_of(ins)
    g.define(ins.args[0], t, f"remainder({g.use(ins.args[1], t)}, {g.use(ins.args[2], t)})")


@emitter("min", "max")
def _min(g, ins):
    t, name = kind_of(ins), ins.parts[0]
    if len(ins.args) > 3:
        raise Unsupported
    if (
        "relu" in ins.parts
        or (t != "f4" and "xorsign" in ins.parts)
        or ("abs" in ins.parts) != ("xorsign" in ins.parts)
    ):
        raise Unsupported
    a, b = (g.temporary(v) for v in sources(g, ins, t))
    if t[0] != "f":
        return g.define(ins.args[0], t, f"np_{name}({a}, {b})")
    if "xorsign" in ins.parts:  # of the magnitudes, with the sign of the product
        least = f"f{name}(np_abs({a}), np_abs({b}), {'NaN' in ins.parts})"
        sign = f"({a}.view(u4) ^ {b}.view(u4)).view(f4)"
        return _float(g, ins, f"np_copysign({least}, {sign})", t)
    _float(g, ins, f"f{name}({a}, {b}, {'NaN' in ins.parts})", t)


@emitter("abs", "neg")
def _unary(g, ins):
    t = kind_of(ins)
    (a,) = sources(g, ins, t)
    expression = f"np_abs({a})" if ins.parts[0] == "abs" else f"-{a}"
    if t[0] == "f":
        return _float(g, ins, expression, t)
    g.define(ins.args[0], t, expression)


_FUNCTIONS = {
    "sqrt": "np_sqrt({a})",
    "rsqrt": "1.0 / np_sqrt({a})",
    "rcp": "1.0 / {a}",
    "ex2": "np_exp2({a})",
    "lg2": "np_log2({a})",
    "sin": "np_sin({a})",
    "cos": "np_cos({a})",
    "tanh": "np_tanh({a})",
}


@emitter(*_FUNCTIONS)
def _function(g, ins):
    t = kind_of(ins)
    if t not in ("f4", "f8", "f2") or ins.parts[-1] in ("f16x2", "bf16"):
        raise Unsupported
    (a,) = sources(g, ins, t)
    _float(g, ins, f"({_FUNCTIONS[ins.parts[0]].format(a=f'{a}.astype(f8)')}).astype({t})", t)


@emitter("copysign")
def _copysign(g, ins):
    t = kind_of(ins)
    g.define(ins.args[0], t, f"np_copysign({g.use(ins.args[2], t)}, {g.use(ins.args[1], t)})")


@emitter("testp")
def _testp(g, ins):
    t = kind_of(ins)
    a = g.temporary(g.use(ins.args[1], t))
    tiny = f"np_finfo({t}).tiny"
    tests = {
        "finite": f"np_isfinite({a})",
        "infinite": f"np_isinf({a})",
        "number": f"~np_isnan({a})",
        "notanumber": f"np_isnan({a})",
        "normal": f"np_isfinite({a}) & ((np_abs({a}) >= {tiny}) | ({a} == 0))",  # zero counts, on the hardware
        "subnormal": f"(np_abs({a}) < {tiny}) & ({a} != 0)",
    }
    g.define(ins.args[0], "?", tests[ins.parts[1]])
