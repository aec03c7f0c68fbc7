"""A server to measure, and `run`, the verb: from a spec to a verdict and its files."""

from loadtest.running.confinement import Confined
from loadtest.running.next_step import next_step
from loadtest.running.options import RunOptions
from loadtest.running.runs import known_knee, run, verdict_text
from loadtest.running.session import Elsewhere, Session, Where, find_package, open_session
from loadtest.running.target import Target, await_ready, check_listening, existing, serve_command, started

__all__ = [
    "Confined",
    "Elsewhere",
    "RunOptions",
    "Session",
    "Target",
    "Where",
    "await_ready",
    "check_listening",
    "existing",
    "find_package",
    "known_knee",
    "next_step",
    "open_session",
    "run",
    "serve_command",
    "started",
    "verdict_text",
]
