"""The oracle against worked examples, and the referee against wrong answers."""

import numpy as np
import pytest

from texlab.reference import assert_matches, conv2d_reference, error_bound

ARANGE = lambda *shape: np.arange(np.prod(shape), dtype=float).reshape(shape)  # noqa: E731


def test_it_correlates_and_does_not_flip():
    x = np.zeros((1, 1, 5, 5))
    x[0, 0, 2, 2] = 1
    y = conv2d_reference(x, 1 + ARANGE(1, 1, 3, 3), padding=1)
    np.testing.assert_array_equal(y[0, 0, 1:4, 1:4], [[9, 8, 7], [6, 5, 4], [3, 2, 1]])


def test_same_padding_with_stride_two_and_even_filters():
    assert conv2d_reference(np.ones((1, 1, 2, 2)), ARANGE(1, 1, 3, 3), stride=2, padding="same").item() == 8
    assert conv2d_reference(np.ones((1, 1, 1, 1)), ARANGE(1, 1, 3, 3), stride=2, padding="same").item() == 4
    y = conv2d_reference(1 + ARANGE(1, 1, 3, 3), np.ones((1, 1, 2, 2)), padding="same")
    np.testing.assert_array_equal(y[0, 0], [[12, 16, 9], [24, 28, 15], [15, 17, 9]])


def test_depthwise_dilated_with_bias():
    y = conv2d_reference(
        np.ones((1, 4, 5, 5)), np.full((4, 1, 3, 3), 1 / 9), np.ones(4), groups=4, dilation=2, padding=2
    )
    edge = [13 / 9, 13 / 9, 15 / 9, 13 / 9, 13 / 9]
    middle = [15 / 9, 15 / 9, 2, 15 / 9, 15 / 9]
    np.testing.assert_allclose(y, np.broadcast_to([edge, edge, middle, edge, edge], y.shape))


def test_unequal_dilation_and_stride_above_the_filter():
    y = conv2d_reference(ARANGE(1, 1, 16, 16), np.ones((1, 1, 3, 2)), dilation=(1, 4))[0, 0]
    assert y.shape == (14, 12) and y[0, 0] == 108 and y[13, 11] == 1422
    x = ARANGE(1, 1, 7, 7)
    np.testing.assert_array_equal(
        conv2d_reference(x, np.ones((1, 1, 1, 1)), stride=3)[0, 0], [[0, 3, 6], [21, 24, 27], [42, 45, 48]]
    )
    np.testing.assert_array_equal(conv2d_reference(x, np.ones((1, 1, 2, 2)), stride=5)[0, 0], [[16, 36], [156, 176]])


def wrong_answers():
    want = np.random.default_rng(0).standard_normal((2, 3, 5, 7))
    one = want.copy()
    one[1, 2, 4, 6] += 1e-3
    last_column = want.copy()
    last_column[..., -1] = np.nan
    untouched = np.full_like(want, np.nan)
    infinite = want.copy()
    infinite[0, 0, 0, 0] = np.inf
    return want, dict(
        one_pixel=one,
        nan_column=last_column,
        untouched=untouched,
        zeros=np.zeros_like(want),
        transposed=np.ascontiguousarray(want[..., ::-1]),
        low_precision=want.astype(np.float16),
        infinite=infinite,
        shape=want[:, :, :-1],
    )


@pytest.mark.parametrize("how", list(wrong_answers()[1]))
def test_the_referee_rejects(how):
    want, wrong = wrong_answers()
    with pytest.raises(AssertionError):
        assert_matches(wrong[how], want)


def test_the_referee_says_where():
    want, wrong = wrong_answers()
    with pytest.raises(AssertionError, match=r"1 of 210 elements.*\(1, 2, 4, 6\)"):
        assert_matches(wrong["one_pixel"], want)


def test_the_bound_accepts_float32_in_any_order_and_rejects_a_missing_term():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((1, 64, 9, 9)).astype("f4"), rng.standard_normal((4, 64, 3, 3)).astype("f4")
    want, bound = conv2d_reference(x, w), error_bound(x, w)
    in_float32 = np.zeros_like(want, dtype="f4")
    for c in rng.permutation(64):
        for r in range(3):
            for s in range(3):
                in_float32 += w[:, c, r, s][:, None, None] * x[0, c, r : r + 7, s : s + 7]
    assert_matches(in_float32, want, rtol=0, atol=bound)
    w[0, 0, 0, 0] = 0
    with pytest.raises(AssertionError):
        assert_matches(conv2d_reference(x, w), want, rtol=0, atol=bound)
