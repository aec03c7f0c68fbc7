"""Calls of tools through the handler's rounds: forced ones with the engine that only repeats the prompt, whatever the
family, and the model's own with one that was trained to call tools."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from generating import Rounds, events, serving, write_text_package
from tokenizers import Tokenizer

CHAT = "v1/chat/completions"
# The prompt is only the last message, and so is the answer of an engine that repeats the prompt.
SILENT = "{{% if tools %}}{{# {} #}}{{% endif %}}{{{{ messages[-1].content }}}}"
SCHEMA = {
    "type": "object",
    "properties": {"place": {"enum": ["Kiel", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
    "required": ["place"],
    "additionalProperties": False,
}


def tool(name: str = "look_up", schema: Any = SCHEMA) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def asked(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "tools": [tool()], "temperature": 0} | more


def write_package(folder: Path, template: str, *special: str, **text: Any) -> Path:
    """A package with this template, whose tokenizer has these special tokens."""
    write_text_package(folder, **text)
    (folder / "model" / "chat_template.jinja").write_text(template)
    file = str(folder / "model/tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(file)
    return folder


@pytest.fixture(scope="module")
def hermes(tmp_path_factory) -> Iterator[Rounds]:
    folder = tmp_path_factory.mktemp("hermes")
    with serving(write_package(folder, SILENT.format("<tool_call>"), "<tool_call>", "</tool_call>")) as rounds:
        yield rounds


CALL = '<tool_call>\n{"name": "look_up", "arguments": {"place": "Kiel"}}\n</tool_call>'


def message(rounds: Rounds, **body: Any) -> tuple[dict[str, Any], str]:
    answer = json.loads(rounds.ask(CHAT, asked(**body)))
    assert "choices" in answer, answer
    (choice,) = answer["choices"]
    return choice["message"], choice["finish_reason"]


FAMILIES = [
    ("<tool_call>", ("<tool_call>", "</tool_call>")),
    ("<|tool_call|>", ("<|tool_call|>",)),
    ("[TOOL_CALLS]", ("[TOOL_CALLS]",)),
    ("[TOOL_CALLS][ARGS]", ("[TOOL_CALLS]", "[ARGS]")),
    ("<|python_tag|>", ("<|python_tag|>",)),
    ("[func_name1(", ()),
]


@pytest.mark.parametrize(("sign", "special"), FAMILIES)
def test_a_named_tool_is_called_with_arguments_of_its_schema(sign: str, special: tuple[str, ...], tmp_path) -> None:
    package = write_package(tmp_path, SILENT.format(sign), *special)
    named = {"type": "function", "function": {"name": "look_up"}}
    with serving(package) as rounds:
        for choice, end in ((named, "stop"), ("required", "tool_calls")):
            said, ended = message(rounds, tool_choice=choice, parallel_tool_calls=False, max_tokens=250)
            (call,) = said["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            assert (call["type"], call["function"]["name"], said["content"]) == ("function", "look_up", None)
            assert arguments["place"] in ("Kiel", "Oslo")
            assert arguments.keys() <= {"place", "days"}
            assert ended == end


def test_a_tool_that_must_be_called_is_one_of_those_given(hermes: Rounds) -> None:
    tools = [tool("a", {"type": "object", "additionalProperties": False}), tool("b")]
    said, _ = message(hermes, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert all(call["function"]["name"] in ("a", "b") for call in said["tool_calls"])


def test_a_call_of_the_models_own_is_read_and_what_is_before_it_is_content(hermes: Rounds) -> None:
    text = f"Let me see.\n{CALL}\n{CALL}"
    said, end = message(hermes, content=text, max_tokens=len(text))
    assert (said["content"], end) == ("Let me see.\n", "length")
    assert [call["function"] for call in said["tool_calls"]] == [
        {"name": "look_up", "arguments": '{"place": "Kiel"}'},
        {"name": "look_up", "arguments": '{"place": "Kiel"}'},
    ]
    first, second = (call["id"] for call in said["tool_calls"])
    assert first != second
    said, _ = message(hermes, content=text, max_tokens=len(text), parallel_tool_calls=False)
    assert len(said["tool_calls"]) == 1
    said, _ = message(hermes, content=text, max_tokens=len(text), tool_choice="none")
    assert (said["content"], said.get("tool_calls")) == (text, None)
    said, _ = message(hermes, content="no call <tool", max_tokens=13)
    assert (said["content"], said.get("tool_calls")) == ("no call <tool", None)


def test_a_streamed_call_has_its_name_first_and_its_arguments_in_pieces(hermes: Rounds) -> None:
    body = asked(f"So: {CALL}", max_tokens=len(f"So: {CALL}"), stream=True, stop=["</tool_call>"])
    *chunks, done = events(hermes.ask(CHAT, body))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "So: "
    first, *rest = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert (first["index"], first["type"], first["function"]["name"], bool(first["id"])) == (
        0,
        "function",
        "look_up",
        True,
    )
    assert all(call.keys() == {"index", "function"} for call in rest)
    assert "".join(call["function"]["arguments"] for call in [first, *rest]) == '{"place": "Kiel"}'
    assert len(rest) > 5
    assert (chunks[-1]["choices"][0]["finish_reason"], done) == ("tool_calls", "[DONE]")


REFUSED = [
    ({"tools": [{}]}, "tools"),
    ({"tools": [tool("no spaces")]}, "tools"),
    ({"tools": [tool(), tool()]}, "tools"),
    ({"tools": [tool()] * 200}, "tools"),
    ({"tools": [tool(schema=[])]}, "tools"),
    ({"tools": [tool() | {"extra": 1}]}, "tools[0]"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "another"}}}, "tool_choice"),
    ({"tools": [tool(schema={"type": "object", "not": {}})], "tool_choice": "required"}, "tools"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "["}}]}]},
        "messages[0]",
    ),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 1}]}, "messages[0]"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_tools_that_cannot_be_called_are_refused(hermes: Rounds, body: dict[str, Any], param: str) -> None:
    error = json.loads(hermes.ask(CHAT, asked(**body)))["error"]
    assert (hermes.status[hermes.last], error["param"]) == (400, param), error


def test_tools_need_a_template_that_shows_them_in_a_known_form(tmp_path) -> None:
    for template, reason in (("{{ messages[-1].content }}", "shows none"), (SILENT.format("?"), "`text.tools`")):
        with serving(write_package(tmp_path / reason, template)) as rounds:
            error = json.loads(rounds.ask(CHAT, asked()))["error"]
            assert (error["param"], reason in error["message"]) == ("tools", True)
    with serving(write_package(tmp_path / "named", SILENT.format("?"), tools="hermes")) as rounds:
        assert message(rounds, content=CALL, max_tokens=len(CALL))[0]["tool_calls"]


def test_either_a_call_or_json_may_come_with_a_schema(tmp_path) -> None:
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": [1]}}}}
    call = '{"name": "look_up", "parameters": {"place": "Kiel"}}'
    with serving(write_package(tmp_path, SILENT.format("<|python_tag|>"))) as rounds:
        assert message(rounds, content=call, max_tokens=200, parallel_tool_calls=False, **wanted)[0]["tool_calls"]
        assert message(rounds, content="[1]", max_tokens=200, **wanted)[0]["content"] == "[1]"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory) -> Iterator[Rounds]:
    template = SILENT.format("<tool_call>") + "{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
    with serving(
        write_package(tmp_path_factory.mktemp("thinker"), template, "<think>", "</think>", ends=[255])
    ) as rounds:
        yield rounds


def test_a_reasoning_is_no_content_whoever_writes_its_beginning(thinker: Rounds) -> None:
    for variables in ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "high"}):
        said, _ = message(thinker, content="why", max_tokens=3, **variables)
        assert (said["content"], said["reasoning_content"]) == ("", "why")
    said, _ = message(thinker, content="why", max_tokens=3, reasoning_effort="none")
    assert (said["content"], said.get("reasoning_content")) == ("why", None)


def test_an_answer_within_a_reasoning_reaches_its_schema_after_it(thinker: Rounds) -> None:
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}}}
    thinks = {"chat_template_kwargs": {"enable_thinking": True}, "stream": True}
    body = asked("ab", max_tokens=12, **wanted, **thinks)
    *chunks, _ = events(thinker.ask(CHAT, body))
    assert "".join(chunk["choices"][0]["delta"].get("reasoning_content") or "" for chunk in chunks)


def test_texts_of_tools_and_calls_cannot_be_special_tokens(hermes: Rounds) -> None:
    call = {"function": {"name": "look_up", "arguments": '{"a": "</tool_call>"}'}}
    turn = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "</tool_call>"}]
    said, _ = message(hermes, messages=turn, max_tokens=12)
    assert said["content"] == "</tool_call>"
    answer = json.loads(hermes.ask(CHAT, asked(messages=turn, max_tokens=1)))
    assert answer["usage"]["prompt_tokens"] == len("</tool_call>")
