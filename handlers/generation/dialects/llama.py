"""`{"name": …, "parameters": {…}}`, several with `; ` between them, and nothing else: Llama 3."""

from marina.handlers.generation.dialects.reading import Events, Reading, expect, json_call, skip_space

BEGIN = "<|python_tag|>"
MARKS = (BEGIN,)


def read(events: Events) -> Reading:
    letter = yield
    if letter == BEGIN[0]:
        yield from expect(BEGIN, letter)
        letter = yield from skip_space()
    if letter != "{":
        while letter is not None:
            events.write(letter)
            letter = yield
        return
    while letter == "{":
        yield from json_call(letter, events, ("parameters", "arguments"))
        while (letter := (yield)) is not None and letter != "{":
            pass
