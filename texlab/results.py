"""Result tables: what was measured, where, when and from which source; saved, loaded and shown with that label.

A recorded file is ``texlab/data/results/<gpu>/<topic>.json``::

    {"machine": {"gpu": ..., "driver": ..., ...}, "date": "2026-11-30", "commit": "...", "rows": [{...}, ...]}

A row with a time must say ``"verified": true``; a Result that holds any other time cannot be made.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

#: where recorded results are shipped
RESULTS = Path(__file__).parent / "data" / "results"

#: fields that are times or follow from one: only a verified row may have them
TIME_FIELDS = (
    *("ms", "ms_p10", "ms_p90", "tflops", "gbps"),
    *("kernel_ms", "kernel_ms_p10", "kernel_ms_p90", "kernel_tflops", "kernel_gbps"),
)

#: rows with equal values here were measured in one sitting and are replaced together
GROUP_FIELDS = ("layer", "n", "shape", "precision")

_MIB = 1 / 2**20
#: (field, heading, unit, how one value is written); a column without any value is left out
_COLUMNS: tuple[tuple[str, str, str, Any], ...] = (
    ("layer", "layer", "", str),
    ("n", "N", "images", "{:,}".format),
    ("shape", "shape", "", str),
    ("kernel", "kernel", "", str),
    ("precision", "precision", "", str),
    ("source", "source", "", str),
    ("counter", "counter", "", str),
    ("predicted", "predicted", "", lambda v: f"{v:,.6g}"),
    ("measured", "measured", "", lambda v: f"{v:,.6g}"),
    ("ms", "time", "ms", "{:.4g}".format),
    ("spread", "p10 to p90", "ms", str),
    ("kernel_ms", "last launch", "ms", "{:.4g}".format),
    ("floor_ms", "floor", "ms", "{:.4g}".format),
    ("tflops", "rate", "TFLOP/s", "{:.2f}".format),
    ("gbps", "bandwidth", "GB/s", "{:,.0f}".format),
    ("kernel_tflops", "last launch", "TFLOP/s", "{:.2f}".format),
    ("kernel_gbps", "last launch", "GB/s", "{:,.0f}".format),
    ("registers", "registers", "/ thread", str),
    ("shared_bytes", "shared memory", "KiB / block", lambda v: f"{v / 1024:.1f}"),
    ("resident_blocks", "resident", "blocks / SM", str),
    ("occupancy", "occupancy", "%", lambda v: f"{100 * v:.0f}"),
    ("instructions_per_output", "instructions", "warp-level / output", "{:.3f}".format),
    ("shared_wavefronts_per_output", "shared wavefronts", "/ output", "{:.3f}".format),
    ("global_sectors_per_output", "global sectors", "32 B / output", "{:.3f}".format),
    ("extra_bytes", "extra memory", "MiB", lambda v: f"{v * _MIB:,.2f}"),
    ("rel_err", "relative error", "L2 norm", "{:.1e}".format),
    ("verified_by", "verified by", "", str),
    ("error", "why there is no figure", "", "✗ {}".format),
)
#: signs in a table -> colour (Okabe-Ito; 3:1 on white and on black). The words beside them keep the theme's own ink.
_MARKS = {"▲": "#009E73", "▼": "#D55E00", "✗": "#D55E00"}
_TEXT = {"layer", "shape", "kernel", "precision", "source", "counter", "verified_by", "error"}


def title(row: Mapping[str, Any]) -> str:
    """A row's contestant: the kernel's name and the tunables it was given.

    >>> title({"kernel": "im2win_tile", "tunables": {"PAD": 4}})
    'im2win_tile PAD=4'
    """
    tunables = row.get("tunables") or {}
    return " ".join([str(row.get("kernel", "")), *(f"{k}={v}" for k, v in tunables.items())])


def group(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is compared within: layer, batch, shape, precision."""
    return tuple(row.get(f) for f in GROUP_FIELDS)


@dataclass
class Result:
    """A table of rows with the machine, date and commit they come from.

    ``rows`` are dictionaries (``texlab.bench.bench`` lists their fields); ``machine`` as
    ``texlab.machine.describe`` gives it, ``{"gpu": None}`` for simulated counts; ``baseline`` names the row that the others are
    compared with (default: cudnn where there is one).

    Raises ValueError for a row that has a time but whose output was not verified.

    >>> table = Result([{"layer": "cv9", "kernel": "a", "ms": 2.0, "verified": True},
    ...                 {"layer": "cv9", "kernel": "b", "ms": 1.0, "verified": True}])
    >>> [row["kernel"] for row in table]
    ['b', 'a']
    >>> table.against("a").ratio(table.rows[0])
    2.0
    """

    rows: list[dict[str, Any]]
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    commit: str | None = None
    topic: str | None = None
    recorded: bool = False
    baseline: str | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            times = {f: row[f] for f in TIME_FIELDS if row.get(f) is not None}
            if times and row.get("verified") is not True:
                raise ValueError(
                    f"row {title(row)!r} ({row.get('layer')}) has {times} but verified={row.get('verified')!r}: "
                    "a time without a verified output is never kept; measure it again with texlab.bench"
                )
        if any(row.get("ms") is not None for row in self.rows):
            self.rows = sorted(self.rows, key=_order)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def df(self) -> Any:
        """The rows as a pandas DataFrame; units are in the column names or in the documentation of ``bench``."""
        return import_module("pandas").DataFrame(self.rows)

    @property
    def label(self) -> str:
        """Where the figures come from, e.g. "recorded on NVIDIA H200, 2026-11-30, commit abc"."""
        where = self.machine.get("gpu") or self.machine.get("processor")
        if not where:
            return "simulated without a GPU: exact counts, no times"
        if not self.machine.get("gpu"):
            where += f", {self.machine['threads']} threads"
        if not self.recorded:
            return f"measured live on {where}, {self.date}"
        older = {(row["date"], row["commit"]) for row in self.rows if "date" in row and "commit" in row}
        text = f"recorded on {where}, {self.date}, commit {self.commit or 'unknown'}"
        return text + "".join(f"; some rows {date}, commit {commit or 'unknown'}" for date, commit in sorted(older))

    def where(self, **wanted: Any) -> Result:
        """The rows whose fields equal ``wanted`` (a list, tuple or set: any of them).

        >>> Result([{"layer": "cv1"}, {"layer": "cv9"}]).where(layer=["cv9", "cv10"]).rows
        [{'layer': 'cv9'}]
        """
        many = {k: set(v) if isinstance(v, (list, tuple, set)) else {v} for k, v in wanted.items()}
        return replace(self, rows=[row for row in self.rows if all(row.get(k) in v for k, v in many.items())])

    def against(self, name: str) -> Result:
        """The same table compared with the rows called ``name`` (a kernel, with its tunables if it has any)."""
        names = sorted({title(row) for row in self.rows})
        if name not in names:
            raise ValueError(f"baseline {name!r} is not in this table; it has {names}")
        return replace(self, baseline=name)

    @property
    def _baseline(self) -> str | None:
        return self.baseline or ("cudnn" if any(row.get("kernel") == "cudnn" for row in self.rows) else None)

    def ratio(self, row: Mapping[str, Any]) -> float | None:
        """How many times faster ``row`` is than the baseline in its group; None where either has no time, and for a
        layout or copy, which does other work."""
        if not _convolves(row):
            return None
        for other in self.rows:
            if title(other) == self._baseline and group(other) == group(row):
                mine, theirs = row.get("ms"), other.get("ms")
                return theirs / mine if mine and theirs else None
        return None

    def chart(self) -> Any:
        """The table as a matplotlib Figure: one panel a layer, or predicted beside measured for counters."""
        draw = import_module("texlab.draw")
        counters = any("predicted" in row for row in self.rows)
        return draw.predicted_measured(self) if counters else draw.result_bars(self)

    def save(self, topic: str, out: Path | str | None = None) -> Path:
        """Write ``<out>/<gpu>/<topic>.json`` (``out`` defaults to the package's recorded results); returns the path. What was
        timed on a processor lies in a folder of its name.

        Rows that were measured together stay together: a group (layer, batch, shape, precision) that this Result has
        replaces the file's whole group. Other groups are kept, with the date and commit they were recorded at, if
        the machine (card, driver, library versions) is the same; otherwise they are dropped. The file is written
        under a temporary name and renamed.

        Raises ValueError for simulated counts, which any machine can make again.
        """
        where = self.machine.get("gpu") or self.machine.get("processor")
        if not where:
            raise ValueError("only what was timed is recorded: simulated counts are exact and made when needed")
        path = Path(out or RESULTS) / gpu_slug(where) / f"{topic}.json"
        kept = self._kept(json.loads(path.read_text())) if path.exists() else []
        whole = replace(self, rows=kept + self.rows)
        data = {"machine": self.machine, "date": self.date, "commit": self.commit, "rows": whole.rows}
        write_atomically(path, json.dumps(data, indent=1, default=_plain, allow_nan=False) + "\n")
        return path

    def _kept(self, old: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of an older file that stand beside this Result's; each says when it was recorded, if not now."""
        if old["machine"] != self.machine:
            return []
        mine, now = {group(row) for row in self.rows}, {"date": self.date, "commit": self.commit}
        kept = []
        for row in old["rows"]:
            stamp = {f: row.get(f, old[f]) for f in now}
            bare = {f: v for f, v in row.items() if f not in now}
            if group(row) not in mine:
                kept.append(bare if stamp == now else {**bare, **stamp})
        return kept

    # showing -----------------------------------------------------------------------------------------------------
    def _cells(self) -> tuple[list[tuple[str, str, str]], list[tuple[dict[str, Any], list[str]]]]:
        """(field, heading, unit) of the columns that have a value, and each row with its cells as text."""
        shown = []
        for row in self.rows:
            extra: dict[str, Any] = {"kernel": title(row)}
            if row.get("ms_p10") is not None and row.get("ms_p90") is not None:
                extra["spread"] = f"{row['ms_p10']:.4g} to {row['ms_p90']:.4g}"
            shown.append({**row, **extra})
        columns = [c for c in _COLUMNS if any(row.get(c[0]) is not None for row in shown)]
        cells = [["" if row.get(f) is None else text(row[f]) for f, _, _, text in columns] for row in shown]
        heads = [(f, heading, unit) for f, heading, unit, _ in columns]
        name = self._baseline
        if name and any(self.ratio(row) for row in self.rows):
            at = next((i + 1 for i, h in enumerate(heads) if h[0] == "ms"), len(heads))
            heads.insert(at, ("ratio", f"against {name}", ""))
            for row, line in zip(self.rows, cells, strict=True):
                line.insert(at, _ratio_text(self.ratio(row), title(row) == name))
        return heads, list(zip(self.rows, cells, strict=True))

    def __str__(self) -> str:
        heads, lines = self._cells()
        table = [[" ".join(filter(None, (h, f"[{u}]" if u else ""))) for _, h, u in heads]] + [c for _, c in lines]
        widths = [max(len(line[i]) for line in table) for i in range(len(heads))]
        left = [f in _TEXT for f, _, _ in heads]
        pad = lambda s, i: s.ljust(widths[i]) if left[i] else s.rjust(widths[i])  # noqa: E731
        text = ["  ".join(pad(s, i) for i, s in enumerate(line)).rstrip() for line in table]
        return "\n".join([*text, f"({self.label})"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, lines = self._cells()
        fastest: dict[tuple[Any, ...], float] = {}
        for row in self.rows:
            if row.get("ms") is not None and _convolves(row):
                fastest[group(row)] = min(row["ms"], fastest.get(group(row), row["ms"]))
        style = "font-variant-numeric:tabular-nums;white-space:nowrap;color:inherit"
        out = [f'<div style="overflow-x:auto"><table style="{style}"><thead><tr>']
        for f, heading, unit in heads:
            side = "left" if f in _TEXT else "right"
            small = f"<br><small>{escape(unit)}</small>" if unit else ""
            out.append(f'<th scope="col" style="text-align:{side};padding:2px 8px">{escape(heading)}{small}</th>')
        out.append("</tr></thead><tbody>")
        for row, cells in lines:
            best = row.get("ms") is not None and row["ms"] == fastest.get(group(row)) and _convolves(row)
            out.append("<tr>")
            for (f, _, _), cell in zip(heads, cells, strict=True):
                side = "left" if f in _TEXT else "right"
                text = escape(cell)
                for mark, colour in _MARKS.items():
                    text = text.replace(mark, f'<span style="color:{colour}">{mark}</span>')
                if f == "ms" and best:
                    text = f'<b title="fastest of this group">★ {text}</b>'
                wrap = ";white-space:normal;min-width:24em" if f == "error" else ""
                out.append(f'<td style="text-align:{side}{wrap};padding:2px 8px">{text}</td>')
            out.append("</tr>")
        out.append(f"</tbody></table></div><small>{escape(self.label)}</small>")
        return "".join(out)


def _convolves(row: Mapping[str, Any]) -> bool:
    return row.get("kind", "conv") == "conv"


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Layers in natural order (cv2 before cv10), convolutions before layouts and copies, fastest first, rows without a
    time last."""
    natural = [(int(t), "") if t.isdigit() else (-1, t) for t in re.findall(r"\d+|\D+", str(row.get("layer", "")))]
    ms = row.get("ms")
    return (natural, row.get("n") or 0, str(row.get("precision")), not _convolves(row), ms is None, ms or 0.0)


def _ratio_text(ratio: float | None, is_baseline: bool) -> str:
    if ratio is None:
        return ""
    if is_baseline:
        return "1 (baseline)"
    return f"▲ {ratio:.2f}x faster" if ratio >= 1 else f"▼ {1 / ratio:.2f}x slower"


def _plain(value: Any) -> Any:
    """NumPy scalars as Python numbers, for JSON."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be recorded as JSON")


def gpu_slug(name: str) -> str:
    """The folder of a card: its name without the maker, in small letters.

    >>> gpu_slug("NVIDIA H200"), gpu_slug("NVIDIA GeForce RTX 3090")
    ('h200', 'geforce-rtx-3090')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` under a temporary name in the same folder, then rename: a reader sees the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as f:
            f.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_results(topic: str, gpu: str | None = None, folder: Path | str | None = None) -> Result:
    """The recorded results of ``topic`` ("ladder", "counters"), labelled with machine, date and commit.

    ``gpu``: a card's folder or name ("h200", "NVIDIA H200"); default: the latest recording. ``folder``: where the
    results lie (default: those shipped with texlab).

    Raises FileNotFoundError that names what is recorded.
    """
    root = Path(folder or RESULTS)
    found = {path.parent.name: path for path in root.glob(f"*/{topic}.json")}
    if gpu is not None:
        found = {name: path for name, path in found.items() if name == gpu_slug(gpu)}
    if not found:
        there = sorted(f"{p.parent.name}/{p.stem}" for p in root.glob("*/*.json"))
        raise FileNotFoundError(
            f"no recorded results for topic={topic!r}, gpu={gpu!r}; recorded are {there or 'none'}. "
            f"On a machine with a GPU: python -m texlab.bench record {topic}"
        )
    loaded = [json.loads(path.read_text()) for path in found.values()]
    data = max(loaded, key=lambda d: d["date"])
    return Result(data["rows"], data["machine"], data["date"], data["commit"], topic=topic, recorded=True)
