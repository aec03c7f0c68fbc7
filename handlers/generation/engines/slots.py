"""The slots of an engine, and what its next step computes: one piece of one prompt, and a token for whoever has read
theirs. A long prompt is read in pieces between the steps of the others, so that nobody's stream stalls."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from handlers.generation.engine import Sampling, Token, Usage
from handlers.generation.engines.sampling import Sampler

Scores = TypeVar("Scores")


@dataclass
class Slot:
    """One sequence in an engine: its first `prompt` tokens were given, and `cached` of all have been computed."""

    sequence: str
    index: int
    tokens: list[int]
    sampler: Sampler
    cached: int = 0
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
    """Tokens of a slot that are computed in a step, by their places in its text."""

    slot: Slot
    piece: range


class Slots:
    """So many sequences of at most `context` tokens each."""

    def __init__(self, count: int, *, context: int, prefill_chunk: int) -> None:
        self.context, self._chunk = context, prefill_chunk
        # The lowest is taken first: an engine computes the rows up to the highest that is held.
        self._free = list(range(count))
        self._count = count
        # In the order in which they were added, which is the order their prompts are read in.
        self._held: dict[str, Slot] = {}

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        if not prompt or len(prompt) > self.context:
            raise ValueError(f"a prompt of {len(prompt)} tokens, allowed: 1 to {self.context}")
        self._held[sequence] = Slot(sequence, heappop(self._free), list(prompt), Sampler(sampling))

    def cancel(self, sequence: str) -> None:
        """Frees the slot; a sequence that is not held is one that ended already."""
        slot = self._held.pop(sequence, None)
        if slot is not None:
            heappush(self._free, slot.index)

    def work(self) -> list[Work]:
        """What a step computes: who has one token to compute, in the order of their places, then a piece of the prompt
        that is read next."""
        held = sorted(self._held.values(), key=lambda slot: slot.index)
        work = [Work(slot, range(slot.cached, len(slot.tokens))) for slot in held if not slot.reads]
        if slot := next((slot for slot in self._held.values() if slot.reads), None):
            work.append(Work(slot, range(slot.cached, min(len(slot.tokens), slot.cached + self._chunk))))
        return work

    def usage(self) -> Usage:
        cached = sum(slot.cached for slot in self._held.values())
        return Usage(len(self._held), self._count, cached, self._count * self.context)


class SlotEngine(ABC, Generic[Scores]):
    """An engine by its slots: a step is a token for all who are past their prompt, then one piece of one prompt."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._slots.add(sequence, prompt, sampling)

    def step(self) -> list[Token]:
        work = self._slots.work()
        tokens = []
        for (slot, piece), scores in zip(work, self._compute(work) if work else (), strict=True):
            if piece.stop == len(slot.tokens):
                tokens.append(self._choose(slot, scores))
            else:
                slot.cached = piece.stop
        return tokens

    def cancel(self, sequence: str) -> None:
        self._slots.cancel(sequence)

    def usage(self) -> Usage:
        return self._slots.usage()

    def close(self) -> None:
        """Memory goes with the process."""

    @abstractmethod
    def _compute(self, work: Sequence[Work]) -> Sequence[Scores]:
        """What the next token of each is chosen by; whatever it is where the piece does not end a prompt."""

    @abstractmethod
    def _choose(self, slot: Slot, scores: Scores) -> Token:
        """The next token, which is now the slot's last."""
