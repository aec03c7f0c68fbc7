"""The verbs for newcomers: `doctor`, `init`, `demo`."""

from marina.starting import demo, doctor, init

__all__ = ["demo", "doctor", "init"]
