"""conv2d on a processor: right for any shape, chosen when nothing else is asked for, clear where TVM is missing."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes
from texlab import conv as conv_module
from texlab.conv import conv2d
from texlab.program import DeviceError
from texlab.reference import assert_matches, conv2d_reference, error_bound
from texlab.schedules import cpu, tvm_import
from texlab.shapes import LAYERS, ConvShape

pytest.importorskip("tvm")


def how(shape: ConvShape) -> dict:
    return dict(stride=shape.stride, padding=shape.padding, dilation=shape.dilation, groups=shape.groups)


def check(shape: ConvShape, bias: bool = False, **more) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape.x_shape, "f4"), rng.standard_normal(shape.w_shape, "f4")
    b = rng.standard_normal(shape.k, dtype="f4") if bias else None
    y = conv2d(x, w, bias=b, **how(shape), **more)
    assert y.dtype == np.float32
    bound = error_bound(x, w, b, **how(shape))
    assert_matches(y, conv2d_reference(x, w, b, **how(shape)), rtol=0, atol=bound, name="y")


@settings(max_examples=20, deadline=None)
@given(shape=conv_shapes(), bias=st.booleans())
def test_any_shape(shape, bias):
    check(shape, bias, device="cpu")


@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(2, 6, 9, 8, 8, 3, 2, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2),
        ConvShape(1, 5, 7, 7, 5, 3, 3, padding=1, groups=5),
        ConvShape(1, 3, 1, 40, 33, 1, 3),
        ConvShape(1, 1, 5, 5, 1, 5, 5),
        ConvShape(1, 128, 6, 6, 256, 3, 3, padding=1),  # filters large enough for each core to keep its own
        LAYERS["cv12"],
    ],
    ids=str,
)
def test_odd_shapes(shape):
    check(shape, device="cpu")


@pytest.mark.parametrize("empty", [dict(n=0), dict(k=0)])
def test_nothing_to_compute(empty):
    shape = ConvShape(1, 2, 4, 4, 3, 3, 3).with_(**empty)
    assert conv2d(np.ones(shape.x_shape, "f4"), np.ones(shape.w_shape, "f4"), device="cpu").shape == shape.y_shape


def test_views_and_new_values():
    """Arrays of any order; and the filters of the call, not of an earlier one."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((8, 9, 3, 2), "f4").transpose(3, 2, 1, 0), rng.standard_normal((4, 3, 3, 3), "f4")
    first = conv2d(x, w, device="cpu")
    assert_matches(first, conv2d_reference(x, w), atol=1e-4)
    w *= -1
    assert np.array_equal(conv2d(x, w, device="cpu"), -first)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(conv_module, "_gpu_present", lambda: False)


def test_it_is_what_runs_when_nothing_else_is_asked_for(no_gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(cpu, "conv2d", lambda *a: asked.append(a) or np.zeros((1, 2, 2, 2), "f4"))
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((2, 1, 3, 3), "f4")
    conv2d(x, w)
    assert len(asked) == 1
    conv2d(x, w, kernel="direct")  # a CUDA kernel: simulated
    conv2d(x, w, BLOCK_K=32)
    conv2d(x, w, device="sim")
    assert len(asked) == 1


def test_without_tvm_it_is_the_simulator(no_gpu, monkeypatch):
    monkeypatch.setattr(tvm_import, "why_no_tvm", lambda: "no TVM")
    check(ConvShape(1, 1, 4, 4, 2, 3, 3))
    cpu._ready.cache_clear()


@pytest.mark.parametrize("more", [dict(kernel="direct"), dict(BLOCK_K=32), dict(precision="tf32")])
def test_what_it_cannot_do_is_refused(more):
    x, w = np.ones((1, 1, 4, 4), "f4"), np.ones((2, 1, 3, 3), "f4")
    with pytest.raises(ValueError, match="device='cpu' runs a TVM schedule in float32"):
        conv2d(x, w, device="cpu", **more)


@pytest.mark.parametrize(
    ("found", "says"),
    [("0.1.15.post2", r"apache-tvm-ffi is 0\.1\.15\.post2.*pip install"), (None, "missing.*pip install")],
)
def test_another_version_is_refused_with_the_remedy(monkeypatch, found, says):
    real = importlib.metadata.version

    def version(name):
        if name != "apache-tvm-ffi":
            return real(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)
    tvm_import.load.cache_clear()
    with pytest.raises(DeviceError, match=says):
        tvm_import.load()
    monkeypatch.undo()
    tvm_import.load()
