"""Which tokens may come next in one answer. What a step chooses from is looked for while the step is computed."""

from collections.abc import Collection
from concurrent.futures import Executor, wait
from typing import Any, TypeAlias

import numpy as np
from llguidance import LLMatcher

from handlers.generation.grammars.trial import first_line

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class GrammarFailed(Exception):
    """Nothing may come next, or what may is too much to search."""


class Matching:
    """The `Grammar` of one answer. `never` are tokens that it may not have, whatever its grammar says."""

    def __init__(self, matcher: LLMatcher, searching: Executor, never: Collection[int]) -> None:
        self._matcher, self._searching, self._never = matcher, searching, list(never)
        self._next = searching.submit(self._search)

    def is_ready(self, patience_s: float = 0) -> bool:
        """Whether it is known which tokens may come next."""
        wait([self._next], patience_s)
        return self._next.done()

    def allowed(self) -> Mask:
        """Of every token, whether it may come next."""
        return self._next.result()

    def take(self, token: int) -> bool:
        """The token comes next: whether the answer is complete with it."""
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
        mask[self._never] = False
        if not mask.any():
            raise GrammarFailed("no token may come next")
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFailed(first_line(self._matcher.get_error()))
