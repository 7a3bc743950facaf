"""The bank explorer: pictures say what the trace says, mistakes are shown, a wrong mapping is never called good."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

import texlab as tl
from texlab import trace as trace_module

pytest.importorskip("anywidget", reason="needs Jupyter's widgets")

from texlab.explore import bank_scenarios as scenarios
from texlab.explore.bank_frames import bank_frames, fitting, shared_rows
from texlab.results import Result

ALL = 0xFFFFFFFF


def access(address, *, width=4, mask=ALL, kind="load", line=7):
    """A trace of one shared-memory access, with what the pictures read."""
    address = np.atleast_2d(np.asarray(address, dtype=np.uint64))
    rows = len(address)
    instruction = SimpleNamespace(
        line=line, source="v = tile[t];", opcode=f"ld.shared.b{8 * width}", space="shared", kind=kind, width=width
    )
    return SimpleNamespace(
        instructions=[instruction],
        block=np.zeros(rows, int),
        warp=np.zeros(rows, int),
        instruction=np.zeros(rows, int),
        mask=np.full(rows, mask, np.uint32),
        address=address,
    )


def frames_of(trace, **how):
    return bank_frames(trace, shared_rows(trace, 0, 0), **how)


def split(pictures):
    """Panel name -> (colours, lanes) of the first frame, as (rows, cols) arrays."""
    out, at = {}, 0
    for panel in pictures.load["panels"]:
        cells = panel["rows"] * panel["cols"]
        cut = slice(at, at + cells)
        shape = (panel["rows"], panel["cols"])
        out[panel["name"]] = tuple(pictures.load[part][0, cut].reshape(shape) for part in ("frames", "tags"))
        at += cells
    deep = pictures.wavefronts.max()
    banks = out.pop("banks")
    out |= {"time": tuple(a[:deep] for a in banks), "memory": tuple(a[deep:] for a in banks)}
    assert at == pictures.load["frames"].shape[1] == pictures.load["tags"].shape[1] == len(pictures.load["links"])
    return out


LANES = np.arange(32)


def test_row_read_is_one_full_wavefront():
    pictures = frames_of(access(LANES * 4))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [1]
    assert panels["time"][1].tolist() == [LANES.tolist()]
    assert panels["memory"][1].tolist() == [LANES.tolist()]


@pytest.mark.parametrize(("pitch", "ways"), [(32, 32), (33, 1), (34, 2), (36, 4), (40, 8), (48, 16), (17, 1), (24, 8)])
def test_column_read_queues_in_one_bank(pitch, ways):
    pictures = frames_of(access(LANES * pitch * 4))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [ways]
    colours, lanes = panels["time"]
    assert colours.shape == (ways, 32)
    assert (lanes >= 0).sum() == 32, "each of the 32 words is delivered exactly once"
    for lane in range(32):  # the bank of a lane in the time panel is the bank of its word
        _, (bank,) = np.where(lanes == lane)
        assert bank == lane * pitch % 32
    assert pictures.load["panels"][2]["notes"][0].startswith(f"{ways} wavefront")


def test_broadcast_is_one_cell_with_the_lowest_lane():
    panels = split(frames_of(access(np.full(32, 64))))
    assert panels["time"][1].max() == 0
    assert (panels["memory"][0] > 0).sum() == 1
    assert (panels["lanes"][0] == 1).all()


def test_wide_load_shows_four_words_a_lane():
    pictures = frames_of(access(LANES * 16, width=16))
    assert pictures.wavefronts.tolist() == [4]
    panels = split(pictures)
    assert panels["lanes"][0][0].tolist() == [1 + lane // 8 for lane in range(32)]
    assert [(panels["memory"][1] == lane).sum() for lane in range(32)] == [4] * 32


def test_idle_lanes_are_blank():
    pictures = frames_of(access(LANES * 128, mask=0b101))
    panels = split(pictures)
    assert pictures.wavefronts.tolist() == [2]
    assert np.flatnonzero(panels["lanes"][0][0]).tolist() == [0, 2]
    assert "2 lanes" in pictures.load["panels"][1]["notes"][0]


def test_every_picture_agrees_with_the_rules():
    rng = np.random.default_rng(0)
    for width in (1, 2, 4, 8, 16):
        address = rng.integers(0, 256, (200, 32)) * width
        mask = rng.integers(0, 2**32, 200, dtype=np.uint32)
        served = trace_module.wavefront_of(address, mask, width)
        assert (served.max(axis=1) == trace_module.wavefronts(address, mask, width)).all()
        active = (mask[:, None] >> np.arange(32, dtype=np.uint32)) & 1
        assert ((served > 0) == (active == 1)).all()
        pairs = address[:, LANES & ~1]  # every lane shares its partner's address: the hardware's half-warp rule
        full = np.full(200, ALL, np.uint32)
        served = trace_module.wavefront_of(pairs, full, width)
        assert (served.max(axis=1) == trace_module.wavefronts(pairs, full, width)).all()


def test_long_selection_is_cut_and_says_so():
    pictures = frames_of(access(np.tile(LANES * 4, (60, 1))), limit=48)
    assert len(pictures.load["captions"]) == 48
    assert pictures.left_out == 12


def test_a_picture_fits_a_screen():
    near, far = np.tile(LANES * 4, (60, 1)), LANES * 4 + 4096 * np.arange(60)[:, None]
    for address, count in ((near, 12), (far, 12), (LANES * 512 + 4 * far, 1)):
        trace = access(address)
        assert fitting(trace, shared_rows(trace, 0, 0)) == count


def test_nothing_to_show_is_an_error():
    trace = access(LANES * 4)
    with pytest.raises(ValueError, match="no shared-memory access"):
        bank_frames(trace, shared_rows(trace, 0, 5), name="warp 5")


# the real kernels -------------------------------------------------------------------------------------------------
WAVEFRONTS = {"naive": (20, 8), "padded": (20, 1), "split": (12, 1), "zig-zag": (8, 1)}


@pytest.mark.parametrize("label", WAVEFRONTS)
def test_scenarios_cost_what_the_lanes_say(label):
    scenario = scenarios.SCENARIOS[label]
    s = scenarios.study(scenario.kernel, **scenario.tunables)
    assert s.wrong == ""
    assert (s.per_step(), s.per_step("store")) == WAVEFRONTS[label]
    places = scenarios.lane_places(s.run.trace, 0)
    assert sorted(places.ravel()) == list(range(32))
    assert places.shape == ((2, 16) if scenario.kernel == "im2win_tile" else (4, 8))


def test_zigzag_walks_in_zigzag():
    places = scenarios.lane_places(scenarios.study("im2win_zigzag").run.trace, 0)
    assert places[:2, :2].tolist() == [[0, 1], [2, 3]]
    assert (places[:, 1::2] - places[:, ::2] == 1).all(), "lanes t and t+1 are neighbours along the pixels"


def test_compare_is_a_table_of_all_scenarios():
    table = scenarios.compare(own=("lane / 8", "lane % 8"))
    assert list(table.index) == list(scenarios.SCENARIOS)
    assert table["wavefronts per k-step"].tolist() == [20, 20, 12, 8, 12]
    assert set(table["result"]) == {"right"}


def test_time_stands_beside_what_shared_memory_does():
    rows = [
        {"layer": "cv9", "kernel": k, "tunables": t, "ms": 2.0, "kernel_ms": 1.0, "verified": True}
        for k, t in scenarios.contestants()
    ]
    table = scenarios.timed(Result(rows, {"gpu": "NVIDIA H200"}, "2026-11-30"))
    # 4 warps x (20 or 12 or 8 load wavefronts + 12 stores of 8 or 1 wavefronts in 8 k-steps)
    assert table["shared memory (cycles)"].tolist() == [128, 86, 54, 38]
    assert table["longer"].tolist() == ["shared memory"] * 2 + ["multiply-adds"] * 2
    assert scenarios.timed("nothing recorded") == "nothing recorded"


# bits of the lane number that make its row; the column takes the others
@pytest.mark.parametrize(("bits", "cost"), [((0, 3), 8), ((1, 3), 8), ((0, 2), 8), ((0, 1), 12), ((3, 4), 12)])
def test_every_bijection_is_right_and_pairs_make_it_cheap(bits, cost):
    others = [b for b in range(5) if b not in bits]
    k, q = (" | ".join(f"(lane >> {b} & 1) << {i}" for i, b in enumerate(chosen)) for chosen in (bits, others))
    verdict = scenarios.try_mapping(k, q)
    assert verdict.right, verdict
    assert verdict.wavefronts == cost


@pytest.mark.parametrize(
    ("k", "q", "says"),
    [
        ("lane >> 1 & 1", "lane & 1", "Lanes 0 and 4 both sit at row 0, column 0"),
        ("lane & 3", "lane & 7", "The convolution is wrong"),
        ("lane >", "lane % 8", "LANE_K"),
        ("lane / 8", "lnae % 8", "lnae"),
        ("lane / 4", "lane % 8", "lane 16 gets 4, but it must lie between 0 and 3"),
        ("", "lane % 8", "write one C expression"),
        ("0); } /*", "lane % 8", "LANE_K"),
    ],
)
def test_a_wrong_mapping_is_called_wrong(k, q, says):
    verdict = scenarios.try_mapping(k, q)
    assert not verdict.right
    assert says in str(verdict)
    assert "Wrong" in verdict._repr_html_()


@pytest.fixture
def explorer():
    from texlab.explore import banks

    made = banks()
    yield made
    made.close()


def test_explorer_changes_with_its_controls(explorer):
    assert explorer.player.steps == 12
    assert explorer.player.captions[0].startswith("line ")
    zigzag = explorer.player.frame_bytes
    explorer.controls["scenario"].value = "naive"
    assert explorer.player.frame_bytes != zigzag
    assert explorer.result.per_step() == 20
    explorer.lines.value = "store"
    assert "8 wavefronts for this store" in explorer.player.panels[-1]["notes"][0]
    explorer.controls["scenario"].value = "padded"
    assert explorer.lines.value == "store", "the choice stays"
    assert "1 wavefront for this store" in explorer.player.panels[-1]["notes"][0]
    explorer.controls["BLOCK_K"].value = 128
    explorer.warp.value = 7
    assert "Right" in explorer.verdict.value
    assert not explorer.player.stale


def test_explorer_shows_mistakes_and_recovers(explorer):
    controls = explorer.controls
    controls["LANE_K"].value, controls["LANE_Q"].value = "lane / 8", "lane % 8"
    controls["scenario"].value = "your own"
    assert "Right" in explorer.verdict.value
    controls["LANE_Q"].value = "lnae % 8"
    assert "lnae % 8" in explorer.error.value
    assert "LANE_Q" in explorer.error.value
    assert explorer.player.stale
    assert "Right" not in explorer.verdict.value
    assert "does not run" in explorer.side.value
    controls["LANE_Q"].value = "lane % 4"
    assert not explorer.player.stale
    assert "Wrong result" in explorer.verdict.value
    assert "✗ wrong" in explorer.side.value
    assert "✓ right" in explorer.side.value, "the other scenarios"
    controls["LANE_Q"].value = "lane % 8"
    assert "Right" in explorer.verdict.value
    assert explorer.error.value == ""


@pytest.mark.parametrize("kernel", ["im2win_tile", "im2col_gemm"])
def test_explorer_takes_other_kernels_and_shapes(kernel):
    from texlab.explore import banks

    made = banks(kernel, shape=tl.ConvShape(n=2, c=3, h=9, w=8, k=5, r=3, s=2, padding=1))
    assert made.error.value == ""
    assert "Right" in made.verdict.value
    made.close()


@pytest.mark.parametrize("kernel", ["direct", "im2win", "nonsense"])
def test_explorer_without_shared_memory_says_so(kernel):
    from texlab.explore import banks

    if kernel != "direct":
        with pytest.raises(ValueError, match="choose one of"):
            banks(kernel)
        return
    made = banks(kernel)
    assert "no shared-memory access" in made.error.value
    made.close()


# a learner's own program ------------------------------------------------------------------------------------------
COLUMN = """
extern "C" __global__ void column(const float* x, float* y) {
    __shared__ float tile[32 * PITCH];
    for (int row = 0; row < 32; ++row) tile[row * PITCH + threadIdx.x] = x[row * 32 + threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x * PITCH];
}
"""


def column(pitch):
    buffers = (tl.Buffer("x", (32, 32)), tl.Buffer("y", (32,), role="output"))
    launches = (tl.Launch("column", (1, 1, 1), (32, 1, 1), ("x", "y")),)
    return tl.Program("column", COLUMN, buffers, launches, {"PITCH": pitch}, filename="column.cu")


@pytest.mark.parametrize(("pitch", "ways"), [(32, 32), (33, 1), (36, 4), (40, 8)])
def test_explorer_takes_a_program(pitch, ways):
    from texlab.explore import banks

    made = banks(program=column(pitch), accesses=40)
    assert made.error.value == ""
    assert "not compared" in made.verdict.value
    made.lines.value = "load"
    assert f"{ways} wavefront" in made.player.panels[-1]["notes"][0]
    assert made.player.captions == ["line 6:  y[threadIdx.x] = tile[threadIdx.x * PITCH];"]
    made.close()


FLOAT4 = """
extern "C" __global__ void wide(float4* y) {
    __shared__ float4 tile[STRIDE * 32];
    for (int i = threadIdx.x; i < STRIDE * 32; i += 32) tile[i] = make_float4(i, i, i, i);
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x * STRIDE];
}
"""


@pytest.mark.parametrize(("stride", "cost"), [(1, 4), (2, 8), (5, 4), (8, 32), (9, 4)])
def test_wide_loads_cost_what_the_rules_say(stride, cost):
    buffers, launches = (tl.Buffer("y", (32, 4), role="output"),), (tl.Launch("wide", (1, 1, 1), (32, 1, 1), ("y",)),)
    run = tl.Program("wide", FLOAT4, buffers, launches, {"STRIDE": stride}).run(device="sim", trace=True)
    lines = run.trace.bank_conflicts()
    assert lines[lines["kind"] == "load"]["wavefronts"].tolist() == [cost]


# beside the explorers ---------------------------------------------------------------------------------------------
def test_dragging_does_not_queue_work():
    from texlab.explore import banks

    async def drag():
        made = banks()
        runs = []
        compute = made.compute
        made.compute = lambda **values: runs.append(values) or compute(**values)
        for n in range(30):
            made.controls["scenario"].value = ("naive", "padded", "split")[n % 3]
            await asyncio.sleep(0.005)
        made.controls["scenario"].value = "zig-zag"
        await asyncio.sleep(0.5)
        made.wait()
        last = made.result.per_step()
        made.close()
        return runs, last

    runs, last = asyncio.run(drag())
    assert last == 8
    assert len(runs) <= 8


def test_predict_checks_and_explains():
    from texlab.explore import predict

    asked = []
    box = predict("How many?", lambda: asked.append(1) or 32, hint="Count.", why=lambda n: f"{n} columns")
    assert not asked, "the answer is computed when it is asked for"
    box.check.click()
    assert "Your turn" in box.reply.value
    box.entry.value = "31"
    assert "Count." in box.reply.value
    assert "32" not in box.reply.value
    box.reveal.click()
    assert "The answer is 32." in box.reply.value
    box.entry.value = " 32 "
    assert "Right: 32." in box.reply.value
    assert "32 columns" in box.reply.value


def test_predict_shows_its_own_failure():
    from texlab.explore import predict

    box = predict("?", lambda: 1 / 0)
    box.entry.value = "1"
    assert "ZeroDivisionError" in box.reply.value


def test_listing_puts_the_traffic_beside_the_line():
    from texlab.explore import listing

    shape = tl.ConvShape(n=1, c=2, h=6, w=10, k=4, r=3, s=3)
    program = tl.kernels["im2win_direct"].program(shape)
    arrays, _, _ = scenarios.example(shape)
    shown = listing(program.run(device="sim", trace="counts", **arrays), "03_im2win_direct.cu")
    assert "acc += window" in str(shown)
    assert "for (int ch = 0" in shown._repr_html_(), "the lines around it"
    with pytest.raises(ValueError, match="run it with trace"):
        listing(program.run(device="sim", **arrays), "03_im2win_direct.cu")


def test_measured_says_where_figures_come_from(monkeypatch):
    from texlab import gpu, results
    from texlab.explore import measured

    monkeypatch.setattr(gpu, "why_no_gpu", lambda: "there is no GPU here")
    note = measured("no_such_topic", live=lambda: pytest.fail("not without a GPU"))
    assert "there is no GPU here" in str(note)
    assert "no recorded results" in str(note)
    rows = [{"layer": "cv9", "kernel": "direct", "ms": 1.0, "ms_p10": 1.0, "ms_p90": 1.0, "verified": True}]
    kept = results.Result(rows, {"gpu": "NVIDIA H200"}, "2026-11-30", "abc", recorded=True)
    monkeypatch.setattr(results, "load_results", lambda topic: kept)
    assert "recorded on NVIDIA H200" in str(measured("ladder", live=None, layer="cv9"))
    monkeypatch.setattr(gpu, "why_no_gpu", lambda: None)
    assert measured("ladder", live=lambda: "live figures") == "live figures"
