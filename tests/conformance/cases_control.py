"""Control flow: branches, loops, switches, calls. PTX ISA, "Control Flow Instructions"."""

from __future__ import annotations

import numpy as np

from .case import Collection
from .cases_memory import some

family = Collection()
FLOW, CALL = "Control Flow: bra", "Control Flow: call"
_X = some("int32", 96) >> 20  # from -2048 to 2047


def scalar(name: str, feature: str, body: str, f, before: str = "", solo: bool = False) -> None:
    """``body`` computes ``r`` from ``v`` and the thread number ``t``; ``f`` is the same in Python."""
    family.kernel(
        name,
        feature,
        f"""{before}extern "C" __global__ void k(const int* x, int* r_) {{
  int t = threadIdx.x, v = x[t], r = 0;
{body}
  r_[t] = r;
}}
""",
        block=96,
        outputs={"r_": (96, "int32")},
        expect=lambda x: np.array([f(int(v), t) for t, v in enumerate(x)]).astype("i8").astype("i4"),
        x=_X,
        solo=solo,
    )


def collatz(v, t):
    n, steps = abs(v) + 1, 0
    while n != 1 and steps < 50:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def breaks(v, t):
    s = 0
    for i in range(t % 40):
        if (i * v) % 7 == 3:
            continue
        if s > 500:
            break
        s += i
    return s


def nested(v, t):
    if t % 2:
        if v > 0:
            return v * 3 if t % 3 else v - 1
        return v + 1 if t % 5 else -v
    return 2 * v if v > 100 else v * v


def switched(v, t):
    r = {0: v, 1: -v, 2: v * v, 3: 3, 4: v + 3, 5: v ^ 5, 6: v << 1, 9: 7 * v}.get(t % 11, 0)
    return r + 3 if t % 11 == 3 else r


def triangle(v, t):
    s = 0
    for i in range(t % 9):
        for j in range(i):
            if j == 4:
                break
            s += i * j + (v & 3)
    return s


scalar(
    "control.if_else",
    FLOW,
    "  if (v > t) r = v - t; else if (v == 0) r = -1; else r = t;",
    lambda v, t: v - t if v > t else (-1 if v == 0 else t),
)
scalar(
    "control.nested",
    FLOW,
    """  if (t % 2) {
    if (v > 0) { if (t % 3) r = v * 3; else r = v - 1; }
    else { if (t % 5) r = v + 1; else r = -v; }
  } else if (v > 100) r = 2 * v; else r = v * v;""",
    nested,
)
scalar(
    "control.while",
    FLOW,
    "  int n = abs(v) + 1;\n  while (n != 1 && r < 50) { n = n % 2 ? 3 * n + 1 : n / 2; ++r; }",
    collatz,
)
scalar(
    "control.break_continue",
    FLOW,
    """  for (int i = 0; i < t % 40; ++i) {
    if (((i * v) % 7 + 7) % 7 == 3) continue;
    if (r > 500) break;
    r += i;
  }""",
    breaks,
)
scalar(
    "control.do_while",
    FLOW,
    "  int n = t; do { r += n & 3; n >>= 1; } while (n);",
    lambda v, t: sum(t >> i & 3 for i in range(max(1, t.bit_length()))),
)
scalar(
    "control.switch",
    FLOW,
    """  switch (t % 11) {
    case 0: r = v; break; case 1: r = -v; break; case 2: r = v * v; break;
    case 3: r = 3; /* and on */ default: r += t % 11 == 3 ? 3 : 0; break;
    case 4: r = v + 3; break; case 5: r = v ^ 5; break; case 6: r = v << 1; break; case 9: r = 7 * v; break;
  }""",
    switched,
)
scalar(
    "control.loops_in_loops",
    FLOW,
    """  for (int i = 0; i < t % 9; ++i)
    for (int j = 0; j < i; ++j) {
      if (j == 4) break;
      r += i * j + (v & 3);
    }""",
    triangle,
)
scalar(
    "control.early_return",
    "Control Flow: ret",
    "  if (v < 0) { r_[t] = -7; return; }\n  r = v + 1;",
    lambda v, t: -7 if v < 0 else v + 1,
)
scalar(
    "control.exit",
    "Control Flow: exit",
    '  r_[t] = v;\n  if (t & 1) asm volatile("exit;");\n  r = v * 2;',
    lambda v, t: v if t & 1 else v * 2,
)
scalar(
    "control.short_circuit",
    FLOW,
    "  r = (t && v / t > 2) || (v != 0 && 100 / v == 1);",
    lambda v, t: (t and int(v / t) > 2) or (v != 0 and int(100 / v) == 1),
)
scalar(
    "control.goto",
    FLOW,
    "  int i = 0;\nagain:\n  r += i * v; if (++i < t % 6) goto again;",
    lambda v, t: v * sum(range(max(1, t % 6))),
)
scalar(
    "control.unrolled",
    FLOW,
    "#pragma unroll\n  for (int i = 0; i < 8; ++i) if (t >> i & 1) r += v * i;",
    lambda v, t: sum(v * i for i in range(8) if t >> i & 1),
)
scalar("control.zero_trips", FLOW, "  for (int i = 5; i < t % 8; ++i) r += v;", lambda v, t: v * max(0, t % 8 - 5))
scalar(
    "control.call",
    CALL,
    "  r = twice(v) + twice(t);",
    lambda v, t: 2 * v + 2 * t + 2,
    "__device__ __noinline__ int twice(int a) { return 2 * a + 1; }\n",
)
scalar(
    "control.call.nested",
    CALL,
    "  r = outer(v, t);",
    lambda v, t: (v * v - 1) + (t * t - 1) if v > t else v,
    "__device__ __noinline__ int inner(int a) { return a * a - 1; }\n"
    "__device__ __noinline__ int outer(int a, int b) { return a > b ? inner(a) + inner(b) : a; }\n",
)
scalar(
    "control.call.divergent",
    CALL,
    "  if (v > 0) r = early(v, t); else r = early(t, v) * 2;",
    lambda v, t: (
        (lambda a, b: -1 if a % 3 == 0 else a + sum(range(abs(b) % 5)))(*((v, t) if v > 0 else (t, v)))
        * (1 if v > 0 else 2)
    ),
    """__device__ __noinline__ int early(int a, int b) {
  if (a % 3 == 0) return -1;
  for (int i = 0; i < abs(b) % 5; ++i) a += i;
  return a;
}
""",
)
scalar(
    "control.call.types",
    CALL,
    "  double d = mix(v, t * 0.5f, (char)t, v * 3ll); r = (int)d;",
    lambda v, t: int(v * 2.0 + t * 0.5 + t + v * 3),
    "__device__ __noinline__ double mix(int a, float b, char c, long long d) { return a * 2.0 + b + c + d; }\n",
)
scalar(
    "control.call.pointer",
    CALL,
    "  int a[4]; fill(a, v); r = a[t & 3] + a[3];",
    lambda v, t: v + (t & 3) * 11 + v + 33,
    "__device__ __noinline__ void fill(int* a, int v) { for (int i = 0; i < 4; ++i) a[i] = v + i * 11; }\n",
)
scalar("control.lambda", CALL, "  auto f = [&](int a) { return a * v + t; }; r = f(2) - f(-1);", lambda v, t: 3 * v)
scalar(
    "control.template",
    CALL,
    "  r = power<3>(v & 15) + power<5>(t & 3);",
    lambda v, t: (v & 15) ** 3 + (t & 3) ** 5,
    "template <int N> __device__ int power(int a) { if constexpr (N == 0) return 1; else return a * power<N - 1>(a); }\n",
)
scalar(
    "control.indirect_call",
    "Control Flow: call (indirect)",
    "  int (*f)(int) = t % 3 == 0 ? add7 : t % 3 == 1 ? negate : square; r = f(v);",
    lambda v, t: (v + 7, -v, v * v)[t % 3],
    """__device__ __noinline__ int add7(int a) { return a + 7; }
__device__ __noinline__ int negate(int a) { return -a; }
__device__ __noinline__ int square(int a) { return a * a; }
""",
    solo=True,
)
scalar(
    "control.brx",
    "Control Flow: brx.idx",
    """  asm volatile("{ .reg .u32 i; and.b32 i, %2, 3; ts: .branchtargets A, B, C, D; brx.idx i, ts;"
               "A: mov.s32 %0, 1; bra E; B: mov.s32 %0, %1; bra E; C: neg.s32 %0, %1; bra E; D: mov.s32 %0, 9; E: }"
               : "=r"(r) : "r"(v), "r"(t));""",
    lambda v, t: (1, v, -v, 9)[t & 3],
    solo=True,
)
scalar("control.trap_not_reached", "Miscellaneous: trap", "  if (v > 5000) __trap();\n  r = v;", lambda v, t: v)
scalar("control.assume", FLOW, "  __builtin_assume(t < 96); r = t / 32 + v;", lambda v, t: t // 32 + v)
