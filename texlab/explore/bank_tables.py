"""The tables beside the bank picture, as HTML in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from texlab.explore.bank_scenarios import LOADS_PER_STEP, OWN, Study, recorded, recorded_per_step

GOOD, BAD, NEUTRAL = "#009E73", "#D55E00", "#56B4E9"  # Okabe-Ito; the words say the same


def note(html: str, colour: str) -> str:
    """A line of HTML with a coloured bar."""
    style = f"border-left:4px solid {colour};padding:2px 10px;margin:4px 0;line-height:1.5;max-width:90em"
    return f"<div role='status' style='{style}'>{html}</div>"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], bold: int = -1, foot: str = "") -> str:
    """An HTML table: text columns to the left, numbers to the right, row ``bold`` marked with an arrow too."""
    cell = "padding:3px 7px;border-bottom:1px solid var(--jp-border-color2,#ddd)"
    side = ["right" if any(isinstance(row[i], (int, float)) for row in rows) else "left" for i in range(len(heads))]
    head = "".join(
        f"<th style='{cell};text-align:{s};vertical-align:bottom'>{h}</th>" for h, s in zip(heads, side, strict=True)
    )
    body = ""
    for n, row in enumerate(rows):
        weight = ";font-weight:700;background:var(--jp-layout-color2,#eee)" if n == bold else ""
        cells = [f"{v:,.4g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in row]
        body += "<tr>" + "".join(
            f"<td style='{cell};text-align:{s}{weight}'>{c}</td>" for c, s in zip(cells, side, strict=True)
        )
        body += "</tr>"
    after = f"<div style='color:var(--jp-ui-font-color2);max-width:38em;line-height:1.4'>{foot}</div>" if foot else ""
    style = "border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums;line-height:1.4;margin:2px 0 4px"
    return (
        f"<div style='margin-bottom:14px'><b>{title}</b><table style='{style}'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{after}</div>"
    )


def scenario_table(studies: Mapping[str, Study | str | None], shown: str, default_tiles: bool) -> str:
    """Wavefronts of each scenario with the same tile sizes; ``shown`` in bold.

    ``studies``: label -> its Study, an error as text, or None while it has not run. The hardware's count is added where
    one is recorded, which is for the default tile sizes.
    """
    rows = []
    hardware = {label: recorded_per_step(label) for label in studies if default_tiles and label != OWN}
    seen = any(hardware.values())
    for label, s in studies.items():
        name = f"▸ {label}" if label == shown else label
        if isinstance(s, Study) and not s.wrong:
            row = [name, "✓ right", s.per_step(), s.per_step("store"), s.conflicts]
        else:  # what a wrong result costs would mislead
            word = "✗ wrong" if isinstance(s, Study) else "…" if s is None else "✗ does not run"
            row = [name, word, "", "", ""]
        rows.append([*row, hardware.get(label) or ""] if seen else row)
    heads = ["scenario", "result", "wavefronts<br>per k-step", "per store<br>instruction", "bank conflicts<br>in all"]
    foot = (
        f"A k-step of a warp is {LOADS_PER_STEP} float4 load instructions, for 64 multiply-adds a thread. Conflicts: "
        "wavefronts in which lanes wait for a bank that others use."
    )
    if seen:
        heads.append("hardware:<br>per k-step")
        foot += f" Hardware: Nsight Compute's count, {escape(recorded().label)}."
    return table("The scenarios", heads, rows, list(studies).index(shown), foot)


def line_table(shown: Study) -> str:
    """Totals over all blocks, per source line."""
    grouped = shown.lines.groupby(["line", "kind", "source"], sort=True)[["requests", "wavefronts", "conflicts"]].sum()
    rows = []
    for (line, kind, source), total in grouped.iterrows():
        code = f"<code title='{escape(source, quote=True)}'>{escape(source[:22] + '…' * (len(source) > 22))}</code>"
        requests, wavefronts = int(total["requests"]), int(total["wavefronts"])
        counts = (requests, wavefronts, int(total["conflicts"]), wavefronts / requests)
        rows.append([f"{line}, {kind}<br>{code}", *counts])
    heads = ["line", "instructions", "wavefronts", "conflicts", "per<br>instruction"]
    foot = "Instructions executed by all warps of the launch, as the compiler's PTX has them."
    return table(f"Shared memory, line by line: {escape(shown.run.program.filename)}", heads, rows, foot=foot)
