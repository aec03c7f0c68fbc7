"""A cache in a Redis that all workers share, with short time limits.

A thread of its own talks to Redis, because looking up its name or connecting to it may take seconds, and no request may
wait for that. A request waits 5 ms and then goes on without Redis; until the thread has its answer, no other request
asks. After a failure, or three late answers in a row, nobody asks for a while, and for longer after each further
one."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marina.handlers.caching.backoff import Backoff

logger = logging.getLogger(__name__)

PATIENCE_S = 0.005
# How long the thread waits for Redis.
_TIMEOUT_S = 1.0
_MAX_LATE = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
# Reading a larger value would take longer than requests wait. And the queue of values to write must not grow forever.
LARGEST_BYTES = 1_000_000
_MAX_WAITING_BYTES = 16_000_000


class RedisUnreachable(Exception):
    """Redis did not answer, or with an error or what is no answer to the question."""


def redis_client(url: str, auth: str | None) -> Any:
    """A Redis client that never retries and waits a second at most; `auth` is the password. It connects at the first
    command."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis.from_url(
        url,
        password=auth,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


class RedisStore:
    """The two Redis commands that the cache needs; `auth` is the password."""

    def __init__(self, url: str, auth: str | None) -> None:
        self._client = redis_client(url, auth)

    def get(self, names: Sequence[str]) -> list[bytes | None]:
        with _answering():
            values = self._client.mget(names)
        is_list = isinstance(values, list) and len(values) == len(names)
        if not is_list or not all(value is None or isinstance(value, bytes) for value in values):
            raise RedisUnreachable("its answer has another form")
        return list(values)

    def put(self, values: Mapping[str, bytes], ttl_s: float) -> None:
        with _answering(), self._client.pipeline(transaction=False) as pipeline:
            for name, value in values.items():
                pipeline.set(name, value, px=max(1, round(ttl_s * 1000)))
            pipeline.execute()


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except Exception as err:
        # Not only the library's own errors: from what is no Redis it may get a ValueError or a RecursionError.
        raise RedisUnreachable(type(err).__name__) from err


class _Question:
    """Names to look up, and their values once the thread has them; None after a failure."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.answered = threading.Event()
        self.values: list[bytes | None] | None = None


class SharedCache:
    """The shared cache. It calls `failed` with the kind of each failure, from the caller's thread or from its own."""

    def __init__(
        self,
        store: RedisStore,
        *,
        ttl_s: float,
        failed: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store, self._ttl_s, self._failed, self._patience_s = store, ttl_s, failed, patience_s
        self._changed = threading.Condition()
        # This first question opens the connection before a request waits for it.
        self._question: _Question | None = _Question([""])
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._late = 0
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        threading.Thread(target=self._run, name="redis", daemon=True).start()

    def get(self, names: Sequence[str]) -> list[bytes | None]:
        """The value of each name, or None; all None if Redis did not answer in time."""
        nothing: list[bytes | None] = [None] * len(names)
        with self._changed:
            # If a question is still open, its request has given up waiting.
            if self._backoff.is_active or self._question is not None:
                self._failed("skipped")
                return nothing
            question = self._question = _Question(names)
            self._changed.notify()
        if not question.answered.wait(self._patience_s):
            self._failed("late")
            self._late += 1
            # One late answer may be this machine's fault, but a Redis that is always slow would delay every batch.
            if self._late >= _MAX_LATE:
                self._backoff.fail()
            return nothing
        self._late = 0
        if question.values is None:
            return nothing
        # Not where the thread gets it: an answer that came too late is none.
        self._backoff.succeed()
        return question.values

    def put(self, name: str, value: bytes) -> None:
        """Queues a value to be written soon; drops it if the queue is full or Redis is failing."""
        with self._changed:
            room = _MAX_WAITING_BYTES - self._waiting_bytes
            if len(value) > min(LARGEST_BYTES, room) or self._backoff.is_active:
                return
            self._waiting.append((name, value))
            self._waiting_bytes += len(value)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._question is not None or self._waiting)
                question, values = self._question, {}
                if question is None:
                    values, self._waiting_bytes = dict(self._waiting), 0
                    self._waiting.clear()
            try:
                if question is None:
                    self._store.put(values, self._ttl_s)
                else:
                    question.values = self._store.get(question.names)
            except RedisUnreachable as err:
                self._failed("unreachable")
                if not self._backoff.is_active:
                    logger.warning("Redis does not answer, so answers are computed: %s", err)
                self._backoff.fail()
            if question is not None:
                with self._changed:
                    self._question = None
                question.answered.set()
