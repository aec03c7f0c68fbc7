"""What /proc says of a process, handles that tell of its end, and the two wishes of a parent."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for its whole life: pids come back, pids with their start time do not."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that only waits to be reaped does not."""
        return identify(self.pid) == self


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this pid now; None when there is none or it has ended."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]))


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP): alive, and doing nothing until it is told to go on."""
    return _stat(pid)[:1] == ["T"]


def _stat(pid: int) -> list[str]:
    """The state of a process and what follows it; nothing when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name in parentheses may hold anything, spaces and parentheses too.
    return text.rpartition(")")[2].split()


class ProcessHandles:
    """One of each process that is watched; it becomes readable when the process ends."""

    def __init__(self) -> None:
        self._open: dict[ProcessIdentity, int] = {}

    def for_processes(self, processes: Collection[ProcessIdentity]) -> list[int] | None:
        """A handle of each of these; None when one cannot be had, because it has ended or because sandboxes differ."""
        for process in self._open.keys() - set(processes):
            os.close(self._open.pop(process))
        for process in processes:
            if process not in self._open:
                try:
                    self._open[process] = os.pidfd_open(process.pid)
                except OSError:
                    return None
                # Meanwhile the pid may have become another's.
                if not process.alive:
                    os.close(self._open.pop(process))
                    return None
        return list(self._open.values())

    def close(self) -> None:
        """Gives all of them back."""
        self.for_processes(())


def resident_bytes(pid: int) -> int:
    """Resident memory; 0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def open_file_count(pid: int) -> int:
    """Files, pipes and connections that a process holds; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """Direct children of a process, from every thread of it."""
    pids: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += map(int, file.read_text(encoding="ascii").split())
        except OSError:
            continue
    return pids


def adopt_orphans() -> None:
    """Grandchildren whose parent dies become ours, as they would for PID 1, so that we can end and reap them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
