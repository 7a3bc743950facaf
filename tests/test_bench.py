"""The referee and the benchmark: what is wrong never gets a time, what fails keeps its row."""

import subprocess
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from texlab import gpu, machine
from texlab.bench import (
    BANK_KERNELS,
    BANK_SHAPES,
    SMALL_SHAPES,
    bench,
    floors,
    layer_name,
    main,
    record_counters,
    record_ladder,
)
from texlab.catalog import kernels
from texlab.layouts import LAYOUTS
from texlab.program import Buffer, DeviceError, Launch, Program
from texlab.referee import LAYOUT_OUTPUTS, Trial, conv_at, kind_of, sample_points
from texlab.reference import conv2d_reference
from texlab.results import TIME_FIELDS, Result, load_results
from texlab.shapes import LAYERS, ConvShape

SHAPES = {
    "tails": ConvShape(n=2, c=3, h=7, w=9, k=5, r=3, s=2, padding=(0, 1, 2, 0)),
    "groups": ConvShape(n=1, c=4, h=6, w=6, k=6, r=3, s=3, groups=2, dilation=2, padding=2),
    "stride": ConvShape(n=2, c=2, h=9, w=8, k=3, r=3, s=3, stride=(2, 3)),
    "one pixel": ConvShape(n=1, c=8, h=3, w=3, k=4, r=3, s=3),
}
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
TINY = ConvShape(n=1, c=2, h=5, w=6, k=3, r=3, s=3, padding=1)


def how(shape):
    return {f: getattr(shape, f) for f in ("stride", "padding", "dilation", "groups")}


def right(trial):
    return conv2d_reference(trial.arrays["x"], trial.arrays["w"], **how(trial.shape)).astype(np.float32)


# the referee --------------------------------------------------------------------------------------------------
@EACH_SHAPE
def test_a_right_output_is_verified(shape):
    trial = Trial(shape)
    check = trial.check("conv", right(trial))
    assert check["verified"] is True
    assert check["rel_err"] < 1e-7
    assert check["error"] is None
    biased = right(trial) + trial.arrays["bias"][:, None, None]
    assert trial.check("conv", biased, bias=True)["verified"]
    assert not trial.check("conv", biased)["verified"]


def one_pixel(y, shape):
    y[-1, -1, -1, -1] += 1e-3


def nan_column(y, shape):
    y[..., -1] = np.nan


def untouched(y, shape):
    y[:] = np.nan


def zeros(y, shape):
    y[:] = 0


def infinity(y, shape):
    y[0, 0, 0, 0] = np.inf


def half_precision(y, shape):
    y[:] = y.astype(np.float16)


def shifted(y, shape):
    y[:] = np.roll(y, 1)


@EACH_SHAPE
@pytest.mark.parametrize("spoil", [one_pixel, nan_column, untouched, zeros, infinity, half_precision, shifted])
def test_a_wrong_output_is_rejected(shape, spoil):
    trial = Trial(shape)
    y = right(trial)
    spoil(y, shape)
    check = trial.check("conv", y)
    assert check["verified"] is False
    assert "expected" in check["error"]


def test_a_rejection_says_where_and_how_many():
    trial = Trial(SHAPES["tails"], seed=1)
    y = right(trial)
    y[1, 2, 3, 4] = 99
    y[1, 3, 0, 0] = np.nan
    error = trial.check("conv", y)["error"]
    assert error.startswith(f"2 of {y.size} outputs are wrong; first at (1, 2, 3, 4): got 99, expected ")


def rounded_to_tf32(a):
    return ((a.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def test_tf32_is_no_float32():
    shape = ConvShape(n=1, c=64, h=8, w=8, k=8, r=3, s=3)
    trial = Trial(shape)
    y = conv2d_reference(rounded_to_tf32(trial.arrays["x"]), rounded_to_tf32(trial.arrays["w"])).astype(np.float32)
    check = trial.check("conv", y)
    assert check["verified"] is False
    assert check["rel_err"] > 1e-4


@EACH_SHAPE
def test_the_sampled_oracle_equals_the_whole_one(shape):
    trial = Trial(shape)
    points = tuple(a.ravel() for a in np.indices(shape.y_shape))
    want, _ = conv_at(np, trial.arrays["x"], trial.arrays["w"], shape, points)
    whole = conv2d_reference(trial.arrays["x"], trial.arrays["w"], **how(shape))
    np.testing.assert_allclose(want, whole.ravel(), rtol=0, atol=1e-13)


@EACH_SHAPE
def test_sampled_judging_accepts_right_and_sees_a_wrong_corner(shape, monkeypatch):
    monkeypatch.setattr(import_module("texlab.referee"), "SAMPLES", 32)
    trial = Trial(shape)
    sampled = (*conv_at(np, trial.arrays["x"], trial.arrays["w"], shape, trial._points), "sampled")
    monkeypatch.setattr(Trial, "_answer", sampled)
    y = right(trial)
    check = trial.check("conv", y)
    assert check["verified"]
    some = "32 random outputs with all edges" if np.prod(shape.y_shape) > 32 else "all outputs"
    assert check["verified_by"] == f"float64 oracle, {some}"
    assert trial.check("conv", y + trial.arrays["bias"][:, None, None], bias=True)["verified"]
    y[-1, -1, -1, -1] += 1e-3
    check = trial.check("conv", y)
    assert not check["verified"]
    assert f"first at {tuple(n - 1 for n in shape.y_shape)}" in check["error"]


def test_samples_hold_every_corner_and_stay_inside():
    dims = (1, 5, 7, 300)
    points = np.stack(sample_points(np.random.default_rng(0), dims, 2000))
    assert points.min() >= 0
    assert (points.max(1) == np.array(dims) - 1).all()
    corners = {tuple(c) for c in points.T if all(i in (0, d - 1) for i, d in zip(c, dims, strict=True))}
    assert len(corners) == 8  # the first axis has one index only
    assert len(np.unique(points[3])) > 200  # the rest is spread


@EACH_SHAPE
@pytest.mark.parametrize("layout", LAYOUT_OUTPUTS.values())
def test_layouts_must_be_equal_bit_by_bit(shape, layout):
    trial = Trial(shape)
    packed = LAYOUTS[layout].pack(trial.arrays["x"], shape)
    assert trial.check(layout, packed)["verified"]
    at = np.unravel_index(packed.size - 1, packed.shape)
    packed[at] = np.nextafter(packed[at], np.float32(2))
    check = trial.check(layout, packed)
    assert check["verified"] is False
    assert f"wrong at {tuple(int(i) for i in at)}" in check["error"]


def test_copies_must_be_equal_bit_by_bit():
    trial = Trial(TINY)
    assert trial.check("copy", trial.arrays["x"].copy())["verified"]
    assert not trial.check("copy", np.full(TINY.x_shape, np.nan, np.float32))["verified"]


def test_inputs_differ_from_trial_to_trial():
    assert not np.array_equal(Trial(TINY).arrays["x"], Trial(TINY).arrays["x"])


def test_kind_is_told_by_the_buffers():
    kinds = {name: kind_of(k.program(TINY), TINY) for name, k in kernels.items()}
    assert kinds["direct"] == kinds["im2win_zigzag"] == "conv"
    assert (kinds["im2win"], kinds["im2col"], kinds["nchw4c"], kinds["copy"]) == ("im2win", "im2col", "nchw4c", "copy")
    with pytest.raises(ValueError, match="no right answer is known"):
        kind_of(kernels["direct"].program(TINY), TINY.with_(n=2))


# the benchmark in the simulator -------------------------------------------------------------------------------
CONV = r"""
extern "C" __global__ void conv(const float* x, const float* w, float* y) {
  const int i = threadIdx.x;  // one block of P*Q threads an output channel
  const int k = blockIdx.x, p = i / Q, q = i % Q;
  float sum = 0.f;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r)
      for (int s = 0; s < S; ++s) {
        const int h = p + r - 1, v = q + s - 1;
        if (h >= 0 && h < H && v >= 0 && v < W) sum += x[(c * H + h) * W + v] * w[((k * C + c) * R + r) * S + s];
      }
  SPOIL
  y[(k * P + p) * Q + q] = sum;
}
"""


def own(spoil="", shape=TINY):
    """A direct convolution of one image, with a line of its author's own."""
    extents = {name: getattr(shape, name.lower()) for name in ("C", "H", "W", "R", "S", "P", "Q")}
    return Program(
        name="own",
        source=CONV.replace("SPOIL", spoil),
        buffers=(Buffer("x", shape.x_shape), Buffer("w", shape.w_shape), Buffer("y", shape.y_shape, role="output")),
        launches=(Launch("conv", (shape.k, 1, 1), (shape.p * shape.q, 1, 1), ("x", "w", "y")),),
        defines=extents,
    )


WRONG = {
    "one wrong pixel": "if (k == 2 && i == P * Q - 1) sum += 1e-3f;",
    "last column untouched": "if (q == Q - 1) return;",
    "nothing written": "return;",
    "a column of NaN": "if (q == 0) sum = 0.f / (sum - sum);",
    "rounded to 10 bits": "sum = __uint_as_float(__float_as_uint(sum) & 0xffffe000u);",
    "out of bounds": "if (i == 0) sum += x[1 << 20];",
}


def no_figures(row):
    counts = [f for f in row if f.endswith("_per_output") or f in ("instructions", "global_sectors")]
    return not counts and all(row.get(f) is None for f in TIME_FIELDS)


def test_a_right_kernel_of_ones_own_is_counted_and_never_timed():
    (row,) = bench(own(), TINY, device="sim")
    assert row["verified"] is True
    assert row["rel_err"] < 1e-6
    assert row["instructions"] > 0
    assert row["global_sectors_per_output"] == row["global_sectors"] / np.prod(TINY.y_shape)
    assert row["shared_wavefronts"] == 0
    assert all(field not in row for field in TIME_FIELDS)


@pytest.mark.parametrize("spoil", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_kernel_keeps_its_row_without_figures(spoil):
    table = bench([own(spoil), "direct"], TINY, device="sim")
    wrong, good = table.rows
    assert wrong["verified"] is False
    assert wrong["error"]
    assert no_figures(wrong)
    assert good["verified"] is True
    assert wrong["error"][:20] in table._repr_html_().replace("&lt;", "<").replace("&gt;", ">")


def test_a_kernel_right_only_once_is_caught_by_the_second_check(monkeypatch):
    trials = iter([Trial(TINY, seed=1), Trial(TINY, seed=2)])
    first = float(Trial(TINY, seed=1).arrays["x"].flat[0])
    monkeypatch.setattr("texlab.measure.Trial", lambda *_, **__: next(trials))
    (row,) = bench(own(f"if (x[0] != {first!r}f) sum = 0.f;"), TINY, device="sim")
    assert row["error"].startswith("in the second check, with new inputs and poisoned memory: ")


def test_the_whole_catalog_is_verified_and_the_peers_say_what_they_need():
    table = bench([*kernels, "cudnn", "im2col+cublas"], TINY, device="sim")
    rows = {row["kernel"]: row for row in table}
    assert {name for name, row in rows.items() if row["verified"]} == set(kernels) - {"im2win_tensor_core"}
    assert "precision" in rows["im2win_tensor_core"]["error"]
    assert "needs an NVIDIA GPU" in rows["cudnn"]["error"]
    assert rows["cudnn"]["peer"] is True
    assert rows["direct"]["extra_bytes"] == 0
    assert rows["im2win"]["extra_bytes"] == LAYOUTS["im2win"].bytes(TINY)
    filters = 4 * np.prod(TINY.w_shape)
    assert rows["im2win_direct"]["extra_bytes"] == LAYOUTS["im2win"].bytes(TINY) + filters
    assert "exact counts, no times" in table.label


def test_what_cannot_run_is_a_row_and_the_others_still_count():
    broken = replace(own(), source=CONV.replace("SPOIL", "undefined_name();"))
    table = bench([broken, ("im2win_tile", {"BLOCK_K": 24}), "direct"], TINY, device="sim")
    compile_error, refused, good = table.rows
    assert "undefined_name" in compile_error["error"]
    assert refused["verified"] is False
    assert no_figures(refused)
    assert good["verified"] is True


def test_a_shape_too_large_to_simulate_is_said_at_once():
    (row,) = bench("direct", LAYERS["cv4"].with_(n=128), device="sim")
    assert "too many to simulate" in row["error"]
    assert "smaller image" in row["error"]


def test_a_program_without_a_known_answer_is_a_row_with_the_reason():
    (row,) = bench(own(), TINY.with_(n=2), device="sim")
    assert "no right answer is known" in row["error"]


def test_tunables_reach_the_kernels_that_have_them():
    table = bench(["direct", "im2win_zigzag", ("im2win_tile", {"PAD": 0})], TINY, device="sim", PAD=8)
    assert [row["tunables"] for row in table] == [{}, {"PAD": 8}, {"PAD": 0}]
    assert all(row["verified"] for row in table)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bench("im2wim", TINY), "no kernel 'im2wim'"),
        (lambda: bench("direct", TINY, PAD=4), r"none of the kernels given has a tunable \['PAD'\]"),
        (lambda: bench(("direct", {"PAD": 4}), TINY), r"'direct' has no tunable \['PAD'\]"),
        (lambda: bench("direct", TINY, precision="float8"), "precision='float8'"),
    ],
)
def test_mistakes_in_the_call_are_raised(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_device():
    with pytest.raises(DeviceError, match="device='tpu'"):
        bench("direct", TINY, device="tpu")


def test_layers_have_names_at_any_batch():
    assert layer_name(LAYERS["cv9"].with_(n=128)) == "cv9"
    assert layer_name(TINY) == "1x2x5x6 -> 3, 3x3, padding 1"


# recording ----------------------------------------------------------------------------------------------------
def test_recording_without_a_gpu_says_what_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: "the NVIDIA driver sees no GPU")
    assert main(["record", "ladder", "--out", str(tmp_path)]) == 1
    assert "the NVIDIA driver sees no GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_recording_an_unknown_layer(capsys):
    with pytest.raises(SystemExit):
        main(["record", "ladder", "--layers", "cv1,cv13"])
    assert "no layer ['cv13']" in capsys.readouterr().err


def test_counters_are_recorded_for_every_scenario(monkeypatch, tmp_path, capsys):
    def compare(program, **arrays):
        program.check_inputs(arrays)
        entry = program.launches[-1].entry
        rows = [(program.name, entry, "shared_load_wavefronts", 8.0, 8.0), (program.name, entry, "absent", 1.0, np.nan)]
        return pandas.DataFrame(rows, columns=["kernel", "source", "counter", "predicted", "measured"])

    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(import_module("texlab.counters"), "compare", compare)
    monkeypatch.setattr(machine, "describe", lambda device: {"gpu": "NVIDIA H200"})
    path = record_counters(tmp_path)
    loaded = load_results("counters", folder=tmp_path)
    assert path == tmp_path / "h200" / "counters.json"
    assert len(loaded) == 2 * (len(BANK_SHAPES) * len(BANK_KERNELS) + len(SMALL_SHAPES) * len(kernels))
    assert [row["measured"] for row in loaded][:2] == [8.0, None]
    zigzag = loaded.where(shape=str(BANK_SHAPES[0]), kernel="im2win_zigzag", counter="shared_load_wavefronts")
    assert [row["tunables"] for row in zigzag] == [BANK_KERNELS[2][1], {}]
    assert "1 of 2 counters equal" in capsys.readouterr().out
    assert loaded.chart().axes


def test_an_interrupted_recording_keeps_the_layers_it_finished(monkeypatch, tmp_path):
    def fake(contestants, shape, device):
        if layer_name(shape) == "cv3":
            raise KeyboardInterrupt
        row = {"layer": layer_name(shape), "n": shape.n, "kernel": "direct", "verified": True, "ms": 1.0}
        return Result([row | {"ms_p10": 1.0, "ms_p90": 1.0}], {"gpu": "NVIDIA H200"}, "2026-11-30", "abc")

    module = import_module("texlab.bench")  # the attribute texlab.bench may be the function of that name
    monkeypatch.setattr(module, "bench", fake)
    monkeypatch.setattr(module, "LADDER", ())
    with pytest.raises(KeyboardInterrupt):
        record_ladder(["cv1", "cv2", "cv3"], 8, tmp_path)
    assert [row["layer"] for row in load_results("ladder", folder=tmp_path)] == ["cv1", "cv2"]


def test_commit_comes_from_the_variable_or_from_git(monkeypatch, tmp_path):
    monkeypatch.setenv("TEXLAB_COMMIT", "feedbeef")
    assert machine.commit() == "feedbeef"
    monkeypatch.delenv("TEXLAB_COMMIT")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.commit() is None
    (tmp_path / "texlab").mkdir()
    (tmp_path / "texlab" / "a.py").write_text("a = 1\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert machine.commit() == head[:12]
    (tmp_path / "texlab" / "a.py").write_text("a = 2\n")
    assert machine.commit() == head[:12] + "+"


def test_the_performance_log_shows_the_floors_as_computed():
    text = (machine.ROOT / "docs" / "performance-log.md").read_text(encoding="utf-8")
    for row in floors(n=128):
        cells = f"{row['gflop']:.2f} | {row['min_mib']:.1f} | {row['flop_per_byte']:.0f} | {row['xw_mib']:.1f}"
        assert f"| {row['layer']} | {cells} | {row['col_mib']:.1f} |" in text


def test_floors_in_milliseconds_follow_from_the_rates():
    row = floors(n=256, gbps=1000.0, tflops=50.0)[8]
    cv9 = LAYERS["cv9"].with_(n=256)
    assert row["bytes_ms"] == pytest.approx(cv9.min_bytes() / 1e12 * 1e3)
    assert row["flops_ms"] == pytest.approx(cv9.flops / 50e12 * 1e3)
    assert row["xw_mib"] * 2**20 == 148_635_648 * 4
    assert row["col_mib"] * 2**20 == 429_981_696 * 4
