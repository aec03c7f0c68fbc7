"""The HTTP server of the supervisor's pages, with limits on connections (and so threads), on the bytes of a head, on
the bodies that are read at the same time, and on the time for each.

When all connections are taken, the one that has waited longest without completing a request is closed for a new one, so
that a probe gets in past any number of silent clients."""

import ipaddress
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

from marina.config.ports import bound_socket

# Each connection has a thread. A kubelet, Prometheus, an autoscaler and a few people need far fewer.
CONNECTIONS = 100
# Concurrent requests with a body, from the page for trying the model; a person sends one at a time.
BODIES = 4
HEAD_BYTES = 16_384
BODY_S = 30.0
# How long to wait when there is no free file descriptor; retrying at once would burn a whole core.
_NO_DESCRIPTOR_S = 0.1


class PagesServer(ThreadingHTTPServer):
    """Serves each connection in a thread of its own, never more than `CONNECTIONS` at a time."""

    daemon_threads = True
    # A client that never reads must not delay the server's stop.
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.bodies = threading.BoundedSemaphore(BODIES)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}
        """Every connection, the longest unchanged first; true if its request is complete and waits for our answer."""
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up the host's name and wait for a name server.
        self.socket.close()
        self.socket = bound_socket(str(self.server_address[0]), int(self.server_address[1]))
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. If there is no descriptor for it, closes a silent one and raises OSError after a
        pause."""
        try:
            return super().get_request()
        except BlockingIOError:
            raise
        except OSError:
            self._give_way()
            time.sleep(_NO_DESCRIPTOR_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= CONNECTIONS
        if full and not self._give_way():
            self.shutdown_request(request)
            return
        self.mark(request, awaits_answer=False)
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread could be started.
            self.shutdown_request(request)

    def mark(self, connection: socket.socket, *, awaits_answer: bool) -> None:
        """Records whether a connection waits for our answer (`awaits_answer`) or we wait for its request."""
        with self._lock:
            self._open.pop(connection, None)
            self._open[connection] = awaits_answer

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that hang up early or are too slow are not worth a traceback.
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def _give_way(self) -> bool:
        """Closes the connection that has been silent longest; False if all of them wait for our answer."""
        with self._lock:
            silent = next((connection for connection, awaits_answer in self._open.items() if not awaits_answer), None)
            if silent is None:
                return False
            del self._open[silent]
        with suppress(OSError):
            # Its thread wakes up and closes it.
            silent.shutdown(socket.SHUT_RDWR)
        return True


class BoundedReader:
    """Reads what a client sends; raises ConnectionError if a head is larger than `HEAD_BYTES`."""

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
        """The whole body, or less if the client hangs up; TimeoutError if it takes too long."""
        until, pieces = time.monotonic() + BODY_S, []
        while length > 0 and (piece := self._stream.read1(min(length, 65_536))):  # type: ignore[attr-defined]
            pieces.append(piece)
            length -= len(piece)
            if time.monotonic() > until:
                raise TimeoutError("the body took too long")
        return b"".join(pieces)

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed


def is_trusted(host: str | None) -> bool:
    """True unless a browser may have been lured here under the name of another site (DNS rebinding). In a Host header,
    localhost, this machine's own name and IP addresses are fine, because another site's name is none of them."""
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
