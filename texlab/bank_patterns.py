"""Shared-memory access patterns, each one warp-wide load: what the bank rules of ``texlab.trace`` are checked with.

``program(width)`` runs every pattern as a launch of its own, so that hardware counters, read launch by launch, give the
wavefronts of exactly one load instruction.
"""

from __future__ import annotations

import numpy as np

from texlab.program import Buffer, Launch, Program

WORDS = 8192  # 32 KiB of shared memory
WIDTHS = {4: "float", 8: "float2", 16: "float4"}

SOURCE = """
extern "C" __global__ void read{width}(const int* index, {type}* out, int pattern) {{
  __shared__ {type} tile[{count}];
  float* words = (float*)tile;
  for (int i = threadIdx.x; i < {words}; i += 32) words[i] = i;
  __syncthreads();
  const int at = index[pattern * 32 + threadIdx.x];
  if (at >= 0) out[pattern * 32 + threadIdx.x] = tile[at];
}}
"""


def patterns(width: int) -> dict[str, np.ndarray]:
    """Name -> 32 element indices into shared memory (elements of ``width`` bytes; -1: the lane takes no part)."""
    lane = np.arange(32)
    count = WORDS * 4 // width
    rng = np.random.default_rng(width)
    out = {f"stride {k}": lane * k % count for k in (*range(1, 10), 12, 16, 17, 24, 31, 32, 33)}
    out["broadcast"] = np.zeros(32, int)
    out["reversed"] = lane[::-1]
    for bit in (1, 2, 4, 8, 16):
        partner = np.where(lane & bit, lane ^ bit, lane)
        out[f"equal to lane^{bit}, contiguous"] = partner
        for k in (2, 3, 5, 8):
            out[f"equal to lane^{bit}, stride {k}"] = partner * k % count
        for trial in range(3):
            out[f"equal to lane^{bit}, random {trial}"] = rng.integers(0, count, 32)[partner]
    for trial in range(8):
        out[f"random {trial}"] = rng.integers(0, count, 32)
        out[f"few distinct {trial}"] = rng.integers(0, count, 6)[rng.integers(0, 6, 32)]
        out[f"permuted {trial}"] = rng.permutation(32)
    for trial in range(6):
        some = rng.random(32) < 0.5
        out[f"half the lanes, contiguous {trial}"] = np.where(some, lane, -1)
        out[f"half the lanes, pairs {trial}"] = np.where(some, lane // 2 * 3, -1)
        out[f"half the lanes, random {trial}"] = np.where(some, rng.integers(0, count, 32), -1)
    out["lanes 0-15"] = np.where(lane < 16, lane, -1)
    out["even lanes"] = np.where(lane % 2 == 0, lane, -1)
    out["rows of 16 lanes, stride 2"] = lane % 16 * 2
    out["two rows of 16 lanes"] = lane // 16
    return out


def program(width: int) -> tuple[Program, dict[str, np.ndarray]]:
    """The Program of all patterns of one width (4, 8 or 16 bytes a lane), and its inputs."""
    table = np.array(list(patterns(width).values()), "i4")
    lanes = width // 4
    return Program(
        name=f"read{width}",
        source=SOURCE.format(width=width, type=WIDTHS[width], words=WORDS, count=WORDS * 4 // width),
        buffers=(Buffer("index", table.shape, "int32"), Buffer("out", (*table.shape, lanes), role="output")),
        launches=tuple(Launch(f"read{width}", (1, 1, 1), (32, 1, 1), ("index", "out", i)) for i in range(len(table))),
        filename="bank_patterns.cu",
    ), {"index": table}


def addresses(width: int) -> tuple[np.ndarray, np.ndarray]:
    """Byte addresses (patterns, 32) and active-lane masks (patterns,) as ``texlab.trace.wavefronts`` takes them."""
    table = np.array(list(patterns(width).values()))
    mask = ((table >= 0) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
    return (np.maximum(table, 0) * width).astype(np.uint64), mask
