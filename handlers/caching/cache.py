"""The answers that a worker knows: in its memory, then in Redis; and how often that helped.

`MARINA_ANSWERS` says what there is, set by the supervisor of the spec's `serving.cache`: the hash of the package is not
known to what is inside of it, and where a Redis is differs from cluster to cluster."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from handlers.caching.envelope import seal, unseal
from handlers.caching.memory import MemoryCache
from handlers.caching.shared import RedisStore, SharedCache

SETTINGS, AUTH = "MARINA_ANSWERS", "MARINA_REDIS_AUTH"
RESULTS = ("memory", "redis", "batch", "computed", "bypassed")
FAILURES = ("late", "unreachable", "skipped", "foreign")


@dataclass(frozen=True)
class CacheControl:
    """What a client says of the cache: whether it takes an answer from it, and whether its own may be kept."""

    may_read: bool = True
    may_store: bool = True


def parse_cache_control(headers: Mapping[str, str]) -> CacheControl:
    """`Cache-Control` as HTTP has it. A client that takes nothing from the cache costs what one of a new body does."""
    words = {word.strip().lower() for word in headers.get("cache-control", "").split(",")}
    return CacheControl(may_read=not words & {"no-cache", "no-store"}, may_store="no-store" not in words)


class CacheMetrics:
    """Series of one model's cache."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        requests = Counter(
            "inference_cache_requests",
            "Requests by where their answer came from: this worker's memory, Redis, the same request in one batch or "
            "still being written, or the model; `bypassed`: the client asked for the model",
            ["model", "result"],
            registry=registry,
        )
        self.requests = {result: requests.labels(model, result) for result in RESULTS}
        failures = Counter(
            "inference_cache_failures",
            "Times that Redis was late, unreachable, not asked because it had just failed, or held foreign data",
            ["model", "kind"],
            registry=registry,
        )
        self.failures = {kind: failures.labels(model, kind) for kind in FAILURES}
        self.bytes = Gauge(
            "inference_cache_bytes",
            "Memory that a worker's kept answers take",
            ["model"],
            registry=registry,
            multiprocess_mode="liveall",
        ).labels(model)


class AnswerCache:
    """Values by their keys; used by the thread that answers."""

    def __init__(
        self,
        package: str,
        memory: MemoryCache,
        metrics: CacheMetrics,
        *,
        ttl_s: float,
        shared: SharedCache | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.package, self.metrics = package, metrics
        self._memory, self._shared, self._ttl_s, self._clock = memory, shared, ttl_s, clock

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, as far as it is known: one question to Redis for all that are not in memory."""
        values = [self._memory.get(key) for key in keys]
        self.metrics.requests["memory"].inc(sum(value is not None for value in values))
        unknown = [index for index, value in enumerate(values) if value is None]
        if self._shared is None or not unknown:
            return values
        sealed = self._shared.get([self._name(keys[index]) for index in unknown])
        for index, data in zip(unknown, sealed, strict=True):
            if data is None:
                continue
            known = unseal(keys[index], data)
            if known is None:
                self.metrics.failures["foreign"].inc()
                continue
            values[index], made_at = known
            self._remember(keys[index], known[0], min(made_at, self._clock()))
            self.metrics.requests["redis"].inc()
        return values

    def store(self, key: bytes, value: bytes) -> None:
        """For those who ask the same later."""
        now = self._clock()
        self._remember(key, value, now)
        if self._shared is not None:
            self._shared.put(self._name(key), seal(key, value, now))

    def _remember(self, key: bytes, value: bytes, made_at: float) -> None:
        self._memory.put(key, value, made_at + self._ttl_s)
        self.metrics.bytes.set(self._memory.bytes)

    def _name(self, key: bytes) -> str:
        return f"marina:{self.package[:12]}:{key.hex()}"


def open_cache(
    registry: CollectorRegistry, model: str, environment: Mapping[str, str] = os.environ
) -> AnswerCache | None:
    """The cache that the supervisor has asked for; None without."""
    text = environment.get(SETTINGS)
    if not text:
        return None
    settings = json.loads(text)
    metrics = CacheMetrics(registry, model)
    shared = None
    if url := settings.get("redis"):
        store = RedisStore(url, environment.get(AUTH))
        shared = SharedCache(store, ttl_s=settings["ttl_s"], failed=lambda kind: metrics.failures[kind].inc())
    memory = MemoryCache(round(settings["mb"] * 1_000_000))
    return AnswerCache(settings["package"], memory, metrics, ttl_s=settings["ttl_s"], shared=shared)
