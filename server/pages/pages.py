"""The supervisor's own port: `/live`, `/ready`, `/metrics`, `/package`. It answers from memory, never asks a worker;
what takes a body (`PostPage`) is there only with the page to try the model."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from types import MappingProxyType
from typing import BinaryIO, cast
from urllib.parse import urlsplit

from server.pages.listening import BODIES, HEAD_BYTES, BoundedReader, PagesServer, is_trusted

HTML = "text/html; charset=utf-8"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class PageResponse:
    """One page."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PostPage:
    """A page that takes a body of up to `limit_bytes`, from its own site only."""

    limit_bytes: int
    answer: Callable[[bytes, Message], PageResponse]


def json_response(status: int, data: object) -> PageResponse:
    """A page of JSON, one line."""
    return PageResponse(status, json.dumps(data).encode() + b"\n")


def html_response(text: str, headers: Mapping[str, str] = MappingProxyType({})) -> PageResponse:
    """A page for a browser."""
    return PageResponse(200, text.encode(), HTML, headers)


def metrics_response(text: str) -> PageResponse:
    """A page of metrics."""
    return PageResponse(200, text.encode(), _METRICS_TYPE)


def serve_pages(
    host: str, port: int, pages: Mapping[str, Callable[[], PageResponse]], posts: Mapping[str, PostPage] | None = None
) -> ThreadingHTTPServer:
    """Starts answering in a thread of its own; `server_close` after `shutdown` ends it."""

    class Handler(_Handler):
        routes = pages
        forms = posts or {}
        only_local = _is_loopback(host)

    server = PagesServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="pages", kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


_MISDIRECTED = json_response(
    421, {"error": "the `Host` header names another site", "field": "host", "allowed": "localhost, or an address"}
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
    # A connection without a request is not kept longer: each holds a thread.
    timeout = 30
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._reader = BoundedReader(cast("BinaryIO", self.rfile))
        self.rfile = cast("BufferedReader", self._reader)

    def parse_request(self) -> bool:
        """Also takes the place of a client that has asked."""
        complete = super().parse_request()
        self._reader.left = HEAD_BYTES
        if complete:
            self._pages.mark(self.connection, asked=True)
        return complete

    def handle_one_request(self) -> None:
        self._pages.mark(self.connection, asked=False)
        super().handle_one_request()

    @property
    def _pages(self) -> PagesServer:
        return cast(PagesServer, self.server)

    def do_GET(self) -> None:
        if self.only_local and not is_trusted(self.headers.get("Host")):
            self._refuse(_MISDIRECTED)
            return
        page = self.routes.get(self._page)
        self._send(page() if page else self._unknown())

    def do_POST(self) -> None:
        form = self.forms.get(self._page)
        if form is None:
            self._refuse(self._unknown())
            return
        if not is_trusted(self.headers.get("Host")):
            self._refuse(_MISDIRECTED)
            return
        if self._is_foreign():
            self._refuse(json_response(403, {"error": "sent by a page of another site"}))
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(
                json_response(411, {"error": "the request has no `Content-Length`", "field": "content-length"})
            )
            return
        if int(length) > form.limit_bytes:
            allowed = f"at most {form.limit_bytes} bytes"
            error = {"error": "the body is too large", "field": "body", "got": f"{length} bytes", "allowed": allowed}
            self._refuse(json_response(413, error))
            return
        if not self._pages.bodies.acquire(blocking=False):
            self._refuse(json_response(503, {"error": f"{BODIES} requests of this page are open already"}))
            return
        try:
            # Who sends slowly does not keep others out: it may be closed for them.
            self._pages.mark(self.connection, asked=False)
            body = self._reader.body(int(length))
            self._pages.mark(self.connection, asked=True)
            if len(body) == int(length):
                self._send(form.answer(body, self.headers))
            else:
                self.close_connection = True
        finally:
            self._pages.bodies.release()

    def _not_allowed(self) -> None:
        self._refuse(self._unknown())

    do_DELETE = do_OPTIONS = do_PATCH = do_PUT = do_TRACE = _not_allowed  # noqa: N815  (as http.server looks for them)

    def do_HEAD(self) -> None:
        self.do_GET()

    @property
    def _page(self) -> str:
        return self.path.partition("?")[0]

    def _unknown(self) -> PageResponse:
        """The answer to a method that a page has not, or to a page that is not there."""
        allowed = ["GET", "HEAD"] if self._page in self.routes else ["POST"] if self._page in self.forms else []
        if allowed:
            return PageResponse(405, b'{"error": "no such method"}\n', headers={"Allow": ", ".join(allowed)})
        return json_response(404, {"error": "no such page", "allowed": sorted({*self.routes, *self.forms})})

    def _is_foreign(self) -> bool:
        """A browser names the site that a request comes from; other clients do not."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "same-origin")
        return site not in ("same-origin", "none") or (
            origin is not None and urlsplit(origin).netloc != self.headers.get("Host")
        )

    def _refuse(self, answer: PageResponse) -> None:
        """Without reading the body, which would be taken for the next request."""
        self.close_connection = True
        self._send(answer)

    def _send(self, answer: PageResponse) -> None:
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

    def log_message(self, *_: object) -> None:
        """Nothing: probes are not worth a line."""
