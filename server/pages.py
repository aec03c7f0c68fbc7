"""The supervisor's own port: `/live`, `/ready`, `/metrics`, `/package`. It answers from memory, never asks a worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """One page."""

    status: int
    body: bytes
    content_type: str = "application/json"


def json_answer(status: int, data: object) -> Answer:
    """A page of JSON, one line."""
    return Answer(status, json.dumps(data).encode() + b"\n")


def metrics_answer(text: str) -> Answer:
    """A page of metrics."""
    return Answer(200, text.encode(), _METRICS_TYPE)


def serve_pages(host: str, port: int, pages: Mapping[str, Callable[[], Answer]]) -> ThreadingHTTPServer:
    """Starts answering in a thread of its own; `server_close` after `shutdown` ends it."""

    class Handler(_Handler):
        routes = pages

    server = _Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="pages", kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A prober that never reads must not keep a stopping server.
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        # Without HTTPServer's look-up of its own name, which waits for a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Callable[[], Answer]] = {}
    protocol_version = "HTTP/1.1"
    # A connection without a request is not kept longer: each holds a thread.
    timeout = 30
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        page = self.routes.get(self.path.partition("?")[0])
        answer = page() if page else json_answer(404, {"error": "no such page", "allowed": sorted(self.routes)})
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Probes are no news."""
