"""Checks without torch whether a MAR fits this machine, by the same key as `handlers/machine.py`, before Java is
started.

The worker checks again, with torch. This check takes milliseconds and fails with a message that a person can read.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from config.errors import listed
from config.machine import cpu_flags
from config.record import Record

CPUINFO = Path("/proc/cpuinfo")
GPU_DEVICES = Path("/dev")


def package_mismatches(record: Record, *, cpuinfo: Path = CPUINFO, devices: Path = GPU_DEVICES) -> list[str]:
    """The reasons why this machine cannot run the artifacts; empty if it can, or if it is allowed to recompile."""
    key, points = record.key, []
    if key.device == "cuda" and not any(devices.glob("nvidia[0-9]*")):
        points.append("it needs a GPU, and this machine has none")
    if record.compile != "aot" or record.on_mismatch == "jit":
        return points
    installed = _torch_version()
    if installed != key.torch:
        points.append(f"torch {key.torch}, here {installed or 'none'}")
    if key.device == "cpu" and (missing := set(key.isa) - cpu_flags(cpuinfo)):
        points.append(f"this CPU lacks {listed(missing)}")
    return points


def _torch_version() -> str | None:
    """torch's version as in its own `version.py`: the metadata of PyPI's wheel lacks the `+cu130` that the key has."""
    module_spec = importlib.util.find_spec("torch")
    if module_spec is None or module_spec.origin is None:
        return None
    text = (Path(module_spec.origin).parent / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return version[1] if version else None
