"""Timing on a GPU: cold cache, honest clocks, wrong kernels refused, peers right and charged for their memory."""

import json
from dataclasses import replace

import numpy as np
import pytest

from texlab import peers, referee
from texlab.bench import LADDER, bench, main
from texlab.catalog import kernels
from texlab.layouts import LAYOUTS
from texlab.program import Buffer, Launch, Program
from texlab.referee import Trial, conv_at
from texlab.reference import conv2d_reference
from texlab.results import TIME_FIELDS, load_results
from texlab.shapes import LAYERS, ConvShape
from texlab.timing import Stopwatch

pytestmark = pytest.mark.gpu

SHAPE = ConvShape(n=4, c=16, h=30, w=28, k=24, r=3, s=3, padding=1)
ODD = {
    "tails": ConvShape(n=2, c=3, h=17, w=19, k=5, r=3, s=2, padding=(0, 1, 2, 0)),
    "groups": ConvShape(n=3, c=4, h=12, w=12, k=6, r=3, s=3, groups=2, dilation=2, padding=2),
    "stride": ConvShape(n=2, c=2, h=19, w=18, k=3, r=3, s=3, stride=(2, 3)),
    "one pixel": ConvShape(n=1, c=8, h=3, w=3, k=4, r=3, s=3),
}
EACH_ODD = pytest.mark.parametrize("shape", ODD.values(), ids=ODD.keys())


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def spin(cupy, cycles):
    """A launch that takes ``cycles`` clocks of one multiprocessor."""
    code = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
    kernel = cupy.RawKernel(code, "spin")
    return lambda: kernel((1,), (1,), (np.int64(cycles),))


# the clock ----------------------------------------------------------------------------------------------------
def test_times_grow_with_the_work_and_hold_no_launch_overhead(cupy):
    watch = Stopwatch()
    short, long = (float(np.median(watch.times(spin(cupy, n)))) for n in (1_000_000, 4_000_000))
    assert long / short == pytest.approx(4, rel=0.15)
    nothing = float(np.median(watch.times(spin(cupy, 0))))
    assert nothing < 0.02  # ms: Python takes longer to queue it


def test_launches_between_five_and_a_hundred_or_as_many_as_asked(cupy):
    watch = Stopwatch()
    assert len(watch.times(spin(cupy, 0))) == 100
    assert len(watch.times(spin(cupy, 200_000_000))) == 5
    assert len(watch.times(spin(cupy, 0), repeat=7)) == 7


CHASE = """extern "C" __global__ void chase(const int* next, int* out, int steps) {
  int at = 0;
  for (int i = 0; i < steps; ++i) at = next[at];
  out[0] = at; }"""


def test_the_cache_is_cold(cupy):
    """One thread follows a chain through a quarter of the cache: each step waits for L2, or for memory if it is cold."""
    watch = Stopwatch()
    lines = watch.l2_bytes // 4 // 128
    order = np.random.default_rng(0).permutation(lines).astype("i4") * 32
    chain = np.zeros(lines * 32, "i4")
    chain[order] = np.roll(order, -1)
    following, out = cupy.asarray(chain), cupy.empty(1, "i4")
    kernel = cupy.RawKernel(CHASE, "chase")
    chase = lambda: kernel((1,), (1,), (following, out, np.int32(5000)))  # noqa: E731
    for _ in range(lines // 5000 + 1):
        chase()
    cold = float(np.median(watch.times(chase, repeat=9)))
    watch._write = lambda times: spin(cupy, 2_000_000)()  # as long, but it leaves the cache alone
    warm = float(np.median(watch.times(chase, repeat=9)))
    assert cold > 1.3 * warm


# the referee on the GPU ---------------------------------------------------------------------------------------
def answers(cupy, shape, trial):
    x, w = (trial.arrays[name].get() for name in ("x", "w"))
    how = {f: getattr(shape, f) for f in ("stride", "padding", "dilation", "groups")}
    return cupy.asarray(conv2d_reference(x, w, **how).astype(np.float32))


@EACH_ODD
@pytest.mark.parametrize("whole", [True, False], ids=["all outputs", "samples"])
def test_right_outputs_pass_and_one_wrong_corner_does_not(cupy, shape, whole, monkeypatch):
    if whole:
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr(referee, "whole_answer", lambda *_: None)
        monkeypatch.setattr(referee, "SAMPLES", 32)
    trial = Trial(shape, cupy)
    y = answers(cupy, shape, trial)
    check = trial.check("conv", y)
    assert check["verified"], check["error"]
    assert ("all outputs" in check["verified_by"]) == (whole or y.size <= 32)
    assert trial.check("conv", y + trial.arrays["bias"][:, None, None], bias=True)["verified"]
    y[-1, -1, -1, -1] += 1e-3
    assert not trial.check("conv", y)["verified"]


@EACH_ODD
def test_layouts_and_copies_on_the_gpu(cupy, shape):
    trial = Trial(shape, cupy)
    for name in referee.LAYOUT_OUTPUTS.values():
        packed = cupy.asarray(LAYOUTS[name].pack(trial.arrays["x"].get(), shape))
        assert trial.check(name, packed)["verified"]
        packed.reshape(-1)[-1] += 1
        assert not trial.check(name, packed)["verified"]
    assert trial.check("copy", trial.arrays["x"].copy())["verified"]


def test_layouts_too_large_to_compare_whole_are_sampled(cupy, monkeypatch):
    monkeypatch.setattr(referee, "FULL_LAYOUT", 100)
    monkeypatch.setattr(referee, "CHUNK", 4096)
    trial = Trial(SHAPE, cupy)
    packed = cupy.asarray(LAYOUTS["im2win"].pack(trial.arrays["x"].get(), SHAPE))
    check = trial.check("im2win", packed)
    assert check["verified"]
    assert "4096 random elements" in check["verified_by"]
    packed.reshape(-1)[-1] += 1
    assert not trial.check("im2win", packed)["verified"]


def test_random_inputs_fill_their_range(cupy):
    x = Trial(SHAPE.with_(n=64), cupy).arrays["x"].get()
    assert -1 <= x.min() < -0.999
    assert 0.999 < x.max() < 1
    assert abs(x.mean()) < 0.01
    assert x.var() == pytest.approx(1 / 3, rel=0.02)
    assert abs(np.corrcoef(x.ravel()[:-1], x.ravel()[1:])[0, 1]) < 0.01


# peers --------------------------------------------------------------------------------------------------------
@EACH_ODD
@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_are_right_for_odd_shapes(torch, name, shape):
    (row,) = bench(name, shape, device="gpu", repeat=5)
    assert row["verified"], row["error"]
    assert row["peer"] is True
    assert row["ms_p10"] <= row["ms"] <= row["ms_p90"]


@pytest.mark.parametrize("column", [peers._col_unfold, peers._col_strided])
@EACH_ODD
def test_both_column_matrices_are_im2col(cupy, torch, column, shape):
    x = Trial(shape, cupy).arrays["x"]
    col = cupy.asarray(column(torch.as_tensor(x, device="cuda"), shape))
    np.testing.assert_array_equal(col.get(), LAYOUTS["im2col"].pack(x.get(), shape))


def test_im2col_is_charged_for_its_columns_and_cudnn_for_its_workspace(torch):
    rows = bench(["im2col+cublas", "cudnn"], SHAPE, device="gpu", repeat=5)
    columns, cudnn = sorted(rows, key=lambda row: row["kernel"])[::-1]
    assert columns["extra_bytes"] >= LAYOUTS["im2col"].bytes(SHAPE)
    assert cudnn["extra_bytes"] >= 0


def test_a_peer_in_tf32_would_be_rejected(torch, monkeypatch):
    def rounded(x, w, shape):
        keep = lambda a: (a.view(torch.int32) & -0x2000).view(torch.float32)  # noqa: E731
        return peers.torch_conv(keep(x), keep(w), shape)

    monkeypatch.setitem(peers._WAYS, "cudnn", (rounded,))
    (row,) = bench("cudnn", SHAPE, device="gpu", repeat=5)
    assert row["verified"] is False
    assert "ms" not in row


def test_switches_of_pytorch_are_left_as_they_were(torch):
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    with peers.chosen_libraries():
        assert matmul.allow_tf32 is False
        assert torch.backends.cudnn.allow_tf32 is False
    assert before == (matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)


# the benchmark ------------------------------------------------------------------------------------------------
def own(spoil=""):
    """Rung 01 with a line of its user's before the store."""
    program = kernels["direct"].program(SHAPE)
    lines = program.source.splitlines()
    at = max(i for i, line in enumerate(lines) if "y[" in line and "=" in line)
    lines.insert(at, spoil)
    return replace(program, name="own", source="\n".join(lines))


def test_the_ladder_is_verified_timed_and_has_a_floor(torch):
    table = bench(LADDER, SHAPE, device="gpu")
    for row in table:
        assert row["verified"] is True, (row["kernel"], row["error"])
        assert 0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"]
        assert row["includes_transform"] is True
        assert row["floor_ms"] > 0
        assert (row.get("tflops") is None) == (row["kind"] != "conv")
        if not row["peer"]:
            assert 0 < row["kernel_ms"] <= row["ms_p90"] * 1.5
    rows = {row["kernel"]: row for row in table}
    assert rows["im2win_direct"]["extra_bytes"] > LAYOUTS["im2win"].bytes(SHAPE)
    assert table.label.startswith("measured live on NVIDIA")
    assert "faster" in table._repr_html_() or "slower" in table._repr_html_()


@pytest.mark.parametrize(
    "spoil",
    ["if (blockIdx.x == gridDim.x - 1) return;", "if (threadIdx.x == 5) return;", "return;"],
    ids=["last block", "a lane", "nothing"],
)
def test_a_wrong_kernel_gets_no_time(cupy, spoil):
    wrong, good = bench([own(spoil), own()], SHAPE, device="gpu", repeat=5).rows[::-1]
    assert wrong["verified"] is False
    assert "got nan" in wrong["error"]
    assert all(wrong.get(field) is None for field in TIME_FIELDS)
    assert good["verified"] is True
    assert good["ms"] > 0


def test_a_kernel_that_faults_harms_nobody_else(cupy):
    source = """extern "C" __global__ void f(const float* x, const float* w, float* y) { y[1ll << 40] = x[0]; }"""
    buffers = (Buffer("x", SHAPE.x_shape), Buffer("w", SHAPE.w_shape), Buffer("y", SHAPE.y_shape, role="output"))
    faulty = Program("faulty", source, buffers, (Launch("f", (1, 1, 1), (1, 1, 1), ("x", "w", "y")),))
    good, bad = bench([faulty, "direct"], SHAPE, device="gpu", repeat=5).rows
    assert bad["verified"] is False
    assert bad["kernel"] == "faulty"
    assert good["verified"] is True


def test_a_kernel_that_spoils_its_inputs_spoils_no_other(cupy):
    writes = own("const_cast<float*>(x)[0] = 1e6f;")
    rows = {row["kernel"]: row for row in bench([writes, "direct"], SHAPE, device="gpu", repeat=5)}
    assert rows["direct"]["verified"] is True


def test_what_does_not_fit_is_a_row_with_the_sizes(cupy, monkeypatch):
    total = cupy.cuda.runtime.memGetInfo()[1]
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (2**20, total))
    table = bench(["im2win_direct"], SHAPE.with_(n=32), device="gpu", repeat=5)
    assert "GiB of GPU memory are free" in table.rows[0]["error"]


def test_recording_writes_what_notebooks_load(torch, tmp_path, monkeypatch):
    monkeypatch.setenv("TEXLAB_COMMIT", "abc123")
    assert main(["record", "ladder", "--layers", "cv12,cv11", "--n", "2", "--out", str(tmp_path)]) == 0
    loaded = load_results("ladder", folder=tmp_path)
    assert loaded.label.startswith("recorded on NVIDIA")
    assert "commit abc123" in loaded.label
    assert {row["layer"] for row in loaded} == {"cv11", "cv12"}
    assert all(row["verified"] for row in loaded), [row["error"] for row in loaded]
    (path,) = tmp_path.glob("*/ladder.json")
    machine = json.loads(path.read_text())["machine"]
    assert {"gpu", "driver", "cuda", "cupy", "numpy", "torch", "cudnn"} <= set(machine)


def test_a_large_layer_agrees_with_a_plain_float64_sum(cupy, torch):
    shape = LAYERS["cv9"].with_(n=16)
    trial = Trial(shape, cupy)
    want, _ = conv_at(cupy, trial.arrays["x"], trial.arrays["w"], shape, trial._points)
    whole = referee.whole_answer(trial.arrays["x"], trial.arrays["w"], shape)
    assert float(abs(whole[0][trial._points] - want).max()) < 1e-10
