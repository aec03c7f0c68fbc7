"""After how many rounds a comparison looks at its figures, and which server is first in each round. No I/O."""

from collections.abc import Sequence

from marina.loadtest.comparing.comparison import SideName
from marina.loadtest.comparing.judgement import FEWEST_ROUNDS

_GROWTH = 1.5


def look_schedule(most: int) -> tuple[int, ...]:
    """After how many rounds the figures are looked at, as long as they are undecided.

    The numbers are even, so that each server is first equally often. They grow, since each look is one more chance to
    be wrong."""
    last = max(2, most - most % 2)
    looks = [min(FEWEST_ROUNDS, last)]
    while looks[-1] < last:
        wanted = max(looks[-1] + 2, int(looks[-1] * _GROWTH))
        looks.append(min(wanted + wanted % 2, last))
    return tuple(looks)


def look_share(look: int, looks: Sequence[int]) -> float:
    """The share of the allowed error that one look may use.

    Half of the error is shared equally, half in proportion to the rounds: the last looks decide what is close, and no
    look comes after them."""
    return (1 / len(looks) + look / sum(looks)) / 2


def first_side(number: int) -> SideName:
    """Which server is first in round `number`. As they alternate, a steady drift of the machine affects both alike."""
    return "new" if number % 2 else "old"
