"""Answers of a language model that are kept: which, under what, and in which form they are given again."""

import json
from collections.abc import Iterator

import pytest
from fakes import FakeContext
from generating import Rounds, events, serving, write_text_package

from handlers.generation import TextHandler
from handlers.generation.engine import Token
from handlers.generation.sequence import End, Piece
from handlers.generation.text_cache import AnswerRecording

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"
SETTINGS = {"mb": 1, "ttl_s": 60, "redis": None, "package": "a" * 64}


@pytest.fixture
def rounds(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    monkeypatch.setenv("MARINA_ANSWERS", json.dumps(SETTINGS))
    with serving(write_text_package(tmp_path)) as rounds:
        yield rounds


def asked(**body):
    return {"prompt": "abc", "max_tokens": 7, "temperature": 0} | body


def steps(rounds: Rounds) -> int:
    return int(rounds.handler.loop._engine.steps)


def results(rounds: Rounds) -> dict[str, float]:
    metrics = rounds.handler._text_cache._cache.metrics
    return {name: counter._value.get() for name, counter in metrics.requests.items()}


def is_computed(rounds: Rounds, path: str, body: object, **headers: str) -> bool:
    before = steps(rounds)
    rounds.ask(path, body, **headers)
    return steps(rounds) > before


def test_a_whole_answer_is_written_once(rounds: Rounds) -> None:
    first = json.loads(rounds.ask(COMPLETIONS, asked()))
    before = steps(rounds)
    again = json.loads(rounds.ask(COMPLETIONS, asked()))
    assert steps(rounds) == before
    assert (again["choices"], again["usage"]) == (first["choices"], first["usage"])
    assert again["id"] != first["id"]
    assert results(rounds) == {"memory": 1, "redis": 0, "batch": 0, "computed": 1, "bypassed": 0}


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_and_a_whole_answer_know_each_other(rounds: Rounds, logprobs: int | None) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": logprobs}
    streamed = events(rounds.ask(COMPLETIONS, asked(**options)))
    before = steps(rounds)
    whole = json.loads(rounds.ask(COMPLETIONS, asked(logprobs=logprobs)))
    again = events(rounds.ask(COMPLETIONS, asked(**options)))
    assert steps(rounds) == before
    assert rounds.headers[rounds.last]["content-type"].startswith("text/event-stream")
    for first, second in zip(streamed[:-1], again[:-1], strict=True):
        assert (first["choices"], first["usage"]) == (second["choices"], second["usage"])
    assert (streamed[-1], again[-1]) == ("[DONE]", "[DONE]")
    assert "".join(event["choices"][0]["text"] for event in again[:-2]) == whole["choices"][0]["text"] == "abcabca"
    if logprobs:
        told = [name for event in again[:-2] for name in event["choices"][0]["logprobs"]["tokens"]]
        assert told == whole["choices"][0]["logprobs"]["tokens"] == list("abcabca")


def test_a_conversation_is_recalled_in_its_own_form(rounds: Rounds) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 21, "temperature": 0}
    first = json.loads(rounds.ask(CHAT, body))
    assert not is_computed(rounds, CHAT, body | {"stream": True})
    assert json.loads(rounds.ask(CHAT, body))["choices"] == first["choices"]


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "abd"},
        {"max_tokens": 6},
        {"stop": "ca"},
        {"logprobs": 2},
        {"ignore_eos": True},
        {"temperature": 1, "seed": 1},
    ],
    ids=str,
)
def test_what_changes_an_answer_is_in_the_key(rounds: Rounds, change: dict[str, object]) -> None:
    rounds.ask(COMPLETIONS, asked())
    assert is_computed(rounds, COMPLETIONS, asked(**change))


@pytest.mark.parametrize("change", [{"user": "me"}, {"seed": 5}, {"top_p": 0.5}, {"metadata": {"a": "b"}}], ids=str)
def test_what_does_not_change_the_likeliest_answer_is_not_in_the_key(rounds: Rounds, change: dict[str, object]) -> None:
    rounds.ask(COMPLETIONS, asked())
    assert not is_computed(rounds, COMPLETIONS, asked(**change))


def test_an_answer_by_chance_is_written_anew_and_one_with_a_seed_is_not(rounds: Rounds) -> None:
    for _ in range(2):
        assert is_computed(rounds, COMPLETIONS, asked(temperature=1))
    assert is_computed(rounds, COMPLETIONS, asked(temperature=1, seed=3))
    assert not is_computed(rounds, COMPLETIONS, asked(temperature=1, seed=3))
    assert is_computed(rounds, COMPLETIONS, asked(temperature=1, seed=4))
    assert is_computed(rounds, COMPLETIONS, asked(temperature=1, seed=4, top_p=0.5))


def test_a_client_that_wants_the_model_gets_it(rounds: Rounds) -> None:
    for _ in range(2):
        assert is_computed(rounds, COMPLETIONS, asked(), **{"Cache-Control": "no-store"})
    assert is_computed(rounds, COMPLETIONS, asked())
    assert is_computed(rounds, COMPLETIONS, asked(), **{"Cache-Control": "no-cache"})
    assert not is_computed(rounds, COMPLETIONS, asked())
    assert results(rounds)["bypassed"] == 3


def test_a_refusal_and_an_answer_whose_client_left_are_not_kept(rounds: Rounds) -> None:
    rounds.ask(COMPLETIONS, asked(n=2))
    assert rounds.handler._text_cache._cache._memory.bytes == 0
    # A client that leaves.
    body = bytearray(json.dumps(asked(max_tokens=250, stream=True)).encode())
    rounds.round({"gone": (body, {"url_path": COMPLETIONS, "content-type": "application/json"})})
    rounds.round(left=["gone"])
    assert rounds.handler._text_cache._cache._memory.bytes == 0


def test_all_that_arrive_in_a_round_are_looked_up_at_once(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds.ask(COMPLETIONS, asked())
    cache, counts = rounds.handler._text_cache._cache, []
    find = cache.find
    monkeypatch.setattr(cache, "find", lambda keys: counts.append(len(keys)) or find(keys))
    headers = {"url_path": COMPLETIONS, "content-type": "application/json"}
    new = {name: (bytearray(json.dumps(asked(prompt=name)).encode()), headers) for name in ("abc", "b", "c")}
    rounds.round(new)
    assert counts == [3]
    assert json.loads(rounds.bodies["abc"])["choices"][0]["text"] == "abcabca"
    while rounds.open:
        rounds.round()


def test_a_recalled_answer_needs_no_slot(rounds: Rounds) -> None:
    rounds.ask(COMPLETIONS, asked())
    headers = {"url_path": COMPLETIONS, "content-type": "application/json"}
    body = json.dumps(asked(prompt="slow", max_tokens=250, stream=True)).encode()
    rounds.round({f"slow-{index}": (bytearray(body), headers) for index in range(4)})
    assert rounds.status["slow-3"] == 200
    assert json.loads(rounds.ask(COMPLETIONS, asked()))["choices"][0]["text"] == "abcabca"
    rounds.round(left=list(rounds.open))


@pytest.mark.parametrize(("end", "tokens", "is_whole"), [("stop", 1, True), ("length", 3, True), ("length", 2, False)])
def test_an_answer_that_a_deadline_cut_off_is_not_whole(end: End, tokens: int, is_whole: bool) -> None:
    token = Token("a", 1, -0.5)
    keeping = AnswerRecording(b"key", 3, [Piece("a", (token,))] * (tokens - 1) + [Piece("b", (token,), end)])
    assert keeping.is_whole == is_whole


def test_without_a_cache_nothing_is_kept(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARINA_ANSWERS")
    handler = TextHandler()
    handler.initialize(FakeContext(rounds.directory))
    plain = Rounds(handler, rounds.directory)
    for _ in range(2):
        assert is_computed(plain, COMPLETIONS, asked())
    handler.loop.close()
