"""What a kernel costs, beside its source; and what was measured, saying where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from texlab import gpu, results
from texlab.paths import kernel_dir
from texlab.program import DeviceError, Run

RULE = "border-bottom:1px solid var(--jp-border-color2,#ddd)"
AROUND = 6  # lines of source shown before and after one that accesses memory
BAR = "#56B4E9"  # Okabe-Ito sky blue; the number beside the bar says the same


@dataclass(frozen=True)
class Html:
    """Something to show in a notebook; ``text`` is the same for a terminal."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def measured(topic: str, live: Callable[[], Any], defaults_only: bool = False, **where: Any) -> Any:
    """``live()`` where a GPU is present; else the recorded results of ``topic``, labelled; else a note that says so.

    ``where`` picks recorded rows (``Result.where``), ``defaults_only`` those of kernels as they are, without tunables.
    What ``live`` cannot do here (a tool is missing, counters are not permitted) is said above the recorded results.
    """
    why, refused = gpu.why_no_gpu(), ""
    if why is None:
        try:
            return live()
        except DeviceError as error:
            why = str(error)
            refused = f"Not measured on this GPU: {why}"
    try:
        recorded = results.load_results(topic).where(**where)
        if defaults_only:
            recorded = replace(recorded, rows=[row for row in recorded if not row.get("tunables")])
    except FileNotFoundError as error:
        return _note(f"Nothing to show yet. Not measured here: {why}. And {error}")
    if not len(recorded):
        return _note(f"Nothing to show yet. Not measured here: {why}. And nothing is recorded for {where}.")
    if not refused:
        return recorded
    return Html(_note(refused).html + recorded._repr_html_(), f"{refused}\n{recorded}")


def _note(text: str) -> Html:
    style = "border-left:4px solid #E69F00;padding:2px 10px;max-width:75em;line-height:1.5"
    return Html(f"<div style='{style}'>{escape(text)}</div>", text)


def listing(run: Run, file: str) -> Html:
    """The source of a kernel, where it accesses memory, with what each line moved.

    ``run`` was traced with ``trace="counts"`` (or ``True``);
    ``file`` is a file of ``kernels/`` or the program's own ``filename``. Raises ValueError if the run has no trace or
    made no access in that file.
    """
    if run.trace is None:
        raise ValueError('listing: this run has no trace; run it with trace="counts" (or trace=True) on device="sim"')
    lines = _line_totals(run.trace, file)
    if not lines:
        files = sorted({i.file for i in run.trace.instructions})
        raise ValueError(f"listing: no access was made from {file!r}; the trace has {files}")
    path = kernel_dir() / file
    source = path.read_text(encoding="utf-8") if path.is_file() else run.program.source
    heads = ("line", "global<br>requests", "sectors per<br>request", "shared<br>accesses", "wavefronts<br>per access")
    most = max(t["sectors"] + t["wavefronts"] for t in lines.values())
    body, plain, quiet = "", [], False
    for number, text in enumerate(source.splitlines(), 1):
        if min(abs(number - line) for line in lines) > AROUND:
            if not quiet:
                body += "<tr><td colspan='7' style='text-align:left;padding:0 8px'>⋮</td></tr>"
            quiet = True
            continue
        quiet, t = False, lines.get(number)
        cells = ["", "", "", ""]
        width = 0.0
        if t:
            width = (t["sectors"] + t["wavefronts"]) / most
            cells = [
                f"{t['requests']:,}" if t["requests"] else "",
                f"{t['sectors'] / t['requests']:.3g}" if t["requests"] else "",
                f"{t['accesses']:,}" if t["accesses"] else "",
                f"{t['wavefronts'] / t['accesses']:.3g}" if t["accesses"] else "",
            ]
            plain.append(f"{number:4} {' '.join(f'{c:>9}' for c in cells)}  {text.strip()}")
        gutter = "".join(f"<td style='text-align:right;padding:0 8px'>{c}</td>" for c in cells)
        bar = f"<div style='height:10px;width:{70 * width:.0f}px;background:{BAR}'></div>"
        strong = "font-weight:700" if t else "color:var(--jp-ui-font-color2)"
        body += (
            f"<tr><td style='text-align:right;padding:0 8px;color:var(--jp-ui-font-color2)'>{number}</td>{gutter}"
            f"<td style='width:70px;padding:0'>{bar}</td>"
            f"<td style='text-align:left;padding:0 8px;white-space:pre;{strong}'>{escape(text)}</td></tr>"
        )
    top = "position:sticky;top:0;background:var(--jp-layout-color1,#fff)"
    head = "".join(f"<th style='text-align:right;padding:0 8px;{top}'>{h}</th>" for h in heads)
    head += f"<th style='{top}'></th><th style='text-align:left;padding:0 8px;{top}'>{escape(file)}</th>"
    face = "font-family:var(--jp-code-font-family,monospace);font-size:12px;line-height:1.35;border-collapse:collapse"
    html = (
        "<div style='max-height:560px;overflow:auto;border:1px solid var(--jp-border-color2,#ddd)'>"
        f"<table style='{face}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<div style='color:var(--jp-ui-font-color2)'>Accesses of whole warps, all launches, as the compiler's PTX has "
        "them; the bar is sectors plus wavefronts.</div>"
    )
    return Html(html, "\n".join(plain))


def _line_totals(trace: Any, file: str) -> dict[int, dict[str, int]]:
    """Line -> requests and sectors (global memory), accesses and wavefronts (shared memory)."""
    out: dict[int, dict[str, int]] = {}
    for n, instruction in enumerate(trace.instructions):
        requests = int(trace.totals["requests"][n])
        if instruction.file != file or not requests:
            continue
        line = out.setdefault(instruction.line, dict(requests=0, sectors=0, accesses=0, wavefronts=0))
        if instruction.space == "shared":
            line["accesses"] += requests
            line["wavefronts"] += int(trace.totals["wavefronts"][n])
        elif instruction.space == "global":
            line["requests"] += requests
            line["sectors"] += int(trace.totals["sectors"][n])
    return out
