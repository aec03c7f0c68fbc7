"""Which tokens may come next in one answer. They are searched for while the engine computes its step."""

from collections.abc import Collection
from concurrent.futures import Executor, wait
from typing import Any, TypeAlias

import numpy as np
from llguidance import LLMatcher

from marina.handlers.generation.grammars.trial import main_line

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class GrammarFailed(Exception):
    """No token may come next, or the search takes too much."""


class MatcherGrammar:
    """The `Grammar` of one answer.

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
            raise GrammarFailed(main_line(self._matcher.get_error()))
