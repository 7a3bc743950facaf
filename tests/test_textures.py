"""Texture fetches in the simulator: known cases, every mode against a second model, and texels that an H200 returned."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from texlab import texture_bench
from texlab.program import Buffer, KernelFault, Launch, Program
from texlab.texture_bench import fetch_cases
from texlab.textures import Texture
from texlab.views import FORMATS, TextureView, padded_pitch


# known cases --------------------------------------------------------------------------------------------------------
def test_texel_i_lies_at_i_and_a_half():
    ramp = np.array([4, 5, 6], "float32")
    clamp = Texture(ramp, filter="linear").fetch([0.25, 0.75, 1.0, 1.25, 1.5, 2.75, 3, 9, -1])
    assert clamp.tolist() == [4, 4.25, 4.5, 4.75, 5, 6, 6, 6, 4]
    border = Texture(ramp, filter="linear", address="border").fetch([-0.5, 0, 0.25, 2.75, 3, 3.5])
    assert border.tolist() == [0, 2, 3, 4.5, 3, 0]


def test_two_dimensions_mix_four_texels():
    plane = (10 * np.arange(3)[:, None] + np.arange(4)).astype("float32")
    inside = Texture(plane, filter="linear")
    assert inside.fetch([0.5, 1, 2.25, 4], [0.5, 1, 1.75, 3]).tolist() == [0, 5.5, 14.25, 23]
    assert abs(inside.fetch([1.3], [2.2])[0] - 17.8) <= 0.02  # weights have 8 bits
    assert Texture(plane, filter="linear", address="border").fetch([4], [3]).tolist() == [5.75]
    ones = Texture(np.ones((2, 2), "float32"), filter="linear", address="border")
    assert ones.fetch([0, 0.5, 2, -0.5], [0, 0, 2, 0.5]).tolist() == [0.25, 0.5, 0.25, 0]


@pytest.mark.parametrize(("mode", "outside"), [("Zero", 0), ("Clamp", 3)])
def test_surfaces_count_x_in_bytes(mode, outside):
    program = surface_program(f"surf2Dread<float>(s, x[i], 0, cudaBoundaryMode{mode})")
    values = np.arange(8, dtype="float32").reshape(2, 4)
    got = program.run(device="sim", image=values, x=np.array([0, 4, 8, 16], "int32")).output
    assert got.tolist() == [0, 1, 2, outside]


@pytest.mark.parametrize(("x", "what"), [(1, "no multiple of the texel's 4 bytes"), (16, "is outside")])
def test_a_surface_fault_is_explained(x, what):
    program = surface_program("surf2Dread<float>(s, x[i], 0)")
    with pytest.raises(KernelFault, match=what):
        program.run(device="sim", image=np.zeros((2, 4), "float32"), x=np.full(4, x, "int32"))


def surface_program(read: str) -> Program:
    source = (
        'extern "C" __global__ void k(cudaSurfaceObject_t s, const int* x, float* y)'
        f"{{ const int i = threadIdx.x; y[i] = {read}; }}"
    )
    return Program(
        name="surface",
        source=source,
        buffers=(Buffer("image", (2, 4)), Buffer("x", (4,), "int32"), Buffer("y", (4,), role="output")),
        launches=(Launch("k", (1, 1, 1), (4, 1, 1), ("s", "x", "y")),),
        textures=(TextureView("s", "image", (2, 4), surface=True),),
    )


def test_rows_are_padded_and_layers_never_mix():
    assert [padded_pitch(n) for n in (20, 72, 260, 1280)] == [32, 96, 288, 1280]
    layers = np.broadcast_to(10 * np.arange(3, dtype="float32")[:, None, None], (3, 2, 2))
    assert Texture(layers, filter="linear").fetch(np.ones(3), np.ones(3), np.arange(3)).tolist() == [0, 10, 20]
    odd = np.arange(15, dtype="float32").reshape(3, 5)  # rows of 20 bytes
    assert Texture(odd, memory="linear").fetch([0.5, 4.5, 2.5], [0.5, 1.5, 2.5]).tolist() == [0, 9, 12]


@pytest.mark.parametrize(
    ("array", "how", "what"),
    [
        (np.zeros((2, 2), "float64"), {}, "float64"),
        (np.zeros((2, 2), "float32"), {"address": "wrap"}, "normalized=True"),
        (np.zeros((2, 2), "uint8"), {"filter": "linear"}, "read='normalized'"),
        (np.zeros((1, 70000), "float32").T.copy(), {}, "height=70000"),
        (np.zeros((3, 2, 2), "float32"), {"memory": "linear"}, "memory='linear'"),
        (np.zeros((2, 3), "float32"), {"channels": 4}, "last dimension of 4"),
    ],
)
def test_what_no_texture_can_be_is_refused(array, how, what):
    with pytest.raises(ValueError, match=what):
        Texture(array, **how)


# a second model, one fetch at a time ----------------------------------------------------------------------------------
def slow_fetch(texture: Texture, at: np.ndarray) -> np.ndarray:
    """(n, 4) registers, written without looking at the simulator's code."""
    size, how, array = texture.size, texture.how, texture.array
    texels = array.reshape(*((1,) * (3 - len(size))), *size, -1).astype(np.float64)
    layers, height, width, channels = texels.shape
    if how["read"] == "normalized":
        texels = texels / 255

    def one(i: int, extent: int) -> int | None:
        if 0 <= i < extent:
            return i
        if how["address"] == "border":
            return None
        if how["address"] == "wrap":
            return i % extent
        if how["address"] == "mirror":
            i %= 2 * extent
            return min(i, 2 * extent - 1 - i)
        return min(max(i, 0), extent - 1)

    def read(layer: int, j: int, i: int) -> np.ndarray:
        j, i = one(j, height), one(i, width)
        return np.zeros(channels) if i is None or j is None else texels[layer, j, i]

    out = np.zeros((at.shape[1], 4))
    for n, spot in enumerate(at.T.astype(np.float64)):
        x, y = spot[0], spot[1] if len(size) > 1 else 0.5
        if how["normalized"]:
            x = math.floor(x * 2**24) / 2**24 * width
            y = math.floor(y * 2**24) / 2**24 * height if len(size) > 1 else y
        layer = int(min(max(spot[2], 0), layers - 1)) if len(size) > 2 else 0
        if how["filter"] == "point":
            out[n, :channels] = read(layer, math.floor(y), math.floor(x))
            continue
        a, b = (math.floor((c - 0.5) * 256 + 0.5) for c in (x, y))
        (i, a), (j, b) = divmod(a, 256), divmod(b, 256)
        both = (2 * a * b + 256) // 512
        mixed = (
            (256 - a - b + both) * read(layer, j, i)
            + (a - both) * read(layer, j, i + 1)
            + (b - both) * read(layer, j + 1, i)
            + both * read(layer, j + 1, i + 1)
        ) / 256
        if array.dtype == np.uint8:
            mixed = np.floor(mixed * 65535 + 0.5 + 1e-6) / 65535
        out[n, :channels] = mixed
    return out


def spacing(texture: Texture, values: np.ndarray) -> np.ndarray:
    """How far a mixture may be off: one unit in the last place of what the filter hands over. Where float16 texels cancel
    the hardware has no bits left below 2**-15 of the largest."""
    if texture.array.dtype == np.float16:
        largest = 2.0**-15 * np.abs(texture.array.astype(np.float64)).max()
        return np.maximum(np.spacing(np.abs(values).astype(np.float16)).astype(np.float64), largest)
    return 1e-6 * np.maximum(np.abs(values), 1)


def simulated(texture: Texture, at: np.ndarray) -> np.ndarray:
    inputs = {"texels": texture.array, "at": np.ascontiguousarray(at, np.float32)}
    return texture.program(at.shape[1]).run(device="sim", **inputs).output.astype(np.float64)


@st.composite
def textures(draw: st.DrawFn) -> tuple[Texture, np.ndarray]:
    """A texture in any mode there is, and coordinates in and around it."""
    dtype, channels = draw(st.sampled_from(FORMATS)), draw(st.sampled_from([1, 4]))
    size = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    filter, normalized = draw(st.sampled_from(["point", "linear"])), draw(st.booleans())
    address = draw(st.sampled_from(["clamp", "border", "wrap", "mirror"] if normalized else ["clamp", "border"]))
    read = "normalized" if dtype == "uint8" and (filter == "linear" or draw(st.booleans())) else "element"
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (*size, 4) if channels == 4 else size
    texels = (rng.integers(0, 256, shape) if dtype == "uint8" else rng.standard_normal(shape) * 8).astype(dtype)
    at = []
    for extent in size[::-1]:
        c = rng.integers(-32 * extent, 64 * extent, 16) / 32  # also centres, edges and half ways
        c = np.where(rng.random(16) < 0.5, c, rng.uniform(-extent, 2 * extent, 16))
        at.append(c / extent if normalized and len(at) < 2 else np.floor(c) if len(at) == 2 else c)
    texture = Texture(texels, channels=channels, filter=filter, address=address, normalized=normalized, read=read)
    return texture, np.stack(at).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(textures())
def test_every_mode_is_what_the_second_model_says(case):
    texture, at = case
    want = slow_fetch(texture, at)
    assert (np.abs(simulated(texture, at) - want) <= spacing(texture, want)).all()


# what the hardware returned -------------------------------------------------------------------------------------------
RECORDED = texture_bench.load()


@pytest.mark.skipif(RECORDED is None, reason="no texels are recorded")
def test_texels_are_those_the_hardware_returned():
    """All registers of all recorded fetches."""
    rows = {row["case"]: row["values"] for row in RECORDED.rows if row["kernel"] == "fetch"}
    cases = fetch_cases()
    assert set(rows) == set(cases)
    exact = total = 0
    for name, (texture, at) in cases.items():
        want = np.array(rows[name]).reshape(-1, 4)
        got = simulated(texture, at)
        off = np.abs(got - want)
        assert (off <= spacing(texture, want)).all(), (name, off.max())
        exact += int((off <= 1e-6 * np.abs(want)).sum())
        total += want.size
    assert exact >= 0.999 * total
