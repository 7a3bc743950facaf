"""What the schedule explorer shows, as HTML in the notebook's own colours: loop nest, difference, code, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from texlab.explore.bank_tables import GOOD, note
from texlab.schedules.nest import BUFFER, PARALLEL, SERIAL, STORE, UNROLLED, VECTORIZED, Line

#: kind of a loop -> (Okabe-Ito colour, what it means)
LEGEND = {
    PARALLEL: ("#0072B2", "parallel: shared out among the processor's cores"),
    VECTORIZED: ("#D55E00", "vectorized: all turns in one instruction"),
    UNROLLED: ("#CC79A7", "unrolled: written out, no counter and no jump"),
    "blockIdx": ("#0072B2", "blockIdx: a thread block for each turn"),
    "threadIdx": ("#009E73", "threadIdx: a thread for each turn"),
    "vthread": ("#E69F00", "vthread: the same thread, its turns spread over the tile"),
    SERIAL: ("#8c8c8c", "serial: one turn after the other"),
}
MONO = "font-family:var(--jp-code-font-family,monospace);font-size:12px;line-height:1.5"


def colour(kind: str) -> str:
    return LEGEND.get(kind.partition(".")[0], LEGEND[SERIAL])[0]


def nest_view(lines: Sequence[Line]) -> str:
    """The loop nest: a loop's colour and word say what it is bound to, indentation what is inside it."""
    body = ""
    for line in lines:
        indent = f"margin-left:{line.depth * 20}px"
        notes = f" <span style='opacity:.75'>· {escape('; '.join(line.notes))}</span>" if line.notes else ""
        if line.kind == BUFFER:
            size = f"{line.extent / 1024:,.1f} KiB" if line.extent >= 1024 else f"{line.extent} bytes"
            body += f"<div style='{indent};opacity:.85'>▭ buffer <b>{escape(line.text)}</b>, {size}{notes}</div>"
        elif line.kind == STORE:
            body += f"<div style='{indent};padding-left:8px'>▸ {escape(line.text)}{notes}</div>"
        else:
            ink = colour(line.kind)
            word = (
                "" if line.kind == SERIAL else f" <span style='color:{ink};font-weight:700'>{escape(line.kind)}</span>"
            )
            turns = f"for <b>{escape(line.text)}</b> in 0 … {line.extent - 1}" if line.extent else escape(line.text)
            body += f"<div style='{indent};border-left:5px solid {ink};padding-left:8px'>{turns}{word}{notes}</div>"
    seen = {line.kind.partition(".")[0] for line in lines}
    key = "".join(
        f"<span style='white-space:nowrap'><span style='color:{ink}'>█</span> {escape(text)}</span> "
        for kind, (ink, text) in LEGEND.items()
        if kind in seen
    )
    return f"<div style='{MONO}'>{body}</div>" + (
        f"<div style='margin-top:8px;display:flex;flex-wrap:wrap;gap:2px 18px;font-size:12px'>{key}</div>"
    )


def difference_view(pairs: Sequence[tuple[str, str]], against: str) -> str:
    """A difference of two texts: removed lines with a minus, added ones with a plus."""
    if not pairs:
        return note(f"No line differs from {escape(against)}.", GOOD)
    inks = {"+": "#009E73", "-": "#D55E00"}
    body = ""
    for sign, line in pairs:
        if sign == "@":
            body += "<div style='opacity:.6'>⋯</div>"
            continue
        style = (
            f"border-left:4px solid {inks[sign]};padding-left:6px" if sign in inks else "padding-left:10px;opacity:.75"
        )
        body += f"<div style='{style};white-space:pre'>{sign} {escape(line)}</div>"
    count = {sign: sum(s == sign for s, _ in pairs) for sign in inks}
    head = f"Against {escape(against)}: <b>{count['+']}</b> lines added (+), <b>{count['-']}</b> removed (−)."
    return f"<div>{head}</div><div style='{MONO};overflow-x:auto'>{body}</div>"


def code_view(lines: Sequence[str], head: str, most: int = 400) -> str:
    """Source text below a heading (HTML), in a box that scrolls."""
    cut = [*lines[:most], f"… {len(lines) - most} more lines"] if len(lines) > most else lines
    text = escape("\n".join(cut))
    style = f"{MONO};max-height:26em;overflow:auto;margin:4px 0;padding:4px 8px;border:1px solid var(--jp-border-color2,#ccc)"
    return f"<div style='line-height:1.5'>{head}</div><pre tabindex='0' style='{style}'>{text}</pre>"


def bars(rows: Sequence[Mapping[str, Any]], unit: str = "ms", now: int = -1) -> str:
    """A bar for each row (``name``, ``value`` or None with ``error``); the shortest is marked, and so is row ``now``."""
    values = [row["value"] for row in rows if row.get("value") is not None]
    most, least = max(values, default=1.0), min(values, default=0.0)
    body = ""
    for n, row in enumerate(rows):
        value = row.get("value")
        mark = "▸" if n == now else ""
        if value is None:
            cells = ["", f"<span style='color:#D55E00'>✗ {escape(str(row.get('error', 'no time')))[:90]}</span>"]
        else:
            best = value == least
            ink = "#009E73" if best else "#56B4E9"
            width = max(2, round(220 * value / most))
            cells = [
                f"<div style='height:11px;width:{width}px;background:{ink}'></div>",
                f"{value:,} {unit}{' ★ best' if best and len(values) > 1 else ''}"
                if isinstance(value, int)
                else f"{value:.3g} {unit}{' ★ best' if best and len(values) > 1 else ''}",
            ]
        weight = "font-weight:700" if n == now else ""
        body += f"<tr style='{weight}'><td>{mark}</td><td style='padding-right:14px'>{escape(str(row['name']))}</td>"
        body += "".join(f"<td style='padding-right:8px'>{cell}</td>" for cell in cells) + "</tr>"
    return f"<table style='border-spacing:0 3px;font-size:13px;font-variant-numeric:tabular-nums'>{body}</table>"
