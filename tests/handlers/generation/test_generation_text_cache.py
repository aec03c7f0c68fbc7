"""Cached answers of a language model: which are cached, under which key, and in which form they are returned."""

import json
from collections.abc import Iterator

import pytest
from fakes import FakeContext
from generating import Rounds, events, serving, write_text_package

from marina.handlers.generation.engine import Token
from marina.handlers.generation.handler import TextHandler
from marina.handlers.generation.sequence import End, Piece
from marina.handlers.generation.text_cache import AnswerRecording

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"
SETTINGS = {"mb": 1, "ttl_s": 60, "redis": None, "package": "a" * 64}


@pytest.fixture
def rounds(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    monkeypatch.setenv("MARINA_ANSWERS", json.dumps(SETTINGS))
    with serving(write_text_package(tmp_path)) as rounds:
        yield rounds


def completion(**body):
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


def test_an_equal_request_gets_the_cached_answer(rounds: Rounds) -> None:
    first = json.loads(rounds.ask(COMPLETIONS, completion()))
    before = steps(rounds)
    again = json.loads(rounds.ask(COMPLETIONS, completion()))
    assert steps(rounds) == before
    assert (again["choices"], again["usage"]) == (first["choices"], first["usage"])
    assert again["id"] != first["id"]
    assert results(rounds) == {"memory": 1, "redis": 0, "batch": 0, "computed": 1, "bypassed": 0}


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_streamed_answer_can_be_given_whole_and_the_other_way_round(rounds: Rounds, logprobs: int | None) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": logprobs}
    streamed = events(rounds.ask(COMPLETIONS, completion(**options)))
    before = steps(rounds)
    whole = json.loads(rounds.ask(COMPLETIONS, completion(logprobs=logprobs)))
    again = events(rounds.ask(COMPLETIONS, completion(**options)))
    assert steps(rounds) == before
    assert rounds.headers[rounds.last]["content-type"].startswith("text/event-stream")
    for first, second in zip(streamed[:-1], again[:-1], strict=True):
        assert (first["choices"], first["usage"]) == (second["choices"], second["usage"])
    assert (streamed[-1], again[-1]) == ("[DONE]", "[DONE]")
    assert "".join(event["choices"][0]["text"] for event in again[:-2]) == whole["choices"][0]["text"] == "abcabca"
    if logprobs:
        names = [name for event in again[:-2] for name in event["choices"][0]["logprobs"]["tokens"]]
        assert names == whole["choices"][0]["logprobs"]["tokens"] == list("abcabca")


def test_a_chat_is_cached_too(rounds: Rounds) -> None:
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
def test_parameters_that_change_the_answer_are_in_the_key(rounds: Rounds, change: dict[str, object]) -> None:
    rounds.ask(COMPLETIONS, completion())
    assert is_computed(rounds, COMPLETIONS, completion(**change))


@pytest.mark.parametrize(
    "change",
    [{"user": "me"}, {"prompt_cache_key": "mine"}, {"seed": 5}, {"top_p": 0.5}, {"metadata": {"a": "b"}}],
    ids=str,
)
def test_parameters_that_do_not_change_a_greedy_answer_are_not_in_the_key(
    rounds: Rounds, change: dict[str, object]
) -> None:
    rounds.ask(COMPLETIONS, completion())
    assert not is_computed(rounds, COMPLETIONS, completion(**change))


def test_random_answers_are_not_cached_unless_they_have_a_seed(rounds: Rounds) -> None:
    for _ in range(2):
        assert is_computed(rounds, COMPLETIONS, completion(temperature=1))
    assert is_computed(rounds, COMPLETIONS, completion(temperature=1, seed=3))
    assert not is_computed(rounds, COMPLETIONS, completion(temperature=1, seed=3))
    assert is_computed(rounds, COMPLETIONS, completion(temperature=1, seed=4))
    assert is_computed(rounds, COMPLETIONS, completion(temperature=1, seed=4, top_p=0.5))


def test_cache_control_bypasses_the_cache(rounds: Rounds) -> None:
    for _ in range(2):
        assert is_computed(rounds, COMPLETIONS, completion(), **{"Cache-Control": "no-store"})
    assert is_computed(rounds, COMPLETIONS, completion())
    assert is_computed(rounds, COMPLETIONS, completion(), **{"Cache-Control": "no-cache"})
    assert not is_computed(rounds, COMPLETIONS, completion())
    assert results(rounds)["bypassed"] == 3


def test_refusals_and_answers_whose_client_has_left_are_not_cached(rounds: Rounds) -> None:
    rounds.ask(COMPLETIONS, completion(n=0))
    assert rounds.handler._text_cache._cache._memory.bytes == 0
    # A client that leaves.
    body = bytearray(json.dumps(completion(max_tokens=250, stream=True)).encode())
    rounds.round({"gone": (body, {"url_path": COMPLETIONS, "content-type": "application/json"})})
    rounds.round(left=["gone"])
    assert rounds.handler._text_cache._cache._memory.bytes == 0


def test_all_new_requests_of_a_round_are_looked_up_at_once(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds.ask(COMPLETIONS, completion())
    cache, counts = rounds.handler._text_cache._cache, []
    find = cache.find
    monkeypatch.setattr(cache, "find", lambda keys: counts.append(len(keys)) or find(keys))
    headers = {"url_path": COMPLETIONS, "content-type": "application/json"}
    # Tokens, so that none of them waits until its prompt is read.
    prompts = {"abc": [64, 65, 66], "b": [65], "c": [66]}
    new = {name: (bytearray(json.dumps(completion(prompt=each)).encode()), headers) for name, each in prompts.items()}
    rounds.round(new)
    assert counts == [3]
    assert json.loads(rounds.bodies["abc"])["choices"][0]["text"] == "abcabca"
    while rounds.open:
        rounds.round()


def test_a_cached_answer_needs_no_slot(rounds: Rounds) -> None:
    rounds.ask(COMPLETIONS, completion())
    headers = {"url_path": COMPLETIONS, "content-type": "application/json"}
    body = json.dumps(completion(prompt="slow", max_tokens=250, stream=True)).encode()
    rounds.begin({f"slow-{index}": (bytearray(body), headers) for index in range(4)})
    assert rounds.status["slow-3"] == 200
    assert json.loads(rounds.ask(COMPLETIONS, completion()))["choices"][0]["text"] == "abcabca"
    rounds.round(left=list(rounds.open))


@pytest.mark.parametrize(("end", "tokens", "is_whole"), [("stop", 1, True), ("length", 3, True), ("length", 2, False)])
def test_an_answer_that_a_deadline_cut_off_is_not_whole(end: End, tokens: int, is_whole: bool) -> None:
    token = Token("a", 1, -0.5)
    keeping = AnswerRecording(b"key", 3, [Piece("a", (token,))] * (tokens - 1) + [Piece("b", (token,), end)])
    assert keeping.is_whole == is_whole


def test_without_a_cache_every_answer_is_computed(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARINA_ANSWERS")
    handler = TextHandler()
    handler.initialize(FakeContext(rounds.directory))
    plain = Rounds(handler, rounds.directory)
    for _ in range(2):
        assert is_computed(plain, COMPLETIONS, completion())
    plain.close()
