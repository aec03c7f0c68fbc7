"""The slots of an engine, and what its next step computes: a token for every sequence whose prompt has been read, and
up to `prefill_chunk` tokens of prompts. So a long prompt is read in pieces and does not stall the other streams, and
short prompts are read together."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from marina.handlers.generation.engine import NoToken, Sampling, Token, Usage
from marina.handlers.generation.engines.guessing import Guesser, choose_guess_count
from marina.handlers.generation.engines.sampling import Sampler

logger = logging.getLogger(__name__)

Scores = TypeVar("Scores")

# How many tokens a prompt must have in common with a slot to be copied: every chat begins with a few common ones.
_LEAST_REUSED = 16
# How long a step waits for a grammar; then the other sequences go on without this one.
_PATIENCE_S = 0.002
# How long it waits if there are no other sequences.
_IDLE_S = 0.02
# For one sequence, in one step.
_MAX_GUESSES = 11


@dataclass
class Slot:
    """One sequence in an engine. `prompt_length` of its tokens are the prompt; the first `cached` were computed."""

    sequence: str
    index: int
    tokens: list[int]
    sampler: Sampler
    cached: int = 0
    guesser: Guesser = field(default_factory=Guesser)
    before: list[Token] = field(default_factory=list)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    def append(self, token: int) -> None:
        """Adds the token that was chosen after the computed ones; it is not computed yet itself."""
        self.cached = len(self.tokens)
        self.tokens.append(token)

    @property
    def is_reading_prompt(self) -> bool:
        """Whether a part of the prompt was not computed yet."""
        return self.cached < self.prompt_length

    @property
    def is_reading(self) -> bool:
        """Whether more than its newest token is still to be computed: then it is in its prompt."""
        return len(self.tokens) - self.cached > 1


class Work(NamedTuple):
    """What a step computes for a slot: the tokens of its text at the places `piece`, and guesses of what follows."""

    slot: Slot
    piece: range
    guesses: Sequence[int] = ()

    @property
    def gives_token(self) -> bool:
        """Whether a token follows: the piece reaches the end of the text."""
        return self.piece.stop == len(self.slot.tokens)


class Reuse(NamedTuple):
    """The first `tokens` tokens of slot `source`, with which the text of slot `target` begins, too."""

    source: int
    target: int
    tokens: int


class Slots:
    """Up to `count` sequences of at most `context` tokens each."""

    def __init__(self, count: int, *, context: int, prefill_chunk: int) -> None:
        self.context, self._chunk = context, prefill_chunk
        # The slot that was freed first is taken first, so that the texts computed last are kept longest.
        self._free = list(range(count))
        self._count = count
        # In the order in which they were added; their prompts are read in that order.
        self._held: dict[str, Slot] = {}
        # The computed tokens that free slots still have.
        self._left: dict[int, list[int]] = {}
        self._reused = 0
        # The cost of a further row in a step, as a share of the cost of the first; None if nothing is guessed.
        self.row_cost: float | None = None

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling, *, reuse: bool = False) -> Reuse | None:
        """Gives a sequence a slot. With `reuse`, returns which part of its prompt a slot has already: it counts as
        computed, and the caller has to copy it."""
        if not prompt or len(prompt) > self.context:
            raise ValueError(f"a prompt of {len(prompt)} tokens, allowed: 1 to {self.context}")
        # This may raise, so it comes before a slot is taken.
        sampler = Sampler(sampling, prompt)
        tokens = list(prompt)
        source, count = self._longest_match(tokens) if reuse and not sampling.prompt_logprobs else (0, 0)
        # A text that is continued stays in its slot; if another text only begins alike, its beginning is copied.
        continues = source in self._free and count > 0 and count >= len(self._left.get(source, [])) - 1
        target = source if continues else self._free[0]
        self._free.remove(target)
        self._left.pop(target, None)
        self._held[sequence] = Slot(sequence, target, tokens, sampler, cached=count)
        self._reused += count
        return Reuse(source, target, count) if count else None

    def _longest_match(self, prompt: Sequence[int]) -> tuple[int, int]:
        """The slot whose text has the most first tokens in common with the prompt, and how many; 0 if too few. The last
        token of the prompt never counts: it is computed for the scores after it."""
        contents = self._left | {slot.index: slot.tokens[: slot.cached] for slot in self._held.values()}
        lengths = {index: _common_length(content, prompt[:-1]) for index, content in contents.items()}
        best, length = max(lengths.items(), key=lambda item: item[1], default=(0, 0))
        return (best, length) if length >= _LEAST_REUSED else (0, 0)

    def cancel(self, sequence: str) -> None:
        """Frees the sequence's slot. Does nothing if it has ended already."""
        slot = self._held.pop(sequence, None)
        if slot is not None:
            self._free.append(slot.index)
            self._left[slot.index] = slot.tokens[: slot.cached]

    def work(self) -> list[Work]:
        """What the next step computes: first the sequences that have one token to compute, by their slots, then as many
        tokens of prompts as a step may read."""
        held = sorted(self._held.values(), key=lambda slot: slot.index)
        held = [slot for slot in held if not slot.is_reading and not slot.sampler.is_late]
        work = [Work(slot, range(slot.cached, len(slot.tokens)), self._guesses(slot, len(held))) for slot in held]
        room = self._chunk
        for slot in self._held.values():
            if slot.is_reading and room:
                work.append(Work(slot, range(slot.cached, min(len(slot.tokens), slot.cached + room))))
                room -= len(work[-1].piece)
        return work

    def _guesses(self, slot: Slot, rows: int) -> Sequence[int]:
        """The guesses for a slot that are worth computing, besides `rows` rows."""
        if self.row_cost is None or slot.sampler.has_grammar or slot.sampler.judges_prompt:
            return ()
        slot.guesser.read(slot.tokens)
        room = min(_MAX_GUESSES, self.context - len(slot.tokens))
        count = choose_guess_count(slot.guesser.right, limit=room, row_cost=self.row_cost, rows=rows)
        return slot.guesser.guess(slot.tokens, count)

    def wait(self) -> None:
        """Waits a moment for a grammar, if there is nothing to compute before it is ready."""
        if slot := next(iter(self._held.values()), None):
            slot.sampler.is_ready(_IDLE_S)

    def usage(self) -> Usage:
        cached = sum(slot.cached for slot in self._held.values())
        return Usage(len(self._held), self._count, cached, self._count * self.context, self._reused)


class SlotEngine(ABC, Generic[Scores]):
    """An engine that computes what its slots need; subclasses say how scores are computed and tokens are chosen."""

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
            if entry.slot.sampler.judges_prompt and entry.slot.is_reading_prompt:
                self._judge(entry, scores)
                scores = scores[-1:]
            if not entry.gives_token:
                entry.slot.cached = entry.piece.stop
            elif entry.slot.sampler.is_ready(_PATIENCE_S):
                tokens += self._write(entry, scores)
            else:
                # The grammar is late: these scores are computed again when it is ready.
                entry.slot.cached = entry.piece.stop - 1
        return tokens

    def _write(self, work: Work, scores: Sequence[Scores]) -> Iterator[Token | NoToken]:
        """Yields the next token, and after each guess that was right the token after it."""
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
        """Does nothing: the memory is freed with the process."""

    def _judge(self, entry: Work, scores: Sequence[Scores]) -> None:
        """Notes how likely each of the prompt's tokens was that follow those of a piece."""

    @abstractmethod
    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[Scores]]:
        """For each entry the scores by which its next token is chosen, and those after each of its guesses. They are
        not used if the entry gives no token. If the prompt is judged, those after each token of the piece."""

    @abstractmethod
    def _choose(self, slot: Slot, scores: Scores) -> Token:
        """Chooses the next token and appends it to the slot."""


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens are the same at the beginning of both texts."""
    length = min(len(left), len(right))
    return next((at for at in range(length) if left[at] != right[at]), length)
