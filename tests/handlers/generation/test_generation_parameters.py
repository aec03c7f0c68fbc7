"""Requests that are easily misread: each is refused by name, and none silently changes its meaning."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generating import Rounds, events, serving, write_text_package
from tokenizers import Tokenizer

from marina.handlers.generation import text_request
from marina.handlers.generation.tokenizer import ModelTokenizer

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> Iterator[Rounds]:
    with serving(write_text_package(tmp_path_factory.mktemp("package"))) as rounds:
        yield rounds


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"properties": {"a": value}}
    return value


def add_special(folder: Path, *names: str) -> None:
    """Gives a package's tokenizer special tokens."""
    file = str(folder / "model/tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens(list(names))
    tokenizer.save(file)


def part(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "text"} | fields]}]}


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": deep(300)}}
DESCRIBED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "description": ["x"]}}
REFUSED = [
    (CHAT, {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
    (CHAT, {"messages": MESSAGES, "max_tokens": "x", "max_completion_tokens": 4}, 400, "max_tokens"),
    (
        CHAT,
        {"messages": MESSAGES, "stream": True, "stream_options": {"include_obfuscation": True}},
        400,
        "stream_options",
    ),
    (COMPLETIONS, {"prompt": "a", "ignore_eos": 1}, 400, "ignore_eos"),
    (COMPLETIONS, {"prompt": "a", "ignore_eos": True, "response_format": {"type": "json_object"}}, 400, "ignore_eos"),
    (COMPLETIONS, {"prompt": "a", "repetition_penalty": 0}, 400, "repetition_penalty"),
    (CHAT, part(), 400, "messages[0]"),
    (CHAT, part(text=1), 400, "messages[0]"),
    (CHAT, part(text="x", cache_control={"type": "ephemeral"}), 400, "messages[0]"),
    (COMPLETIONS, {"prompt": "a", "response_format": SCHEMA}, 400, "response_format.json_schema.schema"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": [None]}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": {"a": "b"}}, 400, "stop"),
    (COMPLETIONS, b'{"prompt": "a", "stop": "\\udc00"}', 400, None),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}, 400, "best_of"),
    (COMPLETIONS, {"prompt": [1, 2.5]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [True]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": {"a": 1}}, 400, "prompt"),
    (COMPLETIONS, {"prompt": "a", "model": ["tales"]}, 404, "model"),
    (COMPLETIONS, b"", 400, None),
    (COMPLETIONS, b'{"prompt": "a", "seed": 1, "seed": 2}', 400, "seed"),
    (CHAT, b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}', 400, "content"),
    (COMPLETIONS, b'{"prompt": "a", "metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, None),
    (COMPLETIONS, {"prompt": "a", "user": 1}, 400, "user"),
    (COMPLETIONS, {"prompt": "a", "safety_identifier": 1}, 400, "safety_identifier"),
    (COMPLETIONS, {"prompt": "a", "metadata": "a"}, 400, "metadata"),
    (COMPLETIONS, {"prompt": "a", "response_format": DESCRIBED}, 400, "response_format.json_schema.description"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 600}]}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "a", "parsed": {}}]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, 400, "messages[0]"),
    ("v1/models/another", b"", 404, "model"),
    ("v1/nothing", b"", 404, None),
    ("v1/embeddings", b"{", 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), REFUSED)
def test_requests_that_could_be_misunderstood_are_refused(rounds: Rounds, path, body, status, param) -> None:
    error = json.loads(rounds.ask(path, body))["error"]
    assert (rounds.status[rounds.last], error["type"]) == (status, "invalid_request_error")
    assert error["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES, "max_tokens": 4, "max_completion_tokens": 4}),
        (CHAT, part(text="x")),
        (
            CHAT,
            {"messages": [*MESSAGES, {"role": "assistant", "content": "{}", "parsed": {"a": deep(150)}}, *MESSAGES]},
        ),
        (CHAT, {"messages": [*MESSAGES, {"role": "assistant", "content": "a", "annotations": [], "tool_calls": []}]}),
        (COMPLETIONS, b'{"metadata": {"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}, "prompt": "a", "max_tokens": 3}'),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "ignore_eos": False, "repetition_penalty": 1.0}),
        (CHAT, {"messages": MESSAGES, "metadata": deep(300)}),
        (COMPLETIONS, {"prompt": "a\0b", "max_tokens": 3, "stop": "\0"}),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "stop": ["\ufffd", "\ufeff"]}),
    ],
)
def test_unusual_but_valid_requests_are_answered(rounds: Rounds, path: str, body: object) -> None:
    assert "choices" in json.loads(rounds.ask(path, body))


SEED = "`seed`: got a text, allowed: a whole number from -9223372036854775808 to 9223372036854775807"
MODALITIES = '`modalities` is not supported: got a list of 1, allowed: `["text"]`'
CHOICE = (
    "`tool_choice`: got `required`, allowed: `none`, `auto`, `required`, or "
    '{"type": "function", "function": {"name": …}} with the name of a tool'
)
ROLE = "`messages[0].role`: got `robot`, allowed: `assistant`, `developer`, `system`, `tool`, `user`"
PROMPT, CONTENT = "a text, or a list of tokens from 0 to 255", "a text, or parts of type `text`"
STOPS = "a text, or a list of up to 64, each of 1 to 200 characters"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (COMPLETIONS, [1], "the body: got a list of 1, allowed: an object"),
        (COMPLETIONS, {"prompt": "a", "temperature": 3}, "`temperature`: got `3`, allowed: a number from 0 to 2"),
        (COMPLETIONS, {"prompt": "a", "seed": "1"}, SEED),
        (COMPLETIONS, {"prompt": "a", "n": "1"}, "`n`: got a text, allowed: a whole number from 1 to 128"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, '`suffix` is not supported: got `b`, allowed: `""`'),
        (CHAT, {"messages": MESSAGES, "modalities": ["audio"]}, MODALITIES),
        (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, CHOICE),
        (COMPLETIONS, {"prompt": "a", "model": {"a": 1}}, "the model an object does not exist, allowed: `tales`"),
        (COMPLETIONS, {"prompt": [1, 256]}, "`prompt[1]`: got `256`, allowed: a token from 0 to 255"),
        (
            COMPLETIONS,
            {"prompt": ["a", [1]]},
            "`prompt`: got a list of 2, allowed: only texts, or only lists of tokens",
        ),
        (COMPLETIONS, {}, f"`prompt`: got nothing, allowed: {PROMPT}"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 65}, f"`stop`: got a list of 65, allowed: {STOPS}"),
        (COMPLETIONS, {"prompt": "a", "stop": ["a", ""]}, f"`stop`: got an empty text, allowed: {STOPS}"),
        (COMPLETIONS, {"prompt": "a", "stop": "a" * 201}, f"`stop`: got a text of 201 characters, allowed: {STOPS}"),
        (COMPLETIONS, {"prompt": "a", "stream": 1}, "`stream`: got `1`, allowed: `true` or `false`"),
        (CHAT, {"messages": ["hi"]}, "`messages[0]`: got a text, allowed: an object with `role` and `content`"),
        (CHAT, {"messages": [{"role": "robot"}]}, ROLE),
        (CHAT, {"messages": [{"role": "user"}]}, f"`messages[0].content`: got nothing, allowed: {CONTENT}"),
        (COMPLETIONS, b"{", "the body is not valid JSON: an error at character 1"),
        (COMPLETIONS, '{"prompt": "é"}'.encode("latin-1"), "the body is not valid JSON: the byte 12 is not UTF-8"),
        (COMPLETIONS, b'\xef\xbb\xbf{"prompt": "a"}', "the body is not valid JSON: a byte order mark before it"),
        (COMPLETIONS, '{"prompt": "a"}'.encode("utf-16"), "the body is not valid JSON: the byte 0 is not UTF-8"),
        (COMPLETIONS, b" " * 100_001, "the body is too large: 100001 bytes, allowed: at most 100000 bytes"),
        (COMPLETIONS, {"prompt": [1] * 25_000}, "the JSON holds too many values: 25001, allowed: at most 22048"),
        (COMPLETIONS, b'{"n": 1, "seed": 1, "seed": 2}', "the name `seed` occurs twice in one object, allowed: once"),
    ],
)
def test_an_error_says_what_is_wrong_what_was_sent_and_what_is_allowed(rounds: Rounds, path, body, message) -> None:
    assert json.loads(rounds.ask(path, body))["error"]["message"] == message


def test_a_body_that_no_prompt_needs_is_not_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_request, "_OTHER_BYTES", 1000)
    with serving(write_text_package(tmp_path)) as rounds:
        # Six bytes for each letter of 512 tokens.
        assert "context" not in (fits := json.loads(rounds.ask(COMPLETIONS, b" " * 4072)))["error"]["message"], fits
        error = json.loads(rounds.ask(COMPLETIONS, b" " * 4073))["error"]
        assert rounds.status[rounds.last] == 413
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == "the body has 4073 bytes, allowed: at most 4072, which is more than 512 tokens take"


@pytest.mark.slow
def test_an_answer_that_fails_because_of_its_schema_says_so(rounds: Rounds) -> None:
    # It compiles quickly, but after a few letters the search for the next token takes too much.
    schema = {"type": "string", "pattern": "^([a-z]{1,50}){1,50}x{0,200}$"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = json.loads(rounds.ask(COMPLETIONS, {"prompt": "abc", "response_format": wanted}))["error"]
    assert error["message"].endswith("its schema may take too much to enforce, so try a simpler one")


def test_a_message_makes_no_special_tokens_and_a_prompt_does(tmp_path) -> None:
    folder = write_text_package(tmp_path)
    add_special(folder, "<end>", "<user>", "<assistant>", "aXb", "bXc")

    def tokens(path: str, body: dict[str, object]) -> int:
        return int(json.loads(rounds.ask(path, body | {"max_tokens": 1}))["usage"]["prompt_tokens"])

    with serving(folder) as rounds:
        assert tokens(COMPLETIONS, {"prompt": "<end>aXbXc"}) == 4
        # Those of the template stay special: two names of roles and the end of a line.
        for text in ("hi", "<end>", "<end><assistant><end", "aXbXc", "<<end>end>"):
            assert tokens(CHAT, {"messages": [{"role": "user", "content": text}]}) == 3 + len(text)


def test_a_token_is_special_if_the_tokenizers_configuration_says_so(tmp_path) -> None:
    folder = write_text_package(tmp_path) / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # As in some folders of chat models: `tokenizer.json` itself marks none.
    tokenizer.add_tokens(["<end>", "<think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<end>", "pad_token": "<none>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = ModelTokenizer(folder)
    for text, count in (("<end>", 5), ("<think>", 1)):
        assert len(model.encode(text)) == 1
        assert len(model.encode(model.divide_special(text), special=False)) == count
    assert (model.count, model.decode(model.encode("a<end>b"))) == (258, "ab")


def test_a_template_may_repeat_a_text_that_it_refuses(tmp_path) -> None:
    folder = write_text_package(tmp_path)
    add_special(folder, "<end>")
    (folder / "model/chat_template.jinja").write_text("{{ raise_exception('not ' + messages[0].content) }}")
    with serving(folder) as rounds:
        error = json.loads(rounds.ask(CHAT, {"messages": [{"role": "user", "content": "<end>"}]}))["error"]
    assert (error["message"], error["param"]) == ("not <end>", "messages")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/octet-stream"])
def test_json_is_read_with_any_form_of_its_content_type(rounds: Rounds, kind: str) -> None:
    answer = json.loads(rounds.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, **{"content-type": kind}))
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("header", "value"), [("Content-Type", "text/plain"), ("Content-Type", "image/png"), ("Content-Encoding", "gzip")]
)
@pytest.mark.parametrize("body", [b'{"prompt": "a"}', gzip.compress(b'{"prompt": "a"}')], ids=["plain", "packed"])
def test_a_body_of_another_type_is_refused_and_the_header_named(
    rounds: Rounds, header: str, value: str, body: bytes
) -> None:
    error = json.loads(rounds.ask(COMPLETIONS, body, **{header.lower(): value}))["error"]
    assert (rounds.status[rounds.last], error["param"]) == (415, header)
    assert error["message"].startswith(f"`{header}`: got `{value}`, allowed: ")


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_the_protocols_of_kserve_are_refused(rounds: Rounds, protocol: str) -> None:
    error = json.loads(rounds.ask("", {"instances": [["Once"]]}, **{"x-marina-protocol": protocol}))["error"]
    pages = "v1/completions, v1/chat/completions, v1/models"
    assert error["message"] == f"this model writes text and has no KServe {protocol.upper()}, allowed: {pages}"
    assert rounds.status[rounds.last] == 404


def test_a_model_is_shown_by_its_name(rounds: Rounds) -> None:
    assert json.loads(rounds.ask("v1/models/tales", b""))["id"] == "tales"


def test_usage_comes_in_every_event_when_it_is_asked_for(rounds: Rounds) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "abc", "max_tokens": 7, "stream": True, "stream_options": options}
    *before, last, _ = events(rounds.ask(COMPLETIONS, body))
    assert [event["usage"]["completion_tokens"] for event in before] == [1, 2, 3, 4, 5, 6, 7]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 7)
