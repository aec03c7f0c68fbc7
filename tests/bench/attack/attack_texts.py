"""Requests to models of text whose fields are of the wrong kind, out of range, too large or too deep."""

import json
import random
from collections.abc import Iterator
from typing import Any

from hostile_texts import CHAT, COMPLETIONS, endless_texts, refused_texts

_SAID = {"role": "user", "content": "Once upon a time"}
_BASES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once upon a time", "max_tokens": 3},
    CHAT: {"messages": [_SAID], "max_tokens": 3},
}
_FIELDS_TEXT = (
    "model prompt messages max_tokens max_completion_tokens temperature top_p top_k seed stop stream stream_options n "
    "best_of logprobs top_logprobs logit_bias presence_penalty frequency_penalty response_format tools tool_choice "
    "user metadata echo suffix ignore_eos repetition_penalty __class__"
)
_FIELDS = _FIELDS_TEXT.split()
# Written into the JSON as they are.
_RAW = ("NaN", "-Infinity", "1e400", "-1e-400", "1" * 5000, '"\\ud800"', '"\\u0000"', "[" * 2000 + "]" * 2000)
_VALUES: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**63), -(2**63) - 1, 1.5, -0.0, 5e-324, 1e308),
    *("", "x" * 30_000, "\N{ZERO WIDTH JOINER}" * 9000, [], [[]], [[-1]], [2**70], ["a"] * 2000, [None], [{}], {}),
    *(
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "text", "text": {}}]}],
        {"type": {}},
        {"include_usage": 1},
    ),
    *(
        [{"role": "user", "content": "{{ 7 * 7 }}{% for x in range(10**9) %}"}],
        [{"role": "user", "content": "a"}] * 3000,
    ),
)
_ENCODERS = ("text", "instances", "inputs", "parameters", "data")


def text_bodies(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Paths below a language model's, and bodies: what nobody can mean, every value in every field, then two at a
    time."""
    chance = random.Random(seed)
    yield from refused_texts().values()
    yield from endless_texts()
    yield from ((path, body) for path, base in _BASES.items() for body in _with_each(base, _FIELDS))
    for _ in range(count):
        path = chance.choice(list(_BASES))
        changes = {name: chance.choice(_VALUES) for name in chance.sample(_FIELDS, 2)}
        yield path, json.dumps(_BASES[path] | changes).encode()


def encoder_bodies() -> Iterator[bytes]:
    """Bodies for a model that reads text."""
    yield from _with_each({"text": "Where is the harbour?"}, _ENCODERS)


def streamed(tokens: int) -> bytes:
    """The body of a long answer in pieces."""
    return json.dumps(
        _BASES[COMPLETIONS] | {"max_tokens": tokens, "stream": True, "temperature": 1, "seed": -1}
    ).encode()


def _with_each(base: dict[str, Any], fields: tuple[str, ...] | list[str]) -> Iterator[bytes]:
    for name in fields:
        yield from (json.dumps(base | {name: value}).encode() for value in _VALUES)
        yield from (json.dumps(base | {name: "@"}).replace('"@"', raw).encode() for raw in _RAW)
