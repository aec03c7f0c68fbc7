"""What the operating system gives a server: processes, signals, sockets, files. Knows nothing of TorchServe."""

from server.system.exits import Exit
from server.system.logfile import LogFile
from server.system.machine import differences
from server.system.output import Output, Sink, log_line
from server.system.processes import (
    Handles,
    Identity,
    adopt_orphans,
    children,
    identify,
    is_stopped,
    open_files,
    resident_bytes,
)
from server.system.rundir import CLOSING, OWNER, create_run_directory, temporary_parent
from server.system.signals import Signals
from server.system.sockets import Sockets, read_sockets

__all__ = [
    "CLOSING",
    "OWNER",
    "Exit",
    "Handles",
    "Identity",
    "LogFile",
    "Output",
    "Signals",
    "Sink",
    "Sockets",
    "adopt_orphans",
    "children",
    "create_run_directory",
    "differences",
    "identify",
    "is_stopped",
    "log_line",
    "open_files",
    "read_sockets",
    "resident_bytes",
    "temporary_parent",
]
