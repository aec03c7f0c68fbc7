"""Prompts: chat templates give what they give in `transformers`, within limits, and beside the streams."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from generating import TEMPLATE, Rounds, serving, write_text_package, write_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from marina.handlers.generation.prompts import ChatTemplate, Conversation, Prompts, TemplateRefused
from marina.handlers.generation.tokenizer import ModelTokenizer, special_names, template_source

CONVERSATION = Conversation([{"role": "user", "content": "hi"}])
CHAT = "v1/chat/completions"


@pytest.mark.parametrize("length", [10, 700, 5000, 10_000_000])
def test_only_the_beginning_of_a_text_that_is_far_too_long_is_encoded(length: int, tmp_path) -> None:
    tokens, text = ModelTokenizer(write_tokenizer(tmp_path)), "a" * length
    read = tokens.encode(text, limit=80)
    assert read == tokens.encode(text[: len(read)])
    assert len(read) == min(length, 640)


def reading(folder: Any, template: str) -> Prompts:
    return Prompts(write_tokenizer(folder, template=template), limit=1000)


REFUSED = {
    "its own refusal": ("{{ raise_exception('only one turn') }}", "only one turn"),
    "Python's internals": ("{{ messages.__class__.__mro__[-1].__subclasses__() }}", "unsafe"),
    "a change of the messages": ("{{ messages.append(1) }}", "unsafe"),
    "a missing field": ("{{ messages[0].tool.name }}", "has no attribute 'tool'"),
    "a wrong type": ("{{ 1 + messages }}", "the chat template cannot render these messages"),
    "a syntax error": ("{% for %}", "the chat template cannot be read"),
    "many blocks": ("{% if 1 %}" * 200 + "{% endif %}" * 200, "the chat template cannot be read"),
    "a macro that calls itself": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"),
}
TOO_MUCH = {
    "a long text": "{{ 'x' * 10**9 }}",
    "a wide format": "{{ '%09999999999d' % 1 }}",
    "a wide field": "{{ '{:10000000000}'.format(1) }}",
    "a large power": "{{ 10 ** (10 ** (messages|length * 10)) }}",
    "a text that doubles": "{% set t = namespace(x='a') %}{% for i in range(40) %}"
    "{% set t.x = t.x ~ t.x %}{% endfor %}",
    "a list that contains itself twice": "{% set t = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set t.x = [t.x, t.x] %}{% endfor %}{{ t.x }}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize(("source", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_refuses_a_conversation_says_why(source: str, reason: str, tmp_path) -> None:
    with closing(reading(tmp_path, source)) as prompts, pytest.raises(TemplateRefused, match=reason):
        prompts.read(CONVERSATION)


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_template_that_takes_too_much_time_or_memory_is_ended_and_the_next_one_is_rendered(source, tmp_path) -> None:
    source = f"{{% if messages[0].content == 'hi' %}}{source}{{% else %}}fine{{% endif %}}"
    with closing(reading(tmp_path, source)) as prompts:
        with pytest.raises(TemplateRefused, match="the chat template takes too much time or memory"):
            prompts.read(CONVERSATION)
        assert len(prompts.read(Conversation([{"role": "user", "content": "ho"}]))) == len("fine")


def test_a_template_whose_constants_take_too_much_is_refused(tmp_path) -> None:
    source, raises = "{{ 10 ** (10 ** 10) }}", pytest.raises(TemplateRefused, match="takes too much time or memory")
    with closing(reading(tmp_path, source)) as prompts, raises:
        prompts.read(CONVERSATION)


def test_a_prompt_is_read_again_after_its_process_was_killed(tmp_path) -> None:
    with closing(reading(tmp_path, TEMPLATE)) as prompts:
        first = prompts.read(CONVERSATION)
        prompts._process._process.kill()
        prompts._process._process.wait()
        assert prompts.read(CONVERSATION) == first


@pytest.fixture
def rounds(tmp_path) -> Iterator[Rounds]:
    folder = write_text_package(tmp_path, step_ms=20)
    slow = "{% if messages[0].content == 'slow' %}" + TOO_MUCH["loops in loops"] + "{% endif %}"
    (folder / "model" / "chat_template.jinja").write_text(slow + TEMPLATE)
    with serving(folder) as rounds:
        yield rounds


def asked(content: str, **headers: str) -> tuple[bytearray, dict[str, str]]:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    return bytearray(json.dumps(body).encode()), {"url_path": CHAT} | headers


def test_streams_go_on_while_a_template_takes_too_long(rounds: Rounds) -> None:
    stream = {"prompt": [64, 65], "max_tokens": 250, "stream": True}
    rounds.begin({"stream": (bytearray(json.dumps(stream).encode()), {"url_path": "v1/completions"})})
    rounds.round({"slow": asked("slow")})
    before = rounds.bodies["stream"].count(b"data: ")
    gaps, last = [], time.monotonic()
    while "slow" in rounds.unanswered:
        rounds.round()
        if (now := rounds.bodies["stream"].count(b"data: ")) > before:
            before, last = now, gaps.append(time.monotonic() - last) or time.monotonic()
    # It takes a second; a round that waited for it would be a gap as long.
    assert len(gaps) > 10
    assert (rounds.status["slow"], max(gaps) < 0.7) == (400, True)
    assert "takes too much time or memory" in json.loads(rounds.bodies["slow"])["error"]["message"]


def test_a_prompt_waits_no_longer_than_its_answer_may_take_and_not_for_clients_that_left(rounds: Rounds) -> None:
    rounds.round({"slow": asked("slow"), "gone": asked("slow")})
    rounds.begin({"late": asked("hi", **{"x-request-timeout-ms": "50"})})
    error = json.loads(rounds.bodies["late"])["error"]
    assert (rounds.status["late"], error["message"]) == (503, "its prompt was not read in time")
    waits = rounds.handler._open["gone"].awaited
    rounds.round(left=["gone", "slow"])
    assert waits.tokens.cancelled()


def test_what_cannot_fit_is_refused_before_it_is_rendered(rounds: Rounds) -> None:
    content = "a" * (512 * rounds.handler.tokenizer.longest + 1)
    for path, body in ((CHAT, {"messages": [{"role": "user", "content": content}]}), ("", {"prompt": content})):
        error = json.loads(rounds.ask(path, body))["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith(f"the prompt has {len(content)} characters, so more than 512 tokens")
    assert rounds.handler.prompts._process._process is None


def test_what_the_templates_of_real_models_do_is_allowed() -> None:
    source = """{%- if messages[0]['role'] == 'system' %}
{%- set first, messages = messages[0].content|trim, messages[1:] %}{%- endif %}
{%- set ns = namespace(last=true, seen=[]) %}{%- for message in messages[::-1] %}
{%- if ns.last and message.role in ('user', 'tool') and message.content is string %}{%- set ns.last = false %}
{%- set ns.seen = ns.seen + [{'content': message.content}] %}{%- endif %}{%- endfor %}
{%- for name, value in {'a': 1, 'b': [1, (2, 3)]}.items() %}{{ name ~ value }}{%- endfor %}
{%- for message in messages %}{{ '<' + message.role + '>' + message.content.split('|')[-1] }}{%- endfor %}
{{- ns.seen | tojson }}{{ first }}{{ dict(messages[0], role='x').role }}{{ [1, 2] | sum }}"""
    messages = [("system", " be "), ("user", "hi"), ("assistant", "x|yes"), ("user", "more")]
    text = ChatTemplate(source, {}).render([{"role": role, "content": content} for role, content in messages])
    assert text == 'a1b[1, (2, 3)]<user>hi<assistant>yes<user>more[{"content": "more"}]bex3'
    long = [{"role": "user", "content": "hi" * 200}, {"role": "assistant", "content": "x|" + "yes" * 100}] * 500
    assert ChatTemplate(source, {"first": ""}).render(long).count("<user>") == 500


@pytest.mark.parametrize(
    "source",
    [
        "{% if tools is not none %}{{ tools | tojson }}{% endif %}{% if documents is not none %}found{% endif %}hi",
        "{% for m in messages %}{% generation %}{% set x = m.role %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
        "{{ messages | tojson(ensure_ascii=True) }} {{ messages | tojson(false, 2) }}",
        "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%H%M%S%f') | replace('0', '') | length > 0 }}",
        "{{ unk_token is defined }} {{ bos_token }}",
        "{{ '%02d' % 3 }} {{ 7.5|round }} {{ '%s-%s'|format(1, 2) }} {{ messages|batch(1)|list }}",
        "{{ messages | map(attribute='content') | join(', ') }} {{ 'a\nb' | indent(2, true) }} {{ 'x'.ljust(9) }}|",
    ],
)
def test_a_template_gives_the_same_as_in_transformers(source: str, tmp_path) -> None:
    folder = write_tokenizer(tmp_path, template=source)
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    messages = [{"role": "user", "content": "é <b>"}] * 2
    (expected,), _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ChatTemplate(template_source(folder) or "", special_names(folder)).render(messages) == expected


def test_of_several_templates_the_default_is_used(tmp_path) -> None:
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    config = write_tokenizer(tmp_path, template=None) / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": several}))
    assert template_source(tmp_path) == TEMPLATE
    config.write_text(json.dumps({"chat_template": several[:1]}))
    assert template_source(tmp_path) is None


@pytest.mark.parametrize(("known", "expected"), [("system", "system"), ("developer", "developer")])
def test_a_developers_message_reaches_a_template_that_does_not_know_that_name(known: str, expected: str) -> None:
    # As in Qwen's templates: messages of other roles are left out.
    source = "{% for m in messages if m.role in ('NAME', 'user') %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    text = ChatTemplate(source.replace("NAME", known), {}).render(messages)
    assert text == f"[{expected}]be brief[user]hi"


def test_a_template_gets_the_special_tokens() -> None:
    source = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endfor %}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(CONVERSATION.messages) == "<s>[user] hi"
