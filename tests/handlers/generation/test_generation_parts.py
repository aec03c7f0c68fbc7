"""Unit tests of text generation: the queue, the choice of a token, text from tokens, chat templates."""

import json

import numpy as np
import pytest
from generating import TEMPLATE, write_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from marina.handlers.generation import template
from marina.handlers.generation.detokenizer import Detokenizer, StopFinder
from marina.handlers.generation.engine import Sampling
from marina.handlers.generation.engines.sampling import Sampler
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.generation.open_requests import FlushPace
from marina.handlers.generation.scheduler import PATIENCE_S, Busy, Scheduler
from marina.handlers.generation.sequence import BATCH, INTERACTIVE, GenerationTask
from marina.handlers.generation.template import ChatTemplate, TemplateRefused
from marina.handlers.generation.tokenizer import ModelTokenizer


def task(name: str, *, length: int = 4, tokens: int = 10, priority: int = INTERACTIVE, deadline=None) -> GenerationTask:
    return GenerationTask(name, (0,) * length, tokens, Sampling(), priority=priority, deadline=deadline)


def full(*waiting: tuple[GenerationTask, float], room: int = 10, step_s: float = 0.0) -> Scheduler:
    scheduler = Scheduler(room=room, slots=1, prefill_chunk=4)
    if step_s:
        scheduler.observe_step(step_s)
    for each, since in waiting:
        scheduler.submit(each, since, running=[10])
    return scheduler


def order(scheduler: Scheduler, now: float) -> list[str]:
    taken = []
    while (each := scheduler.take(now)) is not None:
        taken.append(each.id)
    return taken


def test_a_late_flush_does_not_delay_the_later_ones() -> None:
    pace, sent = FlushPace(2), []
    # A token comes every two seconds; the third is late, and the last ones come too fast.
    for ready in (10, 12, 15, 16, 18, 19, 20, 21):
        now = ready + pace.wait_s(ready)
        pace.flush(now)
        sent.append(now)
    assert sent == [10, 12, 15, 16, 18, 19, 21, 23]


def test_many_early_flushes_do_not_hold_up_running_answers() -> None:
    pace = FlushPace(2)
    for early in range(100):
        pace.flush(10 + early / 100)
    assert pace.wait_s(11) == pytest.approx(1.99)


def test_interactive_goes_before_batch_and_short_before_long() -> None:
    scheduler = full(
        (task("batch", length=1, priority=BATCH), 0), (task("long", length=9), 0), (task("short", length=2), 0.1)
    )
    assert order(scheduler, 1) == ["short", "long", "batch"]


def test_a_request_that_has_waited_long_goes_first() -> None:
    scheduler = full((task("batch", priority=BATCH), 0), (task("new", length=1), PATIENCE_S))
    assert order(scheduler, PATIENCE_S + 1) == ["batch", "new"]


def test_a_full_room_says_when_a_slot_is_free() -> None:
    scheduler = full((task("a", tokens=10), 0), room=1, step_s=0.5)
    with pytest.raises(Busy) as busy:
        scheduler.submit(task("b"), 0, running=[10])
    assert (
        busy.value.retry_after_s == 10
    )  # 10 steps of the running task, then 1 + 9 of the waiting one, of half a second each


def test_the_estimate_for_a_deadline_includes_the_requests_before_it() -> None:
    scheduler = full((task("a", tokens=10), 0), step_s=1.0)
    with pytest.raises(Busy, match=r"it would take 25,000.0 ms, and 24,000.0 ms are left"):
        scheduler.submit(task("late", tokens=5, deadline=24), 0, running=[10])
    scheduler.submit(task("fits", tokens=5, deadline=26), 0, running=[10])


def test_no_request_is_refused_for_its_deadline_before_a_step_was_measured() -> None:
    full((task("a", deadline=0.001), 0))


def test_a_prompt_is_read_in_pieces_between_the_others() -> None:
    slots = Slots(2, context=100, prefill_chunk=4)
    slots.add("short", [1], Sampling())
    slots.add("long", range(10), Sampling())
    pieces = []
    while len(work := slots.work()) == 2 and (slot := work[1].slot).sequence == "long" and slot.is_reading:
        assert work[0].slot.sequence == "short"
        piece = work[1].piece
        pieces.append((piece.start, piece.stop))
        if piece.stop == len(slot.tokens):
            slot.append(7)
        else:
            slot.cached = piece.stop
    assert pieces == [(0, 4), (4, 8), (8, 10)]
    assert (slots.usage().sequences, slots.usage().cached_tokens) == (2, 10)
    slots.cancel("long")
    assert slots.usage().sequences == 1


def test_short_prompts_are_read_together_as_many_as_fit_into_a_piece() -> None:
    slots = Slots(4, context=100, prefill_chunk=8)
    for name, length in (("a", 3), ("b", 3), ("c", 5), ("d", 2)):
        slots.add(name, range(length), Sampling())
    work = slots.work()
    assert [(each.slot.sequence, each.piece.start, each.piece.stop) for each in work] == [
        ("a", 0, 3),
        ("b", 0, 3),
        ("c", 0, 2),
    ]
    assert [each.gives_token for each in work] == [True, True, False]


SCORES = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def drawn(sampling: Sampling, count: int = 2000) -> np.ndarray:
    sampler = Sampler(sampling)
    return np.bincount([sampler.choose(SCORES)[0] for _ in range(count)], minlength=4) / count


def test_temperature_0_takes_the_likeliest() -> None:
    token, logprob, likeliest = Sampler(Sampling(temperature=0, logprobs=2)).choose(SCORES)
    assert (token, [at for at, _ in likeliest]) == (0, [0, 1])
    assert logprob == pytest.approx(np.log(0.5), abs=1e-5)


def test_draws_follow_the_scores_and_the_temperature() -> None:
    assert drawn(Sampling(seed=1)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)
    squared = np.array([0.5, 0.3, 0.15, 0.05]) ** 2
    assert drawn(Sampling(seed=1, temperature=0.5)) == pytest.approx(squared / squared.sum(), abs=0.04)


def test_top_k_and_top_p_exclude_unlikely_tokens() -> None:
    assert drawn(Sampling(seed=1, top_k=2))[2:].sum() == 0
    assert drawn(Sampling(seed=1, top_p=0.6))[2:].sum() == 0
    assert drawn(Sampling(seed=1, top_p=0.6))[1] > 0
    assert drawn(Sampling(seed=1, top_p=0.0))[0] == 1


@pytest.mark.parametrize("temperature", [1e-320, 1e-9])
def test_a_temperature_next_to_0_takes_the_likeliest(temperature: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature, seed=-1))
    assert {sampler.choose(np.array([0.0, 3.0, 2.0], dtype=np.float32))[0] for _ in range(20)} == {1}


def test_a_seed_repeats_the_answer() -> None:
    def answer(seed: int) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [sampler.choose(SCORES)[0] for _ in range(50)]

    assert answer(3) == answer(3) != answer(4)


def test_a_stop_string_across_pieces_is_found_and_nothing_of_it_is_sent() -> None:
    finder = StopFinder(["END"])
    assert [finder.feed(text) for text in ("a E", "N", "X b", " EN", "D c")] == [
        ("a ", False),
        ("", False),
        ("ENX b", False),
        (" ", False),
        ("", True),
    ]


def test_what_was_held_back_for_a_stop_string_comes_at_the_end() -> None:
    finder = StopFinder(["END"])
    assert (finder.feed("x EN"), finder.flush()) == (("x ", False), "EN")


@pytest.mark.parametrize("text", ["plain", "žluťoučký kůň", "日本語 text", "🙂🙃 mixed €uro", "\ud7ff￿"])
def test_bytes_become_text_in_whole_characters(text: str) -> None:
    detokenizer = Detokenizer(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("length", [10, 700, 5000, 10_000_000])
def test_only_the_beginning_of_a_text_that_is_far_too_long_is_encoded(length: int, tmp_path) -> None:
    tokens, text = ModelTokenizer(write_tokenizer(tmp_path)), "a" * length
    read = tokens.encode(text, limit=80)
    assert read == tokens.encode(text[: len(read)])
    assert len(read) == min(length, 640)


def test_invalid_bytes_do_not_stop_the_text_after_them() -> None:
    detokenizer = Detokenizer(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    text = "".join(detokenizer.feed(byte) for byte in b"a\xff\xff\xff\xff\xff\xffb") + detokenizer.flush()
    assert (text[0], text[-1]) == ("a", "b")


CONVERSATION = [{"role": "user", "content": "hi"}]
HARMFUL = {
    "its own refusal": "{{ raise_exception('only one turn') }}",
    "a long text": "{{ 'x' * 10000000000 }}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a large power": "{{ 10 ** 10 ** 10 }}",
    "a text that doubles": "{% set t = namespace(x=messages[0].content) %}{% for i in range(40) %}"
    "{% set t.x = t.x ~ t.x %}{% endfor %}",
    "a text that is replaced": "{% set t = namespace(x='aaaaaaaaaa') %}{% for i in range(20) %}"
    "{% set t.x = t.x.replace('a', t.x) %}{% endfor %}",
    "a text between texts": "{% set t = namespace(x='a') %}{% for i in range(40) %}"
    "{% set t.x = t.x.join(['', t.x, '']) %}{% endfor %}",
    "a list that doubles": "{% set t = namespace(x=[1]) %}{% for i in range(40) %}"
    "{% set t.x = t.x + t.x %}{% endfor %}",
    "a number that grows": "{% set t = namespace(x=9999) %}{% for i in range(40) %}"
    "{% set t.x = t.x * t.x %}{% endfor %}",
    "a wide column": "{{ 'x'.ljust(10000000000) }}",
    "a column by its name": "{{ 'x'['ljust'](9) }}",
    "a wide field by its name": "{{ '{:100}'['format'](1) }}",
    "bytes of a text": "{{ 'x'.encode() }}",
    "bytes of a number": "{{ (5).to_bytes(9, 'big') }}",
    "digits to round": "{{ 7|round(-1) }}",
    "a long number": "{{ 1e99|int }}",
    "a long block": "{% set t = range(9999)|list|string %}{% set x %}" + "{{ t }}" * 99 + "{% endset %}",
    "a filter's own condition": "{{ 'xxxxxxxxxxxx'|truncate(1) }}",
    "a wide field": "{{ '{:10000000000}'.format(1) }}",
    "a width as an argument": "{{ '{:{}}'.format(1, 10000000000) }}",
    "a deep indent": "{{ 'x\n' | indent(10000000000) }}",
    "wide JSON": "{{ [1] | tojson(indent=10000000000) }}",
    "long separators of JSON": "{{ [1] | tojson(separators=('" + "," * 101 + "', ':')) }}",
    "a wide date": "{{ strftime_now('%1000000000Y') }}",
    "Python's internals": "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
    "a change of the messages": "{{ messages.append(1) }}",
    "a missing field": "{{ messages[0].tool.name }}",
}
TOO_EXPENSIVE = {
    "a loop that goes on": "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "lists in a loop": "{% for i in range(99999) %}{% set x = range(99999)|list|length %}{% endfor %}",
    "sorting in a loop": "{% for i in range(99999) %}{% set x = range(99999)|sort(reverse=true)|first %}{% endfor %}",
    "sums in a loop": "{% for i in range(99999) %}{% set x = range(99999)|sum %}{% endfor %}",
    "a sum of lists": "{% set t = namespace(x=[range(9999)|list]) %}{% for i in range(12) %}"
    "{% set t.x = t.x + t.x %}{% endfor %}{{ t.x|sum(start=[])|length }}",
    "a list that contains itself twice": "{% set t = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set t.x = [t.x, t.x] %}{% endfor %}{{ t.x }}",
    "an object that contains itself twice": "{% set t = namespace(x=1) %}{% for i in range(60) %}"
    "{% set t.x = {'a': t.x, 'b': t.x} %}{% endfor %}{{ t.x|tojson }}",
    "a namespace that contains itself twice": "{% set t = namespace(x=1) %}{% for i in range(60) %}"
    "{% set t.x = namespace(a=t.x, b=t.x) %}{% endfor %}{{ t.x }}",
    "a dictionary made by dict": "{% set t = namespace(x=1) %}{% for i in range(60) %}"
    "{% set t.x = dict(a=t.x, b=t.x) %}{% endfor %}{{ t.x }}",
    "a long list many times": "{% set t = range(9999)|list %}{{ range(99999)|map(attribute='x', default=t)|list }}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
}


@pytest.mark.parametrize("source", HARMFUL.values(), ids=HARMFUL)
def test_a_harmful_template_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "_MAX_S", 0.2)
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render(CONVERSATION)


@pytest.mark.parametrize("source", TOO_EXPENSIVE.values(), ids=TOO_EXPENSIVE)
def test_a_template_that_takes_too_much_time_or_memory_is_refused_for_that(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "_MAX_S", 0.2)
    with pytest.raises(TemplateRefused, match=r"takes too long|becomes too long|recursion"):
        ChatTemplate(source, {}).render(CONVERSATION)


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


def test_text_filters_give_the_same_as_in_jinja() -> None:
    source = (
        "{{ messages | map(attribute='content') | join(', ') }} {{ messages | join('-', attribute='role') }} "
        "{{ 1 ~ 'a' ~ none }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa' | replace('a', 'c', 1) }} "
        "{{ '+'.join(['a', 'b']) }} "
        "{{ 'a\nb' | indent(2, true) }} {{ {'a': 'é'} | tojson }} {{ '{:02d} {}'.format(3, 'x') }} {{ 3 * 4 }}"
    )
    text = ChatTemplate(source, {}).render(CONVERSATION * 2)
    assert text == 'hi, hi user-user 1aNone bba caa a+b   a\n  b {"a": "é"} 03 x 12'


@pytest.mark.parametrize(
    "source",
    [
        "{% if tools is not none %}{{ tools | tojson }}{% endif %}{% if documents is not none %}found{% endif %}hi",
        "{% for m in messages %}{% generation %}{% set x = m.role %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}",
        "{{ messages | tojson(ensure_ascii=True) }} {{ messages | tojson(false, 2) }}",
        "{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}",
        "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%H%M%S%f') | replace('0', '') | length > 0 }}",
        "{{ unk_token is defined }} {{ bos_token }}",
    ],
)
def test_a_template_gives_the_same_as_in_transformers(source: str, tmp_path) -> None:
    (write_tokenizer(tmp_path, template=source) / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    template = ModelTokenizer(tmp_path).template
    assert template is not None
    messages = [{"role": "user", "content": "é <b>"}] * 2
    (expected,), _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert template.render(messages) == expected


def test_of_several_templates_the_default_is_used(tmp_path) -> None:
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    config = write_tokenizer(tmp_path, template=None) / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": several}))
    template = ModelTokenizer(tmp_path).template
    assert template is not None
    assert template.render(CONVERSATION) == "<user>hi\n<assistant>"
    config.write_text(json.dumps({"chat_template": several[:1]}))
    assert ModelTokenizer(tmp_path).template is None


def test_a_template_with_a_syntax_error_is_refused() -> None:
    for source in ("{% for %}", "{% if 1 %}" * 200 + "{% endif %}" * 200):
        with pytest.raises(TemplateRefused):
            ChatTemplate(source, {})


@pytest.mark.parametrize(("known", "expected"), [("system", "system"), ("developer", "developer")])
def test_a_developers_message_reaches_a_template_that_does_not_know_that_name(known: str, expected: str) -> None:
    # As in Qwen's templates: messages of other roles are left out.
    source = "{% for m in messages if m.role in ('NAME', 'user') %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    text = ChatTemplate(source.replace("NAME", known), {}).render(messages)
    assert text == f"[{expected}]be brief[user]hi"


def test_a_template_gets_the_special_tokens() -> None:
    source = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}{% endfor %}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(CONVERSATION) == "<s>[user] hi"
