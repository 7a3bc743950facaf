"""Result tables: no time without a verified output, labels, merging, atomic files, HTML."""

import json
import os
from html.parser import HTMLParser

import pytest

from texlab import results
from texlab.results import Result, gpu_slug, load_results, write_atomically

H200 = {"gpu": "NVIDIA H200", "driver": "580.1", "cuda": "13.0"}


def timed(layer, kernel, ms, **more):
    row = {"layer": layer, "n": 128, "kernel": kernel, "precision": "float32", "verified": True, "rel_err": 3e-7}
    return row | {"ms": ms, "ms_p10": 0.9 * ms, "ms_p90": 1.2 * ms, "tflops": 10 / ms, "extra_bytes": 2**20} | more


def failed(layer, kernel, error="3 of 10 outputs are wrong"):
    return {"layer": layer, "n": 128, "kernel": kernel, "precision": "float32", "verified": False, "error": error}


def result(*rows, **more):
    return Result(list(rows), **{"machine": H200, "date": "2026-11-30", "commit": "abc"} | more)


class Table(HTMLParser):
    """The text of each cell, row by row, and each cell's style."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.styles, self.open = [], [], True
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
            self.styles.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.styles[-1].append(dict(attrs).get("style", ""))

    def handle_endtag(self, tag):
        self.open = self.open and tag != "table"

    def handle_data(self, data):
        if self.open and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("field", results.TIME_FIELDS)
@pytest.mark.parametrize("verified", [False, None, 1, "yes"])
def test_a_time_without_a_verified_output_is_refused(field, verified):
    with pytest.raises(ValueError, match="without a verified output"):
        result({"layer": "cv1", "kernel": "hasty", "verified": verified, field: 0.1})


def test_a_recorded_file_with_an_unverified_time_is_refused(tmp_path):
    path = result(timed("cv1", "a", 1.0)).save("ladder", tmp_path)
    data = json.loads(path.read_text())
    data["rows"][0]["verified"] = False
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="without a verified output"):
        load_results("ladder", folder=tmp_path)


def test_rows_are_sorted_layers_in_order_fastest_first_failures_last():
    table = result(timed("cv10", "a", 1.0), failed("cv2", "x"), timed("cv2", "slow", 3.0), timed("cv2", "fast", 2.0))
    assert [(r["layer"], r["kernel"]) for r in table] == [
        ("cv2", "fast"),
        ("cv2", "slow"),
        ("cv2", "x"),
        ("cv10", "a"),
    ]


def test_ratio_compares_within_the_layer_and_with_the_named_baseline():
    table = result(
        timed("cv1", "a", 2.0), timed("cv1", "cudnn", 1.0), timed("cv2", "a", 4.0), timed("cv2", "cudnn", 8.0)
    )
    ratio = {(r["layer"], r["kernel"]): table.ratio(r) for r in table}
    assert ratio == {("cv1", "a"): 0.5, ("cv1", "cudnn"): 1.0, ("cv2", "a"): 2.0, ("cv2", "cudnn"): 1.0}
    assert table.against("a").ratio(table.where(layer="cv1", kernel="cudnn").rows[0]) == 2.0
    with pytest.raises(ValueError, match=r"'b' is not in this table; it has \['a', 'cudnn'\]"):
        table.against("b")


def test_html_aligns_numbers_right_and_shows_wins_and_losses():
    table = result(timed("cv1", "slow", 2.0), timed("cv1", "cudnn", 1.0), timed("cv1", "fast", 0.5))
    parsed = Table(table._repr_html_())
    heads = parsed.rows[0]
    at = next(i for i, h in enumerate(heads) if h.startswith("time"))
    assert heads[at] == "timems"
    assert all("text-align:right" in styles[at] for styles in parsed.styles)
    assert "text-align:left" in parsed.styles[1][heads.index("kernel")]
    cells = {row[heads.index("kernel")]: row for row in parsed.rows[1:]}
    against = heads.index("against cudnn")
    assert cells["fast"][against] == "▲ 2.00x faster"
    assert cells["slow"][against] == "▼ 2.00x slower"
    assert cells["cudnn"][against] == "1 (baseline)"
    assert cells["fast"][at].startswith("★")
    assert not cells["cudnn"][at].startswith("★")


def test_html_of_a_rejected_row_has_its_error_and_no_time():
    table = result(timed("cv1", "cudnn", 1.0), failed("cv1", "wrong", "first at (0,): got <nan>"))
    parsed = Table(table._repr_html_())
    heads, row = parsed.rows[0], next(r for r in parsed.rows if "wrong" in r)
    for head, cell in zip(heads, row, strict=True):
        if head not in ("layer", "Nimages", "kernel", "precision", "why there is no figure"):
            assert cell == "", f"{head}: {cell}"
    assert row[-1] == "✗ first at (0,): got <nan>"
    assert "<nan>" not in table._repr_html_()


def test_text_and_html_carry_the_label():
    live = result(timed("cv1", "a", 1.0))
    assert live.label == "measured live on NVIDIA H200, 2026-11-30"
    assert live.label in str(live)
    assert live.label in live._repr_html_()
    assert "no times" in Result([{"kernel": "a"}], {"gpu": None}).label


def test_round_trip_keeps_every_row_and_says_it_is_recorded(tmp_path):
    table = result(timed("cv1", "a", 1.25, tunables={"PAD": 4}), failed("cv1", "b"))
    path = table.save("ladder", tmp_path)
    assert path == tmp_path / "h200" / "ladder.json"
    data = json.loads(path.read_text())
    assert list(data) == ["machine", "date", "commit", "rows"]
    loaded = load_results("ladder", gpu="h200", folder=tmp_path)
    assert loaded.rows == table.rows
    assert loaded.label == "recorded on NVIDIA H200, 2026-11-30, commit abc"
    assert load_results("ladder", gpu="NVIDIA H200", folder=tmp_path).rows == table.rows
    assert list(loaded.df["kernel"]) == ["a", "b"]


def test_a_later_recording_replaces_whole_groups_and_stamps_what_it_keeps(tmp_path):
    result(timed("cv1", "a", 1.0), timed("cv1", "b", 2.0), timed("cv2", "a", 3.0)).save("ladder", tmp_path)
    result(timed("cv1", "a", 0.5), date="2026-12-01", commit="def").save("ladder", tmp_path)
    loaded = load_results("ladder", folder=tmp_path)
    assert [(r["layer"], r["kernel"], r["ms"], r.get("date"), r.get("commit")) for r in loaded] == [
        ("cv1", "a", 0.5, None, None),
        ("cv2", "a", 3.0, "2026-11-30", "abc"),
    ]
    assert loaded.label == "recorded on NVIDIA H200, 2026-12-01, commit def; some rows 2026-11-30, commit abc"
    result(timed("cv3", "a", 1.0), date="2026-12-01", commit="def").save("ladder", tmp_path)
    stamps = [r.get("commit") for r in load_results("ladder", folder=tmp_path)]
    assert stamps == [None, "abc", None]


def test_another_driver_drops_what_was_recorded_before(tmp_path):
    result(timed("cv1", "a", 1.0)).save("ladder", tmp_path)
    result(timed("cv2", "a", 1.0), machine=H200 | {"driver": "590.0"}).save("ladder", tmp_path)
    assert [r["layer"] for r in load_results("ladder", folder=tmp_path)] == ["cv2"]


def test_simulated_counts_are_not_recorded(tmp_path):
    with pytest.raises(ValueError, match="only what was timed"):
        Result([{"kernel": "a"}], {"gpu": None}).save("ladder", tmp_path)


def test_missing_results_name_what_is_there_and_the_command(tmp_path):
    result(timed("cv1", "a", 1.0)).save("ladder", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"h200/ladder.*texlab.bench record counters"):
        load_results("counters", folder=tmp_path)


def test_without_a_name_the_latest_recording_is_loaded(tmp_path):
    result(timed("cv1", "a", 1.0)).save("ladder", tmp_path)
    other = {"gpu": "NVIDIA GeForce RTX 3090"}
    result(timed("cv1", "a", 9.0), machine=other, date="2026-12-24").save("ladder", tmp_path)
    assert load_results("ladder", folder=tmp_path).machine == other
    assert load_results("ladder", "h200", folder=tmp_path).machine == H200


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "gpu" / "topic.json"
    write_atomically(path, "old")
    assert path.stat().st_mode & 0o777 == 0o644

    def broken(source, target):
        assert path.read_text() == "old"  # the new text waits under another name
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["topic.json"]


def test_folder_names():
    assert gpu_slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"
