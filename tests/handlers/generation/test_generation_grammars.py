"""Answers that match a schema: from `response_format` to a grammar, the compiler's limits, and the choice of tokens."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from generating import Rounds, events, serving, write_text_package, write_tokenizer
from llguidance import LLMatcher

from marina.handlers.generation.engine import NoToken, Sampling
from marina.handlers.generation.engines.fake import FakeEngine
from marina.handlers.generation.engines.sampling import Sampler
from marina.handlers.generation.engines.slots import Slots
from marina.handlers.generation.grammars import GrammarRefused, Grammars, read_tokenizer
from marina.handlers.generation.refusals import RequestRefused
from marina.handlers.generation.response_format import read_schema

COMPLETIONS = "v1/completions"
BOAT = {
    "type": "object",
    "properties": {"sails": {"type": "boolean"}, "port": {"enum": ["left", "right"]}, "crew": {"const": 7}},
    "required": ["sails", "port", "crew"],
    "additionalProperties": False,
}
# Forty bytes, for which the library takes ten seconds; and half a second and 50 MB.
HOSTILE, LARGE = {"type": "integer", "multipleOf": 999983}, {"type": "integer", "multipleOf": 99991}


def form(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "boat", "schema": schema} | more}


def completion(schema: object, **body: Any) -> dict[str, Any]:
    return {"prompt": [64, 65, 66], "max_tokens": 100, "temperature": 0, "response_format": form(schema)} | body


@pytest.fixture
def rounds(tmp_path, request) -> Iterator[Rounds]:
    with serving(write_text_package(tmp_path, **getattr(request, "param", {}))) as rounds:
        yield rounds


@pytest.fixture(scope="module")
def grammars(tmp_path_factory) -> Iterator[Grammars]:
    made = Grammars(write_tokenizer(tmp_path_factory.mktemp("model")) / "tokenizer.json", ())
    yield made
    made.close()


def test_an_answer_matches_its_schema_and_ends_with_it(rounds: Rounds) -> None:
    answer = json.loads(rounds.ask(COMPLETIONS, completion(BOAT)))
    jsonschema.validate(json.loads(answer["choices"][0]["text"]), BOAT)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_streamed_answer_matches_it_too(rounds: Rounds) -> None:
    *pieces, done = events(rounds.ask(COMPLETIONS, completion(BOAT, stream=True)))
    jsonschema.validate(json.loads("".join(piece["choices"][0]["text"] for piece in pieces)), BOAT)
    assert (pieces[-1]["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


def test_an_answer_that_is_cut_off_says_so(rounds: Rounds) -> None:
    answer = json.loads(rounds.ask(COMPLETIONS, completion(BOAT, max_tokens=5)))
    assert (answer["choices"][0]["text"][0], answer["choices"][0]["finish_reason"]) == ("{", "length")


@pytest.mark.slow
def test_a_schema_is_compiled_once(rounds: Rounds, monkeypatch) -> None:
    tried: list[str] = []
    process, ask = rounds.handler.grammars._process, rounds.handler.grammars._process.ask
    monkeypatch.setattr(process, "ask", lambda schema: (tried.append(schema), ask(schema))[1])
    first = rounds.ask(COMPLETIONS, completion(BOAT))
    raw = bytearray(json.dumps(completion(BOAT)).encode())
    rounds.round({"again": (raw, {"url_path": COMPLETIONS})})
    # It gets a status in its first round, which it would not if its schema had to be compiled.
    assert "again" not in rounds.unanswered
    while rounds.open:
        rounds.round()
    texts = [json.loads(body)["choices"][0]["text"] for body in (first, rounds.bodies["again"])]
    assert texts[0] == texts[1]
    value = rounds.handler.metrics._base.registry.get_sample_value
    counts = [value("inference_schemas_total", {"model": "tales", "from": origin}) for origin in ("compiler", "cache")]
    assert (counts, len(tried)) == ([1, 1], 1)


@pytest.mark.slow
def test_the_time_to_the_first_token_includes_the_wait_for_the_schema(rounds: Rounds, monkeypatch) -> None:
    def first_s() -> float:
        value = rounds.handler.metrics._base.registry.get_sample_value
        return float(value("inference_time_to_first_token_seconds_sum", {"model": "tales"}))

    before, gate, process = first_s(), threading.Event(), rounds.handler.grammars._process
    monkeypatch.setattr(process, "ask", lambda schema, ask=process.ask: (gate.wait(), ask(schema))[1])
    rounds.round({"a": (bytearray(json.dumps(completion(BOAT)).encode()), {"url_path": COMPLETIONS})})
    begun = time.monotonic()
    rounds.round()
    waited = time.monotonic() - begun
    gate.set()
    while rounds.open:
        rounds.round()
    assert first_s() - before >= waited


def test_a_request_waits_for_its_schema_no_longer_than_its_answer_may_take(rounds: Rounds, monkeypatch) -> None:
    gate, process = threading.Event(), rounds.handler.grammars._process
    monkeypatch.setattr(process, "ask", lambda schema, ask=process.ask: (gate.wait(60), ask(schema))[1])
    body = rounds.ask(COMPLETIONS, completion(BOAT), **{"X-Request-Timeout-Ms": "100"})
    gate.set()
    assert (rounds.status[rounds.last], json.loads(body)["error"]["code"]) == (503, "busy")
    assert json.loads(body)["error"]["message"] == "its schema was not compiled in time"


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [{"step_ms": 20}], indirect=True)
def test_a_schema_that_takes_too_long_is_refused_while_streams_go_on(rounds: Rounds) -> None:
    stream = {"prompt": "abc", "max_tokens": 250, "temperature": 0, "stream": True}
    head = {"url_path": COMPLETIONS}
    rounds.begin({"stream": (bytearray(json.dumps(stream).encode()), head)})
    rounds.round({"hostile": (bytearray(json.dumps(completion(HOSTILE)).encode()), head)})
    before = rounds.bodies["stream"].count(b"data: ")
    while "hostile" in rounds.unanswered:
        rounds.round()
    assert rounds.bodies["stream"].count(b"data: ") > before
    error = json.loads(rounds.bodies["hostile"])["error"]
    assert (rounds.status["hostile"], error["param"]) == (400, "response_format")
    assert "takes more than 1 s" in error["message"]
    rounds.open.clear()
    assert "choices" in json.loads(rounds.ask(COMPLETIONS, completion(BOAT)))


@pytest.mark.slow
def test_a_client_that_leaves_before_its_schema_is_compiled_is_forgotten(rounds: Rounds) -> None:
    raw = bytearray(json.dumps(completion(HOSTILE)).encode())
    rounds.round({"hostile": (raw, {"url_path": COMPLETIONS})})
    rounds.round(left=["hostile"])
    assert rounds.handler._open == {}


@pytest.mark.slow
def test_a_server_that_stops_does_not_wait_for_a_schema(rounds: Rounds) -> None:
    raw = bytearray(json.dumps(completion(HOSTILE)).encode())
    rounds.round({"hostile": (raw, {"url_path": COMPLETIONS})})
    (rounds.directory / "closing").touch()
    rounds.round()
    assert (rounds.status["hostile"], rounds.open) == (503, [])


@pytest.mark.slow
def test_a_schema_that_takes_too_much_memory_is_refused(grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="too much memory"):
        grammars.begin(grammars.compile(json.dumps(LARGE), lambda: None))


@pytest.mark.slow
def test_a_schema_is_not_refused_because_the_process_that_tries_schemas_was_killed(grammars: Grammars) -> None:
    grammars.begin(grammars.compile('{"const": 1}', lambda: None))
    trying = grammars._process
    assert trying._process is not None
    trying._process.kill()
    trying._process.wait()
    grammars.begin(grammars.compile('{"const": 2}', lambda: None))
    trying.close()
    command, trying._command = trying._command, ["none"]
    with pytest.raises(OSError, match="No such file"):
        grammars.begin(grammars.compile('{"const": 3}', lambda: None))
    trying._command = command
    grammars.begin(grammars.compile('{"const": 3}', lambda: None))


REFUSED: dict[str, object] = {
    "not an object": "json",
    "an unknown type": {"type": "yaml"},
    "an unknown key": {"type": "json_object", "schema": {}},
    "no schema": {"type": "json_schema"},
    "a schema without a name": {"type": "json_schema", "json_schema": {"schema": {}}},
    "a name with spaces": {"type": "json_schema", "json_schema": {"name": "a boat", "schema": {}}},
    "a wrong `strict`": form({}, strict="yes"),
    "a schema that is a list": form([]),
    "options of the library": form({"x-guidance": {"whitespace_flexible": False}}),
    "a long schema": form({"enum": ["x" * 70_000]}),
    "a number that is not exact as a float": form({"anyOf": [{"enum": [{"id": [2**53 + 1]}]}]}),
    "a number of more than 64 bits": form({"properties": {"id": {"const": 1e20}}}),
    "a control character to be written": form({"enum": ["b", {"c": ["a\x01"]}]}),
    "one in a pattern": form({"items": {"pattern": r"^\\[a\]]\x1F$", "patternProperties": {}}}),
    "one in a name, in a property called `enum`": form({"properties": {"enum": {"patternProperties": {"a\0": {}}}}}),
    "properties that could all have one name": form({"items": {"required": ["a"], "minProperties": 3}}),
}


@pytest.mark.parametrize("wanted", REFUSED.values(), ids=REFUSED)
def test_a_wrong_response_format_is_refused(wanted: object) -> None:
    with pytest.raises(RequestRefused) as refused:
        read_schema(wanted)
    assert refused.value.param is not None
    assert refused.value.param.startswith("response_format")


def test_every_response_format_of_openai_becomes_a_schema() -> None:
    assert read_schema({"type": "text"}) is None
    assert json.loads(read_schema({"type": "json_object"}) or "") == {"type": "object"}
    assert json.loads(read_schema(form(BOAT, strict=True, description="a boat")) or "") == BOAT
    for schema in (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1, "enum": [2**53, -(2**53)]},
        {"required": ["a"], "minProperties": 2, "const": {"minProperties": 9}},
        {"properties": {"const": {"maximum": 1e20}}, "$defs": {"enum": {"description": "\a"}}},
        {"enum": ["\n\t\x7f"], "properties": {"\x01": {}}, "pattern": r"\A[^\]\x00-\x1f]\\x01\x41\n"},
    ):
        assert json.loads(read_schema(form(schema)) or "") == schema


NOT_ENFORCED: dict[str, Any] = {
    "an unsupported keyword": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "an unknown type": ({"type": "frog"}, "frog"),
    "another server's schema": ({"$ref": "http://localhost/schema"}, "localhost"),
    "a schema that refers to itself": ({"$ref": "#"}, "no answer can match it"),
    "a pattern that cannot be read": ({"type": "string", "pattern": "a(?=b)"}, "cannot be read: look-around"),
}


@pytest.mark.parametrize(("schema", "reason"), NOT_ENFORCED.values(), ids=NOT_ENFORCED)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(grammars: Grammars, schema, reason: str) -> None:
    with pytest.raises(GrammarRefused, match=reason):
        grammars.begin(grammars.compile(json.dumps(schema), lambda: None))


ENFORCED: dict[str, Any] = {
    "an object": BOAT,
    "list": {"type": "array", "items": {"type": "number", "minimum": -2, "maximum": 3}, "minItems": 2, "maxItems": 3},
    "a pattern": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"},
    "a choice": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    "a reference": {
        "$defs": {"a": {"enum": ["é", 2, None]}},
        "type": "array",
        "items": {"$ref": "#/$defs/a"},
        "maxItems": 4,
    },
}


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_answer_matches_its_schema_whatever_the_scores(grammars: Grammars, schema, temperature: float) -> None:
    dice = np.random.default_rng(5)
    for seed in range(5):
        grammar = grammars.begin(grammars.compile(json.dumps(schema), lambda: None))
        sampler = Sampler(Sampling(temperature=temperature, seed=seed, grammar=grammar))
        tokens: list[int] = []
        while not sampler.is_over and len(tokens) < 500:
            tokens.append(sampler.choose(dice.normal(size=256).astype(np.float32))[0])
        assert sampler.is_over
        jsonschema.validate(json.loads(grammars._tokenizer.decode_str(tokens)), schema)


def test_no_property_can_have_the_name_of_another_one_by_an_escape(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}}
    grammar = grammars.begin(grammars.compile(json.dumps(schema), lambda: None))
    for letter in '{"\\':
        assert grammar.allowed()[ord(letter) - ord("!")]
        grammar.take(ord(letter) - ord("!"))
    assert {chr(token + ord("!")) for token in np.flatnonzero(grammar.allowed())} == set('"\\bfnrt')


def test_a_model_without_an_end_token_writes_every_token(grammars: Grammars) -> None:
    # The library takes the first token as an end: here the letter `!`.
    grammar = grammars.begin(grammars.compile('{"const": "a!!"}', lambda: None))
    sampler, tokens = Sampler(Sampling(temperature=0, grammar=grammar)), list[int]()
    while not sampler.is_over:
        tokens.append(sampler.choose(np.zeros(256, np.float32))[0])
    assert grammars._tokenizer.decode_str(tokens) == '"a!!"'


def test_an_end_token_that_is_also_text_ends_no_incomplete_answer(tmp_path) -> None:
    grammars = Grammars(write_tokenizer(tmp_path) / "tokenizer.json", (ord("&") - ord("!"),))
    grammar = grammars.begin(grammars.compile('{"type": "string", "pattern": "^a&*$"}', lambda: None))
    (end,) = grammars._tokenizer.eos_tokens
    sampler, tokens = Sampler(Sampling(temperature=0, grammar=grammar)), list[int]()
    for favoured in (*('"a&"' * 2), '"'):
        scores = np.zeros(256, np.float32)
        scores[ord(favoured) - ord("!")] = 1
        tokens.append(sampler.choose(scores)[0])
        if sampler.is_over:
            break
    grammars.close()
    assert (grammars._tokenizer.decode_str(tokens), end in tokens) == ('"a"', False)


class Slow:
    """A grammar that is not ready before `known` is set."""

    def __init__(self) -> None:
        self.known = threading.Event()

    def is_ready(self, patience_s: float = 0) -> bool:
        return self.known.wait(patience_s)

    def allowed(self) -> Any:
        return np.array([False] * 9 + [True])

    def take(self, token: int) -> bool:
        return True


def test_other_sequences_go_on_while_a_grammar_is_not_ready() -> None:
    engine, grammar = FakeEngine(Slots(2, context=50, prefill_chunk=4), step_s=0), Slow()
    engine.add("slow", [1, 2, 3], Sampling(grammar=grammar))
    engine.add("other", [5], Sampling())
    written = [(token.sequence, token.token) for _ in range(8) for token in engine.step()]
    assert {sequence for sequence, _ in written} == {"other"}
    assert len(written) >= 6
    grammar.known.set()
    later = [token for _ in range(2) for token in engine.step() if token.sequence == "slow"]
    assert (later[0].token, later[0].is_last) == (9, True)


def test_a_grammar_that_fails_ends_only_its_own_answer() -> None:
    class Failing(Slow):
        def allowed(self) -> Any:
            raise RuntimeError("too much to search")

    engine, grammar = FakeEngine(Slots(2, context=50, prefill_chunk=4), step_s=0), Failing()
    grammar.known.set()
    engine.add("failing", [1], Sampling(grammar=grammar))
    engine.add("other", [5], Sampling())
    tokens = [token for _ in range(3) for token in engine.step()]
    assert NoToken("failing") in tokens
    assert any(token.sequence == "other" for token in tokens)


def test_an_engine_that_makes_its_own_grammar_gets_the_limit_on_spaces(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    engine, add = rounds.handler.loop._engine, rounds.handler.loop._engine.add
    monkeypatch.setattr(engine, "add", lambda *asked: (given.append(asked[2].schema), add(*asked)))
    rounds.ask(COMPLETIONS, completion(BOAT))
    # As vLLM makes the grammar.
    grammar = LLMatcher.grammar_from_json_schema(given[0], defaults={"whitespace_flexible": True})
    tokenizer = read_tokenizer(str(rounds.directory / "model" / "tokenizer.json"), [])
    for spaces, is_taken in ((12, True), (13, False)):
        matcher = LLMatcher(tokenizer, grammar, log_level=0)
        assert matcher.consume_tokens(tokenizer.tokenize_str("{" + " " * spaces + '"sails"')) is is_taken
