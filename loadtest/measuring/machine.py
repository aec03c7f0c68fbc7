"""The machine on which something was measured, and the memory that a server's processes took.

Both are read from Linux's files; what a system does not have is None."""

import os
import platform
import re
import time
from contextlib import suppress
from pathlib import Path

from pydantic import computed_field

from marina.config.machine import cpu_flags, cpu_limit, kernel_text, memory_limit, processor_name, visible_cores
from marina.config.record import Part

MB = 1_000_000
# The instruction sets by which compilers and oneDNN choose code.
_ISA = re.compile(r"avx\w*|amx_\w+|fma|f16c|bmi[12]|vaes|vpclmulqdq|gfni|asimd\w*|sve\w*|bf16|i8mm")


class Machine(Part):
    """The processor, how much of it may be used, and the memory."""

    processor: str
    cores: int
    """The number of cores that this process may run on."""
    cpu_limit: float | None
    """The number of cores that the cgroup allows; None without a limit."""
    memory_bytes: int | None
    memory_limit_bytes: int | None
    """The memory that the cgroup allows; None without a limit."""
    system: str
    python: str
    isa: tuple[str, ...] = ()
    """The processor's vector and matrix instruction sets."""

    def __str__(self) -> str:
        limit = f", cgroup limit {self.cpu_limit:g}" if self.cpu_limit else ""
        memory = min(filter(None, [self.memory_bytes, self.memory_limit_bytes]), default=None)
        size = f", {memory / 2**30:.1f} GiB" if memory else ""
        return f"{self.processor}, {self.cores} cores{limit}{size}"


class PeakMemory(Part):
    """The peak resident memory of a server's processes, bytes."""

    java_bytes: int
    workers_bytes: tuple[int, ...]
    supervisor_bytes: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_bytes(self) -> int:
        """The sum; pages that workers share are counted for each of them."""
        return self.java_bytes + sum(self.workers_bytes) + self.supervisor_bytes


def this_machine(root: Path = Path("/")) -> Machine:
    """The machine that this process runs on."""
    total = re.search(r"^MemTotal:\s*(\d+) kB", kernel_text(root / "proc/meminfo"), re.MULTILINE)
    groups = root / "sys/fs/cgroup"
    return Machine(
        processor=processor_name(root),
        cores=visible_cores(),
        cpu_limit=cpu_limit(groups),
        memory_bytes=int(total[1]) * 1024 if total else None,
        memory_limit_bytes=memory_limit(groups),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        isa=tuple(sorted(filter(_ISA.fullmatch, cpu_flags(root / "proc/cpuinfo")))),
    )


def peak_memory(pid: int, proc: Path = Path("/proc")) -> PeakMemory:
    """The peak memory of a supervisor and all processes below it, as far as they are alive now."""
    java, workers, supervisor = 0, [], _peak_bytes(proc / str(pid))
    for child in descendants(pid, proc):
        command = kernel_text(proc / str(child) / "cmdline").split("\0")
        if Path(command[0]).name == "java":
            java += _peak_bytes(proc / str(child))
        elif any("model_service_worker" in word for word in command):
            workers.append(_peak_bytes(proc / str(child)))
        else:
            supervisor += _peak_bytes(proc / str(child))
    return PeakMemory(java_bytes=java, workers_bytes=tuple(sorted(workers)), supervisor_bytes=supervisor)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all processes below it, including those that have ended and were waited for."""
    seconds = 0.0
    for process in (pid, *descendants(pid)):
        fields = kernel_text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
        # Ticks of 10 ms are too coarse for a second of work, so a process's own time is read from its CPU clock, which
        # counts nanoseconds. The number of that clock is the one that clock_getcpuclockid(3) returns.
        with suppress(OSError):
            seconds += time.clock_gettime(~process << 3 | 2)
        seconds += sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The ids of all processes below `pid`, parents before their children."""
    parents: dict[int, list[int]] = {}
    for status in proc.glob("[0-9]*/stat"):
        # The process name, in parentheses, may contain anything, including spaces and parentheses.
        fields = kernel_text(status).rpartition(")")[2].split()
        if fields:
            parents.setdefault(int(fields[1]), []).append(int(status.parent.name))
    processes, pending = [], [pid]
    while pending:
        children = parents.get(pending.pop(), [])
        processes += children
        pending += children
    return processes


def _peak_bytes(folder: Path) -> int:
    peak = re.search(r"^VmHWM:\s*(\d+) kB", kernel_text(folder / "status"), re.MULTILINE)
    return int(peak[1]) * 1024 if peak else 0
