"""The slots of an engine, and what its next step computes: one piece of one prompt, and a token for whoever has read
theirs. A long prompt is read in pieces between the steps of the others, so that nobody's stream stalls."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

from handlers.generation.engine import Sampling, Token, Usage
from handlers.generation.sampling import Sampler

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

    def reading(self) -> tuple[Slot, range] | None:
        """The prompt that is read next, and which of its tokens; the last one of them gives its first answer."""
        slot = next((slot for slot in self._held.values() if slot.reads), None)
        if slot is None:
            return None
        return slot, range(slot.cached, min(len(slot.tokens), slot.cached + self._chunk))

    def decoding(self) -> list[Slot]:
        """Who has one token to compute, in the order of their places."""
        return sorted((slot for slot in self._held.values() if not slot.reads), key=lambda slot: slot.index)

    def positions(self, count: int) -> list[int]:
        """Where the next token of each of the first slots goes; the beginning for one that nobody holds."""
        cached = {slot.index: slot.cached for slot in self._held.values()}
        return [cached.get(index, 0) for index in range(count)]

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
        decoding = self._slots.decoding()
        tokens = [self._choose(slot, scores) for slot, scores in zip(decoding, self._decode(decoding), strict=True)]
        if reading := self._slots.reading():
            slot, piece = reading
            scores = self._read(slot, piece)
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
    def _decode(self, decoding: Sequence[Slot]) -> Sequence[Scores]:
        """What the next token of each is chosen by."""

    @abstractmethod
    def _read(self, slot: Slot, piece: range) -> Scores:
        """The same after a piece of a prompt."""

    @abstractmethod
    def _choose(self, slot: Slot, scores: Scores) -> Token:
        """The next token, which is now the slot's last."""
