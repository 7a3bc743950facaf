"""The texture explorer: its pictures say what the trace and the model say, for every setting."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from texlab import cache, texture_bench
from texlab.explore.texture import texture
from texlab.explore.texture_frames import SIZE, pictures, study
from texlab.explore.texture_tables import texture_agreement, texture_times, try_order
from texlab.player import GREEN, ORANGE, PURPLE, SKY, YELLOW
from texlab.texture_probes import ORDERS, places


@pytest.mark.parametrize("layout", cache.MAPS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_picture_shows_which_lane_reads_which_texel(order, layout):
    s = study(order, layout)
    content = pictures(s)
    image = content["tags"][:, : SIZE * SIZE]
    at = places(order, SIZE, SIZE)
    for t in range(SIZE):
        want = np.full(SIZE * SIZE, -1)
        y, x = at[32 * t : 32 * t + 32].T
        want[y * SIZE + x] = np.arange(32)
        assert np.array_equal(image[t], want)
    memory = content["tags"][:, SIZE * SIZE :]
    assert np.array_equal(memory[:, s.address.reshape(-1) // 4], image)


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("l1", [0, 1024])
def test_colours_follow_the_model(filter, l1):
    s = study("column", "row-major", filter, l1=l1)
    content = pictures(s)
    image = content["frames"][:, : SIZE * SIZE]
    for t, row in enumerate(s.rows):
        mine = s.behaviour.row == row
        read = np.zeros((SIZE, SIZE), bool)
        read[s.places[t][:, 1], s.places[t][:, 2]] = True
        assert set(np.unique(image[t][read.reshape(-1)])) <= {ORANGE, SKY}
        assert (ORANGE in image[t]) == bool((~s.behaviour.hit[mine]).any())
    assert (PURPLE in image) == bool(l1)
    assert {YELLOW, GREEN} <= set(np.unique(image))
    assert f"{int(s.behaviour.hit.sum())} of {len(s.behaviour.hit)} were hits" in content["captions"][-1]


def test_controls_change_the_picture_and_the_table():
    explorer = texture("row", layout="row-major")
    assert explorer.result.behaviour.hit_rate == 0
    explorer.controls["order"].value = "column"
    explorer.wait()
    assert explorer.result.order == "column"
    assert explorer.error.value == ""
    assert f"{explorer.result.behaviour.hit_rate:.1%}" in explorer.table.value
    assert "NVIDIA H200" in explorer.table.value
    assert explorer.player.steps == SIZE
    with pytest.raises(ValueError, match="order='spiral'"):
        texture("spiral")


def test_tables_name_the_machine_and_judge_every_row():
    for scene in ("square", "tall", "windows", "capacity"):
        text = str(texture_agreement(scene))
        assert "NVIDIA H200" in text
        assert "not modelled" not in text
        assert "not measured" not in text
    assert "NVIDIA H200" in str(texture_times())
    assert "no scene" in str(texture_agreement("round"))


def test_model_and_hardware_agree_but_where_lines_compete():
    table = texture_bench.agreement(texture_bench.load().rows)
    off = table[table["difference (points)"].abs() > 5]
    where = set(zip(off.scene, off.order, strict=True))
    assert where == {("tall", "diagonal"), *(("capacity", f"column of {h}") for h in (1536, 1664, 1792, 1920))}
    assert (off["what it says"] != "agrees").all()


def test_an_order_of_ones_own_is_judged():
    at = places("tile", 32, 32)
    assert "4.00 sectors a request" in str(try_order(at))
    y, x = at.T
    order = np.lexsort((x % 4, y % 8, x // 4, y // 8))
    assert "4.00 sectors a request" in str(try_order(at[order]))
    assert "never read" in str(try_order(np.zeros((1024, 2), int)))
    with pytest.raises(ValueError, match="expected integers"):
        try_order(at[:5])
