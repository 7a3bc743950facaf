"""The schedule of convolution for processors: every form, layout and knob gives the float64 answer; the loop nest's lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes

pytest.importorskip("tvm")

from texlab.schedules import difference, judge, nest, schedule, space
from texlab.schedules.cache import compiled
from texlab.schedules.conv import FORMS, Epilogue, Layout, conv
from texlab.schedules.nest import BUFFER, PARALLEL, UNROLLED, VECTORIZED, assembly, hottest_loop
from texlab.shapes import LAYERS, ConvShape

LAYOUTS = ("NCHW", "NHWC", "NCHW4c", "NCHW16c")
FULL = Epilogue(scale=True, shift=True, residual=True, activation="relu6")
UNEVEN = ConvShape(2, 6, 9, 8, 8, 3, 2, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2)


def check(work, **knobs):
    arrays = judge.sample(work)
    y = np.full(work.output.shape, np.nan, work.output.dtype)
    compiled(schedule(work, "llvm", **knobs), keep=False)(**work.pack(arrays), out=y)
    assert judge.fault(work.unpack(y), judge.answer(work, arrays)) is None


@settings(max_examples=12, deadline=None)
@given(
    shape=conv_shapes(),
    form=st.sampled_from(FORMS),
    layout=st.sampled_from(LAYOUTS),
    epilogue=st.sampled_from([Epilogue(), FULL]),
)
def test_any_shape(shape, form, layout, epilogue):
    check(conv(shape, form=form, layout=layout, epilogue=epilogue))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_uneven_padding_stride_dilation_and_groups(form, layout):
    check(conv(UNEVEN, form=form, layout=layout, epilogue=FULL))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_knobs(data):
    shape = data.draw(st.sampled_from([UNEVEN, ConvShape(1, 3, 8, 21, 40, 3, 3, padding=1)]))
    work = conv(shape, form=data.draw(st.sampled_from(FORMS)), layout=data.draw(st.sampled_from(LAYOUTS)))
    knobs = {name: data.draw(st.sampled_from(values), label=name) for name, values in space(work).items()}
    if knobs.get("WEIGHTS") == "local":
        knobs["SHARE"] = "channels"
    check(work, **knobs)


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        (dict(TILE_Q=0), "TILE_Q=0"),
        (dict(TILE_Q=99), "TILE_Q=99.*Q="),
        (dict(TILE_K=3), "TILE_K=3.*one of"),
        (dict(SHARE="images"), "SHARE='images'.*rows"),
        (dict(TILES=4), "no knob 'TILES'.*TILE_Q"),
        (dict(UNROLL=2), "UNROLL=2"),
        (dict(WEIGHTS="local", SHARE="rows"), "WEIGHTS='local' needs SHARE='channels'"),
    ],
)
def test_knobs_that_cannot_be(knobs, says):
    work = conv(ConvShape(1, 3, 8, 8, 16, 3, 3), form="direct", layout="NCHW")
    with pytest.raises(ValueError, match=says):
        schedule(work, "llvm", **knobs)


def test_other_requests_that_cannot_be():
    shape = ConvShape(1, 3, 8, 8, 16, 3, 3)
    for call, says in (
        (lambda: conv(shape, form="fft"), "form='fft'"),
        (lambda: conv(shape, layout="CHWN"), "layout='CHWN'"),
        (lambda: conv(shape.with_(n=0)), "nothing to compute"),
        (lambda: Epilogue(activation="gelu"), "activation='gelu'"),
        (lambda: schedule(conv(shape), "metal"), "target='metal'"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("c", "groups"), [(6, 1), (6, 2), (5, 5), (32, 2)])
def test_layouts_there_and_back(layout, c, groups):
    lay, x = Layout(layout), np.random.default_rng(0).standard_normal((2, c, 3, 4), "f4")
    packed = lay.pack(x, groups)
    assert packed.shape == lay.extents(2, c, (3, 4), groups)
    assert np.array_equal(lay.unpack(packed, c, groups), x)


def test_the_nest_says_what_the_schedule_did():
    work = conv(LAYERS["cv9"], form="im2win", layout="NHWC")
    plain, lines = nest(work.module()), nest(schedule(work).module)
    assert {line.kind for line in plain} == {"serial", "store", BUFFER}
    assert {PARALLEL, VECTORIZED, UNROLLED} <= {line.kind for line in lines}
    window = next(line for line in lines if line.kind == BUFFER and line.text.startswith("window"))
    assert window.extent < next(line for line in plain if line.kind == BUFFER).extent / 10  # a row of it, not all
    assert not any(line.kind == VECTORIZED for line in nest(schedule(work, VECTORIZE=False).module))


def test_the_difference_and_the_hottest_loop():
    work = conv(LAYERS["cv9"], form="im2win", layout="NHWC")
    changed = difference(schedule(work).script, schedule(work, UNROLL=False).script)
    assert {"+", "-"} <= {sign for sign, _ in changed}
    assert difference("a", "a") == []
    loop = hottest_loop(assembly(schedule(work)))
    assert any(line.startswith(("vfmadd", "fmla")) for line in loop)
