"""The fragment explorer: which lane holds which elements of the matrices that one ``mma`` multiplies.

Nothing here knows the answer: the tensor-core kernel's own ``ldmatrix`` and ``mma`` run on matrices whose elements say
where they are, and what arrives in each lane's registers is read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np

from texlab import gpu
from texlab import precision as formats
from texlab.catalog import kernels, source_of
from texlab.explore._base import Explorer
from texlab.player import GREEN, MUTED, ORANGE, SKY, YELLOW, Player
from texlab.precision import PRECISIONS
from texlab.program import Buffer, Launch, Program, device_function

#: One warp: A (16 rows) and B (8 columns) of 32 bytes each into shared memory, then the kernel's own two instructions.
SOURCE = """
#line 1 "fragments.cu"
extern "C" __global__ void fragments(const uint4* a, const uint4* b, unsigned* in_a, unsigned* in_b, Sum* in_c) {
  __shared__ uint4 tile[48];  // 16 rows of A, then 8 columns of B; 32 bytes each
  const int lane = threadIdx.x;
  tile[lane] = a[lane];
  if (lane < 16) tile[32 + lane] = b[lane];
  __syncthreads();
  const unsigned at = (unsigned)__cvta_generic_to_shared(tile);
  unsigned fa[4], fb[4];
  load_fragment(fa, at + lane % 16 * 32 + lane / 16 * 16);
  load_fragment(fb, at + 512 + lane % 8 * 32 + lane / 8 % 2 * 16);
  Sum sum[4] = {};
  multiply(sum, fa, fb[0], fb[1]);
  for (int i = 0; i < 4; ++i) in_a[lane * 4 + i] = fa[i], in_c[lane * 4 + i] = sum[i];
  for (int i = 0; i < 2; ++i) in_b[lane * 2 + i] = fb[i];
}
"""
COLOURS = (ORANGE, SKY, GREEN, YELLOW)  # of registers 0 to 3
SHAPES = {"float16": "m16n8k16", "bfloat16": "m16n8k16", "tf32": "m16n8k8", "int8": "m16n8k32", "e4m3": "m16n8k32"}


@dataclass(frozen=True)
class Matrix:
    """Who holds a matrix: ``lane`` and ``register`` (rows, cols) of each element, ``part`` its place in the register."""

    lane: np.ndarray
    register: np.ndarray
    part: np.ndarray


@dataclass(frozen=True)
class Fragments:
    """A (16,k), B (k,8) and C (16,8) of one ``mma``, and whether the product of random matrices came out right."""

    precision: str
    a: Matrix
    b: Matrix
    c: Matrix
    right: bool

    @property
    def k(self) -> int:
        return self.a.lane.shape[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fragments):
            return NotImplemented
        pairs = zip((self.a, self.b, self.c), (other.a, other.b, other.c), strict=True)
        return all((getattr(p, f) == getattr(q, f)).all() for p, q in pairs for f in ("lane", "register", "part"))


def program(precision: str) -> Program:
    """The Program that :func:`find` runs: the kernel's file and one entry more."""
    p = formats.precision(precision)
    return Program(
        name="fragments",
        source=source_of(kernels["im2win_tensor_core"].files) + SOURCE,
        filename="fragments.cu",
        defines={"PRECISION": p.code},
        needs=p.needs,
        buffers=(
            Buffer("a", (16, p.k), p.dtype),
            Buffer("b", (8, p.k), p.dtype),
            Buffer("in_a", (32, 4), "uint32", role="output"),
            Buffer("in_b", (32, 2), "uint32", role="output"),
            Buffer("in_c", (32, 4), p.sums, role="output"),
        ),
        launches=(Launch("fragments", (1, 1, 1), (32, 1, 1), ("a", "b", "in_a", "in_b", "in_c")),),
    )


@lru_cache(maxsize=16)
def find(precision: str = "float16", device: str = "sim") -> Fragments:
    """Run ``ldmatrix`` and ``mma`` on tagged matrices and read off who holds what.

    >>> who = find("float16")
    >>> int(who.a.lane[0, 0]), int(who.a.lane[1, 0]), int(who.a.lane[0, 2]), who.right
    (0, 4, 1, True)
    """
    p, one = formats.precision(precision), program(precision)
    bits = np.dtype(f"u{np.dtype(p.dtype).itemsize}")

    def run(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
        outputs = device_function(device)(one, {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}).outputs
        return {name: v if isinstance(v, np.ndarray) else v.get() for name, v in outputs.items()}

    # ldmatrix moves bits and asks not what they mean: they may as well be row numbers, then column numbers.
    (a_row, a_col), (b_col, b_row) = (np.indices(dims).astype(bits) for dims in ((16, p.k), (8, p.k)))
    rows = run(a_row.view(p.dtype), b_col.view(p.dtype))
    cols = run(a_col.view(p.dtype), b_row.view(p.dtype))
    a = _held(rows["in_a"].view(bits), cols["in_a"].view(bits), (16, p.k), 4)
    b = _held(cols["in_b"].view(bits), rows["in_b"].view(bits), (p.k, 8), 2)
    # mma multiplies: where only column 0 of A and row 0 of B are not zero, C = (row of A's) * (column of B's).
    first = np.arange(p.k) == 0
    tall = run(_encode(first * np.arange(1, 17)[:, None], p), _encode(first * np.ones((8, 1)), p))
    wide = run(_encode(first * np.ones((16, 1)), p), _encode(first * np.arange(1, 9)[:, None], p))
    c = _held(tall["in_c"].astype(int) - 1, wide["in_c"].astype(int) - 1, (16, 8), 4)
    rng = np.random.default_rng(0)
    left, right = rng.integers(-4, 5, (16, p.k)), rng.integers(-4, 5, (p.k, 8))
    product = run(_encode(left, p), _encode(right.T, p))["in_c"]
    return Fragments(precision, a, b, c, bool((product[c.lane, c.register] == left @ right).all()))


def _encode(values: np.ndarray, p: formats.Precision) -> np.ndarray:
    return formats.encode(values.astype(np.float32), p.name)


def _held(rows: np.ndarray, cols: np.ndarray, dims: tuple[int, int], registers: int) -> Matrix:
    """From what each lane found in its slots (32, slots): row and column of an element."""
    lanes, slots = np.indices(rows.shape)
    each = rows.shape[1] // registers
    out = []
    for values in (lanes, slots // each, slots % each):
        table = np.full(dims, -1)
        table[rows.astype(int), cols.astype(int)] = values
        out.append(table)
    return Matrix(*out)


# the explorer -------------------------------------------------------------------------------------------------------
def fragments(precision: str = "float16") -> FragmentExplorer:
    """See which elements of A, B and C each lane holds; step through the lanes, or click one.

    >>> explorer = fragments("float16")
    >>> explorer.player.step = 5
    """
    formats.precision(precision)
    return FragmentExplorer(precision)


class FragmentExplorer(Explorer):
    """What :func:`fragments` returns. ``result`` is the :class:`Fragments` that is shown."""

    def __init__(self, precision: str) -> None:
        options = [(f"{name}: {SHAPES[name]}", name) for name in PRECISIONS]
        choice = widgets.Dropdown(
            options=options,
            value=precision,
            description="mma in",
            layout={"width": "240px"},
            style={"description_width": "60px"},
        )
        super().__init__({"precision": choice}, Player())
        self.verdict = widgets.HTML()
        bar = widgets.HBox([choice, self.status], layout={"flex_flow": "row wrap", "grid_gap": "2px 20px"})
        self.children = [bar, self.error, self.player.controls(), self.player, self.verdict]
        self.request()
        self.wait()

    def compute(self, precision: str) -> Fragments:
        return find(precision)

    def show(self, found: Fragments) -> None:
        step = self.player.step
        self.player.load(**frames(found))
        self.player.step = step
        product = "equals" if found.right else "<b>does not equal</b>"
        self.verdict.value = (
            "<div style='max-width:75em;line-height:1.5'>Read off the kernel's own <code>ldmatrix</code> and "
            f"<code>mma.sync.{SHAPES[found.precision]}</code> in the simulator. Put together from these places, the product of "
            f"two random matrices {product} A&middot;B. {_on_gpu(found.precision)}</div>"
        )


def _on_gpu(precision: str) -> str:
    """What a GPU says to the same, if there is one; HTML."""
    if gpu.why_no_gpu() is not None:
        return "Where there is an NVIDIA GPU, the same program also runs on it, and is compared here."
    try:
        same = find(precision, "gpu") == find(precision)
    except Exception as error:
        return f"On this GPU it does not run: {escape(str(error))}"
    return (
        "On this GPU <b>all elements lie in the same lanes</b>." if same else "On this GPU <b>they lie elsewhere</b>!"
    )


def frames(found: Fragments) -> dict[str, Any]:
    """What the player draws (``Player.load(**frames(found))``): a step a lane, its registers in colour. Pure.

    The number in a cell is the lane that holds the element, in every step.
    """
    k, letters = found.k, "abc"
    matrices = (found.a, found.b, found.c)
    lanes = np.where(np.eye(32, dtype=bool), MUTED, 0)
    colours, tags, panels = [lanes], [np.broadcast_to(np.arange(32), (32, 32))], [_lane_panel(found)]
    titles = (
        f"A: 16 windows × {k} elements",
        f"B: {k} elements × 8 filters",
        "C: 16 windows × 8 filters, the sums",
    )
    rows, cols = ("window", "element", "window"), ("element", "filter", "filter")
    for letter, title, m, down, right in zip(letters, titles, matrices, rows, cols, strict=True):
        mine = m.lane[None] == np.arange(32)[:, None, None]
        colours.append(np.where(mine, np.array(COLOURS)[m.register], 0).reshape(32, -1))
        tags.append(np.broadcast_to(m.lane.reshape(1, -1), (32, m.lane.size)))
        each = int(m.part.max()) + 1
        tips = [
            f"{letter.upper()}[{i}, {j}]: lane {m.lane[i, j]}, register {letter}{m.register[i, j]}"
            + (f", part {m.part[i, j]} of {each}" if each > 1 else "")
            for i in range(m.lane.shape[0])
            for j in range(m.lane.shape[1])
        ]
        height, width = m.lane.shape
        panels.append(
            {
                "name": letter.upper(),
                "title": title,
                "rows": height,
                "cols": width,
                "y": down,
                "x": right,
                "row_labels": [str(i) for i in range(height)],
                "col_labels": [str(j) for j in range(width)],
                "row_breaks": list(range(8, height, 8)),
                "col_breaks": list(range(8, width, 8)),
                "cell": 20 if k <= 16 else 15,  # side by side on a laptop's screen
                "tips": tips,
                "tag_name": "lane",
            }
        )
    links = np.concatenate([np.arange(32), *(m.lane.reshape(-1) for m in matrices)])
    return dict(
        panels=panels,
        frames=np.concatenate(colours, axis=1).astype(np.uint8),
        tags=np.concatenate(tags, axis=1).astype(np.int16),
        captions=[_caption(found, lane) for lane in range(32)],
        legend={colour: f"register {i}" for i, colour in enumerate(COLOURS)},
        points=np.arange(32),
        links=links,
        page=4,
        label=f"which lane holds which elements of mma {SHAPES[found.precision]}",
    )


def _lane_panel(found: Fragments) -> dict[str, Any]:
    return {
        "name": "lane",
        "title": "Lanes",
        "rows": 8,
        "cols": 4,
        "cell": 20,
        "tips": [f"lane {i}" for i in range(32)],
        "outline": [MUTED],
    }


def _caption(found: Fragments, lane: int) -> str:
    counts = [int((m.lane == lane).sum()) for m in (found.a, found.b, found.c)]
    registers = [len(np.unique(m.register[m.lane == lane])) for m in (found.a, found.b, found.c)]
    text = ", ".join(
        f"{count} of {letter} in {n} register{'s' * (n > 1)}"
        for letter, count, n in zip("ABC", counts, registers, strict=True)
    )
    return f"lane {lane} holds {text}"
