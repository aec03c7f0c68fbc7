"""Waits until the process that started it has ended in any way, and then kills the processes that it left behind.

A separate script, because a process that is killed by SIGKILL cannot clean up itself; it imports nothing of Marina.
Standard input is a pipe whose other end only that process has, so it closes with that process. The argument is that
process's temporary folder, which is also in the environment of all processes that it started."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

JOB_VARIABLE = "MARINA_JOB"
_PATIENCE_S = 10.0


def main() -> None:
    folder = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    until = time.monotonic() + _PATIENCE_S
    while (left := _marked_processes(f"{JOB_VARIABLE}={folder}".encode())) and time.monotonic() < until:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _marked_processes(mark: bytes) -> list[int]:
    """The ids of all other processes with the mark in their environment."""
    marked: list[int] = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0") and int(file.parent.name) != os.getpid():
                marked.append(int(file.parent.name))
        except OSError:
            continue
    return marked


if __name__ == "__main__":
    main()
