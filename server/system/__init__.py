"""What a server needs from the operating system: processes, signals, sockets, files. Knows nothing about TorchServe."""

from marina.server.system.exits import Exit
from marina.server.system.logfile import LogFile
from marina.server.system.machine import NO_GPU, package_mismatches
from marina.server.system.output import Output, Sink, log_line
from marina.server.system.processes import (
    ProcessHandles,
    ProcessIdentity,
    adopt_orphans,
    identify,
    is_stopped,
    open_file_count,
    resident_bytes,
)
from marina.server.system.rundir import (
    CLOSING_FILE,
    OWNER_VARIABLE,
    create_run_directory,
    end_processes,
    temporary_parent,
)
from marina.server.system.signals import Signals
from marina.server.system.sockets import Sockets, reachable_host, read_sockets

__all__ = [
    "CLOSING_FILE",
    "NO_GPU",
    "OWNER_VARIABLE",
    "Exit",
    "LogFile",
    "Output",
    "ProcessHandles",
    "ProcessIdentity",
    "Signals",
    "Sink",
    "Sockets",
    "adopt_orphans",
    "create_run_directory",
    "end_processes",
    "identify",
    "is_stopped",
    "log_line",
    "open_file_count",
    "package_mismatches",
    "reachable_host",
    "read_sockets",
    "resident_bytes",
    "temporary_parent",
]
