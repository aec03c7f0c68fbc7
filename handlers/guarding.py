"""The steps of one request: each succeeds or fails on its own, and takes its own time."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeVar

import orjson

from marina.handlers.batching import is_out_of_memory
from marina.handlers.request import Answer
from marina.handlers.tracing import Step
from marina.handlers.validation import AnswerError, OutOfMemory, RequestError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Failure:
    """The error answer to one request."""

    cause = ""
    """The exception that its client is not told."""

    def __init__(self, err: RequestError | AnswerError, request_id: str) -> None:
        self.status, self.kind = err.status, err.kind
        details = err.body() if isinstance(err, RequestError) else {"error": err.error, "request_id": request_id}
        self.answer = Answer(orjson.dumps(details))


def guard(step: Callable[..., T], *args: Any, request_id: str) -> T | Failure:
    """Runs a step of one request and turns its exceptions into a `Failure`, so that they do not affect the rest of its
    batch."""
    try:
        return step(*args)
    except (RequestError, AnswerError) as err:
        return Failure(err, request_id)
    except KeyboardInterrupt:
        raise
    except BaseException as err:  # libraries in Rust raise no Exception when they fail
        logger.exception("request %s failed", request_id)
        failure = Failure(OutOfMemory() if is_out_of_memory(err) else AnswerError(), request_id)
        failure.cause = f"{type(err).__name__}: {err}".partition("\n")[0]
        return failure


class Steps:
    """Takes the times of the steps of a batch's requests, if one of them is traced."""

    def __init__(self, is_traced: bool) -> None:
        self._is_traced = is_traced
        self.of: dict[int, list[Step]] = {}
        """The steps of each request, by its place."""

    def take(self, place: int, name: str, step: Callable[..., T], *args: Any, request_id: str) -> T | Failure:
        """Runs a step of one request, as `guard` does."""
        if not self._is_traced:
            return guard(step, *args, request_id=request_id)
        begin = perf_counter()
        result = guard(step, *args, request_id=request_id)
        kind = result.kind if isinstance(result, Failure) else None
        self._add(place, Step(name, begin, perf_counter(), error=kind))
        return result

    def share(self, name: str, begin: float, end: float, places: Sequence[int]) -> None:
        """Adds a step that these requests passed through together."""
        for place in places if self._is_traced else ():
            self._add(place, Step(name, begin, end))

    def _add(self, place: int, step: Step) -> None:
        self.of.setdefault(place, []).append(step)
