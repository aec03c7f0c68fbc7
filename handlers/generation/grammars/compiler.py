"""Schemas, compiled once: tried by a process with a bound on its time, then kept for the next request with the same
schema."""

import json
import select
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from handlers.generation.engine import Grammar
from handlers.generation.grammars import trial
from handlers.generation.grammars.matching import Matching
from handlers.generation.scheduler import Busy

# Compiled or refused, those that were asked for last.
_MOST_KNOWN = 64
# A further one is told to come back: each may take as long as a schema may.
_MOST_WAITING = 16
# Of the processor, in threads: what each answer may have next.
_SEARCHING = 4
# A process that says nothing for so long, though the kernel ends it at its bound, never will.
_SILENCE_S = 60


class GrammarRefused(Exception):
    """No answer can be held to this schema; the message says why."""


@dataclass
class Compiling:
    """A schema on its way."""

    matcher: Future[LLMatcher]
    is_known: bool

    @property
    def is_ready(self) -> bool:
        return self.matcher.done()


class Trials:
    """The process that tries schemas; there from the first on, and again where a schema ended it."""

    def __init__(self, tokenizer: Path, ends: Sequence[int]) -> None:
        # `-P`: what lies beside the file is not what it imports.
        self._command = [sys.executable, "-P", trial.__file__, str(tokenizer), json.dumps(list(ends))]
        self._process: subprocess.Popen[str] | None = None

    def check(self, schema: str) -> None:
        """GrammarRefused where it cannot be compiled, or not in time."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(schema) + "\n")
            process.stdin.flush()
            has_said = select.select([process.stdout], [], [], _SILENCE_S)[0]
            line = process.stdout.readline() if has_said else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise GrammarRefused(f"it takes more than {trial.LONGEST_S:g} s, or too much memory, to be compiled")
        if reason := json.loads(line):
            raise GrammarRefused(reason)

    def close(self) -> None:
        if process := self._process:
            self._process = None
            process.kill()
            process.communicate()


class Grammars:
    """The grammars of one tokenizer; `ends` are the tokens after which an answer is over. Asked by one thread."""

    def __init__(self, tokenizer: Path, ends: Sequence[int]) -> None:
        self._tokenizer: LLTokenizer | None = None
        try:
            self._tokenizer = trial.read_tokenizer(str(tokenizer), list(ends))
        except ValueError as err:
            # Only answers of a set form need one that this library knows.
            self._unknown = trial.first_line(str(err))
        # Where the model has no token that ends an answer, the library takes some other for it.
        self._never = self._tokenizer.eos_tokens if self._tokenizer and not ends else ()
        self._trials = Trials(tokenizer, ends)
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._searching = ThreadPoolExecutor(_SEARCHING, "tokens")
        self._known: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, schema: str, when_ready: Callable[[], None]) -> Compiling:
        """Begins to, where it is not known; `when_ready` is called then. Busy where too many are on their way."""
        with self._lock:
            known = self._known.get(schema)
            if known is None:
                waiting = sum(not future.done() for future in self._known.values())
                if waiting >= _MOST_WAITING:
                    raise Busy(f"{waiting} schemas wait to be compiled", waiting * trial.LONGEST_S)
                self._known[schema] = self._compiler.submit(self._compile, schema)
            self._known.move_to_end(schema)
            future = self._known[schema]
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        # Outside of the lock: what is there already is told at once.
        future.add_done_callback(lambda _: when_ready())
        return Compiling(future, is_known=known is not None)

    def begin(self, compiled: Compiling) -> Grammar:
        """For one answer; GrammarRefused where the schema cannot be enforced."""
        return Matching(compiled.matcher.result().deep_copy(), self._searching, self._never)

    def close(self) -> None:
        self._compiler.shutdown(cancel_futures=True)
        self._searching.shutdown(cancel_futures=True)
        self._trials.close()

    def _compile(self, schema: str) -> LLMatcher:
        if self._tokenizer is None:
            raise GrammarRefused(f"the model's tokenizer is of a kind that no grammar can be made for: {self._unknown}")
        try:
            self._trials.check(schema)
            return trial.compile_schema(self._tokenizer, schema)
        except ValueError as err:
            raise GrammarRefused(str(err)) from err
        except OSError:
            # That this machine could not try it is nothing to remember.
            with self._lock:
                self._known.pop(schema, None)
            raise
