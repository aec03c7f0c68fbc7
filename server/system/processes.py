"""Information about processes from /proc, handles that signal their end, and the adoption of orphans."""

import ctypes
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessIdentity:
    """Names one process for good: pids are reused, but not together with their start time."""

    pid: int
    started: int

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
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]))


def is_stopped(pid: int) -> bool:
    """True if the process was stopped by SIGSTOP: alive, but doing nothing until it gets SIGCONT."""
    with suppress(OSError):
        return _stat(pid)[:1] == ["T"]
    return False


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name in parentheses may contain anything, even spaces and parentheses.
    return text.rpartition(")")[2].split()


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


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, bytes; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def open_file_count(pid: int) -> int:
    """Number of open files, pipes and connections of a process; 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Pids of a process's direct children, whichever of its threads started them."""
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += map(int, file.read_text(encoding="ascii").split())
        except OSError:
            continue
    return pids


def adopt_orphans() -> None:
    """Makes this process the new parent of its orphaned descendants, as PID 1 is anyway, so that it can end and reap
    them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
