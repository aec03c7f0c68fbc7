"""The shared part of the cache, with a real Redis: what it finds there, and what it does if Redis fails."""

import json
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis_server import PASSWORD, RedisServer, redis_server
from waiting import eventually

from marina.handlers.caching.cache import AnswerCache, CacheMetrics, open_cache
from marina.handlers.caching.envelope import seal, unseal
from marina.handlers.caching.memory import MemoryCache
from marina.handlers.caching.shared import RedisStore, RedisUnreachable, SharedCache

PACKAGE = "a" * 64
KEYS = [bytes([number]) * 32 for number in range(4)]
# For tests that are not about time: longer than a busy machine ever hangs.
PATIENT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


class Worker:
    """The cache of one worker; by default it waits for Redis as long as necessary."""

    def __init__(
        self, url: str, auth: str | None = PASSWORD, *, patience_s: float = PATIENT_S, ttl_s: float = 60
    ) -> None:
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.now = 1000.0
        self.shared = SharedCache(RedisStore(url, auth), ttl_s=ttl_s, failed=self._failed, patience_s=patience_s)
        metrics = CacheMetrics(CollectorRegistry(), "tiny")
        memory = MemoryCache(1_000_000, lambda: self.now)
        self.cache = AnswerCache(PACKAGE, memory, metrics, ttl_s=ttl_s, shared=self.shared, clock=lambda: self.now)
        eventually(lambda: self.shared._question is None, within_s=60)

    def _failed(self, kind: str) -> None:
        with self._lock:
            self.failures[kind] += 1

    def results(self, result: str) -> float:
        return float(self.cache.metrics.requests[result]._value.get())


def stored(server: RedisServer) -> "redis.Redis[bytes]":
    return redis.Redis(port=server.port, password=PASSWORD)


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    stored(server).flushall()


def test_what_a_worker_keeps_another_finds(server: RedisServer) -> None:
    first, second = Worker(server.url), Worker(server.url)
    first.cache.store(KEYS[0], b"one")
    first.cache.store(KEYS[1], b"two")
    eventually(lambda: stored(server).dbsize() == 2)
    assert second.cache.find(KEYS) == [b"one", b"two", None, None]
    assert second.results("redis") == 2
    assert second.cache.find(KEYS[:2]) == [b"one", b"two"]
    assert second.results("memory") == 2
    assert not first.failures + second.failures


def test_all_keys_of_a_batch_are_one_question(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(server.url)
    asked = []
    whole = RedisStore.get
    monkeypatch.setattr(RedisStore, "get", lambda self, names: asked.append(len(names)) or whole(self, names))
    worker.cache.find(KEYS)
    assert asked == [4]


def test_values_leave_redis_when_their_time_is_over(server: RedisServer) -> None:
    Worker(server.url, ttl_s=120).cache.store(KEYS[0], b"one")
    (name,) = eventually(lambda: stored(server).keys())
    assert 0 < stored(server).pttl(name) <= 120_000


def test_a_value_of_another_worker_is_not_kept_longer_than_its_own_time(server: RedisServer) -> None:
    first, second = Worker(server.url, ttl_s=100), Worker(server.url, ttl_s=100)
    first.cache.store(KEYS[0], b"one")
    eventually(lambda: stored(server).dbsize() == 1)
    second.now = 1090.0
    assert second.cache.find(KEYS[:1]) == [b"one"]
    stored(server).flushall()
    second.now = 1099.0
    assert second.cache.find(KEYS[:1]) == [b"one"]
    second.now = 1100.0
    assert second.cache.find(KEYS[:1]) == [None]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"\x80\x04cposix\nsystem\n", id="a pickle"),
        pytest.param(lambda sealed: sealed[:-1], id="cut short"),
        pytest.param(lambda sealed: sealed[:-1] + b"?", id="changed"),
        pytest.param(lambda _: seal(KEYS[1], b"one", 1000.0), id="of another key"),
        pytest.param(lambda sealed: sealed.replace(b"answer/1", b"answer/2"), id="of another version"),
    ],
)
def test_what_is_not_ours_is_a_miss(server: RedisServer, spoil) -> None:
    writer, reader = Worker(server.url), Worker(server.url)
    writer.cache.store(KEYS[0], b"one")
    (name,) = eventually(lambda: stored(server).keys())
    stored(server).set(name, spoil(stored(server).get(name)))
    assert reader.cache.find(KEYS[:1]) == [None]
    assert reader.cache.metrics.failures["foreign"]._value.get() == 1


def test_a_value_of_another_type_is_a_miss(server: RedisServer) -> None:
    writer, reader = Worker(server.url), Worker(server.url)
    writer.cache.store(KEYS[0], b"one")
    (name,) = eventually(lambda: stored(server).keys())
    stored(server).delete(name)
    stored(server).rpush(name, "a list")
    assert reader.cache.find(KEYS[:1]) == [None]


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_sealed_value_is_unsealed_whole_or_not_at_all(length: int) -> None:
    sealed = seal(KEYS[0], b"some answer of some length", 12.5)
    assert unseal(KEYS[0], sealed) == (b"some answer of some length", 12.5)
    assert unseal(KEYS[0], sealed[:length]) is None


def test_a_redis_that_says_nothing_costs_one_patience_and_then_nothing(server: RedisServer) -> None:
    worker = Worker(server.url, patience_s=0.005)
    server.pause()
    try:
        # Redis may hold up the cache's thread for a second each time, but never the caller.
        assert [worker.cache.find(KEYS) for _ in range(100)] == [[None] * 4] * 100
    finally:
        server.go_on()
    assert worker.failures["late"] >= 1
    assert worker.failures["skipped"] >= 90

    def kept_again() -> bool:
        worker.shared.put("marina:probe", b"x")
        return stored(server).exists("marina:probe") == 1

    eventually(kept_again, within_s=60)


def test_late_answers_in_a_row_pause_the_asking_and_one_does_not(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, may_answer, whole = Worker(server.url, patience_s=0.005), threading.Event(), RedisStore.get
    monkeypatch.setattr(RedisStore, "get", lambda self, names: may_answer.wait(60) and whole(self, names))
    for _ in range(3):
        assert not worker.shared._backoff.is_active
        may_answer.clear()
        assert worker.cache.find(KEYS) == [None] * 4
        may_answer.set()
        eventually(lambda: worker.shared._question is None, within_s=60)
    assert worker.failures == {"late": 3}
    assert worker.shared._backoff._until > 0
    # That all of them came in the end does not make the next pause short again.
    assert worker.shared._backoff._next_s == 0.5


@pytest.mark.slow
def test_a_redis_that_comes_back_is_asked_again(tmp_path) -> None:
    with redis_server(tmp_path) as other:
        worker = Worker(other.url)
        other.kill()
        assert worker.cache.find(KEYS) == [None] * 4
        assert worker.failures["unreachable"] >= 1
        with redis_server(tmp_path, other.port) as again:
            stored(again).set(worker.cache._name(KEYS[0]), seal(KEYS[0], b"one", 1000.0))
            eventually(lambda: worker.cache.find(KEYS[:1]) == [b"one"], within_s=60)


@pytest.mark.parametrize("auth", [None, "wrong"])
def test_a_wrong_password_is_no_answer_and_no_error(server: RedisServer, auth: str | None) -> None:
    with pytest.raises(RedisUnreachable):
        RedisStore(server.url, auth).get(["a"])
    worker = Worker(server.url, auth)
    assert worker.cache.find(KEYS) == [None] * 4


class _Impostor(socketserver.StreamRequestHandler):
    """Greets like Redis, and gives `answer` to every question for more than one value."""

    answer: bytes = b""

    def handle(self) -> None:
        while (head := self.rfile.readline())[:1] == b"*":
            words = []
            for _ in range(int(head[1:])):
                words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2])
            known = {b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n", b"MGET": b"*1\r\n_\r\n"}
            self.wfile.write(self.answer if len(words) > 2 and words[0] == b"MGET" else known.get(words[0], b"+OK\r\n"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b":5\r\n", id="a number"),
        pytest.param(b"_\r\n", id="nothing"),
        pytest.param(b"+OK\r\n", id="a word"),
        pytest.param(b"*0\r\n", id="too few values"),
        pytest.param(b"*5\r\n" + b"_\r\n" * 5, id="too many values"),
        pytest.param(b"*4\r\n" + b":7\r\n" * 4, id="numbers"),
        pytest.param(b"*4\r\n" + b"*1\r\n:1\r\n" * 4, id="lists"),
        pytest.param(b"%4\r\n" + b"+a\r\n+b\r\n" * 4, id="an object"),
        pytest.param(b"*abc\r\n", id="a length that is none"),
        pytest.param(b"*1\r\n" * 3000 + b":1\r\n", id="lists in lists"),
    ],
)
def test_what_is_no_redis_costs_no_answer_and_is_asked_again(answer: bytes) -> None:
    handler = type("Impostor", (_Impostor,), {"answer": answer})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as impostor:
        impostor.daemon_threads = True
        threading.Thread(target=impostor.serve_forever, daemon=True).start()
        worker = Worker(f"redis://127.0.0.1:{impostor.server_address[1]}/0")
        assert worker.cache.find(KEYS) == [None] * 4
        eventually(lambda: worker.shared._question is None, within_s=60)
        handler.answer = b"*4\r\n" + b"$3\r\nabc\r\n" * 4
        eventually(
            lambda: worker.cache.find(KEYS) and worker.cache.metrics.failures["foreign"]._value.get(), within_s=5
        )
        impostor.shutdown()


def test_what_waits_to_be_written_does_not_grow(server: RedisServer) -> None:
    worker = Worker(server.url)
    server.pause()
    try:
        for number in range(100):
            worker.shared.put(f"name-{number}", bytes(900_000))
        assert worker.shared._waiting_bytes <= 16_000_000
        worker.shared.put("large", bytes(1_000_001))
        assert "large" not in dict(worker.shared._waiting)
    finally:
        server.go_on()


def test_the_settings_of_the_supervisor_make_the_cache(server: RedisServer) -> None:
    assert open_cache(CollectorRegistry(), "tiny", {}) is None
    settings = json.dumps({"mb": 1, "ttl_s": 60, "redis": server.url, "package": PACKAGE})
    cache = open_cache(CollectorRegistry(), "tiny", {"MARINA_ANSWERS": settings, "MARINA_REDIS_AUTH": PASSWORD})
    assert cache is not None

    def is_stored() -> bool:
        cache.store(KEYS[0], b"one")
        return stored(server).exists(cache._name(KEYS[0])) == 1

    eventually(is_stored, within_s=60)
