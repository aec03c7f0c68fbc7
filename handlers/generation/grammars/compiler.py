"""Compiles each schema once: a process with a limit on its time tries it first, and the grammar is remembered for the
next request with the same schema."""

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

from marina.handlers.generation.engine import Grammar
from marina.handlers.generation.grammars import trial
from marina.handlers.generation.grammars.matching import MatcherGrammar
from marina.handlers.generation.scheduler import Busy

# How many schemas are remembered, compiled or refused: those that were used last.
_MAX_KNOWN = 64
# How many schemas may wait to be compiled; a further one is refused, since each may take as long as a schema may.
_MAX_WAITING = 16
# How many threads search for the tokens that may come next in each answer.
_SEARCH_THREADS = 4
# The kernel ends the process at its time limit; this is only for one that hangs without using the processor.
_SILENCE_S = 60


class GrammarRefused(Exception):
    """This schema cannot be enforced; the message says why."""


@dataclass
class PendingGrammar:
    """A grammar that is being compiled; `is_known` if its schema was asked for before."""

    matcher: Future[LLMatcher]
    is_known: bool

    @property
    def is_ready(self) -> bool:
        return self.matcher.done()


class TrialProcess:
    """The process that tries schemas (`trial.py`). It starts with the first one, and again if it has ended."""

    def __init__(self, tokenizer: Path, ends: Sequence[int]) -> None:
        # `-P`: the folder of the file is not on the path of its imports.
        self._command = [sys.executable, "-P", trial.__file__, str(tokenizer), json.dumps(list(ends))]
        self._process: subprocess.Popen[str] | None = None

    def check(self, schema: str) -> None:
        """Raises GrammarRefused if the schema cannot be compiled, or takes too much; OSError if the process fails."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(schema) + "\n")
            process.stdin.flush()
            has_answered = select.select([process.stdout], [], [], _SILENCE_S)[0]
            line = process.stdout.readline() if has_answered else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            raise OSError("the process that tries schemas has ended")
        if reason := json.loads(line):
            raise GrammarRefused(reason)

    def close(self) -> None:
        if process := self._process:
            self._process = None
            process.kill()
            process.communicate()


class Grammars:
    """The grammars of one tokenizer; `ends` are its end tokens. Used by one thread."""

    def __init__(self, tokenizer: Path, ends: Sequence[int]) -> None:
        self._tokenizer: LLTokenizer | None = None
        try:
            self._tokenizer = trial.read_tokenizer(str(tokenizer), list(ends))
        except ValueError as err:
            # Without grammars everything but `response_format` works, so this is not an error yet.
            self._unsupported = trial.main_line(str(err))
        self._may_end = bool(ends)
        self._trial_process = TrialProcess(tokenizer, ends)
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
                    raise Busy(f"{waiting} schemas wait to be compiled", waiting * trial.LONGEST_S)
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
        self._trial_process.close()

    def _compile(self, schema: str) -> LLMatcher:
        if self._tokenizer is None:
            raise GrammarRefused(f"no grammar can be made for this model's tokenizer: {self._unsupported}")
        try:
            self._trial_process.check(schema)
            return trial.compile_schema(self._tokenizer, schema)
        except ValueError as err:
            raise GrammarRefused(str(err)) from err
        except OSError:
            # The process could not run, which says nothing about the schema: the next request tries again.
            with self._lock:
                self._known.pop(schema, None)
            raise
