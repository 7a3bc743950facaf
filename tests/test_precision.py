"""The formats: every bit pattern, rounding, saturation; quantisation; conv2d's precisions and its errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import texlab as tl
from texlab.precision import PRECISIONS, decode, encode, precision, quantise, rounded

FLOATS = arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False))


def every_value(name: str) -> np.ndarray:
    """All finite numbers of a format of 8 or 16 bits, ascending."""
    p = PRECISIONS[name]
    patterns = np.arange(2 ** (8 * np.dtype(p.dtype).itemsize)).astype(f"u{np.dtype(p.dtype).itemsize}").view(p.dtype)
    with np.errstate(invalid="ignore"):  # NaN patterns
        values = decode(patterns, name).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "e4m3"])
def test_every_number_survives(name):
    values = every_value(name)
    assert (rounded(values, name) == values).all()
    assert values.max() == PRECISIONS[name].largest
    assert values[values > 0].min() == PRECISIONS[name].smallest


@pytest.mark.parametrize("name", ["float16", "bfloat16", "e4m3"])
def test_rounding_is_to_nearest_ties_to_even(name):
    values = every_value(name)
    values = values[np.isfinite(values)]
    middle = (values[:-1] + values[1:]) / 2
    got = rounded(middle, name).astype(np.float64)
    low = got == values[:-1]
    assert (low | (got == values[1:])).all()
    bits = encode(got, name).view(f"u{np.dtype(PRECISIONS[name].dtype).itemsize}")
    assert ((bits & 1 == 0) | (got == 0)).all()
    off = middle + 0.25 * np.diff(values)
    assert (rounded(off, name) == values[1:]).all()


@given(FLOATS)
def test_tf32_keeps_ten_bits(x):
    got = encode(x, "tf32")
    assert (got.view("u4") & 0x1FFF == 0)[np.isfinite(got)].all()
    good = np.isfinite(got) & (abs(x) >= np.finfo(np.float32).tiny)
    assert (abs(got[good].astype("f8") - x[good]) <= 2.0**-11 * abs(x[good].astype("f8"))).all()


def test_tf32_is_read_without_rounding():
    assert decode(np.array([1 + 2.0**-11 + 2.0**-23], "f4"), "tf32") == 1


@given(FLOATS)
def test_bfloat16_is_the_upper_half_rounded(x):
    bits = x.view("u4").astype("u8")
    want = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert (encode(x, "bfloat16") == want).all()


def test_overflow_saturates_in_e4m3_and_int8_and_is_infinite_elsewhere():
    x = np.array([1000, 448, 464, 465, -1000, 0.1, 2.0**-10, 0.001], "f4")
    assert rounded(x, "e4m3").tolist() == [448, 448, 448, 448, -448, 0.1015625, 0, 0.001953125]
    assert encode(x, "e4m3")[[1, 5]].tolist() == [0x7E, 0x1D]
    assert rounded(x[:5], "int8").tolist() == [127, 127, 127, 127, -128]
    assert rounded(np.array([np.inf, -np.inf]), "e4m3").tolist() == [448, -448]
    for name in ("float16", "bfloat16", "tf32"):
        assert np.isinf(rounded(np.array([3.4e38, np.inf]), name)[1])
    assert np.isinf(rounded(np.array([65520.0]), "float16")) and rounded(np.array([65519.0]), "float16") == 65504


def test_nan():
    nan = np.array([np.nan], "f4")
    assert all(np.isnan(rounded(nan, name)) for name in PRECISIONS if name != "int8")
    with pytest.raises(ValueError, match="int8 has none"):
        encode(nan, "int8")


@pytest.mark.parametrize("name", ["int8", "e4m3"])
@given(x=arrays.arrays(np.float32, (3, 5), elements=st.floats(-(2.0**60), 2.0**60, width=32)), each=st.booleans())
def test_quantisation_fills_the_format(name, x, each):
    stored, scale = quantise(x, name, per_channel=each)
    assert scale.shape == ((3,) if each else ()) and scale.dtype == np.float32
    wide = scale[:, None] if each else scale
    most = abs(x).max(axis=1, keepdims=True) if each else abs(x).max()
    step = most * (PRECISIONS[name].unit if name == "int8" else 2.0**-4)
    assert (abs(decode(stored, name).astype("f8") * wide - x) <= 1.001 * step + 1e-36).all()


def test_a_scale_for_each_channel_saves_the_quiet_ones():
    x = np.array([[100.0, -50.0], [0.5, 0.25]], "f4")
    one, scale = quantise(x, "int8")
    assert (decode(one, "int8")[1] * scale).tolist() != x[1].tolist()
    each, scales = quantise(x, "int8", per_channel=True)
    np.testing.assert_allclose(decode(each, "int8")[1] * scales[1], x[1], rtol=1e-2)


def test_what_cannot_be_quantised_or_named():
    with pytest.raises(ValueError, match="infinities"):
        quantise(np.array([np.inf], "f4"), "e4m3")
    with pytest.raises(ValueError, match=r"float8.*bfloat16"):
        precision("float8")
    with pytest.raises(TypeError, match=r"uint16.*float32"):
        decode(np.zeros(1, "f4"), "bfloat16")


# conv2d -------------------------------------------------------------------------------------------------------
X = np.random.default_rng(0).standard_normal((2, 5, 7, 6)).astype("f4")
W = np.random.default_rng(1).standard_normal((4, 5, 3, 3)).astype("f4")


def relative(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", PRECISIONS)
def test_conv2d_converts_when_asked(name, layout):
    x = X if layout == "NCHW" else X.transpose(0, 2, 3, 1)  # a view: it is copied to C order
    bias = np.arange(4, dtype="f4")
    y = tl.conv2d(x, W, padding=1, bias=bias, precision=name, layout=layout, device="sim")
    assert y.dtype == np.float32
    y = y if layout == "NCHW" else y.transpose(0, 3, 1, 2)
    limit = {"float16": 5e-4, "bfloat16": 4e-3, "tf32": 5e-4, "int8": 2e-2, "e4m3": 6e-2}[name]
    assert 1e-5 < relative(y, tl.conv2d_reference(X, W, bias, padding=1)) < limit


def test_conv2d_takes_float16_and_int8_as_they_are():
    half = tl.conv2d(X.astype("f2"), W.astype("f2"), bias=np.ones(4, "f2"), device="sim")
    assert half.dtype == np.float16
    assert relative(half, tl.conv2d_reference(X.astype("f2"), W.astype("f2"), np.ones(4))) < 5e-4
    whole = [np.rint(20 * a).astype("i1") for a in (X, W)]
    y = tl.conv2d(*whole, device="sim")
    assert y.dtype == np.int32
    assert (y == tl.conv2d_reference(*whole)).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tl.conv2d(X.astype("f8"), W), TypeError, ["float64", "float32", "float16"]),
        (lambda: tl.conv2d(X.astype("f2"), W), TypeError, ["x is float16", "w is float32"]),
        (lambda: tl.conv2d(X.astype("f2"), W.astype("f2"), precision="int8"), TypeError, ["int8", "float16", "float32"]),
        (lambda: tl.conv2d(X, W, precision="fp4"), ValueError, ["fp4", "e4m3"]),
        (lambda: tl.conv2d(X, W, kernel="im2win_tensor_core"), TypeError, ["im2win_tensor_core", "precision="]),
        (lambda: tl.conv2d(X, W, kernel="direct", precision="tf32"), TypeError, ["direct", "tf32"]),
        (lambda: tl.conv2d(X, W, layout="NHWC"), ValueError, ["NHWC", "precision='tf32'"]),
        (lambda: tl.conv2d(X, W, layout="HWCN"), ValueError, ["HWCN", "NCHW"]),
        (lambda: tl.conv2d(X, W, precision="tf32", PRECISION=0), ValueError, ["PRECISION", "precision="]),
        (lambda: tl.conv2d(X, W, precision="tf32", layout="NHWC"), tl.ShapeError, ["C=6", "C=5"]),
        (lambda: tl.conv2d(np.ones((1, 1, 3, 3), "i1"), np.ones((1, 1, 1, 1), "i1"), bias=np.ones(1, "f4")), TypeError, ["bias"]),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), raised.value
