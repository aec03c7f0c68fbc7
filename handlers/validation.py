"""The errors that answer a single request, and checks that run before memory is spent.

bytes -> body -> array or pixels -> model -> answer

RequestError             the request's own fault
  Malformed         400  the bytes are not what they claim to be
  NotAcceptable     406  the answer cannot be given in the form asked for
  TooLarge          413  a limit on bytes, pixels or sides
  Unsupported       415  a kind of body that this model does not take
  Unprocessable     422  well formed, but of the wrong shape, type or range
AnswerError              the model's or the server's fault, for this request alone
  NonFiniteOutput   500
  AnswerTooLarge    500
  Overdue           503
  OutOfMemory       507

`got` describes what was found in a few words. It never repeats the payload."""

import base64
import math
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from marina.handlers import memory

MAX_TEXT = 120
# An answer over the server's limit would make TorchServe kill the worker.
_MAX_SENTENCE = 2000
# JSON up to this size is parsed without counting its values.
_SMALL_JSON = 1_000_000
# Memory per counted value. The worst case is an object with one pair: it counts as two values and takes twice this.
_VALUE_BYTES = 116


class RequestError(Exception):
    """Answers this request with a 4xx and `{"error", "field", "got", "allowed"}`, without affecting others of its
    batch."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "malformed"

    def __init_subclass__(cls) -> None:
        # TorchServe would end the worker at the first answer with it.
        if not (isinstance(cls.status, int) and 400 <= cls.status <= 499):
            raise TypeError(f"`{cls.__name__}.status`: got {cls.status!r}, allowed: 400 to 499")

    def __init__(self, error: str, *, field: str | None = None, got: object = None, allowed: object = None) -> None:
        super().__init__(error)
        # All of it may hold what the client sent: names, or words that a user's handler repeats.
        if isinstance(allowed, list | tuple):
            allowed = ", ".join(map(str, allowed))
        elif allowed is not None and not isinstance(allowed, bool | int | float):
            allowed = str(allowed)
        self.details: dict[str, Any] = {
            "error": shorten(str(error), _MAX_SENTENCE),
            "field": shorten(field),
            "got": shorten(got),
            "allowed": shorten(allowed, _MAX_SENTENCE),
        }

    def body(self) -> dict[str, Any]:
        return {name: value for name, value in self.details.items() if value is not None}

    def in_one_sentence(self) -> "RequestError":
        """The same error with all its details in `error`."""
        error, field, got, allowed = self.details.values()
        where = f" in `{field}`" if field else ""
        rest = [f"got {got}"] if got is not None else []
        rest += [f"allowed: {allowed}"] if allowed is not None else []
        return type(self)(f"{error}{where}" + (f": {', '.join(rest)}" if rest else ""))

    def for_openai(self) -> "RequestError":
        """The same error in the form of OpenAI's, whose clients show nothing else."""
        error = self.in_one_sentence()
        kind, field = "invalid_request_error", self.details["field"]
        error.details["error"] = {"message": error.details["error"], "type": kind, "param": field, "code": None}
        return error

    def inside(self, where: str) -> "RequestError":
        """The same error, with `where` in front of its field: the instance of the request that it is about."""
        error, field, got, allowed = self.details.values()
        return type(self)(error, field=f"{where}.{field}" if field else where, got=got, allowed=allowed)


class Malformed(RequestError):
    """The bytes are not what they claim to be."""


class NotAcceptable(RequestError):
    """The answer cannot be given in the form that `Accept` names."""

    status, kind = 406, "not_acceptable"


class TooLarge(RequestError):
    """Over a limit on bytes, pixels or sides."""

    status, kind = 413, "too_large"


class Unsupported(RequestError):
    """A kind of body that this model does not take."""

    status, kind = 415, "unsupported"


class Unprocessable(RequestError):
    """Well formed, but of the wrong shape, type or range."""

    status, kind = 422, "unprocessable"


class AnswerError(Exception):
    """Answers this request with a 5xx whose body names the fault and the request, and nothing else."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "internal"
    error: ClassVar[str] = "internal error"


class NonFiniteOutput(AnswerError):
    """The model returned NaN or infinity, which JSON cannot express."""

    kind, error = "non_finite_output", "non_finite_output: the model returned a number that is not finite"


class AnswerTooLarge(AnswerError):
    """The answer is so large that TorchServe would kill the worker."""

    kind, error = "answer_too_large", "answer_too_large: the answer is over the server's limit"


class Overdue(AnswerError):
    """The other requests of the batch took all the time for decoding. If the worker went on, TorchServe would kill it,
    and their answers would be lost."""

    status, kind, error = 503, "overdue", "overdue: decoding the requests of this batch took too long, try again"


class OutOfMemory(AnswerError):
    """Out of memory, even after the batch was split."""

    status, kind, error = 507, "out_of_memory", "out of memory"


# The kinds of Marina's own errors; a user's handler may have more.
ERROR_KINDS = (
    RequestError.kind,
    *(refusal.kind for refusal in RequestError.__subclasses__()),
    AnswerError.kind,
    *(failure.kind for failure in AnswerError.__subclasses__()),
)


def shorten(value: object, most: int = MAX_TEXT) -> object:
    """A value as it may appear in an error: numbers unchanged, text cut off, anything else as the name of its type."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**53 else "a number over 2**53"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        text = value.encode(errors="replace").decode()  # half a surrogate pair cannot be sent
        return text if len(text) <= most else f"{text[:most]}…"
    return type(value).__name__


def check_size(body: bytes | bytearray, limit: int) -> None:
    if not body:
        raise Malformed("the body is empty", field="body", got="0 bytes", allowed=f"1 to {limit} bytes")
    if len(body) > limit:
        raise TooLarge(
            "the body is too large", field="body", got=f"{len(body)} bytes", allowed=f"at most {limit} bytes"
        )


def check_pixels(height: int, width: int, *, max_pixels: int, max_ratio: int) -> None:
    """Checks the size that the header declares, so that a decompression bomb is refused before it is unpacked."""
    got = f"{width}x{height} pixels"
    if height < 1 or width < 1:
        raise Malformed("the image has no pixels", field="image", got=got)
    if height * width > max_pixels:
        raise TooLarge("the image is too large", field="image", got=got, allowed=f"at most {max_pixels} pixels")
    if max(height, width) > max_ratio * min(height, width):
        raise TooLarge("the image is too narrow", field="image", got=got, allowed=f"sides of at most 1:{max_ratio}")


def parse_json(body: bytes | bytearray, *, max_values: int) -> object:
    """Parses JSON. orjson refuses NaN, bad UTF-8 and more than 1024 levels without recursing into them. The number of
    values is limited, because a large body of tiny values would take up to forty times its size in memory."""
    if len(body) > min(_SMALL_JSON, max_values):
        values = body.count(b",") + body.count(b"[") + body.count(b"{")
        if values > max_values:
            raise TooLarge("the JSON holds too many values", field="body", got=values, allowed=f"at most {max_values}")
        memory.note_estimate(values * _VALUE_BYTES)
    try:
        return orjson.loads(body)
    except ValueError as err:
        raise Malformed("the body is not valid JSON", field="body", got=_fault(body, getattr(err, "pos", 0))) from err


def _fault(body: bytes | bytearray, position: int) -> str:
    """What is wrong with a body that is not JSON. The parser does not say if it is not in plain UTF-8."""
    if body.startswith(BOM_UTF8):
        return "a byte order mark before it"
    try:
        body.decode()
    except UnicodeDecodeError as err:
        return f"the byte {err.start} is not UTF-8"
    return f"an error at character {position}"


def decode_base64(text: str, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as err:
        allowed = "standard base64 without line breaks"
        raise Malformed("the text is not valid base64", field=field, allowed=allowed) from err


def describe_json(value: object) -> str:
    """Describes the JSON type of a value without showing the value."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    names = {str: "a string", type(None): "null", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def wrong_names(expected: set[str], given: Sequence[object], described: str) -> Unprocessable:
    """The error for inputs that are not those of the model. It names those that are missing; those that the client sent
    are payload, so it does not repeat them."""
    missing = [f"`{name}`" for name in sorted(expected) if name not in given]
    others = len(given) - len(expected) + len(missing)
    parts = [described, *([f"no {', '.join(missing)}"] if missing else []), *([f"{others} too many"] if others else [])]
    return Unprocessable(
        "the inputs are not those of the model",
        field="inputs",
        got=", ".join(parts),
        allowed=", ".join(sorted(expected)),
    )
