"""cp.async, ldmatrix and mma.sync."""

from __future__ import annotations

import numpy as np
import pytest

from simulated import run
from texlab.program import KernelFault

F4 = np.float32

PIPELINE = """
__device__ void copy16(float* to, const float* from, int bytes) {
  unsigned s = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(s), "l"(from), "r"(bytes) : "memory");
}
extern "C" __global__ void k(const float* x, float* o, int n) {   // 64 threads; a stage is 64 x float4
  __shared__ __align__(16) float s[2][256];
  int t = threadIdx.x; float sum = 0;
  for (int i = 0; i < 2; ++i) {
    if (i < n) copy16(&s[i][4 * t], x + 256 * i + 4 * t, BYTES);
    asm volatile("cp.async.commit_group;");
  }
  for (int i = 0; i < n; ++i) {
    WAIT
    ARRIVE
    for (int e = 0; e < 4; ++e) sum += s[i & 1][(4 * t + 64 + e) % 256];
    LEAVE
    if (i + 2 < n) copy16(&s[i & 1][4 * t], x + 256 * (i + 2) + 4 * t, BYTES);
    asm volatile("cp.async.commit_group;");
  }
  o[t] = sum;
}"""


def pipeline(wait='asm volatile("cp.async.wait_group 1;" ::: "memory");', arrive="__syncthreads();", leave="__syncthreads();",
             size="16", schedule="lockstep", tiles=3, **how):  # fmt: skip
    source = PIPELINE.replace("WAIT", wait).replace("ARRIVE", arrive).replace("LEAVE", leave).replace("BYTES", size)
    x = np.arange(256 * tiles, dtype=F4)
    r = run(source, block=64, args=("x", "o", tiles), x=x, outputs={"o": ((64,), "float32")}, schedule=schedule, **how)
    want = np.roll(x.reshape(tiles, 64, 4).sum(0), -16, axis=0)
    return r, want


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("tiles", [1, 2, 3, 6])
def test_two_stage_pipeline(schedule, tiles):
    r, want = pipeline(schedule=schedule, tiles=tiles)
    assert (r.output == want.sum(axis=1)).all()


def test_source_size_fills_with_zeros():
    r, want = pipeline(size="t < 32 ? 8 : 0")
    from_low = (np.arange(64) + 16) % 64 < 32  # thread t adds what thread t + 16 copied
    kept = np.where(from_low[:, None], want, 0)
    kept[:, 2:] = 0
    assert (r.output == kept.sum(axis=1)).all()


def test_size_zero_reads_nothing():
    source = PIPELINE.replace("WAIT", 'asm volatile("cp.async.wait_all;" ::: "memory");')
    source = (
        source.replace("ARRIVE", "__syncthreads();").replace("LEAVE", "__syncthreads();").replace("BYTES", "t ? 16 : 0")
    )
    r = run(
        source.replace("+ 4 * t, t", "+ 4 * t - 4 * !t, t"),
        block=64,
        args=("x", "o", 1),
        x=np.ones(256, F4),
        outputs={"o": ((64,), "float32")},
    )
    assert r.output.tolist() == [4] * 48 + [0] + [4] * 15


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
@pytest.mark.parametrize("left_out", ["wait", "arrive", "leave"])
def test_each_part_of_the_pipeline_is_needed(left_out, schedule):
    with pytest.raises(KernelFault) as caught:
        pipeline(**{left_out: ""}, schedule=schedule)
    kinds = (
        {"race", "uninitialised"} if schedule == "warps" else {"race"}
    )  # one by one: not even begun by the other warp
    assert caught.value.kind in kinds
    if left_out == "wait":
        assert "cp.async" in str(caught.value)


def test_waiting_for_too_few_groups():
    with pytest.raises(KernelFault, match=r"still being filled by cp\.async"):
        pipeline(wait='asm volatile("cp.async.wait_group 2;" ::: "memory");')


def test_copies_are_in_the_trace():
    r, _ = pipeline(trace=True)
    rows = r.trace.sectors()
    copies = rows[rows.opcode.str.startswith("cp.async")]
    assert copies.requests.sum() == 6 and (copies.sectors_per_request == 16).all()
    stores = r.trace.bank_conflicts()
    stores = stores[stores.opcode.str.startswith("cp.async")]
    assert stores.wavefronts_per_request.tolist() == [4] * len(stores)


FRAGMENTS = """extern "C" __global__ void k(const unsigned* x, unsigned* o, int pitch) {
  extern __shared__ unsigned s[];
  int t = threadIdx.x; for (int i = t; i < 1024; i += 32) s[i] = x[i]; __syncwarp();
  unsigned a = (unsigned)__cvta_generic_to_shared(s) + t % 16 * pitch + t / 16 * 16, r0, r1, r2, r3;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4TRANS.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(a));
  o[t] = r0; o[32 + t] = r1; o[64 + t] = r2; o[96 + t] = r3; }"""


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("pitch", "wavefronts"), [(32, 8), (48, 4), (64, 16), (80, 4)])
def test_ldmatrix(transposed, pitch, wavefronts):
    x = np.arange(2048, dtype="u2").view("u4")
    source = FRAGMENTS.replace("TRANS", ".trans" if transposed else "")
    r = run(source, args=("x", "o", pitch), x=x, outputs={"o": ((128,), "uint32")}, shared=4096, trace=True)
    flat = x.view("u2")
    matrix = np.stack([flat[pitch // 2 * i : pitch // 2 * i + 16] for i in range(16)])
    for j in range(4):
        m = matrix[j % 2 * 8 : j % 2 * 8 + 8, j // 2 * 8 : j // 2 * 8 + 8]
        want = np.ascontiguousarray(m.T if transposed else m).view("u4").reshape(-1)
        assert (r.output[32 * j : 32 * j + 32] == want).all()
    table = r.trace.bank_conflicts()
    assert table[table.opcode.str.startswith("ldmatrix")].wavefronts.item() == wavefronts


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mma(k, kind):
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((16, k)), rng.standard_normal((8, k)), rng.standard_normal((16, 8)).astype(F4)

    def to16(v):
        if kind == "f16":
            return v.astype("f2").view("u2"), v.astype("f2").astype("f8")
        u = v.astype(F4).view("u4") >> 16
        return u.astype("u2"), (u << 16).astype("u4").view("f4").astype("f8")

    (ha, a), (hb, b) = to16(a), to16(b)
    n = k // 8
    names = [f"%{i}" for i in range(4 + 3 * n)]
    registers = [", ".join(part) for part in (names[:4], names[4 : 4 + 2 * n], names[4 + 2 * n :])]
    inputs = ", ".join(f'"r"({r})' for r in [f"A[{j}]" for j in range(2 * n)] + [f"B[{j}]" for j in range(n)])
    source = f"""extern "C" __global__ void k(const unsigned* a, const unsigned* b, const float* c, float* o) {{
      int t = threadIdx.x, g = t / 4, q = t % 4; unsigned A[4], B[2]; float d[4];
      for (int j = 0; j < {2 * n}; ++j) A[j] = a[((g + 8 * (j % 2)) * {k} + 2 * q + 8 * (j / 2)) / 2];
      for (int j = 0; j < {n}; ++j) B[j] = b[(g * {k} + 2 * q + 8 * j) / 2];
      for (int j = 0; j < 4; ++j) d[j] = c[(g + 8 * (j / 2)) * 8 + 2 * q + j % 2];
      asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 "
        "{{{registers[0]}}}, {{{registers[1]}}}, {{{registers[2]}}}, {{{registers[0]}}};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : {inputs});
      for (int j = 0; j < 4; ++j) o[(g + 8 * (j / 2)) * 8 + 2 * q + j % 2] = d[j]; }}"""
    r = run(
        source,
        args=("a", "b", "c", "o"),
        a=ha.reshape(-1).view("u4"),
        b=hb.reshape(-1).view("u4"),
        c=c,
        outputs={"o": ((16, 8), "float32")},
    )
    np.testing.assert_allclose(r.output, a @ b.T + c, rtol=1e-6, atol=1e-6)
