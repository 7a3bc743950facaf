"""Double buffer and pipeline: any number of tiles, and no barrier or wait that could be left out."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from texlab import ablation, compiler, gpu
from texlab.catalog import kernels
from texlab.compiler import CompileError
from texlab.occupancy import fit, occupancy
from texlab.program import DeviceError, KernelFault, Program, device_function
from texlab.reference import assert_matches, conv2d_reference
from texlab.results import Result
from texlab.shapes import LAYERS, ConvShape

ROOT = Path(__file__).parent.parent
DEVICES = ["sim", pytest.param("gpu", marks=pytest.mark.gpu)]
SMALL = {"BLOCK_K": 32, "BLOCK_Q": 128}  # two warps
VARIANTS = [
    *(("im2win_double_buffer", {"TILES": n}) for n in (1, 2)),
    *(("im2win_pipeline", {"STAGES": n}) for n in (1, 2, 3, 4, 5)),
]


def arrays(shape: ConvShape) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal(shape.x_shape, "f4"), "w": rng.standard_normal(shape.w_shape, "f4")}


def one_row_of_windows(channels: int) -> ConvShape:
    """A filter of one column: ``channels`` window elements."""
    return ConvShape(n=1, c=channels, h=4, w=9, k=5, r=1, s=1)


# results ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kernel", "tunables"), VARIANTS)
@pytest.mark.parametrize("elements", [1, 8, 9, 16, 24, 31, 32, 40, 41], ids=lambda n: f"{-(-n // 8)}tiles_{n}")
def test_any_number_of_tiles(kernel, tunables, elements, device):
    """One tile, odd and even numbers of them, fewer than stages, and a last one that is not full."""
    shape = one_row_of_windows(elements)
    given = arrays(shape)
    run = device_function(device)(kernels[kernel].program(shape, **tunables), given)
    got = run.output.get() if device == "gpu" else run.output
    assert_matches(got, conv2d_reference(**given), atol=1e-4, name=f"{kernel} {tunables}")


# what happens without a barrier, a wait or a commit -----------------------------------------------------------------
REMOVABLE = re.compile(r"__syncthreads\(\);|wait_copies<[^;]*;|commit_copies\(\);")
RACE_SHAPE = ConvShape(n=1, c=5, h=6, w=12, k=32, r=3, s=3)  # six tiles, the last one not full


def places(kernel: str) -> list[tuple[int, str]]:
    """(line, what could be removed there) of a kernel file; definitions are not uses."""
    found = []
    for number, line in enumerate(kernels[kernel].text.splitlines(), 1):
        uses = REMOVABLE.findall(line.split("//")[0])
        if uses and "inline" not in line:
            found.append((number, uses[0]))
    return found


def without(program: Program, line: int, what: str) -> Program:
    """The program with ``what`` taken out of one line of its kernel's file."""
    text = kernels[program.name].text
    lines = text.splitlines()
    lines[line - 1] = lines[line - 1].replace(what, ";", 1)
    return replace(program, source=program.source.replace(text, "\n".join(lines)))


CASES = [(k, t, *place) for k, t in VARIANTS for place in places(k)]


def test_every_barrier_and_wait_is_found():
    assert [what for _, what in places("im2win_double_buffer")] == ["__syncthreads();"] * 3
    assert [what.partition("<")[0] for _, what in places("im2win_pipeline")] == [
        *("commit_copies();", "wait_copies", "__syncthreads();", "__syncthreads();")
    ]


@pytest.mark.parametrize(("kernel", "tunables", "line", "what"), CASES, ids=lambda v: str(v))
def test_none_can_be_removed(kernel, tunables, line, what):
    """In both orders of execution the simulator stops at the race; only a line that is not compiled may go."""
    whole = kernels[kernel].program(RACE_SHAPE, **SMALL, **tunables)
    program = without(whole, line, what)
    assert program.source != whole.source
    text, only = kernels[kernel].text.splitlines()[line - 1], dict.fromkeys(tunables, 1)
    if f"if ({next(iter(tunables))} == 1) __syncthreads" in text and tunables != only:
        barriers = [compiler.ptx(p).count("bar.sync") for p in (program, whole)]
        assert barriers[0] == barriers[1]
        return
    for schedule in ("lockstep", "warps"):
        with pytest.raises(KernelFault) as caught:
            program.run(device="sim", schedule=schedule, **arrays(RACE_SHAPE))
        assert caught.value.kind in ("race", "uninitialised"), str(caught.value)
        assert caught.value.file == whole.filename


def test_with_all_of_them_it_is_right():
    given = arrays(RACE_SHAPE)
    for kernel, tunables in VARIANTS:
        run = kernels[kernel].program(RACE_SHAPE, **SMALL, **tunables).run(device="sim", schedule="warps", **given)
        assert_matches(run.output, conv2d_reference(**given), atol=1e-4, name=f"{kernel} {tunables}")


# what a card must have ----------------------------------------------------------------------------------------------
def test_an_older_card_is_refused():
    program = kernels["im2win_pipeline"].program(RACE_SHAPE)
    assert program.needs == "sm_80"
    with pytest.raises(CompileError, match=r"im2win_pipeline.*sm_80.*sm_75"):
        compiler.ptx(program, "sm_75")
    with pytest.raises(CompileError, match="sm_75"):
        compiler.cubin(program, "sm_75")
    with pytest.raises(DeviceError, match=r"sm_80; this GPU is sm_75.*device='sim'"):
        gpu.check_arch(program, "sm_75")
    for arch in ("sm_80", "sm_90", "sm_90a", "sm_120"):
        gpu.check_arch(program, arch)
    gpu.check_arch(kernels["im2win_zigzag"].program(RACE_SHAPE), "sm_75")


# occupancy ----------------------------------------------------------------------------------------------------------
def test_what_limits_the_blocks_of_a_multiprocessor():
    assert (fit(1024, 32, 0).blocks, fit(1024, 32, 0).limited_by) == (2, "registers")
    assert (fit(32, 16, 0).blocks, fit(32, 16, 0).limited_by) == (32, "blocks")
    assert (fit(256, 16, 0).blocks, fit(256, 16, 0).limited_by) == (8, "threads")
    assert (fit(128, 16, 100 * 1024).blocks, fit(128, 16, 100 * 1024).limited_by) == (2, "shared memory")
    assert fit(128, 16, 227 * 1024).blocks == 1  # with the 1 KiB that the system takes, exactly all of it
    assert fit(128, 168, 0).blocks == 3
    assert fit(128, 169, 0).blocks == 2  # 176 after rounding, and whole groups of four warps
    with pytest.raises(ValueError, match="sm_42"):
        occupancy(kernels["direct"].program(RACE_SHAPE), "sm_42")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, kernel in kernels.items() if kernel.kind == "conv"])
def test_occupancy_is_the_drivers(name):
    import cupy

    program = kernels[name].program(RACE_SHAPE)
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    launch = program.launches[-1]
    function = gpu._function(compiler.cubin(program, arch), launch.entry, cupy.cuda.Device().id)
    gpu._allow(cupy, function, launch, cupy.cuda.Device().id)
    ask = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    assert occupancy(program, arch).blocks == ask(function.ptr, launch.threads, launch.shared_bytes)


# the ablation -------------------------------------------------------------------------------------------------------
def timed(step: ablation.Step, ms: float, layer: str = "cv9", **more) -> dict:
    row = {"layer": layer, "n": 128, "kernel": step.kernel, "tunables": dict(step.tunables), "verified": True}
    row |= {"ms": ms, "kernel_ms": ms, "kernel_ms_p10": 0.99 * ms, "kernel_ms_p90": 1.01 * ms}
    return row | {"kernel_tflops": 1.0, "kernel_gbps": 2.0} | more


def test_factors_are_between_neighbours_and_losses_are_counted():
    steps = {step.name: step for step in ablation.STEPS}
    rows = [timed(steps["none"], 4.0), timed(steps["padding"], 2.0), timed(steps["vector loads"], 2.01)]
    rows += [timed(steps["none"], 8.0, "cv1"), timed(steps["padding"], 16.0, "cv1")]
    table = {row["step"]: row for row in ablation.factors(Result(rows))}
    assert "factor" not in table["none"] and table["none"]["layers"] == 2
    assert table["padding"]["factor"] == pytest.approx(1.0)  # twice as fast and half as fast
    assert (table["padding"]["least"], table["padding"]["most"], table["padding"]["losses"]) == (0.5, 2.0, 1)
    assert table["vector loads"]["losses"] == 0  # slower by less than the spread
    assert "layers" not in table["zig-zag"]


def test_what_a_step_uses_and_achieves():
    shape = LAYERS["cv9"].with_(n=128)
    step = next(s for s in ablation.STEPS if s.name == "cp.async, 3 stages")
    row = ablation.achieved(timed(step, 2.0), shape, "sm_90")
    assert row["shared_bytes"] == 3 * 8 * (64 + 128 + 8) * 4
    assert row["kernel_tflops"] == pytest.approx(shape.flops / 2e9)
    assert 0 < row["occupancy"] <= 1 and row["resident_blocks"] >= 1
    program = kernels["im2win_pipeline"].program(shape, STAGES=3)
    moved = sum(program.buffer(name).nbytes for name in ("xw", "wt", "y"))
    assert row["kernel_gbps"] == pytest.approx(moved / 2e6)


def test_every_step_is_a_kernel_of_the_catalog():
    names = [step.name for step in ablation.STEPS]
    for step in ablation.STEPS:
        kernels[step.kernel].program(RACE_SHAPE, **step.tunables)
        assert step.after is None or names.index(step.after) < names.index(step.name)


def test_the_readme_table_is_current():
    spec = importlib.util.spec_from_file_location("ladder_table", ROOT / "tools" / "ladder_table.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tool.replaced(readme) == readme, "run: python tools/ladder_table.py"
    for step in ablation.STEPS:
        assert f"| {step.name} |" in tool.ablation_table()
