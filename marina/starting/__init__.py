"""The verbs of a newcomer: `doctor`, `init`, `demo`."""

from marina.starting import demo, doctor, init

__all__ = ["demo", "doctor", "init"]
