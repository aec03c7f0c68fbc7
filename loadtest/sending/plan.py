"""What one generator process is told: the request, how its answer must look, and when to send it."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Base64Bytes

from config.record import Part
from config.uncached import UNCACHED
from loadtest.scheduling import Schedule
from loadtest.sending.headers import Header


class Expected(Part):
    """The structure of a good answer; its values are the archiver's concern."""

    form: Literal["any", "events", "json", "npy"] = "any"
    keys: tuple[str, ...] = ()
    """Keys that the JSON object must have."""


class Body(Part):
    """One of several bodies."""

    body: Base64Bytes
    content_type: str
    expected: Expected = Expected()
    weight: float = 1.0
    """How often it is sent, beside the weights of the others."""


class Server(Part):
    """One of several servers that answer the same."""

    name: str
    url: str
    """Without a path."""


class LoadRequest(Part):
    """One request, encoded once and sent again and again."""

    url: str
    """Complete, with the path of the prediction."""
    body: Base64Bytes
    content_type: str
    expected: Expected = Expected()
    bodies: tuple[Body, ...] = ()
    """Sent instead of `body`, each as often as its weight says; none: only `body`."""
    servers: tuple[Server, ...] = ()
    """Asked in turns instead of the URL's; none: only that."""
    headers: tuple[Header, ...] = ()
    """Sent besides our own; a `Host` among them takes the place of the URL's."""
    cacert: str | None = None
    """File of the certificates that are trusted; None for those of the system."""
    cert: str | None = None
    """File of the certificate that the client shows, and of its key unless `key` names that; None for no one."""
    key: str | None = None

    @property
    def to_each(self) -> tuple[LoadRequest, ...]:
        """The request as each of the servers gets it."""
        urls = [f"{server.url}{self.path}" for server in self.servers] or [self.url]
        return tuple(self.model_copy(update={"url": url}) for url in urls)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if self.tls else 80)

    @property
    def tls(self) -> bool:
        """Whether the URL is https."""
        return self.url.startswith("https:")

    @property
    def path(self) -> str:
        """Path and query of the URL."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    @property
    def all_bodies(self) -> tuple[Body, ...]:
        """What is sent: several bodies, or the one."""
        return self.bodies or (
            Body.model_construct(body=self.body, content_type=self.content_type, expected=self.expected),
        )

    def wire_bytes(self, of: Body | None = None) -> bytes:
        """The request with a body as it is written to the connection."""
        body, content_type = (of.body, of.content_type) if of else (self.body, self.content_type)
        named = any(name.lower() == "host" for name, _ in self.headers)
        head = [
            f"POST {self.path} HTTP/1.1",
            *([] if named else [f"Host: {urlsplit(self.url).netloc.rpartition('@')[2]}"]),
            *(f"{name}: {value}" for name, value in self.headers),
            "User-Agent: marina-loadtest",
            "Accept: */*",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in UNCACHED.items()),
        ]
        return "\r\n".join([*head, "", ""]).encode() + body


class LoadPlan(Part):
    """One process's share of a run."""

    request: LoadRequest
    schedule: Schedule
    part: int = 0
    parts: int = 1
    timeout_s: float
    limit_ms: float
    """The latency limit that is judged, so that counts around it are exact."""
    first_ms: float | None = None
    """The same of the time to the first text of an answer in events."""
    gap_ms: float | None = None
    """The same of the time between its pieces."""

    @property
    def hears(self) -> bool:
        """Whether answers come in events."""
        return any(body.expected.form == "events" for body in self.request.all_bodies)
