"""Conversations in a Redis that all pods share: a client names one and sends what is new, and any pod goes on.

Where it cannot be read nothing is answered, and what cannot be kept is told with the answer: one that does not know
what was said before would be wrong without a sign. A turn is an element of a list, so both of two at once are kept.
`MARINA_SESSIONS` says where it is, set by the supervisor of the spec's `text.sessions`."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter

from handlers.caching import redis_client
from handlers.generation.refusals import Refused
from handlers.generation.sequence import Answering, End, Piece

SETTINGS, AUTH = "MARINA_SESSIONS", "MARINA_SESSIONS_AUTH"
Message = dict[str, str]
_RESULTS = ("begun", "continued", "unread", "unkept")
# Who talks to Redis, and how long an answer's beginning or end waits for that.
_THREADS, _PATIENCE_S = 4, 2.0


@dataclass(frozen=True)
class Turn:
    """What is said in a conversation, and how it is kept with its answer: `messages` are all, and `recalled` of them
    were said before."""

    sessions: "Sessions"
    conversation: str
    messages: Sequence[Message]
    recalled: int

    def keep(self, answer: str) -> Future[None]:
        """Begins to keep what is new, with its answer."""
        new = [*self.messages[self.recalled :], {"role": "assistant", "content": answer}]
        return self.sessions.keep(self.conversation, new)


class Recalled:
    """What was said before, on its way."""

    def __init__(self, sessions: "Sessions", conversation: str, new: Sequence[Message]) -> None:
        self._sessions, self._conversation, self._new = sessions, conversation, new
        self._until = time.monotonic() + _PATIENCE_S
        self._before = sessions.read(conversation)

    @property
    def is_ready(self) -> bool:
        """Whether it is there, or will not come."""
        return self._before.done() or time.monotonic() > self._until

    def turn(self) -> Turn:
        """What is said now, with what was said before; Refused where that is unknown, or too much.

        A client that sends all of it again is understood: its messages begin with those that are kept."""
        self._before.cancel()
        if not self._before.done() or self._before.cancelled() or self._before.exception():
            self._sessions.count("unread")
            text = (
                "the store of conversations does not answer: send all messages without `X-Conversation`, or try again"
            )
            raise Refused(text, code="conversation_unavailable", status=503, retry_after_s=1)
        before, new = self._before.result(), list(self._new)
        messages = new if new[: len(before)] == before else before + new
        size, most = len(orjson.dumps(messages)), self._sessions.max_bytes
        if size > most:
            text = f"the conversation has {size} bytes, allowed: {most}: begin another one"
            raise Refused(text, param="X-Conversation", code="conversation_too_long")
        self._sessions.count("continued" if before else "begun")
        return Turn(self._sessions, self._conversation, messages, len(before))


class Remembered:
    """An answer whose last piece is given when its conversation is kept; where that fails it ends with an error."""

    def __init__(self, answering: Answering, turn: Turn) -> None:
        self._answering, self._turn, self._text = answering, turn, ""
        self._kept: Future[None] | None = None
        self._last: list[Piece] = []
        self._until = 0.0
        self._end: End | None = None
        self.is_unkept = False

    @property
    def end(self) -> End | None:
        return "error" if self._answering.end == "error" else self._end

    @property
    def is_ready(self) -> bool:
        """Whether there is something that its client has not got."""
        if self._kept is None or self._end:
            return self._end == "error" or self._answering.is_ready
        return self._kept.done() or time.monotonic() > self._until

    def take(self) -> list[Piece]:
        """What its client has not got yet."""
        if self._kept is None:
            return self._pass_on(self._answering.take())
        if self._end or not self.is_ready:
            return []
        self._kept.cancel()
        self.is_unkept = not self._kept.done() or self._kept.cancelled() or self._kept.exception() is not None
        if self.is_unkept:
            self._end = "error"
            self._turn.sessions.count("unkept")
            return []
        self._end = self._last[-1].end
        return self._last

    def _pass_on(self, pieces: list[Piece]) -> list[Piece]:
        self._text += "".join(piece.text for piece in pieces)
        if not pieces or pieces[-1].end is None:
            return pieces
        self._last, self._until = pieces[-1:], time.monotonic() + _PATIENCE_S
        self._kept = self._turn.keep(self._text)
        return pieces[:-1]


class Sessions:
    """The conversations of one model, by the names that clients gave them; `changed` is told of what Redis did."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        auth: str | None,
        *,
        model: str,
        results: Mapping[str, Counter],
        changed: Callable[[], None],
    ) -> None:
        self._client = redis_client(settings["redis"], auth)
        self._ttl_ms, self.max_bytes = round(settings["ttl_s"] * 1000), settings["max_kb"] * 1000
        self._model, self._results, self._changed = model, results, changed
        self._asking = ThreadPoolExecutor(_THREADS, "sessions")

    def count(self, result: str) -> None:
        self._results[result].inc()

    def read(self, conversation: str) -> Future[list[Message]]:
        """All that was said, in its order; none where nothing is kept under that name."""
        return self._begin(self._read, self._name(conversation))

    def keep(self, conversation: str, turn: Sequence[Message]) -> Future[None]:
        """Adds a turn; from now on the conversation is kept for its time."""
        return self._begin(self._keep, self._name(conversation), orjson.dumps(turn))

    def _begin(self, act: Callable[..., Any], *arguments: object) -> Future[Any]:
        future = self._asking.submit(act, *arguments)
        future.add_done_callback(lambda _: self._changed())
        return future

    def _read(self, name: str) -> list[Message]:
        return [message for turn in self._client.lrange(name, 0, -1) for message in orjson.loads(turn)]

    def _keep(self, name: str, turn: bytes) -> None:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(name, turn).pexpire(name, self._ttl_ms).execute()

    def _name(self, conversation: str) -> str:
        """Names are as good as passwords, and who may list Redis' keys need not learn them."""
        return f"marina:conversation:{self._model}:{blake2b(conversation.encode(), digest_size=24).hexdigest()}"


def open_sessions(
    registry: CollectorRegistry,
    model: str,
    *,
    changed: Callable[[], None],
) -> Sessions | None:
    """The store that the supervisor has asked for; None without."""
    text = os.environ.get(SETTINGS)
    if not text:
        return None
    counter = Counter(
        "inference_conversations",
        "Requests that named a conversation: it began, it went on, the store could not be read, or not be written",
        ["model", "result"],
        registry=registry,
    )
    results = {result: counter.labels(model, result) for result in _RESULTS}
    return Sessions(json.loads(text), os.environ.get(AUTH), model=model, results=results, changed=changed)
