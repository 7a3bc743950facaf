"""Seeded faults that the simulator does not find yet, and why. One that is found must leave this table."""

KNOWN: dict[str, str] = {}
