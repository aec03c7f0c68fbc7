"""The machine on which something was measured, what a server's processes took of it, and what others used meanwhile."""

import os
import platform
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from marina.config.machine import cpu_flags, cpu_limit, kernel_text, memory_limit, processor_name, visible_cores
from marina.config.measured import Machine, PeakMemory
from marina.config.record import Part

MB = 1_000_000
# The instruction sets by which compilers and oneDNN choose code.
_ISA = re.compile(r"avx\w*|amx_\w+|fma|f16c|bmi[12]|vaes|vpclmulqdq|gfni|asimd\w*|sve\w*|bf16|i8mm")
_MOST_NAMED, _LEAST_NAMED_CORES = 3, 0.05
# Other processes disturb from this share of the machine's cores on; below this many cores it is just a daemon.
_BUSY_SHARE, _BUSY_CORES = 0.15, 0.25


class OtherProcesses(Part):
    """What other processes used, as a mean over one run."""

    cores: float
    """Busy cores that neither the server nor the load used."""
    of: int
    """The number of cores of the machine."""
    processes: tuple[tuple[str, float], ...] = ()
    """The processes that used most: name and cores. Those of other containers cannot be seen."""

    @property
    def disturb(self) -> bool:
        """Whether they used enough to slow a server down."""
        return self.cores >= max(_BUSY_CORES, _BUSY_SHARE * self.of)

    def __str__(self) -> str:
        named = ", ".join(f"{name} {cores:.1f}" for name, cores in self.processes)
        return f"other processes used {self.cores:.1f} of {self.of} cores" + (f": {named}" if named else "")


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """The machine that this process runs on."""
    return Machine(
        processor=processor_name(cpuinfo),
        cores=visible_cores(),
        cpu_limit=cpu_limit(),
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=memory_limit(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        isa=tuple(sorted(filter(_ISA.fullmatch, cpu_flags(cpuinfo)))),
    )


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and all below it, parents before their children; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def peak_memory(pid: int) -> PeakMemory:
    """The peak memory of a supervisor and all processes below it, as far as they are alive now."""
    java, workers, supervisor = 0, [], 0
    for process in process_tree(pid):
        peak = re.search(r"^VmHWM:\s*(\d+) kB", kernel_text(Path(f"/proc/{process.pid}/status")), re.MULTILINE)
        peak_bytes = int(peak[1]) * 1024 if peak else 0
        command: list[str] = []
        with suppress(psutil.Error):
            command = process.cmdline()
        if command and Path(command[0]).name == "java":
            java += peak_bytes
        elif any("model_service_worker" in word for word in command):
            workers.append(peak_bytes)
        else:
            supervisor += peak_bytes
    return PeakMemory(java_bytes=java, workers_bytes=tuple(sorted(workers)), supervisor_bytes=supervisor)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all processes below it, including those that have ended and were waited for."""
    seconds = 0.0
    for process in process_tree(pid):
        # Ticks of 10 ms are too coarse for a second of work, so a process's own time is read from its CPU clock, which
        # counts nanoseconds. The number of that clock is the one that clock_getcpuclockid(3) returns.
        with suppress(OSError, psutil.Error):
            seconds += time.clock_gettime(~process.pid << 3 | 2)
            times = process.cpu_times()
            seconds += times.children_user + times.children_system
    return seconds


class OtherProcessesWatch:
    """Measures from its creation until `end`.

    The processes `pids`, this process, and the children of all of them do not count as others."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = list(pids)
        self._begun, self._busy_s, self._own_s, self._used = _now()
        self._ours = self._tree()

    def end(self) -> OtherProcesses:
        """What other processes used since the creation."""
        ours = self._ours | self._tree()
        ended, busy_s, own_s, used = _now()
        elapsed_s = max(1e-3, ended - self._begun)
        spent = {pid: (name, seconds - self._used.get(pid, ("", 0.0))[1]) for pid, (name, seconds) in used.items()}
        ours_s = own_s - self._own_s + sum(seconds for pid, (_, seconds) in spent.items() if pid in ours)
        by_name: dict[str, float] = {}
        for pid, (name, seconds) in spent.items():
            if pid not in ours and pid != os.getpid():
                by_name[name] = by_name.get(name, 0.0) + seconds / elapsed_s
        most = sorted(by_name.items(), key=lambda entry: -entry[1])[:_MOST_NAMED]
        return OtherProcesses(
            cores=round(max(0.0, busy_s - self._busy_s - ours_s) / elapsed_s, 3),
            of=psutil.cpu_count() or 1,
            processes=tuple((name, round(cores, 2)) for name, cores in most if cores >= _LEAST_NAMED_CORES),
        )

    def _tree(self) -> set[int]:
        return {process.pid for root in self._roots for process in process_tree(root)}


def _now() -> tuple[float, float, float, dict[int, tuple[str, float]]]:
    """The time, the busy time of all cores, our own (with children that have ended), and that of each process."""
    times = psutil.cpu_times()._asdict()
    busy_s = sum(seconds for name, seconds in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))
    own = psutil.Process().cpu_times()
    used = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            spent = process.cpu_times()
            # A name may be any bytes; records must be UTF-8.
            used[process.pid] = (process.name().encode(errors="replace").decode(), spent.user + spent.system)
    return time.monotonic(), busy_s, own.user + own.system + own.children_user + own.children_system, used
