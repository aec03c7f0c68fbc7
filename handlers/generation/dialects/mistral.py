"""`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]NAME[ARGS]{…}` for each call, after any text:
Mistral."""

from marina.handlers.generation.dialects.reading import (
    Events,
    Malformed,
    Reading,
    expect,
    json_calls,
    json_value,
    skip_space,
    text_until,
)

BEGIN, IDENTITY, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKS = (BEGIN, IDENTITY, ARGUMENTS)


def read(events: Events) -> Reading:
    has_call = yield from text_until((BEGIN,), events.write)
    while has_call:
        letter = yield from skip_space()
        if letter == "[":
            yield from json_calls(letter, events)
        else:
            name = ""
            while letter is not None and letter != "{":
                name += letter
                letter = yield
            if letter is None:
                raise Malformed
            events.begin(name.partition(ARGUMENTS)[0].partition(IDENTITY)[0].strip())
            letter = yield from json_value(letter, events.argue)
            if letter == BEGIN[0]:
                yield from expect(BEGIN, letter)
                continue
        has_call = yield from text_until((BEGIN,), lambda _: None)
