"""Every kernel of the catalog against the float64 oracle, for odd shapes first: simulator here, `-m gpu` on a GPU."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes
from texlab.catalog import kernels
from texlab.layouts import LAYOUTS
from texlab.program import device_function
from texlab.reference import assert_matches, conv2d_reference, error_bound
from texlab.shapes import ConvShape, ShapeError

#: the convolutions in float32; those of other precisions have test_tensor_core.py
CONV = [name for name, kernel in kernels.items() if kernel.kind == "conv" and "PRECISION" not in kernel.tunables]
LAYOUT_OF = {"im2win": "im2win", "im2col": "im2col", "nchw4c": "nchw4c"}  # kernel -> layout it writes
DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]

ODD_SHAPES = {
    "one_of_everything": ConvShape(1, 1, 1, 1, 1, 1, 1),
    "one_output_row": ConvShape(1, 3, 3, 9, 5, 3, 2),
    "one_output_column": ConvShape(2, 3, 9, 3, 5, 2, 3),
    "tails_everywhere": ConvShape(2, 5, 13, 11, 67, 3, 3),
    "more_pixels_than_a_tile": ConvShape(3, 2, 12, 17, 3, 3, 3, padding=1),
    "stride_two_padding": ConvShape(1, 4, 9, 10, 6, 3, 3, stride=2, padding=1),
    "unequal_dilation": ConvShape(1, 2, 16, 16, 3, 3, 2, dilation=(1, 4)),
    "dilation_two": ConvShape(1, 3, 9, 9, 4, 3, 3, dilation=2, padding=2),
    "stride_above_filter": ConvShape(1, 1, 7, 7, 1, 2, 2, stride=5),
    "asymmetric_padding": ConvShape(2, 3, 6, 5, 4, 3, 3, padding=(0, 2, 1, 3)),
    "same_even_filter": ConvShape(1, 2, 5, 6, 3, 2, 4, padding="same"),
    "groups": ConvShape(2, 6, 7, 7, 9, 3, 3, groups=3, padding=1),
    "depthwise": ConvShape(1, 8, 6, 6, 8, 3, 3, groups=8, padding=1),
    "depthwise_multiplier": ConvShape(1, 4, 6, 6, 8, 3, 3, groups=4, dilation=2, padding=2),
    "one_by_n_filter": ConvShape(1, 8, 1, 40, 8, 1, 16, padding=(0, 8), groups=4),
    "first_layer_like": ConvShape(1, 3, 19, 19, 8, 11, 11, stride=4),
    "empty_batch": ConvShape(0, 3, 3, 3, 3, 3, 3),
    "no_filters": ConvShape(4, 3, 5, 5, 0, 3, 3),
}


def random_inputs(shape: ConvShape, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    draw = lambda *s: rng.standard_normal(s).astype("f4")  # noqa: E731
    return {"x": draw(*shape.x_shape), "w": draw(*shape.w_shape), "bias": draw(shape.k)}


def check(name: str, shape: ConvShape, device: str, **tunables) -> None:
    """Run kernel ``name`` with a bias on random data and compare every output with the oracle."""
    inputs = random_inputs(shape)
    run = device_function(device)(kernels[name].program(shape, bias=True, **tunables), inputs)
    how = dict(stride=shape.stride, padding=shape.padding, dilation=shape.dilation, groups=shape.groups)
    got = run.output.get() if device == "gpu" else run.output
    want, bound = conv2d_reference(*inputs.values(), **how), error_bound(*inputs.values(), **how)
    assert_matches(got, want, rtol=0, atol=bound, name=f"{name} {shape}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONV)
@pytest.mark.parametrize("shape", ODD_SHAPES.values(), ids=ODD_SHAPES.keys())
def test_odd_shapes(shape, name, device):
    check(name, shape, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONV)
@given(shape=conv_shapes())
@settings(max_examples=15)
def test_random_shapes(name, device, shape):
    check(name, shape, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(LAYOUT_OF))
@given(shape=conv_shapes())
@settings(max_examples=15)
def test_pack_kernels_follow_the_index_map(name, device, shape):
    x = random_inputs(shape)["x"]
    out = device_function(device)(kernels[name].program(shape), {"x": x}).output
    out = out.get() if device == "gpu" else out
    np.testing.assert_array_equal(out, LAYOUTS[LAYOUT_OF[name]].pack(x, shape))


TUNED = [
    ("im2win_tile", dict(PAD=0)),
    ("im2win_tile", dict(BLOCK_K=32, BLOCK_Q=64, BLOCK_C=4)),
    ("im2win_tile", dict(BLOCK_K=128, BLOCK_Q=128)),
    ("im2win_tile", dict(BLOCK_K=8, BLOCK_Q=256, BLOCK_C=16, PAD=8)),
    ("im2win_zigzag", dict(BLOCK_K=32, BLOCK_Q=64)),
    ("im2win_zigzag", dict(BLOCK_K=128, BLOCK_Q=128, BLOCK_C=16)),
    ("im2win_zigzag", dict(LANE_K="lane / 8", LANE_Q="lane % 8")),
    ("im2win_double_buffer", dict(BLOCK_K=32, BLOCK_Q=64, BLOCK_C=16)),
    ("im2win_pipeline", dict(STAGES=1)),
    ("im2win_pipeline", dict(STAGES=3)),
    ("im2win_pipeline", dict(STAGES=5, BLOCK_K=32, BLOCK_Q=64)),
    ("im2win_pipeline", dict(STAGES=4, BLOCK_C=16)),
    ("im2col_gemm", dict(BLOCK_K=128, BLOCK_Q=64, BLOCK_C=4)),
    ("direct", dict(BLOCK=32)),
    ("im2win_direct", dict(BLOCK=64, BLOCK_ROWS=1)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "tunables"), TUNED, ids=lambda v: "-".join(map(str, v.values())) if v and isinstance(v, dict) else v
)
def test_tunables_keep_the_result(name, tunables, device):
    for shape in ("tails_everywhere", "more_pixels_than_a_tile", "groups"):
        check(name, ODD_SHAPES[shape], device, **tunables)


@pytest.mark.parametrize("device", DEVICES)
@given(count=st.integers(1, 3000))
@settings(max_examples=10)
def test_copy(device, count):
    shape = ConvShape(1, 1, 1, count, 1, 1, 1)
    x = random_inputs(shape)["x"]
    out = device_function(device)(kernels["copy"].program(shape), {"x": x}).output
    np.testing.assert_array_equal(out.get() if device == "gpu" else out, x)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONV)
@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(1, 1, 256, 256, 1, 3, 3, padding=1),
        ConvShape(1, 65536, 4, 4, 65536, 3, 3, padding=1, groups=65536),  # channels past a grid's 65535 rows
        ConvShape(70000, 2, 1, 1, 3, 1, 1),  # images past it
        ConvShape(4, 64, 56, 56, 64, 3, 3),
    ],
    ids=str,
)
def test_large_shapes(name, shape):
    check(name, shape, "gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONV)
def test_more_than_2_to_the_31_elements(name):
    """A 1x1 filter over 2^31 + 2^24 inputs, all zero but the last pixel: 32-bit offsets would miss it."""
    import cupy

    shape = ConvShape(1, 129, 4096, 4096, 3, 1, 1)
    x = cupy.zeros(shape.x_shape, "f4")
    x[0, -1, -1, -1] = 1
    w = cupy.zeros(shape.w_shape, "f4")
    w[:, -1, 0, 0] = cupy.array([1, 2, 3], "f4")
    y = device_function("gpu")(kernels[name].program(shape), {"x": x, "w": w}).output
    assert y[0, :, -1, -1].tolist() == [1, 2, 3]
    y[0, :, -1, -1] = 0
    assert not cupy.any(y)


def test_tiled_kernels_refuse_more_pixels_than_they_can_count():
    with pytest.raises(ShapeError, match="2147483648"):
        kernels["im2win_zigzag"].program(ConvShape(2048, 1, 1024, 1024, 1, 1, 1))


def test_unknown_and_impossible_tunables_are_refused():
    shape = ODD_SHAPES["groups"]
    with pytest.raises(ValueError, match="BLOCK_Z"):
        kernels["im2win_tile"].program(shape, BLOCK_Z=1)
    with pytest.raises(ValueError, match="BLOCK_K"):
        kernels["im2win_tile"].program(shape, BLOCK_K=0)
    with pytest.raises(ValueError, match="PAD"):
        kernels["im2win_tile"].program(shape, PAD="2")
    with pytest.raises(Exception, match="PAD"):  # the file's static_assert
        device_function("sim")(
            kernels["im2win_tile"].program(shape, PAD=1), {k: v for k, v in random_inputs(shape).items() if k != "bias"}
        )


def test_every_kernel_file_states_its_contract():
    for kernel in kernels.values():
        assert kernel.header["title"] and {"idea", "shapes", "launch"} <= set(kernel.header), kernel.file
        assert all(t.doc for t in kernel.tunables.values())
