"""The public calls: kinds of arrays, views, defaults, and errors that say what to do."""

import numpy as np
import pytest

import texlab as tl
from texlab.reference import assert_matches, conv2d_reference

RNG = np.random.default_rng(0)


def arrays(*shape):
    return RNG.standard_normal(shape).astype("f4")


X, W = arrays(1, 3, 8, 9), arrays(4, 3, 3, 3)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[..., ::-1],
        lambda a: a.transpose(0, 1, 3, 2),
        lambda a: a[:, :, :, :-1],
        lambda a: np.broadcast_to(a[:1, :1, :1, :1], (1, 3, 8, 8)),
        lambda a: np.asfortranarray(a),
        lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),  # channels last in memory
    ],
)
def test_views_give_what_numpy_gives(view):
    x = view(X)
    assert_matches(tl.conv2d(x, W, device="sim"), conv2d_reference(x, W), atol=1e-5)


def test_size_one_dimensions_do_not_change_the_layout():
    x, w = np.arange(9, dtype="f4").reshape(1, 1, 3, 3), np.arange(36, dtype="f4").reshape(4, 1, 3, 3)
    plain = tl.conv2d(x, w, padding=1, device="sim")
    odd = tl.conv2d(
        x.transpose(0, 2, 3, 1).transpose(0, 3, 1, 2),
        w.transpose(1, 0, 2, 3).transpose(1, 0, 2, 3),
        padding=1,
        device="sim",
    )
    assert plain[0, 0, 1, 1] == 204 and plain[0, 3, 1, 1] == 1176
    np.testing.assert_array_equal(plain, odd)


def test_the_input_is_left_alone_and_the_output_is_a_fresh_numpy_array():
    before = X.copy()
    y = tl.conv2d(X, W, padding=1, bias=arrays(4), device="sim")
    assert type(y) is np.ndarray and y.dtype == np.float32 and y.flags.c_contiguous and y.flags.writeable
    np.testing.assert_array_equal(X, before)


def test_empty_batch_and_no_filters():
    assert tl.conv2d(np.ones((0, 3, 3, 3), "f4"), np.ones((3, 3, 3, 3), "f4"), device="sim").shape == (0, 3, 1, 1)
    assert tl.conv2d(np.ones((4, 3, 5, 5), "f4"), np.ones((0, 3, 3, 3), "f4"), device="sim").shape == (4, 0, 3, 3)


class Tensor:
    """A foreign tensor that speaks DLPack and nothing else; this module plays its library."""

    def __init__(self, a):
        self.a, self.shape, self.dtype = a, a.shape, a.dtype

    def __dlpack__(self, **how):
        return self.a.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.a.__dlpack_device__()


def from_dlpack(a):
    return Tensor(np.from_dlpack(a))


def test_a_dlpack_tensor_comes_back_as_its_own_kind():
    y = tl.conv2d(Tensor(X), Tensor(W), device="sim")
    assert type(y) is Tensor
    np.testing.assert_array_equal(y.a, tl.conv2d(X, W, device="sim"))


def test_pytorch_in_pytorch_out():
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X), torch.nn.Parameter(torch.from_numpy(W))
    y = tl.conv2d(x, w, padding=1, device="sim")
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, w, padding=1).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tl.conv2d(X, arrays(4, 5, 3, 3)), tl.ShapeError, ["C=3", "C=5"]),
        (lambda: tl.conv2d(X.astype("f8"), W), TypeError, ["float64", "float32"]),
        (lambda: tl.conv2d(X, W, bias=arrays(3)), tl.ShapeError, ["(3,)", "K=4"]),
        (lambda: tl.conv2d(X, W, kernel="im2win"), ValueError, ["im2win", "im2win_zigzag"]),
        (lambda: tl.conv2d(X, W, kernel="fast"), ValueError, ["fast", "direct"]),
        (lambda: tl.conv2d(X, W, device="tpu"), tl.DeviceError, ["tpu", "sim"]),
        (lambda: tl.conv2d(X, W, device="sim", BLOCK_Z=3), ValueError, ["BLOCK_Z", "BLOCK_Q"]),
        (lambda: tl.conv2d([[1]], W), TypeError, ["list", "NumPy"]),
        (lambda: tl.conv2d(X[0], W), tl.ShapeError, ["(3, 8, 9)", "(N,C,H,W)"]),
        (lambda: tl.im2win(X[0], (3, 3)), tl.ShapeError, ["(3, 8, 9)", "(N,C,H,W)"]),
    ],
)
def test_errors_name_the_values(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert all(word in str(raised.value) for word in words), raised.value


def test_im2win_is_the_documented_order():
    xw = tl.im2win(X, (3, 2), stride=(2, 1), padding=(1, 0), device="sim")
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (0, 0)))
    n, c, p, i = np.indices(xw.shape)
    np.testing.assert_array_equal(xw, padded[n, c, p * 2 + i % 3, i // 3])


@pytest.mark.gpu
def test_cupy_in_cupy_out_and_views():
    import cupy

    x, w = cupy.asarray(X), cupy.asarray(W)
    for view in (x, x[..., ::-1], x.transpose(0, 1, 3, 2)):
        y = tl.conv2d(view, w)
        assert isinstance(y, cupy.ndarray)
        assert_matches(y.get(), conv2d_reference(view.get(), W), atol=1e-5)


@pytest.mark.gpu
def test_pytorch_on_the_gpu():
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X).cuda(), torch.from_numpy(W).cuda()
    y = tl.conv2d(x, w, padding=1)
    assert isinstance(y, torch.Tensor) and y.is_cuda
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_gpu_arrays_are_not_moved_to_the_simulator_silently():
    import cupy

    with pytest.raises(tl.DeviceError, match="host"):
        tl.conv2d(cupy.asarray(X), cupy.asarray(W), device="sim")
