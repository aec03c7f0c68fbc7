"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import orjson


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
        return {404: "not_found", 413: "too_large", 503: "busy", 500: "internal"}.get(self.status, "malformed")

    def body(self) -> bytes:
        return error_body(self.message, self.status, self.param, self.code)


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> bytes:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
