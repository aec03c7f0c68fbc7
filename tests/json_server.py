"""A small server on loopback that answers with JSON, for what tests put in a real one's place."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Data = dict[str, Any]


@contextmanager
def answering(get: Callable[[str], Any], post: Callable[[str, bytes, str], tuple[int, Any]]) -> Iterator[int]:
    """The port of a server that answers what `get` returns for a path, and `post`, with its status, for a path, a body
    and its content type."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._send(*post(self.path, body, self.headers["Content-Type"]))

        def _send(self, status: int, data: Data) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
