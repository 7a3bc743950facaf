"""What tuning measured, in one file of JSON lines: appended to, never rewritten, so nothing that was measured is lost.

A row has ``workload`` (see ``texlab.schedules.keys.describe``), ``target``, ``machine``, ``tvm`` (version), ``code`` (a hash
of the schedule's source), ``method``, ``knobs`` and ``status``:

=========  ==========================================================================================================
ok         ``ms`` (median of one call), ``ms_p10``, ``ms_p90``; the output was the float64 answer before and after timing
wrong      it was not; ``error`` has the first element that differs
failed     it could not be scheduled, compiled or run: ``error``
crashed    it ended its process
timeout    it was ended
=========  ==========================================================================================================

Rows of TVM's meta_schedule have the hash of their IR as their knobs, and those that were the best so far the IR itself.
A line cut short (by a full disk, or a machine that went down) is passed over. Processes may append at the same time.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import warnings
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from texlab.compiler import cache_dir
from texlab.schedules import work
from texlab.schedules.keys import describe, processor
from texlab.schedules.tvm_import import PINS, load, threads
from texlab.schedules.work import Scheduled, Workload

try:
    import fcntl
except ImportError:  # Windows: its appends of one write are not cut either, but two at once may be
    fcntl = None

STATUS = ("ok", "wrong", "failed", "crashed", "timeout")


def default_path() -> Path:
    """``tvm/tuning.jsonl`` in texlab's cache folder."""
    return cache_dir() / "tvm" / "tuning.jsonl"


def machine(target: str = "llvm") -> str:
    """What a time was measured on: the processor and how many of its cores, or the GPU."""
    if target == "cuda":
        from texlab import gpu

        if not gpu.available():
            return "no GPU"
        import cupy

        return cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    return f"{processor()}, {threads()} threads"


def code(workload: Workload, target: str) -> str:
    """A hash of the source that decides what knobs mean: of the schedule, and of the computation's definition."""
    make = workload.make.func if isinstance(workload.make, partial) else workload.make
    files = [
        Path(module.__file__) for module in (work._module(workload, target), importlib.import_module(make.__module__))
    ]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


def about(workload: Workload, target: str) -> dict[str, Any]:
    """The fields by which rows belong together: workload, target, machine and TVM's version."""
    return {"workload": describe(workload), "target": target, "machine": machine(target), "tvm": PINS["apache-tvm"]}


class Database:
    """The rows of one file; ``path`` None is the user's.

    >>> Database("nothing-here.jsonl").rows()
    []
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._warned = False

    def rows(self, **fields: Any) -> list[dict[str, Any]]:
        """All rows whose fields are these (compared as JSON), oldest first."""
        try:
            data = self.path.read_bytes()
        except OSError:  # none yet
            return []
        wanted = json.loads(json.dumps(fields))
        out = []
        for line in data.split(b"\n"):
            try:
                row = json.loads(line) if line else None
            except ValueError:
                continue  # cut short
            if isinstance(row, dict) and all(row.get(name) == value for name, value in wanted.items()):
                out.append(row)
        return out

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is on the disk when this returns. A file that cannot be written is warned of once."""
        line = json.dumps(row).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if fcntl:
                    fcntl.flock(handle, fcntl.LOCK_EX)
                size = os.fstat(handle).st_size
                if size:
                    os.lseek(handle, size - 1, os.SEEK_SET)
                    if os.read(handle, 1) != b"\n":
                        line = b"\n" + line  # after a line cut short
                os.write(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)  # and gives the lock back
        except OSError as error:
            if not self._warned:
                warnings.warn(
                    f"tuning keeps no rows: {error}. Give tune(database=...) a file you can write", stacklevel=2
                )
            self._warned = True

    def __repr__(self) -> str:
        return f"Database({str(self.path)!r})"


def best(workload: Workload, target: str = "llvm", database: Any = None) -> dict[str, Any] | None:
    """The knobs of the fastest verified row, for ``schedule(workload, target, **knobs)``; None if nothing was tuned.

    Of today's schedule, if it has rows; meta_schedule's, which have no knobs, are left to ``best_scheduled``. ``database``:
    a Database, a path, or None for the user's.
    """
    row = _fastest(workload, target, database, meta=False)
    return dict(row["knobs"]) if row else None


def best_scheduled(workload: Workload, target: str = "llvm", database: Any = None) -> Scheduled | None:
    """The fastest verified schedule of all, meta_schedule's among them, ready for ``texlab.schedules.cache.compiled``."""
    row = _fastest(workload, target, database, meta=True)
    return scheduled(workload, target, row) if row else None


def _fastest(workload: Workload, target: str, database: Any, meta: bool) -> dict[str, Any] | None:
    names, current = set(work.space(workload, target)), code(workload, target)
    rows = [
        row
        for row in _database(database).rows(status="ok", **about(workload, target))
        if set(row["knobs"]) == names or (meta and "ir" in row)
    ]
    # what another version of the schedule's source measured is no more than a hint; meta_schedule does not depend on it
    return min(rows, key=lambda row: ("ir" not in row and row["code"] != current, row["ms"]), default=None)


def scheduled(workload: Workload, target: str, row: Mapping[str, Any]) -> Scheduled:
    """The schedule that a row describes."""
    if "ir" in row:
        return from_ir(workload, target, unpack_ir(row["ir"]))
    return work.schedule(workload, target, **row["knobs"])


def from_ir(workload: Workload, target: str, text: str) -> Scheduled:
    """A Scheduled of TVM's JSON for a scheduled module; its one "knob" is the hash of that."""
    return Scheduled(workload, target, {"ir": ir_hash(text)}, load().ir.load_json(text))


def ir_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pack_ir(text: str) -> str:
    """TVM's JSON of a module, small enough for a row."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack_ir(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()


def _database(database: Any) -> Database:
    return database if isinstance(database, Database) else Database(database)
