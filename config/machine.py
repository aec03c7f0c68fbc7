"""What several packages need to know about the machine: the cores and the memory that may be used, how little disk
space is too little, how a child process ends together with its parent, with which environment it starts, and which
signals end work as Ctrl-C does."""

import ctypes
import importlib.util
import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from marina.config.errors import ToolMissing

# With less space than this for temporary files, a new worker may be unable to unpack its model: the server warns, and
# an alert fires.
LOW_TMP_BYTES = 64_000_000
_PR_SET_PDEATHSIG = 1
_GROUPS = Path("/sys/fs/cgroup")
# Control groups v1 show a huge number instead of "no limit".
_NO_LIMIT_BYTES = 1 << 60


def end_with_parent(by: signal.Signals) -> None:
    """Asks the kernel to send this process the signal `by` when its parent is gone, however the parent ended: to be
    exact, when the thread that started it ends. Call it in the child, before it runs another program.

    A closed pipe also tells a child that its parent is gone, but not a child that only spins: at a real-time priority
    that would occupy a core for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


@contextmanager
def stops_as_interrupt(*more: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Turns the first SIGTERM (of `timeout`, or of a cancelled CI job), SIGHUP (of a closed terminal) or one of `more`
    into KeyboardInterrupt, in the main thread; yields a function that tells whether one has come. What is ignored, as
    SIGHUP under `nohup`, stays ignored."""
    numbers = (signal.SIGHUP, signal.SIGTERM, *more) if threading.current_thread() is threading.main_thread() else ()
    stops = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        # Another one would interrupt what the first one began.
        if len(received) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in stops}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def environment_with(values: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables of the environment within this context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model, as the kernel names it; its architecture if that has no name."""
    name = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", kernel_text(cpuinfo), re.MULTILINE)
    return " ".join(name[1].split()) if name else platform.machine()


def usable_cores(groups: Path = _GROUPS) -> int:
    """How many cores this process may use at the same time, within its affinity and CPU limit; at least 1."""
    cores = visible_cores()
    return max(1, min(cores, int(cpu_limit(groups) or cores)))


def visible_cores() -> int:
    """How many cores this process may run on, whatever its CPU limit is."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(groups: Path = _GROUPS, meminfo: Path = Path("/proc/meminfo")) -> int:
    """How many bytes of memory are free, on the machine and within the container's limit; 0 if neither is known."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", kernel_text(meminfo), re.MULTILINE)
    free = [int(available[1]) * 1024] if available else []
    used = kernel_text(groups / "memory.current") or kernel_text(groups / "memory/memory.usage_in_bytes")
    if (limit := memory_limit(groups)) is not None and used.strip().isdigit():
        free.append(max(0, limit - int(used)))
    return min(free, default=0)


def cpu_limit(groups: Path = _GROUPS) -> float | None:
    """The container's limit of CPU time, in cores; None without a limit."""
    modern = kernel_text(groups / "cpu.max").split()
    if modern:
        return None if modern[0] == "max" else int(modern[0]) / int(modern[1])
    quota, period = (
        kernel_text(groups / "cpu/cpu.cfs_quota_us").strip(),
        kernel_text(groups / "cpu/cpu.cfs_period_us").strip(),
    )
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def memory_limit(groups: Path = _GROUPS) -> int | None:
    """The container's limit of memory, in bytes; None without a limit."""
    text = (kernel_text(groups / "memory.max") or kernel_text(groups / "memory/memory.limit_in_bytes")).strip()
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_BYTES else None


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The feature flags of the first core, as Linux names them on x86 (`flags`) and on arm64 (`Features`)."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", kernel_text(cpuinfo), re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def kernel_text(file: Path) -> str:
    """The text of a file in `/proc` or `/sys`; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def torchserve_home() -> Path:
    """The folder where `ts` is installed, found without importing it."""
    module_spec = importlib.util.find_spec("ts")
    if module_spec is None or module_spec.origin is None:
        raise ToolMissing("TorchServe is not installed", hint="pip install torchserve")
    return Path(module_spec.origin).parent.parent
