"""The end of a server: not ready, serve on while load balancers learn of it, let nobody new in, close the listener,
answer what is open.

The order is the point. First no new connection can be made, then what was made is accepted, then the listener is
closed, and Java is ended last: until then it answers every request that was sent to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from server.system import Sockets

_LOOK_S = 0.02
# A request just read is not counted for a moment, and one just answered is not written for a moment.
_QUIET_LOOKS = 5
# Clients that go on sending over connections they kept would put the end off for ever, and TorchServe cannot tell them
# to close: after this long one look at which nothing is open must do. All that was sent before the listener closed is
# answered by then.
_PATIENCE_S = 2.0
# How long connections that are being made may take; a client that began one and fell silent would keep us for a minute.
_ACCEPTING_S = 1.0


class Stopping(Protocol):
    """What a drain asks and does; the supervisor is one."""

    def turn_away(self) -> bool: ...

    def close_listener(self) -> None: ...

    def open_requests(self) -> int | None: ...

    def sockets(self) -> Sockets: ...

    def java_runs(self) -> bool: ...

    def hurried(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True)
class Drained:
    """How a drain ended: requests still open, why it did not wait for them, and how long it took."""

    left: int
    reason: str | None
    took_s: float


def drain(server: Stopping, *, propagation_s: float, timeout_s: float, say: Callable[[str], None]) -> Drained:
    """Ends when nothing is in flight, or the bound or a second signal cuts it short. Java is left to the caller."""
    begin = time.monotonic()
    if propagation_s > 0:
        say(f"draining: not ready; serving on for {propagation_s:g} s while load balancers learn of it")
    if server.hurried(propagation_s):
        return _cut(server, "a second signal", begin)
    if server.turn_away():
        _wait_until_accepted(server)
    server.close_listener()
    say("draining: no new connections; answering what is open")
    closed, quiet = time.monotonic(), 0
    while quiet < (_QUIET_LOOKS if time.monotonic() < closed + _PATIENCE_S else 1):
        if not server.java_runs():
            return _cut(server, "TorchServe died", begin)
        quiet = quiet + 1 if is_quiet(server.open_requests(), server.sockets()) else 0
        if time.monotonic() > closed + timeout_s:
            return _cut(server, f"`serving.drain_timeout_s` of {timeout_s:g} s was exceeded", begin)
        if server.hurried(_LOOK_S):
            return _cut(server, "a second signal", begin)
    return Drained(0, None, time.monotonic() - begin)


def _wait_until_accepted(server: Stopping) -> None:
    # Twice, because one look is not of one moment: a connection may be made after the queue was read.
    until, clear = time.monotonic() + _ACCEPTING_S, 0
    while clear < 2 and time.monotonic() < until and not server.hurried(_LOOK_S):
        clear = 0 if server.sockets().waiting else clear + 1


def is_quiet(open_requests: int | None, sockets: Sockets) -> bool:
    """Whether nothing is asked, answered or on its way. Unknown counts are not quiet, unless nobody is connected."""
    if sockets.listening:
        return False
    if sockets.connected == 0:
        return True
    return open_requests == 0 and sockets.unread == 0 and sockets.unsent == 0


def _cut(server: Stopping, reason: str, begin: float) -> Drained:
    sockets, counted = server.sockets(), server.open_requests()
    # At most one request is open on a connection, whatever the counts say.
    left = sockets.connected if counted is None else min(counted, sockets.connected)
    return Drained(left, reason, time.monotonic() - begin)
