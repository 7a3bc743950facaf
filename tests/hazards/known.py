"""Seeded faults that the simulator does not find yet, and why. One that is found must leave this table."""

KNOWN = {
    "named_barriers_differ": "races are not looked for in kernels with barriers of part of the block",
    "mbarrier_never_complete": "unsupported opcode mbarrier.init.shared.b64",
}
