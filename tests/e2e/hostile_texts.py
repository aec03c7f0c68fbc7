"""Requests of OpenAI's forms that nobody can mean: their paths below a model's, and bodies."""

import json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_SAID = [{"role": "user", "content": "Once upon a time"}]
_DEEP = 100_000
_LARGE = {"type": "object", "properties": {f"a{number}": {"type": "string"} for number in range(5000)}}
_SCHEMAS: dict[str, dict[str, object]] = {
    "a schema that is itself": {"$ref": "#"},
    "a schema of another server": {"$ref": "http://127.0.0.1:9/schema"},
    "a schema that nothing fits": {"enum": []},
    "a schema of an empty range": {"type": "integer", "minimum": 5, "maximum": 1},
    "a schema of a huge number": {"type": "integer", "multipleOf": 999_983},
    "a schema that is too large": _LARGE,
    "a schema of an unknown word": {"type": "object", "uniqueItems": True},
}
_ENDLESS: tuple[dict[str, object], ...] = (
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "string", "pattern": "(a{1000}){1000}"},
)
_FIELDS: dict[str, dict[str, object]] = {
    "stops without an end": {"stop": ["a"] * 1_000_000},
    "a long stop": {"stop": "a" * 1_000_000},
    "a bias": {"logit_bias": {"1": 101}},
    "a negative length": {"max_tokens": -1},
    "no length": {"max_tokens": 0},
    "half a token": {"max_tokens": 1.5},
    "a length in words": {"max_tokens": "8"},
    "no answers": {"n": 0},
    "a hot temperature": {"temperature": 1e308},
    "a share of the tokens above all": {"top_p": 1.0001},
    "a seed beyond 64 bits": {"seed": 2**64},
    "an empty prompt": {"prompt": ""},
    "no prompt": {"prompt": None},
    "a prompt of two kinds": {"prompt": ["Once", [1]]},
    "prompts in prompts": {"prompt": [["Once"], ["upon"]]},
    "a token that no tokenizer has": {"prompt": [1, 512]},
    "a token beyond every tokenizer": {"prompt": [2**31, 2**70]},
    "a negative token": {"prompt": [-1]},
    "tokens and texts": {"prompt": [1, "a"]},
    "a prompt beyond the context": {"prompt": "Once " * 100_000},
    "an unknown parameter": {"guided_json": {}},
    "another model": {"model": "../tales"},
}
_CHATS: dict[str, dict[str, object]] = {
    "nobody speaks": {"messages": []},
    "a role of its own": {"messages": [{"role": "root", "content": "Once"}]},
    "a role that is no text": {"messages": [{"role": {}, "content": "Once"}]},
    "no message": {"messages": [None]},
    "a message without a text": {"messages": [{"role": "user"}]},
    "the answer of a tool": {"messages": [*_SAID, {"role": "tool", "tool_call_id": 1, "content": "x"}]},
    "a call of a tool": {"messages": [*_SAID, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
    "a tool": {"messages": _SAID, "tools": [{"type": "function", "function": {"name": "f"}}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///"}}]}]},
    "what the template refuses": {"messages": [{"role": "user", "content": "{{ 7 * 7 }}"}]},
    "a thousand and one": {"messages": _SAID * 1001},
}
_RAW: dict[str, bytes] = {
    "no number": b'{"prompt": "Once", "temperature": NaN}',
    "a number without an end": b'{"prompt": "Once", "temperature": -Infinity}',
    "a number beyond numbers": b'{"prompt": "Once", "top_p": 1e400}',
    "a number of a megabyte": b'{"prompt": "Once", "seed": ' + b"9" * 1_000_000 + b"}",
    "half a character": b'{"prompt": "Once \\ud800"}',
    "bytes of no text": b'{"prompt": "Once \xff\xfe"}',
    "a list without a bottom": b'{"prompt": ' + b"[" * _DEEP + b"]" * _DEEP + b"}",
    "an object without a bottom": b'{"metadata": ' + b'{"a":' * _DEEP + b"1" + b"}" * _DEEP + b', "prompt": "Once"}',
    "half an object": b'{"prompt": "Once"',
    "nothing": b"",
    "a list": b"[]",
}


def refused_texts() -> dict[str, tuple[str, bytes]]:
    """Each has to be refused."""
    base: dict[str, object] = {"prompt": "Once upon a time", "max_tokens": 3}
    bodies = {name: (COMPLETIONS, _written(base | fields)) for name, fields in _FIELDS.items()}
    bodies |= {name: (COMPLETIONS, _written(base | _form_of(schema))) for name, schema in _SCHEMAS.items()}
    bodies |= {name: (CHAT, _written({"max_tokens": 3} | fields)) for name, fields in _CHATS.items()}
    return bodies | {name: (COMPLETIONS, body) for name, body in _RAW.items()}


def endless_texts() -> list[tuple[str, bytes]]:
    """Their answers have no end, so each has to be refused, or to end where it may be no longer."""
    return [(COMPLETIONS, _written({"prompt": "Once", "max_tokens": 40} | _form_of(schema))) for schema in _ENDLESS]


def _form_of(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def _written(body: object) -> bytes:
    return json.dumps(body).encode()
