"""Small kernels, each of one feature, that a GPU and the simulator must agree on.

``CASES`` are all of them; ``recorded(case)`` gives what an NVIDIA H200 computed. ``python -m tests.conformance.record`` makes
that recording anew.
"""

from __future__ import annotations

from . import (
    cases_async,
    cases_atomic,
    cases_barrier,
    cases_bits,
    cases_control,
    cases_convert,
    cases_float,
    cases_half,
    cases_index,
    cases_integer,
    cases_matrix,
    cases_memory,
    cases_tma,
    cases_warp,
    cases_wgmma,
)
from .case import BITS, Case, Within, cases, difference
from .recording import recorded

CASES = cases(
    cases_integer.family,
    cases_bits.family,
    cases_float.family,
    cases_half.family,
    cases_convert.family,
    cases_memory.family,
    cases_index.family,
    cases_control.family,
    cases_warp.family,
    cases_barrier.family,
    cases_atomic.family,
    cases_async.family,
    cases_matrix.family,
    cases_tma.family,
    cases_wgmma.family,
)

__all__ = ["BITS", "CASES", "Case", "Within", "difference", "recorded"]
