"""Matrix products of a warpgroup: wgmma.mma_async. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

The host lays the operands out in shared memory, by the ISA's figures of canonical layouts: element by element, with the
swizzle as exclusive or of address bits. Small whole numbers, of which every sum is exact, and random ones to a bound.
"""

# ruff: noqa: E501 (inline PTX reads better in one line)
from __future__ import annotations

import numpy as np

from texlab.program import TensorMap

from .case import BITS, Collection, Within
from .cases_matrix import decode, encode
from .values import raw, seed_of

family = Collection()
FEATURE = "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async"
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8}
_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


def layout(rows: int, k: int, size: int, width: int, slow_k: bool) -> tuple[np.ndarray, int, int]:
    """(byte of each element (rows, k), leading, stride byte offsets) of a matrix that begins where the pattern does."""
    r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
    if not slow_k:
        c = c * size
        if not width:  # core matrices of 8 rows of 16 bytes, those along k next to each other
            leading, stride = 128, 128 * (k * size // 16)
            return c % 16 + r % 8 * 16 + c // 16 * leading + r // 8 * stride, leading, stride
        at = r * width + c
        leading, stride = 16, 8 * width
    elif not width:  # core matrices of 8 k's of 8 rows each
        leading, stride = 128 * (rows // 8), 128
        return r % 8 * 2 + r // 8 * stride + c % 8 * 16 + c // 8 * leading, leading, stride
    else:
        per = width // 2  # rows side by side
        leading, stride = 8 * width * (k // 8), 8 * width
        at = r % per * 2 + c % 8 * width + c // 8 * stride + r // per * leading
    return at ^ (at >> 3 & (width - 16)), leading, stride


def fragment_a(k: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of each thread's A elements, (128, 4 registers, elements)."""
    per = 4 // size
    t = np.arange(128)[:, None, None]
    i, e = np.arange(4)[:, None], np.arange(per)
    return t // 32 * 16 + t % 32 // 4 + 8 * (i % 2) + 0 * e, t % 4 * per + e + 4 * per * (i // 2)


def fragment_d(n: int) -> tuple[np.ndarray, np.ndarray]:
    t, i = np.arange(128)[:, None], np.arange(n // 2)
    return t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2), i // 4 * 8 + t % 4 * 2 + i % 2


def wgmma(
    name: str, n: int, kind: str = "f16", d: str = "f32", *, a: int | None = 128, b: int = 128, turned: str = "",
    whole: bool = True, signs: tuple[int, int] = (1, 1), fresh: bool = False, shift: int = 0, base: int = 0,
) -> None:  # fmt: skip
    """``a``, ``b``: swizzles in shared memory (``a`` None: registers); ``turned``: operands ("a", "b") whose rows run along
    memory; ``fresh``: D is not added; ``shift``: rows of 128 bytes that B begins late, with base offset ``base``."""
    size = _BITS[kind] // 8
    k = 32 // size
    seed = seed_of("wgmma", name)

    def numbers(which: int, shape: tuple[int, int]) -> np.ndarray:
        words = raw(seed + which, shape[0] * shape[1]).reshape(shape)
        if kind in ("s8", "u8"):
            return (words % np.uint64(256)).astype("i8") - (0 if kind == "u8" else 128)
        return (
            (words % np.uint64(9)).astype("f8") - 4 if whole else (words >> np.uint64(11)).astype("f8") * 2.0**-52 - 1
        )

    A, B = encode(numbers(0, (64, k)), kind), encode(numbers(1, (n, k)), kind)
    out = {"f32": "float32", "f16": "float16", "s32": "int32"}[d]
    start = numbers(2, (64, n)).astype(out)
    memory = np.zeros(49152, "u1")
    words = []
    for matrix, width, letter, begin in ((A, a, "a", 0), (B, b, "b", 16384)):
        if width is None:
            words.append(0)
            continue
        at, leading, stride = layout(*matrix.shape, size, width, letter in turned)
        late = 128 * shift if letter == "b" else 0
        if late and not base:  # the swizzle goes by addresses, wherever the matrix begins
            r, c = np.arange(n)[:, None], np.arange(k)[None, :] * size
            at = late + r * width + c
            at = (at ^ (at >> 3 & (width - 16))) - late
        for e in range(size):
            memory[begin + late + at + e] = matrix.view("u1").reshape(*matrix.shape, size)[:, :, e]
        fields = (begin + late) >> 4 | leading >> 4 << 16 | stride >> 4 << 32
        words.append(fields | (base if letter == "b" else 0) << 49 | _CODE[width] << 62)

    def expected(**_):
        product = decode(A, kind) @ decode(B, kind).T * signs[0] * signs[1]
        total = product + (0 if fresh else start.astype("f8"))
        total = total.astype("i8").astype("i4") if d == "s32" else total.astype(out)
        return total[fragment_d(n)]

    count = n // 4 if d == "f16" else n // 2
    c_type, constraint = {"f32": ("float", "f"), "f16": ("unsigned", "r"), "s32": ("int", "r")}[d]
    left = [f"%{count + i}" for i in range(4)] if a is None else [f"%{count}"]
    after = count + len(left)
    scales = "" if d == "s32" else f", {signs[0]}, {signs[1]}"
    if kind in ("f16", "bf16"):
        scales += ("" if a is None else f", {int('a' in turned)}") + f", {int('b' in turned)}"
    first = "{" + ", ".join(left) + "}" if a is None else left[0]
    given = ", ".join(f'"r"(fa[t * 4 + {i}])' for i in range(4)) if a is None else '"l"(da + (at(s) >> 4))'
    registers = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    extra = {"fa": np.ascontiguousarray(A[fragment_a(k, size)]).view("u4").reshape(128, 4)} if a is None else {}
    parameter = ", const unsigned* fa" if extra else ""
    family.kernel(
        f"wgmma.{name}",
        FEATURE,
        f"""__device__ __forceinline__ unsigned at(const void* p) {{ return (unsigned)__cvta_generic_to_shared(p); }}
extern "C" __global__ void __launch_bounds__(128) k(const int* x, const {c_type}* c{parameter}, {c_type}* r, unsigned long long da, unsigned long long db, int add) {{
  extern __shared__ __align__(1024) int s[];
  int t = threadIdx.x;
  for (int i = t; i < 12288; i += 128) s[i] = x[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  {c_type} d[{count}];
  for (int i = 0; i < {count}; ++i) d[i] = c[t * {count} + i];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{kind}.{kind} {registers}, {first}, %{after}, p{scales}; }}"
               : {", ".join(f'"+{constraint}"(d[{i}])' for i in range(count))}
               : {given}, "l"(db + (at(s) >> 4)), "r"(add));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {count}; ++i) r[t * {count} + i] = d[i];
}}
""",
        block=128,
        shared=49152,
        args=("x", "c", *extra, "r", np.uint64(words[0]), np.uint64(words[1]), np.int32(not fresh)),
        outputs={"r": ((128, n // 2), out)},
        expect=expected,
        compare=BITS if whole else Within(absolute=(k + 1) * {"f32": 2.0**-21, "f16": 2.0**-10, "s32": 0}[d]),
        arch="sm_90a",
        alone=True,
        x=memory.view("i4"),
        c=np.ascontiguousarray(start[fragment_d(n)]),
        **extra,
    )


for _n in (8, 24, 64, 128, 256):
    wgmma(f"n{_n}", _n)
for _width in (0, 32, 64, 128):
    wgmma(f"swizzle{_width}", 32, a=_width, b=_width)
    wgmma(f"swizzle{_width}.registers", 48, a=None, b=_width)
    wgmma(f"swizzle{_width}.turned_b", 128, a=_width, b=_width, turned="b")
    wgmma(f"swizzle{_width}.turned_a", 16, a=_width, b=_width, turned="a")
    wgmma(f"swizzle{_width}.turned_both", 64, a=_width, b=_width, turned="ab")
for _kind in ("f16", "bf16", "tf32"):
    wgmma(f"{_kind}.rounded", 64, _kind, whole=False)
    wgmma(f"{_kind}.exact", 40, _kind, b=32)
    wgmma(f"{_kind}.registers", 16, _kind, a=None)
    wgmma(f"{_kind}.negated", 16, _kind, signs=(-1, 1))
wgmma("f16.into_f16", 32, "f16", "f16")
wgmma("f16.into_f16.rounded", 32, "f16", "f16", whole=False)
wgmma("s8", 32, "s8", "s32")
wgmma("u8", 64, "u8", "s32", b=0)
wgmma("s8.registers", 16, "s8", "s32", a=None)
wgmma("not_added", 64, fresh=True)
for _shift in (1, 3, 4):
    wgmma(f"late_by_{_shift}", 32, shift=_shift)
    wgmma(f"late_by_{_shift}.base_offset", 32, shift=_shift, base=_shift)


# all together: TMA into a ring of two tiles, full and empty mbarriers, a producing and a multiplying warpgroup ----------
def gemm(n: int, tiles: int) -> None:
    x, w = (
        encode((raw(seed_of("gemm", i), r * 64 * tiles).reshape(r, -1) % np.uint64(5)).astype("f8") - 2, "f16")
        for i, r in enumerate((64, n))
    )
    maps = [
        TensorMap(name, "float16", (64 * tiles, rows), (128 * tiles,), (64, rows), swizzle=128)
        for name, rows in (("x", 64), ("w", n))
    ]
    count, nbytes = n // 2, (64 + n) * 128
    registers = "{" + ", ".join(f"%{i}" for i in range(count)) + "}"
    family.kernel(
        "wgmma.gemm",
        FEATURE + ", with cp.async.bulk.tensor, mbarrier, setmaxnreg",
        f"""struct alignas(64) Map {{ unsigned long long d[16]; }};
__device__ __forceinline__ unsigned at(const void* p) {{ return (unsigned)__cvta_generic_to_shared(p); }}
__device__ __forceinline__ void wait(unsigned bar, unsigned parity) {{
  asm volatile("{{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }}" : : "r"(bar), "r"(parity) : "memory");
}}
__device__ __forceinline__ void tile(unsigned to, const Map* map, unsigned bar, int k) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {{%3, %4}}], [%2];"
               : : "r"(to), "l"(map), "r"(bar), "r"(k), "r"(0) : "memory");
}}
__device__ __forceinline__ unsigned long long describe(unsigned address) {{
  return (unsigned long long)(address >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}}
extern "C" __global__ void __launch_bounds__(256) k(const __grid_constant__ Map mx, const __grid_constant__ Map mw, float* r) {{
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ __align__(8) unsigned long long full[2], empty[2];
  int t = threadIdx.x;
  unsigned base = (at(pool) + 1023) / 1024 * 1024;
  if (t == 0) {{
    for (int i = 0; i < 2; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 1;" : : "r"(at(full + i)), "r"(at(empty + i)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }}
  __syncthreads();
  if (t < 128) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (t == 0) for (int i = 0; i < {tiles}; ++i) {{
      int b = i & 1;
      wait(at(empty + b), (i / 2 & 1) ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {nbytes};" : : "r"(at(full + b)) : "memory");
      tile(base + b * {nbytes}, &mx, at(full + b), 64 * i);
      tile(base + b * {nbytes} + 8192, &mw, at(full + b), 64 * i);
    }}
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 80;");
    float d[{count}];
    for (int i = 0; i < {count}; ++i) d[i] = 0;
    for (int i = 0; i < {tiles}; ++i) {{
      int b = i & 1;
      wait(at(full + b), i / 2 & 1);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int k = 0; k < 4; ++k)
        asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {registers}, %{count}, %{count + 1}, 1, 1, 1, 0, 0;"
                     : {", ".join(f'"+f"(d[{i}])' for i in range(count))}
                     : "l"(describe(base + b * {nbytes} + 32 * k)), "l"(describe(base + b * {nbytes} + 8192 + 32 * k)));
      asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
      asm volatile("bar.sync 1, 128;" ::: "memory");
      if (t == 128) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(at(empty + b)) : "memory");
    }}
    for (int i = 0; i < {count}; ++i) r[(t - 128) * {count} + i] = d[i];
  }}
}}
""",
        block=256,
        shared=2 * nbytes + 1024,
        args=(*maps, "r"),
        outputs={"r": ((128, count), "float32")},
        expect=lambda x, w: (x.astype("f8") @ w.astype("f8").T)[fragment_d(n)],
        arch="sm_90a",
        alone=True,
        x=x.view("f2"),
        w=w.view("f2"),
    )


gemm(64, 5)
