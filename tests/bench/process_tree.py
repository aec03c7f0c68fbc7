"""What a server costs: the CPU time and the memory of its whole process tree, read from /proc; and its signals."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: the parent; time in user and kernel mode, of itself and of reaped children.
_PARENT, _TIMES = 1, slice(11, 15)


def unwind_on_sigterm() -> None:
    """A SIGTERM leaves every `with`, and so stops the servers that this process started."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def tree(root: int) -> list[int]:
    """A process and everything under it, that lives now."""
    parents: dict[int, list[int]] = {}
    for pid, fields in _every():
        parents.setdefault(int(fields[_PARENT]), []).append(pid)
    pids, pending = [], [root]
    while pending:
        pid = pending.pop()
        pids.append(pid)
        pending += parents.get(pid, [])
    return pids


def cpu_s(root: int) -> float:
    """CPU seconds that the tree has used, with children that it has reaped."""
    return _TICK_S * sum(sum(map(int, _stat(pid)[_TIMES])) for pid in tree(root))


def cpu_of_kinds_s(root: int) -> dict[str, float]:
    """CPU seconds of one of Marina's servers, by what its processes are."""
    spent_s = {"java": 0.0, "workers": 0.0, "supervisor": 0.0}
    for pid in tree(root):
        try:
            words = (PROC / str(pid) / "cmdline").read_text().split("\0")
        except OSError:
            continue
        is_worker = any("model_service_worker" in word or word == "marina.handlers.renewal" for word in words)
        kind = "java" if Path(words[0]).name == "java" else "workers" if is_worker else "supervisor"
        spent_s[kind] += _TICK_S * sum(map(int, _stat(pid)[_TIMES]))
    return spent_s


def machine_cpu_s() -> float:
    """CPU seconds that all cores have worked, whoever made them."""
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(
        int, (PROC / "stat").read_text().split("\n")[0].split()[1:]
    )
    return _TICK_S * (user + nice + system + irq + softirq)


def resident_mb(root: int) -> float:
    """Memory of the tree, MB; a page that several share counts once."""
    return sum(_shared_bytes(pid) for pid in tree(root)) / 1e6


def send(number: signal.Signals, family: Sequence[int]) -> None:
    """A signal to each of a tree that is still there; `family` was taken while it lived."""
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _shared_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _every() -> Iterator[tuple[int, list[str]]]:
    for folder in PROC.glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            yield int(folder.name), fields


def _stat(pid: int) -> list[str]:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    # The name in parentheses may hold anything, spaces and parentheses too.
    return text.rpartition(")")[2].split()
