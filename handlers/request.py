"""One request as a handler sees it, in whatever form TorchServe passes its body, and the answer to it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from marina.handlers.validation import Malformed, Unsupported, check_size, parse_json

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
    """Further headers of the answer."""


@dataclass(frozen=True)
class Form:
    """Declares the bodies that a handler of your own takes or gives: a JSON schema, with an example that matches it.
    For bodies that are not JSON, the content type and an example as text."""

    schema: Mapping[str, Any] = field(default_factory=dict)
    example: Any = None
    content_type: str = JSON


class Headers(Mapping[str, str]):
    """Headers whose names may be in any case: gateways send lower case, and TorchServe keeps what the client sent."""

    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._values = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Request:
    """One row of the batch. `body` is always bytes, even if TorchServe has already decoded the JSON; `json()` is always
    the parsed value."""

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
        """Anything that `decode` wants to pass on to `encode`."""
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
        """The media type in lower case, without parameters; empty if there is none."""
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
        """True if TorchServe has parsed the JSON (`decode_input_request=true` and exactly `application/json`)."""
        return not isinstance(self._value, bytes | bytearray)

    @cached_property
    def is_npy(self) -> bool:
        return not self.is_decoded and self.body.startswith(b"\x93NUMPY")

    @cached_property
    def wants_npy(self) -> bool:
        """True if the answer should be `.npy`: as `Accept` says, or else like the request."""
        return bool(self._accepted & _NPY_TYPES) or (self.is_npy and JSON not in self._accepted)

    @property
    def takes_json(self) -> bool:
        """False if `Accept` asks for `.npy` and nothing else."""
        return not self._accepted <= _NPY_TYPES

    @property
    def _accepted(self) -> set[str]:
        return {item.partition(";")[0].strip().lower() for item in self.headers.get("accept", "").split(",")}

    def json(self) -> object:
        return self._parsed

    def door_header(self, name: str) -> str | None:
        """The value of a header that the door sets, so in exactly this spelling; None if it is missing."""
        value = self._raw_headers.get(name)
        return value if isinstance(value, str) else None

    def instance(self, value: object) -> "Request":
        """A request with one instance of this request as its body: bytes of undeclared type, or a JSON value. It is
        answered in JSON if possible."""
        part = copy.copy(self)
        for name in ("headers", "content_type", "is_npy", "wants_npy", "_parsed"):
            part.__dict__.pop(name, None)
        part._value, part._part = value, "body"
        part._raw_headers = {"accept": JSON} if isinstance(value, bytes) else {"accept": JSON, "content-type": JSON}
        return part

    @cached_property
    def _parsed(self) -> object:
        if self.is_decoded:
            return self._value
        if (coding := self.headers.get("content-encoding", "").strip().lower()) not in ("", "identity"):
            # TorchServe passes the body on as it came.
            allowed = "a body that is not compressed"
            raise Unsupported("the body is compressed", field="content-encoding", got=coding, allowed=allowed)
        return parse_json(self._value, max_values=self.max_values)

    def _find_part(self) -> str:
        for name in _BODY_NAMES:
            if self.parts.get(name) is not None:
                return name
        names = [name for name, value in self.parts.items() if value is not None]
        if len(names) == 1:
            return names[0]
        declared = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not names and declared == FORM:
            # curl sends this type by default. TorchServe then looks for form fields and drops everything else.
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
