"""A load over https, whose connections rest between requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from certificates import self_signed

from loadtest.sending import LoadPlan, Request, Schedule, generate

pytestmark = pytest.mark.e2e


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        super().setup()
        Handler.connections += 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    certificate, key = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/predictions/m"
        server.shutdown()
        thread.join()


def test_a_connection_that_rested_is_used_again_and_no_request_is_lost(url: str) -> None:
    request = Request(url=url, body=b"YQ==", content_type="text/plain")
    # Two thirds of a second apart: longer than a connection rests without being looked at.
    schedule = Schedule(arrivals="constant", rate=1.5, warmup_s=0, duration_s=4)
    measured = generate(LoadPlan(request=request, schedule=schedule, timeout_s=10, limit_ms=1000))
    assert (measured.sent, measured.good, measured.errors) == (6, 6, {})
    assert Handler.connections == 1
