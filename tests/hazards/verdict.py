"""What the simulator says of a case, in one line."""

from __future__ import annotations

from unittest import mock

import numpy as np

from texlab.program import KernelFault

from .kernel import Clean, Seeded

STEPS = 20_000  # instructions before a loop counts as endless: the cases are small


def run(case: Seeded | Clean, schedule: str = "lockstep") -> dict[str, np.ndarray]:
    """The simulator's outputs; raises what it raises."""
    with mock.patch("texlab.sim.warps.STEP_LIMIT", STEPS):
        return case.program.run(device="sim", schedule=schedule, limit=30.0, **case.inputs).outputs


def simulated(case: Seeded | Clean) -> str:
    """ "found: kind, line n", "clean", "not found" or "wrong: ..."."""
    try:
        outputs = run(case, case.schedule if isinstance(case, Seeded) else "lockstep")
    except KernelFault as fault:
        where = f", line {fault.line}" if getattr(fault, "line", None) else ""
        return f"{'found' if isinstance(case, Seeded) else 'wrong'}: {getattr(fault, 'kind', 'fault')}{where}"
    except ValueError as error:
        return f"found: ValueError, {error}" if isinstance(case, Seeded) else f"wrong: {error}"
    if isinstance(case, Seeded):
        return "not found"
    same = all(np.array_equal(outputs[name], want) for name, want in case.expected.items())
    return "clean" if same else "wrong: other values"
