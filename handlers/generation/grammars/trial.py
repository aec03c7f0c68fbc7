"""Compiles a JSON schema to a grammar. Run as a process, it tries schemas: it reads one per line, and answers each with
the reason why it is refused, or an empty text.

A schema of forty bytes can take minutes and gigabytes to compile, and a thread cannot be ended. So a process tries each
schema first, and the kernel enforces limits on its processor time and memory. The module imports nothing else of ours,
so that the process starts quickly."""

import json
import os
import random
import resource
import sys
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Processor time for one schema, in whole seconds.
LONGEST_S = 1
# Memory for one schema, in bytes. The worker needs as much for every schema that is remembered or in use; one of 1,500
# properties needs 11 MB.
_MAX_BYTES = 16 << 20
_TOO_MUCH = f"it takes more than {LONGEST_S} s, or too much memory, to compile it"
# How many tokens of an answer are tried.
_STEPS = 24
OPTIONS: Any = {
    # The white space between the parts of an answer; without a limit a model may write spaces up to `max_tokens`.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,12}",
    # Without `\\u`, by which a property could have the name of another one, and a text could be no Unicode.
    "json_allowed_escapes": 'nrbtf\\"',
}
# Limits on the search for one token's successors, some milliseconds each, so that no step waits longer.
_LIMITS = LLParserLimits(step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=20_000)

_PATTERN = "regex parse error"
# Messages of the library that name an internal state, with what it means.
_UNCLEAR = dict.fromkeys(("NoExtension", "NoExtensionBias"), "no answer can match it")


def read_tokenizer(file: str, ends: list[int]) -> LLTokenizer:
    """Reads a `tokenizer.json`; raises ValueError if the library does not support its kind."""
    with open(file, encoding="utf-8") as text:
        return LLTokenizer(text.read(), eos_token=ends or None)


def compile_schema(tokenizer: LLTokenizer, schema: str) -> LLMatcher:
    """Raises ValueError with the reason if the schema cannot be enforced."""
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if reason := matcher.get_error() or " ".join(matcher.get_grammar_warnings()):
        raise ValueError(main_line(reason))
    return matcher


def main_line(reason: str) -> str:
    """The line of an error message that says what is wrong: the first one, but for a pattern the last one."""
    lines = reason.strip().splitlines() or ["no reason given"]
    if lines[0] in _UNCLEAR:
        return _UNCLEAR[lines[0]]
    if lines[0].startswith(_PATTERN) and len(lines) > 1:
        return f"a pattern cannot be read: {lines[-1].removeprefix('error: ')}"[:200]
    return lines[0][:200]


def _reason(tokenizer: LLTokenizer, schema: str) -> str:
    """Why a schema is refused; empty if the beginning of an answer to it could be written."""
    try:
        matcher = compile_schema(tokenizer, schema)
    except ValueError as err:
        return str(err)
    dice = random.Random(0)
    for _ in range(_STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return main_line(matcher.get_error())
        allowed = [token for token in range(tokenizer.vocab_size) if mask[token // 8] >> token % 8 & 1]
        if matcher.is_stopped() or not allowed:
            return "" if matcher.is_accepting() else "no answer can match it"
        if not matcher.consume_token(dice.choice(allowed)):
            return main_line(matcher.get_error())
    return ""


def main(file: str, ends: str) -> None:
    """Answers the schemas on standard input; ends with it. Each is tried in a process of its own, which the kernel ends
    if it takes too much."""
    os.nice(10)
    tokenizer = read_tokenizer(file, json.loads(ends))
    with open("/proc/self/statm", encoding="ascii") as pages:
        most = int(pages.read().split()[0]) * resource.getpagesize() + _MAX_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for schema in sys.stdin:
        child = os.fork()
        if child == 0:
            # The library would print a stack for every schema that takes too much memory.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
            print(json.dumps(_reason(tokenizer, json.loads(schema))), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps(_TOO_MUCH), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
