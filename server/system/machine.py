"""Checks without torch whether a MAR fits this machine, by the same key as `handlers/machine.py`, before Java is
started.

The worker checks again, with torch. This check takes milliseconds and fails with a message that a person can read."""

from importlib import metadata
from pathlib import Path

from marina.config.errors import listed
from marina.config.machine import cpu_flags
from marina.config.record import Record

CPUINFO = Path("/proc/cpuinfo")
GPU_DEVICES = Path("/dev")
NO_GPU = "it needs a GPU, and this machine has none"


def package_mismatches(record: Record, *, cpuinfo: Path = CPUINFO, devices: Path = GPU_DEVICES) -> list[str]:
    """The reasons why this machine cannot run the artifacts; empty if it can."""
    key, points = record.key, []
    if key.device == "cuda" and not any(devices.glob("nvidia[0-9]*")):
        points.append(NO_GPU)
    if record.compile != "aot":
        return points
    installed, needed = _torch_version(), _without_build(key.torch)
    if installed != needed:
        points.append(f"torch {needed}, here {installed or 'none'}")
    if key.device == "cpu" and (missing := set(key.isa) - cpu_flags(cpuinfo)):
        points.append(f"this CPU lacks {listed(missing)}")
    return points


def _torch_version() -> str | None:
    try:
        return _without_build(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return None


def _without_build(version: str) -> str:
    return version.partition("+")[0]
