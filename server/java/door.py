"""Controls the inference port: its listening socket, and orders to the door, Marina's code inside Java.

A listener that closes resets every connection in its queue: those that are established, perhaps with a request already
sent, but not accepted yet. To avoid that, the supervisor creates the listening socket itself and keeps a handle of it.
At the end of the server it binds the listener to a network device that does not exist. No packet comes from there, so
the kernel refuses every new connection, but those in the queue, and those whose handshake has begun, are unharmed. Once
Java has accepted them all, the listener may close (`server/watching/drain.py`). If the kernel cannot do that, a line in
the log says so at the start.

Orders are lines on a socket that is Java's standard input (`server/java/marina/Orders.java`). When the supervisor ends,
for whatever reason, Java reads an end of file there and ends too."""

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass

from marina.config.ports import bound_socket

# From <asm-generic/socket.h>; Python has no name for it.
_SO_BINDTOIFINDEX, _NO_DEVICE = 62, 2**31 - 1
# The door answers within a millisecond. After this long its threads hang, and nobody knows what is open. Until it
# answers again, further orders are not waited for: a stop has many of them, and must end in time.
_ANSWER_S, _HASTE_S = 5.0, 0.1


class NoDoorError(Exception):
    """The door does not answer: Java is still starting, hangs, or has ended."""


@dataclass(frozen=True)
class OpenCounts:
    """What is open on the inference port, including everything that Java has read so far. The fields are in the order
    of the door's answer."""

    expected: int = 0
    """Connections from which a request is expected: new ones without a request, and those with a part of a head."""
    requests: int = 0
    """Requests of any kind whose head was read and whose answer is not completely written."""
    inferences: int = 0
    """How many of these requests are inferences."""
    connections: int = 0
    refused: int = 0
    """Connections refused since the start, because the limit was reached and no other connection was idle."""
    logged: int = 0
    """Requests that were written to the access log since the start."""


class Door:
    """The supervisor's end. Create it before Java is started; raises OSError if the address is not available.
    Thread-safe."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = bound_socket(address, port)
        self._listener.setblocking(False)
        self.why_cannot_refuse = _why_cannot_refuse(self._listener)
        self._here, self._there = socket.socketpair()
        self._answers = self._here.makefile("r", encoding="ascii")
        self._lock = threading.Lock()
        self._orders_sent = 0
        self._silent = False

    @property
    def listener(self) -> int:
        """The file descriptor of the listening socket, which Java inherits."""
        return self._listener.fileno()

    @property
    def orders(self) -> int:
        """The file descriptor that becomes Java's standard input."""
        return self._there.fileno()

    def close_java_end(self) -> None:
        """Call this once Java is started, so that only Java holds that end and its death is noticed here."""
        self._there.close()

    def count(self) -> OpenCounts:
        """Asks the door what is open; NoDoorError if it does not answer."""
        words = self._order("count").split()
        if len(words) != len(OpenCounts.__annotations__):
            raise NoDoorError(" ".join(words))
        return OpenCounts(*map(int, words))

    def set_ready(self, *, ready: bool) -> None:
        """Sets what the door's own health pages report."""
        self._order("ready" if ready else "unready")

    def end_connections(self) -> None:
        """Makes every answer from now on the last one on its connection."""
        self._order("drain")

    def refuse_new_connections(self) -> bool:
        """Refuses new connections from now on and keeps those in the queue; False if the kernel cannot do that."""
        with suppress(OSError):
            # The option belongs to the socket, not to the handle, so it holds for Java's handle too.
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, _NO_DEVICE)
            return True
        return False

    def close_listener(self) -> None:
        """Closes the listener; accepted connections stay open."""
        try:
            self._order("close")
        finally:
            self._listener.close()

    def close(self) -> None:
        """Closes all sockets; safe to call twice."""
        for part in (self._answers, self._here, self._there, self._listener):
            part.close()

    def _order(self, text: str) -> str:
        """Sends one order and returns its answer; late answers to earlier orders are skipped."""
        with self._lock:
            self._orders_sent += 1
            try:
                self._here.settimeout(_HASTE_S if self._silent else _ANSWER_S)
                self._here.sendall(f"{self._orders_sent} {text}\n".encode())
                while line := self._answers.readline():
                    if self._silent:
                        self._silent = False
                        self._here.settimeout(_ANSWER_S)
                    number, _, answer = line.rstrip("\n").partition(" ")
                    if number == str(self._orders_sent):
                        return answer
            except (OSError, ValueError) as err:
                self._silent = True
                self._reopen()
                raise NoDoorError(str(err) or type(err).__name__) from err
            raise NoDoorError("Java has ended")

    def _reopen(self) -> None:
        """Replaces the file object, which refuses to read after a timeout; the socket under it still works."""
        with suppress(OSError, ValueError):
            self._answers = self._here.makefile("r", encoding="ascii")


def _why_cannot_refuse(listener: socket.socket) -> str | None:
    """Why the kernel cannot refuse new connections on a listening socket; None if it can."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_BINDTOIFINDEX, 0)
    except OSError as err:
        return f"the kernel cannot bind a listener to a device: {os.strerror(err.errno or 0)}"
    return None
