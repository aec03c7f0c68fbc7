"""`<|tool_call|>[{"name": …, "arguments": {…}}, …]`, after any text: Granite 3."""

from marina.handlers.generation.dialects.reading import Events, Malformed, Reading, json_calls, skip_space, text_until

BEGINS = ("<|tool_call|>", "<tool_call>")
MARKS = BEGINS


def read(events: Events) -> Reading:
    spaces = ""

    def write(letter: str) -> None:
        # Spaces before a call belong to it.
        nonlocal spaces
        spaces += letter
        if not spaces.isspace():
            events.write(spaces)
            spaces = ""

    has_call = yield from text_until(BEGINS, write)
    if not has_call:
        events.write(spaces)
    while has_call:
        letter = yield from skip_space()
        if letter != "[":
            raise Malformed
        yield from json_calls(letter, events)
        has_call = yield from text_until(BEGINS, lambda _: None)
