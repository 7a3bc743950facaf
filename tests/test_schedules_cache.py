"""Compiled schedules and packed weights on disk: right, found again, and rebuilt when they are damaged or of another day."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")

from hypothesis import given, settings

from strategies import conv_shapes
from texlab.program import DeviceError
from texlab.schedules import cache, judge, keys, native, work
from texlab.schedules.cache import compiled, first_inference, packed, prepared, prepared_program
from texlab.schedules.conv import Epilogue, Layout, conv
from texlab.schedules_draw import first_inference_figure
from texlab.shapes import ConvShape

SHAPE = ConvShape(n=2, c=3, h=7, w=9, k=5, r=3, s=2, stride=(2, 1), padding=(1, 0, 2, 1))
WORK = conv(SHAPE, form="im2win", layout="NHWC")


def run(call, seed=0):
    """The output in the user's layout, judged; of inputs and an output that begins with NaN."""
    arrays = judge.sample(call.workload, seed)
    out = native.empty(call.workload.output.shape)
    out.fill(np.nan)
    y = call(out=out, **call.workload.pack(arrays))
    assert y is out
    assert judge.fault(call.workload.unpack(y), judge.answer(call.workload, arrays)) is None
    return y


def files(folder, end):
    return sorted(p for p in Path(folder).iterdir() if p.suffix == end)


# calls ---------------------------------------------------------------------------------------------------------
@settings(max_examples=6)
@given(conv_shapes(max_elements=1500))
def test_any_shape_is_right_when_built_and_when_found(tmp_path_factory, shape):
    folder = tmp_path_factory.mktemp("cache")
    workload = conv(shape, form="direct", layout="NCHW")
    built, found = (prepared(workload, folder=folder) for _ in range(2))
    assert (built.found, found.found, found.knobs) == (False, True, built.knobs)
    np.testing.assert_array_equal(run(built), run(found))


def test_arrays_that_are_not_aligned_or_contiguous_are_copied(tmp_path):
    """TVM's code checks no address: one that is not a multiple of 64 bytes ends the process."""
    call = prepared(WORK, folder=tmp_path)
    arrays = judge.sample(WORK)
    inputs = {name: native.aligned(a) for name, a in WORK.pack(arrays).items()}
    want = call(**inputs)
    assert want.ctypes.data % 64 == 0
    odd = {}
    for name, array in inputs.items():
        raw = np.empty(array.nbytes + 68, np.uint8)
        odd[name] = raw[-raw.ctypes.data % 64 + 4 :][: array.nbytes].view(np.float32).reshape(array.shape)
        odd[name][...] = array
        assert odd[name].ctypes.data % 64 == 4
    np.testing.assert_array_equal(call(**odd), want)
    flipped = {name: np.ascontiguousarray(a[..., ::-1])[..., ::-1] for name, a in inputs.items()}
    np.testing.assert_array_equal(call(**flipped), want)
    frozen = {name: a.copy() for name, a in inputs.items()}
    for array in frozen.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(call(**frozen), want)
    backwards = np.full((*want.shape[:-1], 2 * want.shape[-1]), np.nan, np.float32)
    assert call(out=backwards[..., ::-2], **inputs) is not None
    np.testing.assert_array_equal(backwards[..., ::-2], want)
    assert np.isnan(backwards[..., ::2]).sum() == want.size  # and nothing between


def test_bad_arrays_are_refused_by_name(tmp_path):
    call = prepared(WORK, folder=tmp_path)
    inputs = WORK.pack(judge.sample(WORK))
    with pytest.raises(ValueError, match=r"takes \['x', 'w'\], but was given \['x'\]"):
        call(x=inputs["x"])
    with pytest.raises(ValueError, match=r"w is float64 .* must be float32 \(3, 2, 3, 5\)"):
        call(x=inputs["x"], w=inputs["w"].astype(np.float64))
    with pytest.raises(ValueError, match=r"x is float32 \(2, 3, 7, 9\), must be float32 \(2, 7, 9, 3\)"):
        call(x=judge.sample(WORK)["x"], w=inputs["w"])
    with pytest.raises(ValueError, match="x is list"):
        call(x=[1.0], w=inputs["w"])
    with pytest.raises(ValueError, match="y is float32"):
        call(out=np.empty(3, np.float32), **inputs)
    out = np.empty(WORK.output.shape, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        call(out=out, **inputs)
    one = conv(ConvShape(n=1, c=4, h=4, w=4, k=4, r=1, s=1), form="direct", layout="NHWC")
    x = native.empty((1, 4, 4, 4))
    with pytest.raises(ValueError, match="overlaps an input"):
        prepared(one, folder=tmp_path)(x=x, w=np.ones((1, 1, 4, 4), np.float32), out=x)
    with pytest.raises(ValueError, match="no knob 'NONSENSE'"):
        prepared(WORK, folder=tmp_path, NONSENSE=1)
    with pytest.raises(DeviceError, match=r"'cuda'.*prepared_program"):
        prepared(WORK, "cuda", folder=tmp_path)


def test_the_function_itself_refuses_what_it_was_not_made_for(tmp_path):
    function = prepared(WORK, folder=tmp_path).function
    x, w, y = (native.empty(b.shape) for b in WORK.buffers)
    with pytest.raises(RuntimeError, match="Expected 3 arguments"):
        function(x, w)
    with pytest.raises(RuntimeError, match=r"expected 3"):
        function(x, native.empty((2, 2, 3, 5)), y)


# the cache -----------------------------------------------------------------------------------------------------
def test_a_schedule_is_found_by_its_ir_whatever_led_to_it(tmp_path):
    plain = work.schedule(WORK)
    first = compiled(plain, folder=tmp_path)
    assert (first.found, first.kept) == (False, True)
    assert compiled(plain, folder=tmp_path).found
    assert prepared(WORK, folder=tmp_path).found  # another way to the same IR
    name, values = next(iter(work.space(WORK).items()))
    other = prepared(WORK, folder=tmp_path, **{name: values[1]})
    assert not other.found and other.knobs[name] == values[1]
    run(other)
    assert not compiled(replace(plain, config={"tirx.disable_vectorize": True}), folder=tmp_path).found


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


def another(path):
    """A library that can be loaded, but is not this one; a note that is whole, but another's."""
    other = prepared(conv(SHAPE, form="direct", layout="NHWC"), folder=path.parent / "other")
    assert other.kept
    path.write_bytes(files(path.parent / "other", path.suffix)[0].read_bytes())


@pytest.mark.parametrize("damage", [truncate, flip, empty, another, Path.unlink])
@pytest.mark.parametrize("what", [".so", ".json"])
def test_damaged_files_are_rebuilt(tmp_path, what, damage):
    good = run(prepared(WORK, folder=tmp_path))
    for path in files(tmp_path, what):
        damage(path)
    again = prepared(WORK, folder=tmp_path)
    assert not again.found and again.kept
    np.testing.assert_array_equal(run(again), good)
    assert prepared(WORK, folder=tmp_path).found


def test_another_day_is_another_key(tmp_path, monkeypatch):
    prepared(WORK, folder=tmp_path)
    for module, name, value in (
        (cache, "PINS", {"apache-tvm": "0.28"}),
        (cache, "FORMAT", 99),
        (cache, "processor", lambda: "another one"),
        (cache, "threads", lambda: 1000),
        (cache, "_digest", lambda states: "edited sources"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            key = cache._knob_key(WORK, "llvm", {})
        assert key and key != cache._knob_key(WORK, "llvm", {}), name
    scheduled = work.schedule(WORK)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "cpu_target", lambda: '{"kind": "llvm", "mcpu": "another"}')
        other = cache._ir_key(scheduled)
    assert other != cache._ir_key(scheduled)
    assert prepared(WORK, folder=tmp_path).found


def test_sources_edited_since_they_were_imported_do_not_lead_to_a_library(tmp_path, monkeypatch):
    """This process still has the old code: neither may it find what the new code made, nor the other way round."""
    prepared(WORK, folder=tmp_path)
    monkeypatch.setattr(cache, "_STARTED", 0.0)
    monkeypatch.setattr(work, "schedule", lambda *a, **k: pytest.fail("scheduled"))
    with pytest.raises(pytest.fail.Exception, match="scheduled"):
        prepared(WORK, folder=tmp_path)


def test_a_function_without_a_name_is_no_key(tmp_path):
    assert cache._knob_key(replace(WORK, make=lambda: WORK.make()), "llvm", {}) is None
    assert cache._knob_key(replace(WORK, make=partial(WORK.make)), "llvm", {}) is not None
    call = prepared(replace(WORK, make=lambda: WORK.make()), folder=tmp_path)
    assert call.kept and len(files(tmp_path, ".json")) == 1
    run(call)


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.warns(UserWarning, match="keeps no compiled code"):
        call = prepared(WORK, folder=blocker / "cache")
    assert not call.kept
    run(call)


def test_what_is_there_is_read_without_writing(tmp_path, monkeypatch):
    prepared(WORK, folder=tmp_path)
    for name in ("_store", "_write"):
        monkeypatch.setattr(cache, name, lambda *a: pytest.fail("written"))
    run(prepared(WORK, folder=tmp_path))
    assert compiled(work.schedule(WORK), folder=tmp_path).found


def test_without_a_linker_it_runs_but_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "linker", lambda: None)
    with pytest.warns(UserWarning, match="apt-get install binutils"):
        call = prepared(WORK, folder=tmp_path)
    assert not call.kept and list(tmp_path.iterdir()) == []
    run(call)


def test_a_linker_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(native, "linker", lambda: (sys.executable, "-c", "raise SystemExit('out of ideas')"))
    with pytest.raises(DeviceError, match="out of ideas"):
        native.link(cache._build(work.schedule(WORK)).mod)


def test_threads_and_processes_at_once(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda _: cache._ask(WORK, tmp_path, {}), range(2)))
        calls = list(pool.map(lambda _: prepared(WORK, folder=tmp_path), range(3)))
        outputs = list(pool.map(run, calls))
    assert [r["fault"] for r in reports] == [None, None]
    assert all(call.found for call in calls)
    for y in outputs[1:]:
        np.testing.assert_array_equal(y, outputs[0])
    assert {p.suffix for p in tmp_path.iterdir()} == {".so", ".json", ".weights"}  # nothing half written stays


# weights -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["NHWC", "NCHW4c", "NCHW"])
def test_weights_are_packed_once(tmp_path, monkeypatch, layout):
    shape = ConvShape(n=1, c=6, h=5, w=5, k=10, r=3, s=3, groups=2)
    workload = conv(shape, form="direct", layout=layout)
    arrays = judge.sample(workload)
    want = workload.pack(arrays)["w"]
    first = packed(workload, arrays["w"], folder=tmp_path)
    np.testing.assert_array_equal(first, want)
    assert first.ctypes.data % 64 == 0
    kept = list(tmp_path.iterdir())
    assert len(kept) == (layout != "NCHW")
    with monkeypatch.context() as patch:
        patch.setattr(Layout, "pack_filter", lambda *a: pytest.fail("packed again"))
        np.testing.assert_array_equal(packed(workload, np.asfortranarray(arrays["w"]), folder=tmp_path), want)
    changed = arrays["w"].copy()
    changed[0, 0, 0, 0] += 1
    assert not np.array_equal(packed(workload, changed, folder=tmp_path), want)
    for damage in (truncate, flip, empty, Path.unlink, lambda p: p.write_bytes(p.read_bytes() + b"\0")):
        for path in kept:
            damage(path)
        np.testing.assert_array_equal(packed(workload, arrays["w"], folder=tmp_path), want)
        assert all(cache._read_into(path, first) for path in kept)  # and repaired


def test_only_a_convolution_s_own_filters_are_packed(tmp_path):
    with pytest.raises(ValueError, match=r"w is \(5, 2, 3, 3\), must be \(K,C/groups,R,S\) = \(5, 3, 3, 2\)"):
        packed(WORK, np.zeros((5, 2, 3, 3), np.float32), folder=tmp_path)
    with pytest.raises(ValueError, match="'pool' workload"):
        packed(replace(WORK, kind="pool"), np.zeros(SHAPE.w_shape, np.float32), folder=tmp_path)


# Programs ------------------------------------------------------------------------------------------------------
def test_a_program_is_found_without_scheduling(tmp_path, monkeypatch):
    workload = conv(ConvShape(n=1, c=2, h=6, w=6, k=4, r=3, s=3), form="direct")
    made = prepared_program(workload, folder=tmp_path)
    monkeypatch.setattr(work, "schedule", lambda *a, **k: pytest.fail("scheduled"))
    assert prepared_program(workload, folder=tmp_path) == made
    with pytest.raises(pytest.fail.Exception):
        prepared_program(workload, folder=tmp_path, arch="sm_80")
    flip(files(tmp_path, ".program")[0])
    with pytest.raises(pytest.fail.Exception):
        prepared_program(workload, folder=tmp_path)


# keys ----------------------------------------------------------------------------------------------------------
def test_keys_are_the_same_in_every_process():
    code = (
        "from texlab.schedules import cache; from texlab.schedules.conv import conv; from texlab.shapes import ConvShape;"
        f"print(cache._knob_key(conv({SHAPE!r}, form='im2win', layout='NHWC'), 'llvm', dict(B=1, A=True)))"
    )
    got = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(cache._PACKAGE.parent)},
        ).stdout.strip()
        for seed in "12"
    ]
    assert got == [cache._knob_key(WORK, "llvm", {"A": True, "B": 1})] * 2
    assert got[0] != cache._knob_key(WORK, "llvm", {"A": True, "B": True})  # 1 and True are equal in Python


def test_descriptions_tell_workloads_apart():
    other = [
        conv(replace(SHAPE, dilation=(1, 2)), form="im2win", layout="NHWC"),
        conv(SHAPE, form="direct", layout="NHWC"),
        conv(SHAPE, form="im2win", layout="NHWC", epilogue=Epilogue(activation="relu")),
    ]
    texts = {json.dumps(keys.describe(w)) for w in (WORK, *other)}
    assert len(texts) == 4
    assert json.loads(json.dumps(keys.describe(WORK))) == keys.describe(WORK)


def test_another_processor_is_another_key(monkeypatch):
    here = keys.processor()
    keys.processor.cache_clear()
    monkeypatch.setattr(keys.platform, "machine", lambda: "another")
    try:
        assert keys.processor() != here
    finally:
        keys.processor.cache_clear()


# first inference -----------------------------------------------------------------------------------------------
def test_warm_is_a_small_part_of_cold_and_imports_no_tvm(tmp_path):
    shape = ConvShape(n=1, c=32, h=28, w=28, k=32, r=3, s=3, padding=1)
    workload = conv(shape, form="im2win", layout="NHWC")
    cold = first_inference(workload, fresh=True)
    warm = min(
        (first_inference(workload, folder=tmp_path) for _ in range(2)), key=lambda r: sum(map(r.get, cache.STEPS))
    )
    assert (cold["found"], warm["found"], cold["fault"], warm["fault"]) == (False, True, None, None)
    assert warm["import"] == warm["schedule"] == warm["compile"] == 0 < min(cold[s] for s in cache.STEPS)
    total = {name: sum(report[s] for s in cache.STEPS) for name, report in (("cold", cold), ("warm", warm))}
    assert total["warm"] <= total["cold"] / 20
    assert total["warm"] <= (total["cold"] - cold["import"]) / 4  # 1/20 on a machine that does nothing else
    assert warm["process"] < cold["process"]
    figure = first_inference_figure(cold, warm)
    assert "of cold" in figure.axes[0].texts[1].get_text()
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] == ["cold:\nempty cache", "warm:\nfilled cache"]
    with pytest.raises(ValueError, match="warm has no"):
        first_inference_figure(cold, {})


def test_a_found_library_needs_no_tvm_in_the_process(tmp_path):
    prepared(WORK, folder=tmp_path)
    code = (
        "import sys; from texlab.schedules.cache import prepared; from texlab.schedules.conv import conv;"
        "from texlab.shapes import ConvShape; import numpy as np;"
        f"w = conv({SHAPE!r}, form='im2win', layout='NHWC'); c = prepared(w, folder={str(tmp_path)!r});"
        "y = c(**{b.name: np.ones(b.shape, b.dtype) for b in w.inputs});"
        "print(c.found, y.max(), [m for m in sys.modules if m.startswith('tvm')])"
    )
    env = {**os.environ, "PYTHONPATH": str(cache._PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "True 18.0 []\n", done.stderr


def test_a_first_inference_that_fails_says_so(tmp_path):
    with pytest.raises(DeviceError, match="no knob 'NONSENSE'"):
        first_inference(WORK, fresh=True, NONSENSE=1)


def test_it_is_quick_once_it_is_there(tmp_path):
    prepared(WORK, folder=tmp_path)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        assert prepared(WORK, folder=tmp_path).found
        took.append(time.perf_counter() - start)
    assert min(took) < 0.01
