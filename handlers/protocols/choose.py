"""Finds out which protocol a request uses. Its path decides, and the door passes that on in a header. Without the
header, the form of the JSON decides, but only for built-in handlers, because those of users define their own bodies."""

from collections.abc import Mapping

from marina.handlers.protocols import v1, v2
from marina.handlers.protocols.exchange import Exchange, ProtocolHandler
from marina.handlers.request import Request
from marina.handlers.validation import RequestError

# The door sets this header (`server/java/marina/Route.java`), and removes it from what a client sends.
HEADER = "x-marina-protocol"
_MAKE = {"v1": v1.read_exchange, "v2": v2.read_exchange}


def read_exchange(handler: ProtocolHandler, request: Request, until: float, *, is_built_in: bool) -> Exchange:
    """Decodes a request in the protocol that it uses. `until` is the time by which its rows must be decoded; only if
    `is_built_in` may the body alone decide on the protocol."""
    protocol = request.door_header(HEADER)
    if protocol is None and is_built_in:
        protocol = _by_body(handler, request)
    if protocol in _MAKE:
        try:
            return _MAKE[protocol](handler, request, until)
        except RequestError as err:
            # Clients of these protocols show only `error`.
            raise err.in_one_sentence() from err
    part = request
    if protocol == "body":
        part = request.instance(v1.unwrap(request.json()))
    return handler.exchange(part)


def _by_body(handler: ProtocolHandler, request: Request) -> str | None:
    if not request.is_decoded and request.body[:64].lstrip()[:1] != b"{":
        return None
    if request.headers.get(v2.LENGTH) is not None:
        return "v2"
    value = request.json()
    if not isinstance(value, Mapping) or not {"instances", "inputs", "body"} & value.keys():
        return None
    names = {spec.name for spec in handler.record.inputs}
    if v2.is_request(value):
        return "v2"
    if "instances" in value and "instances" not in names:
        return "v1"
    return "body" if value.keys() == {"body"} and "body" not in names else None
