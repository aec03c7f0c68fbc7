"""`text.engine: fake`: repeats the prompt, one token per step of a fixed time.

It computes nothing, so that everything around an engine can be tested and measured by itself: streams, stops, load."""

import time
from collections.abc import Sequence

from marina.handlers.generation.engine import NoToken, Token
from marina.handlers.generation.engines.slots import Slot, SlotEngine, Slots, Work


class FakeEngine(SlotEngine[None]):
    """Starts a step every `step_s` while it holds sequences. `steps` counts them."""

    def __init__(self, slots: Slots, *, step_s: float) -> None:
        super().__init__(slots)
        self._step_s, self._due = step_s, 0.0
        self.steps = 0

    def step(self) -> list[Token | NoToken]:
        now = time.monotonic()
        # A step that is late by more than its own time is not made up for, as with a real engine.
        self._due = now + self._step_s if now > self._due + self._step_s else self._due + self._step_s
        time.sleep(max(0.0, self._due - now))
        self.steps += 1
        return super().step()

    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[None]]:
        return [[None]] * len(work)

    def _choose(self, slot: Slot, scores: None) -> Token:
        token = slot.sampler.permit(slot.tokens[(len(slot.tokens) - slot.prompt_length) % slot.prompt_length])
        slot.append(token)
        likeliest = ((token, 0.0),) if slot.sampler.wanted else ()
        before = [Token(slot.sequence, each, 0.0, ((each, 0.0),)) for each in self._before(slot)]
        return Token(slot.sequence, token, 0.0, likeliest, slot.sampler.is_over, tuple(before))

    def _before(self, slot: Slot) -> Sequence[int]:
        is_first = len(slot.tokens) == slot.prompt_length + 1
        return slot.tokens[: slot.prompt_length] if slot.sampler.judges_prompt and is_first else ()
