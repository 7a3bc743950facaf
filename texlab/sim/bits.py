"""Emitters, continued: logic, shifts, bit fields, comparisons, conversions, addresses."""

from __future__ import annotations

from texlab.sim import fp8
from texlab.sim.ops import EMITTERS, Unsupported, emitter, kind_of
from texlab.sim.packed import emit_pack
from texlab.sim.ptx import TYPES
from texlab.sim.variants import NOTHING

__all__ = ["EMITTERS"]  # of ops and of this module


# logic, shifts, bits ------------------------------------------------------------------------------------------------
@emitter("and", "or", "xor")
def _logic(g, ins):
    t = kind_of(ins)
    sign = {"and": "&", "or": "|", "xor": "^"}[ins.parts[0]]
    g.define(ins.args[0], t, f"{g.use(ins.args[1], t)} {sign} {g.use(ins.args[2], t)}")


@emitter("not", "cnot")
def _not(g, ins):
    t = kind_of(ins)
    a = g.use(ins.args[1], t)
    g.define(ins.args[0], t, f"~{a}" if ins.parts[0] == "not" else f"({a} == 0).astype({t})")


@emitter("lop3")
def _lop3(g, ins):
    if len(ins.args) != (5 if len(ins.parts) == 2 else 6):
        raise Unsupported
    a, b, c = (g.temporary(g.use(x, "u4")) for x in ins.args[1:4])
    result = f"logic3({a}, {b}, {c}, {int(ins.args[4], 0)})"
    if len(ins.parts) == 2:
        return g.define(ins.args[0], "u4", result)
    target, _, predicate = ins.args[0].partition("|")
    result, other = g.temporary(result), ins.args[5]
    other = f"(~{g.use(other[1:], '?')})" if other[0] == "!" else g.use(other, "?")
    flag = g.temporary(f"({result} != 0) {'&' if ins.parts[1] == 'and' else '|'} {other}")
    g.define(target, "u4", result)
    g.define(predicate, "?", flag)


@emitter("shl", "shr")
def _shift(g, ins):
    t = kind_of(ins)
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


@emitter("shf")
def _shf(g, ins):
    low, high, amount = (g.use(x, "u4") for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"funnel({low}, {high}, {amount}, {ins.parts[1] == 'l'}, {ins.parts[2] == 'wrap'})")


@emitter("bfe", "bfi")
def _field(g, ins):
    t, extract = kind_of(ins), ins.parts[0] == "bfe"
    values = [g.use(x, t) for x in ins.args[1:-2]] + [g.use(x, "u4") for x in ins.args[-2:]]
    g.define(ins.args[0], t, f"{'field_extract' if extract else 'field_insert'}({', '.join(values)})")


@emitter("popc", "clz")
def _count(g, ins):
    function = "count_bits" if ins.parts[0] == "popc" else "leading_zeros"
    g.define(ins.args[0], "u4", f"{function}({g.use(ins.args[1], kind_of(ins))})")


@emitter("bfind")
def _bfind(g, ins):
    g.define(ins.args[0], "u4", f"highest_bit({g.use(ins.args[1], kind_of(ins))}, {'shiftamt' in ins.parts})")


@emitter("brev")
def _brev(g, ins):
    t = kind_of(ins)
    g.define(ins.args[0], t, f"reverse_bits({g.use(ins.args[1], t)})")


@emitter("prmt")
def _prmt(g, ins):
    a, b, c = (g.use(x, "u4") for x in ins.args[1:])
    if len(ins.parts) > 2:
        c = f"byte_selector({ins.parts[2]!r}, {c})"
    g.define(ins.args[0], "u4", f"permute_bytes({a}, {b}, {c})")


@emitter("dp2a")
def _dp2a(g, ins):
    a, b, c = (g.use(x, "u4") for x in ins.args[1:])
    high = ins.parts[1] == "hi"
    g.define(ins.args[0], "u4", f"dot2({a}, {b}, {c}, {ins.parts[2] == 's32'}, {ins.parts[3] == 's32'}, {high})")


@emitter("dp4a")
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
    t = kind_of(ins)
    if ins.parts[-1] in ("f16x2", "bf16", "bf16x2"):
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


@emitter("setp")
def _setp(g, ins):
    first, _, second = ins.args[0].partition("|")
    value, complement = _combined(g, ins)
    if second:
        value = g.temporary(value)
        complement = g.temporary(complement or f"~{value}")
    g.define(first, "?", value)
    if second:
        g.define(second, "?", complement)


@emitter("set")
def _set(g, ins):
    if {"bf16", "bf16x2", "f16x2"} & set(ins.parts):
        raise Unsupported
    t = TYPES[ins.parts[-2]]
    value, _ = _combined(g, ins)
    yes, no = (g.const(1.0, t), g.const(0.0, t)) if t[0] == "f" else (g.const(-1, t), g.const(0, t))
    g.define(ins.args[0], t, f"select({value}, {yes}, {no})")


@emitter("selp")
def _selp(g, ins):
    t = kind_of(ins)
    p = ins.args[3]
    p = f"(~{g.use(p[1:], '?')})" if p[0] == "!" else g.use(p, "?")
    g.define(ins.args[0], t, f"select({p}, {g.use(ins.args[1], t)}, {g.use(ins.args[2], t)})")


@emitter("slct")
def _slct(g, ins):
    t, c = TYPES[ins.parts[-2]], TYPES[ins.parts[-1]]
    a, b = g.use(ins.args[1], t), g.use(ins.args[2], t)
    g.define(ins.args[0], t, f"select({g.use(ins.args[3], c)} >= 0, {a}, {b})")


# conversions and addresses ------------------------------------------------------------------------------------------
@emitter("cvt")
def _cvt(g, ins):
    if ins.parts[1] == "pack":
        return emit_pack(g, ins)
    names = [p for p in ins.parts if p in TYPES]
    if len(names) != 2 or len(ins.args) != 2 or names[0][-2:] == "x2":
        return _pack_halves(g, ins)
    (to, source), mods = (TYPES[n] for n in names), set(ins.parts)
    if "bf16" in names:
        return _cvt_bf16(g, ins, names, mods)
    if "relu" in mods and (to[0] != "f" or source != "f4"):
        raise Unsupported
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
    if "relu" in mods:
        value = f"rectify({value})"
    if to == "f4" and "ftz" in mods:
        value = f"flush({value})"
    g.define(ins.args[0], to, value)


def _cvt_bf16(g, ins, names, mods):
    if set(names) != {"bf16", "f32"} or {"sat", "ftz", "rm", "rp"} & mods:
        raise Unsupported
    if names[0] == "bf16":
        return g.define(ins.args[0], "u2", _to_half(g, ins, ins.args[1], "bf16"))
    g.define(ins.args[0], "f4", f"bf16_to_float({g.use(ins.args[1], 'u2')})")


def _to_half(g, ins, operand, kind):
    """A float32 as the bits of a 16-bit float, rounded to nearest or towards zero, with .relu applied."""
    value = g.use(operand, "f4")
    if "relu" in ins.parts:
        value = f"rectify({value})"
    if kind[0] == "b":
        return f"float_to_bf16({value}, {'rz' in ins.parts})"
    return f"narrow({value}, 'rz', f2).view(u2)" if "rz" in ins.parts else f"{value}.astype(f2).view(u2)"


def _pack_halves(g, ins):
    """``cvt.rn.f16x2.f32 d, high, low`` and its forms for bfloat16 and 8-bit floats; ``cvt.rna.tf32.f32``."""
    if fp8.emit(g, ins):
        return None
    if ins.parts[-2:] == ["tf32", "f32"] and ins.parts[1] in ("rn", "rz", "rna") and len(ins.parts) == 4:
        return g.define(ins.args[0], "u4", f"to_tf32({g.use(ins.args[1], 'f4')}, {ins.parts[1]!r})")
    if ins.parts[-2:] not in (["f16x2", "f32"], ["bf16x2", "f32"]) or set(ins.parts[1:-2]) - {"rn", "rz", "relu"}:
        raise Unsupported
    high, low = (_to_half(g, ins, x, ins.parts[-2]) for x in ins.args[1:])
    g.define(ins.args[0], "u4", f"({high}.astype(u4) << {g.const(16, 'u4')}) | {low}.astype(u4)")


@emitter("cvta")
def _cvta(g, ins):
    t = kind_of(ins)
    to = ins.parts[1] == "to"
    space = ins.parts[2 if to else 1].split("::")[0]
    value = g.use(ins.args[1], t)
    if space in ("shared", "local"):
        value = f"{value} {'-' if to else '+'} {g.const(g.window(space), t)}"
    g.define(ins.args[0], t, value)


@emitter("isspacep")
def _isspacep(g, ins):
    a = g.temporary(g.use(ins.args[1], "u8"))
    space = ins.parts[1].split("::")[0]
    g.define(ins.args[0], "?", f"is_space({a}, {space!r})")


@emitter(*NOTHING)
def _nothing(g, ins):
    """Order and hints."""
