"""The compiler: PTX, machine code, resources, signatures, errors with the source's own lines, cache, shipped PTX."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from texlab import compiler, nvrtc
from texlab.catalog import kernels
from texlab.compiler import Param, bind, cubin, params, ptx, resources
from texlab.nvrtc import CompileError
from texlab.program import DeviceError, Program
from texlab.shapes import ConvShape

try:
    nvrtc.library()
    NO_NVRTC = None
except DeviceError as error:
    NO_NVRTC = str(error)
needs_nvrtc = pytest.mark.skipif(NO_NVRTC is not None, reason=f"{NO_NVRTC}")

SMALL = ConvShape(n=1, c=3, h=9, w=8, k=5, r=3, s=3)
SOURCE = """#line 1 "common.cuh"
// pasted in front
__device__ int at() { return blockIdx.x * blockDim.x + threadIdx.x; }
#line 1 "kernel.cu"
struct Shape { int a; long long b; };
extern "C" __global__ void reverse(const float* x, Shape s, float scale, char c, short h, double d, float* y) {
  __shared__ float tile[33 * 32];
\ttile[threadIdx.x] = x[at()] * scale;
  __syncthreads();
  y[at()] = tile[threadIdx.x ^ 31] + s.a + c + h + (float)d;
}
extern "C" __global__ void nothing() {}
"""


def program(source: str = SOURCE, **how) -> Program:
    return Program("test", source, (), (), filename="kernel.cu", **how)


def refusal(source: str, build=cubin, **how) -> CompileError:
    with pytest.raises(CompileError) as caught:
        build(program(source, **how), "sm_90")
    return caught.value


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache on disk and in memory."""
    monkeypatch.setenv("TEXLAB_CACHE_DIR", str(tmp_path))
    for layer in (compiler._ptx, compiler._machine):
        layer.cache_clear()
    return tmp_path


@needs_nvrtc
def test_ptx_carries_the_files_and_lines_of_the_pasted_sources():
    text = ptx(program())
    assert ".target sm_90" in text
    assert dict(re.findall(r'\.file\s+(\d+) "([^"]*)"', text)).keys() == {"1", "2"}
    assert set(re.findall(r'\.file\s+\d+ "([^"]*)"', text)) == {"kernel.cu", "common.cuh"}
    assert re.search(r"\.loc\s+1 4 ", text)


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_machine_code_for_every_generation_without_a_gpu(arch):
    code = cubin(program(), arch)
    assert code[:4] == b"\x7fELF"
    assert f".target {arch}" in ptx(program(), arch)


@needs_nvrtc
def test_machine_code_is_whole():
    """The section header table is the ELF file's end: one byte short, and this fails."""
    code = cubin(program(), "sm_90")
    table, entry, count = (int.from_bytes(code[a:b], "little") for a, b in ((0x28, 0x30), (0x3A, 0x3C), (0x3C, 0x3E)))
    program_headers, program_entry, program_count = (
        int.from_bytes(code[a:b], "little") for a, b in ((0x20, 0x28), (0x36, 0x38), (0x38, 0x3A))
    )
    assert len(code) >= max(table + entry * count, program_headers + program_entry * program_count)


@needs_nvrtc
def test_resources():
    found = resources(program())
    assert found["reverse"].shared_bytes == 33 * 32 * 4
    assert 5 < found["reverse"].registers < 64
    assert found["reverse"].spill_bytes == found["reverse"].stack_bytes == 0
    assert set(found) == {"reverse", "nothing"}


@needs_nvrtc
def test_spills_are_counted():
    source = """extern "C" __global__ void __launch_bounds__(1024, 2) k(float* x) {
      float v[96]; for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
      __syncthreads(); for (int j = 0; j < 96; ++j) x[j * 1024 + threadIdx.x] = v[95 - j] * v[j]; }"""
    source = source.replace("for (", '_Pragma("unroll") for (')
    assert resources(program(source))["k"].spill_bytes > 0


def test_log_of_ptxas_as_resources():
    log = """ptxas info    : Compiling entry function 'k' for 'sm_75'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 4224 bytes smem, 396 bytes cmem[0]
"""
    assert nvrtc.parse_resources(log) == {"k": nvrtc.Resources(40, 4224, 44, 16, 396)}


# signatures -----------------------------------------------------------------------------------------------------
@needs_nvrtc
def test_signature_from_ptx():
    u64 = Param("u64", 8)
    assert [p.size for p in params(ptx(program()), "reverse")] == [8, 16, 4, 1, 2, 8, 8]
    assert params(ptx(program()), "reverse")[0] == u64
    assert params(ptx(program()), "reverse")[1:3] == (Param("b8", 16), Param("f32", 4))
    assert params(ptx(program()), "nothing") == ()


def test_signature_forms():
    text = """.visible .entry k_more(.param .u64 k_more_0)
.visible .entry k(
 .param .u64 .ptr .global .align 16 k_param_0,
 .param .align 64 .b8 k_param_1[128],
 .param .b32 k_param_2
)
.maxntid 256, 1, 1
{"""
    assert params(text, "k") == (Param("u64", 8), Param("b8", 128), Param("b32", 4))
    with pytest.raises(CompileError, match=r"no kernel 'kk'.*'k_more', 'k'.*extern \"C\""):
        params(text, "kk")


@pytest.mark.parametrize(
    ("value", "param", "want"),
    [
        (0.1, Param("f32", 4), np.float32(0.1)),
        (3, Param("f32", 4), np.float32(3)),
        (np.float64(0.1), Param("f32", 4), np.float32(0.1)),
        (0.1, Param("f64", 8), np.float64(0.1)),
        (-1, Param("u32", 4), np.int32(-1)),
        (2**32 - 1, Param("s32", 4), np.uint32(2**32 - 1)),
        (2**63 + 5, Param("u64", 8), np.uint64(2**63 + 5)),
        (np.int64(7), Param("u16", 2), np.uint16(7)),
        (True, Param("u8", 1), np.uint8(1)),
        (None, Param("u64", 8), np.uint64(0)),
    ],
)
def test_bind_scalars(value, param, want):
    got = bind(value, param, "k, argument 0")
    assert got.tobytes() == want.tobytes()
    assert got.nbytes == param.size


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        (1.5, Param("u32", 4), r"k, argument 0: 1.5 \(float\).*whole number"),
        (2**32, Param("u32", 4), "does not fit into .u32"),
        (None, Param("u32", 4), "null pointer"),
        (None, Param("f64", 8), "null pointer"),
        (3, Param("b8", 16), "a struct of 16 bytes"),
        (np.zeros((), "i4,i4"), Param("b8", 16), "this has 8 bytes"),
        (np.zeros((), "i4,i4"), Param("u64", 4), "this has 8 bytes"),
        (np.zeros(3), Param("u64", 8), "shape \\(3,\\).*name a buffer"),
        ("x", Param("u64", 8), "whole number"),
        ("x", Param("f32", 4), "takes .f32"),
    ],
)
def test_bind_refuses(value, param, message):
    with pytest.raises(ValueError, match=message):
        bind(value, param, "k, argument 0")


def test_bind_structs_are_copies():
    struct = np.array((1, 2), "i4,i8")
    bound = bind(struct, Param("b8", 12), "k, argument 0")
    struct["f0"] = 9
    assert bound["f0"] == 1
    assert bind(np.float16(1.5), Param("b8", 2), "").tobytes() == np.float16(1.5).tobytes()


# errors -----------------------------------------------------------------------------------------------------------
@needs_nvrtc
def test_error_names_file_line_and_quotes_the_source():
    error = refusal(SOURCE.replace("* scale;", "* scal;"))
    (d,) = error.diagnostics
    assert (d.file, d.line, d.source) == ("kernel.cu", 4, "\ttile[threadIdx.x] = x[at()] * scal;")
    first, quote, caret = str(error).splitlines()
    assert first == 'kernel.cu(4): error: identifier "scal" is undefined'
    assert quote[2:] == d.source
    assert quote[: len(caret)].endswith("s"), "the caret stands under the name"


@needs_nvrtc
def test_error_in_the_pasted_header():
    (d,) = refusal(SOURCE.replace("blockDim.x +", "blockDin.x +")).diagnostics
    assert (d.file, d.line) == ("common.cuh", 2)


@needs_nvrtc
def test_every_error_is_listed_and_notes_are_kept():
    error = refusal(SOURCE.replace("* scale;", "* scal;").replace("s.a", "s.q"))
    assert [d.line for d in error.diagnostics] == [4, 6]
    error = refusal(
        'template <int N> __device__ int f() { static_assert(N > 3, "N is small"); return N; }\n'
        'extern "C" __global__ void k(int* x) { x[0] = f<2>(); }'
    )
    assert "N is small" in str(error)
    assert "[with N=2]" in str(error)


@needs_nvrtc
def test_missing_header_and_error_directive():
    assert "cstdlib.h" in str(refusal('#include <cstdlib.h>\nextern "C" __global__ void k() {}'))
    (d,) = refusal('\n#error BLOCK must be 32\nextern "C" __global__ void k() {}').diagnostics
    assert d.line == 2
    assert "BLOCK must be 32" in d.message


@needs_nvrtc
def test_half_precision_headers_come_from_the_wheel():
    assert "f16" in ptx(
        program('#include <cuda_fp16.h>\nextern "C" __global__ void k(half* x) { *x = __hadd(*x, *x); }')
    )


@needs_nvrtc
def test_refused_inline_ptx_is_traced_back_to_its_line():
    (d,) = refusal('extern "C" __global__ void k(int* p) {\n  *p = 2;\n  asm volatile("foo.u32;");\n}').diagnostics
    assert (d.file, d.line) == ("kernel.cu", 3)
    assert "foo" in d.message


@needs_nvrtc
@pytest.mark.parametrize(("words", "fits"), [(12288, True), (12289, False)])
def test_static_shared_memory_stops_at_48_kb(words, fits):
    source = f"""extern "C" __global__ void k(float* y) {{ __shared__ float t[{words}];
      t[threadIdx.x] = y[threadIdx.x]; __syncthreads(); y[threadIdx.x] = t[threadIdx.x ^ 1]; }}"""
    assert f"[{4 * words}]" in ptx(program(source)), "PTX itself has no limit"
    if fits:
        assert resources(program(source))["k"].shared_bytes == 49152
    else:
        assert re.search("'k' declares 49156 bytes .* limit is 49152.*extern __shared__", str(refusal(source)))


@needs_nvrtc
def test_unknown_architectures():
    with pytest.raises(CompileError, match="arch='90'"):
        ptx(program(), "90")
    with pytest.raises(CompileError, match=r"NVRTC .* compiles for .*sm_90"):
        ptx(program(), "sm_999")
    with pytest.raises(CompileError, match=r"begin with sm_75.*sm_50"):
        ptx(program(), "sm_50")


# cache --------------------------------------------------------------------------------------------------------------
@needs_nvrtc
def test_defines_reach_the_compiler_and_its_cache(cache):
    source = 'extern "C" __global__ void k(int* x) { *x = N; }'
    assert "1234567" in ptx(program(source, defines={"N": 1234567}))
    assert "7654321" in ptx(program(source, defines={"N": 7654321}))
    assert ", 1;" in ptx(program(source, defines={"N": True}))


@needs_nvrtc
def test_a_second_process_compiles_nothing(cache, monkeypatch):
    first = ptx(program()), cubin(program(), "sm_80")
    compiler._ptx.cache_clear(), compiler._machine.cache_clear()
    monkeypatch.setattr(nvrtc, "compile_source", lambda *_: pytest.fail("compiled again"))
    assert (ptx(program()), cubin(program(), "sm_80")) == first


@needs_nvrtc
@pytest.mark.parametrize("damage", [b"", b"half of it", b"\0" * 5000])
def test_damaged_entries_are_rebuilt(cache, damage):
    want = ptx(program())
    (entry,) = (cache / "ptx").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage)
    compiler._ptx.cache_clear()
    assert ptx(program()) == want
    assert entry.read_bytes() == whole


@needs_nvrtc
def test_no_temporary_files_stay_and_failures_are_not_kept(cache):
    ptx(program())
    refusal(SOURCE.replace("scale;", "scal;"))
    assert [len(p.name) for p in cache.rglob("*") if p.is_file()] == [64]


@needs_nvrtc
def test_an_unwritable_cache_warns_and_works(cache, monkeypatch):
    blocked = cache / "file"
    blocked.write_text("")
    monkeypatch.setenv("TEXLAB_CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match="TEXLAB_CACHE_DIR"):
        assert ".entry reverse" in ptx(program())


@needs_nvrtc
def test_headers_of_ones_own_are_never_cached(cache, tmp_path):
    header = tmp_path / "n.h"
    p = program('#include <n.h>\nextern "C" __global__ void k(int* x) { *x = N; }', options=(f"-I{tmp_path}",))
    for number in ("1234567", "7654321"):
        header.write_text(f"#define N {number}\n")
        assert number in ptx(p)


@needs_nvrtc
def test_threads_compile_once(cache, monkeypatch):
    calls = []
    real = nvrtc.compile_source
    monkeypatch.setattr(nvrtc, "compile_source", lambda *a, **k: calls.append(1) or real(*a, **k))
    threads = [threading.Thread(target=ptx, args=(program(),)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(calls) == 1


@needs_nvrtc
def test_a_hit_takes_under_a_millisecond():
    p = program()
    ptx(p)
    best = min(_seconds(lambda: ptx(p)) for _ in range(20))
    assert best < 1e-3


def _seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


# shipped PTX ----------------------------------------------------------------------------------------------------------
@needs_nvrtc
def test_shipped_ptx_is_fresh():
    assert compiler.check_shipped() == [], "run: python -m texlab.compiler ship"


def test_the_catalog_runs_without_nvrtc(tmp_path):
    """A process in which NVRTC cannot be imported still has PTX and resources for every kernel's defaults."""
    script = """
import sys
sys.modules["cuda.bindings.nvrtc"] = sys.modules["cuda.bindings"] = None
from texlab import compiler
from texlab.catalog import kernels
from texlab.program import DeviceError
from texlab.shapes import ConvShape
shape = ConvShape(n=2, c=5, h=9, w=8, k=7, r=3, s=2)
for kernel in kernels.values():
    program = kernel.program(shape)
    text = compiler.ptx(program)
    for launch in program.launches:
        assert compiler.params(text, launch.entry)
        assert compiler.resources(program)[launch.entry].registers > 0
try:
    compiler.cubin(program, "sm_90")
except DeviceError as error:
    assert "pip install" in str(error) and "macOS" in str(error)
else:
    raise SystemExit("no error without NVRTC")
try:
    compiler.ptx(kernels["copy"].program(shape, BLOCK=32))
except DeviceError as error:
    assert str(error).endswith("Of copy.cu there are: ['defaults']"), error
else:
    raise SystemExit("no error without NVRTC")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TEXLAB_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "nothing was compiled"


def test_what_the_bank_explorer_offers_is_shipped():
    scenarios = pytest.importorskip("texlab.explore.bank_scenarios").SCENARIOS
    for scenario in scenarios.values():
        program = kernels[scenario.kernel].program(SMALL, **scenario.tunables)
        assert compiler._read_shipped(compiler._request(program, compiler.SIM_ARCH)), scenario


@needs_nvrtc
def test_ship_is_repeatable_and_removes_what_is_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SHIPPED", tmp_path)
    (tmp_path / "variants.json").write_text("{}")
    (tmp_path / "0123.ptx.gz").write_bytes(b"old")
    monkeypatch.setattr("texlab.catalog.kernels", {"copy": kernels["copy"]})
    assert [p.split(":")[0] for p in compiler.check_shipped()] == ["stale", "missing"]
    (name,) = compiler.ship()
    first = (tmp_path / name).read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {name, "variants.json"}
    compiler.ship()
    assert (tmp_path / name).read_bytes() == first
    assert compiler.check_shipped() == []
    compiler._read_shipped.cache_clear(), compiler._ptx.cache_clear()
