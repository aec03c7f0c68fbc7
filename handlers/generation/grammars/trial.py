"""From a JSON schema to what holds an answer to it; run as a process, it tries schemas, a line each.

A schema of forty bytes can take minutes, and nothing ends a thread: so a process tries each first, within a bound of
processor time that the kernel keeps. The process knows nothing else of ours, so that it starts in a moment."""

import json
import os
import random
import resource
import signal
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Of the processor, for one schema.
LONGEST_S = 1.0
# For everything that the process has, bytes.
_MOST_MEMORY = 2 << 30
# So many tokens of an answer are tried.
_STEPS = 24
# Between the parts of an answer; without a bound a model may write spaces until its answer has to end.
SPACE = r"[\x20\x0A\x0D\x09]{0,12}"
# What one token's search may cost, some milliseconds each: a step waits for nobody longer.
_LIMITS = LLParserLimits(step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=20_000)

_PATTERN = "regex parse error"
# What the library says, and what it means.
_UNCLEAR = dict.fromkeys(("NoExtension", "NoExtensionBias"), "nothing fits it")


def read_tokenizer(file: str, ends: list[int]) -> LLTokenizer:
    """As `tokenizers` saves it; raises ValueError where it is of an unknown kind."""
    with open(file, encoding="utf-8") as text:
        return LLTokenizer(text.read(), eos_token=ends or None)


def compile_schema(tokenizer: LLTokenizer, schema: str) -> LLMatcher:
    """Raises ValueError with the reason where an answer cannot be held to it."""
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": SPACE})
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if reason := matcher.get_error() or " ".join(matcher.get_grammar_warnings()):
        raise ValueError(first_line(reason))
    return matcher


def first_line(reason: str) -> str:
    """The rest says how the compiler got there, but what is wrong with a pattern comes last."""
    lines = reason.strip().splitlines() or ["no reason is known"]
    if lines[0] in _UNCLEAR:
        return _UNCLEAR[lines[0]]
    if lines[0].startswith(_PATTERN) and len(lines) > 1:
        return f"a pattern cannot be read: {lines[-1].removeprefix('error: ')}"[:200]
    return lines[0][:200]


def _reason(tokenizer: LLTokenizer, schema: str) -> str:
    """Why it is refused; nothing where the beginning of an answer could be written."""
    try:
        matcher = compile_schema(tokenizer, schema)
    except ValueError as err:
        return str(err)
    dice = random.Random(0)
    for _ in range(_STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return first_line(matcher.get_error())
        allowed = [token for token in range(tokenizer.vocab_size) if mask[token // 8] >> token % 8 & 1]
        if matcher.is_stopped() or not allowed:
            return "" if matcher.is_accepting() else "nothing fits it"
        if not matcher.consume_token(dice.choice(allowed)):
            return first_line(matcher.get_error())
    return ""


def main(file: str, ends: str) -> None:
    """Answers each schema on its input by why it is refused; ends where one takes too long, or its input does."""
    os.nice(10)
    tokenizer = read_tokenizer(file, json.loads(ends))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    for schema in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        reason = _reason(tokenizer, json.loads(schema))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reason), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
