"""The handler's rounds with the fake engine, which repeats the prompt: whole answers, streams, refusals, stops."""

import json
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from generating import Rounds, events, serving, write_text_package
from safetensors.torch import save_file

from marina.handlers.generation import loop

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"


@pytest.fixture
def rounds(tmp_path, request) -> Iterator[Rounds]:
    with serving(write_text_package(tmp_path, **getattr(request, "param", {}))) as rounds:
        yield rounds


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Rounds]:
    """For requests that leave nothing behind."""
    with serving(write_text_package(tmp_path_factory.mktemp("package"))) as rounds:
        yield rounds


def completion(**body):
    return {"prompt": "abc", "max_tokens": 7, "temperature": 0} | body


def test_a_whole_answer_has_the_text_the_usage_and_the_reason(shared: Rounds) -> None:
    answer = json.loads(shared.ask(COMPLETIONS, completion()))
    assert answer["choices"] == [{"index": 0, "text": "abcabca", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert (answer["object"], answer["model"]) == ("text_completion", "tales")


def test_a_stream_has_the_same_text_in_events_and_ends_in_done(shared: Rounds) -> None:
    got = events(shared.ask(COMPLETIONS, completion(stream=True)))
    assert got[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in got[:-1]) == "abcabca"
    assert [event["choices"][0]["finish_reason"] for event in got[:-1]][-1] == "length"
    assert shared.headers[shared.last]["content-type"].startswith("text/event-stream")


def test_usage_comes_in_an_event_of_its_own_when_it_is_asked_for(shared: Rounds) -> None:
    *_, usage, done = events(shared.ask(COMPLETIONS, completion(stream=True, stream_options={"include_usage": True})))
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 7, "[DONE]")


def test_a_conversation_goes_through_the_template(shared: Rounds) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 21, "temperature": 0}
    answer = json.loads(shared.ask(CHAT, body))
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "<user>hi\n<assistant><",
        "refusal": None,
    }


def test_a_streamed_conversation_names_the_role_first(shared: Rounds) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0, "stream": True}
    first, *rest, last, done = events(shared.ask(CHAT, body))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in [*rest, last]) == "<use"
    assert (last["choices"][0]["finish_reason"], done) == ("length", "[DONE]")


def test_a_stop_string_over_several_tokens_ends_the_answer_before_it(shared: Rounds) -> None:
    answer = json.loads(shared.ask(COMPLETIONS, completion(stop=["cab", "never"])))
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("ab", "stop")
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("rounds", [{"ends": [65]}], indirect=True)
def test_an_end_token_ends_the_answer_and_adds_no_text(rounds: Rounds) -> None:
    prompt = [64, 66, 65, 67]
    answer = json.loads(rounds.ask(COMPLETIONS, completion(prompt=prompt)))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["text"]) == 2
    answer = json.loads(rounds.ask(COMPLETIONS, completion(prompt=prompt, ignore_eos=True)))
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 7)


def test_a_character_is_sent_whole(shared: Rounds) -> None:
    got = events(shared.ask(COMPLETIONS, completion(prompt="é€𝄞", max_tokens=9, stream=True)))
    texts = [event["choices"][0]["text"] for event in got[:-1] if event["choices"]]
    assert [text for text in texts if text] == ["é", "€", "𝄞"]


def test_half_a_character_at_the_end_becomes_a_replacement_character(shared: Rounds) -> None:
    answer = json.loads(shared.ask(COMPLETIONS, completion(prompt="€", max_tokens=4)))
    assert answer["choices"][0]["text"] == "€�"


def test_logprobs_name_the_tokens(shared: Rounds) -> None:
    answer = json.loads(shared.ask(COMPLETIONS, completion(logprobs=1, max_tokens=3)))
    assert answer["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True, "top_logprobs": 1}
    (content,) = json.loads(shared.ask(CHAT, body))["choices"][0]["logprobs"]["content"]
    assert (content["token"], content["bytes"], content["top_logprobs"][0]["token"]) == ("<", [60], "<")


def test_models_are_listed(shared: Rounds) -> None:
    shared.round({"models": (None, {"url_path": "v1/models"})})
    assert [model["id"] for model in json.loads(shared.bodies["models"])["data"]] == ["tales"]
    assert shared.open == []


def test_without_a_path_the_body_decides_between_chat_and_completion(shared: Rounds) -> None:
    assert json.loads(shared.ask("", completion()))["object"] == "text_completion"
    assert json.loads(shared.ask("", {"messages": [{"role": "user", "content": "x"}]}))["object"] == "chat.completion"


REFUSED = [
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 2.5}, 400, "presence_penalty"),
    (COMPLETIONS, {"prompt": "a", "wishes": 1}, 400, "wishes"),
    (COMPLETIONS, {"prompt": "a", "temperature": 3}, 400, "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": "1"}, 400, "top_p"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": True}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 2**70}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**63}, 400, "seed"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**70}, 400, "seed"),
    (COMPLETIONS, {"prompt": "a", "seed": -(2**63) - 1}, 400, "seed"),
    (COMPLETIONS, {"prompt": "a", "seed": 1.5}, 400, "seed"),
    (COMPLETIONS, {"prompt": "a", "top_k": -2}, 400, "top_k"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 2**70}, 400, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "temperature": -(10**400)}, 400, None),
    (COMPLETIONS, b'{"prompt": "a", "temperature": NaN}', 400, None),
    (COMPLETIONS, b'{"prompt": "a", "temperature": 1e400}', 400, None),
    (COMPLETIONS, b'{"prompt": "a", "model": "\\ud800"}', 400, None),
    (COMPLETIONS, {"prompt": "a" * 400, "max_tokens": 200}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": "a" * 600}, 400, "prompt"),
    (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [1, 99999]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"1": 101}}, 400, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"99999": 1}}, 400, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "stop_token_ids": [1.5]}, 400, "stop_token_ids"),
    (COMPLETIONS, {"prompt": "a", "min_p": 2}, 400, "min_p"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
    (COMPLETIONS, {"prompt": "a", "min_tokens": 1, "response_format": {"type": "json_object"}}, 400, "min_tokens"),
    (COMPLETIONS, {"prompt": "a", "stop": ["a"] * 65}, 400, "stop"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "model": "gpt-4"}, 404, "model"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0]"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400, "tools"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, 400, "top_logprobs"),
    (COMPLETIONS, b"{not json", 400, None),
    (COMPLETIONS, b"[1]", 400, None),
    (COMPLETIONS, b'{"prompt": "\xff"}', 400, None),
    ("v1/embeddings", {"input": "x"}, 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), REFUSED)
def test_what_is_not_supported_is_refused(shared: Rounds, path, body, status, param) -> None:
    error = json.loads(shared.ask(path, body))["error"]
    assert shared.status[shared.last] == status
    assert error["type"] == "invalid_request_error"
    assert param is None or error["param"] == param


def test_tokens_that_have_no_weights_are_refused(tmp_path) -> None:
    folder = write_text_package(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(100, 4)}, folder / "model" / "model.safetensors")
    with serving(folder) as rounds:
        # The tokenizer has 256 tokens, one for each byte.
        highest = max(rounds.handler.tokenizer.encode("é"))
        assert highest >= 100
        for body in (completion(prompt="é"), completion(prompt=[1, highest])):
            error = json.loads(rounds.ask(COMPLETIONS, body))["error"]
            assert (rounds.status[rounds.last], error["param"]) == (400, "prompt")
            assert error["message"] == f"the prompt has the token {highest}, the model knows those from 0 to 99"
        chat = {"messages": [{"role": "user", "content": "é"}]}
        assert json.loads(rounds.ask(CHAT, chat))["error"]["param"] == "messages"


def test_values_that_change_nothing_are_accepted(shared: Rounds) -> None:
    neutral = {
        "n": 1,
        "top_k": -1,
        "length_penalty": 1,
        "skip_special_tokens": True,
        "use_beam_search": False,
        "priority": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "echo": False,
        "suffix": None,
        "user": "somebody",
    }
    assert "choices" in json.loads(shared.ask(COMPLETIONS, completion(**neutral)))


def request(**body) -> tuple[bytearray, dict[str, str]]:
    return bytearray(json.dumps(completion(**body)).encode()), {"url_path": COMPLETIONS}


def test_a_request_beyond_the_waiting_room_gets_503_with_the_time_to_try_again(rounds: Rounds) -> None:
    rounds.begin({f"{index}": request(max_tokens=200, stream=True) for index in range(4)})
    rounds.begin({"late": request()})
    assert rounds.status["late"] == 503
    assert int(rounds.headers["late"]["retry-after"]) >= 1
    assert json.loads(rounds.bodies["late"])["error"]["code"] == "busy"
    while rounds.open:
        rounds.round()
    assert all(events(rounds.bodies[f"{index}"])[-1] == "[DONE]" for index in range(4))


@pytest.mark.parametrize("rounds", [{"step_ms": 20}], indirect=True)
def test_a_client_that_left_frees_its_slot(rounds: Rounds) -> None:
    rounds.begin({name: request(max_tokens=250, stream=True) for name in ("a", "b")})
    rounds.round({"c": request(max_tokens=2, stream=True)}, left=["a", "b"])
    while rounds.open:
        rounds.round()
    assert events(rounds.bodies["c"])[-1] == "[DONE]"
    assert rounds.bodies["a"].count(b"data:") < 100


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [{"step_ms": 20}], indirect=True)
def test_the_departure_of_the_last_client_is_noticed_although_no_round_follows(rounds: Rounds, monkeypatch) -> None:
    monkeypatch.setattr(loop, "ABANDONED_S", 0.3)
    rounds.begin({f"{index}": request(max_tokens=250, stream=True) for index in range(4)})
    rounds.open.clear()
    engine, until = rounds.handler.loop._engine, time.monotonic() + 4
    while engine.usage().sequences and time.monotonic() < until:
        time.sleep(0.01)
    assert engine.usage().sequences == 0
    assert "choices" in json.loads(rounds.ask(COMPLETIONS, completion()))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [{"step_ms": 5}], indirect=True)
def test_nothing_is_computed_without_rounds_and_the_next_rounds_get_the_rest(rounds: Rounds, monkeypatch) -> None:
    monkeypatch.setattr(loop, "ABANDONED_S", 600)
    rounds.begin({"a": request(max_tokens=250, stream=True)})
    engine = rounds.handler.loop._engine
    steps = engine.steps
    # Until a second passes without a step; steps take five milliseconds.
    while time.sleep(1) or engine.steps > steps:
        steps = engine.steps
    assert engine.usage().sequences == 1
    assert steps < 250
    while rounds.open:
        rounds.round()
    assert events(rounds.bodies["a"])[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events(rounds.bodies["a"])[:-1]) == ("abc" * 84)[:250]


@pytest.mark.parametrize("rounds", [{"step_ms": 20}], indirect=True)
def test_a_client_that_was_wrongly_believed_gone_gets_an_error(rounds: Rounds, monkeypatch) -> None:
    monkeypatch.setattr(loop, "ABANDONED_S", 0.3)
    rounds.begin({"a": request(max_tokens=250, stream=True)})
    engine, until = rounds.handler.loop._engine, time.monotonic() + 30
    while engine.usage().sequences and time.monotonic() < until:
        time.sleep(0.01)
    rounds.round()
    *_, error, done = events(rounds.bodies["a"])
    assert (error["error"]["code"], done) == ("internal", "[DONE]")


@pytest.mark.parametrize("rounds", [{"step_ms": 50}], indirect=True)
def test_a_deadline_that_cannot_be_kept_is_refused_at_once(rounds: Rounds) -> None:
    body = rounds.ask(COMPLETIONS, completion(max_tokens=200), **{"X-Request-Timeout-Ms": "500"})
    assert (rounds.status[rounds.last], json.loads(body)["error"]["code"]) == (503, "busy")
    assert "choices" in json.loads(
        rounds.ask(COMPLETIONS, completion(max_tokens=2), **{"x-request-timeout-ms": "60000"})
    )


def test_a_header_names_the_priority(rounds: Rounds) -> None:
    answer = json.loads(rounds.ask(COMPLETIONS, completion(), **{"x-priority": "first"}))
    assert answer["error"]["param"] == "X-Priority"
    assert "choices" in json.loads(rounds.ask(COMPLETIONS, completion(), **{"x-priority": "batch"}))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Request-Timeout-Ms", "soon"),
        ("X-Request-Timeout-Ms", "0000001000" + "0" * 400),
        ("X-Priority", "first"),
    ],
)
def test_unknown_values_of_headers_are_refused(shared: Rounds, header: str, value: str) -> None:
    assert header in json.loads(shared.ask(COMPLETIONS, completion(), **{header: value}))["error"]["message"]


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_every_seed_that_openai_allows_is_accepted(shared: Rounds, seed: int) -> None:
    assert "choices" in json.loads(shared.ask(COMPLETIONS, completion(seed=seed, temperature=1)))


@pytest.fixture(params=["add", "choose", "accept"])
def fails_at_13(request, rounds: Rounds, monkeypatch) -> None:
    """A step that concerns one answer raises an error for the token 13, in the prompt or in the answer."""
    engine = rounds.handler.loop._engine
    before = {"add": engine.add, "choose": engine._choose, "accept": rounds.handler.tokenizer.decode}

    def fail(*args):
        given = args[0].tokens if request.param == "choose" else args[-1] if request.param == "accept" else args[1]
        if 13 in given:
            raise RuntimeError("broken")
        return before[request.param](*args)

    if request.param == "accept":
        monkeypatch.setattr(rounds.handler.tokenizer, "decode", fail)
    else:
        monkeypatch.setattr(engine, {"add": "add", "choose": "_choose"}[request.param], fail)


@pytest.mark.usefixtures("fails_at_13")
def test_an_error_in_one_answer_ends_only_that_answer(rounds: Rounds) -> None:
    rounds.begin({"good": request(stream=True, max_tokens=50), "bad": request(stream=True, prompt=[1, 2, 13])})
    while rounds.open:
        rounds.round()
    *written, done = events(rounds.bodies["good"])
    assert (len("".join(each["choices"][0]["text"] for each in written)), done) == (50, "[DONE]")
    error = rounds.bodies["bad"].decode().removeprefix("data: ").removesuffix("\n\ndata: [DONE]\n\n")
    assert json.loads(error.split("data: ")[-1])["error"]["code"] == "internal"
    assert rounds.handler.loop._engine.usage().sequences == 0
    whole = json.loads(rounds.ask(COMPLETIONS, completion(prompt=[1, 2, 13])))
    assert whole["error"]["type"] == "server_error"
    assert "choices" in json.loads(rounds.ask(COMPLETIONS, completion()))


def test_an_error_while_a_request_is_read_fails_only_that_request(rounds: Rounds, monkeypatch) -> None:
    rounds.begin({"good": request(stream=True, max_tokens=50)})
    with monkeypatch.context() as broken:
        broken.setattr(rounds.handler.prompts, "begin", lambda *_: 1 / 0)
        rounds.begin({"bad": request()})
    assert (rounds.status["bad"], json.loads(rounds.bodies["bad"])["error"]["code"]) == (500, "internal")
    while rounds.open:
        rounds.round()
    assert events(rounds.bodies["good"])[-1] == "[DONE]"


def test_streams_are_sent_while_an_engine_takes_a_prompt(rounds: Rounds, monkeypatch) -> None:
    """As it copies the beginning of a prompt from another slot."""
    engine, copied = rounds.handler.loop._engine, threading.Event()
    add = engine.add
    rounds.begin({"first": request(max_tokens=250, stream=True, prompt=[64])})
    monkeypatch.setattr(engine, "add", lambda *asked: (copied.wait(60), add(*asked)))
    rounds.round({"second": request(max_tokens=2, prompt=[65])})
    begun = time.monotonic()
    for _ in range(20):
        rounds.round()
    assert time.monotonic() - begun < 30
    copied.set()
    while rounds.open:
        rounds.round()
    assert json.loads(rounds.bodies["second"])["usage"]["completion_tokens"] == 2


def test_an_engine_that_fails_ends_the_worker(rounds: Rounds, monkeypatch) -> None:
    def fail():
        raise RuntimeError("broken")

    ended: list[bool] = []
    monkeypatch.setattr(rounds.handler.loop, "_tell_failure", lambda: ended.append(True))
    monkeypatch.setattr(rounds.handler.loop._engine, "step", fail)
    assert json.loads(rounds.ask(COMPLETIONS, completion()))["error"]["code"] == "engine_failed"
    assert ended == [True]


@pytest.mark.parametrize("rounds", [{"step_ms": 50}], indirect=True)
def test_a_server_that_stops_ends_every_answer_with_an_error(rounds: Rounds) -> None:
    kinds = {"stream": completion(max_tokens=256, stream=True), "whole": completion(max_tokens=256)}
    head = {"url_path": COMPLETIONS, "content-type": "application/json"}
    rounds.begin({name: (bytearray(json.dumps(body).encode()), head) for name, body in kinds.items()})
    while rounds.bodies["stream"].count(b"data: ") < 2:
        rounds.round()
    (rounds.directory / "closing").touch()
    rounds.round({"late": (bytearray(json.dumps(completion(stream=True)).encode()), head)})
    assert rounds.open == []
    *_, error, done = events(rounds.bodies["stream"])
    assert (error["error"]["code"], done) == ("server_stopped", "[DONE]")
    assert json.loads(rounds.bodies["whole"])["error"]["code"] == "server_stopped"
    assert (rounds.status["late"], json.loads(rounds.bodies["late"])["error"]["code"]) == (503, "server_stopped")
    assert rounds.handler.loop._sequences == {}
