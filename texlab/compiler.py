"""Source to PTX and machine code with NVRTC, which needs no GPU; resources, signatures, and a cache on disk.

Three layers answer a request, in this order:

1. memory, for this process;
2. ``texlab/data/ptx``: PTX that ships with the package, read-only, for the default tunables of every kernel of the
   catalog and for the variants that the notebooks use (``variants.json`` there lists them). It comes before NVRTC even
   where NVRTC is installed, so that every machine simulates the same instructions, and machines without NVRTC (macOS)
   simulate at all. ``python -m texlab.compiler ship`` rebuilds it, ``python -m texlab.compiler check`` judges it;
3. the user's cache (``TEXLAB_CACHE_DIR``, else ``XDG_CACHE_HOME/texlab``, else ``~/.cache/texlab``), then NVRTC.
   An entry's name is a hash of all that the compiler sees; an entry that does not match its checksum is rebuilt.

Kernels take their shape at run time, so none of this depends on the shape of a convolution.
"""

from __future__ import annotations

import collections
import functools
import gzip
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from texlab import nvrtc
from texlab.nvrtc import CompileError, Resources
from texlab.paths import DATA
from texlab.program import DeviceError, Program

SIM_ARCH = "sm_90"  # what the simulator compiles for
SHIPPED = DATA / "ptx"
_NOTE = "// texlab "  # before the JSON in the first line of a shipped file
_OPTIONS = ("-std=c++17", "-lineinfo")  # before a Program's defines and its own options
TRIES = 5  # compilations that must all disagree before a shipped text counts as different
_lock = threading.RLock()  # one compilation at a time; two threads that want the same one get it once


@dataclass(frozen=True)
class Param:
    """A kernel parameter as PTX declares it: ``type`` "u64", "f32", ... or "b8" for a struct; ``size`` in bytes."""

    type: str
    size: int


# public -------------------------------------------------------------------------------------------------------
def ptx(program: Program, arch: str = SIM_ARCH) -> str:
    """The PTX of a Program for one architecture ("sm_75" ... "sm_120", "sm_90a", ...), with line information.

    Raises CompileError (with the Program's own file and line), DeviceError if NVRTC is needed and missing.
    """
    return _fresh_or_kept(_ptx, _request(program, arch))


def cubin(program: Program, arch: str) -> bytes:
    """Machine code for exactly one architecture, straight from NVRTC, so that the driver's own compiler, which may be
    older than the PTX, is never asked. Raises as ``ptx``, and CompileError for what only ptxas refuses."""
    return _fresh_or_kept(_machine, _request(program, arch))[0]


def resources(program: Program, arch: str = SIM_ARCH) -> dict[str, Resources]:
    """Entry -> registers, static shared memory, spills, by the NVRTC in use, as the numbers change with its version;
    where there is none, by the one that built the shipped PTX. Needs no GPU. Raises as ``cubin``."""
    request = _request(program, arch)
    shipped = _read_shipped(request)
    if shipped is not None and _nvrtc_version() in (None, shipped[1]["nvrtc"]):
        return {name: Resources(**values) for name, values in shipped[1]["resources"].items()}
    return dict(_fresh_or_kept(_machine, request)[1])


def _nvrtc_version() -> str | None:
    try:
        return nvrtc.version()
    except DeviceError:
        return None


@functools.lru_cache(maxsize=1024)
def params(ptx_text: str, entry: str) -> tuple[Param, ...]:
    """The parameters of one entry of a PTX text, in order; CompileError if there is no such entry."""
    match = re.search(rf"\.entry\s+{re.escape(entry)}(?![\w$])\s*(?:\(([^)]*)\))?", ptx_text)
    if match is None:
        raise CompileError(
            f"no kernel {entry!r}; the source has {entries(ptx_text)}. C++ changes the names of functions: "
            f'declare it extern "C" __global__ void {entry}(...)'
        )
    out = []
    for text in (match.group(1) or "").split(","):
        if text.strip():
            kind, bits = re.search(r"\.([usbf](\d+))\b", text).groups()
            length = re.search(r"\[(\d+)\]", text)
            out.append(Param(kind, int(bits) // 8 * (int(length.group(1)) if length else 1)))
    return tuple(out)


def entries(ptx_text: str) -> list[str]:
    """Names of the kernels in a PTX text."""
    return re.findall(r"\.entry\s+([\w$]+)", ptx_text)


def bind(value: Any, param: Param, where: str) -> Any:
    """``value`` as a NumPy scalar (structs: a 0-d array) of exactly the type and size the kernel declares.

    A Python float becomes a float32 where the kernel says ``float``; nothing is cut short in silence.
    ``where`` opens the message of the ValueError. Pointers come as integers, None is the null pointer.

    >>> bind(0.1, Param("f32", 4), "k, argument 1")
    np.float32(0.1)
    """
    refuse = f"{where}: {value!r} ({type(value).__name__})"
    if value is None:
        value = 0
        if param.size != 8 or param.type[0] == "f":
            raise ValueError(f"{where}: None is a null pointer, but the kernel takes {_declared(param)} here")
    if isinstance(value, np.ndarray) and value.ndim:
        raise ValueError(f"{where}: an array of shape {value.shape} cannot be passed by value; name a buffer instead")
    data = np.asarray(value)
    if param.type == "b8" or data.dtype.kind in "Vc":
        if not isinstance(value, np.ndarray | np.generic) or data.nbytes != param.size:
            raise ValueError(f"{refuse}: the kernel takes {_declared(param)} here, this has {data.nbytes} bytes")
        return data.copy()
    if param.type[0] == "f":
        if data.dtype.kind not in "fiub":
            raise ValueError(f"{refuse}: the kernel takes {_declared(param)} here")
        return np.dtype(f"f{param.size}").type(value)
    if data.dtype.kind not in "iub":
        raise ValueError(f"{refuse}: the kernel takes {_declared(param)} here, a whole number")
    bits, number = 8 * param.size, int(value)
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise ValueError(f"{refuse}: does not fit into {_declared(param)}")
    sign = "i" if number < 0 else "u"
    return np.dtype(f"{sign}{param.size}").type(number)


def _declared(param: Param) -> str:
    return f"a struct of {param.size} bytes" if param.type == "b8" else f".{param.type} ({param.size} bytes)"


# requests -----------------------------------------------------------------------------------------------------
def _request(program: Program, arch: str) -> nvrtc.Request:
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise CompileError(f"arch={arch!r}: expected sm_ and a number, such as sm_90 or sm_90a")
    if lacks(program, arch):
        raise CompileError(
            f"program {program.name!r} uses instructions that begin with {program.needs}; it cannot be compiled for {arch}"
        )
    defines = [f"-D{name}={_macro(value)}" for name, value in sorted(program.defines.items())]
    return nvrtc.Request(program.source, program.filename, (*_OPTIONS, *defines, *program.options), arch)


def lacks(program: Program, arch: str) -> bool:
    """True if ``arch`` is older than what the Program needs.

    >>> from texlab.catalog import kernels
    >>> from texlab.shapes import ConvShape
    >>> pipeline = kernels["im2win_pipeline"].program(ConvShape(n=1, c=1, h=3, w=3, k=1, r=3, s=3))
    >>> lacks(pipeline, "sm_75"), lacks(pipeline, "sm_80"), lacks(pipeline, "sm_120")
    (True, False, False)
    """
    have, need = (int(re.sub(r"\D", "", name)) for name in (arch, program.needs))
    return have < need


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


def _fresh_or_kept(layer: Any, request: nvrtc.Request) -> Any:
    """What a layer says; asked anew each time where headers that we do not see decide the result."""
    return (layer.__wrapped__ if request.own_headers else layer)(request)


# layers -------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=512)
def _ptx(request: nvrtc.Request) -> str:
    shipped = _read_shipped(request)
    if shipped is not None:
        return shipped[0]
    try:
        return _cached("ptx", request, lambda: nvrtc.compile_source(request, machine=False)[0].encode()).decode()
    except DeviceError as error:
        notes = [_note(path)[0] for path in SHIPPED.glob("*.ptx.gz")]
        there = [n["options"][len(_OPTIONS) :] or "defaults" for n in notes if n["file"] == request.filename]
        raise DeviceError(f"{error} Of {request.filename} there are: {there or 'none'}") from None


@functools.lru_cache(maxsize=512)
def _machine(request: nvrtc.Request) -> tuple[bytes, dict[str, Resources]]:
    def build() -> bytes:
        text, code, log = nvrtc.compile_source(request, machine=True)
        if not request.own_headers:
            _store(_path("ptx", request), text.encode())  # the same text as without machine code: ptx() finds it
        report = {name: asdict(r) for name, r in nvrtc.parse_resources(log).items()}
        return json.dumps(report).encode() + b"\n" + code

    report, _, code = _cached("cubin", request, build).partition(b"\n")
    return code, {name: Resources(**r) for name, r in json.loads(report).items()}


@functools.lru_cache(maxsize=512)
def _read_shipped(request: nvrtc.Request) -> tuple[str, dict[str, Any]] | None:
    path = SHIPPED / f"{request.key}.ptx.gz"
    return _note(path)[::-1] if path.exists() else None


def _note(path: Path) -> tuple[dict[str, Any], str]:
    """A shipped file's first line, which says how it was built, and its PTX."""
    note, _, text = gzip.decompress(path.read_bytes()).decode().partition("\n")
    return json.loads(note.removeprefix(_NOTE)), text


def cache_dir() -> Path:
    """Where compiled code is kept; deleting it is always safe."""
    own = os.environ.get("TEXLAB_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "texlab"


def _cached(kind: str, request: nvrtc.Request, build: Callable[[], bytes]) -> bytes:
    """``build()``, kept on disk under a name that says all it depends on, behind a checksum."""
    with _lock:
        if request.own_headers:
            return build()
        path = _path(kind, request)
        try:
            digest, _, data = path.read_bytes().partition(b"\n")
            if digest == hashlib.sha256(data).hexdigest().encode():
                return data
        except OSError:
            pass  # not there yet, or not readable: build it
        data = build()
        _store(path, data)
        return data


def _path(kind: str, request: nvrtc.Request) -> Path:
    identity = f"{kind}\0{request.key}\0{nvrtc.toolchain(request)}".encode()
    return cache_dir() / kind / hashlib.sha256(identity).hexdigest()


def _store(path: Path, data: bytes) -> None:
    _write(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def _write(path: Path, data: bytes) -> None:
    """Write under a temporary name, then rename: a reader sees the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(data)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        warnings.warn(
            f"texlab keeps no compiled code: {error}. Set TEXLAB_CACHE_DIR to a folder you can write to.", stacklevel=2
        )


# shipped PTX --------------------------------------------------------------------------------------------------
def _shipped_requests() -> dict[str, nvrtc.Request]:
    """File name -> request, for the catalog's default tunables, the notebooks' variants and the texture explorer's probes."""
    from texlab import texture_probes
    from texlab.catalog import kernels
    from texlab.shapes import ConvShape

    variants = json.loads((SHIPPED / "variants.json").read_text())
    shape = ConvShape(n=1, c=1, h=3, w=3, k=1, r=3, s=3)  # any shape: kernels take theirs at run time
    programs = []
    for name in kernels:
        for values in [{}, *variants.get(name, [])]:
            tunables = {tunable: value for tunable, value in values.items() if tunable != "TIMELINE"}
            program = kernels[name].program(shape, **tunables)
            stamps = {"TIMELINE": values["TIMELINE"]} if "TIMELINE" in values else {}  # a switch of common.cuh
            programs.append(replace(program, defines={**program.defines, **stamps}))
    orders, how = {"row": texture_probes.places("row", 16, 16)}, {"blocks": 1, "threads": 32, "steps": 4}
    for windows in variants.get("texture_probe", []):
        programs.append(texture_probes.program("border", orders, (16, 16), **how, **windows))
    requests = [_request(program, SIM_ARCH) for program in programs]
    return {f"{r.key}.ptx.gz": r for r in requests}


def _usual_text(request: nvrtc.Request) -> str:
    """The PTX that NVRTC gives most often: for one source it can give texts that differ by an instruction or two, as some of
    its choices hang on where its own data lie in memory (seen with NVRTC 13.5 and rung 09)."""
    texts = [nvrtc.compile_source(request, machine=False)[0] for _ in range(2)]
    if texts[0] != texts[1]:
        texts += [nvrtc.compile_source(request, machine=False)[0] for _ in range(TRIES)]
    return collections.Counter(texts).most_common(1)[0][0]


def _shipped_bytes(request: nvrtc.Request) -> bytes:
    text = _usual_text(request)
    report = nvrtc.parse_resources(nvrtc.compile_source(request, machine=True)[2])
    note = {
        "file": request.filename,
        "options": request.options,
        "arch": request.arch,
        "nvrtc": nvrtc.version(),
        "resources": {name: asdict(r) for name, r in report.items()},
    }
    return gzip.compress(f"{_NOTE}{json.dumps(note)}\n{text}".encode(), 9, mtime=0)


def ship() -> list[str]:
    """Rebuild ``texlab/data/ptx``; returns the names of its files. Files that nothing asks for are removed."""
    wanted = {name: _shipped_bytes(request) for name, request in _shipped_requests().items()}
    for old in SHIPPED.glob("*.ptx.gz"):
        if old.name not in wanted:
            old.unlink()
    for name, data in wanted.items():
        _write(SHIPPED / name, data)
        (SHIPPED / name).chmod(0o644)  # a temporary file is private; these are for everyone
    _read_shipped.cache_clear()
    _ptx.cache_clear()
    return sorted(wanted)


def check_shipped() -> list[str]:
    """What is wrong with the shipped PTX, one line each; empty if it is fresh.

    Names must match the sources; the text is compared where the NVRTC in use is the one that built it.
    """
    wanted = _shipped_requests()
    there = {p.name for p in SHIPPED.glob("*.ptx.gz")}
    problems = [f"stale: {name}" for name in sorted(there - set(wanted))]
    problems += [f"missing: {wanted[n].filename} {wanted[n].options}" for n in sorted(set(wanted) - there)]
    for name in sorted(there & set(wanted)):
        request = wanted[name]
        text, note = _read_shipped(request)
        tries = (nvrtc.compile_source(request, machine=False)[0] for _ in range(TRIES))
        if note["nvrtc"] == nvrtc.version() and not any(text == fresh for fresh in tries):
            problems.append(f"different text: {request.filename} {request.options}")
    return problems


def main(arguments: list[str]) -> int:
    """``python -m texlab.compiler ship | check``."""
    if arguments == ["ship"]:
        print(f"{len(ship())} files in {SHIPPED}")
        return 0
    if arguments == ["check"]:
        problems = check_shipped()
        print("\n".join(problems) or "the shipped PTX is fresh")
        return bool(problems)
    print("usage: python -m texlab.compiler ship | check")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
