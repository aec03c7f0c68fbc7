"""`text.engine: torch`: a model of Llama's kind, run layer by layer as it is."""

from collections.abc import Sequence

import torch

from handlers.generation.engine import Sampling, Token, Usage
from handlers.generation.llama import Llama
from handlers.generation.slots import Slot, Slots


class TorchEngine:
    """A step is one token for all who are past their prompt, and then one piece of one prompt."""

    def __init__(self, model: Llama, slots: Slots) -> None:
        self._model, self._slots = model, slots

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._slots.add(sequence, prompt, sampling)

    def step(self) -> list[Token]:
        tokens = self._decode(self._slots.decoding())
        if reading := self._slots.reading():
            slot, piece = reading
            scores = self._model.read(slot.index, piece.start, torch.tensor(slot.tokens[piece.start : piece.stop]))
            if piece.stop == len(slot.tokens):
                tokens.append(_choose(slot, scores))
            else:
                slot.cached = piece.stop
        return tokens

    def cancel(self, sequence: str) -> None:
        self._slots.cancel(sequence)

    def usage(self) -> Usage:
        return self._slots.usage()

    def close(self) -> None:
        """Memory goes with the process."""

    def _decode(self, decoding: Sequence[Slot]) -> list[Token]:
        if not decoding:
            return []
        # The rows of slots in between are computed and not read: their next token is written over what this leaves.
        rows = decoding[-1].index + 1
        tokens, positions = torch.zeros(rows, dtype=torch.int64), self._slots.positions(rows)
        for slot in decoding:
            tokens[slot.index] = slot.tokens[-1]
        scores = self._model.decode(tokens, torch.tensor(positions))
        return [_choose(slot, scores[slot.index]) for slot in decoding]


def _choose(slot: Slot, scores: torch.Tensor) -> Token:
    token, logprob, likeliest = slot.sampler.choose(scores.numpy())
    slot.append(token)
    return Token(slot.sequence, token, logprob, likeliest)
