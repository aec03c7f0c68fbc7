"""What more than one package minds of the machine: how much of it may be used, how little room is too little, and with
whom a process ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from pathlib import Path

# Of temporary files: below it a model that a new worker unpacks may not fit; the server warns, and an alert fires.
LOW_TMP_BYTES = 64_000_000
_PR_SET_PDEATHSIG = 1
_GROUPS = Path("/sys/fs/cgroup")
# What the first version of control groups says where there is no limit.
_NO_LIMIT_BYTES = 1 << 60


def end_with_parent(by: signal.Signals) -> None:
    """Called in a child before it becomes another program: it gets this signal when the one who started it is gone,
    however that ended: the thread that started it, to be exact.

    Pipes tell it too, but not one that spins: at a real-time priority it would keep a core for ever.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


def usable_cores(groups: Path = _GROUPS) -> int:
    """How many cores this process may use at once; at least one."""
    cores = visible_cores()
    return max(1, min(cores, int(cpu_limit(groups) or cores)))


def visible_cores() -> int:
    """How many cores this process may run on, whatever time it is given on them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(groups: Path = _GROUPS, meminfo: Path = Path("/proc/meminfo")) -> int:
    """How many bytes can still be had, of the machine's and of the container's."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", kernel_text(meminfo), re.MULTILINE)
    free = [int(available[1]) * 1024] if available else []
    used = kernel_text(groups / "memory.current") or kernel_text(groups / "memory/memory.usage_in_bytes")
    if (limit := memory_limit(groups)) is not None and used.strip().isdigit():
        free.append(max(0, limit - int(used)))
    return min(free, default=0)


def cpu_limit(groups: Path = _GROUPS) -> float | None:
    """The cores that a container may use, in time."""
    modern = kernel_text(groups / "cpu.max").split()
    if modern:
        return None if modern[0] == "max" else int(modern[0]) / int(modern[1])
    quota, period = (
        kernel_text(groups / "cpu/cpu.cfs_quota_us").strip(),
        kernel_text(groups / "cpu/cpu.cfs_period_us").strip(),
    )
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def memory_limit(groups: Path = _GROUPS) -> int | None:
    """The bytes that a container may use."""
    text = (kernel_text(groups / "memory.max") or kernel_text(groups / "memory/memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_BYTES else None


def kernel_text(file: Path) -> str:
    """What a file of the kernel says; nothing where there is none."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
