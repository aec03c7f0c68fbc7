"""How much CPU other processes use while a server is measured: on a busy machine, latencies are partly theirs."""

import os
import time
from collections.abc import Iterable

import psutil

from marina.config.record import Part
from marina.loadtest.measuring.machine import descendants

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
        return {pid for root in self._roots for pid in (root, *descendants(root))}


def _now() -> tuple[float, float, float, dict[int, tuple[str, float]]]:
    """The time, the busy time of all cores, our own (with children that have ended), and that of each process."""
    times = psutil.cpu_times()._asdict()
    busy_s = sum(seconds for name, seconds in times.items() if name not in ("idle", "iowait", "guest", "guest_nice"))
    own = psutil.Process().cpu_times()
    own_s = own.user + own.system + own.children_user + own.children_system
    used = {}
    for process in psutil.process_iter():
        try:
            spent = process.cpu_times()
            # A name may be any bytes; records must be UTF-8.
            name = process.name().encode(errors="replace").decode()
            used[process.pid] = (name, spent.user + spent.system)
        except psutil.Error:
            continue
    return time.monotonic(), busy_s, own_s, used
