"""TVM's CUDA modules as Programs: names, geometry, shared memory, several kernels, and what no GPU could launch."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")

from texlab import compiler
from texlab.counters import predicted
from texlab.program import Buffer, DeviceError
from texlab.schedules import judge
from texlab.schedules.conv import Epilogue, conv
from texlab.schedules.launch import program, program_of
from texlab.schedules.tvm_import import load
from texlab.schedules.work import schedule
from texlab.shapes import ConvShape

SHAPE = ConvShape(n=2, c=3, h=9, w=10, k=8, r=3, s=3, padding=1)


def function(te, inputs, output):
    """A TIR function as a user's own module has it."""
    return load().IRModule({"main": te.create_prim_func([*inputs, output])})


def rows(count, columns, thread_axis="threadIdx.x", block_axis="blockIdx.y", threads=32):
    """A module that doubles (count, columns) numbers, a row a block."""
    tvm = load()
    te = tvm.te
    a = te.placeholder((count, columns), "float32", name="a")
    b = te.compute((count, columns), lambda i, j: a[i, j] * 2, name="b")
    sch = tvm.s_tir.Schedule(function(te, [a], b))
    i, j = sch.get_loops(sch.get_sblock("b"))
    sch.bind(i, block_axis)
    _, j = sch.split(j, [None, threads])
    sch.bind(j, thread_axis)
    return sch.mod, (Buffer("x", (count, columns)), Buffer("y", (count, columns), role="output"))


def staged(count, scope="shared"):
    """A module in which 128 threads copy ``count`` floats through shared memory."""
    tvm = load()
    te = tvm.te
    a = te.placeholder((2, count), "float32", name="a")
    b = te.compute((2, count), lambda i, j: a[i, count - 1 - j], name="b")
    sch = tvm.s_tir.Schedule(function(te, [a], b))
    block = sch.get_sblock("b")
    i, j = sch.get_loops(block)
    sch.bind(i, "blockIdx.x")
    copy = sch.cache_read(block, 0, scope)
    sch.compute_at(copy, i)
    for loop in (sch.get_loops(copy)[-1], j):
        sch.bind(sch.split(loop, [None, 128])[1], "threadIdx.x")
    return sch.mod, (Buffer("x", (2, count)), Buffer("y", (2, count), role="output"))


def test_a_users_module_runs_by_the_names_it_is_given():
    prog = program_of(*rows(5, 40), name="twice")
    assert (prog.name, prog.filename) == ("twice", "twice.cu")
    (launch,) = prog.launches
    assert (launch.entry, launch.grid, launch.block) == ("twice_kernel", (1, 5, 1), (32, 1, 1))
    x = np.random.default_rng(0).standard_normal((5, 40), dtype="float32")
    np.testing.assert_array_equal(prog.run(device="sim", x=x).output, 2 * x)


def test_the_tail_of_a_row_is_guarded():
    x = np.arange(3 * 33, dtype="float32").reshape(3, 33)
    np.testing.assert_array_equal(program_of(*rows(3, 33)).run(device="sim", x=x).output, 2 * x)


def test_inputs_and_output_have_the_workloads_names_whatever_tvm_calls_them():
    work = conv(SHAPE, form="direct", epilogue=Epilogue(scale=True, shift=True, residual=True, activation="relu"))
    prog = program(schedule(work, "cuda"))
    assert [b.name for b in prog.inputs] == ["x", "w", "scale", "shift", "residual"]
    assert [b.name for b in prog.outputs] == ["y"]
    assert set(prog.launches[0].args) == {"x", "w", "scale", "shift", "residual", "y"}
    assert not prog.scratch_bytes


def test_what_lies_between_kernels_is_scratch_and_they_run_in_order():
    work = conv(SHAPE, form="im2win")
    prog = program(schedule(work, "cuda", WINDOW="global"))
    assert len(prog.launches) == 2
    (window,) = [b for b in prog.buffers if b.role == "scratch"]
    assert window.nbytes == 4 * 2 * 3 * 9 * 12 * 3  # N, C, P, padded W, R
    assert window.name in prog.launches[0].args and window.name in prog.launches[1].args
    assert "y" in prog.launches[1].args and "y" not in prog.launches[0].args
    arrays = judge.sample(work)
    run = prog.run(device="sim", **work.pack(arrays))
    assert judge.fault(work.unpack(run.output), judge.answer(work, arrays)) is None


@pytest.mark.parametrize("pipeline", ["none", "double_buffer", "async"])
def test_nvrtc_needs_no_header_for_tvms_text(pipeline):
    prog = program(schedule(conv(SHAPE, form="direct"), "cuda", PIPELINE=pipeline))
    assert "#include" not in prog.source and prog.source.count('extern "C" __global__') >= 1
    assert prog.needs == ("sm_80" if pipeline == "async" else "sm_75")
    (resources,) = compiler.resources(prog).values()
    assert resources.registers > 0 and resources.spill_bytes == 0


def test_it_is_traced_with_the_lines_of_tvms_text():
    work = conv(SHAPE, form="direct")
    prog = program(schedule(work, "cuda"))
    run = prog.run(device="sim", trace=True, **work.pack(judge.sample(work)))
    lines = prog.source.splitlines()
    shared = [i for i in run.trace.instructions if i.space == "shared"]
    assert shared
    for instruction in shared:
        assert instruction.file == prog.filename and "_shared" in lines[instruction.line - 1]
        assert instruction.source.strip() == lines[instruction.line - 1].strip()
    table = predicted(run.trace)
    assert (table[table.counter == "shared_load_wavefronts"].value > 0).all()


# shared memory, threads, grids --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("count", "fits"), [(12288, True), (12416, False), (16384, False)])
def test_static_shared_memory_is_checked(count, fits):
    module, buffers = staged(count)
    if fits:
        prog = program_of(module, buffers)
        (resources,) = compiler.resources(prog).values()
        assert resources.shared_bytes == 4 * count
    else:
        with pytest.raises(ValueError, match=f"{4 * count} bytes of shared memory.*49152.*smaller"):
            program_of(module, buffers)


@pytest.mark.parametrize("count", [12416, 16384])
def test_more_is_dynamic(count):
    prog = program_of(*staged(count, "shared.dyn"))
    assert prog.launches[0].shared_bytes == 4 * count
    x = np.random.default_rng(0).standard_normal((2, count), dtype="float32")
    np.testing.assert_array_equal(prog.run(device="sim", x=x).output, x[:, ::-1])


def test_and_has_a_limit_too():
    program_of(*staged(58112, "shared.dyn"))
    with pytest.raises(ValueError, match=r"232960 bytes of shared memory.*232448.*smaller"):
        program_of(*staged(58240, "shared.dyn"))


def test_a_long_grid_is_refused_unless_it_is_along_x():
    with pytest.raises(ValueError, match=r"grid y 65536 > 65535.*blockIdx.x"):
        program_of(*rows(65536, 1, threads=1))
    assert program_of(*rows(65536, 1, block_axis="blockIdx.x", threads=1)).launches[0].grid == (65536, 1, 1)


def test_a_block_has_at_most_1024_threads():
    program_of(*rows(1, 2048, threads=1024))
    with pytest.raises(ValueError, match=r"2048 threads a block \(2048, 1, 1\).*1024"):
        program_of(*rows(1, 2048, threads=2048))


def test_a_padded_tile_in_shared_memory_is_the_tile_and_its_halo():
    """62 x 62 zero-padded by 1, sums of 3 x 3, blocks of 8 x 8: a tile is 10 x 10 floats."""
    tvm = load()
    te = tvm.te
    a = te.placeholder((62, 62), "float32", name="a")
    inside = lambda i, j: tvm.tirx.all(i >= 1, i < 63, j >= 1, j < 63)  # noqa: E731
    pad = te.compute(
        (64, 64),
        lambda i, j: tvm.tirx.if_then_else(inside(i, j), a[i - 1, j - 1], tvm.tirx.const(0, "float32")),
        name="pad",
    )
    r, s = te.reduce_axis((0, 3)), te.reduce_axis((0, 3))
    b = te.compute((62, 62), lambda i, j: te.sum(pad[i + r, j + s], axis=[r, s]), name="b")
    sch = tvm.s_tir.Schedule(function(te, [a], b))
    block, pad = sch.get_sblock("b"), sch.get_sblock("pad")
    i, j, *_ = sch.get_loops(block)
    (io, ii), (jo, ji) = sch.split(i, [None, 8]), sch.split(j, [None, 8])
    sch.reorder(io, jo, ii, ji)
    for loop, axis in ((io, "blockIdx.y"), (jo, "blockIdx.x"), (ii, "threadIdx.y"), (ji, "threadIdx.x")):
        sch.bind(loop, axis)
    sch.set_scope(pad, 0, "shared")
    sch.compute_at(pad, jo)
    y, x = (sch.split(loop, [None, 8])[1] for loop in sch.get_loops(pad)[-2:])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    prog = program_of(sch.mod, (Buffer("x", (62, 62)), Buffer("y", (62, 62), role="output")), name="box")
    (resources,) = compiler.resources(prog).values()
    assert resources.shared_bytes == 400
    x = np.random.default_rng(0).standard_normal((62, 62), dtype="float32")
    padded = np.pad(x.astype("float64"), 1)
    want = sum(padded[r : r + 62, s : s + 62] for r in range(3) for s in range(3))
    np.testing.assert_allclose(prog.run(device="sim", x=x).output, want, atol=1e-5)


# errors -------------------------------------------------------------------------------------------------------------
def test_a_schedule_for_processors_is_no_program():
    with pytest.raises(ValueError, match=r"'llvm'.*'cuda'"):
        program(schedule(conv(SHAPE, form="direct"), "llvm"))
    with pytest.raises(ValueError, match="nothing is bound"):
        program_of(conv(SHAPE, form="direct").module(), conv(SHAPE, form="direct").buffers)


def test_buffers_must_be_the_functions():
    module, buffers = rows(4, 4)
    with pytest.raises(ValueError, match=re.escape("takes ['a', 'b'], but there are 1 buffers")):
        program_of(module, buffers[:1])


def test_without_tvm_it_says_what_to_install(monkeypatch):
    from texlab.schedules import tvm_import

    tvm_import.load.cache_clear()
    monkeypatch.setattr(tvm_import.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="pip install apache-tvm"):
        schedule(conv(SHAPE, form="direct"), "cuda")
    tvm_import.load.cache_clear()
