"""The two recordings, with the simulator in the GPU's place; geometric means."""

import json

import pytest

from texlab import studies
from texlab.bench import bench
from texlab.results import Result
from texlab.shapes import ConvShape

SMALL = {name: ConvShape(1, c, 7, 7, 5, 3, 3, padding=1) for name, c in (("cv1", 3), ("cv2", 8))}


@pytest.fixture
def simulated(monkeypatch):
    """A ``bench`` whose rows say 1 ms (2 ms in float32) wherever the simulator verified them."""
    real = studies.study
    monkeypatch.setattr(studies, "LAYERS", SMALL)
    monkeypatch.setattr(
        studies, "study", lambda shape, name, kind, device, **how: real(shape, name, kind, "sim", **how)
    )
    monkeypatch.setattr(studies, "fastest_tiles", lambda shape, nhwc: {})

    def measure(kernels, shape, device, repeat, **how):
        rows = [
            {**row, "layer": "cv1" if shape.c == 3 else "cv2"} for row in bench(kernels, shape, device="sim", **how)
        ]
        rows = [
            row | ({"ms": 2.0 if row["precision"] == "float32" else 1.0} if row["verified"] else {}) for row in rows
        ]
        return Result(rows, {"gpu": "NVIDIA H200"}, "2026-11-30", "abc")

    return measure


def test_record_precision(simulated, tmp_path, capsys):
    path = studies.record_precision(simulated, list(SMALL), 2, tmp_path)
    rows = json.loads(path.read_text())["rows"]
    assert {row["precision"] for row in rows if row.get("ms")} == {"float32", *studies.PRECISIONS}
    errors = [row for row in rows if row["kind"] == "error"]
    assert len(errors) == 2 * 35 and all(row["within"] for row in errors)
    overflowed = [row for row in errors if row["output"] == "float16"]
    assert overflowed and all(row["infinite"] for row in overflowed)
    assert "0 outside their bound" in capsys.readouterr().out


def test_record_twelve_layers(simulated, tmp_path, capsys):
    path = studies.record_twelve_layers(simulated, list(SMALL), 2, tmp_path)
    rows = json.loads(path.read_text())["rows"]
    assert {row["layout"] for row in rows if row["kernel"] == studies.TENSOR_CORES} == {"NCHW", "NHWC"}
    assert {row["kernel"] for row in rows if not row["verified"]} == {
        "cudnn",
        "cudnn_nhwc",
        "im2col+cublas",
        "unfold+cublas",
    }
    text = "tensor cores NHWC against im2win_zigzag float32: 2.00x (geometric mean of 2 layers)"
    assert text in capsys.readouterr().out


def test_geomean():
    def row(layer, kernel, ms, **more):
        return {"layer": layer, "kernel": kernel, "ms": ms, **more}

    rows = [
        row("cv1", "im2win_tensor_core", 1.0),
        row("cv1", "im2win_tensor_core", 3.0),
        row("cv1", "im2win_zigzag", 2.0),
    ]
    rows += [row("cv2", "im2win_tensor_core", 1.0), row("cv2", "im2win_zigzag", 8.0), row("cv3", "im2win_zigzag", 1.0)]
    assert studies.geomean(rows, "tensor cores, better layout", "im2win_zigzag float32") == (pytest.approx(4.0), 2)
    with pytest.raises(ValueError, match="cuDNN float32"):
        studies.geomean(rows, "tensor cores, better layout", "cuDNN float32")


def test_unknown_inputs_are_named():
    with pytest.raises(ValueError, match=r"tiny.*uniform"):
        studies.hard_inputs("tiny", SMALL["cv1"])
