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

import functools
import gzip
import hashlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from texlab.program import DeviceError, Program

SIM_ARCH = "sm_90"  # what the simulator compiles for
STATIC_SHARED_LIMIT = 48 * 1024  # bytes; more is dynamic, asked for at launch
SHIPPED = Path(__file__).parent / "data" / "ptx"
_RESOURCES_NOTE = "// texlab "  # first line of a shipped file: JSON with resources and what built it
_lock = threading.RLock()  # one compilation at a time; two threads that want the same one get it once


@dataclass(frozen=True)
class Diagnostic:
    """One compiler message: ``line`` counts from 1 in ``file``; ``source`` is that line's text ("" if unknown)."""

    file: str
    line: int
    message: str
    source: str = ""


class CompileError(RuntimeError):
    """The compiler refused the source. The message quotes the offending lines; ``diagnostics`` lists them."""

    def __init__(self, message: str, diagnostics: Iterable[Diagnostic] = ()) -> None:
        super().__init__(message)
        self.diagnostics = list(diagnostics)


@dataclass(frozen=True)
class Param:
    """A kernel parameter as PTX declares it: ``type`` "u64", "f32", ... or "b8" for a struct; ``size`` in bytes."""

    type: str
    size: int


@dataclass(frozen=True)
class Resources:
    """What one entry uses, as ptxas reports it; bytes are per thread, except ``shared_bytes`` (static, per block)."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    constant_bytes: int


# public -------------------------------------------------------------------------------------------------------
def ptx(program: Program, arch: str = SIM_ARCH) -> str:
    """The PTX of a Program for one architecture ("sm_75" ... "sm_120", "sm_90a", ...), with line information.

    Raises CompileError (with the Program's own file and line), DeviceError if NVRTC is needed and missing.
    """
    return _ptx(_request(program, arch))


def cubin(program: Program, arch: str) -> bytes:
    """Machine code for exactly one architecture, straight from NVRTC, so that the driver's own compiler, which may be
    older than the PTX, is never asked. Raises as ``ptx``, and CompileError for what only ptxas refuses."""
    return _machine(_request(program, arch))[0]


def resources(program: Program, arch: str = SIM_ARCH) -> dict[str, Resources]:
    """Entry -> registers, static shared memory, spills: needs no GPU. Raises as ``cubin``."""
    request = _request(program, arch)
    shipped = _read_shipped(request)
    if shipped is not None:
        return {name: Resources(**values) for name, values in shipped[1]["resources"].items()}
    return dict(_machine(request)[1])


@functools.lru_cache(maxsize=1024)
def params(ptx_text: str, entry: str) -> tuple[Param, ...]:
    """The parameters of one entry of a PTX text, in order; CompileError if there is no such entry."""
    match = re.search(rf"\.entry\s+{re.escape(entry)}\s*(?:\(([^)]*)\))?", ptx_text)
    if match is None or not re.match(r"[\s({.]", ptx_text[match.end(0) :][:1] or " "):
        raise CompileError(
            f"no kernel {entry!r}; the source has {entries(ptx_text)}. C++ changes the names of functions: "
            f'declare it extern "C" __global__ void {entry}(...)'
        )
    out = []
    for text in (match.group(1) or "").split(","):
        if text.strip():
            kind = re.search(r"\.(?:[usbf]\d+(?:x2)?|pred)\b", text.replace(".param", "", 1))
            length = re.search(r"\[(\d+)\]", text)
            width = int(re.sub(r"\D", "", kind.group(0)[:4])) // 8
            out.append(Param(kind.group(0)[1:], width * (int(length.group(1)) if length else 1)))
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


def nvrtc_version() -> str:
    """Version of the NVRTC in use, e.g. "13.5"; DeviceError, with the remedy, if there is none."""
    return ".".join(map(str, _check(_nvrtc().nvrtcVersion())))


def supported_archs() -> list[str]:
    """Architectures this NVRTC compiles for (architecture-specific ones, such as sm_90a, not listed)."""
    return [f"sm_{n}" for n in _check(_nvrtc().nvrtcGetSupportedArchs())[0]]


# requests -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Request:
    """All that NVRTC sees of a Program, hashable."""

    source: str
    filename: str
    options: tuple[str, ...]
    arch: str

    @functools.cached_property
    def key(self) -> str:
        text = json.dumps([self.source, self.filename, self.options, self.arch])
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    @property
    def own_headers(self) -> bool:
        """True if files that we do not see decide the result: then nothing is kept on disk."""
        return any(re.match(r"--?(I|include-path|pre-include|include|use.pch|pch)", o) for o in self.options)


def _request(program: Program, arch: str) -> _Request:
    if not re.fullmatch(r"sm_\d+[af]?", arch):
        raise CompileError(f"arch={arch!r}: expected sm_ and a number, such as sm_90 or sm_90a")
    return _Request(program.source, program.filename, _options(program), arch)


def _options(program: Program) -> tuple[str, ...]:
    defines = [f"-D{name}={_macro(value)}" for name, value in sorted(program.defines.items())]
    return ("-std=c++17", "-lineinfo", *defines, *program.options)


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


# layers -------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=512)
def _ptx(request: _Request) -> str:
    shipped = _read_shipped(request)
    if shipped is not None:
        return shipped[0]
    return _cached("ptx", request, lambda: _compile(request, machine=False)[0].encode()).decode()


@functools.lru_cache(maxsize=512)
def _machine(request: _Request) -> tuple[bytes, dict[str, Resources]]:
    def build() -> bytes:
        _, code, log = _compile(request, machine=True)
        report = {name: asdict(r) for name, r in _parse_resources(log).items()}
        return json.dumps(report).encode() + b"\n" + code

    report, _, code = _cached("cubin", request, build).partition(b"\n")
    return code, {name: Resources(**r) for name, r in json.loads(report).items()}


@functools.lru_cache(maxsize=512)
def _read_shipped(request: _Request) -> tuple[str, dict[str, Any]] | None:
    path = SHIPPED / f"{request.key}.ptx.gz"
    if not path.exists():
        return None
    note, _, text = gzip.decompress(path.read_bytes()).decode().partition("\n")
    return text, json.loads(note.removeprefix(_RESOURCES_NOTE))


def cache_dir() -> Path:
    """Where compiled code is kept; deleting it is always safe."""
    own = os.environ.get("TEXLAB_CACHE_DIR")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "texlab"


def _cached(kind: str, request: _Request, build: Callable[[], bytes]) -> bytes:
    """``build()``, kept on disk under a name that says all it depends on, behind a checksum."""
    with _lock:
        if request.own_headers:
            return build()
        tools = f"{kind}\0{request.key}\0{_toolchain(request)}".encode()
        path = cache_dir() / kind / hashlib.sha256(tools).hexdigest()
        try:
            digest, _, data = path.read_bytes().partition(b"\n")
            if digest == hashlib.sha256(data).hexdigest().encode():
                return data
        except OSError:
            pass  # not there yet, or not readable: build it
        data = build()
        _write(path, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        return data


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
        warnings.warn(f"texlab keeps no compiled code: {error}. Set TEXLAB_CACHE_DIR to a folder you can write to.")


# NVRTC --------------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def _nvrtc() -> Any:
    """The module cuda.bindings.nvrtc, known to work."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
        return nvrtc
    except Exception as error:  # ImportError, or what the loader raises when libnvrtc is missing
        raise DeviceError(
            f"NVRTC, the CUDA compiler library, cannot be used here ({type(error).__name__}: {error}). On Linux and "
            'Windows: pip install "cuda-bindings" "nvidia-cuda-nvrtc" "nvidia-cuda-runtime". There is none for macOS: '
            "there, the kernels run with their default tunables, whose PTX ships with texlab."
        ) from error


def _check(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *rest = answer
    if status != 0:
        raise CompileError(f"NVRTC failed: {_nvrtc().nvrtcGetErrorString(status)[1].decode()}")
    return tuple(rest)


@functools.lru_cache(maxsize=1)
def _include_dir() -> Path | None:
    """Folder with cuda_fp16.h: the nvidia-cuda-runtime wheel, or an installed toolkit."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    places = [p / name / "include" for p in wheels for name in ("cu13", "cuda_runtime", "cu12")]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        places += [Path(os.environ[variable]) / "include"] if os.environ.get(variable) else []
    return next((p for p in [*places, Path("/usr/local/cuda/include")] if (p / "cuda_fp16.h").exists()), None)


def _toolchain(request: _Request) -> str:
    """The compiler's identity, and the CUDA headers' if the source includes any."""
    from importlib import metadata

    try:
        build = metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        build = ""
    headers = _include_dir() if "#include" in request.source else None
    stamp = (headers / "cuda_fp16.h").stat() if headers else None
    return f"{nvrtc_version()} {build} {headers} {(stamp.st_size, stamp.st_mtime_ns) if stamp else ''}"


def _compile(request: _Request, machine: bool) -> tuple[str, bytes, str]:
    """PTX, machine code (b"" unless ``machine``) and log."""
    nvrtc = _nvrtc()
    if re.sub(r"[af]$", "", request.arch) not in supported_archs():
        raise CompileError(
            f"arch={request.arch}: NVRTC {nvrtc_version()} compiles for {', '.join(supported_archs())}; "
            "a newer card needs a newer nvidia-cuda-nvrtc"
        )
    target = request.arch if machine else request.arch.replace("sm_", "compute_")
    options = [f"--gpu-architecture={target}", *request.options]
    if machine:
        options.append("--ptxas-options=-v")
    if _include_dir() and "#include" in request.source:
        options.append(f"-I{_include_dir()}")
    (handle,) = _check(nvrtc.nvrtcCreateProgram(request.source.encode(), request.filename.encode(), 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(handle, len(options), [o.encode() for o in options])
        log = _fetch(handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0 ").decode()
        if status != 0:
            raise _refusal(request, log or nvrtc.nvrtcGetErrorString(status)[1].decode())
        text = _fetch(handle, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
        code = _fetch(handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if machine else b""
    finally:
        nvrtc.nvrtcDestroyProgram(handle)
    # NVRTC writes the current folder in front of file names: the text must not depend on where it was built
    text = re.sub(r'^(\s*\.file\s+\d+ ")[^"]*[/\\]([^"/\\]+")', r"\1\2", text, flags=re.MULTILINE)
    return text, code, log


def _fetch(handle: Any, size: Callable, get: Callable) -> bytes:
    (n,) = _check(size(handle))
    buffer = b" " * n
    _check(get(handle, buffer))
    return buffer


def _parse_resources(log: str) -> dict[str, Resources]:
    out = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        numbers = {
            unit: sum(int(n) for n in re.findall(rf"(\d+) {unit}", part))
            for unit in ("bytes stack frame", "bytes spill stores", "bytes spill loads", "registers", "bytes smem")
        }
        constant = sum(int(n) for n in re.findall(r"(\d+) bytes cmem\[", part))
        out[re.match(r"'([^']*)'", part).group(1)] = Resources(
            registers=numbers["registers"],
            shared_bytes=numbers["bytes smem"],
            spill_bytes=numbers["bytes spill stores"] + numbers["bytes spill loads"],
            stack_bytes=numbers["bytes stack frame"],
            constant_bytes=constant,
        )
    return out


# errors -------------------------------------------------------------------------------------------------------
def source_lines(source: str, filename: str) -> dict[tuple[str, int], str]:
    """(file, line) -> text of a pasted-together source, following its ``#line`` directives.

    >>> source_lines('#line 7 "a.cuh"\\nint x;\\n', "k.cu")[("a.cuh", 7)]
    'int x;'
    """
    out: dict[tuple[str, int], str] = {}
    file, number = filename, 0
    for text in source.splitlines():
        number += 1
        directive = re.match(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"([^"]*)")?\s*$', text)
        if directive:
            number, file = int(directive.group(1)) - 1, directive.group(2) or file
        else:
            out[file, number] = text
    return out


def _refusal(request: _Request, log: str) -> CompileError:
    """NVRTC's or ptxas' log as a CompileError that quotes the Program's own lines."""
    shared = re.findall(r"Entry function '([^']*)' uses too much shared data \((0x[0-9a-f]+) bytes", log)
    if shared:
        return CompileError(
            "\n".join(
                f"{request.filename}: kernel {name!r} declares {int(size, 16)} bytes of static shared memory; the limit "
                f"is {STATIC_SHARED_LIMIT}. Shrink it, or make it dynamic: extern __shared__ in the source and "
                f"shared_bytes={int(size, 16)} in the Launch"
                for name, size in shared
            ),
            [Diagnostic(request.filename, 0, f"{int(s, 16)} bytes of static shared memory") for _, s in shared],
        )
    found = [d for d in _ptxas_messages(request, log) + _front_end_messages(request, log)]
    if not found:
        return CompileError(f"{request.filename}: {log.strip()}")
    return CompileError("\n".join(text for text, _ in found), [d for _, d in found])


def _front_end_messages(request: _Request, log: str) -> list[tuple[str, Diagnostic]]:
    lines = source_lines(request.source, request.filename)
    out: list[tuple[str, Diagnostic]] = []
    head = re.compile(r"^(\S.*?)\((\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: (.*)$")
    blocks = re.split(r"\n(?=\S.*?\(\d+\): )|\n\s*\n", log)
    for i, block in enumerate(blocks):
        first, *rest = block.strip("\n").splitlines() or [""]
        match = head.match(first)
        if not match:
            continue
        while i + 1 < len(blocks) and re.match(r"\S.*?\(\d+\): note", blocks[i + 1]):
            i += 1  # notes explain the error before them
            rest += blocks[i].splitlines()
        file, line, message = match.group(1), int(match.group(2)), match.group(3)
        source = lines.get((file, line), "")
        if not source and len(rest) > 1 and rest[1].strip() == "^":
            source = rest[0][2:]  # a header's line, as the compiler quotes it
        text = f"{file}({line}): error: {message}"
        if source and len(rest) > 1 and rest[1].strip() == "^":
            text += f"\n  {source}\n{_caret(source, rest[1])}"
            rest = rest[2:]
        elif source:
            text += f"\n  {source.strip()}"
        notes = "\n".join(r for r in rest if r.strip())
        out.append((text + (f"\n{notes}" if notes else ""), Diagnostic(file, line, message, source)))
    return out


def _caret(source: str, caret: str) -> str:
    """NVRTC's caret line under our own copy of the source line, tabs kept so that both are indented alike."""
    column = len(caret.rstrip()) - 3
    return "  " + "".join("\t" if c == "\t" else " " for c in source[:column].ljust(column)) + "^"


def _ptxas_messages(request: _Request, log: str) -> list[tuple[str, Diagnostic]]:
    """What ptxas says of inline PTX, traced back to the source line through the PTX's ``.loc`` directives."""
    complaints = re.findall(r"ptxas .*?line (\d+); error\s*: (.*)", log)
    if not complaints:
        return []
    text = _compile(request, machine=False)[0].splitlines()
    files = dict(re.findall(r'\.file\s+(\d+) "([^"]*)"', "\n".join(text)))
    lines = source_lines(request.source, request.filename)
    out = []
    for number, message in complaints:
        loc = next((m for t in text[int(number) - 1 :: -1] if (m := re.match(r"\s*\.loc\s+(\d+) (\d+)", t))), None)
        file, line = (files.get(loc.group(1), request.filename), int(loc.group(2))) if loc else (request.filename, 0)
        source = lines.get((file, line), "")
        where = f"{file}({line}): error: {message} (in the PTX: {text[int(number) - 1].strip()})"
        out.append((where + (f"\n  {source}" if source else ""), Diagnostic(file, line, message, source)))
    return out


# shipped PTX --------------------------------------------------------------------------------------------------
def _shipped_requests() -> dict[str, _Request]:
    """File name -> request, for the catalog's default tunables and the notebooks' variants."""
    from texlab.catalog import kernels
    from texlab.shapes import ConvShape

    variants = json.loads((SHIPPED / "variants.json").read_text())
    shape = ConvShape(n=1, c=1, h=3, w=3, k=1, r=3, s=3)  # any shape: kernels take theirs at run time
    programs = [kernels[name].program(shape, **t) for name in kernels for t in [{}, *variants.get(name, [])]]
    requests = [_request(program, SIM_ARCH) for program in programs]
    return {f"{r.key}.ptx.gz": r for r in requests}


def _shipped_bytes(request: _Request) -> bytes:
    text, _, _ = _compile(request, machine=False)
    report = _parse_resources(_compile(request, machine=True)[2])
    note = {
        "file": request.filename,
        "options": request.options,
        "arch": request.arch,
        "nvrtc": nvrtc_version(),
        "resources": {name: asdict(r) for name, r in report.items()},
    }
    return gzip.compress(f"{_RESOURCES_NOTE}{json.dumps(note)}\n{text}".encode(), 9, mtime=0)


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
        if note["nvrtc"] == nvrtc_version() and text != _compile(request, machine=False)[0]:
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
