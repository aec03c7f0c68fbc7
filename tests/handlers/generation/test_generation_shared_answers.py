"""An answer that several clients ask for at the same time is computed once, whichever of them leaves or fails."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from generating import Rounds, events, serving, write_text_package

from marina.handlers.generation.engine import NoToken

pytestmark = pytest.mark.slow

COMPLETIONS = "v1/completions"
SETTINGS = {"mb": 1, "ttl_s": 60, "redis": None, "package": "a" * 64}
LENGTH = 60
TEXT = ("abc" * LENGTH)[:LENGTH]


@pytest.fixture
def rounds(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    monkeypatch.setenv("MARINA_ANSWERS", json.dumps(SETTINGS))
    with serving(write_text_package(tmp_path, step_ms=10)) as rounds:
        yield rounds


def request(headers: dict[str, str] | None = None, **body: Any) -> tuple[bytearray, dict[str, str]]:
    wanted = {"prompt": "abc", "max_tokens": LENGTH, "temperature": 0, "stream": True} | body
    head = {"url_path": COMPLETIONS, "content-type": "application/json"}
    return bytearray(json.dumps(wanted).encode()), head | (headers or {})


def text_of(body: bytes) -> str:
    return "".join(event["choices"][0]["text"] for event in events(body)[:-1])


def finish(rounds: Rounds) -> None:
    while rounds.open:
        rounds.round()


def until_text(rounds: Rounds, name: str) -> None:
    while rounds.bodies.get(name, b"").count(b"data: ") < 3:
        rounds.round()


def running(rounds: Rounds) -> int:
    return int(rounds.handler.loop._engine.usage().sequences)


def counted(rounds: Rounds) -> tuple[float, float]:
    counters = rounds.handler._text_cache._cache.metrics.requests
    return counters["computed"]._value.get(), counters["batch"]._value.get()


def test_equal_requests_at_the_same_time_share_one_answer(rounds: Rounds) -> None:
    # More requests than slots and places to wait.
    rounds.round({f"at-once-{index}": request() for index in range(6)} | {"whole": request(stream=False)})
    until_text(rounds, "at-once-0")
    rounds.round({"late": request()})
    assert running(rounds) == 1
    finish(rounds)
    for name in (*(f"at-once-{index}" for index in range(6)), "late"):
        assert text_of(rounds.bodies[name]) == TEXT
    assert json.loads(rounds.bodies["whole"])["choices"][0]["text"] == TEXT
    assert counted(rounds) == (1, 7)
    assert rounds.handler._shared._answers == rounds.handler._shared._readers == {}


def test_an_answer_goes_on_for_the_others_after_its_first_client_has_left(rounds: Rounds) -> None:
    rounds.round({"first": request(), "second": request()})
    until_text(rounds, "second")
    rounds.round(left=["first"])
    finish(rounds)
    assert text_of(rounds.bodies["second"]) == TEXT
    # And it is cached, although its first client has left.
    assert text_of(rounds.ask(COMPLETIONS, json.loads(request()[0]))) == TEXT
    assert counted(rounds) == (1, 1)


def test_a_shared_answer_ends_when_its_last_client_leaves(rounds: Rounds) -> None:
    rounds.round({"first": request(max_tokens=256), "second": request(max_tokens=256), "other": request(prompt="x")})
    until_text(rounds, "second")
    rounds.round(left=["first"])
    rounds.round(left=["second"])
    while running(rounds) > 1:
        rounds.round()
    finish(rounds)
    assert rounds.handler._shared._readers == {}


def test_an_answer_that_fails_for_its_first_client_is_written_again_for_the_others(rounds: Rounds, monkeypatch) -> None:
    rounds.round({"first": request(), "second": request(), "third": request(stream=False)})
    until_text(rounds, "second")
    engine = rounds.handler.loop._engine
    step = engine.step

    def fail_once():
        monkeypatch.setattr(engine, "step", step)
        return [NoToken("first")]

    monkeypatch.setattr(engine, "step", fail_once)
    finish(rounds)
    assert b'"error"' in rounds.bodies["first"]
    assert text_of(rounds.bodies["second"]) == TEXT
    assert json.loads(rounds.bodies["third"])["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (request(), request({"cache-control": "no-cache"})),
        (request({"x-request-timeout-ms": "60000"}), request()),
        (request(), request({"x-request-timeout-ms": "60000"})),
        (request({"x-priority": "batch"}), request()),
        (request(temperature=1), request(temperature=1)),
    ],
    ids=["bypasses the cache", "a deadline before", "a deadline after", "a batch before", "random"],
)
def test_some_requests_do_not_share_answers(rounds: Rounds, first: Any, second: Any) -> None:
    rounds.round({"first": first, "second": second})
    until_text(rounds, "second")
    assert running(rounds) == 2
    finish(rounds)
    assert text_of(rounds.bodies["first"]) == text_of(rounds.bodies["second"]) == TEXT
