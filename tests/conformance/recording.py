"""What a GPU computed, kept in one compressed file: for each case its key and the bytes of its outputs."""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .case import Case

FOLDER = Path(__file__).parent / "recorded"
_MAGIC = "texlab conformance 1"


def write(path: Path, about: Mapping[str, Any], outputs: Mapping[str, tuple[str, Mapping[str, np.ndarray]]]) -> None:
    """``outputs``: case name -> (its key, its outputs). ``about``: machine, date, commit."""
    index, blob = {}, b""
    for name, (key, arrays) in outputs.items():
        data = b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())
        index[name] = [key, len(blob), len(data)]
        blob += data
    head = json.dumps({"format": _MAGIC, **about, "cases": index}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(head + b"\n" + blob, preset=9))


@functools.cache
def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    head, _, blob = lzma.decompress(path.read_bytes()).partition(b"\n")
    return json.loads(head), blob


def about(gpu: str = "h200") -> dict[str, Any]:
    """Machine, date and commit of a recording; {} if there is none."""
    path = FOLDER / f"{gpu}.xz"
    return {k: v for k, v in _read(path)[0].items() if k != "cases"} if path.exists() else {}


def recorded(case: Case, gpu: str = "h200") -> dict[str, np.ndarray] | None:
    """The outputs a GPU gave for exactly this case (source, launch and inputs), or None."""
    path = FOLDER / f"{gpu}.xz"
    if not path.exists():
        return None
    head, blob = _read(path)
    key, start, size = head["cases"].get(case.name, ("", 0, 0))
    if key != case.key:
        return None
    out, at = {}, start
    for b in case.program.outputs:
        out[b.name] = np.frombuffer(blob[at : at + b.nbytes], b.dtype).reshape(b.shape)
        at += b.nbytes
    assert at == start + size, f"{case.name}: the recording has another number of bytes"
    return out
