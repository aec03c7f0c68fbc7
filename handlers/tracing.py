"""Tells the supervisor what a worker did with the requests that are traced, and when: it makes the spans of that.

A worker itself sends nothing to a collector: it has no time for that, and its end by SIGKILL would lose spans. What it
tells is in the supervisor's hands before the answers are in TorchServe's."""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson

# The folder with the supervisor's socket; only set if the spec traces.
VARIABLE = "MARINA_TRACES"
SOCKET = "traces.sock"
# The door writes the header anew for each request that is traced, in this spelling and with this length.
HEADER, _LENGTH, _SAMPLED = "traceparent", 55, 1


@dataclass
class Step:
    """A step of one request, or of its batch: seconds of `perf_counter`, which on Linux is the same clock for all
    processes, and that of `monotonic`."""

    name: str
    begin: float
    end: float
    error: str | None = None
    """The kind of its error, as the metrics name it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is shown with it, by the names of OpenTelemetry's conventions where they have one."""


def parent_of(headers: Mapping[str, Any]) -> str | None:
    """The traced request that these headers belong to; None if it is not traced."""
    value = headers.get(HEADER)
    if isinstance(value, str) and len(value) == _LENGTH and int(value[-1], 16) & _SAMPLED:
        return value
    return None


class TraceReports:
    """The connection to the supervisor. A report for which there is no room, or nobody to read it, is dropped."""

    def __init__(self, folder: Path) -> None:
        # The path of a socket may have 107 characters, and a folder's more.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._connection: socket.socket | None = None

    def traced(self, headers: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Those requests of a batch that are traced, by their places."""
        return {place: parent for place, each in enumerate(headers) if (parent := parent_of(each))}

    def batch(self, begin: float, requests: Mapping[str, Sequence[Step]], *, rows: int, padding: int = 0) -> None:
        """Reports a batch that ends now, and the steps of each of its traced requests."""
        facts = {"marina.batch.requests": rows, "marina.batch.padding": padding}
        self._send(requests, Step("batch", begin, perf_counter(), facts=facts))

    def request(self, parent: str, steps: Sequence[Step]) -> None:
        """Reports a request that was answered in no batch."""
        self._send({parent: steps})

    def _send(self, requests: Mapping[str, Sequence[Step]], batch: Step | None = None) -> None:
        report = orjson.dumps({"batch": batch, "requests": requests})
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._connection.setblocking(False)
                self._connection.connect(f"/proc/self/fd/{self._folder}/{SOCKET}")
            self._connection.send(report)
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def close(self) -> None:
        """Ends the connection; the next report begins another."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None


def open_reports() -> TraceReports | None:
    """None if the spec does not trace."""
    folder = os.environ.get(VARIABLE)
    return TraceReports(Path(folder)) if folder else None
