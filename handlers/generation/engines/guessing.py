"""What may come next in a text, from where it has said the same before; and how much of that is worth computing.

A guess is computed together with the token before it, and counts where the sampler chooses that very token: an answer
is the same with guesses and without them, token for token, and only its time differs."""

from collections.abc import Sequence

# Tokens that have to be alike for what followed them to be expected again.
_ALIKE = 3
# Of the newest guess in the share of those that were right.
_NEWEST = 0.2
# What a guess has to win by: measured costs are no better than this.
_MARGIN = 1.1


class Guesser:
    """Guesses for one text. Every guess is compared with the text that followed, even if it was not computed, so it
    costs nothing to know when guesses are worth computing."""

    def __init__(self) -> None:
        # The place after the newest of each few tokens.
        self._places: dict[tuple[int, ...], int] = {}
        self._read = 0
        self._next: int | None = None
        self.right = 0.0

    def heed(self, tokens: Sequence[int]) -> None:
        """The text goes on: all of its tokens."""
        for place in range(self._read, len(tokens)):
            if self._next is not None:
                is_right = tokens[self._next] == tokens[place]
                self.right += _NEWEST * (is_right - self.right)
            alike = tuple(tokens[max(0, place - _ALIKE + 1) : place + 1])
            self._next = self._places.get(alike)
            self._places[alike] = place + 1
        self._read = len(tokens)

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """The tokens after those that it has read, at most so many; empty without a guess."""
        if self._next is None:
            return []
        guesses: list[int] = []
        for place in range(self._next, self._next + most):
            guesses.append(tokens[place] if place < len(tokens) else guesses[place - len(tokens)])
        return guesses


def worth(right: float, *, most: int, row_cost: float, rows: int) -> int:
    """How many guesses give everybody together the most tokens a second, where so many are right: `rows` are computed
    anyway, and a further one takes `row_cost` of what the first takes."""
    before = 1 + (rows - 1) * row_cost
    best, rate = 0, _MARGIN * rows / before
    tokens = float(rows)
    for count in range(1, most + 1):
        # The last of them counts where all before it are right, too.
        tokens += right**count
        if tokens / (before + count * row_cost) > rate:
            best, rate = count, tokens / (before + count * row_cost)
    return best
