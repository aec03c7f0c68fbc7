"""Information about processes, handles that signal their end, and the adoption of orphans."""

import ctypes
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import psutil

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessIdentity:
    """Names one process for good: pids are reused, but not together with their start time."""

    pid: int
    started: float

    @property
    def alive(self) -> bool:
        """True while it runs, and while no file can be opened to see that; false once it has ended, even if it is not
        reaped yet."""
        try:
            return identify(self.pid) == self
        except OSError:
            return True


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None if there is none or it has ended. Raises OSError if no file can be
    opened to see that."""
    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else ProcessIdentity(pid, process.create_time())
    except psutil.NoSuchProcess:
        return None


def is_stopped(pid: int) -> bool:
    """True if the process was stopped by SIGSTOP: alive, but doing nothing until it gets SIGCONT."""
    with suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, bytes; 0 if it is gone."""
    with suppress(psutil.Error, OSError):
        return psutil.Process(pid).memory_info().rss
    return 0


def open_file_count(pid: int) -> int:
    """Number of open files, pipes and connections of a process; 0 if it is gone."""
    with suppress(psutil.Error, OSError):
        return psutil.Process(pid).num_fds()
    return 0


class ProcessHandles:
    """A pidfd for each watched process; it becomes readable when the process ends."""

    def __init__(self) -> None:
        self._open: dict[ProcessIdentity, int] = {}

    def for_processes(self, processes: Collection[ProcessIdentity]) -> list[int] | None:
        """One handle per process, and closes those of other processes. None if one cannot be opened, because the
        process has ended or a sandbox does not allow it."""
        for process in self._open.keys() - set(processes):
            os.close(self._open.pop(process))
        for process in processes:
            if process not in self._open:
                try:
                    self._open[process] = os.pidfd_open(process.pid)
                except OSError:
                    return None
                # The pid may have been reused before the handle was opened.
                if not process.alive:
                    os.close(self._open.pop(process))
                    return None
        return list(self._open.values())

    def close(self) -> None:
        self.for_processes(())


def adopt_orphans() -> None:
    """Makes this process the new parent of its orphaned descendants, as PID 1 is anyway, so that it can end and reap
    them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
