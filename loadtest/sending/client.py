"""Connections to one server on gevent sockets: kept alive, made when all are busy, dropped when the server closes."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent
from gevent import socket

from loadtest.sending.answer_checks import BROKEN, REFUSED, TIMEOUT, Checker
from loadtest.sending.plan import LoadRequest
from loadtest.sending.wire import AnswerReader, BrokenAnswer, EventReader, HttpAnswer

# A server may close a connection that rests; one that rested this long is looked at before it is used again.
_RESTED_S = 0.5
_READ_BYTES = 65536
Hear = Callable[[bytes], None]


class RequestResult(NamedTuple):
    """What became of one request: the name of a failure, if any, the length of the body, and the events in it."""

    failure: str | None
    size: int
    heard: EventReader | None


def send_and_check(
    client: Client, which: int, checker: Checker, timeout_s: float, clock: Callable[[], float]
) -> RequestResult:
    """Sends one request and looks at its answer, which may come in events."""
    heard, size = checker.reader(clock), 0
    failure: str | None
    try:
        with gevent.Timeout(timeout_s):
            answer = client.send(which, None if heard is None else heard.hear)
        failure, size = checker.failure(answer, heard), len(answer.body)
    except gevent.Timeout:
        failure = TIMEOUT
    except ConnectionRefusedError:
        failure = REFUSED
    except (OSError, BrokenAnswer):
        failure = BROKEN
    return RequestResult(failure, size, heard)


class Connection:
    """One connection; not safe for two requests at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.used_at = time.perf_counter()

    def exchange(self, data: bytes, hear: Hear | None = None) -> HttpAnswer:
        """Sends a request and waits for its answer; BrokenAnswer or OSError when the connection ends first."""
        reader = AnswerReader(hear)
        # A server may answer before it has read everything, 413 for one, and close: the answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)
        while received := self._socket.recv(_READ_BYTES):
            answer = reader.feed(received)
            if answer is not None:
                self.used_at = time.perf_counter()
                return answer
        return reader.finish()

    def is_alive(self) -> bool:
        """Whether a resting connection is still open and silent."""
        if time.perf_counter() - self.used_at < _RESTED_S:
            return True
        self._socket.settimeout(0.0)
        try:
            # Not with MSG_PEEK, which TLS does not have: a connection with anything to read is not used again anyhow.
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(None)
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


class Client:
    """Sends one request to one server over as many connections as are needed at once."""

    def __init__(self, request: LoadRequest) -> None:
        self._data = [request.wire_bytes(body) for body in request.all_bodies]
        self._host = request.address[0]
        self._tls = ssl.create_default_context(cafile=request.cacert) if request.tls else None
        if self._tls is not None and request.cert is not None:
            self._tls.load_cert_chain(request.cert, request.key)
        addresses: Any = socket.getaddrinfo(*request.address, type=socket.SOCK_STREAM)
        self._family, self._address = addresses[0][0], addresses[0][4]
        self._resting: list[Connection] = []

    def send(self, which: int = 0, hear: Hear | None = None) -> HttpAnswer:
        """One request with one of the bodies, and its answer, whose chunks are read as they arrive; it is never sent
        twice, because a lost one must be seen."""
        connection = self._take()
        try:
            answer = connection.exchange(self._data[which], hear)
        except BaseException:
            connection.close()
            raise
        if answer.keep_alive:
            self._resting.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Ends the connections that rest."""
        while self._resting:
            self._resting.pop().close()

    def _take(self) -> Connection:
        while self._resting:
            connection = self._resting.pop()
            if connection.is_alive():
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> Connection:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.connect(self._address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)
