"""TorchServe's Java: the checks before its start, the start, and everything that is read from it or sent to it."""

from marina.server.java.checks import (
    check_disk_space,
    check_package,
    check_ports,
    check_temporary_folder,
    connection_limit,
    find_java,
)
from marina.server.java.child import Child
from marina.server.java.door import Door, NoDoorError, OpenCounts
from marina.server.java.follow import RequestLog
from marina.server.java.frontend import Counters, Frontend, ModelStatus, NoAnswerError, WorkerStatus
from marina.server.java.launch import Launch, plan_launch
from marina.server.java.traffic import DurationHistogram, Traffic

__all__ = [
    "Child",
    "Counters",
    "Door",
    "DurationHistogram",
    "Frontend",
    "Launch",
    "ModelStatus",
    "NoAnswerError",
    "NoDoorError",
    "OpenCounts",
    "RequestLog",
    "Traffic",
    "WorkerStatus",
    "check_disk_space",
    "check_package",
    "check_ports",
    "check_temporary_folder",
    "connection_limit",
    "find_java",
    "plan_launch",
]
