"""What each PTX opcode computes, as Python expressions over registers: one emitter per opcode.

An emitter gets the Generator (``g.use(operand, type)`` gives an expression, ``g.define(operand, type, expression)``
assigns) and one Instruction. Memory and warp-wide instructions are in ``memory`` and ``collectives``. An emitter raises
Unsupported for a variant it does not know; reaching that instruction is then an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from texlab.sim.ptx import TYPES

EMITTERS: dict[str, Callable[[Any, Any], None]] = {}
_DIRECTED = {"rz", "rm", "rp", "rna"}


class Unsupported(Exception):
    """An opcode or variant that the simulator does not know."""


def _emitter(*names: str):
    def register(function):
        for name in names:
            EMITTERS[name] = function
        return function

    return register


def _kind(ins: Any) -> str:
    try:
        return TYPES[ins.parts[-1]]
    except KeyError:
        raise Unsupported from None


def _float(g: Any, ins: Any, expression: str, t: str) -> None:
    """Define the result of a float operation, with .sat and .ftz applied."""
    if _DIRECTED & set(ins.parts):
        raise Unsupported
    if "sat" in ins.parts:
        expression = f"saturate({expression})"
    if "ftz" in ins.parts and t == "f4":
        expression = f"flush({expression})"
    g.define(ins.args[0], t, expression)


def _sources(g: Any, ins: Any, t: str) -> list[str]:
    values = [g.use(a, t) for a in ins.args[1:]]
    if "ftz" in ins.parts and t == "f4":
        values = [f"flush({v})" for v in values]
    return values


@_emitter("mov")
def _mov(g, ins):
    target, source = ins.args[0], ins.args[1]
    t = _kind(ins)
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


@_emitter("add", "sub")
def _add(g, ins):
    t, sign = _kind(ins), "+" if ins.parts[0] == "add" else "-"
    if ins.parts[-1] == "f16x2":
        a, b = _sources(g, ins, "u4")
        return g.define(ins.args[0], "u4", f"halves(np_{ins.parts[0]}, {a}, {b})")
    if t[0] == "f":
        a, b = _sources(g, ins, t)
        return _float(g, ins, f"{a} {sign} {b}", t)
    if "cc" in ins.parts:
        return _carry(g, ins, t, with_carry=False)
    if "sat" in ins.parts:
        a, b = _sources(g, ins, "i4")
        return g.define(ins.args[0], "i4", f"clamp_integer({a}.astype(i8) {sign} {b}.astype(i8), i4)")
    t = "u" + t[1]
    a, b = _sources(g, ins, t)
    g.define(ins.args[0], t, f"{a} {sign} {b}")


@_emitter("addc", "subc")
def _addc(g, ins):
    _carry(g, ins, _kind(ins), with_carry=True)


def _carry(g, ins, t, with_carry):
    """32- or 64-bit addition with the carry flag in the predicate register %cc (a borrow for subtraction)."""
    t = "u" + t[1]
    a, b = (g.temporary(v) for v in _sources(g, ins, t))
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


@_emitter("mul", "mad", "mul24", "mad24")
def _mul(g, ins):
    t, parts = _kind(ins), ins.parts
    if t[0] == "f" or parts[-1] == "f16x2":
        return (_fma if parts[0] == "mad" else _fmul)(g, ins)
    if "24" in parts[0] or {"cc", "sat"} & set(parts):
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
    if parts[0] == "mad":
        product = f"{product} + {g.use(ins.args[3], out)}"
    g.define(ins.args[0], out, product)


def _fmul(g, ins):
    if ins.parts[-1] == "f16x2":
        a, b = _sources(g, ins, "u4")
        return g.define(ins.args[0], "u4", f"halves(np_mul, {a}, {b})")
    t = _kind(ins)
    a, b = _sources(g, ins, t)
    _float(g, ins, f"{a} * {b}", t)


@_emitter("fma")
def _fma(g, ins):
    if {"bf16", "bf16x2", "relu"} & set(ins.parts):
        raise Unsupported
    if ins.parts[-1] == "f16x2":
        a, b, c = _sources(g, ins, "u4")
        return g.define(ins.args[0], "u4", f"halves(fma16, {a}, {b}, {c})")
    t = _kind(ins)
    if t != "f4":
        a, b, c = _sources(g, ins, t)
        return _float(g, ins, f"fma{8 * int(t[1])}({a}, {b}, {c})", t)
    if "ftz" in ins.parts:
        a, b, c = _sources(g, ins, t)
        a, b = f"{a}.astype(f8)", f"{b}.astype(f8)"
    else:
        a, b = (g.widened(v, "f4", "f8") for v in ins.args[1:3])
        c = g.use(ins.args[3], "f4")
    _float(g, ins, f"fma32({a}, {b}, {c})", t)


@_emitter("div")
def _div(g, ins):
    t = _kind(ins)
    if t[0] != "f":
        a, b = g.use(ins.args[1], t), g.use(ins.args[2], t)
        return g.define(ins.args[0], t, f"divide({a}, {b})")
    a, b = _sources(g, ins, t)
    _float(g, ins, f"{a} / {b}", t)


@_emitter("rem")
def _rem(g, ins):
    t = _kind(ins)
    g.define(ins.args[0], t, f"remainder({g.use(ins.args[1], t)}, {g.use(ins.args[2], t)})")


@_emitter("min", "max")
def _min(g, ins):
    t, name = _kind(ins), ins.parts[0]
    if ins.parts[-1] == "f16x2" or {"relu", "xorsign", "bf16", "bf16x2"} & set(ins.parts) or len(ins.args) > 3:
        raise Unsupported
    a, b = _sources(g, ins, t)
    if t[0] != "f" or "NaN" in ins.parts:
        return g.define(ins.args[0], t, f"np_{name}({a}, {b})")
    _float(g, ins, f"f{name}({g.temporary(a)}, {g.temporary(b)})", t)


@_emitter("abs", "neg")
def _unary(g, ins):
    t = _kind(ins)
    if ins.parts[-1] in ("f16x2", "bf16", "bf16x2"):
        raise Unsupported
    (a,) = _sources(g, ins, t)
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


@_emitter(*_FUNCTIONS)
def _function(g, ins):
    t = _kind(ins)
    if t not in ("f4", "f8", "f2") or ins.parts[-1] in ("f16x2", "bf16"):
        raise Unsupported
    (a,) = _sources(g, ins, t)
    _float(g, ins, f"({_FUNCTIONS[ins.parts[0]].format(a=f'{a}.astype(f8)')}).astype({t})", t)


@_emitter("copysign")
def _copysign(g, ins):
    t = _kind(ins)
    g.define(ins.args[0], t, f"np_copysign({g.use(ins.args[2], t)}, {g.use(ins.args[1], t)})")


@_emitter("testp")
def _testp(g, ins):
    t = _kind(ins)
    a = g.temporary(g.use(ins.args[1], t))
    tiny = f"np_finfo({t}).tiny"
    tests = {
        "finite": f"np_isfinite({a})",
        "infinite": f"np_isinf({a})",
        "number": f"~np_isnan({a})",
        "notanumber": f"np_isnan({a})",
        "normal": f"np_isfinite({a}) & (np_abs({a}) >= {tiny})",
        "subnormal": f"(np_abs({a}) < {tiny}) & ({a} != 0)",
    }
    g.define(ins.args[0], "?", tests[ins.parts[1]])


# logic, shifts, bits ------------------------------------------------------------------------------------------------
@_emitter("and", "or", "xor")
def _logic(g, ins):
    t = _kind(ins)
    sign = {"and": "&", "or": "|", "xor": "^"}[ins.parts[0]]
    g.define(ins.args[0], t, f"{g.use(ins.args[1], t)} {sign} {g.use(ins.args[2], t)}")


@_emitter("not", "cnot")
def _not(g, ins):
    t = _kind(ins)
    a = g.use(ins.args[1], t)
    g.define(ins.args[0], t, f"~{a}" if ins.parts[0] == "not" else f"({a} == 0).astype({t})")


@_emitter("lop3")
def _lop3(g, ins):
    if len(ins.args) != 5 or "BoolOp" in ins.parts:
        raise Unsupported
    a, b, c = (g.temporary(g.use(x, "u4")) for x in ins.args[1:4])
    g.define(ins.args[0], "u4", f"logic3({a}, {b}, {c}, {int(ins.args[4], 0)})")


@_emitter("shl", "shr")
def _shift(g, ins):
    t = _kind(ins)
    amount = ins.args[2]
    if g.is_register(amount):
        amount = g.use(amount, "u4")
        amount = (
            amount
            if t[1] == "4"
            else f"{amount}.astype(u{t[1]})"
            if t[1] == "8"
            else f"np_min({amount}, {g.const(32, 'u4')}).astype(u{t[1]})"
        )
        if t[0] == "i":
            amount = f"np_min({amount}, {g.const(63, 'u' + t[1])}).view({t})"
    else:
        amount = g.const(min(int(amount.rstrip("U"), 0), 8 * int(t[1])), t)
    sign = "<<" if ins.parts[0] == "shl" else ">>"
    g.define(ins.args[0], t, f"{g.use(ins.args[1], t)} {sign} {amount}")


@_emitter("shf")
def _shf(g, ins):
    low, high, amount = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"funnel({low}, {high}, {amount}, {ins.parts[1] == 'l'}, {ins.parts[2] == 'wrap'})")


@_emitter("bfe", "bfi")
def _field(g, ins):
    t, extract = _kind(ins), ins.parts[0] == "bfe"
    values = [g.use(x, t) for x in ins.args[1:-2]] + [g.use(x, "u4") for x in ins.args[-2:]]
    g.define(ins.args[0], t, f"{'field_extract' if extract else 'field_insert'}({', '.join(values)})")


@_emitter("popc", "clz")
def _count(g, ins):
    function = "count_bits" if ins.parts[0] == "popc" else "leading_zeros"
    g.define(ins.args[0], "u4", f"{function}({g.use(ins.args[1], _kind(ins))})")


@_emitter("bfind")
def _bfind(g, ins):
    g.define(ins.args[0], "u4", f"highest_bit({g.use(ins.args[1], _kind(ins))}, {'shiftamt' in ins.parts})")


@_emitter("brev")
def _brev(g, ins):
    t = _kind(ins)
    g.define(ins.args[0], t, f"reverse_bits({g.use(ins.args[1], t)})")


@_emitter("prmt")
def _prmt(g, ins):
    if len(ins.parts) > 2:
        raise Unsupported
    a, b, c = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"permute_bytes({a}, {b}, {c})")


@_emitter("dp4a")
def _dp4a(g, ins):
    a, b, c = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"dot4({a}, {b}, {c}, {ins.parts[1] == 's32'}, {ins.parts[2] == 's32'})")


# comparisons --------------------------------------------------------------------------------------------------------
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_NEGATED = {"equ": "ne", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


def _comparison(g, ins, compare: str) -> str:
    t = _kind(ins)
    if ins.parts[-1] == "f16x2":
        raise Unsupported
    a, b = (g.use(x, t) for x in ins.args[1:3])
    if "ftz" in ins.parts and t == "f4":
        a, b = f"flush({a})", f"flush({b})"
    if t[0] != "f" or compare in ("eq", "lt", "le", "gt", "ge"):
        return f"({a} {_COMPARE[compare]} {b})"
    if compare == "neu":
        return f"({a} != {b})"
    if compare in ("ne", "equ"):
        a, b = g.temporary(a), g.temporary(b)
        return ("" if compare == "ne" else "~") + f"(({a} < {b}) | ({a} > {b}))"
    if compare in _NEGATED:
        return f"~({a} {_COMPARE[_NEGATED[compare]]} {b})"
    both = f"(({a} == {a}) & ({b} == {b}))"
    return both if compare == "num" else f"~{both}"


def _combined(g, ins) -> tuple[str, str | None]:
    """The predicate of setp/set, and its complement combined alike (second destination)."""
    boolean = next((p for p in ins.parts[2:-1] if p in ("and", "or", "xor")), None)
    result = _comparison(g, ins, ins.parts[1])
    if boolean is None:
        return result, None
    sign = {"and": "&", "or": "|", "xor": "^"}[boolean]
    other = ins.args[3]
    other = f"(~{g.use(other[1:], '?')})" if other[0] == "!" else g.use(other, "?")
    result = g.temporary(result)
    return f"{result} {sign} {other}", f"~{result} {sign} {other}"


@_emitter("setp")
def _setp(g, ins):
    first, _, second = ins.args[0].partition("|")
    value, complement = _combined(g, ins)
    if second:
        value = g.temporary(value)
        complement = g.temporary(complement or f"~{value}")
    g.define(first, "?", value)
    if second:
        g.define(second, "?", complement)


@_emitter("set")
def _set(g, ins):
    t = TYPES[ins.parts[-2]]
    value, _ = _combined(g, ins)
    yes, no = (g.const(1.0, t), g.const(0.0, t)) if t[0] == "f" else (g.const(-1, t), g.const(0, t))
    g.define(ins.args[0], t, f"select({value}, {yes}, {no})")


@_emitter("selp")
def _selp(g, ins):
    t = _kind(ins)
    p = ins.args[3]
    p = f"(~{g.use(p[1:], '?')})" if p[0] == "!" else g.use(p, "?")
    g.define(ins.args[0], t, f"select({p}, {g.use(ins.args[1], t)}, {g.use(ins.args[2], t)})")


@_emitter("slct")
def _slct(g, ins):
    t, c = TYPES[ins.parts[-2]], TYPES[ins.parts[-1]]
    a, b = g.use(ins.args[1], t), g.use(ins.args[2], t)
    g.define(ins.args[0], t, f"select({g.use(ins.args[3], c)} >= 0, {a}, {b})")


# conversions and addresses ------------------------------------------------------------------------------------------
@_emitter("cvt")
def _cvt(g, ins):
    names = [p for p in ins.parts if p in TYPES]
    if len(names) != 2 or len(ins.args) != 2 or names[0][-2:] == "x2":
        return _pack_halves(g, ins)
    (to, source), mods = (TYPES[n] for n in names), set(ins.parts)
    if "bf16" in names:
        return _cvt_bf16(g, ins, names, mods)
    a = g.use(ins.args[1], source)
    if "ftz" in mods and source == "f4":
        a = f"flush({a})"
    rounding = next((p for p in ins.parts if p in ("rni", "rzi", "rmi", "rpi", "rz", "rm", "rp")), None)
    if source[0] == "f" and to[0] != "f":
        value = f"to_integer({a}, {rounding or 'rzi'!r}, {to})"
    elif source[0] == "f" and rounding in ("rni", "rzi", "rmi", "rpi"):
        value = f"np_{rounding}({a}.astype({to}))"
    elif to[0] == "f" and rounding in ("rz", "rm", "rp"):
        value = f"narrow({a}, {rounding!r}, {to})"
    elif to[0] != "f" and "sat" in mods:
        value = f"clamp_integer({a}, {to})"
    else:
        value = a if to == source else f"{a}.astype({to})"
    if to[0] == "f" and "sat" in mods:
        value = f"saturate({value})"
    if to == "f4" and "ftz" in mods:
        value = f"flush({value})"
    g.define(ins.args[0], to, value)


def _cvt_bf16(g, ins, names, mods):
    if {"rz", "relu", "sat"} & mods or set(names) != {"bf16", "f32"}:
        raise Unsupported
    if names[0] == "bf16":
        return g.define(ins.args[0], "u2", f"float_to_bf16({g.use(ins.args[1], 'f4')})")
    g.define(ins.args[0], "f4", f"bf16_to_float({g.use(ins.args[1], 'u2')})")


def _pack_halves(g, ins):
    """``cvt.rn.f16x2.f32 d, high, low`` and its bfloat16 form."""
    if ins.parts[1:2] != ["rn"] or ins.parts[-2:] not in (["f16x2", "f32"], ["bf16x2", "f32"]) or len(ins.parts) != 4:
        raise Unsupported
    one = "float_to_bf16({})" if ins.parts[2] == "bf16x2" else "{}.astype(f2).view(u2)"
    high, low = (one.format(g.use(x, "f4")) for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"({high}.astype(u4) << {g.const(16, 'u4')}) | {low}.astype(u4)")


@_emitter("cvta")
def _cvta(g, ins):
    t = _kind(ins)
    to = ins.parts[1] == "to"
    space = ins.parts[2 if to else 1].split("::")[0]
    value = g.use(ins.args[1], t)
    if space in ("shared", "local"):
        value = f"{value} {'-' if to else '+'} {g.const(g.window(space), t)}"
    g.define(ins.args[0], t, value)


@_emitter("isspacep")
def _isspacep(g, ins):
    a = g.temporary(g.use(ins.args[1], "u8"))
    space = ins.parts[1].split("::")[0]
    g.define(ins.args[0], "?", f"is_space({a}, {space!r})")


@_emitter(
    "membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "pmevent", "griddepcontrol"
)
def _nothing(g, ins):
    """Order and hints: the simulator's memory is always in order."""
