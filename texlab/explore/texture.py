"""The texture explorer: a warp reads a picture in some order, and hits and misses fill it and the lines it lies in."""

from __future__ import annotations

import math
from functools import lru_cache
from html import escape
from typing import Any

import ipywidgets as widgets

from texlab import cache, gpu, texture_bench, texture_probes
from texlab.explore._base import Explorer
from texlab.explore.texture_frames import FILTERS, LEVELS, SIZE, Study, pictures, study
from texlab.player import Player

TILES = {"8 x 4": (4, 8), "16 x 2": (2, 16), "4 x 8": (8, 4), "2 x 16": (16, 2)}  # shown width x height
SMALL = {"description_width": "initial"}
STORIES = {
    "row": "Lane after lane along a row: what linear memory is made for.",
    "column": "Lane after lane down a column: every lane is in another row.",
    "diagonal": "Down and to the right: no two lanes share a row or a column.",
    "zig-zag": "The Z-curve (0,0) (0,1) (1,0) (1,1) ...: a warp covers a patch of 8 x 4.",
    "tile": "A warp reads one rectangle, rectangle after rectangle.",
    "random": "No order at all.",
}
#: (layout, filter) -> the recorded paths that have both; Morton order exists in no hardware's memory
PATHS = {
    ("row-major", "point"): ("global", "linear memory"),
    ("block-linear", "point"): ("border",),
    ("block-linear", "linear"): ("filtered",),
}


def texture(
    order: str = "column",
    layout: str = "block-linear",
    filter: str = "point",
    window: int = 1,
    l1: str = "as on the H200",
) -> TextureExplorer:
    """Read a 32 x 32 picture texel by texel, and see which sectors of memory that brings into the L1 cache.

    ``order``: "row", "column", "diagonal", "zig-zag", "tile" or "random"; ``layout``: "row-major", "block-linear" (a CUDA
    array) or "morton"; ``filter``: "point" or "linear"; ``window``: 1 or 3 (3 x 3 texels around each place); ``l1``: the
    cache's size, a key of ``texlab.explore.texture_frames.LEVELS``.

    Raises ValueError for a value that is none of these; whatever goes wrong later is shown in the explorer.

    >>> explorer = texture("row", layout="row-major")
    >>> explorer.result.behaviour.hit_rate
    0.0
    """
    chosen = {"order": order, "layout": layout, "filter": filter, "window": window, "l1": l1}
    allowed = {
        "order": texture_probes.ORDERS, "layout": cache.MAPS, "filter": FILTERS, "window": (1, 3), "l1": tuple(LEVELS),
    }  # fmt: skip
    for name, value in chosen.items():
        if value not in allowed[name]:
            raise ValueError(f"texture: {name}={value!r}; choose one of {allowed[name]}")
    return TextureExplorer(chosen)


class TextureExplorer(Explorer):
    """What :func:`texture` returns: controls, the player and the table. ``result`` is the Study that is shown."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        buttons = {"style": {"button_width": "auto", "description_width": "60px"}}
        drop = {"style": SMALL, "layout": {"width": "auto"}}
        windows = [("each texel", 1), ("3 x 3 around it", 3)]
        controls = {
            "order": widgets.ToggleButtons(
                options=list(texture_probes.ORDERS), value=chosen["order"], description="order", **buttons
            ),
            "layout": widgets.ToggleButtons(
                options=list(cache.MAPS), value=chosen["layout"], description="layout", **buttons
            ),
            "filter": widgets.ToggleButtons(
                options=list(FILTERS), value=chosen["filter"], description="filter", **buttons
            ),
            "window": widgets.Dropdown(options=windows, value=chosen["window"], description="read", **drop),
            "tile": widgets.Dropdown(options=list(TILES), value="8 x 4", description="tile", **drop),
            "l1": widgets.Dropdown(options=list(LEVELS), value=chosen["l1"], description="L1 cache", **drop),
        }
        super().__init__(controls, Player())
        self.story, self.table = widgets.HTML(), widgets.HTML()
        controls["order"].observe(self._announce, "value")
        self._announce(None)
        wrap = {"flex_flow": "row wrap", "grid_gap": "2px 20px"}
        self.children = [
            controls["order"],
            self.story,
            widgets.HBox([controls["layout"], controls["filter"]], layout=wrap),
            widgets.HBox([controls["window"], controls["tile"], controls["l1"], self.status], layout=wrap),
            self.error,
            self.player.controls(),
            self.player,
            self.table,
        ]
        self.request()
        self.wait()
        if self.result is not None:
            self.player.step = min(2, self.player.steps - 1)  # some hits, some misses, most still to come

    def _announce(self, change: Any) -> None:
        order = self.controls["order"].value
        self.story.value = f"<div style='padding-left:64px'>{escape(STORIES[order])}</div>"
        self.controls["tile"].layout.display = "flex" if order == "tile" else "none"

    def compute(self, order: str, layout: str, filter: str, window: int, tile: str, l1: str) -> Study:
        size = 0 if l1 == "as on the H200" else LEVELS[l1]
        return study(order, layout, filter, window, TILES[tile], size)

    def show(self, result: Study) -> None:
        self.player.load(**pictures(result))
        self.table.value = table(result, self.controls["l1"].value, self.controls["tile"].value == "8 x 4")


# the table ------------------------------------------------------------------------------------------------------------
def table(s: Study, l1: str, usual_tile: bool) -> str:
    """HTML: hit rate, sectors and bytes of the picture; the same order over a larger image, modelled and measured; times."""
    b, requests = s.behaviour, s.requests
    rows = [
        [
            f"<b>this picture</b>, {SIZE} x {SIZE}, L1 {escape(l1)}",
            "the model",
            f"{len(b.hit) / requests:.2f}",
            f"{b.hit_rate:.1%}",
            f"{b.bytes['L2']:,} ({b.bytes['L2'] / (4 * SIZE * SIZE):.2f}×)",
            "",
        ]
    ]
    note = ""
    recorded = texture_bench.load()
    paths = PATHS.get((s.layout, s.filter), ())
    if not paths:
        note = "No hardware path has this layout and filter: the picture is the model's alone."
    elif not (usual_tile or s.order != "tile"):
        note = "Measured figures are recorded for tiles of 8 x 4."
    elif recorded is None:
        note = "Nothing is recorded on a GPU yet (python -m texlab.bench record texture)."
    else:
        scene = "square" if s.window == 1 else "windows"
        for path in paths:
            rows += _recorded_rows(recorded.rows, scene, path, s.order)
        note = f"256 x 256 image: {escape(recorded.label)}."
    if paths and s.window == 1 and gpu.available() and usual_tile:
        for path in paths:
            rows.append([escape(path), "this GPU, now", "", "", "", _live(path, s.order)])
    heads = [
        "what is read",
        "who says so",
        "lookups a request",
        "hit rate of the L1",
        "bytes from the L2",
        "time, 4 M texels",
    ]
    head = "".join(f"<th style='text-align:left;padding:2px 16px 2px 0'>{h}</th>" for h in heads)
    cell = "<td style='text-align:left;padding:2px 16px 2px 0;font-variant-numeric:tabular-nums'>"
    body = "".join(f"<tr>{''.join(f'{cell}{v}</td>' for v in row)}</tr>" for row in rows)
    return f"<table style='border-spacing:0;line-height:1.5'><tr>{head}</tr>{body}</table><div>{note}</div>"


def _recorded_rows(rows: list[dict[str, Any]], scene: str, path: str, order: str) -> list[list[str]]:
    """The model's and the hardware's line for one probe, and its time."""
    probe = next(
        (
            r
            for r in rows
            if r["kernel"] == "texture_probe" and (r["scene"], r["path"], r["order"]) == (scene, path, order)
        ),
        None,
    )
    time = next((r for r in rows if r["kernel"] == "texture_time" and (r["path"], r["order"]) == (path, order)), {})
    ms = f"{time['ms']:.3f} ms" if time.get("ms") and scene == "square" else ""
    if probe is None:
        return []
    model, counted = probe.get("modelled"), texture_bench.measured(probe)
    out = []
    if model:
        each = model["sectors"] / model["requests"]
        out.append(
            [
                f"256 x 256, {escape(path)}",
                "the model",
                f"{each:.2f}",
                f"{model['hit_rate']:.1%}",
                f"{32 * model['l2_sectors']:,}",
                "",
            ]
        )
    if not math.isnan(counted["hit_rate"]):
        requests = model["requests"] if model else counted["requests"]
        missed = counted["sectors"] - counted["hits"]
        figures = [f"{counted['sectors'] / requests:.2f}", f"{counted['hit_rate']:.1%}", f"{32 * missed:,.0f}", ms]
        out.append([f"256 x 256, {escape(path)}", "the hardware's counters", *figures])
    elif ms:
        out.append([escape(path), "the hardware", "", "", "", ms])
    return out


@lru_cache(maxsize=64)
def _live(path: str, order: str) -> str:
    """This machine's GPU, on the recorded times' image."""
    try:
        run = texture_bench.time_program(path, order)
    except Exception as error:  # a GPU that fails must not take the picture away
        return escape(str(error))
    return f"{run:.3f} ms"
