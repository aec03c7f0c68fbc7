"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. What was sent is told in a few words: a
number as it is, a text by what it is."""

from collections.abc import Mapping

import orjson

_LONGEST_NAME = 80


class Refused(Exception):
    """Answers one request with an error; `retry_after_s` is told where another try may help."""

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
        """What the metrics call it."""
        kinds = {404: "not_found", 413: "too_large", 415: "unsupported", 503: "busy", 500: "internal"}
        return kinds.get(self.status, "malformed")

    def body(self) -> bytes:
        return error_body(self.message, self.status, self.param, self.code)


def unfit(where: str, value: object, allowed: str, *, param: str | None = None) -> Refused:
    """What a value should have been that is not."""
    return Refused(f"`{where}`: got {in_few_words(value)}, allowed: {allowed}", param=param or where)


def in_few_words(value: object) -> str:
    """A value in a few words."""
    if isinstance(value, bool | int | float):
        return f"`{as_json(value)}`"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, Mapping) else "nothing"


def named(value: object) -> str:
    """A value that stands for a choice: a text as it is, where it is short."""
    return f"`{value[:_LONGEST_NAME]}`" if isinstance(value, str) and value else in_few_words(value)


def as_json(value: object) -> str:
    return orjson.dumps(value).decode()


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
