"""From tokens to text that may be sent: no half character, and nothing that may turn out to be a stop string."""

from collections.abc import Callable, Sequence

# What a decoder puts in the place of bytes that are no character, or not yet one.
_BROKEN = "�"
# A character is at most four bytes; what is still broken after more tokens than that will stay so.
_LONGEST_CHARACTER = 4


class Unfolding:
    """The text of a growing list of tokens, held back while its last character is not whole.

    Tokens are decoded together with those before them, because a decoder may set or drop a space between words."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        # What is decoded begins at `start`; the text of what lies before `told` was given away.
        self._start = self._told = 0

    def feed(self, token: int) -> str:
        """The text that one more token completes."""
        self._tokens.append(token)
        text = self._new_text()
        waiting = len(self._tokens) - self._told
        if not text or (text.endswith(_BROKEN) and waiting <= _LONGEST_CHARACTER):
            return ""
        self._start, self._told = self._told, len(self._tokens)
        return text

    def flush(self) -> str:
        """What was held back, whole or not."""
        text = self._new_text()
        self._start = self._told = len(self._tokens)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._start : self._told])
        return self._decode(self._tokens[self._start :])[len(before) :]


class StopFinder:
    """Finds the first of some strings in text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that cannot be part of a stop string, and whether one was found: then it is the text before it."""
        if not self._stops:
            return text, False
        whole = self._held + text
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self._held = ""
            return whole[: min(places)], True
        keep = self._beginning(whole)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep], False

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
