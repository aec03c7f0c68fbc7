"""How many rounds a comparison takes, when they are looked at, and who is first in each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.comparing.comparison import SideName
from loadtest.comparing.judgement import FEWEST_ROUNDS

_GROWTH = 1.5


def look_schedule(most: int) -> tuple[int, ...]:
    """After how many rounds the figures are looked at while they leave it open: in pairs, so that each server is first
    as often, and ever more of them, since each look is one more chance to be wrong."""
    last = max(2, most - most % 2)
    looks = [min(FEWEST_ROUNDS, last)]
    while looks[-1] < last:
        wanted = max(looks[-1] + 2, int(looks[-1] * _GROWTH))
        looks.append(min(wanted + wanted % 2, last))
    return tuple(looks)


def look_share(look: int, looks: Sequence[int]) -> float:
    """How much of all that may go wrong one of the looks may use: half is shared evenly, half as the rounds are, since
    the last ones decide what is close and none comes after them."""
    return (1 / len(looks) + look / sum(looks)) / 2


def first_side(number: int) -> SideName:
    """Old, new, new, old: what rises or falls evenly while it is measured does the same to both."""
    return "new" if number % 2 else "old"
