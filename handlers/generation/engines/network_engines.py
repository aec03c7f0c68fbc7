"""The engines that compute a network: `torch` layer by layer, and `aot` with the compiled library."""

import time
from collections.abc import Callable, Sequence
from itertools import islice

import torch

from marina.handlers.generation.engine import Sampling, Token
from marina.handlers.generation.engines.compiled import CompiledDecoder
from marina.handlers.generation.engines.llama import Llama
from marina.handlers.generation.engines.slots import Slot, SlotEngine, Slots, Work

# To measure what a row costs: how many rows are computed together, and how often.
ROWS, _TRIES = 8, 5


class ComputingEngine(SlotEngine[torch.Tensor]):
    """Chooses tokens by their scores. If a prompt begins like the text in a slot, that part is copied, not computed."""

    def __init__(self, slots: Slots, copy: Callable[[int, int, int], None]) -> None:
        super().__init__(slots)
        self._copy = copy

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        reuse = self._slots.add(sequence, prompt, sampling, reuse=True)
        if reuse is not None and reuse.source != reuse.target:
            self._copy(*reuse)

    def _choose(self, slot: Slot, scores: torch.Tensor) -> Token:
        token, logprob, likeliest = slot.sampler.choose(scores.numpy())
        slot.append(token)
        before, slot.before = tuple(slot.before), []
        return Token(slot.sequence, token, logprob, likeliest, slot.sampler.is_over, before)

    def _judge(self, entry: Work, scores: Sequence[torch.Tensor]) -> None:
        slot = entry.slot
        if not slot.before:
            slot.before.append(Token(slot.sequence, slot.tokens[0], 1.0))
        # A piece may be computed again, and the last token of the prompt has the answer after it.
        for place in range(len(slot.before), min(entry.piece.stop + 1, slot.prompt_length)):
            token = slot.tokens[place]
            logprob, likeliest = slot.sampler.judge(scores[place - 1 - entry.piece.start].numpy(), token)
            slot.before.append(Token(slot.sequence, token, logprob, likeliest))


class TorchEngine(ComputingEngine):
    """Computes all sequences that have one token to compute in one call, and each of the others in its own."""

    def __init__(self, model: Llama, slots: Slots) -> None:
        super().__init__(slots, model.copy)
        self._model = model

    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[torch.Tensor]]:
        single = [entry for entry in work if len(entry.piece) == 1]
        decoded = iter(self._decode(single) if single else ())
        return [[next(decoded)] if len(piece) == 1 else self._read(slot, piece) for slot, piece, _ in work]

    def _read(self, slot: Slot, piece: range) -> Sequence[torch.Tensor]:
        tokens = _tokens(slot, piece)
        if slot.sampler.judges_prompt:
            return list(self._model.read_all(slot.index, piece.start, tokens))
        return [self._model.read(slot.index, piece.start, tokens)]

    def _decode(self, single: Sequence[Work]) -> torch.Tensor:
        tokens = [slot.tokens[piece.start] for slot, piece, _ in single]
        positions = [piece.start for _, piece, _ in single]
        places = [slot.index for slot, _, _ in single]
        return self._model.decode(torch.tensor(tokens), torch.tensor(positions), torch.tensor(places))


class CompiledEngine(ComputingEngine):
    """Computes everything in one call. A row has the same bits whatever is computed beside it, which guesses need."""

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
            # A piece before the last one of its prompt needs no scores.
            if slot.sampler.judges_prompt and slot.is_reading_prompt:
                wanted += range(len(tokens) - len(piece), len(tokens))
            elif piece.stop == len(slot.tokens):
                wanted += range(len(tokens) - 1 - len(guesses), len(tokens))
        scores = iter(self._model.step(tokens, places, positions, wanted))
        return [list(islice(scores, self._rows(entry))) for entry in work]

    def _rows(self, entry: Work) -> int:
        if entry.slot.sampler.judges_prompt and entry.slot.is_reading_prompt:
            return len(entry.piece)
        return 1 + len(entry.guesses) if entry.gives_token else 0

    def measure(self) -> float:
        """The time of a further row, as a share of the time of the first: the best of some tries. Only before any
        sequence was added."""
        alone, together = (min(self._seconds(count) for _ in range(_TRIES)) for count in (1, ROWS))
        return max(0.0, together / alone - 1) / (ROWS - 1)

    def _seconds(self, rows: int) -> float:
        started = time.perf_counter()
        self._model.step([0] * rows, [0] * rows, range(rows), range(rows))
        return time.perf_counter() - started


def _tokens(slot: Slot, piece: range) -> torch.Tensor:
    return torch.tensor(slot.tokens[piece.start : piece.stop])
