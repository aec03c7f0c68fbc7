"""Receives what workers report of the requests that are traced (`handlers/tracing.py`).

A report lies in the socket before its worker passes the answers on. So once the access log has an answer, the report is
there to be read, even if the worker has been killed since."""

import json
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.server.tracing.clock import Clock

SOCKET = "traces.sock"
_LARGEST = 1 << 20


@dataclass(frozen=True)
class Step:
    """A step of a request or of a batch; ns since 1970."""

    name: str
    begin_ns: int
    end_ns: int
    error: str | None
    facts: dict[str, Any]


@dataclass(frozen=True)
class Report:
    """A batch, if there was one, and the steps of its traced requests by their `traceparent`."""

    batch: Step | None
    requests: dict[str, list[Step]]


def parse_report(data: bytes, clock: Clock) -> Report:
    """Reads a report."""
    given = json.loads(data)

    def step(of: dict[str, Any]) -> Step:
        begin, end = (clock.since_1970_ns(round(of[name] * 1e9)) for name in ("begin", "end"))
        return Step(of["name"], begin, end, of["error"], of["facts"])

    requests = {parent: [step(each) for each in steps] for parent, steps in given["requests"].items()}
    return Report(step(given["batch"]) if given["batch"] else None, requests)


class ReportSocket:
    """Listens in a folder. `wait` and `read` belong to one thread, `wake` to any."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The path of a socket may have 107 characters, and a folder's more.
        handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{handle}/{SOCKET}")
        finally:
            os.close(handle)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._connections: list[socket.socket] = []
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def wake(self) -> None:
        """Ends a `wait`."""
        os.eventfd_write(self._woken, 1)

    def wait(self) -> None:
        """Returns when there is something to read, or after `wake`."""
        self._selector.select()
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)

    def read(self) -> Iterator[bytes]:
        """All reports that have arrived."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._connections.append(connection)
                self._selector.register(connection, selectors.EVENT_READ)
        for connection in list(self._connections):
            yield from self._reports(connection)

    def _reports(self, connection: socket.socket) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            while data := self._received(connection):
                yield data
            self._selector.unregister(connection)
            self._connections.remove(connection)
            connection.close()

    @staticmethod
    def _received(connection: socket.socket) -> bytes:
        try:
            return connection.recv(_LARGEST)
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Closes all sockets."""
        self._selector.close()
        for each in (*self._connections, self._listener):
            each.close()
        os.close(self._woken)
