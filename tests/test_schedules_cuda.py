"""The GPU schedule of convolution, run in the simulator: every form, layout, tail, pipeline and epilogue against float64."""

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import conv_shapes
from texlab import compiler
from texlab.bench import bench
from texlab.schedules import judge
from texlab.schedules.conv import FORMS, Epilogue, conv
from texlab.schedules.conv_cuda import PIPELINES, SHARED
from texlab.schedules.launch import program
from texlab.schedules.work import schedule, space
from texlab.shapes import LAYERS, ConvShape
from texlab.tvm_bench import _arch, candidates, made

LAYOUTS = ("NCHW", "NHWC", "NCHW4c")
FULL = Epilogue(scale=True, shift=True, residual=True, activation="relu6")
UNEVEN = ConvShape(n=2, c=6, h=9, w=8, k=10, r=3, s=2, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=2)


def run(work, trace=False, **knobs):
    """The Run, whose output is judged. The simulator refuses to read what nobody wrote, so nothing can be left out."""
    prog = program(schedule(work, "cuda", **knobs))
    arrays = judge.sample(work)
    done = prog.run(device="sim", trace=trace, **work.pack(arrays))
    assert judge.fault(work.unpack(done.output), judge.answer(work, arrays)) is None, (work, knobs)
    return done


def excess(done):
    """Space, kind -> passes of shared memory beyond those without any bank conflict, as a part of these."""
    totals, out = done.trace.totals, {}
    for kind in ("load", "store"):
        mine = [n for n, i in enumerate(done.trace.instructions) if (i.space, i.kind) == ("shared", kind)]
        ideal = sum(totals["ideal_wavefronts"][n] for n in mine)
        out[kind] = (sum(totals["wavefronts"][n] for n in mine) - ideal) / ideal
    return out


# right ---------------------------------------------------------------------------------------------------------------
@settings(max_examples=20)
@given(conv_shapes(max_elements=1500), st.sampled_from(FORMS), st.sampled_from(LAYOUTS), st.data())
def test_any_shape_form_and_layout_is_right(shape, form, layout, data):
    work = conv(shape, form=form, layout=layout, epilogue=data.draw(st.sampled_from([Epilogue(), FULL])))
    knobs = {}
    for name in ("PIPELINE", "STAGE_X", "STAGE_W", "VECTOR", "UNROLL", "VTHREAD_Q", "WINDOW"):
        if name in (choices := space(work, "cuda")):
            knobs[name] = data.draw(st.sampled_from(choices[name]), label=name)
    run(work, **knobs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_uneven_padding_stride_dilation_groups_and_an_epilogue(form, layout):
    done = run(conv(UNEVEN, form=form, layout=layout, epilogue=FULL))
    assert len(done.program.launches) == 1  # padding, window and epilogue are inside


@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(n=1, c=5, h=7, w=7, k=5, r=3, s=3, padding=1, groups=5),  # depthwise
        ConvShape(n=1, c=3, h=6, w=6, k=9, r=3, s=3, groups=3),  # tiles across groups
        ConvShape(n=3, c=1, h=1, w=13, k=1, r=1, s=3),  # one of everything, one output row
        ConvShape(n=1, c=3, h=8, w=8, k=7, r=1, s=1),
        ConvShape(n=1, c=2, h=12, w=12, k=9, r=11, s=11, stride=4, padding=5),
        ConvShape(n=2, c=7, h=1, w=1, k=33, r=1, s=1),  # a matrix product
    ],
    ids=str,
)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_odd_shapes_in_every_pipeline(shape, pipeline):
    for form in ("direct", "im2win"):
        run(conv(shape, form=form), PIPELINE=pipeline)


@settings(max_examples=10)
@given(st.data())
def test_tiles_of_any_size_that_is_allowed(data):
    work = conv(replace(UNEVEN, k=20), form=data.draw(st.sampled_from(FORMS)), layout="NCHW")
    draw = lambda name, values: data.draw(st.sampled_from(values), label=name)  # noqa: E731
    thread_k, thread_q = draw("THREAD_K", (1, 2, 4, 8)), draw("THREAD_Q", (1, 2, 3, 4))
    rows, columns, block_p = draw("rows", (1, 2, 4)), draw("columns", (1, 2, 3)), draw("BLOCK_P", (1, 2, 3, 4))
    pipelines = PIPELINES if rows * columns * block_p > 1 else ("double_buffer", "none")
    run(
        work,
        THREAD_K=thread_k,
        THREAD_Q=thread_q,
        BLOCK_K=thread_k * rows,
        BLOCK_Q=thread_q * columns,
        BLOCK_P=block_p,
        BLOCK_C=draw("BLOCK_C", (1, 3)),
        VTHREAD_K=draw("VTHREAD_K", [v for v in (1, 2, 4) if thread_k % v == 0]),
        VTHREAD_Q=draw("VTHREAD_Q", [v for v in (1, 2, 3, 4) if thread_q % v == 0]),
        PIPELINE=draw("PIPELINE", pipelines),
    )


@pytest.mark.parametrize("epilogue", [Epilogue(shift=True), Epilogue(activation="relu"), Epilogue(residual=True), FULL])
def test_what_follows_is_done_before_the_store(epilogue):
    done = run(conv(UNEVEN, form="im2win", epilogue=epilogue), trace=True)
    (launch,) = done.program.launches
    assert set(epilogue.names) <= set(launch.args)
    stores = [n for n, i in enumerate(done.trace.instructions) if (i.space, i.kind) == ("global", "store")]
    assert sum(done.trace.totals["lanes"][n] for n in stores) == np.prod(UNEVEN.y_shape)


# what the knobs change -----------------------------------------------------------------------------------------------
PLAIN = ConvShape(n=1, c=8, h=6, w=34, k=16, r=3, s=3)
TILE = {"BLOCK_K": 16, "BLOCK_P": 2, "BLOCK_Q": 32, "BLOCK_C": 4, "THREAD_K": 4, "THREAD_Q": 4}


def text(layout="NCHW", **knobs):
    return program(schedule(conv(PLAIN, form="direct", layout=layout), "cuda", **TILE | knobs)).source


def test_virtual_threads_move_a_threads_pixels_apart():
    near, apart = text(VTHREAD_Q=1), text(VTHREAD_Q=4)
    assert "threadIdx.x) * 4)" in near and "threadIdx.x) * 4)" not in apart  # four pixels side by side, or 8 apart
    sectors = []
    for pieces in (1, 4):
        totals = run(conv(PLAIN, form="direct"), trace=True, **TILE, VTHREAD_Q=pieces).trace
        stores = [n for n, i in enumerate(totals.instructions) if (i.space, i.kind) == ("global", "store")]
        sectors.append(sum(totals.totals["sectors"][n] for n in stores))
    assert sectors[0] == 4 * sectors[1]  # neighbouring threads store neighbouring pixels


def test_double_buffers_are_two_tiles_and_async_ones_are_filled_by_cp_async():
    def shared(source):
        return sum(int(n) for n in re.findall(r"__shared__ alignas\(\d+\) float \w+\[(\d+)\]", source))

    none, double, asynchronous = (text(PIPELINE=p) for p in ("none", "double_buffer", "async"))
    assert shared(double) == shared(asynchronous) == 2 * shared(none)
    assert "cp.async" in asynchronous and "cp.async" not in double + none


def test_vectors_move_several_numbers_at_once():
    wide = run(conv(PLAIN, form="direct", layout="NHWC"), trace=True, **TILE, VECTOR=4, PIPELINE="none")
    narrow = run(conv(PLAIN, form="direct", layout="NHWC"), trace=True, **TILE, VECTOR=1, PIPELINE="none")
    widths = [
        {i.width for i in r.trace.instructions if (i.space, i.kind) == ("global", "load")} for r in (wide, narrow)
    ]
    assert widths == [{16}, {4}]
    assert wide.counts["warp_instructions"] < narrow.counts["warp_instructions"]


def test_without_staging_nothing_is_shared():
    assert "__shared__" not in text(STAGE_X=False, STAGE_W=False)
    assert "x_shared" not in text(STAGE_X=False) and "w_shared" in text(STAGE_X=False)
    run(conv(PLAIN, form="direct"), **TILE, STAGE_X=False, STAGE_W=False)


def test_unroll_is_a_pragma():
    assert text(UNROLL=True).count("#pragma unroll") > 0 == text(UNROLL=False).count("#pragma unroll")


def test_tiles_that_need_more_than_48_kib_are_dynamic():
    prog = program(schedule(conv(PLAIN, form="direct"), "cuda", **TILE | {"BLOCK_K": 256, "THREAD_K": 8, "BLOCK_C": 8}))
    run(conv(PLAIN, form="direct"), **TILE | {"BLOCK_K": 256, "THREAD_K": 8, "BLOCK_C": 8})
    assert "buf_dyn_shmem" in prog.source and prog.launches[0].shared_bytes > 0


# the defaults --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layers_default_fits_twice_into_a_multiprocessor_without_spills(layer):
    for form in ("direct", "im2win"):
        prog = program(schedule(conv(LAYERS[layer].with_(n=128), form=form), "cuda"))
        (launch,) = prog.launches
        (resources,) = compiler.resources(prog).values()
        assert resources.spill_bytes <= 32, (form, resources)
        assert resources.shared_bytes <= SHARED
        assert resources.registers * launch.threads <= 65536
        assert 2 * (resources.shared_bytes + launch.shared_bytes) <= 227 << 10
        assert 64 <= launch.threads <= 512 and launch.blocks >= 132


@pytest.mark.parametrize("form", ["direct", "im2win"])
def test_default_tiles_have_few_bank_conflicts(form):
    shape = ConvShape(n=1, c=8, h=8, w=30, k=64, r=3, s=3)  # cv10's width
    conflicts = excess(run(conv(shape, form=form), trace="counts"))
    assert conflicts["load"] < 0.1 and conflicts["store"] < 3


# errors --------------------------------------------------------------------------------------------------------------
def test_sizes_that_do_not_fit_say_what_would():
    work = conv(UNEVEN, form="im2win")
    for knobs, message in [
        ({"THREAD_K": 3}, "THREAD_K=3 must divide BLOCK_K=8"),
        ({"VTHREAD_K": 3}, "VTHREAD_K=3 must divide THREAD_K"),
        ({"BLOCK_Q": 7, "THREAD_Q": 2}, "THREAD_Q=2 must divide BLOCK_Q=7"),
        ({"BLOCK_C": 2}, r"BLOCK_C=2 must divide .*\(1, 3\)"),
        ({"BLOCK_R": 1}, r"BLOCK_R=1.*\(3,\)"),
        ({"BLOCK_P": 0}, "BLOCK_P=0; at least 1"),
        ({"WINDOW": "local"}, "WINDOW='local'; one of"),
        ({"PIPELINE": "triple"}, "PIPELINE='triple'; one of"),
        ({"BLOCK_K": 128, "THREAD_K": 1, "BLOCK_P": 64}, "threads a block; a GPU takes 1024"),
        ({"TILE_K": 4}, "no knob 'TILE_K'"),
        ({"STAGE_X": 1}, "STAGE_X=1"),
    ]:
        with pytest.raises(ValueError, match=message):
            schedule(work, "cuda", **knobs)
    with pytest.raises(ValueError, match="bytes of shared memory"):
        program(
            schedule(
                conv(LAYERS["cv4"], form="im2col"),
                "cuda",
                BLOCK_P=8,
                BLOCK_Q=64,
                BLOCK_C=16,
                BLOCK_R=7,
                THREAD_Q=8,
                VTHREAD_Q=8,
            )
        )


# what is recorded ----------------------------------------------------------------------------------------------------
def test_settings_to_look_at_are_right_and_differ():
    shape = ConvShape(n=2, c=4, h=7, w=9, k=16, r=3, s=3)
    for form in ("direct", "im2win"):
        settings_ = candidates(shape, form)
        assert settings_[0] == {} and settings_[1] == {"PIPELINE": "async"}
        assert len(settings_) == len({str(sorted(s.items())) for s in settings_}) > 4
        table = bench([made(shape, form, knobs, "sm_90") for knobs in settings_[:4]], shape, device="sim")
        assert all(row["verified"] and row["kernel"] == f"tvm_{form}" for row in table)
        assert {row["tunables"]["PIPELINE"] for row in table} == {"double_buffer", "async"}


def test_a_setting_that_cannot_be_is_a_sentence():
    assert "must divide" in made(LAYERS["cv9"], "direct", {"THREAD_K": 3}, "sm_90")


@pytest.mark.gpu
@pytest.mark.parametrize("layer", ["cv9", "cv12", "cv1"])
def test_on_a_gpu_in_every_pipeline(layer):
    shape = LAYERS[layer].with_(n=4)
    programs = [
        made(shape, form, {"PIPELINE": pipeline}, _arch()) for form in ("direct", "im2win") for pipeline in PIPELINES
    ]
    table = bench(programs, shape, device="gpu", repeat=3)
    assert all(row["verified"] for row in table), [row["error"] for row in table]
