"""From a pack kernel's run to pictures: where each output pixel's window lies in every layout. Pure functions.

The input's elements are numbered, the real kernel is run in the simulator, and its trace and its output say which
element it wrote where. The colours follow from that; ``texlab.layouts`` says only where a convolution looks for a tap,
and a place that holds anything else than the tap is drawn as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from texlab.layouts import LAYOUTS, NCHW, runs
from texlab.player import EMPTY, GREEN, ORANGE, OUTSIDE, PURPLE, SKY, VERMILLION, YELLOW
from texlab.program import Program, Run
from texlab.shapes import ConvShape

ZERO, UNWRITTEN = -1, -2  # instead of an input element: a stored zero; an element that no thread wrote
BUDGET = 2_000_000  # cells times steps that are sent to the browser
TAPS = (ORANGE, SKY, YELLOW, VERMILLION)  # colours of the window's elements


@dataclass(frozen=True)
class Packed:
    """What a pack kernel did to an image whose elements were numbered.

    ``source`` (elements,): flat index of the input element that each element of the layout was copied from, ``ZERO`` or
    ``UNWRITTEN``; ``writer`` (elements, 3): block, warp and lane that stored it; ``layout``: the name of the known layout
    with these dimensions, or None.
    """

    program: Program
    layout: str | None
    dims: tuple[int, ...]
    source: np.ndarray
    writer: np.ndarray
    run: Run

    @property
    def buffer(self) -> str:
        return self.program.outputs[0].name


def pack(program: Program, shape: ConvShape) -> Packed:
    """Run a pack kernel on numbered elements (1, 2, 3, ...) and read from trace and output what went where.

    Raises ValueError if the program is no copy of ``shape``'s image: other inputs or outputs, or values that were not
    in the input.
    """
    inputs, outputs = program.inputs, program.outputs
    if len(inputs) != 1 or len(outputs) != 1 or prod(inputs[0].shape) != prod(shape.x_shape):
        raise ValueError(
            f"program {program.name!r} takes {[(b.name, b.shape) for b in inputs]} and gives "
            f"{[(b.name, b.shape) for b in outputs]}: a layout program takes one image {shape.x_shape} and gives one array"
        )
    image, packed = inputs[0], outputs[0]
    count = prod(image.shape)
    numbers = np.arange(1, count + 1).astype(image.dtype)
    if not np.array_equal(numbers.astype(np.int64), np.arange(1, count + 1)):
        raise ValueError(f"{count} elements cannot be numbered in {image.dtype}: choose a smaller image")
    run = program.run(device="sim", trace=True, **{image.name: numbers.reshape(image.shape)})
    trace = run.trace
    is_store = np.array([i.kind == "store" for i in trace.instructions], dtype=bool)
    row, lane, element = trace.elements(packed.name)
    stored = is_store[trace.instruction[row]]
    row, lane, element = row[stored], lane[stored], element[stored]
    value = np.asarray(run.outputs[packed.name]).ravel()[element].astype(np.float64)
    loads, _, loaded = trace.elements(image.name)
    loaded = np.append(loaded[~is_store[trace.instruction[loads]]] + 1, 0)  # numbers that were read; zero may be made
    if not np.isin(value, loaded).all():
        wrong = value[~np.isin(value, loaded)][0]
        raise ValueError(
            f"program {program.name!r} stored {wrong:g}, which it had not read from {image.name!r} (numbered 1 to {count}): "
            "a layout program only copies elements and writes zeros"
        )
    source = np.full(prod(packed.shape), UNWRITTEN, np.int64)
    source[element] = value.astype(np.int64) - 1
    writer = np.full((len(source), 3), -1, np.int64)
    writer[element] = np.stack([trace.block[row], trace.warp[row], lane], axis=1)
    return Packed(program, _recognise(packed.shape, source, shape), packed.shape, source, writer, run)


def _recognise(dims: tuple[int, ...], source: np.ndarray, shape: ConvShape) -> str | None:
    """The known layout with these dimensions; of several, the one whose equation agrees in most places."""
    agreement = {n: int((k.source(shape).ravel() == source).sum()) for n, k in LAYOUTS.items() if k.dims(shape) == dims}
    return max(agreement, key=agreement.__getitem__, default=None)


def compare(packed: Packed, name: str, shape: ConvShape) -> str:
    """What layout ``name``'s equation says about a packed image: agreement, or the first element that differs."""
    layout = LAYOUTS[name]
    if packed.dims != layout.dims(shape):
        return f"{packed.buffer} is {packed.dims}, but {name} of {shape} is {layout.dims(shape)}: {layout.equation}"
    want = layout.source(shape).ravel()
    wrong = np.flatnonzero(packed.source != want)
    if not len(wrong):
        return f"All {len(want):,} elements are where {name} wants them: {layout.equation}"
    i = int(wrong[0])
    where = ", ".join(str(int(k)) for k in np.unravel_index(i, packed.dims))
    holds, wants = _what(int(packed.source[i]), shape), _what(int(want[i]), shape)
    return (
        f"{len(wrong):,} of {len(want):,} elements differ from {name}. The first: {packed.buffer}[{where}] holds {holds}, "
        f"but should hold {wants}. The equation: {layout.equation}"
    )


def _what(element: int, shape: ConvShape) -> str:
    if element < 0:
        return "a zero that is not in the image" if element == ZERO else "nothing: no thread wrote it"
    n, c, h, w = (int(i) for i in np.unravel_index(element, shape.x_shape))
    return f"x[n={n}, c={c}, h={h}, w={w}]"


def drawn(shape: ConvShape) -> ConvShape:
    """The part of ``shape`` that a picture can show: one image, one group's channels (at most a few), a corner of it.

    >>> str(drawn(ConvShape(n=8, c=64, h=56, w=56, k=64, r=3, s=3)))
    '1x4x8x8 -> 1, 3x3'
    """
    whole = shape.with_(n=1, k=1, c=shape.c // shape.groups, groups=1)
    for channels, size in ((whole.c, max(whole.h, whole.w)), (min(whole.c, 4), 8), (1, 8), (1, 1)):
        extents = {
            "h": min(whole.h, max(size, whole.window_h + whole.stride[0])),
            "w": min(whole.w, max(size, whole.window_w + whole.stride[1])),
        }
        part = whole.with_(c=channels, **extents)
        cells = sum(LAYOUTS[name].elements(part) for name in ("nchw", "im2win", "im2col", "nchw4c"))
        if cells * part.p * part.q <= BUDGET:
            break
    return part


# frames ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Windows:
    """The windows of all T = P*Q output pixels, tap by tap; K = C*R*S taps numbered (c*R + r)*S + s.

    ``element`` (T, K): flat input element, ``ZERO`` on padding; ``place`` (T, K): cell of the padded image;
    ``shared`` (T, K): whether the pixel to the left has it too; ``colour`` (T, K).
    """

    shape: ConvShape
    taps: tuple[np.ndarray, ...]  # c, r, s (1, K) and p, q (T, 1)
    element: np.ndarray
    place: np.ndarray
    shared: np.ndarray
    colour: np.ndarray


def windows(shape: ConvShape) -> Windows:
    """The windows of an image (n = 1)."""
    c, r, s = (i.reshape(1, -1) for i in np.indices((shape.c, shape.r, shape.s)))
    p, q = (i.reshape(-1, 1) for i in np.indices((shape.p, shape.q)))
    h = p * shape.stride[0] + r * shape.dilation[0]
    w = q * shape.stride[1] + s * shape.dilation[1]
    place = (h * shape.c + c) * shape.padded_w + w
    shared = np.zeros(place.shape, bool)
    for t in range(1, len(place)):
        if t % shape.q:
            shared[t] = np.isin(place[t], place[t - 1])
    element = NCHW.position(shape, 0, c, r, s, p, q)
    colour = np.where(element == ZERO, YELLOW, np.where(shared, SKY, ORANGE))
    return Windows(shape, (c, r, s, p, q), element, place, shared, colour)


def pictures(shape: ConvShape, packed: list[Packed]) -> dict[str, Any]:
    """Arguments of ``Player.load``: the output, the padded image, and a panel for each packed layout.

    Raises ValueError for a shape too large to draw (``drawn`` gives a part that is not)."""
    cells = sum(len(p.source) for p in packed) * shape.p * shape.q
    if cells > 2 * BUDGET:
        raise ValueError(
            f"{shape}: a picture of every step would have {cells:,} cells, more than {2 * BUDGET:,}. Take a smaller image, "
            f"such as {drawn(shape)}; or give kernel= a function from shape to Program, and a corner is drawn"
        )
    win = windows(shape)
    parts = [_output(win), _image(win), *(_layout(win, p) if p.layout else _unknown(win, p) for p in packed)]
    seen = set(np.unique(np.concatenate([part.colours for part in parts], axis=1)))
    meaning = {
        GREEN: "the output pixel",
        ORANGE: "its window: new",
        SKY: ("its window: the pixel on the left used it too", "corner"),
        YELLOW: "its window: a zero of the padding",
        PURPLE: ("the left pixel's window, no longer needed", "outline"),
        OUTSIDE: "a zero that is not in the image",
        VERMILLION: ("wrong: not the element that belongs here", "cross"),
    }
    return {
        "panels": [part.panel for part in parts],
        "frames": np.concatenate([part.colours for part in parts], axis=1),
        "tags": np.concatenate([part.tags for part in parts], axis=1),
        "captions": _captions(win),
        "legend": {colour: text for colour, text in meaning.items() if colour in seen},
        "points": np.arange(shape.p * shape.q),
        "links": np.concatenate([part.links for part in parts]),
        "page": shape.q,
        "label": f"the window of each output pixel in the image and in {', '.join(p.program.name for p in packed)}",
    }


@dataclass
class _Part:
    panel: dict[str, Any]
    colours: np.ndarray  # uint8 (T, cells)
    tags: np.ndarray  # int16 (T, cells)
    links: np.ndarray  # (cells,) input element, -1 none


def _captions(win: Windows) -> list[str]:
    shape, texts = win.shape, []
    for t, (element, shared) in enumerate(zip(win.element, win.shared, strict=True)):
        zeros, old = int((element == ZERO).sum()), int((shared & (element != ZERO)).sum())
        text = (
            f"Output pixel {t}: row p = {t // shape.q}, column q = {t % shape.q}. Its window has {element.size} taps: "
        )
        text += f"{element.size - zeros - old} new, {old} shared with the pixel on the left"
        texts.append(text + (f", {zeros} on padding." if zeros else "."))
    return texts


def _output(win: Windows) -> _Part:
    shape = win.shape
    pixels = shape.p * shape.q
    colours = np.zeros((pixels, pixels), np.uint8)
    at = np.arange(pixels)
    left = at[at % shape.q > 0]
    colours[left, left - 1] = PURPLE
    colours[at, at] = GREEN
    panel = {
        "name": "y",
        "title": "Output y: click a pixel",
        "rows": shape.p,
        "cols": shape.q,
        "x": "q",
        "y": "p",
        "row_labels": range(shape.p),
        "col_labels": range(shape.q),
        "tag_name": "pixel",
    }
    return _Part(panel, colours, np.tile(at, (pixels, 1)), np.full(pixels, -1))


def _image(win: Windows) -> _Part:
    """The image with its padding, channel beside channel."""
    shape = win.shape
    rows, cols = shape.padded_h, shape.c * shape.padded_w
    h, c, w = (i.ravel() for i in np.indices((rows, shape.c, shape.padded_w)))
    h, w = h - shape.padding[0], w - shape.padding[2]
    inside = (h >= 0) & (h < shape.h) & (w >= 0) & (w < shape.w)
    element = np.where(inside, (c * shape.h + h) * shape.w + w, ZERO)
    colours, tags = _paint(win, win.place, element)
    names = [f"x[c={a}, h={b}, w={d}]" if e >= 0 else "padding: 0" for a, b, d, e in zip(c, h, w, element, strict=True)]
    panel = {
        "name": "x",
        "title": "Image x (NCHW)" + (" with its padding" if any(shape.padding) else ""),
        "rows": rows,
        "cols": cols,
        "x": "w" if shape.c == 1 else f"w, for c = 0 to {shape.c - 1}",
        "y": "h",
        "row_labels": range(-shape.padding[0], rows - shape.padding[0]),
        "col_labels": list(range(-shape.padding[2], shape.padded_w - shape.padding[2])) * shape.c,
        "col_breaks": range(shape.padded_w, cols, shape.padded_w),
        "tips": names,
        "tag_name": "tap",
        "notes": _notes(win.element),
        "outline": TAPS,
    }
    return _Part(panel, colours, tags, element)


def _layout(win: Windows, packed: Packed) -> _Part:
    """A known layout as the kernel filled it: the window where the convolution looks for it."""
    shape, layout = win.shape, LAYOUTS[packed.layout]
    place = layout.position(shape, 0, *win.taps)
    colours, tags = _paint(win, place, packed.source)
    wrong = (colours == VERMILLION).sum(axis=1)
    notes = [note + (f", {k} of them wrong" if k else "") for note, k in zip(_notes(place), wrong, strict=True)]
    r, slices = shape.r, -(-shape.c // 4)
    if packed.layout == "im2win":
        columns = range(-shape.padding[2], shape.padded_w - shape.padding[2])
        how = {
            "title": f"im2win xw: the {r} image rows of an output row, interleaved",
            "x": f"image column w, {r} rows each",
            "y": "p" if shape.c == 1 else "c, p",
            "row_labels": _labels(shape.c, range(shape.p)),
            "row_breaks": range(shape.p, shape.c * shape.p, shape.p),
            "col_labels": [w if i == 0 else "" for w in columns for i in range(r)],
        }
    elif packed.layout == "im2col":
        taps = [f"{a},{b}" for a in range(r) for b in range(shape.s)]
        how = {
            "title": "im2col col: every window copied out, a column per output pixel",
            "x": "output pixel p·Q + q",
            "y": "r,s" if shape.c == 1 else "c, r,s",
            "row_labels": _labels(shape.c, taps),
            "row_breaks": range(r * shape.s, shape.c * r * shape.s, r * shape.s),
            "col_labels": range(shape.p * shape.q),
        }
    elif packed.layout == "nchw4c":
        how = {
            "title": "NCHW4c x4: four channels side by side, a texel",
            "x": "image column w, 4 channels each",
            "y": "h" if slices == 1 else "c/4, h",
            "row_labels": _labels(slices, range(shape.h)),
            "row_breaks": range(shape.h, slices * shape.h, shape.h),
            "col_labels": [w if i == 0 else "" for w in range(shape.w) for i in range(4)],
        }
    else:
        how = {
            "title": f"{packed.layout} {packed.buffer}: {layout.equation}",
            "x": "all further dimensions, last one fastest",
        }
    by_row = {"im2win": 3, "im2col": 2, "nchw4c": 3}.get(packed.layout, 2)  # dimensions that a row of the picture fixes
    cols = prod(packed.dims[by_row:])
    how |= {"rows": len(packed.source) // cols, "cols": cols, "notes": notes, "outline": TAPS}
    return _Part(_named(how, packed, shape), colours, tags, packed.source)


def _unknown(win: Windows, packed: Packed) -> _Part:
    """A layout that only its kernel knows: every place that holds an element of the window."""
    colours = np.tile(np.where(packed.source >= 0, EMPTY, OUTSIDE).astype(np.uint8), (len(win.element), 1))
    tags, places = np.full(colours.shape, -1, np.int16), []
    for t, element in enumerate(win.element):
        taps = {int(e): k for k, e in enumerate(element) if e >= 0}
        held = np.flatnonzero(np.isin(packed.source, list(taps)))
        which = [taps[int(e)] for e in packed.source[held]]
        colours[t, held], tags[t, held] = win.colour[t, which], which
        places.append(held)
    cols = packed.dims[-1]
    how = {
        "title": f"{packed.program.name} {packed.buffer}: every copy of the window's elements",
        "rows": len(packed.source) // cols,
        "cols": cols,
        "x": "last dimension",
        "notes": _notes(places),
        "outline": TAPS,
    }
    return _Part(_named(how, packed, win.shape), colours, tags, packed.source)


def _named(how: dict[str, Any], packed: Packed, shape: ConvShape) -> dict[str, Any]:
    """The panel with its name and a tooltip for each cell: what it holds and which thread wrote it."""
    tips = []
    for i, index in enumerate(np.ndindex(packed.dims)):
        here = f"{packed.buffer}[{', '.join(map(str, index))}]"
        what = _what(int(packed.source[i]), shape).replace("n=0, ", "")
        who = "written by block {}, warp {}, lane {}".format(*packed.writer[i])
        tips.append(f"{here} holds {what}" + ("" if packed.source[i] == UNWRITTEN else f"\n{who}"))
    return how | {"name": packed.buffer, "tips": tips, "tag_name": "tap"}


def _paint(win: Windows, place: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Colours and tap numbers (T, cells) of windows at ``place`` (T, K; -1 nowhere) in cells that hold ``held``."""
    steps = len(place)
    colours = np.tile(np.where(held >= 0, EMPTY, OUTSIDE).astype(np.uint8), (steps, 1))
    tags = np.full(colours.shape, -1, np.int16)
    t = np.arange(steps)
    for now in t[t % win.shape.q > 0]:
        before = place[now - 1]
        colours[now, before[before >= 0]] = PURPLE
    right = held[place] == win.element
    paint = np.where(right, win.colour, VERMILLION)
    step, tap = np.nonzero(place >= 0)
    cell = place[step, tap]
    colours[step, cell] = paint[step, tap]
    tags[step, cell] = tap
    return colours, tags


def _notes(places: Any) -> list[str]:
    """For each step: in how many contiguous pieces the window's elements lie in memory."""
    texts = []
    for place in places:
        found = runs(np.sort(place[place >= 0]))
        longest = max((n for _, n in found), default=0)
        pieces = f"{len(found)} contiguous run{'' if len(found) == 1 else 's'}"
        each = "" if len(found) == 1 else "longest "
        texts.append(f"{pieces}, {each}{longest} element{'' if longest == 1 else 's'} = {4 * longest} bytes")
    return texts


def _labels(outer: int, inner: Any) -> list[str]:
    """``inner`` for each of ``outer`` channels; the channel stands in front where there are several."""
    inner = list(inner)
    return [str(i) if outer == 1 else f"{c}, {i}" for c in range(outer) for i in inner]
