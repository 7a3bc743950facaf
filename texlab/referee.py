"""The referee of every measurement: fresh random inputs, what must come out, and whether it did.

A :class:`Trial` holds one set of inputs of a shape, on the CPU (NumPy) or the GPU (CuPy), and judges outputs computed
from them. Convolutions are judged in float64: by ``texlab.reference`` on the CPU; on the GPU by PyTorch's float64
convolution, itself spot-checked against a sum written here, or, where that does not fit (or PyTorch is missing), at
random outputs that always include the first and last of each axis. Layouts and copies must be equal bit by bit.

The inputs of a Trial are numbers of one precision, so the same oracle judges every kernel that can hold them: what is
judged is what a kernel computes from its inputs, not what rounding did to them before.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from texlab import precision as formats
from texlab.layouts import LAYOUTS, Layout
from texlab.program import Program
from texlab.reference import conv2d_reference, tolerance
from texlab.shapes import ConvShape

#: output buffer of a layout program -> the layout it must hold
LAYOUT_OUTPUTS = {"xw": "im2win", "col": "im2col", "x4": "nchw4c"}
#: largest relative error (L2 norm) of a whole output: float32 stays below 1e-5, tf32 and float16 start at 2e-4
REL_ERR_LIMIT = 5e-5
#: dtype of x -> the precision it holds; float32 may hold tf32
HELD = {"float16": "float16", "uint16": "bfloat16", "int8": "int8", "uint8": "e4m3"}
SAMPLES = 4096  # outputs of a convolution judged when not all are
SAMPLED_TERMS = 2**23  # products summed for them in all
CHUNK = 2**25  # elements compared at a time
FULL_LAYOUT = 2**30  # elements of a layout up to which all are compared

Check = dict[str, Any]  # verified: bool, rel_err: float | None, verified_by: str, error: str | None


def kind_of(program: Program, shape: ConvShape) -> str:
    """What a Program must compute, told by its buffers: "conv", "copy" or the name of a layout.

    Raises ValueError for a Program whose right answer is not known: it could not be verified.
    """
    ins = {b.name: b.shape for b in program.inputs}
    outs = {b.name: b.shape for b in program.outputs}
    order = (0, 2, 3, 1) if layout_of(program) == "NHWC" else (0, 1, 2, 3)
    x_shape, y_shape = (tuple(dims[i] for i in order) for dims in (shape.x_shape, shape.y_shape))
    conv = {"x": x_shape, "w": shape.w_shape}
    if ins in (conv, {**conv, "bias": (shape.k,)}) and outs == {"y": y_shape}:
        return "conv"
    if ins == {"x": shape.x_shape} and len(outs) == 1:
        ((name, dims),) = outs.items()
        if name == "y" and dims == shape.x_shape:
            return "copy"
        if name in LAYOUT_OUTPUTS and prod(dims) == LAYOUTS[LAYOUT_OUTPUTS[name]].elements(shape):
            return LAYOUT_OUTPUTS[name]
    raise ValueError(
        f"program {program.name!r} takes {ins} and gives {outs}: no right answer is known for that, so its time would "
        f"be unverified; a convolution {shape} takes x {shape.x_shape}, w {shape.w_shape} and gives y {shape.y_shape}"
    )


def layout_of(program: Program) -> str:
    """ "NHWC" for a program whose x and y have channels innermost (its define NHWC says so), else "NCHW"."""
    return "NHWC" if program.defines.get("NHWC") else "NCHW"


def precision_of(program: Program) -> str:
    """The precision a convolution's inputs are held in: a name of ``texlab.precision``, or "float32"."""
    plain = "tf32" if program.defines.get("PRECISION") == formats.PRECISIONS["tf32"].code else "float32"
    return HELD.get(program.inputs[0].dtype, plain)


class Rules(NamedTuple):
    """How a convolution's output is judged: ``sums``, the error allowed per sum of |x|*|w|; ``unit``, the relative error
    of rounding the output; ``limit`` of the relative error (L2 norm); ``held``: the output's precision, if it is bits."""

    sums: float
    unit: float = 0.0
    limit: float = REL_ERR_LIMIT
    held: str | None = None


def rules(program: Program, shape: ConvShape) -> Rules:
    """The rules for a program's output: float32 sums as close as float32 allows, plus one rounding of the output."""
    name, out = precision_of(program), program.outputs[0].dtype
    sums = tolerance(shape) if name == "float32" else formats.accumulation_bound(shape, name)
    if out not in HELD:
        return Rules(sums, 2.0**-24 if name == "int8" and out == "float32" else 0.0)  # an int32 sum may round once
    unit = formats.precision(HELD[out]).unit
    return Rules(sums, unit, REL_ERR_LIMIT + unit, HELD[out])


def peer_rules(precision: str, shape: ConvShape) -> Rules:
    """The rules for a peer. In 16 bits and TF32 it may choose an algorithm that rounds on the way (Winograd): one
    rounding of every product is granted, and four in the norm."""
    if precision == "float32":
        return Rules(tolerance(shape))
    unit = formats.precision(precision).unit
    return Rules(unit, unit, 4 * unit)


class Trial:
    """One set of fresh random inputs (uniform in [-1, 1), float32) of a shape and the answers they must give.

    ``xp``: the array module (numpy or cupy). ``seed``: None draws fresh inputs. ``precision``: what x and w are rounded to;
    for int8 they are whole numbers from -127 to 127.
    """

    def __init__(self, shape: ConvShape, xp: Any = np, seed: int | None = None, precision: str = "float32") -> None:
        self.shape, self.xp, self.precision = shape, xp, precision
        self._random = np.random.default_rng(seed)
        fill = _uniform_numpy if xp is np else _uniform_cupy
        sizes = {"x": shape.x_shape, "w": shape.w_shape, "bias": (shape.k,)}
        self.arrays = {name: fill(self._random, dims) for name, dims in sizes.items()}
        if precision != "float32":
            times = np.float32(127 if precision == "int8" else 1)
            for name in ("x", "w"):
                self.arrays[name] = formats.rounded(self.arrays[name] * times, precision)

    def inputs(self, program: Program) -> dict[str, Any]:
        """The arrays a Program takes, in its precision and layout. ValueError if that does not hold these numbers."""
        held = precision_of(program)
        if held not in ("float32", self.precision):
            raise ValueError(
                f"{program.name} takes {held}, but these inputs are {self.precision}: say precision={held!r}"
            )
        out = {b.name: self.arrays[b.name] for b in program.inputs}
        if layout_of(program) == "NHWC":
            out["x"] = self.xp.ascontiguousarray(out["x"].transpose(0, 2, 3, 1))
        if held not in ("float32", "tf32"):
            out |= {name: formats.encode(out[name], held) for name in ("x", "w")}
        return out

    def check(self, kind: str, got: Any, bias: bool = False, how: Rules | None = None, layout: str = "NCHW") -> Check:
        """Judge an output: ``verified``, ``rel_err`` (L2 norm; None for layouts), ``verified_by``, ``error``."""
        if kind == "conv":
            got = got.transpose(0, 3, 1, 2) if layout == "NHWC" and got.ndim == 4 else got
            return self._check_conv(got, bias, how or Rules(tolerance(self.shape)))
        wanted = self.shape.x_shape if kind == "copy" else LAYOUTS[kind].dims(self.shape)
        if prod(got.shape) != prod(wanted):
            return _rejected(f"output shape {tuple(got.shape)}, expected {wanted}", "shape")
        return self._check_equal(got.reshape(-1), LAYOUTS["nchw" if kind == "copy" else kind])

    # convolutions ----------------------------------------------------------------------------------------------
    def _check_conv(self, got: Any, bias: bool, how: Rules) -> Check:
        if tuple(got.shape) != self.shape.y_shape:
            return _rejected(f"output shape {tuple(got.shape)}, expected {self.shape.y_shape}", "shape")
        if got.size == 0:
            return {"verified": True, "rel_err": 0.0, "verified_by": "no outputs", "error": None}
        want, magnitude, by = self._answer
        if by == "all":
            add = self.arrays["bias"][:, None, None] if bias else 0.0
            return _compare(self.xp, got, want, magnitude, add, how, "float64 oracle, all outputs")
        points = self._points
        add = self.arrays["bias"][points[1]] if bias else 0.0
        some = "all outputs" if want.size == got.size else f"{want.size} random outputs with all edges"
        text = f"float64 oracle, {some}"
        return _compare(self.xp, got[points], want, magnitude, add, how, text, points)

    @cached_property
    def _answer(self) -> tuple[Any, Any, str]:
        """(expected y, sum of |x|*|w|, "all") or the same at ``_points`` with "sampled"."""
        x, w = self.arrays["x"], self.arrays["w"]
        if self.xp is np:
            how = {f: getattr(self.shape, f) for f in ("stride", "padding", "dilation", "groups")}
            return conv2d_reference(x, w, **how), conv2d_reference(abs(x), abs(w), **how), "all"
        sampled = conv_at(self.xp, x, w, self.shape, self._points)
        whole = whole_answer(x, w, self.shape)
        if whole is None:
            return *sampled, "sampled"
        want, magnitude = whole
        spot = abs(want[self._points] - sampled[0])
        if not bool((spot <= 1e-12 * (1 + sampled[1])).all()):
            raise RuntimeError(
                f"PyTorch's float64 convolution of {self.shape} differs from a plain float64 sum by "
                f"{float(spot.max()):.3g}: it cannot be the oracle on this machine"
            )
        return want, magnitude, "all"

    @cached_property
    def _points(self) -> tuple[Any, ...]:
        """(n, k, p, q) arrays: every output if they are few, else random ones as ``sample_points`` draws them."""
        dims, terms = self.shape.y_shape, prod(self.shape.w_shape[1:])
        count = min(SAMPLES, max(SAMPLED_TERMS // terms, 256))
        if prod(dims) <= count:
            return tuple(self.xp.asarray(axis.ravel()) for axis in np.indices(dims))
        return sample_points(self._random, dims, count, self.xp)

    # layouts and copies ----------------------------------------------------------------------------------------
    def _check_equal(self, got: Any, layout: Layout) -> Check:
        xp, dims, total = self.xp, layout.dims(self.shape), got.size
        everything = total <= FULL_LAYOUT
        if everything:
            parts = (xp.arange(i, min(i + CHUNK, total)) for i in range(0, total, CHUNK))
            by = "index map, all elements"
        else:
            points = sample_points(self._random, dims, CHUNK, xp)
            parts = iter([xp.ravel_multi_index(points, dims)])
            by = f"index map, {CHUNK} random elements with all edges"
        x = self.arrays["x"].reshape(-1)
        for flat in parts:
            bad = ~(got[flat] == _packed(xp, x, layout, self.shape, flat))
            if bool(bad.any()):
                at = int(flat[xp.argmax(bad)])
                want = float(_packed(xp, x, layout, self.shape, flat[xp.argmax(bad)].reshape(1))[0])
                index = tuple(int(i) for i in np.unravel_index(at, dims))
                return _rejected(f"wrong at {index}: got {float(got[at]):.6g}, expected {want:.6g}", by)
        return {"verified": True, "rel_err": 0.0, "verified_by": by, "error": None}


def _packed(xp: Any, x: Any, layout: Layout, shape: ConvShape, flat: Any) -> Any:
    """What a layout holds at the flat positions ``flat``."""
    n, c, h, w = layout.element(shape, *xp.unravel_index(flat, layout.dims(shape)))
    h, w = h - shape.padding[0], w - shape.padding[2]
    inside = (c < shape.c) & (h >= 0) & (h < shape.h) & (w >= 0) & (w < shape.w)
    at = xp.where(inside, ((n * shape.c + c) * shape.h + h) * shape.w + w, 0)
    return xp.where(inside, x[at], np.float32(0))


def sample_points(random: np.random.Generator, dims: tuple[int, ...], count: int, xp: Any = np) -> tuple[Any, ...]:
    """``count`` random index tuples into ``dims``: a quarter of each coordinate is 0, a quarter the last, and the
    2^len(dims) corners come first."""
    out = []
    for axis, size in enumerate(dims):
        at = random.integers(0, max(size, 1), count)
        choice = random.integers(0, 4, count)
        at = np.where(choice == 0, 0, np.where(choice == 1, size - 1, at))
        corners = np.arange(min(2 ** len(dims), count))
        at[: len(corners)] = np.where(corners >> axis & 1, size - 1, 0)
        out.append(xp.asarray(at))
    return tuple(out)


def conv_at(xp: Any, x: Any, w: Any, shape: ConvShape, points: tuple[Any, ...]) -> tuple[Any, Any]:
    """The convolution at chosen outputs, summed tap by tap in float64, and the sum of |x|*|w| there.

    >>> shape = ConvShape(n=1, c=1, h=1, w=3, k=1, r=1, s=2)
    >>> x, w = np.array([[[[1.0, 2.0, 3.0]]]]), np.array([[[[1.0, 10.0]]]])
    >>> conv_at(np, x, w, shape, tuple(np.array([i]) for i in (0, 0, 0, 1)))[0]
    array([32.])
    """
    n, k, p, q = (a[:, None, None, None] for a in points)
    per_group = shape.c // shape.groups
    c, r, s = (xp.asarray(a) for a in np.ogrid[:per_group, : shape.r, : shape.s])
    h = p * shape.stride[0] + r * shape.dilation[0] - shape.padding[0]
    col = q * shape.stride[1] + s * shape.dilation[1] - shape.padding[2]
    inside = (h >= 0) & (h < shape.h) & (col >= 0) & (col < shape.w)
    channel = k // (shape.k // shape.groups) * per_group + c
    flat = ((n * shape.c + channel) * shape.h + xp.where(inside, h, 0)) * shape.w + xp.where(inside, col, 0)
    terms = xp.where(inside, x.reshape(-1)[flat].astype(np.float64), 0.0) * w[points[1]].astype(np.float64)
    return terms.sum((1, 2, 3)), abs(terms).sum((1, 2, 3))


def whole_answer(x: Any, w: Any, shape: ConvShape) -> tuple[Any, Any] | None:
    """All outputs in float64 and the sum of |x|*|w| (float32), as CuPy arrays; None without PyTorch or memory."""
    import cupy

    try:
        import torch
    except ImportError:
        return None
    free = cupy.cuda.runtime.memGetInfo()[0]
    if 8 * prod(shape.x_shape) + 2 * 12 * prod(shape.y_shape) > free // 4 or not prod(shape.y_shape):
        return None
    from texlab.peers import torch_conv

    one_gib = 2**27  # elements of float64 a pass may hold beside the answer
    step = max(1, one_gib // max(prod(shape.x_shape[1:]), prod(shape.y_shape[1:])))
    want, magnitude = cupy.empty(shape.y_shape, np.float64), cupy.empty(shape.y_shape, np.float32)
    tx, tw = torch.as_tensor(x, device="cuda"), torch.as_tensor(w, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        for i in range(0, shape.n, step):
            part = shape.with_(n=min(step, shape.n - i))
            images = tx[i : i + step]
            want[i : i + step] = cupy.asarray(torch_conv(images.double(), tw.double(), part))
            magnitude[i : i + step] = cupy.asarray(torch_conv(images.abs(), tw.abs(), part))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return want, magnitude


def _compare(
    xp: Any, got: Any, want: Any, magnitude: Any, add: Any, how: Rules, by: str, points: tuple[Any, ...] | None = None
) -> Check:
    """Elementwise ``|got - (want + add)| <= sums*(magnitude + |add|) + unit*|want + add|`` and the L2 norm; CHUNK elements
    at a time."""
    step = max(1, CHUNK // max(prod(got.shape[1:]), 1))
    count, first, error2, norm2 = 0, None, 0.0, 0.0
    for i in range(0, got.shape[0], step):
        part = slice(i, i + step)
        extra = add[part] if points is not None and not np.isscalar(add) else add
        target = want[part] + extra
        numbers = formats.decode(got[part], how.held) if how.held else got[part]
        error = abs(numbers.astype(np.float64) - target)
        allowed = how.sums * (magnitude[part] + abs(extra)) + how.unit * abs(target) + np.finfo(np.float32).tiny
        bad = ~(error <= allowed)
        error2, norm2 = error2 + float((error * error).sum()), norm2 + float((target * target).sum())
        found = int(bad.sum())
        if found and first is None:
            at = tuple(int(v) for v in np.unravel_index(int(xp.argmax(bad)), bad.shape))
            where = (at[0] + i, *at[1:])
            index = where if points is None else tuple(int(axis[where[0]]) for axis in points)
            first = f"first at {index}: got {float(numbers[at]):.6g}, expected {float(target[at]):.6g}"
        count += found
    rel_err = (error2 / norm2) ** 0.5 if norm2 else error2**0.5
    if first is not None:
        return _rejected(f"{count} of {got.size} outputs are wrong; {first}", by, rel_err)
    if not rel_err <= how.limit:
        accuracy = "float32" if how.limit == REL_ERR_LIMIT else how.held or "its precision's"
        return _rejected(f"relative error {rel_err:.2g} is above {how.limit:g}: not {accuracy} accuracy", by, rel_err)
    return {"verified": True, "rel_err": rel_err, "verified_by": by, "error": None}


def _rejected(error: str, by: str, rel_err: float | None = None) -> Check:
    finite = rel_err is not None and np.isfinite(rel_err)
    return {"verified": False, "rel_err": rel_err if finite else None, "verified_by": by, "error": error}


def _uniform_numpy(random: np.random.Generator, dims: tuple[int, ...]) -> np.ndarray:
    return random.random(dims, dtype=np.float32) * 2 - 1


def _uniform_cupy(random: np.random.Generator, dims: tuple[int, ...]) -> Any:
    """Uniform float32 on the GPU from a hash of the element's number (splitmix64): needs no cuRAND."""
    import cupy

    kernel = cupy.ElementwiseKernel(
        "uint64 seed",
        "float32 out",
        """
        unsigned long long z = seed + (unsigned long long)i * 0x9E3779B97F4A7C15ULL;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        out = (float)((z ^ (z >> 31)) >> 40) * 1.1920928955078125e-7f - 1.0f;
        """,
        "texlab_uniform",
    )
    return kernel(np.uint64(random.integers(2**63)), cupy.empty(dims, np.float32))
