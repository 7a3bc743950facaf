"""Kernels that are wrong on purpose, each in one way, and kernels that only look wrong.

``FAULTS`` must all be found by the simulator, with line, thread and address; ``CLEAN`` must all pass.
``python -m tests.hazards.sanitizer`` asks NVIDIA's compute-sanitizer about the same kernels on a GPU.
"""

from __future__ import annotations

from . import clean, faults_async, faults_barrier, faults_memory, faults_race, faults_value
from .kernel import Clean, Seeded

FAULTS = [
    fault
    for module in (faults_memory, faults_value, faults_race, faults_async, faults_barrier)
    for fault in module.faults.all
]
CLEAN = clean.clean.all

__all__ = ["CLEAN", "FAULTS", "Clean", "Seeded"]
