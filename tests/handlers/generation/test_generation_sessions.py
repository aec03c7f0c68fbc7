"""Stored conversations, against a real Redis: any worker continues them, and without Redis their requests are refused.
The fake engine repeats the prompt, so an answer shows which prompt the model got."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from generating import Rounds, events, serving, write_text_package
from redis_server import PASSWORD, RedisServer, redis_server
from waiting import eventually

from marina.handlers.generation import sessions

CHAT = "v1/chat/completions"
NAMES = "`X-Conversation`: allowed: 1 to 128 letters, digits, `.`, `_`, `:` and `-`"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def settings(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    settings: dict[str, object] = {"redis": server.url, "ttl_s": 60}
    monkeypatch.setattr(sessions, "MAX_BYTES", 1000)
    monkeypatch.setenv("MARINA_SESSIONS", json.dumps(settings))
    monkeypatch.setenv("MARINA_SESSIONS_AUTH", PASSWORD)
    stored(server).flushall()
    return settings


@pytest.fixture
def own(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for one test alone, which may kill it."""
    with redis_server(tmp_path) as running:
        monkeypatch.setenv("MARINA_SESSIONS", json.dumps(settings | {"redis": running.url}))
        yield running


@pytest.fixture
def rounds(settings: dict[str, object], tmp_path: Path) -> Iterator[Rounds]:
    assert settings
    with serving(write_text_package(tmp_path / "one")) as rounds:
        yield rounds


def stored(server: RedisServer) -> "redis.Redis[bytes]":
    return redis.Redis(port=server.port, password=PASSWORD)


def message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def ask(rounds: Rounds, *messages: dict[str, str], name: str = "c-1", tokens: int = 5, **parameters: object) -> bytes:
    body = {"messages": list(messages), "max_tokens": tokens} | parameters
    return rounds.ask(CHAT, body, **{"X-Conversation": name})


def text(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def prompt_tokens(body: bytes) -> int:
    return int(json.loads(body)["usage"]["prompt_tokens"])


def known_messages(rounds: Rounds) -> str:
    return str(rounds.headers[rounds.last]["X-Conversation-Messages"])


def count(rounds: Rounds, result: str) -> float:
    return float(rounds.handler._conversations._results[result]._value.get())


def test_another_worker_continues_a_conversation(rounds: Rounds, tmp_path: Path) -> None:
    first = ask(rounds, message("Be kind", "system"), message("Ahoy"))
    assert known_messages(rounds) == "0"
    with serving(write_text_package(tmp_path / "two")) as other:
        second = ask(other, message("Again"), tokens=60)
        assert known_messages(other) == "3"
        assert count(other, "continued") == 1
        whole = f"<system>Be kind\n<user>Ahoy\n<assistant>{text(first)}\n<user>Again\n<assistant>"
        assert prompt_tokens(second) == len(whole)
        assert text(second) == whole[:60]
    # This worker knows the turn that the other worker answered.
    third = ask(rounds, message("And again"))
    assert known_messages(rounds) == "5"
    assert prompt_tokens(third) > prompt_tokens(second) + 60
    assert (count(rounds, "begun"), count(rounds, "continued")) == (1, 1)


def test_a_client_may_send_all_messages_again(rounds: Rounds) -> None:
    first = text(ask(rounds, message("Ahoy")))
    everything = [message("Ahoy"), message(first, "assistant"), message("Again")]
    whole = prompt_tokens(ask(rounds, *everything, name="another"))
    assert prompt_tokens(ask(rounds, *everything)) == whole
    # The messages were stored once.
    ask(rounds, message("More"))
    assert known_messages(rounds) == "4"


def test_conversations_are_separate_and_their_names_are_not_stored(rounds: Rounds, server: RedisServer) -> None:
    ask(rounds, message("Ahoy"), name="mine")
    ask(rounds, message("Ahoy"), name="yours")
    assert known_messages(rounds) == "0"
    assert stored(server).dbsize() == 2
    assert not any(b"mine" in key or b"yours" in key for key in stored(server).scan_iter())


def test_the_time_to_live_starts_again_with_each_answer(rounds: Rounds, server: RedisServer) -> None:
    ask(rounds, message("Ahoy"))
    (key,) = stored(server).scan_iter()
    stored(server).pexpire(key, 5000)
    ask(rounds, message("Again"))
    assert 50_000 < stored(server).pttl(key) <= 60_000


def test_two_turns_at_the_same_time_are_both_stored(rounds: Rounds, server: RedisServer) -> None:
    for name in ("left", "right"):
        body = json.dumps({"messages": [message(name)], "max_tokens": 30}).encode()
        rounds.round({name: (bytearray(body), {"url_path": CHAT, "X-Conversation": "c-1"})})
    while rounds.open:
        rounds.round()
    (key,) = stored(server).scan_iter()
    turns = [json.loads(turn) for turn in stored(server).lrange(key, 0, -1)]
    assert sorted(turn[0]["content"] for turn in turns) == ["left", "right"]


def test_an_answer_whose_client_has_left_is_not_stored(rounds: Rounds, server: RedisServer) -> None:
    body = json.dumps({"messages": [message("Ahoy")], "max_tokens": 256, "stream": True}).encode()
    rounds.round({"gone": (bytearray(body), {"url_path": CHAT, "X-Conversation": "c-1"})})
    while not rounds.bodies.get("gone"):
        rounds.round()
    rounds.round(left=["gone"])
    eventually(lambda: rounds.handler.loop._engine.usage().sequences == 0)
    assert stored(server).dbsize() == 0


def test_a_conversation_that_becomes_too_long_is_refused(rounds: Rounds) -> None:
    # In JSON each of these characters takes six bytes.
    ask(rounds, message("\x01" * 70), tokens=1)
    ask(rounds, message("\x01" * 70), tokens=1)
    answer = json.loads(ask(rounds, message("Ahoy"), tokens=1))
    assert answer["error"]["code"] == "conversation_too_long"
    assert answer["error"]["message"].endswith("allowed: 1000: begin another one")
    assert rounds.status[rounds.last] == 400


@pytest.mark.parametrize(
    ("path", "name", "refusal"),
    [
        pytest.param("v1/completions", "c-1", "`X-Conversation` is for v1/chat/completions", id="a completion"),
        pytest.param(CHAT, "a b", NAMES, id="a space"),
        pytest.param(CHAT, "x" * 129, NAMES, id="too long"),
    ],
)
def test_a_wrong_name_of_a_conversation_is_refused(rounds: Rounds, path: str, name: str, refusal: str) -> None:
    body = {"messages": [message("Ahoy")]} if path == CHAT else {"prompt": "Ahoy"}
    error = json.loads(rounds.ask(path, body, **{"X-Conversation": name}))["error"]
    assert (error["message"], error["param"]) == (refusal, "X-Conversation")


def test_a_server_without_a_store_refuses_conversations(tmp_path: Path) -> None:
    with serving(write_text_package(tmp_path)) as rounds:
        error = json.loads(ask(rounds, message("Ahoy")))["error"]
        assert (rounds.status[rounds.last], error["code"]) == (400, "unsupported_parameter")
        assert error["message"] == "this server stores no conversations: send all messages, without `X-Conversation`"


def test_without_redis_conversations_are_refused_and_other_requests_are_served(
    own: RedisServer, tmp_path: Path
) -> None:
    with serving(write_text_package(tmp_path / "two")) as other:
        ask(other, message("Ahoy"))
        own.kill()
        error = json.loads(ask(other, message("Again")))["error"]
        assert (other.status[other.last], error["code"]) == (503, "conversation_unavailable")
        assert other.headers[other.last]["retry-after"] == "1"
        assert count(other, "unread") == 1
        assert "choices" in json.loads(other.ask(CHAT, {"messages": [message("Ahoy")], "max_tokens": 2}))


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_whose_conversation_cannot_be_stored_ends_with_an_error(
    stream: bool, own: RedisServer, tmp_path: Path
) -> None:
    with serving(write_text_package(tmp_path / "one")) as rounds:
        body = json.dumps({"messages": [message("Ahoy")], "max_tokens": 200, "stream": stream}).encode()
        rounds.round({"a": (bytearray(body), {"url_path": CHAT, "X-Conversation": "c-1"})})
        while rounds.handler.loop._engine.usage().sequences == 0:
            rounds.round()
        own.kill()
        while rounds.open:
            rounds.round()
        assert count(rounds, "unkept") == 1
        if stream:
            *_, error, last = events(rounds.bodies["a"])
            assert last == "[DONE]"
        else:
            error = json.loads(rounds.bodies["a"])
        assert error["error"]["code"] == "conversation_not_kept"


@pytest.mark.slow
def test_a_redis_that_hangs_does_not_hold_up_other_requests(own: RedisServer, tmp_path: Path) -> None:
    with serving(write_text_package(tmp_path / "one")) as rounds:
        ask(rounds, message("Ahoy"))
        own.pause()
        body = json.dumps({"messages": [message("Again")], "max_tokens": 2}).encode()
        rounds.round({"a": (bytearray(body), {"url_path": CHAT, "X-Conversation": "c-1"})})
        begun = time.monotonic()
        rounds.ask(CHAT, {"messages": [message("Ahoy")], "max_tokens": 2})
        others_s = time.monotonic() - begun
        while rounds.open:
            rounds.round()
        assert json.loads(rounds.bodies["a"])["error"]["code"] == "conversation_unavailable"
        assert others_s < time.monotonic() - begun


@pytest.mark.usefixtures("settings")
def test_a_conversation_of_too_many_messages_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "MAX_BYTES", 256_000)
    with serving(write_text_package(tmp_path / "one")) as rounds:
        rounds.handler._conversations.begin_append("c-1", [message("a")] * 1000).result()
        error = json.loads(ask(rounds, message("b")))["error"]
        assert error["message"] == "the conversation has 1001 messages, allowed: 1000: begin another one"
        assert error["code"] == "conversation_too_long"


@pytest.mark.usefixtures("settings")
def test_a_turn_with_a_cached_answer_is_stored_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = {"mb": 1, "ttl_s": 60, "redis": None, "package": "a" * 64}
    monkeypatch.setenv("MARINA_ANSWERS", json.dumps(kept))
    with serving(write_text_package(tmp_path / "two")) as other:
        first = text(ask(other, message("Ahoy"), temperature=0))
        steps = other.handler.loop._engine.steps
        assert text(ask(other, message("Ahoy"), name="c-2", temperature=0)) == first
        assert other.handler.loop._engine.steps == steps
        ask(other, message("Again"), name="c-2")
        assert known_messages(other) == "2"
