"""A collector of OpenTelemetry for tests: takes OTLP over HTTP, and decodes it with the published classes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Span:
    """A span as it came, with its ids as hexadecimal digits and its attributes as a dict."""

    def __init__(self, span: Any, resource: dict[str, Any]) -> None:
        self.name, self.kind, self.resource = span.name, span.kind, resource
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.begin_ns, self.end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = _attributes(span.attributes)
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.events = [event.name for event in span.events]
        self.is_error = span.status.code == 2

    def __repr__(self) -> str:
        return f"{self.name} {self.trace[:4]}/{self.id[:4]} {self.attributes}"


def _attributes(given: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in given}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


class Collector:
    """What has arrived. While `status` is not 200, nothing is taken."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.status = 200
        self.asked = 0
        self.headers: dict[str, str] = {}

    def of(self, trace: str) -> list[Span]:
        """The spans of a trace."""
        return [span for span in list(self.spans) if span.trace == trace]

    def take(self, body: bytes) -> None:
        """Decodes a request."""
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _attributes(each.resource.attributes)
            for scope in each.scope_spans:
                self.spans += [Span(span, resource) for span in scope.spans]


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """Listens until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.asked, made.headers = made.asked + 1, dict(self.headers)
            status = made.status if self.path == "/v1/traces" else 404
            if status == 200:
                made.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
