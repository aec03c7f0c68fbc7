"""The plan of one generator process: the request, the structure of its answer, and when to send it."""

import hashlib
import re
from collections.abc import Mapping
from string import Template
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Base64Bytes

from marina.config.errors import InputError
from marina.config.record import Part
from marina.config.request_headers import UNCACHED
from marina.loadtest.scheduling import Schedule

Header = tuple[str, str]
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OURS = ("accept-encoding", "cache-control", "connection", "content-length", "content-type", "transfer-encoding")


class Expected(Part):
    """The structure of a good answer. Its values are checked by the archiver, not here."""

    form: Literal["any", "events", "json", "npy"] = "any"
    keys: tuple[str, ...] = ()
    """Keys that the JSON object must have."""


class Body(Part):
    """One of the bodies that a load sends."""

    body: Base64Bytes
    content_type: str
    expected: Expected = Expected()
    weight: float = 1.0
    """How often it is sent, relative to the weights of the others."""


class Server(Part):
    """One of several servers of the same package."""

    name: str
    url: str
    """The URL without a path."""


class LoadRequest(Part):
    """A request that is encoded once and sent again and again."""

    url: str
    """The complete URL, with the path of the prediction."""
    body: Base64Bytes
    content_type: str
    expected: Expected = Expected()
    bodies: tuple[Body, ...] = ()
    """The bodies to send instead of `body`, each as often as its weight says; empty: only `body`."""
    servers: tuple[Server, ...] = ()
    """The servers that get the requests in turn, instead of the URL's; empty: only that of the URL."""
    fresh_every: int = 0
    """Each request whose number this divides has a connection of its own, as of a client that comes once; 0: none."""
    headers: tuple[Header, ...] = ()
    """Additional headers; a `Host`, `User-Agent` or `Accept` among them replaces the usual one."""
    cacert: str | None = None
    """A file of the certificates to trust; None for those of the system."""
    cert: str | None = None
    """A file of the client's certificate, which also has its key unless `key` names that; None for no certificate."""
    key: str | None = None

    @property
    def per_server(self) -> tuple["LoadRequest", ...]:
        """The request for each of the servers."""
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
        """The bodies to send: `bodies`, or the only one."""
        return self.bodies or (
            Body.model_construct(body=self.body, content_type=self.content_type, expected=self.expected),
        )

    @property
    def bodies_sha256(self) -> str:
        """The hash of all bodies, with their types and weights."""
        whole = hashlib.sha256()
        for body in self.all_bodies:
            whole.update(f"{body.weight:g} {body.content_type} {len(body.body)}\n".encode() + body.body)
        return whole.hexdigest()

    def wire_bytes(self, chosen: Body | None = None) -> bytes:
        """The request as it is written to the connection, with the chosen body or its own."""
        body, content_type = (chosen.body, chosen.content_type) if chosen else (self.body, self.content_type)
        replaced = {name.lower() for name, _ in self.headers}
        usual = {"Host": urlsplit(self.url).netloc.rpartition("@")[2], "User-Agent": "marina-loadtest", "Accept": "*/*"}
        headers = [
            *((name, value) for name, value in usual.items() if name.lower() not in replaced),
            *self.headers,
            # Without it, a gateway may compress answers as it likes: https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3
            ("Accept-Encoding", "identity"),
            ("Content-Type", content_type),
            ("Content-Length", len(body)),
            *UNCACHED.items(),
        ]
        head = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        return "\r\n".join([*head, "", ""]).encode() + body


class LoadPlan(Part):
    """What one process sends in a run."""

    request: LoadRequest
    schedule: Schedule
    part: int = 0
    parts: int = 1
    timeout_s: float
    limit_ms: float
    """The latency limit, so that counts around it are exact."""
    first_ms: float | None = None
    """The limit of the time to the first text of a streamed answer."""
    gap_ms: float | None = None
    """The limit of the time between pieces of text."""

    @property
    def is_streamed(self) -> bool:
        """Whether any answer is streamed."""
        return any(body.expected.form == "events" for body in self.request.all_bodies)


def parse_header(text: str, environment: Mapping[str, str]) -> Header:
    """Parses `Name: value`; InputError if it is not a header, or a variable in it is not set.

    A value may be secret: it goes to the sending process and to the server, but into no record and no error."""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not _NAME.fullmatch(name):
        raise InputError("`--header`: not a header, allowed: `NAME: VALUE`, such as `Authorization: Bearer $TOKEN`")
    if name.lower() in _OURS:
        raise InputError(f"`--header`: `{name}` is set by the load test itself")
    try:
        value = Template(value).substitute(environment)
    except KeyError as err:
        variable = err.args[0]
        raise InputError(f"`--header`: `{name}`: ${variable} is not set", hint=f"export {variable}=…") from err
    except ValueError as err:
        raise InputError(f"`--header`: `{name}`: a dollar sign is written `$$`") from err
    if not value.isprintable() or not value.isascii():
        raise InputError(f"`--header`: `{name}`: the value holds a line break or a character that headers cannot hold")
    return name, value
