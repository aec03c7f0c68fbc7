"""Drains a server: report not ready, keep serving while load balancers notice, refuse new connections, close the
listener, answer what is open.

The order matters. From the start, every answer is the last one on its connection. Then new connections are refused,
those in the queue are accepted, and the listener is closed. Java is ended last, once every request that was sent is
answered and every answer has reached its client. Both are known exactly: the door in front of TorchServe counts open
requests (`server/java/door.py`), and the kernel knows what clients have not received."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from marina.server.java.door import OpenCounts
from marina.server.system.sockets import Sockets

_POLL_S = 0.02
# How long to wait for a request on a new connection, or for the rest of its head. No longer, because a connection that
# is only held open must not delay the end.
_PATIENCE_S = 2.0
# How long to wait for handshakes to complete: a client that began one and fell silent would hold us up for a minute.
_ACCEPTING_S = 1.0
# How long streamed answers get to send their last piece once the drain's time is over.
_LAST_PIECE_S = 1.0


class Drainable(Protocol):
    """A server that can be drained; the supervisor implements it."""

    def end_connections(self) -> None: ...

    def refuse_new_connections(self) -> bool: ...

    def close_listener(self) -> None: ...

    def count(self) -> OpenCounts | None: ...

    def sockets(self) -> Sockets: ...

    def end_answers(self) -> None: ...

    def java_runs(self) -> bool: ...

    def second_signal_within(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True)
class Drained:
    left: int
    """Requests without an answer."""
    unread: int
    """Answers that clients had not received."""
    reason: str | None
    """Why the drain was cut short; None if it was not."""
    took_s: float


def drain(server: Drainable, *, propagation_s: float, timeout_s: float, say: Callable[[str], None]) -> Drained:
    """Returns when nothing is in flight any more, when `timeout_s` is over, or at a second signal. The caller ends
    Java."""
    begin, last = time.monotonic(), server.count()
    server.end_connections()
    if propagation_s > 0:
        say(f"draining: no longer ready, still serving for {propagation_s:g} s while load balancers notice")
    if server.second_signal_within(propagation_s):
        return _cut(server, "a second signal", begin)
    if server.refuse_new_connections():
        _wait_until_accepted(server)
    server.close_listener()
    say("draining: no new connections; answering the open requests")
    closed = time.monotonic()
    while True:
        # The sockets come first: whatever they had received by then is included in the door's count.
        sockets = server.sockets()
        counted = server.count()
        # A dead Java has no connections, but it has not answered them.
        if not server.java_runs():
            return Drained(last.requests if last else 0, 0, "TorchServe died", time.monotonic() - begin)
        if is_quiet(counted, sockets, patient=time.monotonic() < closed + _PATIENCE_S):
            return Drained(0, 0, None, time.monotonic() - begin)
        last = counted or last
        if time.monotonic() > closed + timeout_s:
            cut = _cut(server, f"`serving.drain_timeout_s` of {timeout_s:g} s was exceeded", begin)
            _let_answers_end(server)
            return cut
        if server.second_signal_within(_POLL_S):
            return _cut(server, "a second signal", begin)


def _wait_until_accepted(server: Drainable) -> None:
    # The queue must be empty twice, because /proc is not read atomically: a connection may be established after the
    # queue was read.
    until, clear = time.monotonic() + _ACCEPTING_S, 0
    while clear < 2 and time.monotonic() < until and not server.second_signal_within(_POLL_S):
        clear = 0 if server.sockets().waiting else clear + 1


def is_quiet(counted: OpenCounts | None, sockets: Sockets, *, patient: bool) -> bool:
    """True if no request or answer is open or in flight. Without counts the server is not quiet, unless nobody is
    connected. `patient` also waits for requests that have only begun to arrive."""
    if sockets.listening or sockets.undelivered:
        return False
    # Some sandboxes hide the kernel's table of connections.
    if sockets.connected == 0 and not (counted and counted.connections):
        return True
    if counted is None or counted.requests or sockets.unread:
        return False
    return not (patient and counted.expected)


def _let_answers_end(server: Drainable) -> None:
    """Lets a language model's streams end with a proper error instead of in the middle of a chunk."""
    server.end_answers()
    until = time.monotonic() + _LAST_PIECE_S
    while time.monotonic() < until and not server.second_signal_within(_POLL_S):
        if is_quiet(server.count(), server.sockets(), patient=False):
            return


def _cut(server: Drainable, reason: str, begin: float) -> Drained:
    sockets, counted = server.sockets(), server.count()
    # Without a count this is the upper bound: at most one request is open on each connection.
    left = sockets.connected if counted is None else counted.requests
    return Drained(left, sockets.undelivered, reason, time.monotonic() - begin)
