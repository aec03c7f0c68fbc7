"""TorchServe's Java: how it is started, what it says, how it is held."""

from server.java.checks import check_package, check_ports, check_room, find_java
from server.java.child import Child
from server.java.follow import RequestLog
from server.java.frontend import Counters, Description, Frontend, NoAnswerError, Worker
from server.java.launch import Launch, plan_launch
from server.java.traffic import Histogram, Traffic

__all__ = [
    "Child",
    "Counters",
    "Description",
    "Frontend",
    "Histogram",
    "Launch",
    "NoAnswerError",
    "RequestLog",
    "Traffic",
    "Worker",
    "check_package",
    "check_ports",
    "check_room",
    "find_java",
    "plan_launch",
]
