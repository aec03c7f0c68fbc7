"""The cache's keys, and its part in memory."""

import time

from prometheus_client import CollectorRegistry

from marina.handlers.caching import answer_key
from marina.handlers.caching.cache import AnswerCache, CacheMetrics
from marina.handlers.caching.memory import MemoryCache


def test_the_parts_of_a_key_are_not_run_together() -> None:
    assert answer_key("p", ["ab", "c"]) != answer_key("p", ["a", "bc"])
    assert answer_key("p", ["ab"]) != answer_key("pa", ["b"])
    assert answer_key("p", [b"ab"]) == answer_key("p", ["ab"]) == answer_key("p", [bytearray(b"ab")])


def test_the_oldest_leave_when_there_is_no_more_room() -> None:
    memory = MemoryCache(3 * 1300, lambda: 0.0)
    for key in (b"a", b"b", b"c"):
        memory.put(key, bytes(1000), 1.0)
    memory.get(b"a")
    memory.put(b"d", bytes(1000), 1.0)
    assert [memory.get(key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert memory.bytes == 3 * 1300


def test_a_value_without_room_stays_out_and_takes_what_was_there_with_it() -> None:
    memory = MemoryCache(2000, lambda: 0.0)
    memory.put(b"a", b"old", 1.0)
    memory.put(b"a", bytes(1900), 1.0)
    assert memory.get(b"a") is None
    assert memory.bytes == 0


def test_a_value_is_gone_when_its_time_is_over() -> None:
    now = [0.0]
    memory = MemoryCache(2000, lambda: now[0])
    memory.put(b"a", b"x", 10.0)
    now[0] = 9.9
    assert memory.get(b"a") == b"x"
    now[0] = 10.0
    assert memory.get(b"a") is None
    assert memory.bytes == 0


def test_an_answer_lasts_no_longer_where_the_machines_clock_is_ahead() -> None:
    metrics = CacheMetrics(CollectorRegistry(), "m")
    cache = AnswerCache("p", MemoryCache(2000), metrics, ttl_s=0.0, clock=lambda: time.time() + 3600)
    cache.store(b"a", b"x")
    assert cache.find([b"a"]) == [None]
