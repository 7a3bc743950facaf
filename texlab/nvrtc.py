"""NVRTC, NVIDIA's run-time compiler: one call from source to PTX or machine code, with no GPU and no driver; its log as
resources, or as an error that quotes the Program's own lines."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from texlab.program import DeviceError

STATIC_SHARED_LIMIT = 48 * 1024  # bytes; more is dynamic, asked for at launch


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
class Resources:
    """What one entry uses, as ptxas reports it; bytes are per thread, except ``shared_bytes`` (static, per block)."""

    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    constant_bytes: int


@dataclass(frozen=True)
class Request:
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
        from_options = any(re.match(r"--?(I|include-path|pre-include|include|use-pch|pch)", o) for o in self.options)
        return from_options or re.search(r'^\s*#\s*include\s*"', self.source, flags=re.MULTILINE) is not None


# the library ----------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1)
def library() -> Any:
    """The module cuda.bindings.nvrtc, known to work; DeviceError, with the remedy, if it does not."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
        return nvrtc
    except Exception as error:  # ImportError, or what the loader raises when libnvrtc is missing
        raise DeviceError(
            f"NVRTC, the CUDA compiler library, cannot be used here ({type(error).__name__}: {error}). On Linux and "
            'Windows: pip install "cuda-bindings" "nvidia-cuda-nvrtc" "nvidia-cuda-runtime". There is none for macOS: '
            "there, the simulator runs what ships compiled with texlab."
        ) from error


def _check(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    status, *rest = answer
    if status != 0:
        raise CompileError(f"NVRTC failed: {library().nvrtcGetErrorString(status)[1].decode()}")
    return tuple(rest)


def version() -> str:
    """Version of the NVRTC in use, e.g. "13.5"; DeviceError, with the remedy, if there is none."""
    return ".".join(map(str, _check(library().nvrtcVersion())))


def supported_archs() -> list[str]:
    """Architectures this NVRTC compiles for (architecture-specific ones, such as sm_90a, not listed)."""
    return [f"sm_{n}" for n in _check(library().nvrtcGetSupportedArchs())[0]]


@functools.lru_cache(maxsize=1)
def include_dir() -> Path | None:
    """Folder with cuda_fp16.h: the nvidia-cuda-runtime wheel, or an installed toolkit."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    places = [p / name / "include" for p in wheels for name in ("cu13", "cuda_runtime", "cu12")]
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        places += [Path(os.environ[variable]) / "include"] if os.environ.get(variable) else []
    return next((p for p in [*places, Path("/usr/local/cuda/include")] if (p / "cuda_fp16.h").exists()), None)


def toolchain(request: Request) -> str:
    """The compiler's identity, and the CUDA headers' if the source includes any."""
    from importlib import metadata

    try:
        build = metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        build = ""
    headers = include_dir() if "#include" in request.source else None
    stamp = (headers / "cuda_fp16.h").stat() if headers else None
    return f"{version()} {build} {headers} {(stamp.st_size, stamp.st_mtime_ns) if stamp else ''}"


def compile_source(request: Request, machine: bool) -> tuple[str, bytes, str]:
    """PTX, machine code (b"" unless ``machine``) and log."""
    nvrtc = library()
    if re.sub(r"[af]$", "", request.arch) not in supported_archs():
        raise CompileError(
            f"arch={request.arch}: NVRTC {version()} compiles for {', '.join(supported_archs())}; "
            "a newer card needs a newer nvidia-cuda-nvrtc"
        )
    target = request.arch if machine else request.arch.replace("sm_", "compute_")
    options = [f"--gpu-architecture={target}", *request.options]
    if machine:
        options += ["--ptxas-options=-v", "--no-cache"]  # from its own cache NVRTC gives code but no report
    if include_dir() and "#include" in request.source:
        options.append(f"-I{include_dir()}")
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
    buffer = b" " * (n + 1)  # NVRTC writes into it: never the interpreter's one shared b" ", which b" " * 1 would be
    _check(get(handle, buffer))
    return buffer[:n]


def parse_resources(log: str) -> dict[str, Resources]:
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


def _refusal(request: Request, log: str) -> CompileError:
    """NVRTC's or ptxas' log as a CompileError that quotes the Program's own lines."""
    shared = re.findall(r"Entry function '([^']*)' uses too much shared data \((0x[0-9a-f]+) bytes", log)
    if shared:
        texts = [
            f"kernel {name!r} declares {int(size, 16)} bytes of static shared memory; "
            f"the limit is {STATIC_SHARED_LIMIT}: shrink it, or make it dynamic (extern __shared__ in the source, "
            "shared_bytes in the Launch)"
            for name, size in shared
        ]
        message = "\n".join(f"{request.filename}: {text}" for text in texts)
        return CompileError(message, [Diagnostic(request.filename, 0, text) for text in texts])
    found = _ptxas_messages(request, log) + _front_end_messages(request, log)
    if not found:
        return CompileError(f"{request.filename}: {log.strip()}")
    return CompileError("\n".join(text for text, _ in found), [d for _, d in found])


def _front_end_messages(request: Request, log: str) -> list[tuple[str, Diagnostic]]:
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


def _ptxas_messages(request: Request, log: str) -> list[tuple[str, Diagnostic]]:
    """What ptxas says of inline PTX, traced back to the source line through the PTX's ``.loc`` directives."""
    complaints = re.findall(r"ptxas .*?line (\d+); error\s*: (.*)", log)
    if not complaints:
        return []
    text = compile_source(request, machine=False)[0].splitlines()
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
