"""The slots of an engine, and what its next step computes: a token for whoever has read their prompt, and so many
tokens of prompts. A long prompt is read in pieces between the steps of the others, so that nobody's stream stalls, and
short ones are read together."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from handlers.generation.engine import NoToken, Sampling, Token, Usage
from handlers.generation.engines.guessing import Guesser, worth
from handlers.generation.engines.sampling import Sampler

logger = logging.getLogger(__name__)

Scores = TypeVar("Scores")

# Tokens that a prompt has to have in common with a slot; every chat begins with some.
LEAST_REUSED = 16
# A step waits so long for what may come next in an answer of a set form; then the others go on without it.
_PATIENCE_S = 0.002
# What it waits for where there is nobody else.
_IDLE_S = 0.02
# Of one text, in a step.
_MOST_GUESSES = 11


@dataclass
class Slot:
    """One sequence in an engine: its first `prompt` tokens were given, and `cached` of all have been computed."""

    sequence: str
    index: int
    tokens: list[int]
    sampler: Sampler
    cached: int = 0
    guesser: Guesser = field(default_factory=Guesser)
    prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)

    def append(self, token: int) -> None:
        """The token that the computed ones gave; it is itself still to be computed."""
        self.cached = len(self.tokens)
        self.tokens.append(token)

    @property
    def reads(self) -> bool:
        """More than its newest token is still to be computed: it is in its prompt."""
        return len(self.tokens) - self.cached > 1


class Work(NamedTuple):
    """Tokens of a slot that are computed in a step, by their places in its text, and guesses of what follows them."""

    slot: Slot
    piece: range
    guesses: Sequence[int] = ()

    @property
    def ends(self) -> bool:
        """Whether it gives the slot a token."""
        return self.piece.stop == len(self.slot.tokens)


class Reuse(NamedTuple):
    """So many tokens at the beginning of a slot that another slot begins with."""

    source: int
    place: int
    tokens: int


class Slots:
    """So many sequences of at most `context` tokens each."""

    def __init__(self, count: int, *, context: int, prefill_chunk: int) -> None:
        self.context, self._chunk = context, prefill_chunk
        # Who was left first is taken first, so that what was computed last can be found again.
        self._free = list(range(count))
        self._count = count
        # In the order in which they were added, which is the order their prompts are read in.
        self._held: dict[str, Slot] = {}
        # What is in the slots that nobody holds.
        self._left: dict[int, list[int]] = {}
        self._reused = 0
        # What a further row takes of what the first takes; unknown where nothing is to be guessed.
        self.row_cost: float | None = None

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling, *, reuse: bool = False) -> Reuse | None:
        """Gives it a slot; with `reuse`, what of its prompt is in a slot already, which counts as computed."""
        if not prompt or len(prompt) > self.context:
            raise ValueError(f"a prompt of {len(prompt)} tokens, allowed: 1 to {self.context}")
        # What may be refused comes before anything is taken.
        sampler = Sampler(sampling)
        tokens = list(prompt)
        source, count = self._likest(tokens) if reuse else (0, 0)
        # A text that goes on stays where it is; of another that only begins alike, the beginning is copied.
        goes_on = source in self._free and count > 0 and count >= len(self._left.get(source, [])) - 1
        place = source if goes_on else self._free[0]
        self._free.remove(place)
        self._left.pop(place, None)
        self._held[sequence] = Slot(sequence, place, tokens, sampler, cached=count)
        self._reused += count
        return Reuse(source, place, count) if count else None

    def _likest(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The slot that begins most as the prompt does, and for how many tokens: 0 where it is not worth it. The last
        token is computed in any case, for what comes after it."""
        contents = self._left | {slot.index: slot.tokens[: slot.cached] for slot in self._held.values()}
        alike = {index: _alike(content, prompt[:-1]) for index, content in contents.items()}
        best = max(alike, key=lambda index: alike[index], default=0)
        return (best, alike[best]) if alike.get(best, 0) >= LEAST_REUSED else (0, 0)

    def cancel(self, sequence: str) -> None:
        """Frees the slot; a sequence that is not held is one that ended already."""
        slot = self._held.pop(sequence, None)
        if slot is not None:
            self._free.append(slot.index)
            self._left[slot.index] = slot.tokens[: slot.cached]

    def work(self) -> list[Work]:
        """What a step computes: who has one token to compute, in the order of their places, then as many tokens of the
        next prompts as a step may read."""
        held = sorted(self._held.values(), key=lambda slot: slot.index)
        held = [slot for slot in held if not slot.reads and not slot.sampler.is_late]
        work = [Work(slot, range(slot.cached, len(slot.tokens)), self._guesses(slot, len(held))) for slot in held]
        room = self._chunk
        for slot in self._held.values():
            if slot.reads and room:
                work.append(Work(slot, range(slot.cached, min(len(slot.tokens), slot.cached + room))))
                room -= len(work[-1].piece)
        return work

    def _guesses(self, slot: Slot, rows: int) -> Sequence[int]:
        """What is worth computing beside so many rows."""
        if self.row_cost is None or slot.sampler.has_grammar:
            return ()
        slot.guesser.heed(slot.tokens)
        room = min(_MOST_GUESSES, self.context - len(slot.tokens))
        count = worth(slot.guesser.right, most=room, row_cost=self.row_cost, rows=rows)
        return slot.guesser.guess(slot.tokens, count)

    def wait(self) -> None:
        """Where nothing is to be computed until it is known what may come next in somebody's answer."""
        if slot := next(iter(self._held.values()), None):
            slot.sampler.is_ready(_IDLE_S)

    def usage(self) -> Usage:
        cached = sum(slot.cached for slot in self._held.values())
        return Usage(len(self._held), self._count, cached, self._count * self.context, self._reused)


class SlotEngine(ABC, Generic[Scores]):
    """An engine by its slots: a step is a token for all who are past their prompt, then a piece of prompts."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._slots.add(sequence, prompt, sampling)

    def step(self) -> list[Token | NoToken]:
        work = self._slots.work()
        tokens: list[Token | NoToken] = []
        if not work:
            self._slots.wait()
        for entry, scores in zip(work, self._compute(work) if work else (), strict=True):
            if not entry.ends:
                entry.slot.cached = entry.piece.stop
            elif entry.slot.sampler.is_ready(_PATIENCE_S):
                tokens += self._write(entry, scores)
            else:
                # Its scores are computed again when they are of use.
                entry.slot.cached = entry.piece.stop - 1
        return tokens

    def _write(self, work: Work, scores: Sequence[Scores]) -> Iterator[Token | NoToken]:
        """The next token, and after every guess that was right the one after it."""
        for row, guess in zip(scores, (*work.guesses, None), strict=True):
            token = self._try(work.slot, row)
            yield token
            if isinstance(token, NoToken) or token.token != guess:
                return

    def _try(self, slot: Slot, scores: Scores) -> Token | NoToken:
        try:
            return self._choose(slot, scores)
        except Exception:
            logger.exception("no token for %s", slot.sequence)
            return NoToken(slot.sequence)

    def cancel(self, sequence: str) -> None:
        self._slots.cancel(sequence)

    def usage(self) -> Usage:
        return self._slots.usage()

    def close(self) -> None:
        """Memory goes with the process."""

    @abstractmethod
    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[Scores]]:
        """What the next token of each is chosen by, and the one after each guess; of no use where a piece does not end
        its prompt."""

    @abstractmethod
    def _choose(self, slot: Slot, scores: Scores) -> Token:
        """The next token, which is now the slot's last."""


def _alike(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    length = min(len(left), len(right))
    return next((at for at in range(length) if left[at] != right[at]), length)
