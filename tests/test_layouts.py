"""Each layout's two index maps agree with each other and with the padded image; sizes match the published formulas."""

import numpy as np
import pytest
from hypothesis import given

from strategies import conv_shapes
from texlab.layouts import LAYOUTS, runs
from texlab.shapes import ConvShape


@pytest.mark.parametrize("name", list(LAYOUTS))
@given(shape=conv_shapes(max_elements=600))
def test_every_tap_lies_where_the_inverse_says(name, shape):
    layout = LAYOUTS[name]
    x = np.arange(1, 1 + np.prod(shape.x_shape), dtype=np.int64).reshape(shape.x_shape)
    top, bottom, left, right = shape.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    packed = layout.pack(x, shape).ravel()
    n, c, r, s, p, q = np.indices((shape.n, shape.c, shape.r, shape.s, shape.p, shape.q))
    want = padded[n, c, p * shape.stride[0] + r * shape.dilation[0], q * shape.stride[1] + s * shape.dilation[1]]
    position = layout.position(shape, n, c, r, s, p, q)
    got = np.where(position >= 0, packed[position], 0)
    np.testing.assert_array_equal(got, want)
    assert layout.elements(shape) == packed.size and layout.bytes(shape) == 4 * packed.size


def test_a_window_is_one_run_in_im2win_and_nothing_like_it_elsewhere():
    shape = ConvShape(1, 1, 8, 8, 1, 3, 3)
    count = {name: len(runs(layout.window(shape, 0, 2, 3))) for name, layout in LAYOUTS.items()}
    assert count["im2win"] == count["im2win_nhwc"] == 1
    assert count["nchw"] == 3 and count["im2col"] == 9
    assert LAYOUTS["im2win"].window(shape, 0, 2, 3)[0] == (2 * 8 + 3) * 3  # starts at q*stride*R of its row


def test_published_sizes():
    cv9 = ConvShape(256, 64, 56, 56, 64, 3, 3)
    assert LAYOUTS["im2win"].elements(cv9) == 148_635_648  # arXiv:2306.14316, N = 256
    assert LAYOUTS["im2col"].elements(cv9) == 429_981_696
