"""`<think>…</think>` before the answer: Qwen3, DeepSeek-R1, Granite, SmolLM3; Mistral's has other marks. A template may
write the first mark itself, at the end of the prompt."""

from contextlib import suppress
from dataclasses import dataclass

from marina.handlers.generation.dialects.reading import Events, Read, Reading, text_until

_SPACES = " \t\r\n"


@dataclass(frozen=True)
class Reasoning:
    """The marks around a reasoning."""

    begin: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends within a reasoning."""
        return prompt.rstrip().endswith(self.begin)

    def before(self, read: Read, *, is_open: bool) -> Read:
        """Reads a reasoning first, if there is one, and then the answer."""

        def reading(events: Events) -> Reading:
            held, has_begun = "", is_open
            letter: str | None = ""
            while not has_begun and letter is not None and self.begin.startswith(held.lstrip(_SPACES)):
                letter = yield
                held += letter or ""
                has_begun = held.lstrip(_SPACES) == self.begin
            if has_begun:
                yield from text_until((self.end,), events.reason)
                events.end_reasoning()
                held = ""
            answer = read(events)
            next(answer)
            with suppress(StopIteration):
                for each in held:
                    answer.send(each)
                while letter is not None:
                    letter = yield
                    answer.send(letter)
                answer.send(None)

        return reading


KINDS = (Reasoning("<think>", "</think>"), Reasoning("[THINK]", "[/THINK]"))


def as_content(events: Events) -> Reading:
    """The answer of a model that calls no tools."""
    while (letter := (yield)) is not None:
        events.write(letter)
