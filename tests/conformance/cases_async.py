"""Copies that land later: cp.async, mbarrier, bulk copies. PTX ISA, "Asynchronous copy", "mbarrier"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
kernel = family.kernel
COPY, BULK, MBARRIER = (
    "Asynchronous copy: cp.async",
    "Asynchronous copy: cp.async.bulk",
    "Parallel Synchronization: mbarrier",
)

_ADDRESS = "__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }\n"

for op, n in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
    words = n // 4
    for label, wait in (
        ("wait_all", "cp.async.wait_all;"),
        ("wait_group", "cp.async.commit_group; cp.async.wait_group 0;"),
    ):
        kernel(
            f"async.{op}{n}.{label}",
            COPY,
            _ADDRESS
            + f"""extern "C" __global__ void k(const int* x, int* r) {{
  __shared__ __align__(16) int s[64 * {words}];
  int t = threadIdx.x;
  asm volatile("cp.async.{op}.shared.global [%0], [%1], {n};" : : "r"(at(s + t * {words})), "l"(x + (63 - t) * {words}) : "memory");
  asm volatile("{wait}" ::: "memory");
  __syncthreads();
  for (int i = 0; i < {words}; ++i) r[t * {words} + i] = s[(t ^ 33) * {words} + i];
}}
""",
            block=64,
            outputs={"r": ((64, words), "int32")},
            expect=lambda x: x[::-1][np.arange(64) ^ 33],
            x=some("int32", 64, words),
        )
    kernel(
        f"async.{op}{n}.zero_fill",
        COPY,
        _ADDRESS
        + f"""extern "C" __global__ void k(const unsigned char* x, const int* size, unsigned char* r) {{
  __shared__ __align__(16) unsigned char s[32 * {n}];
  int t = threadIdx.x;
  for (int i = 0; i < {n}; ++i) s[t * {n} + i] = 0xee;
  __syncwarp();
  asm volatile("cp.async.{op}.shared.global [%0], [%1], {n}, %2;" : : "r"(at(s + t * {n})), "l"(x + t * {n}), "r"(size[t] % {n + 1}) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  for (int i = 0; i < {n}; ++i) r[t * {n} + i] = s[t * {n} + i];
}}
""",
        outputs={"r": ((32, n), "uint8")},
        expect=lambda x, size, n=n: np.where(np.arange(n) < (size % (n + 1))[:, None], x, 0),
        x=some("uint8", 32, n),
        size=some("int32", 32) & 0xFFFF,
    )
kernel(
    "async.ignore_source",
    COPY,
    _ADDRESS
    + """extern "C" __global__ void k(const int* x, const int* n, int* r) {
  __shared__ __align__(16) int s[32 * 4];
  int t = threadIdx.x, size = t < *n ? 16 : 0;   // nothing is read past the end
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(at(s + t * 4)), "l"(x + t * 4), "r"(size) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (int i = 0; i < 4; ++i) r[t * 4 + i] = s[t * 4 + i];
}
""",
    outputs={"r": ((32, 4), "int32")},
    expect=lambda x, n: np.concatenate([x, np.zeros((12, 4), "i4")]),
    x=some("int32", 20, 4),
    n=np.array([20], "i4"),
)
for keep in (0, 1, 2):
    kernel(
        f"async.pipeline.keep{keep}",
        "Asynchronous copy: cp.async.commit_group, cp.async.wait_group",
        _ADDRESS
        + f"""extern "C" __global__ void k(const int* x, int* r) {{   // a ring of {keep + 1} tiles, {keep} of them on their way
  __shared__ __align__(16) int s[{keep + 1}][64];
  int t = threadIdx.x, sum = 0;
  for (int i = 0; i < {keep}; ++i)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group;" : : "r"(at(s[i] + t)), "l"(x + i * 64 + t) : "memory");
  for (int i = 0; i < 7; ++i) {{
    if (i + {keep} < 7)
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(at(s[(i + {keep}) % {keep + 1}] + t)), "l"(x + (i + {keep}) * 64 + t) : "memory");
    asm volatile("cp.async.commit_group; cp.async.wait_group {keep};" ::: "memory");
    __syncthreads();
    sum += s[i % {keep + 1}][63 - t] * (i + 1);
    __syncthreads();
  }}
  r[t] = sum;
}}
""",
        block=64,
        outputs={"r": (64, "int32")},
        expect=lambda x: (x[:, ::-1] * np.arange(1, 8)[:, None]).sum(0),
        x=some("int32", 7, 64) >> 8,
    )

# mbarrier -------------------------------------------------------------------------------------------------------------
_WAIT = """__device__ __forceinline__ void wait(unsigned bar, unsigned parity) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" : : "r"(bar), "r"(parity) : "memory");
}
"""
kernel(
    "mbarrier.state",
    MBARRIER + ".arrive, mbarrier.test_wait",
    _ADDRESS
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(8) unsigned long long bar;
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" : : "r"(at(&bar)) : "memory");
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    s[t] = x[t] + i;
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)) : "memory");
    asm volatile("{ .reg .pred p; L: mbarrier.test_wait.shared.b64 p, [%0], %1; @!p bra L; }" : : "r"(at(&bar)), "l"(state) : "memory");
    r[i * 64 + t] = s[63 - t];
    __syncthreads();
  }
}
""",
    block=64,
    outputs={"r": ((3, 64), "int32")},
    expect=lambda x: x[::-1] + np.arange(3)[:, None],
    x=some("int32", 64) >> 1,
    alone=True,
)
kernel(
    "mbarrier.parity",
    MBARRIER + ".try_wait.parity",
    _ADDRESS
    + _WAIT
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(8) unsigned long long full, empty;
  __shared__ int s[32];
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32; mbarrier.init.shared.b64 [%1], 32;" : : "r"(at(&full)), "r"(at(&empty)) : "memory");
  __syncthreads();
  for (int i = 0; i < 5; ++i) {
    if (t < 32) {
      wait(at(&empty), (i & 1) ^ 1);   // the phase before the first counts as complete
      s[t] = x[i * 32 + t];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(at(&full)) : "memory");
    } else {
      wait(at(&full), i & 1);
      r[i * 32 + t - 32] = s[63 - t];
      asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(at(&empty)) : "memory");
    }
  }
}
""",
    block=64,
    outputs={"r": ((5, 32), "int32")},
    expect=lambda x: x[:, ::-1],
    x=some("int32", 5, 32),
    alone=True,
)
kernel(
    "mbarrier.cp_async",
    "Asynchronous copy: cp.async.mbarrier.arrive",
    _ADDRESS
    + _WAIT
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(8) unsigned long long bar;
  __shared__ __align__(16) int s[64];
  int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" : : "r"(at(&bar)) : "memory");
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%2];"
               : : "r"(at(s + t)), "l"(x + t), "r"(at(&bar)) : "memory");
  wait(at(&bar), 0);
  r[t] = s[63 - t];
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: x[::-1],
    x=some("int32", 64),
    alone=True,
)
kernel(
    "mbarrier.inval",
    MBARRIER + ".inval",
    _ADDRESS
    + """extern "C" __global__ void k(int* r) {
  __shared__ __align__(8) unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; mbarrier.inval.shared.b64 [%0];" : : "r"(at(&bar)) : "memory");
    bar = 77;
  }
  __syncthreads();
  r[threadIdx.x] = (int)bar;
}
""",
    outputs={"r": (32, "int32")},
    expect=np.full(32, 77),
    alone=True,
)

# bulk copies ----------------------------------------------------------------------------------------------------------
_BULK_IN = """  if (t == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" : : "r"(at(&bar)) : "memory");
  }
  __syncthreads();
"""
kernel(
    "bulk.global_to_shared",
    BULK,
    _ADDRESS
    + _WAIT
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(8) unsigned long long bar;
  __shared__ __align__(128) int s[256];
  int t = threadIdx.x;
"""
    + _BULK_IN
    + """  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" : : "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 : : "r"(at(s)), "l"(x), "r"(at(&bar)) : "memory");
  }
  wait(at(&bar), 0);
  for (int i = t; i < 256; i += 64) r[i] = s[255 - i];
}
""",
    block=64,
    outputs={"r": (256, "int32")},
    expect=lambda x: x[::-1],
    x=some("int32", 256),
    alone=True,
)
kernel(
    "bulk.two_phases",
    BULK,
    _ADDRESS
    + _WAIT
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(8) unsigned long long bar;
  __shared__ __align__(128) int s[128];
  int t = threadIdx.x, sum = 0;
"""
    + _BULK_IN
    + """  for (int i = 0; i < 4; ++i) {
    if (t == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" : : "r"(at(&bar)) : "memory");
      for (int j = 0; j < 2; ++j)   // two copies, one phase
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     : : "r"(at(s + 64 * j)), "l"(x + i * 128 + 64 * j), "r"(at(&bar)) : "memory");
    }
    wait(at(&bar), i & 1);
    sum += s[127 - t] * (i + 1);
    __syncthreads();
  }
  r[t] = sum;
}
""",
    block=128,
    outputs={"r": (128, "int32")},
    expect=lambda x: (x[:, ::-1] * np.arange(1, 5)[:, None]).sum(0),
    x=some("int32", 4, 128) >> 8,
    alone=True,
)
kernel(
    "bulk.shared_to_global",
    BULK,
    _ADDRESS
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(128) int s[256];
  int t = threadIdx.x;
  for (int i = t; i < 256; i += 64) s[i] = x[i] * 2;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" : : "l"(r), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
""",
    block=64,
    outputs={"r": (256, "int32")},
    expect=lambda x: x * 2,
    x=some("int32", 256) >> 1,
    alone=True,
)
kernel(
    "bulk.reduce_add",
    "Asynchronous copy: cp.reduce.async.bulk",
    _ADDRESS
    + """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ __align__(128) int s[64];
  int t = threadIdx.x;
  s[t] = x[t]; r[t] = t;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 256;" : : "l"(r), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: x + np.arange(64),
    x=some("int32", 64) >> 1,
    alone=True,
)
