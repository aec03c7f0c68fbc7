"""Looks answers up, first in the worker's memory and then in Redis, and counts how often that helps.

The supervisor passes the spec's `serving.cache` in `MARINA_ANSWERS`, because a package does not contain its own hash,
and the address of Redis differs from cluster to cluster."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from marina.handlers.caching.envelope import seal, unseal
from marina.handlers.caching.memory import MemoryCache
from marina.handlers.caching.shared import RedisStore, SharedCache

SETTINGS, AUTH = "MARINA_ANSWERS", "MARINA_REDIS_AUTH"
RESULTS = ("memory", "redis", "batch", "computed", "bypassed")
FAILURES = ("late", "unreachable", "skipped", "foreign")


@dataclass(frozen=True)
class CacheControl:
    """What a client allows: answering its request from the cache, and storing the answer there."""

    may_read: bool = True
    may_store: bool = True


def parse_cache_control(headers: Mapping[str, str]) -> CacheControl:
    """Reads `Cache-Control` as HTTP defines it; `max-age=0` is what browsers send to reload. Any client may bypass the
    cache: that costs no more than sending a new body would."""
    words = {word.strip().lower() for word in headers.get("cache-control", "").split(",")}
    return CacheControl(may_read=not words & {"no-cache", "max-age=0", "no-store"}, may_store="no-store" not in words)


class CacheMetrics:
    """The metrics of one model's cache."""

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
            "Memory that a worker's cached answers take",
            ["model"],
            registry=registry,
            multiprocess_mode="liveall",
        ).labels(model)


class AnswerCache:
    """Packed answers by their keys. Used only by the thread that answers requests."""

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
        """The value of each key, or None. Asks Redis once for all keys that are not in memory."""
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
            self._remember(keys[index], known[0], age_s=max(0.0, self._clock() - made_at))
            self.metrics.requests["redis"].inc()
        return values

    def store(self, key: bytes, value: bytes) -> None:
        """Stores an answer in memory and in Redis."""
        self._remember(key, value, age_s=0.0)
        if self._shared is not None:
            self._shared.put(self._name(key), seal(key, value, self._clock()))

    def _remember(self, key: bytes, value: bytes, *, age_s: float) -> None:
        self._memory.put(key, value, self._ttl_s - age_s)
        self.metrics.bytes.set(self._memory.bytes)

    def _name(self, key: bytes) -> str:
        return f"marina:{self.package[:12]}:{key.hex()}"


def open_cache(
    registry: CollectorRegistry, model: str, environment: Mapping[str, str] = os.environ
) -> AnswerCache | None:
    """Opens the cache that the supervisor's settings describe; None if they describe none."""
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
