"""Answers that match a JSON schema: which tokens may come next.

A schema of forty bytes can take minutes and gigabytes to compile. So each is tried first in a process of its own, this
module run as a program, and the grammar is remembered for the next request with the same schema."""

import json
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from marina.handlers.generation.engine import Grammar
from marina.handlers.generation.limited import LONGEST_S, LimitedProcess, TookTooMuch, limited, serve
from marina.handlers.generation.response_format import OPTIONS
from marina.handlers.generation.scheduler import Busy

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

# How many schemas are remembered, compiled or refused: those that were used last.
_MAX_KNOWN = 64
# How many schemas may wait to be compiled; a further one is refused, since each may take as long as a schema may.
_MAX_WAITING = 16
# How many threads search for the tokens that may come next in each answer.
_SEARCH_THREADS = 4
# Memory for one schema, in bytes. The worker needs as much for every schema that is remembered or in use; one of 1,500
# properties needs 11 MB.
_MEMORY = 16 << 20
# How many tokens of an answer are tried.
_STEPS = 24
# Limits on the search for one token's successors, some milliseconds each, so that no step waits longer.
_LIMITS = LLParserLimits(step_lexer_fuel=100_000, step_max_items=50_000, max_lexer_states=20_000)
_PATTERN = "regex parse error"
# Messages of the library that name an internal state, with what it means.
_UNCLEAR = dict.fromkeys(("NoExtension", "NoExtensionBias"), "no answer can match it")


class GrammarRefused(Exception):
    """This schema cannot be enforced; the message says why."""


class GrammarFailed(Exception):
    """No token may come next, or the search takes too much."""


@dataclass
class PendingGrammar:
    """A grammar that is being compiled; `is_known` if its schema was asked for before."""

    matcher: Future[LLMatcher]
    is_known: bool

    @property
    def is_ready(self) -> bool:
        return self.matcher.done()


class Grammars:
    """The grammars of one tokenizer; `ends` are its end tokens. Used by one thread."""

    def __init__(self, tokenizer: Path, ends: Sequence[int]) -> None:
        self._tokenizer: LLTokenizer | None = None
        try:
            self._tokenizer = read_tokenizer(str(tokenizer), list(ends))
        except ValueError as err:
            # Without grammars everything but `response_format` works, so this is not an error yet.
            self._unsupported = _main_line(str(err))
        self._may_end = bool(ends)
        self._process = LimitedProcess(__name__, str(tokenizer), json.dumps(list(ends)))
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._searching = ThreadPoolExecutor(_SEARCH_THREADS, "tokens")
        self._known: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, schema: str, when_ready: Callable[[], None]) -> PendingGrammar:
        """Starts to compile a schema that is not known; calls `when_ready` when its grammar can be used. Raises Busy if
        too many schemas wait."""
        with self._lock:
            known = self._known.get(schema)
            if known is None:
                waiting = sum(not future.done() for future in self._known.values())
                if waiting >= _MAX_WAITING:
                    raise Busy(f"{waiting} schemas wait to be compiled", waiting * LONGEST_S)
                self._known[schema] = self._compiler.submit(self._compile, schema)
            self._known.move_to_end(schema)
            future = self._known[schema]
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        # Outside the lock, because this calls `when_ready` at once if the future is done.
        future.add_done_callback(lambda _: when_ready())
        return PendingGrammar(future, is_known=known is not None)

    def begin(self, compiled: PendingGrammar) -> Grammar:
        """A new grammar for one answer; raises GrammarRefused if the schema cannot be enforced."""
        ends = self._tokenizer.eos_tokens if self._tokenizer else ()
        matcher = compiled.matcher.result().deep_copy()
        return MatcherGrammar(matcher, self._searching, ends, may_end=self._may_end)

    def close(self) -> None:
        self._compiler.shutdown(cancel_futures=True)
        self._searching.shutdown(cancel_futures=True)
        self._process.close()

    def _compile(self, schema: str) -> LLMatcher:
        if self._tokenizer is None:
            raise GrammarRefused(f"no grammar can be made for this model's tokenizer: {self._unsupported}")
        try:
            if reason := self._process.ask(schema):
                raise GrammarRefused(reason)
            return _compile(self._tokenizer, schema)
        except TookTooMuch as err:
            text = f"it takes more than {LONGEST_S} s, or too much memory, to compile it"
            raise GrammarRefused(text) from err
        except ValueError as err:
            raise GrammarRefused(str(err)) from err
        except OSError:
            # The process could not run, which says nothing about the schema: the next request tries again.
            with self._lock:
                self._known.pop(schema, None)
            raise


class MatcherGrammar:
    """The `Grammar` of one answer. The tokens are searched for while the engine computes its step.

    To the library each of the tokens `ends` is both an end and its text. With `may_end` it only ends a complete answer;
    without, because the model has no end token and the library took some other one, it is only text."""

    def __init__(self, matcher: LLMatcher, searching: Executor, ends: Collection[int], *, may_end: bool) -> None:
        self._matcher, self._searching = matcher, searching
        self._ends, self._may_end = list(ends), may_end
        self._next = searching.submit(self._search)

    def is_ready(self, patience_s: float = 0) -> bool:
        wait([self._next], patience_s)
        return self._next.done()

    def allowed(self) -> Mask:
        return self._next.result()

    def take(self, token: int) -> bool:
        self._matcher.consume_token(token)
        self._check()
        if self._matcher.is_stopped():
            return True
        self._next = self._searching.submit(self._search)
        return False

    def _search(self) -> Mask:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, bitorder="little").astype(bool)
        if self._matcher.is_accepting() != self._may_end:
            mask[self._ends] = False
        if not mask.any():
            raise GrammarFailed("no token may come next")
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(_main_line(self._matcher.get_error()))


def read_tokenizer(file: str, ends: list[int]) -> LLTokenizer:
    """Reads a `tokenizer.json`; raises ValueError if the library does not support its kind."""
    with open(file, encoding="utf-8") as text:
        return LLTokenizer(text.read(), eos_token=ends or None)


def _compile(tokenizer: LLTokenizer, schema: str) -> LLMatcher:
    """Raises ValueError with the reason if the schema cannot be enforced, a JSON schema or a grammar of `dialects`."""
    is_json = schema.startswith("{")
    grammar = (
        LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS)
        if is_json
        else LLMatcher.grammar_from_lark(schema)
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if reason := matcher.get_error() or " ".join(matcher.get_grammar_warnings()):
        raise ValueError(_main_line(reason))
    return matcher


def _main_line(reason: str) -> str:
    """The line of an error message that says what is wrong: the first one, but for a pattern the last one."""
    lines = reason.strip().splitlines() or ["no reason given"]
    if lines[0] in _UNCLEAR:
        return _UNCLEAR[lines[0]]
    if lines[0].startswith(_PATTERN) and len(lines) > 1:
        return f"a pattern cannot be read: {lines[-1].removeprefix('error: ')}"[:200]
    return lines[0][:200]


def _why_refused(tokenizer: LLTokenizer, schema: str) -> str:
    """What the process does: why a schema is refused; empty if the beginning of an answer to it could be written."""
    with limited(_MEMORY):
        try:
            matcher = _compile(tokenizer, schema)
        except ValueError as err:
            return str(err)
        dice = random.Random(0)
        for _ in range(_STEPS):
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                return _main_line(matcher.get_error())
            allowed = [token for token in range(tokenizer.vocab_size) if mask[token // 8] >> token % 8 & 1]
            if matcher.is_stopped() or not allowed:
                return "" if matcher.is_accepting() else "no answer can match it"
            if not matcher.consume_token(dice.choice(allowed)):
                return _main_line(matcher.get_error())
        return ""


if __name__ == "__main__":
    serve(partial(_why_refused, read_tokenizer(sys.argv[1], json.loads(sys.argv[2]))), forgets=True)
