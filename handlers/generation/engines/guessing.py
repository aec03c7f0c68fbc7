"""Guesses the next tokens of a text where it repeats itself, and decides how many are worth it.

A guess is computed together with the token before it, and is used only if the sampler chooses that very token. So an
answer has the same tokens with guesses as without them, and only its time differs."""

from collections.abc import Sequence

# How many tokens have to be repeated before what followed them the last time is guessed again.
_MATCH = 3
# The weight of the newest guess in the share of right ones.
_NEWEST = 0.2
# By what factor guesses have to be faster: measured costs are no more exact than this.
_MARGIN = 1.1


class Guesser:
    """Guesses for one text. `right` is the share of guesses that were right; it includes those that were not computed,
    since each guess is compared with the text that followed."""

    def __init__(self) -> None:
        # For each sequence of `_MATCH` tokens, the place after its last occurrence.
        self._places: dict[tuple[int, ...], int] = {}
        self._read = 0
        self._next: int | None = None
        self.right = 0.0

    def read(self, tokens: Sequence[int]) -> None:
        """Reads the tokens that were added to the text; `tokens` are all of it."""
        for place in range(self._read, len(tokens)):
            if self._next is not None:
                is_right = tokens[self._next] == tokens[place]
                self.right += _NEWEST * (is_right - self.right)
            last = tuple(tokens[max(0, place - _MATCH + 1) : place + 1])
            self._next = self._places.get(last)
            self._places[last] = place + 1
        self._read = len(tokens)

    def guess(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Up to `limit` tokens that may follow what was read; empty without a guess."""
        if self._next is None:
            return []
        # Beyond the end of the text come the first guesses again.
        return [tokens[self._next + at % (len(tokens) - self._next)] for at in range(limit)]


def choose_guess_count(right: float, *, limit: int, row_cost: float, rows: int) -> int:
    """How many guesses give the most tokens per second to all answers together, if the share `right` of them is right.

    `rows` rows are computed in any case. A further row costs `row_cost` times what the first row costs."""
    before = 1 + (rows - 1) * row_cost
    best, rate = 0, _MARGIN * rows / before
    tokens = float(rows)
    for count in range(1, limit + 1):
        # A guess can only be used if all guesses before it are right.
        tokens += right**count
        if tokens / (before + count * row_cost) > rate:
            best, rate = count, tokens / (before + count * row_cost)
    return best
