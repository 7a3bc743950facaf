"""Compiled schedules and packed weights, kept on disk, and what a first inference costs with and without them.

In ``tvm`` under texlab's cache folder (``TEXLAB_CACHE_DIR``, see ``texlab.compiler``) lie

* libraries, each named by the SHA-256 of its bytes: what is not what its name says is never loaded;
* notes, each behind its own checksum, that name a library. A note's name is a hash of all that decides the machine code:
  the scheduled IR, pass options, target, TVM's version. A second kind is named by what decides the *IR*: the workload, the
  knobs and the source of texlab's schedules; through it a library is found without scheduling, and without importing tvm;
* packed weights, and Programs of CUDA schedules, behind a checksum.

Whatever is damaged, of another version or of another processor is built anew. Deleting the folder is always safe.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from texlab import program
from texlab.compiler import _store, _write, cache_dir
from texlab.program import DeviceError
from texlab.schedules import judge, launch, native, work
from texlab.schedules.conv import Layout
from texlab.schedules.keys import describe, plain, processor
from texlab.schedules.tvm_import import PINS, cpu_target, load, threads
from texlab.schedules.work import Scheduled, Workload

FORMAT = 1  # of the files; another one is not read
STEPS = ("import", "schedule", "compile", "load", "pack", "run")
_STARTED = time.time()
_PACKAGE = Path(__file__).resolve().parent.parent


# keys --------------------------------------------------------------------------------------------------------------
def _hash(*parts: Any) -> str:
    text = json.dumps([FORMAT, PINS, sys.platform, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _ir_key(scheduled: Scheduled) -> str:
    return _hash("ir", str(cpu_target()), plain(scheduled.config), load().ir.save_json(scheduled.module))


def _knob_key(workload: Workload, target: str, knobs: Mapping[str, Any]) -> str | None:
    """None if the IR could have changed without the key: sources edited since they were imported, nameless functions."""
    files = sorted([*(_PACKAGE / "schedules").glob("*.py"), Path(program.__file__), _PACKAGE / "shapes.py"])
    own = Path(work._module(workload, target).__file__)
    states = tuple((str(f), (s := f.stat()).st_mtime_ns, s.st_size) for f in dict.fromkeys([*files, own]))
    if max(modified for _, modified, _ in states) > 1e9 * _STARTED:
        return None
    try:
        made = plain(workload.make)
    except TypeError:
        return None
    return _hash("knobs", describe(workload), made, target, plain(knobs), processor(), threads(), _digest(states))


@functools.lru_cache(maxsize=8)
def _digest(states: tuple[tuple[str, int, int], ...]) -> str:
    """A hash of the files' contents; their states say when it must be taken anew."""
    whole = hashlib.sha256()
    for path, _, _ in states:
        whole.update(Path(path).read_bytes() + b"\0")
    return whole.hexdigest()


# compiled ----------------------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Compiled:
    """A workload's machine code: call it with arrays by name, in the workload's own layouts.

    ``kept``: its library is on disk for the next process. ``found``: it came from there. ``seconds``: what each step took
    that was needed to get here ("import" of tvm, "schedule", "compile", "load"; "run", once it is called).
    """

    workload: Workload
    knobs: dict[str, Any]
    function: Callable[..., None]
    kept: bool = False
    found: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, *, out: np.ndarray | None = None, **arrays: np.ndarray) -> np.ndarray:
        """The output, in ``out`` if it is given. Arrays at multiples of 64 bytes (``native.empty``, ``packed`` and every
        output of this) are used in place, others are copied first.

        Raises ValueError for names, shapes and dtypes that are not the workload's, and for an ``out`` that overlaps an input.
        """
        start = time.perf_counter()
        inputs = self.workload.inputs
        if arrays.keys() != {b.name for b in inputs}:
            takes = [b.name for b in inputs]
            raise ValueError(f"{self.workload.name} takes {takes}, but was given {sorted(arrays)}")
        given = [native.aligned(_checked(self.workload, b, arrays[b.name])) for b in inputs]
        last = self.workload.output
        if out is None:
            result = native.empty(last.shape, last.dtype)
        else:
            _checked(self.workload, last, out)
            if not out.flags.writeable:
                raise ValueError(f"{self.workload.name}: out is read-only")
            if any(np.may_share_memory(out, a) for a in given):
                raise ValueError(f"{self.workload.name}: out overlaps an input, which it would overwrite")
            in_place = out.flags.c_contiguous and out.ctypes.data % native.ALIGNMENT == 0
            result = out if in_place else native.empty(last.shape, last.dtype)
        self.function(*given, result)
        if out is not None and result is not out:
            out[...] = result
        self.seconds.setdefault("run", time.perf_counter() - start)
        return result if out is None else out


def _checked(workload: Workload, buffer: Any, array: np.ndarray) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{workload.name}: {buffer.name} is {type(array).__name__}, not a NumPy array")
    if array.shape != buffer.shape or array.dtype != buffer.dtype:
        raise ValueError(
            f"{workload.name}: {buffer.name} is {array.dtype} {array.shape}, must be {buffer.dtype} {buffer.shape}"
        )
    return array


def prepared(workload: Workload, target: str = "llvm", *, folder: str | Path | None = None, **knobs: Any) -> Compiled:
    """The workload scheduled with ``knobs`` and compiled, or found on disk, which imports no tvm and takes milliseconds.

    Raises ValueError for knobs the schedule does not have, DeviceError without TVM or for a target other than "llvm".
    """
    _only_cpu(target)
    folder = _folder(folder)
    start = time.perf_counter()
    key = _knob_key(workload, target, knobs)
    note = key and _note(folder, key)
    if note and (found := _open(workload, folder, note)):
        found.seconds["load"] = time.perf_counter() - start
        return found
    seconds = {}
    with _timed(seconds, "import"):
        load()
        cpu_target()
    with _timed(seconds, "schedule"):
        scheduled = work.schedule(workload, target, **knobs)
    result = compiled(scheduled, folder=folder)
    if key and result.kept:
        note = _note(folder, _ir_key(scheduled))
        _store(folder / f"{key}.json", json.dumps({**note, "key": key}).encode())
    result.seconds = seconds | result.seconds
    return result


def compiled(scheduled: Scheduled, *, folder: str | Path | None = None, keep: bool = True) -> Compiled:
    """A schedule's machine code, found on disk or built, and kept unless ``keep`` is False.

    Where there is no linker nothing can be kept: a warning says so once. Raises DeviceError for a target other than "llvm".
    """
    _only_cpu(scheduled.target)
    folder = _folder(folder)
    seconds: dict[str, float] = {}
    key = _ir_key(scheduled) if keep else ""
    with _timed(seconds, "load"):
        note = _note(folder, key) if keep else None
        found = note and _open(scheduled.workload, folder, note)
    if found:
        found.knobs, found.seconds = dict(scheduled.knobs), seconds
        return found
    with _timed(seconds, "compile"):
        executable = _build(scheduled)
        try:
            data = native.link(executable.mod)
        except DeviceError as error:
            warnings.warn(f"texlab keeps no compiled schedules: {error}", stacklevel=2)
            return Compiled(scheduled.workload, dict(scheduled.knobs), _jit(executable), seconds=seconds)
    with _timed(seconds, "load"):
        name = f"{hashlib.sha256(data).hexdigest()}.so"
        path = folder / name
        if keep and _verified(path) is None:
            _write(path, data)
        kept = keep and _verified(path) is not None
        if kept:
            text = {"key": key, "library": name, "knobs": plain(scheduled.knobs)}
            _store(folder / f"{key}.json", json.dumps(text).encode())
        function = _library(data)
    return Compiled(scheduled.workload, dict(scheduled.knobs), function, kept, seconds=seconds)


def prepared_program(
    workload: Workload, *, arch: str = "sm_90", folder: str | Path | None = None, **knobs: Any
) -> program.Program:
    """The Program of the workload scheduled for "cuda" with ``knobs``; where it is on disk, found without importing tvm.

    What NVRTC makes of its text is kept by ``texlab.compiler``. Raises as ``texlab.schedules.launch.program``.
    """
    key = _knob_key(workload, "cuda", {**knobs, "arch": arch})
    path = _folder(folder) / f"{key}.program"
    if key and (data := _read(path)) is not None:
        return pickle.loads(data)
    made = launch.program(work.schedule(workload, "cuda", **knobs), arch=arch)
    if key:
        _store(path, pickle.dumps(made, protocol=5))
    return made


def _only_cpu(target: str) -> None:
    if target != "llvm":
        raise DeviceError(
            f"target={target!r}: libraries are made for target='llvm'; CUDA text becomes a Program with "
            "prepared_program or texlab.schedules.launch.program"
        )


def _folder(folder: str | Path | None) -> Path:
    return Path(folder) if folder is not None else cache_dir() / "tvm"


def _build(scheduled: Scheduled) -> Any:
    tvm = load()
    with tvm.transform.PassContext(config=dict(scheduled.config)):
        return tvm.compile(scheduled.module, target=cpu_target())


def _jit(executable: Any) -> Callable[..., None]:
    function, tensor = executable["main"], load().runtime.from_dlpack
    return lambda *arrays: function(*map(tensor, arrays))


def _note(folder: Path, key: str) -> dict[str, Any] | None:
    """What stands behind a key; None if that is nothing, damaged, or another key's."""
    data = _read(folder / f"{key}.json")
    note = json.loads(data) if data is not None else {}
    return note if note.get("key") == key else None


def _read(path: Path) -> bytes | None:
    """What ``_store`` wrote; None if it is missing or damaged."""
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if digest == hashlib.sha256(data).hexdigest().encode() else None


def _open(workload: Workload, folder: Path, note: Mapping[str, Any]) -> Compiled | None:
    function = _verified(folder / note["library"])
    return function and Compiled(workload, dict(note["knobs"]), function, kept=True, found=True)


def _verified(path: Path) -> native.Library | None:
    """The library, if its bytes are what its name says: to load damaged code can end the process."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return _library(data) if hashlib.sha256(data).hexdigest() == path.stem else None


@functools.lru_cache(maxsize=256)
def _library(data: bytes) -> native.Library:
    """The library of these very bytes: of a copy, as a loaded file that is cut short later ends the process."""
    with tempfile.TemporaryDirectory(prefix="texlab-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "code.so")
        path.write_bytes(data)
        try:
            return native.Library(path)
        except OSError as error:
            raise DeviceError(
                f"compiled code cannot be loaded: {error}. If {tempfile.gettempdir()} forbids execution (noexec), set TMPDIR "
                "to a folder that allows it"
            ) from None


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - start


# packed weights ----------------------------------------------------------------------------------------------------
def packed(workload: Workload, w: np.ndarray, *, folder: str | Path | None = None) -> np.ndarray:
    """The filters ``w (K,C/g,R,S)`` of a convolution in the layout its schedule reads, at a multiple of 64 bytes.

    Kept on disk by the hash of their bytes; NCHW's are as they come, so they are not. Raises ValueError for a workload
    that is no convolution, and for another shape than its filters'.
    """
    if workload.kind != "conv":
        raise ValueError(f"{workload.name} is a {workload.kind!r} workload; only a convolution has filters to pack")
    shape, layout = workload.about["shape"], Layout(workload.about["layout"])
    if w.shape != shape.w_shape:
        raise ValueError(f"{workload.name}: w is {w.shape}, must be (K,C/groups,R,S) = {shape.w_shape}")
    if layout.name == "NCHW":
        return native.aligned(w)
    buffer = next(b for b in workload.inputs if b.name == "w")
    source = np.ascontiguousarray(w)
    digest = hashlib.sha256(source).hexdigest()
    path = (
        _folder(folder) / f"{_hash('weights', digest, str(w.dtype), list(w.shape), shape.groups, layout.name)}.weights"
    )
    out = native.empty(buffer.shape, w.dtype)
    if _read_into(path, out):
        return out
    out[...] = layout.pack_filter(source, shape.groups)
    _write(path, hashlib.sha256(out).digest() + out.tobytes())
    return out


def _read_into(path: Path, out: np.ndarray) -> bool:
    """Read what ``packed`` kept straight into the array; False if it is missing or damaged."""
    try:
        with open(path, "rb", buffering=0) as file:
            digest = file.read(32)
            whole = file.readinto(memoryview(out).cast("B")) == out.nbytes and not file.read(1)
    except OSError:
        return False
    return whole and hashlib.sha256(out).digest() == digest


# first inference ---------------------------------------------------------------------------------------------------
def first_inference(
    workload: Workload, *, fresh: bool = False, folder: str | Path | None = None, **knobs: Any
) -> dict[str, Any]:
    """What the first run of a workload costs in a new process: seconds of each of STEPS, and "process", all of it.

    ``fresh``: with an empty cache ("cold"). Else with what is kept in ``folder`` (None: the user's cache), where a first
    process puts it if need be ("warm"). Also ``found`` (a library was on disk) and ``fault`` (None: the output is the float64
    answer, which is computed outside the times).
    """
    with tempfile.TemporaryDirectory(prefix="texlab-") as empty:
        place = Path(empty) if fresh else _folder(folder)
        report = _ask(workload, place, knobs)
        if not fresh and not report["found"]:
            report = _ask(workload, place, knobs)
    return report


def _ask(workload: Workload, folder: Path, knobs: Mapping[str, Any]) -> dict[str, Any]:
    path = os.pathsep.join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", "from texlab.schedules.cache import _answer; _answer()"],
        input=pickle.dumps((workload, str(folder), dict(knobs))),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode:
        raise DeviceError(f"a first inference failed: {done.stderr.decode(errors='replace').strip()[-2000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    report["process"] = time.perf_counter() - start - report.pop("judging")
    return report


def _answer() -> None:
    """The new process: what it needs comes through stdin, its report leaves through stdout."""
    workload, folder, knobs = pickle.load(sys.stdin.buffer)
    start = time.perf_counter()
    arrays = judge.sample(workload)
    inputs = {name: native.aligned(a) for name, a in workload.pack(arrays).items()}
    judging = time.perf_counter() - start
    call = prepared(workload, folder=folder, **knobs)
    if workload.kind == "conv":
        with _timed(call.seconds, "pack"):
            inputs["w"] = packed(workload, arrays["w"], folder=folder)
    y = call(**inputs)
    start = time.perf_counter()
    fault = judge.fault(workload.unpack(y), judge.answer(workload, arrays))
    report = {step: call.seconds.get(step, 0.0) for step in STEPS} | {"found": call.found, "fault": fault}
    print(json.dumps(report | {"judging": judging + time.perf_counter() - start}))
