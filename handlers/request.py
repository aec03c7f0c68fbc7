"""One request as a handler sees it, whatever TorchServe has made of its body, and the answer to it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from handlers.validation import Malformed, Unsupported, check_size, parse_json

NPY = "application/x-npy"
JSON = "application/json"
_NPY_TYPES = {NPY, "application/npy"}
FORM = "application/x-www-form-urlencoded"
# TorchServe names a plain body `body` and form fields as the form does.
_BODY_NAMES = ("body", "data", "image", "file")


@dataclass(frozen=True)
class Answer:
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further ones, of the answer."""


@dataclass(frozen=True)
class Form:
    """What a handler of your own takes, or gives: the JSON schema of a body, with an example that fits it. For other
    bodies, the content type and an example as text."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    example: Any = None
    content_type: str = JSON


class Headers(Mapping[str, str]):
    """Header names in any case: gateways lower-case them, TorchServe keeps what the client sent."""

    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._values = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Request:
    """One row of the batch. `body` is bytes also where TorchServe has already decoded the JSON; `json()` is the parsed
    form."""

    def __init__(
        self,
        row: Mapping[str, Any],
        raw_headers: Mapping[str, Any],
        *,
        request_id: str,
        max_bytes: int,
        max_values: int,
    ) -> None:
        self.id = request_id
        self.parts = row
        self.kept: Any = None
        """What `decode` leaves for `encode`."""
        self.max_values = max_values
        self._raw_headers = raw_headers
        self._part = self._find_part()
        self._value = row[self._part]
        if isinstance(self._value, str):
            self._value = self._value.encode("utf-8", "surrogatepass")
        if isinstance(self._value, bytes | bytearray):
            check_size(self._value, max_bytes)

    @cached_property
    def headers(self) -> Headers:
        return Headers(self._raw_headers)

    @cached_property
    def content_type(self) -> str:
        """The media type in lower case without parameters; empty if there is none."""
        of_part = self._raw_headers.get(self._part)
        declared = of_part.get("content-type") if isinstance(of_part, Mapping) else None
        return (declared or self.headers.get("content-type") or "").partition(";")[0].strip().lower()

    @property
    def body(self) -> bytes | bytearray:
        if isinstance(self._value, bytes | bytearray):
            return self._value
        return orjson.dumps(self._value)

    @property
    def is_decoded(self) -> bool:
        """TorchServe has parsed the JSON already (`decode_input_request=true` and exactly `application/json`)."""
        return not isinstance(self._value, bytes | bytearray)

    @cached_property
    def is_npy(self) -> bool:
        return not self.is_decoded and self.body.startswith(b"\x93NUMPY")

    @cached_property
    def wants_npy(self) -> bool:
        """The answer's format: as `Accept` says, else that of the request."""
        accepted = {item.partition(";")[0].strip().lower() for item in self.headers.get("accept", "").split(",")}
        if accepted & _NPY_TYPES:
            return True
        return self.is_npy and JSON not in accepted

    def json(self) -> object:
        return self._parsed

    def door_header(self, name: str) -> str | None:
        """A header that the door has set, so of exactly this name."""
        value = self._raw_headers.get(name)
        return value if isinstance(value, str) else None

    def instance(self, value: object) -> "Request":
        """One of several in this request, as if it were a body of its own: bytes of no declared type, or a JSON value.
        It is answered in JSON where it can be."""
        part = copy.copy(self)
        for name in ("headers", "content_type", "is_npy", "wants_npy", "_parsed"):
            part.__dict__.pop(name, None)
        part._value, part._part = value, "body"
        part._raw_headers = {"accept": JSON} if isinstance(value, bytes) else {"accept": JSON, "content-type": JSON}
        return part

    @cached_property
    def _parsed(self) -> object:
        return self._value if self.is_decoded else parse_json(self._value, max_values=self.max_values)

    def _find_part(self) -> str:
        for name in _BODY_NAMES:
            if self.parts.get(name) is not None:
                return name
        names = [name for name, value in self.parts.items() if value is not None]
        if len(names) == 1:
            return names[0]
        declared = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not names and declared == FORM:
            # What curl sends when it is not told a type; TorchServe then looks for fields and keeps nothing else.
            raise Unsupported(
                "a form without fields",
                field="content-type",
                got=FORM,
                allowed="the type of the body, such as application/json or image/jpeg",
            )
        raise Malformed(
            "the body was not found",
            field="body",
            got=f"{len(names)} parts",
            allowed="one part, or one of " + ", ".join(_BODY_NAMES),
        )
