"""The listener of the supervisor's pages, with bounds: connections, and so threads; bytes of a head; time of a body.

Whoever has not finished asking gives way: where all places are taken, the connection that has been silent longest is
closed for a new one, so that a probe gets in past any number of clients that say nothing.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, BinaryIO

# Each is a thread. A kubelet, a Prometheus, an autoscaler and some people at a page need far fewer.
CONNECTIONS = 100
# Bodies of the page to try the model; a person has one.
BODIES = 4
HEAD_BYTES = 16_384
BODY_S = 30.0
# Until a descriptor may be free again; asking at once would take a whole core.
_NO_ROOM_S = 0.1


class PagesServer(ThreadingHTTPServer):
    """One thread a connection, never more than `CONNECTIONS`."""

    daemon_threads = True
    # A prober that never reads must not keep a stopping server.
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.bodies = threading.BoundedSemaphore(BODIES)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}
        """Every connection, the oldest first, and whether it has asked and waits for us."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Without HTTPServer's look-up of its own name, which waits for a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """OSError where there is none, after a while where there is no descriptor for it."""
        try:
            return super().get_request()
        except BlockingIOError:
            raise
        except OSError:
            self._give_way()
            time.sleep(_NO_ROOM_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= CONNECTIONS
        if full and not self._give_way():
            self.shutdown_request(request)
            return
        self.mark(request, asked=False)
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread can be had.
            self.shutdown_request(request)

    def mark(self, connection: socket.socket, *, asked: bool) -> None:
        """Whether a connection waits for us, or we for it."""
        with self._lock:
            self._open.pop(connection, None)
            self._open[connection] = asked

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A prober that hangs up early is no news, and no more is one that was too slow.
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def _give_way(self) -> bool:
        """Ends the connection that has been silent longest; False where all of them wait for us."""
        with self._lock:
            silent = next((connection for connection, asked in self._open.items() if not asked), None)
            if silent is None:
                return False
            del self._open[silent]
        with suppress(OSError):
            # Its thread wakes up and ends it.
            silent.shutdown(socket.SHUT_RDWR)
        return True


class BoundedReader:
    """What a client sends, a line or a piece at a time; ConnectionError when a head is larger than allowed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.left = HEAD_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(size if 0 <= size < self.left else self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise ConnectionError("the head is too large")
        return line

    def body(self, length: int) -> bytes:
        """All of it; TimeoutError when it takes too long, less when the client leaves."""
        until, pieces = time.monotonic() + BODY_S, []
        while length > 0 and (piece := self._stream.read1(min(length, 65_536))):  # type: ignore[attr-defined]
            pieces.append(piece)
            length -= len(piece)
            if time.monotonic() > until:
                raise TimeoutError("the body took too long")
        return b"".join(pieces)

    def close(self) -> None:
        """As the stream's."""
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed


def is_trusted(host: str | None) -> bool:
    """Whether a Host header can be what a browser sends to a page of ours: the name of another site that leads here
    (DNS rebinding) cannot. Addresses are fine, because nobody else owns them."""
    if host is None:
        return True
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", socket.gethostname().lower()) or name.lower().endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
