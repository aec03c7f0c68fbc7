"""The verbs of a newcomer: `doctor`, `init`, `demo`."""
