"""The layout explorer: picture equals kernel equals formula, and a changed kernel changes the picture."""

from __future__ import annotations

import dataclasses
import gc
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from hypothesis import given, settings
from hypothesis import strategies as st

from texlab.catalog import kernels
from texlab.explore.layout import SHOWN, check_layout, layout, table
from texlab.explore.layout_frames import UNWRITTEN, ZERO, Packed, drawn, pack, pictures, windows
from texlab.layouts import LAYOUTS, NCHW, runs
from texlab.player import EMPTY, ORANGE, OUTSIDE, PURPLE, SKY, VERMILLION, YELLOW, Player
from texlab.program import Buffer, DeviceError, Launch, Program, device_function
from texlab.shapes import ConvShape

SMALL = ConvShape(n=1, c=1, h=5, w=6, k=1, r=3, s=2)
SHAPES = [
    SMALL,
    ConvShape(n=1, c=1, h=8, w=8, k=1, r=3, s=3),
    ConvShape(n=1, c=3, h=5, w=7, k=1, r=3, s=2, padding=1),
    ConvShape(n=1, c=5, h=6, w=5, k=1, r=2, s=3, stride=(2, 1), dilation=(1, 2), padding=(0, 1, 2, 0)),
    ConvShape(n=1, c=1, h=3, w=3, k=1, r=3, s=3),
]


def packs(shape: ConvShape) -> dict[str, Packed]:
    return {name: pack(kernels[name].program(shape), shape) for name in SHOWN}


def panel(content: dict, which: int) -> tuple[np.ndarray, np.ndarray]:
    """Colours and tags (T, cells) of one panel."""
    sizes = [p["rows"] * p["cols"] for p in content["panels"]]
    cut = slice(sum(sizes[:which]), sum(sizes[: which + 1]))
    return content["frames"][:, cut], content["tags"][:, cut]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_does_what_the_formula_says(shape: ConvShape) -> None:
    for name, packed in packs(shape).items():
        assert packed.layout == name
        assert np.array_equal(packed.source, LAYOUTS[name].source(shape).ravel()), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_picture_is_the_windows_of_the_formula(shape: ConvShape) -> None:
    content = pictures(shape, list(packs(shape).values()))
    assert VERMILLION not in content["legend"]
    elements = windows(shape).element
    for which, name in enumerate(SHOWN, start=2):
        colours, tags = panel(content, which)
        source = LAYOUTS[name].source(shape).ravel()
        for t in range(shape.p * shape.q):
            places = LAYOUTS[name].window(shape, 0, t // shape.q, t % shape.q)
            assert np.array_equal(np.flatnonzero(tags[t] >= 0), places), (name, t)
            assert set(colours[t, places]) <= {ORANGE, SKY, YELLOW}
            # the number in a cell is the tap whose element the kernel put there
            assert np.array_equal(source[places], elements[t, tags[t, places]]), (name, t)
            rest = np.setdiff1d(np.arange(len(source)), places)
            assert set(colours[t, rest][source[rest] < 0]) <= {OUTSIDE, PURPLE}
            assert set(colours[t, rest][source[rest] >= 0]) <= {EMPTY, PURPLE}


@settings(max_examples=8)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))
def test_any_small_shape(c: int, r: int, s: int, stride: int, padding: int, dilation: int) -> None:
    shape = ConvShape(1, c, 5, 6, 1, r, s, stride=stride, padding=padding, dilation=dilation)
    packed = packs(shape)
    for name in SHOWN:
        assert np.array_equal(packed[name].source, LAYOUTS[name].source(shape).ravel()), name
    player = Player()
    player.load(**pictures(shape, list(packed.values())))
    assert player.steps == shape.p * shape.q


def test_what_is_shared_and_what_is_said() -> None:
    shape = ConvShape(n=1, c=1, h=8, w=8, k=1, r=3, s=3)
    content = pictures(shape, list(packs(shape).values()))
    assert content["captions"][7].endswith("9 taps: 3 new, 6 shared with the pixel on the left.")
    assert content["captions"][6].endswith("9 taps: 9 new, 0 shared with the pixel on the left.")
    notes = [p["notes"][7] for p in content["panels"][1:]]
    assert notes == [
        "3 contiguous runs, longest 3 elements = 12 bytes",
        "1 contiguous run, 9 elements = 36 bytes",
        "9 contiguous runs, longest 1 element = 4 bytes",
        "9 contiguous runs, longest 1 element = 4 bytes",
    ]
    colours, tags = panel(content, 2)
    row = slice(24, 48)  # p = 1
    assert colours[7, row].tolist() == [PURPLE] * 3 + [SKY] * 6 + [ORANGE] * 3 + [EMPTY] * 12
    assert tags[7, row].tolist() == [-1] * 3 + [0, 3, 6, 1, 4, 7, 2, 5, 8] + [-1] * 12


def test_writers_come_from_the_trace() -> None:
    packed = packs(SMALL)["im2win"]
    rows = packed.writer[:, 1].reshape(packed.dims[2:])
    assert np.array_equal(rows, np.repeat([[0], [1], [2]], packed.dims[3], axis=1))  # a warp a row
    assert np.array_equal(packed.writer[: packed.dims[3], 2], np.arange(packed.dims[3]))


def upside_down(shape: ConvShape) -> Program:
    """The im2win kernel with the rows of each window in reverse."""
    program = kernels["im2win"].program(shape)
    assert "r * c.dilation_h;" in program.source
    return dataclasses.replace(
        program, source=program.source.replace("r * c.dilation_h;", "(c.R - 1 - r) * c.dilation_h;")
    )


def test_a_changed_kernel_changes_the_picture() -> None:
    explorer = layout(SMALL, kernel=upside_down)
    assert explorer.error.value == ""
    assert any(text.startswith("wrong") for _, text, _ in explorer.player.legend)
    content = pictures(SMALL, explorer.result.packed)
    colours, _ = panel(content, 2)
    assert (colours[0] == VERMILLION).sum() == 4  # the middle row of three stays where it was
    assert content["panels"][2]["notes"][0].endswith("6 elements = 24 bytes, 4 of them wrong")
    good = pictures(SMALL, list(packs(SMALL).values()))
    assert not np.array_equal(panel(good, 2)[0], colours)
    assert np.array_equal(panel(good, 3)[0], panel(content, 3)[0])
    explorer.close()


def own_program(body: str, size: int, shape: ConvShape = SMALL) -> Program:
    source = f'extern "C" __global__ void mine(const float* x, float* y) {{ int i = threadIdx.x; {body} }}'
    buffers = (Buffer("x", shape.x_shape), Buffer("y", (2, size // 2), role="output"))
    return Program("mine", source, buffers, (Launch("mine", (1, 1, 1), (size, 1, 1), ("x", "y")),))


def test_a_layout_of_ones_own_gets_its_own_panel() -> None:
    explorer = layout(SMALL, kernel=own_program("y[i] = x[29 - i];", 30))
    assert explorer.error.value == ""
    assert [p["name"] for p in explorer.player.panels] == ["y", "x", "y", "xw", "col", "x4"]
    content = pictures(SMALL, explorer.result.packed)
    _, tags = panel(content, 2)
    assert np.array_equal(np.flatnonzero(tags[0] >= 0), 29 - np.sort(NCHW.window(SMALL, 0, 0, 0))[::-1])
    explorer.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[i] = 2 * x[i];", "had not read from 'x'"),
        ("y[i] = 5.5f;", "stored 5.5"),
        ("y[i] = i == 3 ? 0.f : x[40];", ""),
    ],
)
def test_a_kernel_that_is_no_copy_is_refused_in_the_explorer(body: str, message: str) -> None:
    explorer = layout(SMALL, kernel=lambda shape: own_program(body, 30, shape))
    assert message in explorer.error.value.replace("&#x27;", "'")
    assert explorer.error.value
    assert explorer.player.stale
    explorer.close()


def test_controls_recompute_and_errors_recover() -> None:
    explorer = layout()
    assert explorer.error.value == ""
    before = explorer.player.frame_bytes
    explorer.controls["stride"].value = 2
    assert explorer.player.steps == 9
    assert explorer.player.frame_bytes != before
    explorer.controls["stride"].value = 1
    explorer.controls["h"].value = 2
    assert "ShapeError" in explorer.error.value
    assert explorer.player.stale
    explorer.controls["h"].value = 8
    assert (explorer.error.value, explorer.player.stale) == ("", False)
    assert explorer.player.frame_bytes == before
    started = time.perf_counter()
    explorer.controls["padding"].value = 1
    assert time.perf_counter() - started < 3  # about 0.2 s; machines that run tests are busy
    explorer.close()


def test_a_large_shape_is_drawn_in_part_and_costed_in_full() -> None:
    shape = ConvShape(n=256, c=64, h=56, w=56, k=64, r=3, s=3)
    explorer = layout(shape)
    assert explorer.error.value == ""
    for text in ("148,635,648", "2.89", "429,981,696", "8.37", "a corner of it"):
        assert text in explorer.table.value
    part = drawn(shape)
    assert (part.n, part.k, part.r) == (1, 1, 3)
    assert explorer.player.steps == part.p * part.q
    explorer.close()


def test_a_program_too_large_to_draw_says_what_would_do() -> None:
    shape = ConvShape(n=1, c=8, h=30, w=30, k=1, r=3, s=3)
    explorer = layout(shape, kernel=nhwc_windows(shape))
    assert "a picture of every step would have" in explorer.error.value
    assert "such as 1x4x8x8" in explorer.error.value
    explorer.close()


def test_grouped_and_uneven_shapes_keep_what_sliders_cannot_say() -> None:
    shape = ConvShape(n=1, c=4, h=7, w=7, k=4, r=3, s=3, stride=(2, 1), padding=(0, 1, 2, 0), groups=2)
    explorer = layout(shape)
    assert explorer.error.value == ""
    assert explorer.result.shape == shape
    assert (explorer.result.drawn.c, explorer.result.drawn.stride) == (2, (2, 1))
    explorer.close()


def test_the_table_reports_the_kernel_not_the_layout() -> None:
    explorer = layout()
    text = table(explorer.result)
    loads = explorer.result.packed[0].run.trace.sectors()
    loads = loads[loads["kind"] == "load"]
    assert f"{loads['sectors'].sum() / loads['requests'].sum():.2f} sectors" in text
    explorer.close()


NHWC_WINDOWS = """extern "C" __global__ void mine(const float* x, float* xw, int C, int H, int W, int P, int R) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= P * W * R * C) return;
  const int channel = i % C, r = i / C % R, w = i / C / R % W, p = i / C / R / W;
  xw[i] = x[(channel * H + p + r) * W + w];
}"""


def nhwc_windows(shape: ConvShape) -> Program:
    count = shape.p * shape.w * shape.r * shape.c
    packed = Buffer("xw", (1, shape.p, shape.w, shape.r, shape.c), role="output")
    args = ("x", "xw", shape.c, shape.h, shape.w, shape.p, shape.r)
    launch = Launch("mine", (-(-count // 128), 1, 1), (128, 1, 1), args)
    return Program("mine", NHWC_WINDOWS, (Buffer("x", shape.x_shape), packed), (launch,))


def test_an_exercise_is_judged() -> None:
    shape = SMALL.with_(c=3)
    assert check_layout(nhwc_windows, shape, "im2win_nhwc").startswith("All 162 elements are where")
    wrong = dataclasses.replace(nhwc_windows(shape), source=NHWC_WINDOWS.replace("i / C % R", "R - 1 - i / C % R"))
    said = check_layout(wrong, shape, "im2win_nhwc")
    assert said.startswith(
        "108 of 162 elements differ from im2win_nhwc. The first: xw[0, 0, 0, 0, 0] holds x[n=0, c=0, h=2"
    )
    assert "should hold x[n=0, c=0, h=0, w=0]" in said
    assert "but im2win of" in check_layout(nhwc_windows, shape, "im2win")
    with pytest.raises(ValueError, match="name='window'"):
        check_layout(nhwc_windows, shape, "window")
    explorer = layout(shape, kernel=nhwc_windows)
    assert explorer.error.value == ""
    assert explorer.player.panels[2]["title"].startswith("im2win_nhwc xw")
    assert runs(explorer.window("mine", 1)) == [(9, 18)]
    explorer.close()


def test_an_element_nobody_writes_is_seen() -> None:
    program = dataclasses.replace(
        nhwc_windows(SMALL), source=NHWC_WINDOWS.replace("P * W * R * C", "P * W * R * C - 2")
    )
    assert (pack(program, SMALL).source[-2:] == UNWRITTEN).all()
    assert "holds nothing: no thread wrote it" in check_layout(program, SMALL, "im2win_nhwc")
    explorer = layout(SMALL, kernel=program)
    assert "mine left 2 elements unwritten" in explorer.table.value
    assert all(slider.disabled for slider in explorer.controls.values())
    explorer.close()


def test_window_says_what_the_picture_shows() -> None:
    explorer = layout()
    assert runs(explorer.window("nchw", 1)) == [(1, 3), (9, 3), (17, 3)]
    assert runs(explorer.window("im2win", 1)) == [(3, 9)]
    assert len(runs(explorer.window("im2col", 1))) == 9
    with pytest.raises(ValueError, match="the picture shows"):
        explorer.window("im2row", 1)
    explorer.close()


def test_a_gpu_that_fails_does_not_take_the_picture_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("texlab.gpu.available", lambda: True)

    def refuse(name: str) -> Callable:
        if name == "gpu":
            raise DeviceError("the card fell off the bus")
        return device_function(name)

    monkeypatch.setattr("texlab.program.device_function", refuse)
    explorer = layout(SMALL, kernel=nhwc_windows)
    assert explorer.error.value == ""
    assert explorer.table.value.count("the card fell off the bus") == 3
    assert explorer.table.value.count("not timed") == 1
    explorer.close()


def test_unknown_kernels_are_named() -> None:
    with pytest.raises(ValueError, match="kernel='im2row' is no layout kernel"):
        layout(kernel="im2row")


def test_closed_explorers_are_freed() -> None:
    alive = []
    for _ in range(5):
        explorer = layout(SMALL)
        explorer._repr_mimebundle_()
        explorer.close()
        alive += [weakref.ref(explorer), weakref.ref(explorer.player)]
        del explorer
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 1


def test_zero_and_unwritten_are_no_elements() -> None:
    assert max(ZERO, UNWRITTEN) < 0
