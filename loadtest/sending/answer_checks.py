"""Is an answer good, and if not, what is its name in the counts.

timeout        no answer in time
refused        the server accepts no connection
broken         the connection ended, or what came was no HTTP, before the answer was complete
shed           503 because the model's queue was full, or a language model had no slot in time
http 404 …     any other status than 2xx
malformed      2xx, but not the structure that the package promises
unfinished     events that ended without their end, or with an error among them
"""

from __future__ import annotations

import json
from collections.abc import Callable

from loadtest.sending.plan import Expected
from loadtest.sending.wire import EventReader, HttpAnswer

TIMEOUT, REFUSED, BROKEN, SHED = "timeout", "refused", "broken", "shed"
MALFORMED, UNFINISHED = "malformed", "unfinished"
# The words of our server and of a bare TorchServe; a handler that fails answers 503 too, with other words.
_QUEUE_FULL = (b"overloaded: the queue is full", b"has no worker to serve", b'"code":"busy"')
_REMEMBERED = 64


class Checker:
    """Checks the structure of answers; one that was good before is recognised by its bytes and not parsed again."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._good: set[bytes] = set()

    def reader(self, clock: Callable[[], float]) -> EventReader | None:
        """What is to hear the answer while it comes; None for one that comes whole."""
        return EventReader(clock) if self._expected.form == "events" else None

    def failure(self, answer: HttpAnswer, heard: EventReader | None = None) -> str | None:
        """The name of what is wrong with an answer, and with its events as they were heard; None if it is good."""
        if answer.status == 503 and any(words in answer.body for words in _QUEUE_FULL):
            return SHED
        if not 200 <= answer.status < 300:
            return f"http {answer.status}"
        if heard is not None:
            return None if heard.is_whole else UNFINISHED
        if answer.body in self._good:
            return None
        if not has_structure(answer.body, self._expected):
            return MALFORMED
        if len(self._good) < _REMEMBERED:
            self._good.add(answer.body)
        return None


def has_structure(body: bytes, expected: Expected) -> bool:
    """Whether a 2xx body is what the package promises."""
    if expected.form == "any":
        return True
    if expected.form == "npy":
        return body.startswith(b"\x93NUMPY")
    try:
        data = json.loads(body)
    except ValueError:
        return False
    return not expected.keys or (isinstance(data, dict) and all(key in data for key in expected.keys))
