"""The slots of an engine, and what its next step computes: one piece of one prompt, and a token for whoever has read
theirs. A long prompt is read in pieces between the steps of the others, so that nobody's stream stalls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from handlers.generation.engine import Sampling, Usage
from handlers.generation.sampling import Sampler


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
