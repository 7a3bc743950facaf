"""Packed integers, carries and calls through registers, beyond what the conformance cases cover."""

from __future__ import annotations

import numpy as np
import pytest

from simulated import run
from test_sim_ops import N, asm, integers
from texlab.program import KernelFault


def words(seed):
    return integers(seed, "u4")


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_distances_of_bytes(kind):
    a, b, c = words(1), words(2), words(3)
    x, y = (v.view("u1" if kind == "u32" else "i1").reshape(N, 4).astype("i8") for v in (a, b))
    distance = np.abs(x - y)
    got = asm(f"vabsdiff4.u32.{kind}.{kind} %0, %1, %2, %3;", "u4", a, b, c)
    assert np.array_equal(got, distance.astype("u1").view("u4").reshape(N))
    total = asm(f"vabsdiff4.u32.{kind}.{kind}.add %0, %1, %2, %3;", "u4", a, b, c)
    assert np.array_equal(total, c + distance.sum(1).astype("u4"))


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
def test_pairs_of_16_bits(op, kind):
    a, b = words(4), words(5)
    t = "u2" if kind[0] == "u" else "i2"
    want = (np.minimum if op == "min" else np.maximum)(a.view(t), b.view(t)).view("u4")
    assert np.array_equal(asm(f"{op}.{kind} %0, %1, %2;", "u4", a, b), want)


def test_carry_out_of_a_64_bit_product():
    a, b, c = (integers(seed, "u8") for seed in (6, 7, 8))
    text = "{ .reg .u64 l; mad.lo.cc.u64 l, %1, %2, %3; madc.hi.u64 %0, %1, %2, %3; }"
    want = [(int(x) * int(y) + int(z) + (int(z) << 64) >> 64) & 2**64 - 1 for x, y, z in zip(a, b, c, strict=True)]
    assert np.array_equal(asm(text, "u8", a, b, c), np.array(want, "u8"))


_POINTERS = """
__device__ __noinline__ int twice(int a) { return 2 * a; }
__device__ __noinline__ int less(int a) { return a - 1; }
extern "C" __global__ void k(const int* v, int* o) {
  int t = threadIdx.x;
  int (*f)(int) = v[t] == 0 ? twice : v[t] == 1 ? less : (int (*)(int))nullptr;
  o[t] = f(t);
}"""


def test_call_through_a_register():
    v = np.arange(32, dtype="i4") % 2
    got = run(_POINTERS, args=("v", "o"), outputs={"o": ((32,), "int32")}, v=v).output
    t = np.arange(32)
    assert np.array_equal(got, np.where(v == 0, 2 * t, t - 1))


def test_call_of_no_function_is_an_error():
    v = np.full(32, 2, "i4")
    with pytest.raises(KernelFault, match="call"):
        run(_POINTERS, args=("v", "o"), outputs={"o": ((32,), "int32")}, v=v)
