"""Tables of the texture notebook: modelled beside measured, times, and a learner's own order judged."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from texlab import cache, texture_bench, texture_probes
from texlab.explore.costs import Html
from texlab.texture_probes import ORDERS, PATHS

_NOTE = "border-left:4px solid #E69F00;padding:2px 10px;max-width:75em;line-height:1.5"
RIGHT, WRONG = "#009E73", "#D55E00"


def texture_agreement(scene: str = "square") -> Html:
    """Modelled beside measured hit rates of a recorded scene ("square", "tall", "windows" or "capacity"), labelled with the
    machine; the last column says what a difference means. A note where nothing is recorded."""
    recorded = texture_bench.load()
    if recorded is None:
        return _nothing()
    table = texture_bench.agreement([r for r in recorded.rows if r.get("scene") == scene])
    if not len(table):
        return Html(f"<div style='{_NOTE}'>No scene {escape(scene)!r} is recorded.</div>", f"no scene {scene!r}")
    table = table.drop(columns=["scene", "missed sectors, modelled", "missed sectors, measured"])
    gaps = table["difference (points)"].abs()
    within, known = int((gaps <= 5).sum()), int(gaps.notna().sum())
    summary = f"{within} of {known} hit rates within 5 percentage points. {recorded.label}."
    head = "".join(
        f"<th style='text-align:left;padding:2px 12px 2px 0;vertical-align:bottom'>{escape(c)}</th>" for c in table
    )
    body = ""
    for row in table.itertuples(index=False):
        cells = [
            v if isinstance(v, str) else "" if np.isnan(v) else f"{v:.2f}" if abs(v) < 10 else f"{v:.1f}" for v in row
        ]
        body += (
            "<tr>"
            + "".join(f"<td style='text-align:left;padding:2px 12px 2px 0'>{escape(c)}</td>" for c in cells)
            + "</tr>"
        )
    html = (
        "<div style='max-height:460px;overflow:auto'><table style='border-spacing:0;line-height:1.45;"
        f"font-variant-numeric:tabular-nums'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<small>{escape(summary)}</small>"
    )
    return Html(html, f"{table.to_string(index=False)}\n{summary}")


def texture_times() -> Html:
    """Recorded milliseconds to read a 2048 x 2048 image once, a row for each path and a column for each order; the fastest
    path of one channel in each column in bold."""
    recorded = texture_bench.load()
    if recorded is None:
        return _nothing()
    found = {(r["path"], r["order"]): r for r in recorded.rows if r["kernel"] == "texture_time" and r.get("ms")}
    best = {
        o: min((found[p, o]["ms"] for p in PATHS if PATHS[p].channels == 1 and (p, o) in found), default=None)
        for o in ORDERS
    }
    cell = "style='text-align:right;padding:2px 14px 2px 0'"
    body, plain = "", [" ".join(["path".ljust(14), *(o.rjust(9) for o in ORDERS)])]
    for path, how in PATHS.items():
        values = [found.get((path, o), {}).get("ms") for o in ORDERS]
        copy = found.get((path, "row"), {}).get("copy_ms")
        shown = [
            "" if v is None else f"<b>{v:.3f}</b>" if how.channels == 1 and v == best[o] else f"{v:.3f}"
            for v, o in zip(values, ORDERS, strict=True)
        ]
        last = "" if copy is None else f"{copy:.3f}"
        body += f"<tr><td style='text-align:left;padding:2px 14px 2px 0'>{path}</td>" + "".join(
            f"<td {cell}>{v}</td>" for v in shown
        )
        body += f"<td {cell}>{last}</td><td style='text-align:left'>{escape(how.idea)}</td></tr>"
        plain.append(" ".join([path.ljust(14), *("" if v is None else f"{v:9.3f}" for v in values)]))
    heads = "".join(f"<th {cell}>{o}</th>" for o in ORDERS)
    html = (
        "<table style='border-spacing:0;line-height:1.45;font-variant-numeric:tabular-nums'><thead><tr>"
        f"<th style='text-align:left'>path</th>{heads}<th {cell}>copy into<br>the array</th><th></th></tr></thead>"
        f"<tbody>{body}</tbody></table>"
        f"<small>Milliseconds, every output checked before and after. {escape(recorded.label)}. A CUDA array must first be "
        "filled: the column before the last is that copy.</small>"
    )
    return Html(html, "\n".join([*plain, recorded.label]))


def _nothing() -> Html:
    text = "Nothing to show yet: no texture measurements are recorded. On a machine with a GPU: "
    text += "python -m texlab.bench record texture"
    return Html(f"<div style='{_NOTE}'>{escape(text)}</div>", text)


def try_order(places: Sequence[Any] | np.ndarray, layout: str = "block-linear", size: int = 32) -> Html:
    """Run the probe kernel along your own order and judge it.

    ``places``: (size*size, 2) rows y, x; each texel of a ``size`` x ``size`` image once; 32 neighbours of the sequence are a
    warp's request. ``layout``: "row-major", "block-linear" or "morton".

    Raises ValueError for something that is no list of places."""
    at = np.asarray(places)
    if at.shape != (size * size, 2) or at.dtype.kind not in "iu":
        raise ValueError(
            f"try_order: places has shape {at.shape} and dtype {at.dtype}; expected integers ({size * size}, 2): y, x"
        )
    if at.min() < 0 or at.max() >= size:
        raise ValueError(
            f"try_order: places reach from {at.min()} to {at.max()}; the image has rows and columns 0 to {size - 1}"
        )
    missing = size * size - len(np.unique(at[:, 0] * size + at[:, 1]))
    if missing:
        return _judged(False, f"{missing} of the {size * size} texels are never read: visit each exactly once.")
    path = "global" if layout == "row-major" else "border"
    program = texture_probes.program(path, {"own": at}, (size, size), blocks=1, threads=32, steps=size * size // 32)
    run = program.run(device="sim", trace=True, **texture_probes.inputs(program, {"own": at}))
    b = cache.run(run.trace, layout=layout)
    requests = len(np.unique(b.row))
    wanted = len(np.unique([b.row, b.sector], axis=1)[0])
    return _judged(
        True,
        f"{wanted / requests:.2f} sectors a request ({requests} requests), {b.hit_rate:.1%} of the lookups hits, "
        f"{b.bytes['L2']:,} bytes from the L2 for {4 * size * size:,} bytes of image.",
    )


def _judged(right: bool, text: str) -> Html:
    style = f"border-left:4px solid {RIGHT if right else WRONG};padding:2px 10px;line-height:1.5"
    return Html(
        f"<div style='{style}'><b>{'Right.' if right else 'Not an order of the image.'}</b> {escape(text)}</div>", text
    )
