"""Small kernels, each of one feature, that a GPU and the simulator must agree on.

``CASES`` are all of them; ``recorded()`` gives what an NVIDIA H200 computed. ``python -m tests.conformance.record`` makes
that recording anew.
"""

from __future__ import annotations

from . import cases_convert, cases_float, cases_half, cases_integer
from .case import BITS, Case, Within, cases, difference

CASES = cases(cases_integer.family, cases_float.family, cases_convert.family, cases_half.family)

__all__ = ["BITS", "CASES", "Case", "Within", "difference"]
