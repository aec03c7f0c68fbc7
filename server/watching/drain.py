"""The end of a server: not ready, serve on while load balancers learn of it, let nobody new in, close the listener,
answer what is open.

The order is the point. From the beginning every answer is the last of its connection. Then no new connection can be
made, what was made is accepted, the listener is closed, and Java is ended last: when every request that was sent to it
is answered and every answer is with its client. Both are exact: what is open is counted at the door in front of
TorchServe (`server/java/door.py`), what clients have not got is known to the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from server.java import OpenCounts
from server.system import Sockets

_LOOK_S = 0.02
# Who has just connected is about to ask, and half a head is about to become a whole one; but a connection that is only
# held open must not put the end off.
_PATIENCE_S = 2.0
# How long connections that are being made may take; a client that began one and fell silent would keep us for a minute.
_ACCEPTING_S = 1.0
# What answers that come in pieces get for a last one, once the bound is exceeded.
_LAST_WORDS_S = 1.0


class Drainable(Protocol):
    """What a drain asks and does; the supervisor is one."""

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
    """How a drain ended: requests without an answer, answers that were not fetched, why it did not wait for them, and
    how long it took."""

    left: int
    unread: int
    reason: str | None
    took_s: float


def drain(server: Drainable, *, propagation_s: float, timeout_s: float, say: Callable[[str], None]) -> Drained:
    """Ends when nothing is in flight, or the bound or a second signal cuts it short. Java is left to the caller."""
    begin = time.monotonic()
    server.end_connections()
    if propagation_s > 0:
        say(f"draining: no longer ready, still serving for {propagation_s:g} s while load balancers learn of it")
    if server.second_signal_within(propagation_s):
        return _cut(server, "a second signal", begin)
    if server.refuse_new_connections():
        _wait_until_accepted(server)
    server.close_listener()
    say("draining: no new connections; answering the open requests")
    closed, last = time.monotonic(), None
    while True:
        # The sockets first: what they had received by then has been counted when the count is answered.
        sockets = server.sockets()
        counted = server.count()
        if is_quiet(counted, sockets, patient=time.monotonic() < closed + _PATIENCE_S):
            return Drained(0, 0, None, time.monotonic() - begin)
        last = counted or last
        if not server.java_runs():
            return Drained(last.requests if last else 0, 0, "TorchServe died", time.monotonic() - begin)
        if time.monotonic() > closed + timeout_s:
            cut = _cut(server, f"`serving.drain_timeout_s` of {timeout_s:g} s was exceeded", begin)
            _let_answers_end(server)
            return cut
        if server.second_signal_within(_LOOK_S):
            return _cut(server, "a second signal", begin)


def _wait_until_accepted(server: Drainable) -> None:
    # Twice, because one look is not of one moment: a connection may be made after the queue was read.
    until, clear = time.monotonic() + _ACCEPTING_S, 0
    while clear < 2 and time.monotonic() < until and not server.second_signal_within(_LOOK_S):
        clear = 0 if server.sockets().waiting else clear + 1


def is_quiet(counted: OpenCounts | None, sockets: Sockets, *, patient: bool) -> bool:
    """Whether nothing is asked, answered or on its way. Unknown counts are not quiet, unless nobody is connected."""
    if sockets.listening or sockets.undelivered:
        return False
    if sockets.connected == 0:
        return True
    if counted is None or counted.requests or sockets.unread:
        return False
    return not (patient and counted.expected)


def _let_answers_end(server: Drainable) -> None:
    """A language model's streams end with an error that says so, not in the middle of a chunk."""
    server.end_answers()
    until = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < until and not server.second_signal_within(_LOOK_S):
        if is_quiet(server.count(), server.sockets(), patient=False):
            return


def _cut(server: Drainable, reason: str, begin: float) -> Drained:
    sockets, counted = server.sockets(), server.count()
    # Where it is not known: at most one request is open on a connection.
    left = sockets.connected if counted is None else counted.requests
    return Drained(left, sockets.undelivered, reason, time.monotonic() - begin)
