"""Values in a Redis that all workers share, with short time limits.

A thread of its own talks to it, because a name that is looked up or a connection that is made may take seconds, and no
request may wait for that. A request waits 5 ms and goes on without it; until the thread has its answer, nobody asks
again. After a failure, and when it is late three times in a row, nobody asks for a moment, longer after each further
one."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from handlers.caching.backoff import Backoff

logger = logging.getLogger(__name__)

PATIENCE_S = 0.005
# Of the thread, for one exchange with Redis.
_TIMEOUT_S = 1.0
_LATE_AT_MOST = 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
# Larger values would take the patience of others; and what waits to be written must not grow.
LARGEST_BYTES = 1_000_000
_MOST_WAITING_BYTES = 16_000_000


class RedisUnreachable(Exception):
    """Redis was asked and did not answer, or with an error."""


def redis_client(url: str, auth: str | None) -> Any:
    """A client of Redis that tries everything once, a second long; `auth` is the password. It connects when asked."""
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
    """The few commands that we use; `auth` is the password."""

    def __init__(self, url: str, auth: str | None) -> None:
        import redis

        self._errors = (redis.RedisError, OSError)
        self._client = redis_client(url, auth)

    def get(self, names: Sequence[str]) -> list[bytes | None]:
        try:
            return list(self._client.mget(names))
        except self._errors as err:
            raise RedisUnreachable(type(err).__name__) from err

    def put(self, values: Mapping[str, bytes], ttl_s: float) -> None:
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for name, value in values.items():
                    pipeline.set(name, value, px=max(1, round(ttl_s * 1000)))
                pipeline.execute()
        except self._errors as err:
            raise RedisUnreachable(type(err).__name__) from err


class _Question:
    """What is asked, and its answer when it has come; None after a failure."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.answered = threading.Event()
        self.values: list[bytes | None] | None = None


class SharedCache:
    """`failed` is told of what went wrong, by kind, in the caller's thread or in its own."""

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
        # The first question makes the connection, before anybody waits for it.
        self._question: _Question | None = _Question([""])
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._late = 0
        self._pause = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        threading.Thread(target=self._run, name="redis", daemon=True).start()

    def get(self, names: Sequence[str]) -> list[bytes | None]:
        """A value, or None, for each name; all None where there was no answer in time."""
        nothing: list[bytes | None] = [None] * len(names)
        with self._changed:
            # A question that is still open is one whose patience is over.
            if self._pause.is_active or self._question is not None:
                self._failed("skipped")
                return nothing
            question = self._question = _Question(names)
            self._changed.notify()
        if not question.answered.wait(self._patience_s):
            self._failed("late")
            self._late += 1
            # Once may be this machine's own; a Redis that is slow each time would cost every batch the patience.
            if self._late >= _LATE_AT_MOST:
                self._pause.fail()
            return nothing
        self._late = 0
        return nothing if question.values is None else question.values

    def put(self, name: str, value: bytes) -> None:
        """Written soon, or not at all."""
        with self._changed:
            room = _MOST_WAITING_BYTES - self._waiting_bytes
            if len(value) > min(LARGEST_BYTES, room) or self._pause.is_active:
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
                if not self._pause.is_active:
                    logger.warning("Redis does not answer, so answers are computed: %s", err)
                self._pause.fail()
            else:
                self._pause.succeed()
            if question is not None:
                with self._changed:
                    self._question = None
                question.answered.set()
