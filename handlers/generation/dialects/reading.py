"""What the families' readers are made of.

A reader is a generator that gets a text letter by letter, so that the pieces in which it comes make no difference. It
gets None when no more comes, and says by `Events` what it has understood so far."""

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# What a reader gets is a letter, or None at the end.
Reading: TypeAlias = Generator[None, str | None, Any]
_SPACES = " \t\r\n"


@dataclass
class Call:
    """A call of a tool; `arguments` are JSON."""

    name: str
    arguments: str = ""


@dataclass
class Delta:
    """What a piece of text adds: to the reasoning, to the content, and to calls, by their numbers. A call begins with
    its name."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[int, Call]] = field(default_factory=list)


class Malformed(Exception):
    """The text is no call as this family writes them."""


class Events:
    """Collects what a reader has understood."""

    def __init__(self) -> None:
        self.delta = Delta()
        self.count = 0
        # What was read after the reasoning, and how much of it is content.
        self.seen, self.written = "", 0

    def write(self, text: str) -> None:
        self.delta.content += text
        self.written += len(text)

    def end_reasoning(self) -> None:
        """What comes now is the answer itself."""
        self.seen = ""

    def reason(self, text: str) -> None:
        self.delta.reasoning += text

    def begin(self, name: str) -> None:
        """Begins a call."""
        self.delta.calls.append((self.count, Call(name)))
        self.count += 1

    def argue(self, text: str) -> None:
        """Adds to the arguments of the call that has begun."""
        calls = self.delta.calls
        if not calls:
            calls.append((self.count - 1, Call("")))
        calls[-1][1].arguments += text

    def take(self) -> Delta:
        delta, self.delta = self.delta, Delta()
        return delta


Read: TypeAlias = Callable[[Events], Reading]


def skip_space() -> Reading:
    """Returns the first letter that is no space; None at the end."""
    while (letter := (yield)) is not None and letter in _SPACES:
        pass
    return letter


def text_until(marks: tuple[str, ...], write: Callable[[str], None]) -> Reading:
    """Passes text on up to any of these marks; False if the text ends without one."""
    held = ""
    while (letter := (yield)) is not None:
        held += letter
        while held and not any(mark.startswith(held) for mark in marks):
            write(held[0])
            held = held[1:]
        if held in marks:
            return True
    for letter in held:
        write(letter)
    return False


def expect(mark: str, first: str | None) -> Reading:
    """Reads a mark whose first letter was read already."""
    letter = first
    for place, wanted in enumerate(mark):
        if place:
            letter = yield
        if letter != wanted:
            raise Malformed


def json_value(first: str | None, write: Callable[[str], None]) -> Reading:
    """Passes a value on as it is written; returns the letter after it. Raises Malformed if it is no JSON."""
    if first is None:
        raise Malformed
    text, depth, in_text, escaped = "", 0, False, False
    letter: str | None = first
    is_scalar = first not in '{["'
    while letter is not None:
        if is_scalar and letter in ",]}" + _SPACES:
            break
        text += letter
        write(letter)
        if in_text:
            in_text, escaped = escaped or letter != '"', not escaped and letter == "\\"
        elif letter == '"':
            in_text = True
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
        letter = yield
        if not (depth or in_text or is_scalar):
            break
    try:
        json.loads(text)
    except ValueError as err:
        raise Malformed from err
    return letter


def json_call(first: str | None, events: Events, arguments: tuple[str, ...] = ("arguments",)) -> Reading:
    """Reads a call as an object with a name and its arguments, which have one of these names."""
    yield from expect("{", first)
    name, early, has_begun = "", "", False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True
        events.begin(name)

    letter = yield from skip_space()
    while letter != "}":
        key: list[str] = []
        letter = yield from json_value(letter, key.append)
        if letter is not None and letter in _SPACES:
            letter = yield from skip_space()
        yield from expect(":", letter)
        letter = yield from skip_space()
        value: list[str] = []
        is_argument = _text(key) in arguments
        if is_argument and name:
            begin()
        letter = yield from json_value(letter, events.argue if is_argument and name else value.append)
        if _text(key) == "name":
            name = _text(value)
            if early:
                begin()
                events.argue(early)
        elif is_argument and not has_begun:
            early = "".join(value)
        if letter is not None and letter in _SPACES:
            letter = yield from skip_space()
        if letter == ",":
            letter = yield from skip_space()
        elif letter != "}":
            raise Malformed
    if not has_begun:
        raise Malformed


def json_calls(first: str | None, events: Events) -> Reading:
    """Reads a list of calls."""
    yield from expect("[", first)
    letter = yield from skip_space()
    while letter != "]":
        yield from json_call(letter, events)
        letter = yield from skip_space()
        if letter == ",":
            letter = yield from skip_space()
        elif letter != "]":
            raise Malformed


def _text(parts: list[str]) -> str:
    value = json.loads("".join(parts))
    if not isinstance(value, str):
        raise Malformed
    return value


class AnswerReader:
    """Takes an answer apart while it is written: into its reasoning, its content, and its calls."""

    def __init__(self, read: Read) -> None:
        self._events = Events()
        self._reading = read(self._events)
        self.is_broken = False
        """Something that began as a call was none; what was not sent of it is content."""
        next(self._reading)

    def feed(self, text: str) -> Delta:
        """What this text adds."""
        for letter in text:
            self._send(letter)
        return self._events.take()

    def finish(self) -> Delta:
        """What is left at the end of the text."""
        self._send(None)
        return self._events.take()

    @property
    def has_called(self) -> bool:
        return self._events.count > 0

    @property
    def answer(self) -> str:
        """The text after the reasoning."""
        return self._events.seen

    def _send(self, letter: str | None) -> None:
        self._events.seen += letter or ""
        if self.is_broken:
            self._events.write(letter or "")
            return
        try:
            self._reading.send(letter)
        except StopIteration:
            pass
        except Malformed:
            self.is_broken = True
            if not self._events.count:
                self._events.write(self._events.seen[self._events.written :])


def read_whole(read: Read, text: str) -> Delta:
    """A complete answer taken apart. If any of its calls is none, all of it is content."""
    reader = AnswerReader(read)
    delta = reader.feed(text)
    rest = reader.finish()
    if reader.is_broken:
        return Delta(delta.reasoning, reader.answer)
    calls = dict[int, Call]()
    for number, call in (*delta.calls, *rest.calls):
        known = calls.setdefault(number, Call(call.name))
        known.arguments += call.arguments
    return Delta(delta.reasoning + rest.reasoning, delta.content + rest.content, list(calls.items()))
