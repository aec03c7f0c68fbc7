"""`text.engine: torch`: a model of Llama's kind, run layer by layer as it is."""

from collections.abc import Sequence

import torch

from handlers.generation.engine import Token
from handlers.generation.llama import Llama
from handlers.generation.slots import Slot, SlotEngine, Slots


class TorchEngine(SlotEngine[torch.Tensor]):
    """Its scores are those of every token of the vocabulary."""

    def __init__(self, model: Llama, slots: Slots) -> None:
        super().__init__(slots)
        self._model = model

    def _decode(self, decoding: Sequence[Slot]) -> Sequence[torch.Tensor]:
        if not decoding:
            return []
        # The rows of slots in between are computed and not read: their next token is written over what this leaves.
        rows = decoding[-1].index + 1
        tokens, positions = torch.zeros(rows, dtype=torch.int64), self._slots.positions(rows)
        for slot in decoding:
            tokens[slot.index] = slot.tokens[-1]
        scores = self._model.decode(tokens, torch.tensor(positions))
        return [scores[slot.index] for slot in decoding]

    def _read(self, slot: Slot, piece: range) -> torch.Tensor:
        return self._model.read(slot.index, piece.start, torch.tensor(slot.tokens[piece.start : piece.stop]))

    def _choose(self, slot: Slot, scores: torch.Tensor) -> Token:
        token, logprob, likeliest = slot.sampler.choose(scores.numpy())
        slot.append(token)
        return Token(slot.sequence, token, logprob, likeliest)
