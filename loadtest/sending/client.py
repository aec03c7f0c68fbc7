"""An HTTP client for one server, on gevent sockets: it keeps connections alive, opens new ones if all are busy, and
checks whether answers are good. What is wrong with one has a name:

timeout        no answer in time
refused        the server accepts no connection
broken         the connection ended before the answer was complete, or the answer was not HTTP
limited        429: a rate limit before the server refused it, which is no failure of the server
shed           503 because the model's queue was full, or a language model had no slot in time
http 404 …     any other status than 2xx
malformed      2xx, but without the structure that the package promises
unfinished     a stream that ended without `[DONE]`, or with an error in it
unsent         this machine had no port, file or memory left for a connection"""

import contextlib
import errno
import json
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent
from gevent import socket

from marina.loadtest.sending.plan import Expected, LoadRequest
from marina.loadtest.sending.wire import AnswerReader, BrokenAnswer, EventReader, HttpAnswer

TIMEOUT, REFUSED, BROKEN, SHED, LIMITED = "timeout", "refused", "broken", "shed", "limited"
MALFORMED, UNFINISHED, UNSENT = "malformed", "unfinished", "unsent"
# Texts of our server and of a bare TorchServe; a handler that fails also answers 503, but with other texts.
_QUEUE_FULL = (b'"overloaded: ', b"has no worker to serve", b'"code":"busy"')
_MOST_REMEMBERED = 64
_READ_BYTES = 65536
# What a connection takes of this machine, which the server cannot help.
_NOTHING_LEFT = (errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# How long an address may take to accept a connection while there is another one to try.
_NEXT_AFTER_S = 1.0
OnBody = Callable[[bytes], None]


class Checker:
    """Checks the structure of answers; bytes that were good before are recognised and not parsed again."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._good: set[bytes] = set()

    def reader(self, clock: Callable[[], float]) -> EventReader | None:
        """A reader for the events of a streamed answer; None for an answer that comes as a whole."""
        return EventReader(clock) if self._expected.form == "events" else None

    def failure(self, answer: HttpAnswer, events: EventReader | None = None) -> str | None:
        """The name of what is wrong with an answer (and its events, if it is streamed); None if it is good."""
        if answer.status == 503 and any(words in answer.body for words in _QUEUE_FULL):
            return SHED
        if answer.status == 429:
            return LIMITED
        if not 200 <= answer.status < 300:
            return f"http {answer.status}"
        if events is not None:
            return None if events.is_complete else UNFINISHED
        if answer.body in self._good:
            return None
        if not has_structure(answer.body, self._expected):
            return MALFORMED
        if len(self._good) < _MOST_REMEMBERED:
            self._good.add(answer.body)
        return None


def has_structure(body: bytes, expected: Expected) -> bool:
    """Whether the body of a 2xx answer has the structure that the package promises."""
    if expected.form == "any":
        return True
    if expected.form == "npy":
        return body.startswith(b"\x93NUMPY")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return not expected.keys or (isinstance(data, dict) and all(key in data for key in expected.keys))


class RequestResult(NamedTuple):
    """The result of one request: the name of a failure, if any, the size of the body, and the events in it."""

    failure: str | None
    size: int
    events: EventReader | None


def send_and_check(
    client: "Client", which: int, checker: Checker, timeout_s: float, clock: Callable[[], float]
) -> RequestResult:
    """Sends one request and checks its answer, which may be streamed."""
    events, size = checker.reader(clock), 0
    failure: str | None
    try:
        with gevent.Timeout(timeout_s):
            answer = client.send(which, None if events is None else events.feed)
        failure, size = checker.failure(answer, events), len(answer.body)
    except gevent.Timeout:
        failure = TIMEOUT
    except ConnectionRefusedError:
        failure = REFUSED
    except (OSError, BrokenAnswer) as err:
        failure = UNSENT if isinstance(err, OSError) and err.errno in _NOTHING_LEFT else BROKEN
    return RequestResult(failure, size, events)


class Connection:
    """One connection; it cannot carry two requests at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def exchange(self, data: bytes, on_body: OnBody | None = None) -> HttpAnswer:
        """Sends a request and waits for its answer; BrokenAnswer or OSError if the connection ends first."""
        reader = AnswerReader(on_body)
        # A server may answer before it has read everything (such as 413), and close; the answer can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)
        while received := self._socket.recv(_READ_BYTES):
            answer = reader.feed(received)
            if answer is not None:
                return answer
        return reader.finish()

    def is_alive(self) -> bool:
        """Whether an idle connection is still open and has nothing to read: a server may close it at any time."""
        self._socket.settimeout(0.0)
        try:
            # TLS has no MSG_PEEK; but a connection with anything to read is not used again anyway.
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(None)
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()


class Client:
    """Sends requests to one server, over as many connections as are needed at once."""

    def __init__(self, request: LoadRequest) -> None:
        self._data = [request.wire_bytes(body) for body in request.all_bodies]
        self._host = request.address[0]
        self._tls = ssl.create_default_context(cafile=request.cacert) if request.tls else None
        if self._tls is not None and request.cert is not None:
            self._tls.load_cert_chain(request.cert, request.key)
        addresses: Any = socket.getaddrinfo(*request.address, type=socket.SOCK_STREAM)
        self._addresses = [(family, address) for family, _, _, _, address in addresses]
        self._idle: list[Connection] = []
        self._fresh_every, self._sent = request.fresh_every, 0

    def send(self, which: int = 0, on_body: OnBody | None = None) -> HttpAnswer:
        """Sends one of the request's bodies and returns the answer; `on_body` gets its chunks as they arrive.

        A request is never sent twice, because a lost one must be counted."""
        self._sent += 1
        fresh = bool(self._fresh_every) and self._sent % self._fresh_every == 0
        connection = self._connect() if fresh else self._take()
        try:
            answer = connection.exchange(self._data[which], on_body)
        except BaseException:
            connection.close()
            raise
        if answer.keep_alive and not fresh:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> Connection:
        """Connects to the first address that accepts: `localhost` is often also an address that nobody listens at."""
        refused = OSError()
        for number, (family, address) in enumerate(self._addresses, 1):
            try:
                within_s = None if number == len(self._addresses) else _NEXT_AFTER_S
                connection = self._connect_to(family, address, within_s)
            except OSError as err:
                refused = err
            else:
                self._addresses = [(family, address)]
                return connection
        raise refused

    def _connect_to(self, family: int, address: Any, within_s: float | None) -> Connection:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(within_s)
            sock.connect(address)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)
