"""How long each phase of a start took, from the steps that the slowest worker wrote down (`handlers/starting.py`)."""

import os
import time
from contextlib import suppress
from pathlib import Path

# What a worker writes down, in this order, and the phase that ends there.
_STEPS = {"begun": "java", "imports": "imports", "load": "load", "warm": "warm_up"}


def phases(directory: Path, *, began: float, java: float, ready: float) -> dict[str, float]:
    """The length of each phase, s, in order, from the start of this process to the first readiness. `began` is when it
    looked at its package, `java` when it started Java. What the workers did not write down is in the phase after it."""
    marks = {"supervisor": began, "checks": java, **_worker(directory), "first_ready": ready}
    lengths, before = dict[str, float](), began - _age_s(began)
    for phase, at in marks.items():
        lengths[phase] = max(0.0, at - before)
        before = max(before, at)
    return lengths


def _worker(directory: Path) -> dict[str, float]:
    """When the phases of the slowest worker ended."""
    read = [_read(file) for file in directory.glob("start-*")]
    return max((marks for marks in read if marks), key=lambda marks: max(marks.values()), default={})


def _read(file: Path) -> dict[str, float]:
    marks = dict[str, float]()
    with suppress(OSError, ValueError):
        for line in file.read_text(encoding="utf-8").splitlines():
            step, at = line.split()
            marks[_STEPS.get(step, step)] = float(at)
    return {phase: marks[phase] for phase in _STEPS.values() if phase in marks}


def _age_s(at: float) -> float:
    """How old this process was at this time."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, age_s - (time.monotonic() - at))
