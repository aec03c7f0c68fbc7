"""TorchServe's Java: how it is started, what it says, how it is held."""

from server.java.checks import check_package, check_ports, check_room, find_java, room_for_connections
from server.java.child import Child
from server.java.door import Door, NoDoorError, Open
from server.java.follow import RequestLog
from server.java.frontend import Counters, Description, Frontend, NoAnswerError, Worker
from server.java.launch import Launch, plan_launch
from server.java.traffic import Histogram, Traffic

__all__ = [
    "Child",
    "Counters",
    "Description",
    "Door",
    "Frontend",
    "Histogram",
    "Launch",
    "NoAnswerError",
    "NoDoorError",
    "Open",
    "RequestLog",
    "Traffic",
    "Worker",
    "check_package",
    "check_ports",
    "check_room",
    "find_java",
    "plan_launch",
    "room_for_connections",
]
