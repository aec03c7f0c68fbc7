"""Requests that are read wrongly with ease: each is refused by name, and none changes its meaning in silence."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from generating import Rounds, events, serving, write_text_package

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"
SAID = [{"role": "user", "content": "hi"}]


@pytest.fixture
def rounds(tmp_path) -> Iterator[Rounds]:
    with serving(write_text_package(tmp_path)) as rounds:
        yield rounds


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"properties": {"a": value}}
    return value


def part(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "text"} | fields]}]}


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep(300)}}
REFUSED = [
    (CHAT, {"messages": SAID, "max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
    (CHAT, {"messages": SAID, "max_tokens": "x", "max_completion_tokens": 4}, 400, "max_tokens"),
    (CHAT, {"messages": SAID, "stream": True, "stream_options": {"include_obfuscation": True}}, 400, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "ignore_eos": 1}, 400, "ignore_eos"),
    (COMPLETIONS, {"prompt": "a", "ignore_eos": True, "response_format": {"type": "json_object"}}, 400, "ignore_eos"),
    (COMPLETIONS, {"prompt": "a", "repetition_penalty": 1.1}, 400, "repetition_penalty"),
    (CHAT, part(), 400, "messages[0]"),
    (CHAT, part(text=1), 400, "messages[0]"),
    (CHAT, part(text="x", cache_control={"type": "ephemeral"}), 400, "messages[0]"),
    (COMPLETIONS, {"prompt": "a", "response_format": SCHEMA}, 400, "response_format.json_schema.schema"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": [None]}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": {"a": "b"}}, 400, "stop"),
    (COMPLETIONS, b'{"prompt": "a", "stop": "\\udc00"}', 400, None),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"1": 5}}, 400, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}, 400, "best_of"),
    (COMPLETIONS, {"prompt": [1, 2.5]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [True]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": {"a": 1}}, 400, "prompt"),
    (COMPLETIONS, {"prompt": "a", "model": ["tales"]}, 404, "model"),
    (COMPLETIONS, b"", 400, None),
    ("v1/models/another", b"", 404, "model"),
    ("v1/nothing", b"", 404, None),
    ("v1/embeddings", b"{", 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), REFUSED)
def test_what_would_be_read_otherwise_than_it_was_meant_is_refused(rounds: Rounds, path, body, status, param) -> None:
    error = json.loads(rounds.ask(path, body))["error"]
    assert (rounds.status[rounds.last], error["type"]) == (status, "invalid_request_error")
    assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": SAID, "max_tokens": 4, "max_completion_tokens": 4}),
        (CHAT, part(text="x")),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "ignore_eos": False, "repetition_penalty": 1.0}),
        (CHAT, {"messages": SAID, "metadata": deep(300)}),
        (COMPLETIONS, {"prompt": "a\0b", "max_tokens": 3, "stop": "\0"}),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "stop": ["\ufffd", "\ufeff"]}),
    ],
)
def test_what_is_odd_and_right_is_answered(rounds: Rounds, path: str, body: object) -> None:
    assert "choices" in json.loads(rounds.ask(path, body))


def test_a_model_is_shown_by_its_name(rounds: Rounds) -> None:
    assert json.loads(rounds.ask("v1/models/tales", b""))["id"] == "tales"


def test_usage_comes_in_every_event_when_it_is_asked_for(rounds: Rounds) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "abc", "max_tokens": 7, "stream": True, "stream_options": options}
    *told, last, _ = events(rounds.ask(COMPLETIONS, body))
    assert [event["usage"]["completion_tokens"] for event in told] == [1, 2, 3, 4, 5, 6, 7]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 7)
