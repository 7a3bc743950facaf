"""What child processes of test_schedules_tune.py measure: a module that is quick to import."""

import os
import signal
import time


def pretend(workload, target, knobs, ir=None):
    """A time that is least at A=3, B=False, C=16, the same in every run."""
    return {"status": "ok", "ms": 1 + abs(knobs["A"] - 3) + 5 * knobs["B"] + abs(knobs["C"] - 16) / 8}


def misbehave(workload, target, knobs, ir=None):
    """For the first four of the grid's corner, what can go wrong."""
    if not knobs["B"] or knobs["C"] != 8:
        return pretend(workload, target, knobs)
    if knobs["A"] == 1:
        raise RuntimeError("TVM does not like it")
    if knobs["A"] == 2:
        crash()
    if knobs["A"] == 3:
        time.sleep(60)
    return {"status": "wrong", "error": "y[0] is 1, not 2"}


def crash(*arguments, **more):
    os.kill(os.getpid(), signal.SIGSEGV)
