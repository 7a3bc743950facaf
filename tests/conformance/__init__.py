"""Small kernels, each of one feature, that a GPU and the simulator must agree on.

``CASES`` are all of them; ``recorded()`` gives what an NVIDIA H200 computed. ``python -m tests.conformance.record`` makes
that recording anew.
"""

from __future__ import annotations

from . import cases_atomic, cases_control, cases_convert, cases_float, cases_half, cases_integer, cases_memory, cases_warp
from .case import BITS, Case, Within, cases, difference

CASES = cases(
    *(m.family for m in (cases_integer, cases_float, cases_convert, cases_half, cases_memory, cases_control, cases_warp, cases_atomic))
)

__all__ = ["BITS", "CASES", "Case", "Within", "difference"]
