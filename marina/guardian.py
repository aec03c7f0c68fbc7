"""Waits for the end of the process that started it, however it came, and then ends what that left behind.

A script of its own, with nothing to import: killed by SIGKILL, a process can clean up nothing itself. Standard input is
a pipe whose other end only that process holds; the argument is its temporary folder, which all that it started has in
its environment.
"""

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
    while (left := _marked(f"{JOB_VARIABLE}={folder}".encode())) and time.monotonic() < until:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark: bytes) -> list[int]:
    """The processes that have the folder in their environment."""
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
