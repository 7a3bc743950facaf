"""Reductions: every axis set, against float64; NaN and -inf as in NumPy; sums no worse than their longest chain allows."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm")

import tvm
from tvm.script import tirx as T

from texlab.schedules import schedule, space
from texlab.schedules.launch import program
from texlab.schedules.reduce import OPS, global_average_pool, reduce
from texlab.schedules.tvm_import import cpu_target

EPS = float(np.finfo("float32").eps) / 2


def amid_nan(shape, data=np.nan, guard=4096):
    """An array of ``shape`` with ``guard`` NaN before and after: (all of it, the array), aligned as TVM wants."""
    size = int(np.prod(shape))
    whole = np.full(size + 2 * guard + 32, np.nan, "float32")
    first = guard + -(whole.ctypes.data // 4 + guard) % 32
    inside = whole[first : first + size].reshape(shape)
    inside[...] = data
    return whole, inside


def run_cpu(module, config, work, packed):
    """LLVM code on ``packed`` inputs. Whatever it reads outside of them is NaN, as is what it leaves unwritten; it may not
    write outside of its output."""
    with tvm.transform.PassContext(config=dict(config)):
        code = tvm.compile(module, target=cpu_target())
    inputs = [amid_nan(b.shape, packed[b.name])[1] for b in work.inputs]
    whole, y = amid_nan(work.output.shape)
    code["main"](*(tvm.runtime.from_dlpack(a) for a in (*inputs, y)))
    answer = y.copy()
    y[...] = np.nan
    assert np.isnan(whole).all(), f"{work.name} wrote outside of its output"
    return answer


def on_cpu(work, arrays, **knobs):
    """The workload's answer from LLVM code, in the user's layout."""
    made = schedule(work, "llvm", **knobs)
    return work.unpack(run_cpu(made.module, made.config, work, work.pack(arrays)))


def on_simulator(work, arrays, **knobs):
    """The same from the CUDA text, in the simulator, which refuses accesses out of bounds and unwritten memory."""
    made = program(schedule(work, "cuda", **knobs))
    return work.unpack(made.run(device="sim", **work.pack(arrays)).outputs["y"])


def check(work, arrays, got):
    """Within n * eps * sum|x|, which holds for a sum in any order (Higham, Accuracy and Stability, section 4.2)."""
    want = work.reference(arrays)
    assert got.shape == want.shape
    if work.about["op"] == "max":
        np.testing.assert_array_equal(got, want)
        return
    x = np.abs(np.asarray(arrays["x"], np.float64))
    axes = work.about["axes"]
    count = np.prod([x.shape[a] for a in axes])
    bound = (count + 1) * EPS * x.sum(axis=axes).reshape(want.shape) / (count if work.about["op"] == "mean" else 1)
    assert (np.abs(got - want) <= bound + 1e-30).all()


@st.composite
def reductions(draw, top=9):
    shape = tuple(draw(st.lists(st.integers(1, top), min_size=1, max_size=4)))
    axes = draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1), min_size=1).map(tuple)))
    return reduce(shape, draw(st.sampled_from(OPS)), axes, draw(st.booleans())), shape


def values(shape, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal(shape, dtype="float32")}


@settings(max_examples=40)
@given(made=reductions(), data=st.data())
def test_cpu(made, data):
    work, shape = made
    knobs = {name: data.draw(st.sampled_from(choices)) for name, choices in space(work, "llvm").items()}
    check(work, values(shape), on_cpu(work, values(shape), **knobs))


@settings(max_examples=25)
@given(made=reductions(7), data=st.data())
def test_cuda(made, data):
    work, shape = made
    knobs = {name: data.draw(st.sampled_from(choices)) for name, choices in space(work, "cuda").items()}
    if knobs["BLOCK"] * knobs["ROWS"] > 1024:
        knobs["ROWS"] = 1
    check(work, values(shape), on_simulator(work, values(shape), **knobs))


LONG = [((4, 1077), 1), ((3, 1001), None), ((5000,), None), ((301, 70), 0), ((2, 300, 8), 1), ((3, 40, 5, 36), (1, 3))]


@pytest.mark.parametrize(("shape", "axes"), LONG)
@pytest.mark.parametrize("op", OPS)
def test_long_reductions_with_tails(shape, axes, op):
    work = reduce(shape, op, axes)
    arrays = values(shape)
    check(work, arrays, on_cpu(work, arrays))
    check(work, arrays, on_cpu(work, arrays, SPLIT=3, PARALLEL=True))
    check(work, arrays, on_simulator(work, arrays))
    check(work, arrays, on_simulator(work, arrays, SPLIT=3))


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1)])
def test_maximum_of_everything(shape):
    """apache/tvm issue 18380: a maximum over (3,5,7) and over (1,1)."""
    work, arrays = reduce(shape, "max"), values(shape)
    for got in (on_cpu(work, arrays), on_simulator(work, arrays)):
        assert got.shape == () and got == arrays["x"].max()


@pytest.mark.parametrize("run", [on_cpu, on_simulator])
@pytest.mark.parametrize(("shape", "axes"), [((4, 131), 1), ((131, 4), 0)])
def test_maximum_is_numpys(run, shape, axes):
    x = -1 - np.abs(values(shape)["x"])  # all negative: a maximum that begins with 0 shows
    rows = np.moveaxis(x, axes, 1)
    rows[1] = -np.inf
    rows[2, 77] = np.nan
    rows[3, 5], rows[3, 6] = -np.nan, np.inf
    work = reduce(shape, "max", axes)
    got = run(work, {"x": x})
    np.testing.assert_array_equal(got, x.max(axis=axes))
    assert np.isneginf(got[1]) and np.isnan(got[2]) and np.isnan(got[3])


def test_the_guards_notice():
    """What reads or writes one element too far is caught by ``run_cpu``."""
    work = reduce((4, 5), "sum", 1)
    x = tvm.te.placeholder((4, 5), "float32", name="x")
    read = tvm.te.compute((4,), lambda i: x[i, 0] + x[i + 1, 0], name="y")
    module = tvm.IRModule({"main": tvm.te.create_prim_func([x, read]).with_attr("global_symbol", "main")})
    assert np.isnan(run_cpu(module, {}, work, work.pack(values((4, 5)))))[3]

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((4, 5), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(5):
            y[i] = x[0, i]

    with pytest.raises(AssertionError, match="wrote outside"):
        run_cpu(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}), {}, work, work.pack(values((4, 5))))


def test_a_sum_of_ones_passes_2_to_the_24():
    """A single float32 accumulator stops at 16777216."""
    x = np.ones(2**24 + 4000, "float32")
    assert np.cumsum(x[: 2**24 + 4000], dtype="float32")[-1] == 2**24  # which is why there are several
    assert on_cpu(reduce(x.shape), {"x": x}) == x.size


def test_a_mean_is_not_a_sum_that_overflows_early():
    x = np.full((2, 64), 1e37, "float32")
    assert np.isinf(on_cpu(reduce(x.shape, "sum", 1), {"x": x})).all()
    np.testing.assert_allclose(on_cpu(reduce(x.shape, "mean", 1), {"x": x / 100}), 1e35, rtol=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCHW4c", "NCHW8c"])
@pytest.mark.parametrize("shape", [(2, 6, 7, 5), (1, 1, 1, 1), (3, 9, 4, 4)])
def test_global_average_pool(shape, layout):
    work, arrays = global_average_pool(shape, layout), values(shape)
    want = arrays["x"].astype("float64").mean((2, 3))
    for run in (on_cpu, on_simulator):
        got = run(work, arrays)
        assert got.shape == shape[:2]
        np.testing.assert_allclose(got, want, rtol=0, atol=40 * EPS * 4)


def test_two_kernels_for_one_output_of_a_large_array():
    made = program(schedule(reduce((1 << 20,)), "cuda"))
    assert [launch.grid for launch in made.launches] == [(1, 256, 1), (1, 1, 1)]
    assert "__shfl_down_sync" in made.source and "float4" in made.source


def test_an_axis_of_ones_and_keepdims_cost_nothing():
    assert reduce((3, 1, 5), "sum", (1,), keepdims=True).unpack(np.zeros(15)).shape == (3, 1, 5)
    assert reduce((3, 4), "sum", 0, keepdims=True).unpack(np.zeros(4)).shape == (1, 4)
    assert reduce((2, 3, 4), "sum", -1).buffers == reduce((6, 4), "sum", 1).buffers


def test_bad_arguments_say_what_is_wrong():
    for arguments, message in [
        (((3,), "median"), "op='median'"),
        (((), "sum"), "at least one axis"),
        (((3, 0), "sum"), "each of at least 1"),
        (((3, 4), "sum", (2,)), "axes="),
        (((3, 4), "sum", (0, -2)), "none twice"),
        (((3, 4), "sum", ()), "at least one"),
        (((1 << 16, 1 << 16), "sum"), "2\\^31"),
    ]:
        with pytest.raises(ValueError, match=message):
            reduce(*arguments)
    with pytest.raises(ValueError, match="x is"):
        reduce((3, 4)).pack({"x": np.zeros((4, 3), "float32")})
    with pytest.raises(ValueError, match="1024"):
        schedule(reduce((64, 64), "sum", 1), "cuda", BLOCK=512, ROWS=4)
    with pytest.raises(ValueError, match="positive"):
        schedule(reduce((64, 64), "sum", 1), "llvm", ITEMS=0)
    with pytest.raises(ValueError, match="no knob"):
        schedule(reduce((64, 64), "sum", 1), "llvm", BLOCK=1)


def test_a_workload_can_be_pickled():
    work = pickle.loads(pickle.dumps(reduce((4, 5), "max", 1)))
    check(work, values((4, 5)), on_cpu(work, values((4, 5))))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "axes"), [*LONG, ((1 << 22) + 4, None), ((1 << 16, 40), 0), ((640, 49), 1)])
@pytest.mark.parametrize("op", OPS)
def test_on_a_gpu(shape, axes, op):
    shape = shape if isinstance(shape, tuple) else (shape,)
    work, arrays = reduce(shape, op, axes), values(shape)
    made = program(schedule(work, "cuda"))
    check(work, arrays, work.unpack(made.run(device="gpu", **work.pack(arrays)).outputs["y"]))
