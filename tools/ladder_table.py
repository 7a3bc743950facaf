"""Write the README's ladder table from the catalog and the recorded results: python tools/ladder_table.py"""

from __future__ import annotations

from pathlib import Path

from texlab.catalog import kernels
from texlab.results import Result, load_results
from texlab.shapes import LAYERS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- ladder: written by tools/ladder_table.py -->\n", "<!-- end of ladder -->\n"
LAYER = "cv9"  # the layer the table shows: 64 channels of 56 x 56, 64 filters of 3 x 3


def recorded() -> Result | None:
    """The recorded times of LAYER at its largest batch, default tunables; None before any were recorded."""
    try:
        rows = load_results("ladder").where(layer=LAYER, precision="float32")
    except FileNotFoundError:
        return None
    largest = max((row["n"] for row in rows), default=0)
    return rows.where(n=largest) if largest else None


def table() -> str:
    """The Markdown table, with the times' origin below it."""
    result = recorded()
    plain = [row for row in result or () if not row.get("tunables")]
    ms = {row["kernel"]: row["ms"] for row in plain if row.get("ms") is not None}
    lines = ["| file | what it does | time, ms |", "|---|---|---:|"]
    ladder = sorted((k for k in kernels.values() if k.rung), key=lambda k: k.rung)
    others = [k for k in kernels.values() if not k.rung and k.kind == "conv"]
    for kernel in [*ladder, *others]:
        time = f"{ms[kernel.name]:.3g}" if kernel.name in ms else "–"
        lines.append(f"| [`{kernel.file}`](kernels/{kernel.file}) | {kernel.header['title']} | {time} |")
    for row in plain:
        if row.get("peer") and row["kernel"] in ms:
            lines.append(f"| {row['kernel']} | another library, for comparison | {ms[row['kernel']]:.3g} |")
    if result:
        shape = LAYERS[LAYER].with_(n=plain[0]["n"])
        lines += ["", f"Times: {LAYER} ({shape}), layout transform included, {result.label}."]
    else:
        lines += ["", "Times appear here once they are recorded on a GPU (`python -m texlab.bench record ladder`)."]
    return "\n".join(lines) + "\n"


def replaced(readme: str) -> str:
    """The README's text with a current table."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    README.write_text(replaced(README.read_text(encoding="utf-8")), encoding="utf-8")
