"""08_im2win_tensor_core in every precision and layout, against the float64 oracle of the rounded inputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes
from test_kernels import DEVICES, ODD_SHAPES
from texlab.catalog import kernels
from texlab.compiler import CompileError
from texlab.precision import PRECISIONS, accumulation_bound, decode, encode, rounded
from texlab.program import device_function
from texlab.reference import assert_matches, conv2d_reference
from texlab.shapes import ConvShape, ShapeError
from texlab.studies import INPUTS, study

KERNEL = kernels["im2win_tensor_core"]
LAYOUTS = ["NCHW", "NHWC"]


def how_of(shape: ConvShape) -> dict:
    return dict(stride=shape.stride, padding=shape.padding, dilation=shape.dilation, groups=shape.groups)


def convolve(shape, name, layout, device, x, w, bias=None, scale=None, **tunables):
    """y (N,K,P,Q) as numbers (float64), of stored x and w."""
    p = PRECISIONS[name]
    optional = {k: v for k, v in (("bias", bias), ("scale", scale)) if v is not None}
    tunables = {"PRECISION": p.code, "NHWC": int(layout == "NHWC"), **tunables}
    program = KERNEL.program(shape, **dict.fromkeys(optional, True), **tunables)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "NHWC" else x
    y = device_function(device)(program, {"x": x, "w": w, **optional}).output
    y = y.get() if device == "gpu" else y
    y = y.transpose(0, 3, 1, 2) if layout == "NHWC" else y
    return decode(y, name).astype("f8") if y.dtype == p.dtype and name != "tf32" else y.astype("f8")


def stored(shape, name, seed=0):
    rng = np.random.default_rng(seed)
    times = 60 if name == "int8" else 1
    return [encode((times * rng.standard_normal(s)).astype("f4"), name) for s in (shape.x_shape, shape.w_shape)]


def check(shape, name, layout, device, epilogue=True, **tunables):
    """Float32 output with bias, scale and ReLU, or the plain sums, against the oracle and the stated bound."""
    x, w = stored(shape, name)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(shape.k).astype("f4") if epilogue else None
    scale = rng.uniform(0.5, 2, shape.k).astype("f4") if epilogue else None
    tunables = {"WIDE_OUTPUT": 2, "RELU": int(epilogue)} | tunables
    got = convolve(shape, name, layout, device, x, w, bias, scale, **tunables)
    x, w = decode(x, name), decode(w, name)
    want, size = (conv2d_reference(*pair, **how_of(shape)) for pair in ((x, w), (abs(x), abs(w))))
    bound = accumulation_bound(shape, name) * size
    if epilogue:
        wide = scale[:, None, None].astype("f8")
        want, bound = np.maximum(want * wide + bias[:, None, None], 0), bound * wide + 2.0**-22 * (size * wide + 4)
    assert_matches(got, want, rtol=2.0**-23, atol=bound + 1e-37, name=f"{name} {layout} {shape}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRECISIONS)
def test_odd_shapes(name, layout, device):
    for shape in ODD_SHAPES.values():
        check(shape, name, layout, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRECISIONS)
@given(shape=conv_shapes())
@settings(max_examples=12)
def test_random_shapes(name, layout, device, shape):
    check(shape, name, layout, device, epilogue=False)


#: channels that make 16-byte copies possible, at least in some precisions
WIDE = (
    ConvShape(1, 16, 6, 6, 40, 3, 3, padding=1),
    ConvShape(2, 32, 5, 7, 8, 3, 3, stride=2, padding=1),
    ConvShape(1, 64, 5, 5, 48, 3, 3, padding=1, groups=2, dilation=2),
    ConvShape(1, 48, 4, 9, 33, 1, 1),
    ConvShape(1, 130, 3, 3, 5, 3, 3),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRECISIONS)
def test_whole_chunks_of_channels(name, layout, device):
    for shape in WIDE:
        check(shape, name, layout, device, epilogue=False)


TUNED = [
    dict(BLOCK_K=32),
    dict(BLOCK_K=128, STAGES=4),
    dict(BLOCK_Q=64, BLOCK_K=64),
    dict(BLOCK_Q=256),
    dict(SWIZZLE=0),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tunables", TUNED, ids=lambda v: "-".join(f"{k}{n}" for k, n in v.items()))
def test_tunables_keep_the_result(tunables, device):
    for layout, shape in (("NCHW", ODD_SHAPES["groups"]), ("NHWC", WIDE[2])):
        check(shape, "float16", layout, device, **tunables)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "e4m3"])
def test_narrow_output_is_rounded_once_and_saturates_as_its_format_does(name, device):
    shape = ConvShape(1, 3, 5, 6, 9, 1, 1)
    x, w = stored(shape, name)
    scale = np.geomspace(1e-3, 1e4, shape.k).astype("f4")
    got = convolve(shape, name, "NCHW", device, x, w, scale=scale)
    wide = convolve(shape, name, "NCHW", device, x, w, scale=scale, WIDE_OUTPUT=2)
    assert_matches(got, rounded(wide, name), rtol=0, atol=0)


# known answers ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 24])
def test_int8_is_exact_to_its_extremes(channels, layout, device):
    shape = ConvShape(1, channels, 5, 7, 5, 3, 3, padding=1)
    x = np.full(shape.x_shape, -128, "i1")
    for value in (-128, 127):
        w = np.full(shape.w_shape, value, "i1")
        got = convolve(shape, "int8", layout, device, x, w, WIDE_OUTPUT=1)
        assert (got == conv2d_reference(x, w, padding=1)).all()
        assert (got[:, :, 1:-1, 1:-1] == -128 * value * 9 * channels).all()
    x, w = stored(shape, "int8")
    assert (convolve(shape, "int8", layout, device, x, w, WIDE_OUTPUT=1) == conv2d_reference(x, w, padding=1)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_nine_taps_of_448_are_4032_in_float32_and_448_in_e4m3(device):
    shape = ConvShape(1, 1, 3, 3, 1, 3, 3)
    x, w = encode(np.full(shape.x_shape, 1000.0), "e4m3"), encode(np.ones(shape.w_shape), "e4m3")
    assert convolve(shape, "e4m3", "NCHW", device, x, w, WIDE_OUTPUT=1).item() == 4032
    assert convolve(shape, "e4m3", "NCHW", device, x, w).item() == 448


@pytest.mark.parametrize("device", DEVICES)
def test_float16_overflows_to_infinity_and_only_there(device):
    shape = ConvShape(1, 4, 2, 2, 2, 1, 1)
    x = np.full(shape.x_shape, 30000, "f2")
    w = np.ones(shape.w_shape, "f2")
    w[1] *= -1
    assert convolve(shape, "float16", "NHWC", device, x, w)[0, :, 0, 0].tolist() == [np.inf, -np.inf]
    assert convolve(shape, "float16", "NHWC", device, x, w, WIDE_OUTPUT=1)[0, :, 0, 0].tolist() == [120000, -120000]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "tf32", "e4m3"])
def test_nan_reaches_exactly_the_outputs_that_see_it(name, device):
    shape = ConvShape(1, 2, 6, 6, 3, 3, 3)
    x = np.ones(shape.x_shape, "f4")
    x[0, 1, 0, 0] = np.nan
    got = convolve(
        shape, name, "NCHW", device, encode(x, name), encode(np.ones(shape.w_shape), name), WIDE_OUTPUT=2, RELU=1
    )
    assert np.isnan(got[0, :, 0, 0]).all()
    assert np.isfinite(got.reshape(3, -1)[:, 1:]).all()


# hard inputs --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["float32", *PRECISIONS])
def test_hard_inputs_stay_within_the_stated_bound(name, device):
    shape = ConvShape(1, 12, 9, 10, 8, 3, 3, padding=1)
    rows = {kind: study(shape, name, kind, device) for kind in INPUTS}
    for kind, row in rows.items():
        assert row["within"] and row["infinite"] == 0, row
        assert row["sum_err"] <= row["sum_bound"], kind
    assert rows["cancellation"]["rel_err"] > 10 * rows["uniform"]["rel_err"]


def test_what_the_formats_lose():
    shape = ConvShape(1, 12, 9, 10, 8, 3, 3, padding=1)
    errors = {(p, k): study(shape, p, k)["rel_err"] for p in PRECISIONS for k in ("uniform", "subnormal", "wide range")}
    assert errors["float16", "subnormal"] > 5 * errors["float16", "uniform"]
    assert errors["bfloat16", "subnormal"] == errors["bfloat16", "uniform"]
    assert errors["float16", "uniform"] < errors["bfloat16", "uniform"] < errors["e4m3", "uniform"]
    assert errors["int8", "wide range"] > errors["int8", "uniform"]


def test_study_catches_a_result_outside_the_bound():
    from texlab.studies import _errors

    want = np.ones((1, 1, 2, 2))
    assert _errors(want * (1 + 1e-6), want, want, want, 2e-6, 0)["within"]
    assert not _errors(want * (1 + 1e-5), want, want, want, 2e-6, 0)["within"]


# what is refused ----------------------------------------------------------------------------------------------------
def test_what_a_card_cannot_run_and_what_cannot_be_asked():
    from texlab import compiler

    shape = ConvShape(1, 3, 5, 5, 4, 3, 3)
    for name, p in PRECISIONS.items():
        assert KERNEL.program(shape, PRECISION=p.code).needs == ("sm_89" if name == "e4m3" else "sm_80")
    with pytest.raises(CompileError, match="sm_89"):
        compiler.ptx(KERNEL.program(shape, PRECISION=4), "sm_80")
    for tunables, words in (
        (dict(PRECISION=5), "no number format"),
        (dict(WIDE_OUTPUT=3), "WIDE_OUTPUT=3"),
        (dict(BLOCK_K=48), "BLOCK_K=48"),
        (dict(BLOCK_Q=0), "BLOCK_Q=0"),
        (dict(PRECISION=3, WIDE_OUTPUT=1, bias=True), "bias"),
    ):
        with pytest.raises(ValueError, match=words):
            KERNEL.program(shape, **tunables)
    with pytest.raises(ValueError, match="takes no scale"):
        kernels["direct"].program(shape, scale=True)
    with pytest.raises(ShapeError, match="N\\*P\\*Q"):
        KERNEL.program(ConvShape(2048, 1, 1024, 1024, 1, 1, 1))


def test_swizzled_chunks_meet_no_bank_conflict():
    shape = ConvShape(1, 64, 8, 16, 64, 1, 1)
    x, w = stored(shape, "float16")
    cost = {}
    for swizzle in (0, 1):
        program = KERNEL.program(shape, NHWC=1, SWIZZLE=swizzle)
        run = program.run(device="sim", trace="counts", x=np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w=w)
        table = run.trace.bank_conflicts()
        table = table[table.opcode.str.startswith("ldmatrix")]
        cost[swizzle] = table.wavefronts.sum() / table.requests.sum()
    assert cost == {0: 32, 1: 4}


@st.composite
def epilogues(draw):
    return {"bias": draw(st.booleans()), "scale": draw(st.booleans()), "RELU": draw(st.integers(0, 1))}


@pytest.mark.parametrize("device", DEVICES)
@given(choice=epilogues(), seed=st.integers(0, 5))
@settings(max_examples=8)
def test_epilogue(device, choice, seed):
    shape = ConvShape(1, 2, 4, 5, 3, 2, 2)
    x, w = stored(shape, "bfloat16", seed)
    bias = np.array([1, -2, 0.5], "f4") if choice["bias"] else None
    scale = np.array([2, -1, 0], "f4") if choice["scale"] else None
    got = convolve(shape, "bfloat16", "NCHW", device, x, w, bias, scale, WIDE_OUTPUT=1, RELU=choice["RELU"])
    want = conv2d_reference(decode(x, "bfloat16"), decode(w, "bfloat16"))
    want = want * (1 if scale is None else scale[:, None, None]) + (0 if bias is None else bias[:, None, None])
    assert_matches(got, np.maximum(want, 0) if choice["RELU"] else want, rtol=1e-6, atol=1e-5)
