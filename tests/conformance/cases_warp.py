"""Warps: shuffles, votes, matches, reductions. PTX ISA, "shfl.sync", "Parallel Synchronization and Communication"."""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
kernel = family.kernel
SHUFFLE, SYNC = "Data Movement and Conversion: shfl.sync", "Parallel Synchronization: {}"
LANE = np.arange(32)


# shuffles -------------------------------------------------------------------------------------------------------------
def shuffled(x, mode, b, width):
    """What ``__shfl*_sync(x, b, width)`` gives in each lane, and whether the source was in range."""
    low = LANE // width * width
    source = {"up": LANE - b, "down": LANE + b, "bfly": LANE ^ b, "idx": low + (b % width)}[mode]
    inside = {"up": source >= low, "idx": LANE >= 0}.get(mode, source < low + width)
    source = np.where(inside, source, LANE)
    return x[source], inside


_NAMES = {"up": "__shfl_up_sync", "down": "__shfl_down_sync", "bfly": "__shfl_xor_sync", "idx": "__shfl_sync"}
for mode, call in _NAMES.items():
    for width in (32, 16, 8, 2):
        kernel(
            f"shuffle.{mode}.{width}",
            SHUFFLE,
            f"""extern "C" __global__ void k(const int* x, int* r) {{
  int t = threadIdx.x;
  for (int b = 0; b < 8; ++b) r[b * 32 + t] = {call}(0xffffffffu, x[t], b * 3, {width});
}}
""",
            outputs={"r": ((8, 32), "int32")},
            expect=lambda x, m=mode, w=width: np.stack([shuffled(x, m, b * 3, w)[0] for b in range(8)]),
            x=some("int32", 32),
        )
    kernel(
        f"shuffle.{mode}.predicate",
        SHUFFLE,
        f"""extern "C" __global__ void k(const int* x, const int* b, int* r, int* p_) {{
  int t = threadIdx.x, v, p;
  asm volatile("{{ .reg .pred p; shfl.sync.{mode}.b32 %0|p, %2, %3, {0x1800 if mode == "up" else 0x181F}, 0xffffffff; selp.s32 %1, 1, 0, p; }}"
               : "=r"(v), "=r"(p) : "r"(x[t]), "r"(b[t]));
  r[t] = v; p_[t] = p;
}}
""",
        outputs={"r": (32, "int32"), "p_": (32, "int32")},
        expect=lambda x, b, m=mode: dict(zip(("r", "p_"), shuffled(x, m, b & 31, 8), strict=True)),
        x=some("int32", 32),
        b=some("int32", 32, seed=1) & 31,
    )
for c, dtype in (("long long", "int64"), ("double", "float64"), ("float", "float32")):
    kernel(
        f"shuffle.type.{c.replace(' ', '_')}",
        SHUFFLE,
        f"""extern "C" __global__ void k(const {c}* x, {c}* r) {{
  int t = threadIdx.x;
  r[t] = __shfl_xor_sync(0xffffffffu, x[t], 5) - __shfl_down_sync(0xffffffffu, x[t], 1);
}}
""",
        outputs={"r": (32, dtype)},
        expect=lambda x: x[LANE ^ 5] - x[np.minimum(LANE + 1, 31)],
        x=some(dtype, 32) if dtype[0] == "f" else some(dtype, 32) >> 2,
    )
kernel(
    "shuffle.lanes_differ",
    SHUFFLE,
    """extern "C" __global__ void k(const int* x, const int* b, int* r) {
  r[threadIdx.x] = __shfl_sync(0xffffffffu, x[threadIdx.x], b[threadIdx.x]);
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x, b: x[b & 31],
    x=some("int32", 32),
    b=some("int32", 32, seed=2),
)
kernel(
    "shuffle.half_masks",
    SHUFFLE,
    """extern "C" __global__ void k(const int* x, int* r) {
  int t = threadIdx.x;
  if (t & 1) r[t] = __shfl_xor_sync(0xaaaaaaaau, x[t], 2);
  else r[t] = __shfl_xor_sync(0x55555555u, x[t], 4) + 1;
}
""",
    outputs={"r": (32, "int32")},
    expect=lambda x: np.where(LANE & 1, x[LANE ^ 2], x[LANE ^ 4] + 1),
    x=some("int32", 32) >> 1,
)
kernel(
    "shuffle.reduce",
    SHUFFLE,
    """extern "C" __global__ void k(const float* x, float* r) {
  int t = threadIdx.x;
  float v = x[t];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
  if (t % 32 == 0) r[t / 32] = v;
}
""",
    block=128,
    outputs={"r": (4, "float32")},
    expect=lambda x: x.reshape(4, 32).sum(1),
    x=some("float32", 128),
)
kernel(
    "shuffle.scan",
    SHUFFLE,
    """extern "C" __global__ void k(const int* x, int* r) {
  int t = threadIdx.x, v = x[t];
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(0xffffffffu, v, d); if (t % 32 >= d) v += u; }
  r[t] = v;
}
""",
    block=64,
    outputs={"r": (64, "int32")},
    expect=lambda x: x.reshape(2, 32).cumsum(1),
    x=some("int32", 64) >> 6,
)

# votes and matches ----------------------------------------------------------------------------------------------------
_VOTES = {
    "any": ("__any_sync(m, v & 3)", lambda v, on: any(x & 3 for x in v[on])),
    "all": ("__all_sync(m, v & 3)", lambda v, on: all(x & 3 for x in v[on])),
    "uni": ("__uni_sync(m, v & 3)", lambda v, on: len({bool(x & 3) for x in v[on]}) == 1),
    "ballot": ("__ballot_sync(m, v & 3)", lambda v, on: sum(1 << int(i) for i in np.flatnonzero(on) if v[i] & 3)),
    "activemask": ("__activemask()", lambda v, on: sum(1 << int(i) for i in np.flatnonzero(on))),
}
for key, (call, f) in _VOTES.items():

    def voted(x, f=f):
        warps = x.reshape(4, 32)
        out = np.zeros((2, 128), "i8")
        for w, v in enumerate(warps):
            out[0, w * 32 : w * 32 + 32] = f(v, LANE >= 0)
            part = LANE % 3 != 1
            out[1, w * 32 : w * 32 + 32] = np.where(part, f(v, part), 0)
        return out.astype("u4")

    kernel(
        f"vote.{key}",
        SYNC.format("activemask" if key == "activemask" else "vote.sync"),
        f"""extern "C" __global__ void k(const int* x, unsigned* r) {{
  int t = threadIdx.x, v = x[t];
  unsigned m = 0xffffffffu;
  r[t] = {call};
  m = 0x6db6db6du;   // not every third lane
  r[128 + t] = 0;
  if (m >> (t % 32) & 1) {{
    unsigned q = {call};
    r[128 + t] = q;
  }}
}}
""".replace("0x6db6db6du", f"{sum(1 << i for i in range(32) if i % 3 != 1):#x}u"),
        block=128,
        outputs={"r": ((2, 128), "uint32")},
        expect=voted,
        x=np.concatenate([some("int32", 32), some("int32", 32) | 1, some("int32", 32) & ~3, some("int32", 32, seed=4)]),
    )
for c, dtype in (("unsigned", "uint32"), ("unsigned long long", "uint64")):
    x = some(dtype, 32) % np.dtype(dtype).type(5) * np.dtype(dtype).type(0x01000001)
    kernel(
        f"match.any.{dtype}",
        SYNC.format("match.sync"),
        f"""extern "C" __global__ void k(const {c}* x, unsigned* r) {{ r[threadIdx.x] = __match_any_sync(0xffffffffu, x[threadIdx.x]); }}
""",
        outputs={"r": (32, "uint32")},
        expect=lambda x: (x[:, None] == x[None]) @ (1 << LANE.astype("i8")),
        x=x,
    )
    kernel(
        f"match.all.{dtype}",
        SYNC.format("match.sync"),
        f"""extern "C" __global__ void k(const {c}* x, unsigned* r) {{
  int t = threadIdx.x, p, q;
  unsigned a = __match_all_sync(0xffffffffu, x[t], &p), b = __match_all_sync(0xffffffffu, x[t / 32], &q);
  r[t * 2] = a + p; r[t * 2 + 1] = b ^ q;
}}
""",
        outputs={"r": ((32, 2), "uint32")},
        expect=np.tile(np.array([0, 0xFFFFFFFE], "u4"), (32, 1)),
        x=x,
    )
for op, f in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
    for c, dtype in (("unsigned", "uint32"), ("int", "int32")):
        kernel(
            f"redux.{op}.{dtype}",
            SYNC.format("redux.sync"),
            f"""extern "C" __global__ void k(const {c}* x, {c}* r) {{
  int t = threadIdx.x;
  r[t] = __reduce_{op}_sync(0xffffffffu, x[t]);
  if (t % 32 < 11) r[64 + t] = __reduce_{op}_sync(0x7ffu, x[t]); else r[64 + t] = 0;
}}
""",
            block=64,
            outputs={"r": ((2, 64), dtype)},
            expect=lambda x, f=f: np.stack(
                [
                    np.repeat([f.reduce(w) for w in x.reshape(2, 32)], 32),
                    np.where(np.tile(LANE < 11, 2), np.repeat([f.reduce(w[:11]) for w in x.reshape(2, 32)], 32), 0),
                ]
            ),
            x=some(dtype, 64),
        )
for op, f in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    kernel(
        f"redux.{op}",
        SYNC.format("redux.sync"),
        f"""extern "C" __global__ void k(const unsigned* x, unsigned* r) {{ r[threadIdx.x] = __reduce_{op}_sync(0xffffffffu, x[threadIdx.x]); }}
""",
        outputs={"r": (32, "uint32")},
        expect=lambda x, f=f: np.repeat(f.reduce(x), 32),
        x=some("uint32", 32) | np.uint32(0x10) if op == "and" else some("uint32", 32) & np.uint32(0x00FFFFFF),
    )
kernel(
    "elect",
    SYNC.format("elect.sync"),
    """extern "C" __global__ void k(int* r) {
  int leader, chosen;
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.s32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen));
  r[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, chosen)) * 100 + (__shfl_sync(0xffffffffu, chosen, leader) ? 1 : 0);
}
""",
    outputs={"r": (32, "int32")},
    expect=np.full(32, 101),
)
kernel(
    "warp.incomplete",
    SYNC.format("vote.sync"),
    """extern "C" __global__ void k(const int* x, unsigned* r) {
  int t = threadIdx.x;
  unsigned m = __activemask();
  r[t] = __ballot_sync(m, x[t] > 0) ^ m << 1;
}
""",
    block=45,
    outputs={"r": (45, "uint32")},
    expect=lambda x: np.array(
        [
            (
                sum(1 << i for i in range(32 if t < 32 else 13) if x[t // 32 * 32 + i] > 0)
                ^ ((1 << (32 if t < 32 else 13)) - 1) << 1
            )
            & 0xFFFFFFFF
            for t in range(45)
        ]
    ),
    x=some("int32", 45),
)
kernel(
    "warp.reconverge",
    "Control Flow: bra; vote.sync",
    """extern "C" __global__ void k(const int* x, unsigned* r) {
  int t = threadIdx.x, v = x[t] & 7, n = 0;
  for (int i = 0; i < v; ++i) n += i;
  if (n & 1) n = n * 3; else n = n + 1;
  __syncwarp();
  r[t] = __ballot_sync(0xffffffffu, n > 9);
}
""",
    outputs={"r": (32, "uint32")},
    expect=lambda x: np.full(
        32,
        sum(
            1 << i for i, v in enumerate(x & 7) if (lambda n: n * 3 if n & 1 else n + 1)(int(v) * (int(v) - 1) // 2) > 9
        ),
    ),
    x=some("int32", 32),
)
kernel(
    "warp.opportunistic",
    SYNC.format("activemask"),
    """extern "C" __global__ void k(const int* x, int* count, int* r) {
  int t = threadIdx.x;
  if (t == 0) *count = 0;
  __syncthreads();
  if (x[t] & 1) {
    unsigned m = __activemask();
    int leader = __ffs(m) - 1, base = 0;
    if (t % 32 == leader) base = atomicAdd(count, __popc(m));
    base = __shfl_sync(m, base, leader);
    r[t] = base + __popc(m & ((1u << (t % 32)) - 1)) < 10000;
  } else r[t] = 0;
}
""",
    block=96,
    outputs={"count": (1, "int32"), "r": (96, "int32")},
    expect=lambda x: {"count": np.array([(x & 1).sum()]), "r": x & 1},
    x=some("int32", 96),
)
