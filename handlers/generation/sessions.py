"""Conversations in a Redis that all pods share: a client names its conversation and sends only what is new, and any pod
can continue it.

If the history cannot be read, the request is refused, and if the new turn cannot be stored, its answer ends with an
error: an answer without the earlier messages would be wrong, and nobody would notice. Each turn is one element of a
Redis list, so of two turns at the same time both are stored. The supervisor sets `MARINA_SESSIONS` from the spec's
`text.sessions`."""

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

from marina.handlers.caching import redis_client
from marina.handlers.generation.messages import MAX_MESSAGES
from marina.handlers.generation.refusals import RequestRefused
from marina.handlers.generation.sequence import AnswerSource, End, Piece

SETTINGS, AUTH = "MARINA_SESSIONS", "MARINA_SESSIONS_AUTH"
ChatMessage = dict[str, Any]
_RESULTS = ("begun", "continued", "unread", "unkept")
# How many threads talk to Redis, and how long a read or a write may hold up an answer.
_THREADS, _TIMEOUT_S = 4, 2.0
# The largest conversation as JSON; a request that would make it larger is refused.
MAX_BYTES = 256_000


@dataclass(frozen=True)
class ConversationTurn:
    """One request of a conversation: all its messages, of which the first `known_messages` are stored."""

    store: "ConversationStore"
    conversation: str
    messages: Sequence[ChatMessage]
    known_messages: int

    def begin_append(self, answer: ChatMessage) -> Future[None]:
        """Starts to store the new messages, with the answer to them."""
        new = [*self.messages[self.known_messages :], answer]
        return self.store.begin_append(self.conversation, new)


class HistoryRead:
    """A read of the stored messages, in progress, for a request with the messages `new`."""

    def __init__(self, store: "ConversationStore", conversation: str, new: Sequence[ChatMessage]) -> None:
        self._store, self._conversation, self._new = store, conversation, new
        self._until = time.monotonic() + _TIMEOUT_S
        self._stored = store.begin_read(conversation)

    @property
    def is_ready(self) -> bool:
        """True once the history was read, or the time to read it is over."""
        return self._stored.done() or time.monotonic() > self._until

    def turn(self) -> ConversationTurn:
        """Joins the new messages to the stored history. Raises RequestRefused if the history cannot be read, or if all
        of it is too long.

        A client may send all messages again: if they begin with the stored ones, they replace these."""
        if _has_failed(self._stored):
            self._store.count("unread")
            text = "conversations cannot be read now: send all messages without `X-Conversation`, or try again"
            raise RequestRefused(text, code="conversation_unavailable", status=503, retry_after_s=1)
        stored, new = self._stored.result(), list(self._new)
        messages = new if new[: len(stored)] == stored else stored + new
        sizes = {
            "bytes": (len(orjson.dumps(messages)), MAX_BYTES),
            "messages": (len(messages), MAX_MESSAGES),
        }
        for what, (size, limit) in sizes.items():
            if size > limit:
                text = f"the conversation has {size} {what}, allowed: {limit}: begin another one"
                raise RequestRefused(text, param="X-Conversation", code="conversation_too_long")
        self._store.count("continued" if stored else "begun")
        return ConversationTurn(self._store, self._conversation, messages, len(stored))


class ConversationAnswer:
    """The answer to a turn, an `AnswerSource`. Its last piece is held back until the turn is stored, as the message
    that `message` makes of its text; if that fails, the answer ends with an error."""

    def __init__(self, source: AnswerSource, turn: ConversationTurn, message: Callable[[str], ChatMessage]) -> None:
        self._source, self._turn, self._message, self._text = source, turn, message, ""
        self._stored: Future[None] | None = None
        self._last: list[Piece] = []
        self._until = 0.0
        self._end: End | None = None
        self.is_unkept = False

    @property
    def end(self) -> End | None:
        return "error" if self._source.end == "error" else self._end

    @property
    def is_ready(self) -> bool:
        if self._stored is None or self._end:
            return self._end == "error" or self._source.is_ready
        return self._stored.done() or time.monotonic() > self._until

    def take(self) -> list[Piece]:
        if self._stored is None:
            return self._hold_last_back(self._source.take())
        if self._end or not self.is_ready:
            return []
        self.is_unkept = _has_failed(self._stored)
        if self.is_unkept:
            self._end = "error"
            self._turn.store.count("unkept")
            return []
        self._end = self._last[-1].end
        return self._last

    def _hold_last_back(self, pieces: list[Piece]) -> list[Piece]:
        self._text += "".join(piece.text for piece in pieces)
        if not pieces or pieces[-1].end is None:
            return pieces
        self._last, self._until = pieces[-1:], time.monotonic() + _TIMEOUT_S
        self._stored = self._turn.begin_append(self._message(self._text))
        return pieces[:-1]


def _has_failed(future: Future[Any]) -> bool:
    """True if the read or write failed or took too long; it is not waited for any longer."""
    future.cancel()
    return not future.done() or future.cancelled() or future.exception() is not None


class ConversationStore:
    """The stored conversations of one model, by the names that clients gave them. `changed` is called when a read or a
    write has ended."""

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
        self._ttl_ms = round(settings["ttl_s"] * 1000)
        self._model, self._results, self._changed = model, results, changed
        self._threads = ThreadPoolExecutor(_THREADS, "sessions")

    def count(self, result: str) -> None:
        self._results[result].inc()

    def begin_read(self, conversation: str) -> Future[list[ChatMessage]]:
        """Starts to read all messages, oldest first; none if nothing is stored under that name."""
        return self._begin(self._read, self._name(conversation))

    def begin_append(self, conversation: str, turn: Sequence[ChatMessage]) -> Future[None]:
        """Starts to store one more turn; the conversation's time to live starts again."""
        return self._begin(self._append, self._name(conversation), orjson.dumps(turn))

    def _begin(self, act: Callable[..., Any], *arguments: object) -> Future[Any]:
        future = self._threads.submit(act, *arguments)
        future.add_done_callback(lambda _: self._changed())
        return future

    def _read(self, name: str) -> list[ChatMessage]:
        return [message for turn in self._client.lrange(name, 0, -1) for message in orjson.loads(turn)]

    def _append(self, name: str, turn: bytes) -> None:
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(name, turn).pexpire(name, self._ttl_ms).execute()

    def _name(self, conversation: str) -> str:
        """The key in Redis: a hash, because the name of a conversation is as good as a password, and must not be learnt
        by somebody who may list the keys."""
        return f"marina:conversation:{self._model}:{blake2b(conversation.encode(), digest_size=24).hexdigest()}"


def open_conversations(
    registry: CollectorRegistry,
    model: str,
    *,
    changed: Callable[[], None],
) -> ConversationStore | None:
    """The store that `MARINA_SESSIONS` describes; None without that variable."""
    text = os.environ.get(SETTINGS)
    if not text:
        return None
    counter = Counter(
        "inference_conversations",
        "Requests that named a conversation: it was new, was continued, could not be read, or could not be stored",
        ["model", "result"],
        registry=registry,
    )
    results = {result: counter.labels(model, result) for result in _RESULTS}
    return ConversationStore(json.loads(text), os.environ.get(AUTH), model=model, results=results, changed=changed)
