"""`text.engine: fake`: an engine that says the prompt again, over and over, one token a step of a set time.

It computes nothing, so that what is around an engine can be tried and measured by itself: streams, stops, load."""

import time
from collections.abc import Callable, Sequence

from handlers.generation.engine import Sampling, Token, Usage
from handlers.generation.slots import Slot, Slots


class FakeEngine:
    """Steps of `step_s` from one begin to the next, as long as somebody is there to get a token."""

    def __init__(self, slots: Slots, *, step_s: float, pause: Callable[[float], None] = time.sleep) -> None:
        self._slots, self._step_s, self._pause = slots, step_s, pause
        self._due = 0.0
        self.steps = 0

    def add(self, sequence: str, prompt: Sequence[int], sampling: Sampling) -> None:
        self._slots.add(sequence, prompt, sampling)

    def step(self) -> list[Token]:
        now = time.monotonic()
        # Late by more than a step is late for good, as an engine's would be.
        self._due = now + self._step_s if now > self._due + self._step_s else self._due + self._step_s
        self._pause(max(0.0, self._due - now))
        self.steps += 1
        tokens = [self._say(slot) for slot in self._slots.decoding()]
        if reading := self._slots.reading():
            slot, piece = reading
            if piece.stop == len(slot.tokens):
                tokens.append(self._say(slot))
            else:
                slot.cached = piece.stop
        return tokens

    def cancel(self, sequence: str) -> None:
        self._slots.cancel(sequence)

    def usage(self) -> Usage:
        return self._slots.usage()

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _say(slot: Slot) -> Token:
        token = slot.tokens[(len(slot.tokens) - slot.prompt) % slot.prompt]
        slot.append(token)
        return Token(slot.sequence, token, 0.0, ((token, 0.0),) if slot.sampler.wanted else ())
