"""How the supervisor controls the inference port: its socket, and orders to the door inside Java.

The supervisor makes the listening socket and keeps a handle of it, for a listener that closes resets every connection
in its queue: made, perhaps with a request on it, and not accepted yet. So when the end comes, the listener is bound to
a network device that does not exist. No packet comes from there, so the kernel refuses every new connection, while
those in the queue, and those whose handshake has begun, are unharmed. Once Java has accepted them all it may close
(`server/watching/drain.py`). Without a kernel that can do that, a line at the start says so.

Orders are lines on a socket that is Java's standard input (`server/java/marina/Orders.java`); when the supervisor ends,
however it does, Java reads the end of it and ends too.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

# <asm-generic/socket.h>; Python does not name it.
_SO_BINDTOIFINDEX, _NO_DEVICE = 62, 2**31 - 1
# The door answers in a millisecond; after this its threads hang, and what is open is not known.
_ANSWER_S = 5.0


class NoDoorError(Exception):
    """Raised when the door does not answer: Java is not that far, hangs, or has ended."""


@dataclass(frozen=True)
class OpenCounts:
    """What is open on the inference port, after everything that was read from it was counted."""

    expected: int = 0
    """Connections that are new and have asked nothing yet, or on which half a request's head has come."""
    requests: int = 0
    """Requests whose head was read and whose answer is not wholly written, whatever they ask for."""
    inferences: int = 0
    """Those of them that ask a model."""
    connections: int = 0
    refused: int = 0
    """Connections that were turned away since the start, because none of the others was idle."""


class Door:
    """Made before Java is started; OSError when the address cannot be had. Safe to use from any thread."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = _bound(address, port)
        self.why_cannot_refuse = _why_cannot_refuse(self._listener)
        self._here, self._there = socket.socketpair()
        self._here.settimeout(_ANSWER_S)
        self._answers = self._here.makefile("r", encoding="ascii")
        self._lock = threading.Lock()
        self._asked = 0

    @property
    def listener(self) -> int:
        """The handle that Java inherits."""
        return self._listener.fileno()

    @property
    def orders(self) -> int:
        """What Java gets as its standard input."""
        return self._there.fileno()

    def close_java_end(self) -> None:
        """Call when Java has its end, so that its own end is noticed here."""
        self._there.close()

    def count(self) -> OpenCounts:
        """NoDoorError when it is not known."""
        words = self._order("count").split()
        if len(words) != len(OpenCounts.__annotations__):
            raise NoDoorError(" ".join(words))
        return OpenCounts(*map(int, words))

    def set_ready(self, *, ready: bool) -> None:
        """What the door's own pages of health say from now on."""
        self._order("ready" if ready else "unready")

    def end_connections(self) -> None:
        """From now on every answer is the last of its connection."""
        self._order("drain")

    def refuse_new_connections(self) -> bool:
        """New connections are refused from now on, those in the queue stay; False where it cannot be done."""
        with suppress(OSError):
            # The device is the socket's, not the handle's: Java's handle is bound to it too.
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_DEVICE)
            return True
        return False

    def close_listener(self) -> None:
        """Nothing listens any more; connections that were accepted stay."""
        try:
            self._order("close")
        finally:
            self._listener.close()

    def close(self) -> None:
        """Gives everything back; safe to call twice."""
        for part in (self._answers, self._here, self._there, self._listener):
            part.close()

    def _order(self, text: str) -> str:
        """The answer to one order; an answer that came too late for an earlier one is passed over."""
        with self._lock:
            self._asked += 1
            try:
                self._here.sendall(f"{self._asked} {text}\n".encode())
                while line := self._answers.readline():
                    number, _, answer = line.rstrip("\n").partition(" ")
                    if number == str(self._asked):
                        return answer
            except (OSError, ValueError) as err:
                self._reopen()
                raise NoDoorError(str(err) or type(err).__name__) from err
            raise NoDoorError("Java has ended")

    def _reopen(self) -> None:
        """A file that timed out once refuses to read; the socket under it does not."""
        with suppress(OSError, ValueError):
            self._answers = self._here.makefile("r", encoding="ascii")


def _bound(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError:
        listener.close()
        raise
    return listener


def _why_cannot_refuse(listener: socket.socket) -> str | None:
    """What keeps the kernel from turning connections away."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, 0)
    except OSError as err:
        return f"the kernel cannot bind a listener to a device: {os.strerror(err.errno or 0)}"
    return None
