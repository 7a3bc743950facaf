"""Which variants of each opcode the simulator computes. What is not listed here is an error when it is reached, so that
a modifier nobody thought of never passes in silence."""

from __future__ import annotations

from typing import Any

from texlab.sim.ptx import TYPES

_SPACES = "global shared shared::cta local const param"
_ORDER = "volatile relaxed acquire release acq_rel weak cta gpu sys cluster"
_COMPARE = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz"

_VARIANTS = {
    "mov": "",
    "add sub": "rn rz rm rp sat ftz cc",
    "addc subc": "cc",
    "mul": "rn rz rm rp lo hi wide sat ftz",
    "mad": "rn rz rm rp lo hi wide sat ftz cc",
    "madc": "lo hi cc",
    "mul24 mad24": "lo hi",
    "fma": "rn rz rm rp ftz sat relu",
    "div": "rn rz rm rp approx full ftz",
    "rem sad and or xor not cnot shl shr bfe bfi popc clz brev dp4a copysign selp slct activemask": "",
    "lop3": "and or",
    "prmt": "f4e b4e rc8 ecl ecr rc16",
    "dp2a": "lo hi",
    "vabsdiff4": "add",
    "min max": "ftz NaN xorsign abs relu",
    "abs neg": "ftz",
    "sqrt rcp": "approx rn rz rm rp ftz",
    "rsqrt ex2 lg2 sin cos tanh": "approx ftz",
    "testp": "finite infinite number notanumber normal subnormal",
    "shf": "l r wrap clamp",
    "szext bmsk": "wrap clamp",
    "bfind": "shiftamt",
    "setp set": _COMPARE,
    "cvt": "rn rz rm rp rni rzi rmi rpi rna tf32 sat satfinite ftz relu pack",
    "cvta": f"to {_SPACES}",
    "isspacep": _SPACES,
    "ld ldu": f"{_SPACES} {_ORDER} v2 v4 nc ca cg cs lu cv",
    "st": f"{_SPACES} {_ORDER} v2 v4 wb cg cs wt",
    "atom red": f"global shared shared::cta {_ORDER} add min max exch cas and or xor inc dec noftz v2 v4",
    "cp": "async ca cg shared shared::cta shared::cluster global commit_group wait_group wait_all bulk bulk_group read "
    "tensor 1d 2d 3d 4d 5d tile prefetch L2 "
    "mbarrier mbarrier::complete_tx::bytes reduce add min max inc dec and or xor noftz arrive noinc",
    "mbarrier": "init inval arrive arrive_drop expect_tx complete_tx noComplete test_wait try_wait parity pending_count "
    "shared shared::cta shared::cluster acquire release cta cluster",
    "shfl": "sync up down bfly idx",
    "vote": "sync all any uni ballot",
    "match": "sync any all",
    "redux": "sync add min max and or xor",
    "elect": "sync",
    "trap": "",
    "tex": "level 1d 2d a1d a2d v4",
    "tld4": "r g b a 2d a2d v4",
    "suld sust": "b 1d 2d a1d a2d v2 v4 trap clamp zero",
    "bar barrier": "sync cta aligned arrive red warp popc and or",
    "voted": "popc and or",
    "ldmatrix stmatrix": "sync aligned m8n8 x1 x2 x4 trans shared shared::cta",
    "wgmma": "mma_async fence commit_group wait_group sync aligned tf32 "
    + " ".join(f"m64n{n}k{k}" for n in range(8, 257, 8) for k in (8, 16, 32)),
    "movmatrix": "sync aligned m8n8 trans",
    "mma": "sync aligned row col m8n8k4 m16n8k4 m16n8k8 m16n8k16 m16n8k32 tf32 satfinite",
}
_KNOWN = {name: frozenset(words.split()) for names, words in _VARIANTS.items() for name in names.split()}
#: Order and hints: nothing to compute, as the simulator's memory is always in order.
NOTHING = frozenset(
    "membar fence prefetch prefetchu nanosleep discard applypriority pmevent griddepcontrol setmaxnreg".split()
)
#: Only with the architecture's own features, which a Program asks for with ``arch``.
OWN_FEATURES = frozenset(["wgmma", "setmaxnreg"])


def known(ins: Any) -> bool:
    """Whether all modifiers of an instruction are among those its emitter looks at."""
    if ins.parts[0] in NOTHING:
        return True
    words = _KNOWN.get(ins.parts[0])
    if words is None:
        return False
    hints = ("L1::", "L2::") if ins.parts[0] in ("ld", "st", "cp", "atom", "red") else "?"
    return all(p in words or p in TYPES or p.startswith(hints) for p in ins.parts[1:])
