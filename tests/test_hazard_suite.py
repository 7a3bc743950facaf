"""Every seeded fault is found, with its place; every correct kernel passes with its result."""

from __future__ import annotations

import numpy as np
import pytest

from hazards import CLEAN, FAULTS, sanitizer
from hazards.known import KNOWN
from hazards.verdict import run
from texlab.compiler import CompileError
from texlab.program import KernelFault

seeded = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, marks=pytest.mark.xfail(reason=KNOWN[f.name], strict=True)) if f.name in KNOWN else f
        for f in FAULTS
    ],
    ids=[f.name for f in FAULTS],
)


@seeded
def test_fault_is_reported(fault):
    """The default run finds it: its kind, the line, and thread, block and address where they are determined."""
    with pytest.raises((KernelFault, ValueError)) as caught:
        run(fault, fault.schedule)
    error, text = caught.value, str(caught.value)
    kind = getattr(error, "kind", type(error).__name__)
    assert kind in fault.kinds, text
    assert fault.says in text
    if kind in ("launch", "ValueError"):
        assert fault.program.launches[0].entry in text  # it names the kernel
        return
    assert error.line in fault.lines, text
    assert error.source and error.source in text  # the line itself is quoted
    assert f"{fault.name}.cu:{error.line}" in text
    found = {name: getattr(error, name) for name in fault.where}
    assert found == fault.where, text
    if kind == "race":
        assert "warp" in text or "lane" in text or "cp.async" in text  # the other party


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name not in KNOWN], ids=lambda f: f.name)
def test_fault_is_reported_when_warps_run_one_by_one(fault):
    """A race may then show as a read of what the other warp has not written yet."""
    with pytest.raises((KernelFault, ValueError)) as caught:
        run(fault, "warps")
    kind = getattr(caught.value, "kind", type(caught.value).__name__)
    assert kind in fault.kinds or ("race" in fault.kinds and kind == "uninitialised"), str(caught.value)


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("case", CLEAN, ids=lambda c: c.name)
def test_correct_kernel_passes(case, schedule):
    outputs = run(case, schedule)
    for name, want in case.expected.items():
        np.testing.assert_array_equal(outputs[name], want)


def test_there_are_enough():
    assert len(FAULTS) >= 30 and len(CLEAN) >= 30
    names = [c.name for c in [*FAULTS, *CLEAN]]
    assert len(set(names)) == len(names)
    assert not set(KNOWN) - set(names)
    assert all(f.lines or set(f.kinds) <= {"launch", "ValueError"} for f in FAULTS)


SAID = {
    "Invalid __global__ read of size 4 bytes": "memcheck",
    "Error: Race reported between Write access at a_k+0x70 in a.cu:4": "racecheck",
    "Warning: Race reported between Read access at a_k+0x70 in a.cu:4": "racecheck",
    "Uninitialized __global__ memory read of size 4 bytes": "initcheck",
    "Barrier error detected. Divergent thread(s) in block": "synccheck",
    "": "memcheck",
}


@pytest.mark.parametrize(("line", "tool"), SAID.items())
def test_verdict_of_a_tool(line, tool, tmp_path):
    """A stand-in for compute-sanitizer that prints what it prints."""
    text = f"========= COMPUTE-SANITIZER\n========= {line}\n=========     at a_k+0x90 in a.cu:5\n========= \n"
    text += "========= ERROR SUMMARY: 1 error\n"
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    fake.chmod(0o755)
    verdict, _ = sanitizer.under(tool, ["a"], str(fake), 20)
    assert verdict == (f"reported: {line.split(': ', 1)[-1]}" if line else "clean")


def test_tool_that_never_ends_is_ended(tmp_path):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text("#!/bin/sh\nsleep 60\n")
    fake.chmod(0o755)
    assert sanitizer.under("memcheck", ["a"], str(fake), 0.5)[0].startswith("timed out")


# on a GPU -------------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("case", CLEAN, ids=lambda c: c.name)
def test_correct_kernel_gives_the_same_on_the_gpu(case):
    result = case.program.run(device="gpu", limit=20, **case.inputs)
    for name, want in case.expected.items():
        np.testing.assert_array_equal(result.outputs[name].get(), want)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.tool == "launch"], ids=lambda f: f.name)
def test_impossible_launch_is_refused_on_the_gpu(fault):
    with pytest.raises((ValueError, CompileError)):  # what the source declares is refused before there is a launch
        fault.program.run(device="gpu", limit=20, **fault.inputs)
