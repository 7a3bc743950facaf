"""Write the tables of docs/simulator.md from the recorded results: python tools/simulator_doc.py [--speed]

``--speed`` also measures the simulator's speed on this machine (a minute); without it that table stays as it is.
"""

from __future__ import annotations

import collections
import datetime
import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from texlab.results import load_results
from texlab.sim import speed

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.hazards import CLEAN, FAULTS
from tests.hazards.verdict import simulated

DOC = Path(__file__).parent.parent / "docs" / "simulator.md"
KNOWN = DOC.parent.parent / "tests" / "conformance" / "known.txt"  # the tests see to it that all others pass


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Markdown; columns after the first whose cells are numbers are aligned right."""
    cells = [[f"{c:,.0f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    right = [i > 0 and all(re.fullmatch(r"[\d,.]+", row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [" | ".join(heads), " | ".join("---:" if r else "---" for r in right), *map(" | ".join, cells)]
    return "".join(f"| {line} |\n" for line in lines)


def conformance() -> str:
    result = load_results("conformance")
    refused = collections.Counter(line.split(".")[0] for line in KNOWN.read_text(encoding="utf-8").splitlines())
    refused["all"] = refused.total()
    rows = [(r["family"], r["total"], r["gpu_passed"], r["total"] - refused[r["family"]]) for r in result.rows]
    return table(("family", "cases", "passed on the GPU", "passed in the simulator"), rows) + f"\n{result.label}\n"


def counters() -> str:
    result = load_results("counters")
    groups = collections.defaultdict(list)
    for row in result.rows:
        if row["predicted"] is not None:
            tunables = ", ".join(f"{k}={v}" for k, v in row["tunables"].items())
            groups[f"{row['kernel']} {tunables}".strip(), row["shape"]].append(row)
    rows = []
    for (kernel, shape), found in groups.items():
        different = [r for r in found if r["predicted"] != r["measured"]]
        text = "; ".join(
            f"{r['source']} {r['counter']}: {r['predicted']:.0f} predicted, {r['measured']:.0f}" for r in different
        )
        rows.append((kernel, shape, len(found) - len(different), len(found), text or "none"))
    heads = ("kernel", "shape", "equal", "counters", "different (measured last)")
    return table(heads, rows) + f"\n{result.label}\n"


def bank_rules() -> str:
    result = load_results("bank_rules")
    groups = collections.defaultdict(list)
    for row in result.rows:
        groups[row["shape"]].append(row["predicted"] == row["measured"])
    rows = [(width, sum(equal), len(equal)) for width, equal in groups.items()]
    return table(("load instruction", "patterns equal", "patterns"), rows) + f"\n{result.label}\n"


def hazards() -> str:
    result = load_results("hazards")
    now = {case.name: simulated(case) for case in [*FAULTS, *CLEAN]}  # the simulator needs no GPU: as it is today
    rows = [row | {"simulator": now[row["case"]]} for row in result.rows]
    seeded = [row for row in rows if row["seeded"]]
    clean = [row for row in rows if not row["seeded"]]
    found = lambda rows, key, word: sum(row[key].startswith(word) for row in rows)  # noqa: E731
    rows = [
        ("seeded faults", len(seeded), found(seeded, "simulator", "found"), found(seeded, "sanitizer", "reported")),
        (
            "correct kernels reported",
            len(clean),
            found(clean, "simulator", "found"),
            found(clean, "sanitizer", "reported"),
        ),
    ]
    text = table(("kernels", "in all", "by the simulator", "by compute-sanitizer"), rows) + "\n"
    asked = [row for row in seeded + clean if row["agree"] is not None]
    said = lambda row: (row["simulator"].startswith("found"), row["sanitizer"].startswith("reported"))  # noqa: E731
    different = [row for row in asked if len(set(said(row))) == 2]
    cells = [(r["case"], r["simulator"], r["sanitizer"], r["note"] or "") for r in different]
    return text + table(("where they differ", "simulator", "compute-sanitizer", "why"), cells) + f"\n{result.label}\n"


def measured_speed() -> str:
    rows = []
    for name, shape in speed.CASES:
        m = speed.measure(name, shape)
        runs = [m[f"{label}_{unit}"] for label in ("plain", "totals", "rows") for unit in ("ms", "millions")]
        rows.append((name, str(shape), m["setup_ms"], *runs))
    heads = ("kernel", "shape", "set-up, ms", "run, ms", "M/s", "with totals, ms", "M/s", "with rows, ms", "M/s")
    where = f"{os.cpu_count()} cores, Python {platform.python_version()}, {datetime.date.today()}"
    return table(heads, rows) + f"\nmeasured on {where}; M/s: million lane-instructions a second\n"


def replaced(text: str, with_speed: bool = False) -> str:
    """The document with current tables."""
    makers = {f.__name__: f for f in (conformance, counters, bank_rules, hazards)}
    if with_speed:
        makers["speed"] = measured_speed
    for name, make in makers.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
        text, count = re.subn(pattern, lambda m, make=make: m[1] + make() + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{DOC} has {count} places for the table {name!r}; it must have one")
    return text


if __name__ == "__main__":
    DOC.write_text(replaced(DOC.read_text(encoding="utf-8"), "--speed" in sys.argv[1:]), encoding="utf-8")
