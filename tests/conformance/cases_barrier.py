"""Barriers of a block and fences: PTX ISA, "Parallel Synchronization: bar, barrier, membar"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
kernel = family.kernel
SYNC = "Parallel Synchronization: {}"

# barriers -------------------------------------------------------------------------------------------------------------
for key, f in (("count", lambda p: p.sum()), ("and", lambda p: p.all()), ("or", lambda p: p.any())):
    kernel(
        f"barrier.syncthreads_{key}",
        SYNC.format("bar.red"),
        f"""extern "C" __global__ void k(const int* x, int* r) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int n = __syncthreads_{key}(x[i] & 3);
  r[i] = {"n" if key == "count" else "n != 0"};
}}
""",
        grid=4,
        block=80,
        outputs={"r": ((4, 80), "int32")},
        expect=lambda x, f=f: np.repeat([f(row & 3 > 0) for row in x], 80).reshape(4, 80).astype("i4"),
        x=np.stack([some("int32", 80), some("int32", 80) | 1, some("int32", 80) & ~3, some("int32", 80, seed=7)]),
    )
kernel(
    "barrier.syncthreads",
    SYNC.format("bar.sync"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[200];
  int t = threadIdx.x, b = blockIdx.x * 200;
  s[t] = x[b + t];
  for (int d = 1; d < 200; d *= 2) {
    __syncthreads();
    int v = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += v;
  }
  r[b + t] = s[t];
}
""",
    grid=2,
    block=200,
    outputs={"r": (400, "int32")},
    expect=lambda x: x.reshape(2, 200).cumsum(1),
    x=some("int32", 400) >> 9,
)
kernel(
    "barrier.reduce",
    SYNC.format("bar.sync"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[8];
  int t = threadIdx.x, v = __reduce_add_sync(0xffffffffu, x[blockIdx.x * 256 + t]);
  if (t % 32 == 0) s[t / 32] = v;
  __syncthreads();
  if (t < 32) {
    v = t < 8 ? s[t] : 0;
    v = __reduce_add_sync(0xffffffffu, v);
    if (t == 0) r[blockIdx.x] = v;
  }
}
""",
    grid=3,
    block=256,
    outputs={"r": (3, "int32")},
    expect=lambda x: x.reshape(3, 256).sum(1),
    x=some("int32", 768) >> 9,
)
kernel(
    "barrier.after_exit",
    SYNC.format("bar.sync"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[96];
  int t = threadIdx.x;
  if (t >= 64) { r[t] = -1; return; }
  s[t] = x[t];
  __syncthreads();
  r[t] = s[63 - t];
}
""",
    block=96,
    outputs={"r": (96, "int32")},
    expect=lambda x: np.concatenate([x[:64][::-1], np.full(32, -1)]),
    x=some("int32", 96),
)
kernel(
    "barrier.named",
    SYNC.format("bar.sync a, b"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[128];
  int t = threadIdx.x, group = t / 64;   // two groups of two warps, each with a barrier of its own
  for (int i = 0; i < 1 + group; ++i) {
    s[t] = x[t] + i;
    if (group) asm volatile("bar.sync 2, 64;" ::: "memory"); else asm volatile("bar.sync 1, 64;" ::: "memory");
    r[t] = s[t ^ 63];
    if (group) asm volatile("bar.sync 2, 64;" ::: "memory"); else asm volatile("bar.sync 1, 64;" ::: "memory");
  }
}
""",
    block=128,
    outputs={"r": (128, "int32")},
    expect=lambda x: (x + (np.arange(128) // 64))[np.arange(128) ^ 63],
    x=some("int32", 128) >> 1,
    alone=True,
)
kernel(
    "barrier.arrive",
    SYNC.format("bar.arrive"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[32];
  int t = threadIdx.x;
  for (int i = 0; i < 3; ++i) {
    if (t < 32) {   // the producer
      asm volatile("bar.sync 2, 64;" ::: "memory");     // until the place is free
      s[t] = x[i * 32 + t];
      asm volatile("bar.arrive 1, 64;" ::: "memory");   // here it is
    } else {
      asm volatile("bar.arrive 2, 64;" ::: "memory");
      asm volatile("bar.sync 1, 64;" ::: "memory");
      r[i * 32 + t - 32] = s[63 - t];
    }
  }
}
""",
    block=64,
    outputs={"r": (96, "int32")},
    expect=lambda x: x.reshape(3, 32)[:, ::-1],
    x=some("int32", 96),
    alone=True,
)
kernel(
    "barrier.red.named",
    SYNC.format("bar.red"),
    """extern "C" __global__ void k(const int* x, int* r) {
  int t = threadIdx.x, n, o;
  asm volatile("{ .reg .pred p, q; setp.gt.s32 p, %2, 0; bar.red.popc.u32 %0, 3, !p; bar.red.or.pred q, 4, p; selp.s32 %1, 1, 0, q; }"
               : "=r"(n), "=r"(o) : "r"(x[t]) : "memory");
  r[t] = n * 2 + o;
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: np.full(64, (x <= 0).sum() * 2 + 1),
    x=some("int32", 64),
)
kernel(
    "barrier.unaligned",
    SYNC.format("barrier.sync"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  asm volatile("barrier.sync 0;" ::: "memory");
  r[t] = s[63 - t];
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: x[::-1],
    x=some("int32", 64),
)
kernel(
    "barrier.syncwarp",
    SYNC.format("bar.warp.sync"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  int v = s[t ^ 1];
  if (t % 32 < 16) { s[t] = v; __syncwarp(0x0000ffffu); v = s[t ^ 2]; }
  r[t] = v;
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: x[np.where(np.arange(64) % 32 < 16, np.arange(64) ^ 3, np.arange(64) ^ 1)],
    x=some("int32", 64),
)
kernel(
    "barrier.fences",
    SYNC.format("membar, fence"),
    """extern "C" __global__ void k(const int* x, int* r) {
  __shared__ int s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __threadfence_block(); __threadfence(); __threadfence_system();
  asm volatile("fence.acq_rel.cta; fence.sc.gpu;" ::: "memory");
  __syncthreads();
  r[threadIdx.x] = s[31 - threadIdx.x];
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x: x[::-1],
    x=some("int32", 32),
)
kernel(
    "barrier.last_block",
    SYNC.format("atom, fence"),
    """__device__ unsigned done;
extern "C" __global__ void k(const int* x, volatile int* part, int* r) {
  __shared__ bool last;
  int t = threadIdx.x, v = __reduce_add_sync(0xffffffffu, x[blockIdx.x * 32 + t]);
  if (t == 0) {
    part[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    int s = 0;
    for (int i = 0; i < gridDim.x; ++i) s += part[i];
    *r = s;
  }
}
""",
    grid=6,
    args=("x", "part", "r"),
    outputs={"r": (1, "int32")},
    scratch={"part": (6, "int32")},
    expect=lambda x: x.sum(keepdims=True),
    x=some("int32", 192) >> 9,
)
