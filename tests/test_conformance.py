"""Simulator, PTX as defined, and hardware: the same small kernels, the same inputs, the same bits.

``tests/conformance`` holds the cases and what an NVIDIA H200 computed for them. With ``-m gpu`` the GPU of this machine is
asked again.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from conformance import BITS, CASES, Within, difference, exact, recorded
from conformance.case import Case
from conformance.known import KNOWN

NAMES = [case.name for case in CASES]
each = pytest.mark.parametrize("case", CASES, ids=NAMES)
each_known = pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.xfail(reason=KNOWN[c.name], strict=True)) if c.name in KNOWN else c
        for c in CASES
    ],
    ids=NAMES,
)


@functools.cache
def _expected(name: str) -> dict[str, np.ndarray] | None:
    return CASES[NAMES.index(name)].expected()


@functools.cache
def _simulated(name: str) -> dict[str, np.ndarray]:
    case = CASES[NAMES.index(name)]
    return case.program.run(device="sim", **case.inputs).outputs


def agree(case: Case, got, want, slack: float = 1) -> None:
    wrong = difference(case, got, want, slack)
    assert wrong is None, f"{case.name} ({case.feature}): {wrong}"


@each_known
def test_simulator_computes_what_ptx_defines(case):
    if case.expect is None:
        pytest.skip("has no independent calculation; see the recorded outputs")
    agree(case, _simulated(case.name), _expected(case.name))


@each_known
def test_simulator_equals_recorded_hardware(case):
    want = recorded(case)
    if want is None:
        if case.name in KNOWN:
            pytest.xfail(KNOWN[case.name])  # nothing to pass or fail by yet
        pytest.skip("not recorded yet on an NVIDIA H200: python -m tests.conformance.record")
    agree(case, _simulated(case.name), want, slack=2)


@each
def test_recorded_hardware_computes_what_ptx_defines(case):
    want = recorded(case)
    if want is None or case.expect is None:
        pytest.skip("not recorded yet on an NVIDIA H200: python -m tests.conformance.record")
    agree(case, want, _expected(case.name))


@pytest.mark.gpu
@each
def test_gpu_computes_what_ptx_defines_and_what_was_recorded(case):
    run = case.program.run(device="gpu", limit=20, **case.inputs)
    got = {name: a.get() for name, a in run.outputs.items()}
    if case.expect:
        agree(case, got, _expected(case.name))
    if (want := recorded(case)) is not None:
        agree(case, got, want)


@pytest.mark.gpu
@each_known
def test_gpu_equals_simulator(case):
    run = case.program.run(device="gpu", limit=20, **case.inputs)
    agree(case, _simulated(case.name), {name: a.get() for name, a in run.outputs.items()}, slack=2)


# the referee ----------------------------------------------------------------------------------------------------------
def test_there_are_enough_cases_and_they_are_named_once():
    assert len(CASES) >= 150
    assert len(set(NAMES)) == len(NAMES)
    assert not set(KNOWN) - set(NAMES)


def test_inputs_do_not_depend_on_numpy():
    """Recorded outputs belong to exactly these inputs."""
    case = CASES[NAMES.index("integer.add.s32")]
    assert case.inputs["a"][:4].tolist() == [0, 1, 2, 3]
    assert case.inputs["a"][256:259].tolist() == [-909198869, -1042, -1589982858]


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [("integer.add.s32", 300, 1), ("float.add.rn.f32", 5, -0.0), ("approximate.rcp.approx.f32", 400, 0.1)],
)
def test_one_wrong_element_is_noticed(name, index, value):
    case = CASES[NAMES.index(name)]
    want = case.expected()
    got = {n: a.copy() for n, a in want.items()}
    (array,) = got.values()
    assert difference(case, got, want) is None
    array[index] = value if array[index] != value else value + 1
    assert "1 of 512" in difference(case, got, want)


def test_bounds():
    one = np.float32([1])
    case = next(c for c in CASES if c.compare == Within(ulp=1))
    near = {"r": np.repeat(np.nextafter(one, np.float32(2)), 512)}
    ones, far = {"r": np.repeat(one, 512)}, {"r": np.repeat(one + np.float32(2.0**-22), 512)}
    assert difference(case, near, ones) is None
    assert difference(case, far, ones) and difference(case, far, ones, slack=2) is None
    assert difference(case, {"r": ones["r"] * np.nan}, ones)


def test_bits_tell_zeros_apart_but_not_nans():
    case = next(c for c in CASES if c.name == "float.add.rn.f32")
    assert case.compare == BITS
    zeros = np.zeros(512, "f4")
    assert difference(case, {"r": -zeros}, {"r": zeros})
    nans = np.full(512, np.nan, "f4")
    assert difference(case, {"r": nans}, {"r": (nans.view("u4") | 1).view("f4")}) is None


def test_exact_arithmetic_agrees_with_numpy():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 2**32, 500, dtype="u4") for _ in range(2))
    x, y = a.view("f4"), b.view("f4")
    with np.errstate(all="ignore"):
        for f, want in ((exact.add, x + y), (exact.mul, x * y), (exact.div, x / y)):
            got = np.array([f(int(p), int(q), "f32") for p, q in zip(a, b, strict=True)], "u4").view("f4")
            np.testing.assert_array_equal(got, want)
        half = np.array([exact.convert(int(p), "f32", "f16") for p in a], "u2").view("f2")
        np.testing.assert_array_equal(half, x.astype("f2"))
        root = np.array([exact.sqrt(int(p), "f32") for p in a], "u4").view("f4")
        np.testing.assert_array_equal(root, np.sqrt(x))


def test_the_table_counts_what_passed():
    from conformance import record

    right, wrong, missing = CASES[:3]
    other = {n: a + 1 for n, a in wrong.expected().items()}
    outputs = {right.name: right.expected(), wrong.name: other}
    sim = {right.name: "", wrong.name: "differs", missing.name: "KernelFault: ..."}
    rows = record.table([right, wrong, missing], outputs, sim)
    assert rows[-1] == {"family": "all", "total": 3, "gpu_passed": 1, "simulator_passed": 1}


def test_a_recording_is_read_back(tmp_path, monkeypatch):
    from conformance import recording

    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    case, other = CASES[0], CASES[1]
    recording.write(tmp_path / "h200.xz", {"date": "2026-11-30"}, {case.name: (case.key, case.expected())})
    assert difference(case, recording.recorded(case), case.expected()) is None
    assert recording.recorded(other) is None
    recording.write(tmp_path / "old.xz", {}, {case.name: ("another key", case.expected())})
    assert recording.recorded(case, "old") is None  # the case has changed since
