"""`text.engine: fake`: an engine that says the prompt again, over and over, one token a step of a set time.

It computes nothing, so that what is around an engine can be tried and measured by itself: streams, stops, load."""

import time
from collections.abc import Callable, Sequence

from handlers.generation.engine import NoToken, Token
from handlers.generation.engines.slots import Slot, SlotEngine, Slots, Work


class FakeEngine(SlotEngine[None]):
    """Steps of `step_s` from one begin to the next, as long as somebody is there to get a token."""

    def __init__(self, slots: Slots, *, step_s: float, pause: Callable[[float], None] = time.sleep) -> None:
        super().__init__(slots)
        self._step_s, self._pause = step_s, pause
        self._due = 0.0
        self.steps = 0

    def step(self) -> list[Token | NoToken]:
        now = time.monotonic()
        # Late by more than a step is late for good, as an engine's would be.
        self._due = now + self._step_s if now > self._due + self._step_s else self._due + self._step_s
        self._pause(max(0.0, self._due - now))
        self.steps += 1
        return super().step()

    def _compute(self, work: Sequence[Work]) -> Sequence[Sequence[None]]:
        return [[None]] * len(work)

    def _choose(self, slot: Slot, scores: None) -> Token:
        token = slot.sampler.permit(slot.tokens[(len(slot.tokens) - slot.prompt) % slot.prompt])
        slot.append(token)
        likeliest = ((token, 0.0),) if slot.sampler.wanted else ()
        return Token(slot.sequence, token, 0.0, likeliest, slot.sampler.is_over)
