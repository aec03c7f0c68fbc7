"""The page for trying the model: `/docs`, the sample it starts with, and `/docs/try`, which forwards a body to
inference.

The page is on another port than inference, so the browser may not send requests there itself, and the supervisor
forwards them. That allows nothing that the inference port does not: one path, one model, the same limits, and pages of
other sites cannot use it."""

import base64
import hashlib
import http.client
import json
import time
from collections.abc import Callable
from email.message import Message
from functools import partial
from pathlib import Path

from marina.config.pages import base_style, render_template
from marina.config.record import Record
from marina.config.render import FRONTEND_LIMIT_FACTOR, Ports
from marina.server.pages.openapi import openapi
from marina.server.pages.openapi_text import ROUTES
from marina.server.pages.pages import PageResponse, PostPage, html_response, json_response
from marina.server.pages.snippets import programs

_ASSETS = Path(__file__).parent.parent / "assets"
# Larger samples can be sent, but are not shown for editing.
_EDITABLE_BYTES = 20_000


class Docs:
    """The docs pages of one server; `host` is the address at which its inference port can be reached."""

    def __init__(
        self, record: Record, sample: bytes, *, sha256: str, host: str, ports: Ports, timeout_s: float
    ) -> None:
        self._record, self._sample, self._sha256 = record, sample, sha256
        self._host, self._ports = host, ports
        # The batch before ours may take the full time as well.
        self._timeout_s = 2 * timeout_s

    def routes(self) -> dict[str, Callable[[], PageResponse]]:
        """The pages that answer a GET, by path."""
        page = self._page()
        description = json_response(200, openapi(self._record, host=self._host, ports=self._ports))
        kind = self._record.sample.content_type
        sample = PageResponse(200, self._sample, kind, {"X-Content-Type-Options": "nosniff"})
        return {"/docs": lambda: page, "/docs/sample": lambda: sample, "/openapi.json": lambda: description}

    def posts(self) -> dict[str, PostPage]:
        """The pages that answer a POST, by path. The limit is TorchServe's own: it would not read a larger body
        either."""
        return {"/docs/try": PostPage(round(self._record.max_request_bytes * FRONTEND_LIMIT_FACTOR), self._try)}

    def _try(self, body: bytes, headers: Message) -> PageResponse:
        kept = {name: headers[name] for name in ("Accept", "Content-Type") if headers[name]}
        connection = http.client.HTTPConnection(f"{self._host}:{self._ports.inference}", timeout=self._timeout_s)
        began = time.monotonic()
        try:
            connection.request("POST", f"/predictions/{self._record.name}", body, kept)
            response = connection.getresponse()
            answer, kind = response.read(), response.getheader("Content-Type", "application/octet-stream")
        except (OSError, http.client.HTTPException) as err:
            error = f"TorchServe does not answer: {err or type(err).__name__}"
            return json_response(503, {"error": error, "allowed": "once /ready answers 200"})
        finally:
            connection.close()
        took_ms = (time.monotonic() - began) * 1000
        # A custom handler may answer HTML; the browser must never show that as a page of this site.
        safe = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
        return PageResponse(response.status, answer, kind, safe | {"Server-Timing": f"inference;dur={took_ms:.1f}"})

    def _page(self) -> PageResponse:
        style, script = base_style() + _asset("docs.css"), _asset("docs.js")
        policy = (
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; connect-src 'self'; "
            "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        record = self._record
        text = render_template(
            _ASSETS / "docs.html",
            record=record,
            takes=_takes(record).split("`"),
            programs=programs(
                record,
                server=f"http://{self._host}:{self._ports.inference}",
                pages=f"http://{self._host}:{self._ports.supervisor}",
            ),
            forms={"Takes": record.takes, "Gives": record.gives},
            indented=partial(json.dumps, indent=2),
            facts=self._facts(),
            sha256=self._sha256,
            style=style,
            script=script,
        )
        headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        return html_response(text, headers)

    def _facts(self) -> dict[str, object]:
        """The data for the page's script."""
        record, sample = self._record, self._record.sample
        editable = sample.content_type == "application/json" and len(self._sample) <= _EDITABLE_BYTES
        return {
            "name": record.name,
            "host": self._host,
            "handler": record.handler,
            "sample": Path(sample.file).name,
            "type": sample.content_type,
            "text": self._sample.decode("utf-8", "replace") if editable else None,
            "limit": record.max_request_bytes,
        }


def _takes(record: Record) -> str:
    if record.handler == "image":
        return "JPEG, PNG or WebP bytes, JSON with `image`, or .npy"
    if record.text is not None:
        paths = ", ".join(f"`{path}`" for path in ROUTES.values())
        return f"OpenAI's JSON for a chat or a completion; clients send it to {paths}"
    if record.handler == "tensor":
        return "JSON with the inputs by name" + (", the bare array, or .npy" if len(record.inputs) == 1 else "")
    if record.encoding is not None:
        return (
            "`query` and `documents`"
            if record.encoding.task == "rerank"
            else "JSON with `text`, a list of texts, or text"
        )
    return f"what {record.handler} takes, {'as declared below' if record.takes else 'such as the sample'}"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
