"""mbarriers, bulk copies, TMA and wgmma: what the conformance cases cannot show, which is what goes wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from conformance import CASES
from conformance.case import difference
from texlab.program import Buffer, KernelFault, Launch, Program, TensorMap
from texlab.sim.tma import swizzled
from texlab.sim.wgmma import Descriptor

X = np.arange(256, dtype="int32")
COPY = """
struct alignas(64) Map { unsigned long long d[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" : : "r"(bar), "r"(parity) : "memory");  // waits
}
extern "C" __global__ void k(const int* x, int* r, const __grid_constant__ Map map) {
  __shared__ __align__(1024) int s[256];
  __shared__ __align__(8) unsigned long long bar;
  int t = threadIdx.x;
  INIT
  SYNC
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], EXPECT;" : : "r"(at(&bar)) : "memory");
    COPY
  }
  WAIT
  for (int i = t; i < 256; i += 64) r[i] = s[255 - i];  // reads
  LAST
}
"""  # noqa: E501
PARTS = dict(
    INIT='if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" : : "r"(at(&bar)) : "memory");',
    SYNC="__syncthreads();",
    EXPECT="1024",
    COPY='asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" '
    ': : "r"(at(s)), "l"(x), "r"(at(&bar)) : "memory");',
    WAIT="wait(at(&bar), 0);",
    LAST="",
)
TILE = (
    'asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], '
    '[%1, {%3, %4}], [%2];" : : "r"(at(s)), "l"(&map), "r"(at(&bar)), "r"(0), "r"(0) : "memory");'
)
STORE = (
    'if (t == 0) asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" '
    ': : "l"(&map), "r"(at(s)), "r"(0), "r"(ROW) : "memory");'
)
MAP = TensorMap("x", "int32", (32, 8), (128,), (32, 8))


def copy(tensor=MAP, schedule="lockstep", **parts):
    source = COPY
    for name, text in {**PARTS, **parts}.items():
        source = source.replace(name, text)
    buffers = (Buffer("x", (256,), "int32"), Buffer("r", (256,), "int32", "output"))
    launch = Launch("k", (2, 1, 1), (64, 1, 1), ("x", "r", tensor))
    return Program("k", source, buffers, (launch,), filename="k.cu").run(device="sim", schedule=schedule, x=X).output


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("how", [PARTS["COPY"], TILE], ids=["bulk", "tensor"])
def test_copy_lands_when_waited_for(how, schedule):
    np.testing.assert_array_equal(copy(COPY=how, schedule=schedule), X[::-1])


AGAIN = 'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;" '
AGAIN = "__syncthreads(); if (t == 0) { " + AGAIN + ': : "l"(r), "r"(at(s)) : "memory"); s[3] = -5; MORE }'
FENCE = 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");'


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize(
    "parts, kind, says",
    [
        (dict(WAIT=""), "race", "still being filled"),
        (dict(WAIT="if (t == 0) wait(at(&bar), 0);"), "race", ""),
        (dict(SYNC=""), "race barrier", "mbarrier"),
        (dict(INIT=""), "barrier", "no mbarrier at byte offset 1024"),
        (dict(EXPECT="1040"), "barrier", "still lacks 0 of 1 arrivals and 16 bytes"),
        (dict(WAIT="wait(at(&bar), 1); wait(at(&bar), 1);"), "barrier", ""),
        (dict(INIT=PARTS["INIT"].replace("], 1", "], 2")), "barrier", "still lacks 1 of 2 arrivals"),
        (dict(COPY=PARTS["COPY"].replace("at(s)", "at(s + 1)")), "misaligned", ""),
        (dict(COPY=PARTS["COPY"].replace("(x)", "(x + 4)")), "out-of-bounds", "1024 bytes"),
        (dict(COPY=TILE.replace("at(s)", "at(s + 4)")), "misaligned", "multiple of 128"),
        (dict(COPY=TILE.replace("&map", "x")), "out-of-bounds", "no tensor map"),
        (dict(COPY=TILE.replace('"r"(0)', '"r"(-2)', 1)), "misaligned", "innermost coordinate -2, -8 bytes"),
        (dict(LAST=STORE.replace("ROW", "-1")), "out-of-bounds", "(0, -1); none may be negative"),
        (dict(LAST=AGAIN.replace("MORE", FENCE)), "race", "still read it"),
    ],
)
def test_what_goes_wrong_is_reported(parts, kind, says, schedule):
    if parts.get("WAIT", "").count("wait") == 2:
        parts = {**parts, "WAIT": "wait(at(&bar), 0); wait(at(&bar), 1);"}
    with pytest.raises(KernelFault) as caught:
        copy(schedule=schedule, **parts)
    kinds = [*kind.split(), *(["uninitialised"] if kind == "race" else [])]
    assert caught.value.kind in kinds, str(caught.value)
    assert says in str(caught.value)
    assert caught.value.line


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(strides=(6,)), "stride 6"),
        (dict(strides=(10,)), "stride 10"),
        (dict(strides=(24,)), "multiples of 16 bytes"),
        (dict(box=(8, 257)), "box size 257"),
        (dict(box=(4, 1)), "rows of the box have 8 bytes"),
        (dict(box=(8,)), "1 box sizes"),
        (dict(dims=(8, 0)), "dimension 0"),
        (dict(dims=(8,) * 6, box=(8,) * 6, strides=(16,) * 5), "1 to 5 dims"),
        (dict(swizzle=48), "swizzle 48"),
        (dict(swizzle=32), "rows of 16 bytes"),
        (dict(dtype="complex64"), "complex64"),
        (dict(fill="nan", dtype="uint16"), "fill 'nan'"),
        (dict(element_strides=(2, 1)), "element stride 2"),
    ],
)
def test_tensor_map_that_cuda_refuses(change, says):
    """NHWC in float16 with 8 channels has rows of pixels 16 bytes apart; with 3 or 5 it cannot be loaded by TMA."""
    good = dict(dtype="float16", dims=(8, 64), strides=(16,), box=(8, 16))
    TensorMap("x", **good)
    with pytest.raises(ValueError, match="tensor map of 'x'") as caught:
        TensorMap("x", **{**good, **change})
    assert says in str(caught.value)


def test_tensor_map_larger_than_its_buffer():
    with pytest.raises(ValueError, match="reach byte 2048, the buffer has 1024"):
        copy(tensor=TensorMap("x", "int32", (32, 16), (128,), (32, 8)), COPY=TILE)


def test_descriptor_words():
    assert Descriptor(0x400, 16, 1024, 128).encode() == 0x4000004000010040
    assert Descriptor.decode(0xC000000800080000) == Descriptor(0, 128, 128, 32)
    word = Descriptor(0x3480, 16, 512, 64, 5)
    assert Descriptor.decode(word.encode()) == word
    for wrong in (
        Descriptor(8, 16, 16),
        Descriptor(0, 1 << 18, 16),
        Descriptor(0, 16, 16, 48),
        Descriptor(0, 16, 16, 32, 8),
    ):
        with pytest.raises(ValueError, match="descriptor"):
            wrong.encode()


def test_operand_changed_before_wait_group():
    case = next(c for c in CASES if c.name == "wgmma.n64")
    early = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); __syncthreads(); s[t * 32] = 7;'
    source = case.program.source.replace('asm volatile("wgmma.commit_group.sync.aligned; ', early + ' asm volatile("')
    with pytest.raises(KernelFault, match="changed while wgmma") as caught:
        dataclasses.replace(case.program, source=source).run(device="sim", **case.inputs)
    assert caught.value.kind == "race"


@pytest.mark.parametrize("width", [32, 64, 128])
def test_swizzle_is_its_own_inverse(width):
    at = np.arange(0, 4096, 16)
    np.testing.assert_array_equal(swizzled(swizzled(at, width), width), at)
    assert sorted(swizzled(at, width)) == list(at)


@pytest.mark.parametrize("name", ["wgmma.gemm", "tma.store.swizzle128", "mbarrier.parity", "bulk.two_phases"])
def test_warps_one_by_one_compute_the_same(name):
    case = next(c for c in CASES if c.name == name)
    got = case.program.run(device="sim", schedule="warps", **case.inputs).outputs
    assert difference(case, got, case.expected()) is None
