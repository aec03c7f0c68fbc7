"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call, after any text: Hermes, Qwen."""

from marina.handlers.generation.dialects.reading import Events, Reading, expect, json_call, skip_space, text_until

BEGIN, END = "<tool_call>", "</tool_call>"
MARKS = (BEGIN, END)


def read(events: Events) -> Reading:
    has_call = yield from text_until((BEGIN,), events.write)
    while has_call:
        yield from json_call((yield from skip_space()), events)
        # An answer that was cut after the call lacks its end.
        letter = yield from skip_space()
        if letter is not None:
            yield from expect(END, letter)
        has_call = yield from text_until((BEGIN,), lambda _: None)
