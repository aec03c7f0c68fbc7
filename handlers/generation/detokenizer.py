"""From tokens to text that can be sent: without half characters, and without what may become a stop string."""

from collections.abc import Callable, Sequence

# What a decoder writes for bytes that are not a character, or not yet.
REPLACEMENT = "�"
# An incomplete character has at most three bytes, so at most three tokens and three of the marks above.
_MAX_INCOMPLETE = 3
# Tokens without text, such as end tokens, and bytes of no character can go on for a whole answer. After `_MOST`, only
# the last `_KEPT` are kept, or each further token would take longer.
_MOST, _KEPT = 64, 16


class Detokenizer:
    """Decodes a growing list of tokens, and holds text back while its last character is incomplete.

    Tokens are decoded together with the tokens before them, because a decoder may add or drop a space between words.
    So the first tokens of an answer are decoded together with the last ones of its prompt, `before`."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        # If the prompt ends with half a character, the answer completes it, and the character belongs to the answer.
        self._tokens = [] if decode(before).endswith(REPLACEMENT) else list(before)
        # Of the text of `_tokens`, the first `_returned` characters were returned. The first `_done` tokens are only
        # context: all their text was returned.
        self._returned = len(decode(self._tokens))
        self._done = len(self._tokens)

    def feed(self, token: int) -> str:
        """Adds one token; returns the text that it completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(REPLACEMENT) and len(self._tokens) - self._done <= _MAX_INCOMPLETE:
            return ""
        # After more tokens than that, some of the bytes are not part of a character: only the last ones are held back.
        whole = len(text) - min(_MAX_INCOMPLETE, len(text) - len(text.rstrip(REPLACEMENT)))
        new = text[self._returned : whole]
        self._returned = max(self._returned, whole)
        if new and whole == len(text):
            # A character ends here, so the tokens before `_done` are not needed as context any longer.
            del self._tokens[: self._done]
            self._done, self._returned = len(self._tokens), len(self._decode(self._tokens))
        elif len(self._tokens) > _MOST:
            del self._tokens[:-_KEPT]
            self._done, self._returned = 0, len(self._decode(self._tokens)) - (len(text) - whole)
        return new

    def flush(self) -> str:
        """The text that was held back, complete or not."""
        text = self._decode(self._tokens)
        new, self._returned = text[self._returned :], len(text)
        return new


class StopFinder:
    """Finds the first stop string in text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Adds text; returns what cannot be part of a stop string, or is before one, and whether one was found."""
        if not self._stops:
            return text, False
        whole = self._held + text
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self._held = ""
            return whole[: min(places)], True
        end = len(whole) - self._stop_beginning(whole)
        self._held = whole[end:]
        return whole[:end], False

    def flush(self) -> str:
        """The text that was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _stop_beginning(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = max(map(len, self._stops)) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((at for at in lengths if any(stop.startswith(text[-at:]) for stop in self._stops)), 0)
