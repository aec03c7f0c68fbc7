"""TorchServe's Java: the checks before its start, the start, and everything that is read from it or sent to it."""

from server.java.checks import check_disk_space, check_package, check_ports, connection_limit, find_java
from server.java.child import Child
from server.java.door import Door, NoDoorError, OpenCounts
from server.java.follow import RequestLog
from server.java.frontend import Counters, Frontend, ModelStatus, NoAnswerError, WorkerStatus
from server.java.launch import Launch, plan_launch
from server.java.traffic import DurationHistogram, Traffic

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
    "connection_limit",
    "find_java",
    "plan_launch",
]
