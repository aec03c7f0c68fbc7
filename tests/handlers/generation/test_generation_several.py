"""Several answers to one request, and prompts that are sent back with their log-probabilities."""

import json
from collections.abc import Iterator

import pytest
from generating import Rounds, events, serving, write_text_package

COMPLETIONS, CHAT = "v1/completions", "v1/chat/completions"


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Rounds]:
    with serving(write_text_package(tmp_path_factory.mktemp("package"))) as rounds:
        yield rounds


class Named:
    """A request without headers."""

    id = "a"
    headers: dict[str, str] = {}  # noqa: RUF012


def asked(**body):
    return {"prompt": "abc", "max_tokens": 4, "temperature": 0} | body


@pytest.mark.parametrize("prompts", [["ab", "xyz", "q", "rs", "tu"], [[65, 66], [67, 68, 69], [70]]])
def test_each_prompt_has_its_answers_more_than_there_are_places(shared: Rounds, prompts) -> None:
    singles = [json.loads(shared.ask(COMPLETIONS, asked(prompt=each)))["choices"][0]["text"] for each in prompts]
    answer = json.loads(shared.ask(COMPLETIONS, asked(prompt=prompts, n=2)))
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(prompts)))
    assert [choice["text"] for choice in answer["choices"]] == [text for text in singles for _ in range(2)]
    read = sum(map(len, prompts))
    assert answer["usage"] == {
        "prompt_tokens": read,
        "completion_tokens": 8 * len(prompts),
        "total_tokens": read + 8 * len(prompts),
    }
    assert shared.open == []


def test_several_answers_are_streamed_each_with_its_number(shared: Rounds) -> None:
    messages = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    *chunks, usage, done = events(
        shared.ask(CHAT, messages | {"n": 3, "stream": True, "stream_options": {"include_usage": True}})
    )
    texts, ends = ["", "", ""], 0
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content") or ""
        ends += choice["finish_reason"] == "length"
    assert (texts, ends, usage["usage"]["completion_tokens"], done) == (["<user"] * 3, 3, 15, "[DONE]")


def test_a_client_that_leaves_frees_the_places_of_all_its_answers(tmp_path) -> None:
    with serving(write_text_package(tmp_path, step_ms=20)) as rounds:
        body = bytearray(json.dumps(asked(n=4, max_tokens=250, stream=True)).encode())
        rounds.begin({"several": (body, {"url_path": COMPLETIONS})})
        rounds.round(left=["several"])
        assert "choices" in json.loads(rounds.ask(COMPLETIONS, asked(n=2)))
        assert rounds.handler.loop._running == {}


def test_a_prompt_is_sent_back_with_its_logprobs_and_nothing_after_it(shared: Rounds) -> None:
    answer = json.loads(shared.ask(COMPLETIONS, asked(echo=True, logprobs=1, max_tokens=0)))
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 0
    answer = json.loads(shared.ask(COMPLETIONS, asked(echo=True, max_tokens=2, prompt=["ab", "cd"])))
    assert [each["text"] for each in answer["choices"]] == ["abab", "cdcd"]
    whole = events(shared.ask(COMPLETIONS, asked(echo=True, stream=True)))
    assert "".join(event["choices"][0]["text"] for event in whole[:-1]) == "abcabca"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 65, "prompt": ["a", "b"]}, "n"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [["a"], ["b"]]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused(shared: Rounds, body, param: str) -> None:
    error = json.loads(shared.ask(COMPLETIONS, asked(**body)))["error"]
    assert (shared.status[shared.last], error["param"]) == (400, param)


def test_what_a_request_leaves_out_is_as_the_model_says(tmp_path) -> None:
    defaults = {"temperature": 0, "repetition_penalty": 1.2}
    with serving(write_text_package(tmp_path, defaults=defaults)) as rounds:
        read = rounds.handler._reader._read

        def sampling(**body):
            return read(Named, 0.0, "completion", {"prompt": [65], **body}).task.sampling

        assert (sampling().temperature, sampling().repetition) == (0.0, 1.2)
        assert (sampling(temperature=1).temperature, sampling(repetition_penalty=1).repetition) == (1.0, 1.0)
