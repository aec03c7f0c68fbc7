"""Engines that compute a network: `torch`, layer by layer as it is, and `aot`, by a library of the packager's."""

import time
from collections.abc import Callable, Sequence
from itertools import islice

import torch

from handlers.generation.engine import Sampling, Token
from handlers.generation.engines.compiled import CompiledDecoder
from handlers.generation.engines.llama import Llama
from handlers.generation.engines.slots import Slot, SlotEngine, Slots, Work

# So many are computed to know what a row costs, so many times.
ROWS, _TRIES = 8, 5


class ComputingEngine(SlotEngine[torch.Tensor]):
    """Its scores are those of every token of the vocabulary. A prompt that begins as a slot does is not computed again
    so far."""

    def __init__(self, slots: Slots, copy: Callable[[int, int, int], None]) -> None:
        super().__init__(slots)
        self._copy = copy

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        reuse = self._slots.add(sequence, prompt, sampling, reuse=True)
        if reuse is not None and reuse.source != reuse.place:
            self._copy(*reuse)

    def _choose(self, slot: Slot, scores: torch.Tensor) -> Token:
        token, logprob, likeliest = slot.sampler.choose(scores.numpy())
        slot.append(token)
        return Token(slot.sequence, token, logprob, likeliest, slot.sampler.is_over)


class TorchEngine(ComputingEngine):
    """One call for all who have one token to compute, and one for each that has more."""

    def __init__(self, model: Llama, slots: Slots) -> None:
        super().__init__(slots, model.copy)
        self._model = model

    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[torch.Tensor]]:
        single = [entry for entry in work if len(entry.piece) == 1]
        decoded = iter(self._decode(single) if single else ())
        return [
            [next(decoded) if len(piece) == 1 else self._model.read(slot.index, piece.start, _tokens(slot, piece))]
            for slot, piece, _ in work
        ]

    def _decode(self, single: Sequence[Work]) -> torch.Tensor:
        tokens = [slot.tokens[piece.start] for slot, piece, _ in single]
        positions = [piece.start for _, piece, _ in single]
        places = [slot.index for slot, _, _ in single]
        return self._model.decode(torch.tensor(tokens), torch.tensor(positions), torch.tensor(places))


class CompiledEngine(ComputingEngine):
    """One call for everything. A row is the same to the bit whatever is computed beside it, so guesses may be."""

    def __init__(self, model: CompiledDecoder, slots: Slots) -> None:
        super().__init__(slots, model.copy)
        self._model = model

    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[torch.Tensor]]:
        tokens: list[int] = []
        places: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for slot, piece, guesses in work:
            tokens += [*slot.tokens[piece.start : piece.stop], *guesses]
            places += [slot.index] * (len(piece) + len(guesses))
            positions += range(piece.start, piece.stop + len(guesses))
            # The scores of a piece that ends no prompt are not asked for.
            if piece.stop == len(slot.tokens):
                wanted += range(len(tokens) - 1 - len(guesses), len(tokens))
        scores = iter(self._model.step(tokens, places, positions, wanted))
        return [list(islice(scores, 1 + len(entry.guesses))) if entry.ends else [] for entry in work]

    def measure(self) -> float:
        """What a further row takes of what the first takes: of the best of some tries, before anybody has a slot."""
        alone, together = (min(self._seconds(count) for _ in range(_TRIES)) for count in (1, ROWS))
        return max(0.0, together / alone - 1) / (ROWS - 1)

    def _seconds(self, rows: int) -> float:
        begun = time.perf_counter()
        self._model.step([0] * rows, [0] * rows, range(rows), range(rows))
        return time.perf_counter() - begun


def _tokens(slot: Slot, piece: range) -> torch.Tensor:
    return torch.tensor(slot.tokens[piece.start : piece.stop])
