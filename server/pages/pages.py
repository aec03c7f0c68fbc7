"""Serves the supervisor's pages: `/live`, `/ready`, `/metrics`, `/package`. They are answered from memory, without
asking a worker. Pages that take a body (`PostPage`) exist only with the page for trying the model."""

import ipaddress
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from types import MappingProxyType
from typing import BinaryIO, cast

from marina.server.pages.pages_server import BODIES, HEAD_BYTES, BoundedReader, PagesServer, is_trusted

HTML = "text/html; charset=utf-8"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LENGTH = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class PageResponse:
    """The status, headers and body of a page."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PostPage:
    """A page that takes a body of up to `limit_bytes`, and only from pages of its own site."""

    limit_bytes: int
    answer: Callable[[bytes, Message], PageResponse]


def json_response(status: int, data: object) -> PageResponse:
    """JSON on one line."""
    return PageResponse(status, json.dumps(data).encode() + b"\n")


def html_response(text: str, headers: Mapping[str, str] = MappingProxyType({})) -> PageResponse:
    return PageResponse(200, text.encode(), HTML, headers)


def metrics_response(text: str) -> PageResponse:
    """Metrics as Prometheus text."""
    return PageResponse(200, text.encode(), _METRICS_TYPE)


def serve_pages(
    host: str, port: int, pages: Mapping[str, Callable[[], PageResponse]], posts: Mapping[str, PostPage] | None = None
) -> ThreadingHTTPServer:
    """Starts serving in a thread of its own. To stop, call `shutdown` and then `server_close`."""

    class Handler(_Handler):
        routes = pages
        forms = posts or {}
        only_local = _is_loopback(host)

    server = PagesServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="pages", kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


_MISDIRECTED = json_response(
    421,
    {
        "error": "the `Host` header names another site",
        "field": "host",
        "allowed": "localhost, the name of this machine, or an address",
    },
)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    routes: Mapping[str, Callable[[], PageResponse]] = {}
    forms: Mapping[str, PostPage] = {}
    only_local = False
    protocol_version = "HTTP/1.1"
    # What cannot be read is answered as everything else: with a status line, and in JSON.
    default_request_version = "HTTP/1.1"
    error_content_type = "application/json"
    error_message_format = '{"error": "%(explain)s"}\n'
    # An idle connection is closed after this many seconds, because each holds a thread.
    timeout = 30
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._reader = BoundedReader(cast("BinaryIO", self.rfile))
        self.rfile = cast("BufferedReader", self._reader)

    def parse_request(self) -> bool:
        """Also marks the connection as waiting for an answer."""
        complete = super().parse_request()
        self._reader.left = HEAD_BYTES
        if complete:
            self._pages.mark(self.connection, awaits_answer=True)
            # What is left of a body would be taken for the next request.
            self.close_connection |= "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        return complete

    def handle_one_request(self) -> None:
        self._pages.mark(self.connection, awaits_answer=False)
        super().handle_one_request()

    @property
    def _pages(self) -> PagesServer:
        return cast(PagesServer, self.server)

    def do_GET(self) -> None:
        if self.only_local and not is_trusted(self.headers.get("Host")):
            self._send(_MISDIRECTED)
            return
        page = self.routes.get(self._page)
        self._send(page() if page else self._unknown())

    def do_POST(self) -> None:
        form = self.forms.get(self._page)
        if form is None:
            self._send(self._unknown())
            return
        if not is_trusted(self.headers.get("Host")):
            self._send(_MISDIRECTED)
            return
        if self._is_foreign():
            self._send(json_response(403, {"error": "sent by a page of another site"}))
            return
        length, *more = self.headers.get_all("Content-Length", [""])
        if not _LENGTH.fullmatch(length) or more or "Transfer-Encoding" in self.headers:
            why = "the request needs one valid `Content-Length`"
            self._send(json_response(411, {"error": why, "field": "content-length"}))
            return
        if int(length) > form.limit_bytes:
            allowed = f"at most {form.limit_bytes} bytes"
            error = {"error": "the body is too large", "field": "body", "got": f"{length} bytes", "allowed": allowed}
            self._send(json_response(413, error))
            return
        if not self._pages.bodies.acquire(blocking=False):
            self._send(json_response(503, {"error": f"this page already has {BODIES} requests open"}))
            return
        try:
            # While the body arrives, the connection may be closed for a new one, so slow senders keep nobody out.
            self._pages.mark(self.connection, awaits_answer=False)
            body = self._reader.body(int(length))
            self._pages.mark(self.connection, awaits_answer=True)
            if len(body) == int(length):
                self._send(form.answer(body, self.headers))
        finally:
            self._pages.bodies.release()

    def _not_allowed(self) -> None:
        self._send(self._unknown())

    do_DELETE = do_OPTIONS = do_PATCH = do_PUT = do_TRACE = _not_allowed  # noqa: N815  (as http.server looks for them)

    def do_HEAD(self) -> None:
        self.do_GET()

    @property
    def _page(self) -> str:
        return self.path.partition("?")[0]

    def _unknown(self) -> PageResponse:
        """The response for a page that does not exist or does not support the method."""
        allowed = ["GET", "HEAD"] if self._page in self.routes else ["POST"] if self._page in self.forms else []
        if allowed:
            return PageResponse(405, b'{"error": "no such method"}\n', headers={"Allow": ", ".join(allowed)})
        return json_response(404, {"error": "no such page", "allowed": sorted({*self.routes, *self.forms})})

    def _is_foreign(self) -> bool:
        """True if a browser says that the request comes from a page of another site."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "same-origin")
        return site not in ("same-origin", "none") or (
            origin is not None and origin.partition("://")[2] != self.headers.get("Host")
        )

    def _send(self, answer: PageResponse) -> None:
        # A client that does not read its answer must not keep new connections out.
        self._pages.mark(self.connection, awaits_answer=False)
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def version_string(self) -> str:
        """The `Server` header, without the version of Python."""
        return "marina"

    def log_message(self, *_: object) -> None:
        """Logs nothing: probes are not worth a line."""
