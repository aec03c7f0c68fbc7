"""Kept answers on a real server with a real Redis, which is killed while clients ask."""

import json
import threading
import urllib.request
from collections import Counter
from pathlib import Path

from redis_server import PASSWORD, redis_server
from waiting import DIGIT, eventually, metric, scan

REQUESTS = "inference_cache_requests_total"


def answer(url: str, body: bytes, **headers: str) -> list[int]:
    """The classes, likeliest first: how sure the model is differs in the last digits from one batch size to another."""
    request = urllib.request.Request(url, body, {"Content-Type": "image/png"} | headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())["top_indices"]


def test_answers_are_shared_by_redis_and_none_is_lost_when_it_is_killed(start_digits, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        settings = {"redis": redis.url, "mb": 0.001}
        server = start_digits(workers=2, cache=settings, environment={"MARINA_REDIS_AUTH": PASSWORD})
        url = f"{server.url}/predictions/digits"
        bodies = [DIGIT, *(scan(side) for side in (16, 32, 64))]
        # The supervisor's proofs of readiness were computed, and are not kept.
        assert metric(server, REQUESTS, result="bypassed") >= 1
        assert metric(server, REQUESTS, result="computed") == 0
        computed = [answer(url, body, **{"Cache-Control": "no-store"}) for body in bodies]

        def is_shared() -> bool:
            # Each worker has room for few answers, so that they come from Redis again and again.
            for body, known in zip(bodies, computed, strict=True):
                assert answer(url, body) == known
            return metric(server, REQUESTS, result="redis") > 0

        eventually(is_shared, within_s=120)
        _kill_under_load(url, dict(zip(bodies, computed, strict=True)), redis.kill)
        eventually(lambda: metric(server, "inference_cache_failures_total", kind="unreachable") > 0, within_s=120)


def _kill_under_load(url: str, known: dict[bytes, list[int]], kill) -> None:
    outcomes: Counter[str] = Counter()
    ended, counted = threading.Event(), threading.Condition()

    def ask_on() -> None:
        while not ended.is_set():
            for body, expected in known.items():
                try:
                    outcome = "good" if answer(url, body) == expected else "another answer"
                except OSError as err:
                    outcome = repr(err)
                with counted:
                    outcomes[outcome] += 1

    clients = [threading.Thread(target=ask_on) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        eventually(lambda: outcomes.total() >= 40, within_s=120)
        kill()
        before = outcomes.total()
        eventually(lambda: outcomes.total() >= before + 200, within_s=120)
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert set(outcomes) == {"good"}
