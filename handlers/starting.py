"""Writes down when a worker's start has reached each step, for the supervisor's page: a line each, in a file beside the
server's others. The times are of the machine's monotonic clock, which all processes read alike."""

import os
import time
from contextlib import suppress
from pathlib import Path

# The folder of the server; none if a handler runs without one.
_FOLDER = "MARINA_RUN"


def reached(step: str) -> None:
    """Writes down that this step is done; the first one also says when the process began."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return
    file = Path(folder, f"start-{os.getpid()}")
    # A worker starts all the same.
    with suppress(OSError, ValueError):
        begun = "" if file.exists() else f"begun {_begun():.6f}\n"
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{begun}{step} {time.monotonic():.6f}\n")


def _begun() -> float:
    """When this process began. The kernel counts from the boot, and a machine that slept has another count since."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
