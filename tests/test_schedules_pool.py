"""Pooling: PyTorch's rules by hand-made values, every layout against float64, NaN and -inf, tails and uneven padding."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm")

from test_schedules_reduce import on_cpu, on_simulator, values
from texlab.schedules import schedule, space
from texlab.schedules.launch import program
from texlab.schedules.pool import PoolShape, pool2d

LAYOUTS = ("NCHW", "NHWC", "NCHW4c")


def check(work, arrays, got):
    want = work.reference(arrays)
    assert got.shape == want.shape
    if work.about["op"] == "max":
        np.testing.assert_array_equal(got, want)
    else:  # at most 25 float32 additions of numbers below 6, and one division
        np.testing.assert_allclose(got, want, rtol=0, atol=26 * 6 * float(np.finfo("float32").eps))


@st.composite
def pools(draw):
    n, c = draw(st.integers(1, 2)), draw(st.integers(1, 9))
    h, w = draw(st.integers(1, 11)), draw(st.integers(1, 11))
    size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    op = draw(st.sampled_from(("max", "avg")))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    half = [((s - 1) * d + 1) // 2 for s, d in zip(size, dilation, strict=True)]
    padding = tuple(draw(st.integers(0, half[i // 2])) for i in range(4))
    how = {
        "size": size,
        "stride": draw(st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(1, 3)))),
        "padding": padding,
        "dilation": dilation,
        "ceil_mode": draw(st.booleans()),
        "count_include_pad": op == "avg" and draw(st.booleans()),
        "layout": draw(st.sampled_from(LAYOUTS)),
    }
    try:
        return pool2d((n, c, h, w), op, **how), (n, c, h, w)
    except ValueError:
        assume(False)


@settings(max_examples=40)
@given(made=pools(), data=st.data())
def test_cpu(made, data):
    work, shape = made
    knobs = {name: data.draw(st.sampled_from(choices)) for name, choices in space(work, "llvm").items()}
    check(work, values(shape), on_cpu(work, values(shape), **knobs))


@settings(max_examples=25)
@given(made=pools(), data=st.data())
def test_cuda(made, data):
    work, shape = made
    knobs = {name: data.draw(st.sampled_from(choices)) for name, choices in space(work, "cuda").items()}
    check(work, values(shape), on_simulator(work, values(shape), **knobs))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["max", "avg"])
def test_the_first_pool_of_a_resnet_in_small(layout, op):
    shape = (1, 20, 23, 37)
    work, arrays = pool2d(shape, op, size=3, stride=2, padding=1, layout=layout), values(shape)
    check(work, arrays, on_cpu(work, arrays))
    check(work, arrays, on_cpu(work, arrays, PAD="inline", PARALLEL=True))
    check(work, arrays, on_simulator(work, arrays))


ROW = np.array([[[[1, 2, 3, 4, 5]]]], "float32")


@pytest.mark.parametrize("run", [on_cpu, on_simulator, lambda work, arrays: work.reference(arrays)])
@pytest.mark.parametrize(
    ("op", "how", "want"),
    [
        # windows 1 2 | 3 4; ceil_mode adds 5 alone
        ("max", {"size": (1, 2)}, [2, 4]),
        ("max", {"size": (1, 2), "ceil_mode": True}, [2, 4, 5]),
        ("avg", {"size": (1, 2), "ceil_mode": True}, [1.5, 3.5, 5]),
        # the overhang is not counted, not even with the padding
        ("avg", {"size": (1, 2), "ceil_mode": True, "count_include_pad": True}, [1.5, 3.5, 5]),
        # _ 1 | 2 3 | 4 5; a fourth window would begin at the right padding, and does not exist
        ("avg", {"size": (1, 2), "padding": (0, 0, 1, 1), "ceil_mode": True}, [1, 2.5, 4.5]),
        ("avg", {"size": (1, 2), "padding": (0, 0, 1, 1), "count_include_pad": True}, [0.5, 2.5, 4.5]),
        # _ 1 2 | 3 4 5
        ("avg", {"size": (1, 3), "padding": (0, 0, 1, 0)}, [1.5, 4]),
        ("avg", {"size": (1, 3), "padding": (0, 0, 1, 0), "count_include_pad": True}, [1, 4]),
        # _ 1 2 | 2 3 4 | 4 5 _
        ("max", {"size": (1, 3), "stride": (1, 2), "padding": (0, 0, 1, 1)}, [2, 4, 5]),
        # 1 . 3 | 2 . 4 | 3 . 5
        ("max", {"size": (1, 2), "stride": 1, "dilation": (1, 2)}, [3, 4, 5]),
        ("avg", {"size": (1, 2), "stride": 1, "dilation": (1, 2)}, [2, 3, 4]),
        # 1 2 | 4 5: stride above the window
        ("max", {"size": (1, 2), "stride": (1, 3)}, [2, 5]),
        # with a stride of 3 a window of 2 in ceil_mode: 1 2 | 4 5, and none at 7
        ("max", {"size": (1, 2), "stride": (1, 3), "ceil_mode": True}, [2, 5]),
    ],
)
def test_windows_as_pytorch_has_them(run, op, how, want):
    got = run(pool2d(ROW.shape, op, **how), {"x": ROW})
    np.testing.assert_allclose(got, np.array(want, "float32").reshape(1, 1, 1, -1), rtol=1e-6)


@pytest.mark.parametrize(
    ("extent", "size", "stride", "padding"), [(5, 2, 2, 1), (6, 3, 2, 1), (7, 3, 3, 0), (4, 5, 2, 2), (1, 1, 3, 0)]
)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_output_sizes_by_counting_windows(extent, size, stride, padding, ceil_mode):
    """A window belongs if it fits the padded row; with ceil_mode if it begins inside the row or its left padding."""
    starts = range(-padding, extent + 2 * padding, stride)
    fits = sum(start + size <= extent + padding for start in starts)
    begins = sum(start < extent for start in starts if start - stride + size < extent + padding or start == -padding)
    shape = PoolShape(1, 1, extent, extent, size, stride, padding, ceil_mode=ceil_mode)
    assert shape.y_shape[2:] == ((begins, begins) if ceil_mode else (fits, fits))


def test_ceil_mode_takes_a_window_larger_than_the_image():
    x = ROW[..., :2]
    work = pool2d(x.shape, "avg", size=(1, 3), stride=2, ceil_mode=True)
    for run in (on_cpu, on_simulator):
        np.testing.assert_allclose(run(work, {"x": x}), [[[[1.5]]]])


@pytest.mark.parametrize("run", [on_cpu, on_simulator])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_never_wins_and_nan_always_does(run, layout):
    x = np.full((1, 2, 7, 7), -5, "float32")
    x[0, 0, 3, 3] = np.nan
    x[0, 1] = -np.inf
    got = run(pool2d(x.shape, "max", size=3, stride=2, padding=1, layout=layout), {"x": x})
    nan = np.zeros((4, 4), bool)
    nan[1:3, 1:3] = True
    np.testing.assert_array_equal(np.isnan(got[0, 0]), nan)
    assert (got[0, 0][~nan] == -5).all() and np.isneginf(got[0, 1]).all()


def test_bad_arguments_say_what_is_wrong():
    x = (1, 3, 8, 8)
    for how, message in [
        ({"op": "min"}, "op='min'"),
        ({"size": 0}, "size"),
        ({"size": (2, 2, 2)}, "size"),
        ({"size": 2.5}, "size"),
        ({"size": 2, "stride": 0}, "stride"),
        ({"size": 2, "dilation": 0}, "dilation"),
        ({"size": 3, "padding": 2}, "half the window, 1"),
        ({"size": 3, "padding": -1}, "half the window"),
        ({"size": 9}, "the window is 9 high .* only 8"),
        ({"size": 5, "dilation": 2, "padding": (0, 0)}, "the window is 9 high"),
        ({"size": 2, "op": "max", "count_include_pad": True}, "averages"),
        ({"size": 2, "layout": "CHWN"}, "layout='CHWN'"),
    ]:
        with pytest.raises(ValueError, match=message):
            pool2d(x, **how)
    with pytest.raises(ValueError, match="padding alone"):  # taps at -1 and 1 of a single row
        pool2d((1, 1, 1, 4), "avg", size=2, stride=1, padding=1, dilation=2)
    with pytest.raises(ValueError, match="n=0"):
        pool2d((0, 3, 8, 8))
    with pytest.raises(ValueError, match="N,C,H,W"):
        pool2d((3, 8, 8))
    work = pool2d(x)
    with pytest.raises(ValueError, match="x is"):
        work.pack({"x": np.zeros((1, 3, 8, 9), "float32")})
    for target, knobs, message in [
        ("llvm", {"PAD": "none"}, "PAD"),
        ("llvm", {"ROWS": 0}, "ROWS=0"),
        ("cuda", {"BLOCK": 2048}, "BLOCK"),
        ("cuda", {"VECTOR": 4}, "VECTOR"),
    ]:
        with pytest.raises(ValueError, match=message):
            schedule(work, target, **knobs)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["max", "avg"])
def test_on_a_gpu(layout, op):
    shape = (2, 64, 57, 61)
    work, arrays = pool2d(shape, op, size=3, stride=2, padding=1, layout=layout), values(shape)
    made = program(schedule(work, "cuda"))
    check(work, arrays, work.unpack(made.run(device="gpu", **work.pack(arrays)).outputs["y"]))
