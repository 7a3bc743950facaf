"""Output-shape arithmetic and the refusals, from documented cases of other libraries."""

import pytest

from texlab.shapes import LAYERS, ConvShape, ShapeError


def pq(**extents):
    shape = ConvShape(**{"n": 1, "c": 1, "k": 1} | extents)
    return shape.p, shape.q


@pytest.mark.parametrize(
    ("extents", "want"),
    [
        (dict(h=16, w=16, r=3, s=2, dilation=(1, 4)), (14, 12)),  # the width must not use the filter's height
        (dict(h=7, w=7, r=1, s=1, stride=3), (3, 3)),  # stride above the filter
        (dict(h=7, w=7, r=2, s=2, stride=5), (2, 2)),
        (dict(h=1, w=200, r=1, s=128, padding=(0, 64), c=768, k=768, groups=16), (1, 201)),
        (dict(h=2, w=2, r=3, s=3, stride=2, padding="same"), (1, 1)),
        (dict(h=3, w=3, r=2, s=2, padding="same"), (3, 3)),
        (dict(h=3, w=3, r=1, s=1, padding=(1, 2, 0, 3)), (6, 6)),
    ],
)
def test_output_shape(extents, want):
    assert pq(**extents) == want


def test_same_puts_the_odd_row_at_the_bottom_and_right():
    assert ConvShape(1, 1, 2, 2, 1, 3, 3, stride=2, padding="same").padding == (0, 1, 0, 1)
    assert ConvShape(1, 1, 3, 3, 1, 2, 2, padding="same").padding == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("extents", "words"),
    [
        (dict(h=1, w=1, r=10, s=10), ["10", "1"]),
        (dict(h=3, w=3, r=1, s=1, padding=2**55), [str(2**55)]),
        (dict(h=3, w=3, r=1, s=1, stride=0), ["stride", "0"]),
        (dict(h=3, w=3, r=1, s=1, stride=(1, 2, 3)), ["stride", "(1, 2, 3)"]),
        (dict(h=3, w=3, r=1, s=1, padding=-1), ["padding", "-1"]),
        (dict(h=3, w=3, r=1, s=1, padding="full"), ["full", "same"]),
        (dict(h=3, w=3, r=1, s=1, c=4, k=6, groups=4), ["groups=4", "C=4", "K=6"]),
        (dict(h=3, w=3, r=1.5, s=1), ["r=1.5"]),
        (dict(h=3, w=3, r=1, s=1, dilation="2"), ["dilation"]),
    ],
)
def test_impossible_shapes_are_refused_with_their_values(extents, words):
    with pytest.raises(ShapeError) as error:
        ConvShape(**{"n": 1, "c": 1, "k": 1} | extents)
    assert all(word in str(error.value) for word in words), error.value


def test_channel_mismatch_names_both_counts():
    with pytest.raises(ShapeError) as error:
        ConvShape.of((1, 3, 5, 5), (1, 1, 2, 2), dilation=2)
    assert "C=3" in str(error.value) and "C=1" in str(error.value)


def test_empty_batch_and_no_filters_are_shapes():
    assert ConvShape(0, 3, 3, 3, 3, 3, 3).y_shape == (0, 3, 1, 1)
    assert ConvShape(4, 3, 5, 5, 0, 3, 3).y_shape == (4, 0, 3, 3)


def test_the_twelve_layers():
    assert len(LAYERS) == 12
    cv1 = LAYERS["cv1"].with_(n=128)
    assert cv1.y_shape == (128, 96, 55, 55) and cv1.flops == 26986291200
