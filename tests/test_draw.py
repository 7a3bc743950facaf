"""Figures of results: every figure is labelled, nothing unverified has a bar, and the bars are the rows' numbers."""

import io

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from texlab import draw
from texlab.layouts import LAYOUTS
from texlab.results import Result
from texlab.shapes import ConvShape

H200 = {"gpu": "NVIDIA H200"}


def timed(kernel, ms, layer="cv9", **more):
    row = {
        "layer": layer,
        "n": 128,
        "kernel": kernel,
        "verified": True,
        "ms": ms,
        "ms_p10": 0.9 * ms,
        "ms_p90": 1.1 * ms,
    }
    return row | more


def failed(kernel, error, layer="cv9"):
    return {"layer": layer, "n": 128, "kernel": kernel, "verified": False, "error": error}


def table(*rows):
    return Result(list(rows), H200, "2026-11-30", "abc", recorded=True)


def bars(axes):
    return [p.get_width() for p in axes.patches if isinstance(p, Rectangle)]


def texts(axes):
    return [t.get_text().strip() for t in axes.texts]


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def drawn(figure):
    """The figure as PNG: drawing it also finds what only drawing can."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    assert out.getvalue().startswith(b"\x89PNG")
    return figure


def test_times_are_bars_with_their_values_and_the_label_says_where_from():
    result = table(timed("a", 2.0, kernel_ms=1.5), timed("cudnn", 1.0, peer=True))
    figure = drawn(result.chart())
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert names(axes) == ["cudnn", "a"]
    assert bars(axes) == [1.0, 2.0]
    assert texts(axes) == ["1 ms", "2 ms"]
    assert figure.get_suptitle() == "recorded on NVIDIA H200, 2026-11-30, commit abc"
    assert axes.get_xlim()[0] == 0  # bars that do not start at zero mislead
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_rejected_row_has_no_bar_but_its_reason():
    (axes,) = drawn(table(timed("a", 2.0), failed("wrong", "1 of 9 outputs are wrong")).chart()).axes
    assert names(axes) == ["a", "wrong"]
    assert bars(axes) == [2.0]
    assert texts(axes)[1] == "none: 1 of 9 outputs are wrong"


def test_each_layer_has_its_panel():
    rows = [timed("a", ms, layer=f"cv{ms}") for ms in (1, 2, 10, 3)]
    figure = drawn(table(*rows).chart())
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"cv{i}, N = 128" for i in (1, 2, 3, 10)]


def test_simulated_counts_have_a_panel_each_and_no_time():
    row = {"layer": "1x2x5x5 -> 3, 3x3", "n": 1, "kernel": "a", "verified": True}
    row |= {"instructions_per_output": 12.5, "shared_wavefronts_per_output": 0.5, "global_sectors_per_output": 2.0}
    figure = drawn(draw.result_bars(Result([row], {"gpu": None})))
    assert [bars(axes) for axes in figure.axes] == [[12.5], [0.5], [2.0]]
    assert not any("ms" in text for axes in figure.axes for text in [*texts(axes), axes.get_xlabel()])
    assert "no times" in figure.get_suptitle()


def test_nothing_to_draw_is_an_error_with_the_reasons():
    with pytest.raises(ValueError, match="needs an NVIDIA GPU"):
        draw.result_bars(table(failed("cudnn", "needs an NVIDIA GPU")))


COUNTERS = [
    {"kernel": "a", "shape": "s", "source": "x[i]", "counter": "shared_wavefronts", "predicted": 100, "measured": 100},
    {"kernel": "b", "shape": "s", "source": "x[i]", "counter": "shared_wavefronts", "predicted": 100, "measured": 103},
    {"kernel": "a", "shape": "s", "source": None, "counter": "instructions", "predicted": 7, "measured": 7},
    {"kernel": "b", "shape": "s", "source": None, "counter": "instructions", "predicted": 7, "measured": None},
]


@pytest.mark.parametrize("kind", ["result", "rows", "frame"])
def test_predicted_stands_beside_measured(kind):
    result = table(*COUNTERS)
    figure = drawn(
        {"result": result.chart, "rows": lambda: draw.predicted_measured(COUNTERS)}.get(
            kind, lambda: draw.predicted_measured(result.df)
        )()
    )
    instructions, wavefronts = figure.axes
    assert bars(instructions) == [7, 7]
    assert texts(instructions) == ["7 = measured"]
    assert bars(wavefronts) == [100, 100, 100, 103]
    assert texts(wavefronts) == ["100 = measured", "100 predicted, 103 measured (+3.0 %)"]


def test_counters_without_a_measured_value_cannot_be_drawn():
    with pytest.raises(ValueError, match="counter, predicted, measured"):
        draw.predicted_measured(COUNTERS[3:])


def test_layouts_are_compared_with_the_image():
    cv9 = ConvShape(n=256, c=64, h=56, w=56, k=64, r=3, s=3)
    rows = [{"layout": name, "bytes": LAYOUTS[name].bytes(cv9)} for name in ("nchw", "im2win", "im2col")]
    (axes,) = drawn(draw.layout_bytes(rows)).axes
    assert bars(axes) == [row["bytes"] for row in rows]
    assert texts(axes) == ["196.0 MiB", "567.0 MiB, 2.89x nchw", "1.6 GiB, 8.37x nchw"]
    with pytest.raises(ValueError, match="no rows"):
        draw.layout_bytes([])


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_figures_bring_their_own_ground_so_that_a_dark_theme_cannot_hide_the_ink():
    import matplotlib

    with matplotlib.rc_context({"figure.facecolor": "black", "axes.facecolor": "black", "text.color": "white"}):
        figure = drawn(table(timed("a", 1.0), failed("b", "no")).chart())
    (axes,) = figure.axes
    assert figure.get_facecolor() == axes.get_facecolor() == (1, 1, 1, 1)
    contrast = (luminance(draw.GROUND) + 0.05) / (luminance(draw.INK) + 0.05)
    assert contrast > 7
    assert axes.texts[0].get_color() == draw.INK
