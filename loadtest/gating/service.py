"""A gate between servers whose addresses are given, and its verdict as a page for other engines.

Argo Rollouts reads the page as a `web` metric: `result` is PASS, FAIL or INVALID, or RUNNING until there is a verdict.
Flagger's webhooks know only yes and no: `/confirm-promotion` is yes for a PASS, `/rollback` for a FAIL."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from marina.config.ports import bound_socket
from marina.loadtest.gating.gate import LiveGate
from marina.loadtest.gating.judgement import LiveVerdict

RUNNING = "RUNNING"
_TIMEOUT_S, _READERS = 5.0, 16
_YES, _NO = 200, 403
# What a webhook asks, and the verdict for which the answer is yes.
_HOOKS = {"/confirm-promotion": "PASS", "/rollback": "FAIL"}


def stand_between(gate: LiveGate, old: Sequence[str], new: Sequence[str], say: Callable[[str], None]) -> LiveVerdict:
    """Reads the pages of all servers, window by window, until there is a verdict. The addresses are those of the
    supervisor's pages. Raises ClusterError for a page that it cannot read."""
    begun, windows = time.monotonic(), 0
    with ThreadPoolExecutor(min(_READERS, len(old) + len(new))) as pool:
        while True:
            over = time.monotonic() - begun >= gate.seconds
            pages = dict(zip([*old, *new], pool.map(read_page, [*old, *new]), strict=True))
            gate.observe(*({url: page for url in side if (page := pages[url])} for side in (old, new)))
            if said := gate.verdict(over=over):
                return said
            windows += 1
            if windows == gate.announced_after:
                say(gate.announcement())
            time.sleep(gate.window_s)


@dataclass
class VerdictPage:
    """The page that other engines read."""

    verdict: LiveVerdict | None = None
    """None until there is one."""
    text: str = ""
    """What goes on meanwhile."""

    @property
    def result(self) -> str:
        return self.verdict.status if self.verdict else RUNNING

    def to_data(self) -> dict[str, Any]:
        said = self.verdict
        text = f"{said.text}: {said.why}" if said and said.why else said.text if said else self.text
        return {"result": self.result, "text": text, "verdict": said.to_data() if said else None}

    def serve(self, host: str, port: int) -> ThreadingHTTPServer:
        """Starts serving in a thread of its own; OSError if the address is not available. To stop, call `shutdown` and
        then `server_close`."""
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200 if self.path == "/" else 404)

            def do_POST(self) -> None:
                # Flagger sends facts about its canary, which the verdict does not depend on.
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                wanted = _HOOKS.get(self.path)
                self._send(404 if wanted is None else _YES if page.result == wanted else _NO)

            def _send(self, status: int) -> None:
                body = json.dumps(page.to_data()).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = _Server((host, port), Handler)
        threading.Thread(target=server.serve_forever, name="verdict", daemon=True).start()
        return server


class _Server(ThreadingHTTPServer):
    """Listens on IPv6 too."""

    def server_bind(self) -> None:
        self.socket.close()
        self.socket = bound_socket(str(self.server_address[0]), int(self.server_address[1]))
        self.server_address = self.socket.getsockname()


def read_page(url: str) -> bytes:
    """The page `/latencies` of one server; empty if it does not answer."""
    with suppress(OSError, HTTPException), urlopen(f"{url.rstrip('/')}/latencies", timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
        return body
    return b""
