"""Checks whether an answer is good, and names what is wrong with one that is not.

timeout        no answer in time
refused        the server accepts no connection
broken         the connection ended before the answer was complete, or the answer was not HTTP
shed           503 because the model's queue was full, or a language model had no slot in time
http 404 …     any other status than 2xx
malformed      2xx, but without the structure that the package promises
unfinished     a stream that ended without `[DONE]`, or with an error in it
unsent         this machine had no port, file or memory left for a connection"""

import json
from collections.abc import Callable

from marina.loadtest.sending.plan import Expected
from marina.loadtest.sending.wire import EventReader, HttpAnswer

TIMEOUT, REFUSED, BROKEN, SHED = "timeout", "refused", "broken", "shed"
MALFORMED, UNFINISHED, UNSENT = "malformed", "unfinished", "unsent"
# Texts of our server and of a bare TorchServe; a handler that fails also answers 503, but with other texts.
_QUEUE_FULL = (b'"overloaded: ', b"has no worker to serve", b'"code":"busy"')
_MOST_REMEMBERED = 64


class Checker:
    """Checks the structure of answers; bytes that were good before are recognised and not parsed again."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._good: set[bytes] = set()

    def reader(self, clock: Callable[[], float]) -> EventReader | None:
        """A reader for the events of a streamed answer; None for an answer that comes as a whole."""
        return EventReader(clock) if self._expected.form == "events" else None

    def failure(self, answer: HttpAnswer, events: EventReader | None = None) -> str | None:
        """The name of what is wrong with an answer (and its events, if it is streamed); None if it is good."""
        if answer.status == 503 and any(words in answer.body for words in _QUEUE_FULL):
            return SHED
        if not 200 <= answer.status < 300:
            return f"http {answer.status}"
        if events is not None:
            return None if events.is_complete else UNFINISHED
        if answer.body in self._good:
            return None
        if not has_structure(answer.body, self._expected):
            return MALFORMED
        if len(self._good) < _MOST_REMEMBERED:
            self._good.add(answer.body)
        return None


def has_structure(body: bytes, expected: Expected) -> bool:
    """Whether the body of a 2xx answer has the structure that the package promises."""
    if expected.form == "any":
        return True
    if expected.form == "npy":
        return body.startswith(b"\x93NUMPY")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return not expected.keys or (isinstance(data, dict) and all(key in data for key in expected.keys))
