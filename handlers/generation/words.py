"""From tokens to text that may be sent: no half character, and nothing that may turn out to be a stop string."""

from collections.abc import Callable, Sequence

# What a decoder puts in the place of bytes that are no character, or not yet one.
BROKEN = "�"
# A character that is not whole yet has at most three bytes, so as many tokens, and at most one of these for each.
_MOST_OPEN = 3


class Unfolding:
    """The text of a growing list of tokens, held back while its last character is not whole.

    Tokens are decoded together with those before them, because a decoder may set or drop a space between words: those
    of an answer with the last ones of its prompt, `before`."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        # Half a character at the prompt's end is whole with what follows, and belongs to that.
        self._tokens = [] if decode(before).endswith(BROKEN) else list(before)
        # What is decoded are all tokens; the first `_given` characters of that were given away.
        self._given = len(decode(self._tokens))
        self._told = len(self._tokens)

    def feed(self, token: int) -> str:
        """The text that one more token completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(BROKEN) and len(self._tokens) - self._told <= _MOST_OPEN:
            return ""
        # With more tokens than that some bytes are none of a character: what comes before the last of them is as it is.
        whole = len(text) - min(_MOST_OPEN, len(text) - len(text.rstrip(BROKEN)))
        new = text[self._given : whole]
        self._given = max(self._given, whole)
        if new and whole == len(text):
            # A character ends here, so those before the last that was given are of no more use.
            del self._tokens[: self._told]
            self._told, self._given = len(self._tokens), len(self._decode(self._tokens))
        return new

    def flush(self) -> str:
        """What was held back, whole or not."""
        text = self._decode(self._tokens)
        new, self._given = text[self._given :], len(text)
        return new


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
