"""Cases that the simulator does not pass yet, and why: ``known.txt``, a line each.

A case that starts to pass must leave the list (its test fails until then): ``python -m tests.conformance.known`` writes it
anew from what fails now.
"""

from __future__ import annotations

import sys
from pathlib import Path

FILE = Path(__file__).with_name("known.txt")
KNOWN = dict(line.split(": ", 1) for line in FILE.read_text().splitlines())


def why_not(case) -> str:
    """Why the simulator does not pass a case, by its independent calculation and by the recording; "" if it does."""
    from texlab.program import KernelFault

    from . import difference, recorded

    try:
        got = case.program.run(device="sim", **case.inputs).outputs
    except KernelFault as fault:
        text = str(fault).splitlines()[0]
        return f"unsupported opcode {text.split(chr(39))[1]}" if fault.kind == "unsupported" else text
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    want, slack = recorded(case), 2
    if want is None:
        want, slack = case.expected(), 1
    return "" if want is None or difference(case, got, want, slack) is None else "gives other values"


def main() -> None:
    from . import CASES

    found = {case.name: reason for case in CASES if (reason := why_not(case))}
    for name in sorted(set(found) ^ set(KNOWN)):
        print(f"passes now: {name}" if name in KNOWN else f"fails: {name}: {found[name]}")
    FILE.write_text("".join(f"{name}: {reason}\n" for name, reason in found.items()))
    print(f"{len(found)} of {len(CASES)} cases in {FILE.name}")


if __name__ == "__main__":
    sys.exit(main())
