"""Recording textures, with the simulator in the GPU's place; and the model's figures beside what was recorded."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

from texlab import cache, texture_bench, texture_probes
from texlab.program import Run, device_function
from texlab.results import load_results
from texlab.texture_bench import Scene, fetch_cases, neighbour_pairs


class Host(np.ndarray):
    """A NumPy array that has ``get``, as CuPy's have."""

    def get(self) -> np.ndarray:
        return np.asarray(self)


def simulated(program, arrays, **_) -> Run:
    run = device_function("sim")(program, {n: np.asarray(a) for n, a in arrays.items()}, limit=None)
    run.outputs = {name: a.view(Host) for name, a in run.outputs.items()}
    return run


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """A recording of a few small probes."""
    small = dict(orders=("row", "column"), paths=("global", "texture", "texture 4"), blocks=2, steps=8)
    scenes = (Scene("square", (32, 32), **small), Scene("windows", (32, 32), window=3, **small))
    monkeypatch.setattr(texture_bench, "SCENES", scenes)
    monkeypatch.setattr(texture_bench, "LARGE", (64, 64))
    monkeypatch.setattr(texture_bench, "profiler", lambda: "ncu")
    monkeypatch.setattr(texture_bench, "available", lambda ncu: frozenset({"l1tex__t_sectors_pipe_tex"}))
    cases = dict(list(fetch_cases().items())[:3])
    monkeypatch.setattr(texture_bench, "fetch_cases", lambda: cases)

    def measure(program, inputs, limit, metrics):
        assert metrics == {
            "tex_sectors": "l1tex__t_sectors_pipe_tex.sum"
        }  # what the card does not have is not asked for
        return [(i, launch.entry, "tex_sectors", float("nan")) for i, launch in enumerate(program.launches)]

    monkeypatch.setattr(texture_bench, "measure", measure)
    memory: dict[str, np.ndarray] = {}

    def prepare(program, arrays, refresh=True):
        outputs = {b.name: np.zeros(b.shape, b.dtype).view(Host) for b in program.outputs}

        def launch():
            for name, got in simulated(program, arrays).outputs.items():
                outputs[name][...] = got

        memory.update(outputs)
        return launch, outputs

    gpu = types.SimpleNamespace(run=simulated, prepare=prepare, poison=lambda a: a.fill(np.nan))
    monkeypatch.setattr(texture_bench, "gpu", gpu)
    monkeypatch.setattr(texture_bench, "neighbour_pairs", lambda: {(0, 0): neighbour_pairs()[0, 0][:2]})
    cupy = types.SimpleNamespace(asarray=np.asarray, zeros=np.zeros)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    stopwatch = types.SimpleNamespace(times=lambda launch, repeat: np.full(repeat, 0.5))
    monkeypatch.setattr("texlab.timing.Stopwatch", lambda: stopwatch)
    machine = types.SimpleNamespace(describe=lambda device: {"gpu": "NVIDIA Test"}, commit=lambda: None)
    monkeypatch.setattr(texture_bench, "machine", machine)
    return texture_bench.record_texture(tmp_path), tmp_path


def test_a_recording_holds_every_part_and_the_model_is_put_beside_it(recorded):
    path, folder = recorded
    texture_bench.predict(path)
    rows = load_results("texture", folder=folder).rows
    kinds = {
        kind: [r for r in rows if r["kernel"] == kind]
        for kind in ("texture_probe", "texture_time", "fetch", "neighbours")
    }
    assert [len(v) for v in kinds.values()] == [12, 54, 3, 2]
    assert all(row["correct"] for row in kinds["texture_probe"])
    assert all(row["verified"] and row["ms"] == 0.5 for row in kinds["texture_time"])
    by = {(r["scene"], r["path"], r["order"]): r["modelled"] for r in kinds["texture_probe"]}
    assert by["square", "global", "row"]["hit_rate"] == 0
    assert by["square", "texture", "row"]["hit_rate"] == 0.5  # a sector is 4 texels wide and 2 high
    assert by["square", "global", "column"]["sectors"] == 32 * by["square", "global", "column"]["requests"]
    assert json.loads(path.read_text())["rows"][0]["kernel"]


def test_probes_are_right_along_every_path():
    orders = {order: texture_probes.places(order, 32, 32) for order in texture_probes.ORDERS}
    for window in (1, 3):
        how = dict(blocks=2, threads=32, steps=8, window=window)
        program = texture_probes.program(list(texture_probes.PATHS), orders, (32, 32), **how)
        inputs = texture_probes.inputs(program, orders)
        outputs = program.run(**inputs).outputs
        n = 0
        for path, how_read in texture_probes.PATHS.items():
            for i in range(len(orders)):
                image = inputs["image4" if how_read.channels == 4 else "image"]
                want = texture_probes.expected(path, image, inputs[f"order_{i}"], window)
                np.testing.assert_allclose(outputs[f"y_{n}"], want, rtol=1e-6)
                n += 1


@pytest.mark.parametrize("order", texture_probes.ORDERS)
def test_an_order_visits_every_texel_once(order):
    at = texture_probes.places(order, 16, 32)
    assert sorted(map(tuple, at.tolist())) == [(y, x) for y in range(16) for x in range(32)]


def test_neighbours_of_one_pair_are_far_from_those_of_another():
    for pairs in neighbour_pairs().values():
        assert len(pairs) == 512
        assert len(np.unique(pairs[:, :2], axis=0)) == len(pairs)
        assert (np.abs(pairs[:, 2:] - pairs[:, :2]) < 64).all()
        assert pairs.max() < 2048


def test_model_of_a_probe_counts_what_the_order_says():
    scene = Scene("square", (64, 64), ("tile",), ("texture",), blocks=1, steps=32)
    got = texture_bench.modelled(scene, "texture", "tile", scene.sequences()["tile"], cache.H200)
    assert (got["requests"], got["sectors"], got["hits"]) == (32, 256, 128)  # four sectors, each wanted by two groups
