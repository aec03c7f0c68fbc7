"""The supervisor's pages, on a port of their own: `/live`, `/ready`, `/metrics`, `/latencies`, `/package`. Each is
answered in a thread of its own, from what the supervisor knows, so it waits for no worker and the supervisor waits for
no page."""

import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marina.config.ports import bound_socket
from marina.server.watching import openmetrics

# Each has a thread. A kubelet, Prometheus, an autoscaler and a few people need far fewer.
CONNECTIONS = 32
# A client that sends nothing, or reads nothing, for so long is not waited for.
_TIMEOUT_S = 10


@dataclass(frozen=True)
class PageResponse:
    status: int
    body: bytes
    content_type: str = "application/json"


Page = Callable[[], PageResponse]


def json_response(status: int, data: object) -> PageResponse:
    """JSON on one line."""
    return PageResponse(status, json.dumps(data).encode() + b"\n")


def serve_pages(
    host: str, port: int, pages: Mapping[str, Page], in_openmetrics: Mapping[str, Page] | None = None
) -> ThreadingHTTPServer:
    """Starts serving in a thread of its own. To stop, call `shutdown` and then `server_close`. Who accepts OpenMetrics
    gets a page of `in_openmetrics` if it is there."""

    class Handler(_Handler):
        routes = pages
        openmetrics_routes = in_openmetrics or {}

    server = _PagesServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="pages", kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of a connection, and closes it."""

    routes: Mapping[str, Page] = {}
    openmetrics_routes: Mapping[str, Page] = {}
    timeout = _TIMEOUT_S
    server_version, sys_version = "marina", ""
    error_content_type = "application/json"
    error_message_format = '{"error": "%(explain)s"}\n'

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page = self.routes.get(path)
        if openmetrics.TYPE in self.headers.get("Accept", ""):
            page = self.openmetrics_routes.get(path, page)
        unknown = json_response(404, {"error": "no such page", "allowed": sorted(self.routes)})
        answer = page() if page else unknown
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  (as http.server looks for it)

    def log_message(self, *_: object) -> None:
        """Logs nothing: probes are not worth a line."""


class _PagesServer(ThreadingHTTPServer):
    """Closes its oldest connection for one more than `CONNECTIONS`: an answer takes milliseconds, so the oldest is one
    that sends nothing or reads nothing, and a probe gets in past any number of those."""

    daemon_threads = True
    # A client that never reads must not delay the server's stop.
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind would look up the host's name and wait for a name server.
        self.socket.close()
        self.socket = bound_socket(str(self.server_address[0]), int(self.server_address[1]))
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
        if oldest is not None:
            with suppress(OSError):
                # Its thread wakes up and closes it.
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that hang up early or are too slow are not worth a traceback.
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)
