"""Calls of tools and reasonings in answers: what the families write, in whatever pieces it comes, is read as vLLM's own
parsers read it. `calls_of_vllm.json` is what those found, which `tests/bench/text/vllm_calls.py` has written down."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from marina.handlers.generation.dialects.choosing import DIALECTS, ChatForm
from marina.handlers.generation.dialects.reading import AnswerReader, Call, Delta, Read, read_whole
from marina.handlers.generation.dialects.reasoning import KINDS

FOUND = json.loads(Path(__file__).with_name("calls_of_vllm.json").read_text())
CASES = [(family, *case) for family, cases in FOUND.items() for case in cases]
THINK = KINDS[0]


def in_pieces(read: Read, pieces: Sequence[str]) -> tuple[str, str, list[Call], bool]:
    """The reasoning, the content, the calls, and whether a call turned out to be none."""
    reader, calls = AnswerReader(read), dict[int, Call]()
    deltas: list[Delta] = [*map(reader.feed, pieces), reader.finish()]
    for number, call in (call for delta in deltas for call in delta.calls):
        assert bool(call.name) is (number not in calls), "a call has its name once, at its beginning"
        calls.setdefault(number, Call(call.name)).arguments += call.arguments
    reasoning, content = ("".join(getattr(delta, part) for delta in deltas) for part in ("reasoning", "content"))
    return reasoning, content, list(calls.values()), reader.is_broken


@pytest.mark.parametrize(("family", "text", "content", "calls"), CASES)
def test_a_whole_answer_is_read_as_vllm_reads_it(family: str, text: str, content: str, calls: list[object]) -> None:
    read = read_whole(DIALECTS[family].read, text)
    assert read.content == content
    assert [[call.name, json.loads(call.arguments)] for _, call in read.calls] == calls


@pytest.mark.parametrize(("family", "text", "content", "calls"), CASES)
def test_the_pieces_in_which_an_answer_comes_make_no_difference(family, text, content, calls) -> None:
    read, dice = DIALECTS[family].read, random.Random(0)
    _, whole, found, is_broken = in_pieces(read, [text])
    if not is_broken or not found:
        assert (whole, [[call.name, json.loads(call.arguments)] for call in found]) == (content, calls)
    cuts = [[at] for at in range(len(text) + 1)]
    cuts += [sorted(dice.choices(range(len(text) + 1), k=dice.randint(2, 9))) for _ in range(50)]
    for cut in [*cuts, list(range(len(text)))]:
        pieces = [text[begin:end] for begin, end in pairwise([0, *cut, len(text)])]
        assert in_pieces(read, pieces) == ("", whole, found, is_broken), pieces


def test_arguments_are_passed_on_while_they_are_written() -> None:
    reader = AnswerReader(DIALECTS["hermes"].read)
    sent = [reader.feed(piece).calls for piece in ('<tool_call>{"name": "f", "arguments": {"a"', ': "lo', 'ng"}', "}")]
    assert sent == [[(0, Call("f", '{"a"'))], [(0, Call("", ': "lo'))], [(0, Call("", 'ng"}'))], []]


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>why</think>\n\nso", False, ("why", "\n\nso", [])),
        ("why</think>so", True, ("why", "so", [])),
        ("\n<think>why", False, ("why", "", [])),
        ("so <think>", False, ("", "so <think>", [])),
        (" <thing>", False, ("", " <thing>", [])),
        ("<th", False, ("", "<th", [])),
        ("", True, ("", "", [])),
        ('<think>x</think><tool_call>{"name": "f", "arguments": {}}</tool_call>', False, ("x", "", [Call("f", "{}")])),
        ("<think>x</think>a<tool_call>{]", False, ("x", "a<tool_call>{]", [])),
    ],
)
def test_a_reasoning_is_taken_apart_from_the_answer(text: str, is_open: bool, expected: tuple[object, ...]) -> None:
    read = THINK.before(DIALECTS["hermes"].read, is_open=is_open)
    for pieces in ([text], list(text), *([text[:at], text[at:]] for at in range(len(text)))):
        assert in_pieces(read, pieces)[:3] == expected


TEMPLATES = {
    "hermes": "{% if tools %}for each call: <tool_call>{{ tools }}</tool_call>{% endif %}",
    "granite": "{% if tools %}<|tool_call|> and <tool_call>{% endif %}",
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "llama": """{% if tools %}{{- 'Respond with {"name": function name, "parameters": dictionary' }}{% endif %}""",
    "pythonic": "{% if tools %}[func_name1(params_name1=params_value1)]{% endif %}",
    "": "{% if tools %}<tool_call><function=NAME>{% endif %}",
}


@pytest.mark.parametrize(("family", "template"), TEMPLATES.items())
def test_a_template_tells_its_family(family: str, template: str) -> None:
    form = ChatForm.of(template)
    assert (form.has_tools, form.dialect) == (True, DIALECTS.get(family))
    assert ChatForm.of(template, "llama").dialect is DIALECTS["llama"]
    assert ChatForm.of("{{ messages }} <tool_call>").dialect is None


def test_a_template_with_the_newer_form_of_mistral_has_the_grammar_of_it() -> None:
    form = ChatForm.of("{{ tools }}[TOOL_CALLS]name[ARGS]{}")
    assert form.dialect is not None
    assert form.dialect.before == "[TOOL_CALLS]NAME[ARGS]"
    assert read_whole(form.dialect.read, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}').calls == [
        (0, Call("f", '{"a": 1}')),
        (1, Call("g", "{}")),
    ]
