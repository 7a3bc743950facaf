"""Fused, folded and unfused give one answer; batch norm folds in float64 and refuses what is no variance."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes

pytest.importorskip("tvm")


from test_schedules_reduce import on_cpu, on_simulator, run_cpu
from texlab.reference import conv2d_reference
from texlab.schedules import Epilogue, schedule, space
from texlab.schedules.conv import ACTIVATIONS
from texlab.schedules.fusion import (
    batchnorm_scale_shift,
    bytes_moved,
    elementwise,
    fold_batchnorm,
    run_chain,
    variants,
)
from texlab.schedules.launch import program
from texlab.shapes import ConvShape

LAYOUTS = ("NCHW", "NHWC", "NCHW4c")
EPS = float(np.finfo("float32").eps)
EPILOGUES = [Epilogue(*flags, act) for flags in itertools.product((False, True), repeat=3) for act in ACTIVATIONS][1:]


def arrays_for(shape, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *dims: rng.standard_normal(dims, dtype="float32")  # noqa: E731
    k = shape.k
    return {
        "x": draw(*shape.x_shape),
        "w": draw(*shape.w_shape),
        "scale": draw(k),
        "shift": draw(k),
        "residual": draw(*shape.y_shape),
    }


def compiled(work, packed):
    """LLVM code: the elementwise kernels as scheduled, a convolution as it is."""
    made = schedule(work, "llvm") if work.kind == "elementwise" else None
    return run_cpu(made.module if made else work.module(), made.config if made else {}, work, packed)


def check(shape, arrays, got, want):
    """The sum of C*R*S products in any order, then a few roundings (Higham, section 3.1)."""
    taps = shape.c // shape.groups * shape.r * shape.s
    how = {name: getattr(shape, name) for name in ("stride", "padding", "dilation", "groups")}
    size = conv2d_reference(np.abs(arrays["x"]), np.abs(arrays["w"]), **how)
    scale, shift = (np.abs(arrays[n], dtype="float64")[:, None, None] for n in ("scale", "shift"))
    bound = (taps + 6) * EPS * ((1 + scale) * size + shift + np.abs(arrays["residual"]))
    assert (np.abs(got - want) <= bound).all()


@settings(max_examples=12)
@given(
    shape=conv_shapes(400),
    layout=st.sampled_from(LAYOUTS),
    form=st.sampled_from(("direct", "im2win")),
    epilogue=st.sampled_from(EPILOGUES),
)
def test_three_ways_one_answer(shape, layout, form, epilogue):
    if 0 in (shape.n, shape.k):
        return
    arrays = arrays_for(shape)
    ways = variants(shape, form, layout, epilogue)
    assert ("folded" in ways) == epilogue.scale
    want = ways["fused"][0].reference(arrays)
    for works in ways.values():
        check(shape, arrays, run_chain(works, arrays, compiled), want)


@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    per_group=st.integers(1, 5),
    layout=st.sampled_from(LAYOUTS),
    epilogue=st.sampled_from(EPILOGUES),
    data=st.data(),
)
def test_elementwise_on_both_targets(shape, per_group, layout, epilogue, data):
    n, groups, p, q = shape
    work = elementwise((n, groups * per_group, p, q), epilogue, layout, groups)
    rng = np.random.default_rng(1)
    arrays = {
        name: rng.standard_normal((n, groups * per_group, p, q), dtype="float32") for name in ("sums", "residual")
    }
    arrays |= {name: rng.standard_normal(groups * per_group, dtype="float32") for name in ("scale", "shift")}
    for target, run in (("llvm", on_cpu), ("cuda", on_simulator)):
        knobs = {name: data.draw(st.sampled_from(choices)) for name, choices in space(work, target).items()}
        np.testing.assert_allclose(run(work, arrays, **knobs), work.reference(arrays), rtol=4 * EPS, atol=16 * EPS)


def test_relu6_and_the_order_of_steps():
    """Scale, shift, residual, then the activation: any other order gives other numbers."""
    sums = np.array([-4, 1, 2, 9], "float32").reshape(1, 1, 1, 4)
    arrays = {"sums": sums, "scale": [2.0], "shift": [1.0], "residual": np.full_like(sums, 0.5)}
    arrays |= {name: np.array(arrays[name], "float32") for name in ("scale", "shift")}
    work = elementwise(sums.shape, Epilogue(True, True, True, "relu6"))
    for run in (on_cpu, on_simulator):
        assert run(work, arrays).ravel().tolist() == [0, 3.5, 5.5, 6]


def test_what_each_way_moves():
    shape = ConvShape(n=1, c=2, h=4, w=4, k=4, r=1, s=1)
    x, w, y, per_k = 4 * 32, 4 * 8, 4 * 64, 4 * 4
    ways = variants(shape, epilogue=Epilogue(True, True, True, "relu"))
    moved = {way: [bytes_moved(work) for work in works] for way, works in ways.items()}
    assert moved["fused"] == [x + w + 2 * per_k + y + y]
    assert moved["folded"] == [x + w + per_k + y + y]
    assert moved["unfused"] == [x + w + y, y + 2 * per_k + y, 3 * y, 2 * y]


def batchnorm(k, seed=3):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(k) for name in ("gamma", "beta", "mean")} | {"var": rng.uniform(0.1, 2, k)}


@pytest.mark.parametrize("bias", [None, np.arange(6) / 3])
def test_a_folded_batchnorm_is_the_batchnorm(bias):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 6, 6)), rng.standard_normal((6, 4, 3, 3))
    norm = batchnorm(6)
    norm["gamma"][2] = 0  # a channel that batch norm switches off
    over = lambda a: np.asarray(a)[:, None, None]  # noqa: E731
    before = conv2d_reference(x, w) + (0 if bias is None else over(bias))
    want = over(norm["gamma"]) * (before - over(norm["mean"])) / np.sqrt(over(norm["var"]) + 1e-5) + over(norm["beta"])
    folded, shift = fold_batchnorm(w, **norm, bias=bias)
    np.testing.assert_allclose(conv2d_reference(x, folded) + over(shift), want, rtol=1e-12, atol=1e-12)
    assert not folded[2].any() and np.allclose(shift[2], norm["beta"][2])


def test_folding_rounds_once():
    w = np.random.default_rng(0).standard_normal((8, 3, 3, 3), dtype="float32")
    norm = {name: value.astype("float32") for name, value in batchnorm(8).items()}
    folded, shift = fold_batchnorm(w, **norm)
    scale, exact = batchnorm_scale_shift(**norm)
    assert folded.dtype == shift.dtype == np.float32
    np.testing.assert_array_equal(folded, (w.astype("float64") * scale[:, None, None, None]).astype("float32"))
    np.testing.assert_array_equal(shift, exact.astype("float32"))


def test_a_variance_of_zero_needs_an_eps():
    norm = batchnorm(3) | {"var": np.array([1, 0, 1.0])}
    scale, _ = batchnorm_scale_shift(**norm, eps=1e-4)
    assert scale[1] == pytest.approx(norm["gamma"][1] * 100)
    with pytest.raises(ValueError, match="var=0 with eps=0 in channel 1"):
        batchnorm_scale_shift(**norm, eps=0)


def test_bad_batchnorms_say_what_is_wrong():
    w = np.ones((3, 2, 1, 1), "float32")
    for change, message in [
        ({"var": np.array([1, -1e-9, 1])}, "var=-1e-09 .* channel 1"),
        ({"var": np.array([1, 1, np.nan])}, "var is not finite in channel 2"),
        ({"gamma": np.array([1, np.inf, 1])}, "gamma is not finite in channel 1"),
        ({"mean": np.ones(4)}, r"all four must be \(K,\)"),
        ({"eps": -1e-5}, "eps=-1e-05"),
        ({"eps": float("nan")}, "eps=nan"),
        ({"bias": np.ones(2)}, "bias"),
    ]:
        with pytest.raises(ValueError, match=message):
            fold_batchnorm(w, **(batchnorm(3) | change))
    with pytest.raises(ValueError, match="K=3"):
        fold_batchnorm(w[:2], **batchnorm(3))
    with pytest.raises(ValueError, match="floating"):
        fold_batchnorm(w.astype("int32"), **batchnorm(3))
    with pytest.raises(ValueError, match="exceeds float16"):
        fold_batchnorm(w.astype("float16") * 60000, **(batchnorm(3) | {"gamma": np.full(3, 9.0)}))


def test_bad_arguments_say_what_is_wrong():
    with pytest.raises(ValueError, match="nothing to do"):
        elementwise((1, 2, 3, 4), Epilogue())
    with pytest.raises(ValueError, match="N,K,P,Q"):
        elementwise((1, 2, 0, 4), Epilogue(shift=True))
    with pytest.raises(ValueError, match="groups=3"):
        elementwise((1, 4, 3, 4), Epilogue(shift=True), groups=3)
    work = elementwise((1, 3, 5, 5), Epilogue(shift=True))
    with pytest.raises(ValueError, match=r"shift is \(2,\)"):
        work.pack({"shift": np.ones(2, "float32")})
    with pytest.raises(ValueError, match="VECTOR=4 does not divide"):
        schedule(work, "cuda", VECTOR=4)
    with pytest.raises(ValueError, match="BLOCK=0"):
        schedule(work, "cuda", BLOCK=0)


def test_workloads_can_be_pickled():
    shape = ConvShape(n=1, c=2, h=5, w=5, k=3, r=3, s=3)
    arrays, ways = arrays_for(shape), pickle.loads(pickle.dumps(variants(shape, epilogue=EPILOGUES[-1])))
    for works in ways.values():
        check(shape, arrays, run_chain(works, arrays, compiled), ways["fused"][0].reference(arrays))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_a_gpu(layout):
    shape = (2, 64, 28, 30)
    work = elementwise(shape, EPILOGUES[-1], layout)
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape, dtype="float32") for name in ("sums", "residual")}
    arrays |= {name: rng.standard_normal(64, dtype="float32") for name in ("scale", "shift")}
    made = program(schedule(work, "cuda"))
    got = work.unpack(made.run(device="gpu", **work.pack(arrays)).outputs["y"])
    np.testing.assert_allclose(got, work.reference(arrays), rtol=4 * EPS, atol=16 * EPS)
