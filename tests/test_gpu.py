"""Running Programs with CuPy. The first part needs no GPU; the rest is marked ``gpu``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from texlab import compiler, gpu, isolated
from texlab.catalog import kernels
from texlab.program import Buffer, DeviceError, KernelFault, Launch, Program
from texlab.shapes import ConvShape

PTX = ".visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .f32 k_param_1,\n\t.param .align 4 .b8 k_param_2[8]\n)\n{"
SMALL = ConvShape(n=1, c=3, h=9, w=8, k=5, r=3, s=3, padding=1)


def one(source: str, args=("y",), n: int = 4, threads: int = 32, grid=(1, 1, 1), shared=0, **more) -> Program:
    """A program of one launch of ``k`` that writes y (n,) float32."""
    buffers = [Buffer("y", (n,), role="output")]
    if any(isinstance(a, str) and a == "x" for a in args):
        buffers.append(Buffer("x", more.pop("x_shape", (n,)), more.pop("x_dtype", "float32")))
    return Program("test", source, tuple(buffers), (Launch("k", grid, (threads, 1, 1), args, shared),), **more)


# without a GPU --------------------------------------------------------------------------------------------------------
STRUCT = np.zeros((), "i4,i4")


def launch(args=("y", 0.5, STRUCT), grid=(1, 1, 1), block=(32, 1, 1), shared=0) -> Launch:
    return Launch("k", grid, block, args, shared)


def test_arguments_follow_the_signature():
    pointer, scale, struct = gpu.arguments(launch(), PTX, {"y": 0xABC000})
    assert pointer.tobytes() == np.uint64(0xABC000).tobytes()
    assert (scale.dtype, scale) == (np.float32, 0.5)
    assert struct.nbytes == 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("y",), "takes 3 arguments .*u64.* the launch gives 1"),
        (("z", 1.0, np.zeros((), "i8")), "argument 0: no buffer 'z'; the program has .'y'"),
        (("y", "y", np.zeros((), "i8")), "argument 1: buffer 'y' is an address"),
        (("y", 1.0, np.zeros((), "i4")), "argument 2: .*struct of 8 bytes"),
    ],
)
def test_wrong_arguments_are_named(args, message):
    with pytest.raises(ValueError, match=message):
        gpu.arguments(launch(args), PTX, {"y": 0})


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1, 65536, 1), (32, 1, 1), "grid y is 65536.*65535"),
        ((1, 1, 65536), (32, 1, 1), "grid z is 65536"),
        ((2**31, 1, 1), (32, 1, 1), "grid x is 2147483648"),
        ((1, 1, 1), (1, 1, 65), "block z is 65"),
        ((1, 1, 1), (0, 1, 1), "block x is 0"),
        ((1, 1, 1), (64, 32, 1), "2048 threads"),
    ],
)
def test_impossible_launches_are_refused(grid, block, message):
    with pytest.raises(ValueError, match=message):
        gpu.check_geometry(launch(grid=grid, block=block))


def test_empty_grids_are_launches_of_nothing():
    gpu.check_geometry(launch(grid=(0, 1, 1)))


@pytest.mark.parametrize(("shared", "fits"), [(49148, 1), (49152, 1), (65536, 1), (232432, 1), (232448, 0)])
def test_static_shared_memory_counts_against_the_limit(shared, fits):
    if fits:
        gpu.check_shared(launch(shared=shared), static=4, limit=232448)
    else:
        with pytest.raises(ValueError, match=r"232448 bytes of dynamic .* 4 bytes of static.*limit is 232448"):
            gpu.check_shared(launch(shared=shared), static=4, limit=232448)


def test_catalog_programs_are_trusted_and_changed_ones_are_not():
    program = kernels["im2win_zigzag"].program(SMALL)
    assert gpu.trusted(program)
    assert gpu.trusted(kernels["direct"].program(SMALL, BLOCK=64))
    assert not gpu.trusted(replace(program, source=program.source + " "))
    assert not gpu.trusted(replace(program, defines={"LANE_ROW": "lane / 0"}))


def test_traces_come_from_the_simulator():
    with pytest.raises(DeviceError, match="device='sim'"):
        gpu.run(kernels["copy"].program(SMALL), {}, trace=True)


def reasons(setup: str, driver: int = 13000) -> str:
    """why_no_gpu() in a process in which ``setup`` has put something in CuPy's place."""
    script = f"import sys, types\n{setup}\nfrom texlab import gpu\n"
    script += f"gpu.driver_cuda_version = lambda: {driver}\nprint(gpu.why_no_gpu())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout


FAKE = """
def refuse(): raise RuntimeError("{error}")
runtime = types.SimpleNamespace(
    getDeviceCount=refuse, driverGetVersion=lambda: {driver}, runtimeGetVersion=lambda: 13020)
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
"""


def test_reasons_for_no_gpu_are_told_apart(tmp_path):
    hide = "class Hide:\n  def find_spec(self, name, *_):\n    if name == 'cupy':\n"
    hide += "      raise ModuleNotFoundError(name, name=name)\nsys.meta_path.insert(0, Hide())"
    assert 'CuPy is not installed: pip install "cupy-cuda13x' in reasons(hide)
    assert 'CuPy is not installed: pip install "cupy-cuda12x' in reasons(hide, driver=12080)
    assert "no NVIDIA driver is loaded" in reasons(hide, driver=0)
    assert "no NVIDIA driver is loaded" in reasons(FAKE.format(error="insufficient", driver=0))
    assert "CuPy is built for CUDA 13.2 but the NVIDIA driver goes up to 12.4" in reasons(
        FAKE.format(error="insufficient", driver=12040)
    )
    hidden = reasons(
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''" + FAKE.format(error="cudaErrorNoDevice", driver=13000)
    )
    assert "gives no GPU: cudaErrorNoDevice" in hidden
    assert "CUDA_VISIBLE_DEVICES=''" in hidden
    (tmp_path / "cupy.py").write_text("raise OSError('libcublas.so.13: cannot open')")
    broken = reasons(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert "cannot be imported (OSError: libcublas.so.13" in broken
    (tmp_path / "elsewhere" / "cupy").mkdir(parents=True)  # a folder of that name is an empty package
    assert "cannot be imported (AttributeError" in reasons(f"sys.path.insert(0, {str(tmp_path / 'elsewhere')!r})")


@pytest.mark.skipif(gpu.available(), reason="there is a GPU here")
def test_without_a_gpu_the_error_says_why_and_what_works():
    program = kernels["copy"].program(SMALL)
    with pytest.raises(DeviceError, match=r"cannot be used here: .*device='sim' needs no GPU"):
        program.run(device="gpu", x=np.zeros(SMALL.x_shape, "float32"))


# the child process ------------------------------------------------------------------------------------------------
@pytest.fixture
def child():
    isolated.close()
    yield isolated
    isolated.close()


def test_a_child_answers_prints_and_stays(child, capfd):
    first = child.call("os", "getpid")
    assert first != os.getpid()
    assert child.call("os", "getpid") == first
    child.call("builtins", "print", "from the child")
    assert "from the child" in capfd.readouterr().out
    big = np.arange(3_000_000, dtype="float32")
    assert np.array_equal(child.call("numpy", "negative", big), -big)


def test_what_a_child_raises_is_raised_here(child):
    with pytest.raises(ZeroDivisionError):
        child.call("operator", "floordiv", 1, 0)
    with pytest.raises(compiler.CompileError) as caught:
        child.call("texlab.compiler", "params", PTX, "nothing")
    assert caught.value.diagnostics == []
    assert child.call("operator", "add", 1, 2) == 3


def test_a_child_that_dies_or_hangs_is_replaced(child):
    first = child.call("os", "getpid")
    with pytest.raises(isolated.Died, match="ended its process \\(exit 3\\)"):
        child.call("os", "_exit", 3)
    assert child.call("os", "getpid") != first
    start = time.perf_counter()
    with pytest.raises(isolated.Died, match=r"was ended after 0\.5 s"):
        child.call("time", "sleep", 60, limit=0.5)
    assert time.perf_counter() - start < 5
    assert child.call("operator", "add", 1, 2) == 3


# on a GPU -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


TWICE = """extern "C" __global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}"""


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(kernels))
def test_every_kernel_equals_the_simulator(cupy, name):
    program = kernels[name].program(SMALL)
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in program.inputs}
    run = program.run(device="gpu", **arrays)
    want = program.run(device="sim", **arrays)
    assert run.ms > 0
    assert run.arch == f"sm_{cupy.cuda.Device().compute_capability}"
    assert set(run.resources) >= {launch.entry for launch in program.launches}
    for output in want.outputs:
        got = run.outputs[output].get()
        tolerance = max(1e-5, np.finfo(got.dtype).eps)
        np.testing.assert_allclose(got, want.outputs[output], rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("isolate", [False, True])
def test_inputs_of_either_kind_and_any_strides(cupy, isolate):
    """A kernel knows no strides: views, flips and broadcasts are copied before it sees them."""
    base = cupy.arange(200, dtype="float32")
    views = [base[:8], base[1:9], base[::-1][:8], base[::3][:8], cupy.broadcast_to(base[5:6], (8,)), base.get()[8:0:-1]]
    program = one(TWICE, ("x", "y", 8), n=8)
    for x in views:
        y = program.run(device="gpu", isolate=isolate, x=x).output
        assert isinstance(y, cupy.ndarray)
        np.testing.assert_array_equal(y.get(), 2 * cupy.asnumpy(x))


@pytest.mark.gpu
def test_wide_loads_of_a_misaligned_view(cupy):
    source = 'extern "C" __global__ void k(const float4* x, float4* y) { *y = *x; }'
    x = cupy.arange(5, dtype="float32")[1:]
    assert one(source, ("x", "y")).run(device="gpu", isolate=False, x=x).output.get().tolist() == [1, 2, 3, 4]


@pytest.mark.gpu
@pytest.mark.parametrize("value", [2.0, 1.5, 0.1, 3.14])
def test_python_floats_reach_float_parameters(cupy, value):
    program = one(
        'extern "C" __global__ void k(float* y, float a, double b) { y[0] = a; y[1] = b; }', ("y", value, value)
    )
    assert program.run(device="gpu").output.get()[:2].tolist() == [np.float32(value)] * 2


@pytest.mark.gpu
def test_structs_nulls_and_small_types(cupy):
    source = """struct S { int a; double b; char c; };
    extern "C" __global__ void k(float* y, S s, const float* none, char c, unsigned short h) {
      y[0] = s.a; y[1] = s.b; y[2] = s.c + c; y[3] = none == nullptr ? h : -1; }"""
    struct = np.zeros((), np.dtype([("a", "i4"), ("b", "f8"), ("c", "i1")], align=True))
    struct["a"], struct["b"], struct["c"] = -7, 0.25, 3
    got = one(source, ("y", struct, None, -1, 65535)).run(device="gpu").output.get()
    assert got.tolist() == [-7, 0.25, 2, 65535]


@pytest.mark.gpu
def test_what_a_kernel_does_not_write_is_nan(cupy):
    y = one('extern "C" __global__ void k(float* y) { y[0] = 1; }').run(device="gpu").output.get()
    assert y[0] == 1
    assert np.isnan(y[1:]).all()


@pytest.mark.gpu
def test_an_empty_grid_launches_nothing(cupy):
    y = one('extern "C" __global__ void k(float* y) { y[0] = 1; }', grid=(0, 1, 1)).run(device="gpu").output.get()
    assert np.isnan(y).all()


SHARED = """extern "C" __global__ void k(float* y, int words) {
  volatile __shared__ float one[1]; extern __shared__ float many[];
  one[0] = 3; many[words - 1] = 4; __syncthreads(); y[0] = one[0]; y[1] = many[words - 1]; }"""


@pytest.mark.gpu
@pytest.mark.parametrize("below", [None, 49148, 49152, 65536, 16, 0])
def test_shared_memory_up_to_the_cards_limit(cupy, below):
    """Sizes around 48 KB, the last that fits beside 4 static bytes, and one too many."""
    runtime = cupy.cuda.runtime
    limit = runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, 0)
    size = 1024 if below is None else below if below > 1000 else limit - below
    if size > limit:
        pytest.skip(f"this GPU has {limit} bytes a block")
    program = one(SHARED, ("y", size // 4), threads=1, shared=size)
    if below == 0:
        with pytest.raises(ValueError, match=f"{limit} bytes of dynamic .* bytes of static .*limit is {limit}"):
            program.run(device="gpu", isolate=False)
    else:
        assert program.run(device="gpu", isolate=False).output.get()[:2].tolist() == [3, 4]


@pytest.mark.gpu
def test_too_many_registers_for_the_block(cupy):
    source = 'extern "C" __global__ void k(float* y) { float v[200]; _Pragma("unroll") '
    source += (
        'for (int i = 0; i < 200; ++i) v[i] = y[i * blockDim.x + threadIdx.x]; __syncthreads(); _Pragma("unroll") '
    )
    source += "for (int i = 0; i < 200; ++i) y[i * blockDim.x + threadIdx.x] = v[199 - i] * v[i]; }"
    with pytest.raises(ValueError, match=r"1024 threads a block, but with its \d+ registers"):
        one(source, n=200 * 1024, threads=1024).run(device="gpu", isolate=False)


@pytest.mark.gpu
def test_a_fault_in_a_process_of_its_own(cupy):
    """The session survives a write far out of bounds; the message names the kernel."""
    bad = one('extern "C" __global__ void k(float* y) { y[1ll << 40] = 1; }')
    with pytest.raises(KernelFault, match=r"kernel 'k': .*llegal.*session is unharmed.*device='sim'"):
        bad.run(device="gpu")
    x = cupy.arange(8, dtype="float32")
    assert one(TWICE, ("x", "y", 8), n=8).run(device="gpu", x=x).output.get().tolist() == list(range(0, 16, 2))


@pytest.mark.gpu
def test_a_fault_in_this_process_is_named_and_remembered(tmp_path):
    script = """
from texlab.program import Program, Buffer, Launch, KernelFault, DeviceError
source = 'extern "C" __global__ void far(float* y) { y[1ll << 40] = 1; }'
program = Program("p", source, (Buffer("y", (4,), role="output"),), (Launch("far", (1, 1, 1), (1, 1, 1), ("y",)),))
for _ in range(2):
    try:
        program.run(device="gpu", isolate=False)
    except (KernelFault, DeviceError) as error:
        print(type(error).__name__, error)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    first, second = done.stdout.splitlines()
    assert first.startswith("KernelFault kernel 'far'")
    assert "restart the Jupyter kernel" in first
    assert second.startswith("DeviceError this process lost its GPU: kernel 'far'")


@pytest.mark.gpu
def test_an_endless_loop_is_ended(cupy):
    source = 'extern "C" __global__ void k(float* y) { while (*(volatile float*)y != 1.0f); }'
    start = time.perf_counter()
    with pytest.raises(KernelFault, match="was ended after 3 s"):
        one(source).run(device="gpu", limit=3)
    assert time.perf_counter() - start < 20
    assert one('extern "C" __global__ void k(float* y) { y[0] = 1; }').run(device="gpu").output.get()[0] == 1


@pytest.mark.gpu
def test_printf_of_an_isolated_kernel_is_printed_here(cupy, capsys):
    source = 'extern "C" __global__ void k(float* y) { printf("thread %d\\n", threadIdx.x); y[0] = 0; }'
    one(source, threads=2).run(device="gpu")
    assert sorted(capsys.readouterr().out.splitlines()) == ["thread 0", "thread 1"]


@pytest.mark.gpu
def test_repeat_times_more_than_one_run(cupy):
    program = kernels["im2win_zigzag"].program(SMALL)
    arrays = {b.name: np.ones(b.shape, "float32") for b in program.inputs}
    assert 0 < program.run(device="gpu", repeat=5, **arrays).ms < 50


@pytest.mark.gpu
def test_prepare_launches_again_without_allocating(cupy):
    x = cupy.arange(8, dtype="float32")
    go, outputs = gpu.prepare(one(TWICE, ("x", "y", 8), n=8), {"x": x})
    for k in (1, 2):
        gpu.poison(outputs["y"])
        x += k
        used = cupy.get_default_memory_pool().used_bytes()
        with gpu.faults("twice"):
            go()
            cupy.cuda.Device().synchronize()
        assert cupy.get_default_memory_pool().used_bytes() == used
        np.testing.assert_array_equal(outputs["y"].get(), 2 * x.get())


@pytest.mark.gpu
def test_too_little_memory_says_how_much_is_needed(cupy):
    program = one(TWICE, ("x", "y", 4))
    huge = replace(program, buffers=(*program.buffers, Buffer("t", (2**41,), role="scratch")))
    with pytest.raises(DeviceError, match=r"needs 8192\.00 GiB of device memory"):
        huge.run(device="gpu", isolate=False, x=np.zeros(4, "float32"))


@pytest.mark.gpu
def test_compile_errors_travel_from_the_child(cupy):
    with pytest.raises(compiler.CompileError) as caught:
        one('extern "C" __global__ void k(float* y) { y[0] = q; }').run(device="gpu")
    assert caught.value.diagnostics[0].line == 1
