"""Starts or finds a server to measure, and runs a whole load test: from a spec to a verdict and its files."""

from marina.loadtest.running.load_test import known_knee, run_load_test, verdict_text
from marina.loadtest.running.next_step import next_step
from marina.loadtest.running.options import RunOptions, SendingOptions, stated_rate
from marina.loadtest.running.session import (
    RemoteServer,
    Session,
    TargetOptions,
    find_package,
    measuring_into,
    open_session,
    open_target,
)
from marina.loadtest.running.target import Target, await_ready, serve_command, started_server

__all__ = [
    "RemoteServer",
    "RunOptions",
    "SendingOptions",
    "Session",
    "Target",
    "TargetOptions",
    "await_ready",
    "find_package",
    "known_knee",
    "measuring_into",
    "next_step",
    "open_session",
    "open_target",
    "run_load_test",
    "serve_command",
    "started_server",
    "stated_rate",
    "verdict_text",
]
