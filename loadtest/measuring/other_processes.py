"""What other processes of the machine use while a server is measured on it: latencies of a busy machine are its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

from config.record import Part

_NAMED, _WORTH_NAMING = 3, 0.05
# More than this share of the machine's cores, and not just a daemon.
_BUSY_SHARE, _BUSY_CORES = 0.15, 0.25


class OtherProcesses(Part):
    """Of one run: the mean of its time."""

    cores: float
    """Cores that neither the server nor the load used."""
    of: int
    """Cores of the machine."""
    processes: tuple[tuple[str, float], ...] = ()
    """Those that used most, by name, and how many cores each; none of another container is seen."""

    @property
    def disturb(self) -> bool:
        """Whether that is enough to make a server slower."""
        return self.cores >= max(_BUSY_CORES, _BUSY_SHARE * self.of)

    def __str__(self) -> str:
        named = ", ".join(f"{name} {cores:.1f}" for name, cores in self.processes)
        return f"other processes used {self.cores:.1f} of {self.of} cores" + (f": {named}" if named else "")


class OtherProcessesWatch:
    """Begins when it is made; `pids` are the roots of what is ours beside this process and its children."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._roots = list(pids)
        self._begun, self._busy_s, self._own_s, self._used = _now()
        self._ours = self._tree()

    def end(self) -> OtherProcesses:
        """What others used since then."""
        ours = self._ours | self._tree()
        ended, busy_s, own_s, used = _now()
        elapsed_s = max(1e-3, ended - self._begun)
        spent = {pid: (name, seconds - self._used.get(pid, ("", 0.0))[1]) for pid, (name, seconds) in used.items()}
        ours_s = own_s - self._own_s + sum(seconds for pid, (_, seconds) in spent.items() if pid in ours)
        by_name: dict[str, float] = {}
        for pid, (name, seconds) in spent.items():
            if pid not in ours and pid != os.getpid():
                by_name[name] = by_name.get(name, 0.0) + seconds / elapsed_s
        most = sorted(by_name.items(), key=lambda entry: -entry[1])[:_NAMED]
        return OtherProcesses(
            cores=round(max(0.0, busy_s - self._busy_s - ours_s) / elapsed_s, 3),
            of=psutil.cpu_count() or 1,
            processes=tuple((name, round(cores, 2)) for name, cores in most if cores >= _WORTH_NAMING),
        )

    def _tree(self) -> set[int]:
        pids = set()
        for root in self._roots:
            try:
                process = psutil.Process(root)
                pids |= {root, *(child.pid for child in process.children(recursive=True))}
            except psutil.Error:
                continue
        return pids


def _now() -> tuple[float, float, float, dict[int, tuple[str, float]]]:
    """The time, how long all cores were busy, how long we were (with children that have ended), and each process."""
    times = psutil.cpu_times()._asdict()
    busy_s = sum(seconds for name, seconds in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))
    own = psutil.Process().cpu_times()
    own_s = own.user + own.system + own.children_user + own.children_system
    used = {}
    for process in psutil.process_iter():
        try:
            spent = process.cpu_times()
            used[process.pid] = (process.name(), spent.user + spent.system)
        except psutil.Error:
            continue
    return time.monotonic(), busy_s, own_s, used
