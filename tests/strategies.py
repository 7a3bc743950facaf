"""Random convolution shapes, small enough for the simulator, with every tail: shared by the property tests."""

from math import prod

from hypothesis import assume
from hypothesis import strategies as st

from texlab.shapes import ConvShape, ShapeError


@st.composite
def conv_shapes(draw, max_elements: int = 4000) -> ConvShape:
    """Any valid small shape: groups, depthwise, dilation, unequal strides and paddings, one row, one column."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    c = groups * draw(st.integers(1, 4))
    k = groups * draw(st.integers(1, 5))
    integers = {name: draw(st.integers(1, top)) for name, top in dict(n=3, h=12, w=12, r=4, s=4).items()}
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    padding = draw(st.one_of(st.just(0), st.just("same"), st.tuples(*[st.integers(0, 2)] * 4)))
    try:
        shape = ConvShape(c=c, k=k, **integers, stride=stride, padding=padding, dilation=dilation, groups=groups)
    except ShapeError:
        assume(False)
    assume(max(prod(shape.x_shape), prod(shape.y_shape)) <= max_elements)
    return shape
