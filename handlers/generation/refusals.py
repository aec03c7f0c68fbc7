"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

A message quotes numbers as they were sent, but a text only where it is the name of a choice, and never all of it."""

from collections.abc import Mapping

import orjson

_LONGEST_NAME = 80
_KINDS = {404: "not_found", 413: "too_large", 415: "unsupported", 503: "busy", 500: "internal"}
REFUSAL_KINDS = ("malformed", *_KINDS.values())


class RequestRefused(Exception):
    """Answers one request with an error. `retry_after_s` is set if another try may help."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code
        self.status, self.retry_after_s = status, retry_after_s

    @property
    def kind(self) -> str:
        """The reason under which the metrics count it."""
        return _KINDS.get(self.status, "malformed")

    def body(self) -> bytes:
        return error_body(self.message, self.status, self.param, self.code)


def wrong_value(where: str, value: object, allowed: str, *, param: str | None = None) -> RequestRefused:
    """A refusal that says what was given and what is allowed."""
    return RequestRefused(f"`{where}`: got {describe_briefly(value)}, allowed: {allowed}", param=param or where)


def describe_briefly(value: object) -> str:
    """A number or a flag as it is, anything else by its kind."""
    if isinstance(value, bool | int | float):
        return f"`{as_json(value)}`"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, Mapping) else "nothing"


def quote_choice(value: object) -> str:
    """A value that should be one of a few names: a text in quotes, at most 80 characters of it."""
    return f"`{value[:_LONGEST_NAME]}`" if isinstance(value, str) and value else describe_briefly(value)


def as_json(value: object) -> str:
    return orjson.dumps(value).decode()


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
