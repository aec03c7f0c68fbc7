"""How many rounds a comparison takes, and who is first in each. Pure."""

from __future__ import annotations

from loadtest.comparing.comparison import Which
from loadtest.comparing.judgement import FEWEST_ROUNDS

_GROWTH = 1.5


def next_look(made: int, most: int) -> int:
    """After how many rounds the figures are looked at next: in pairs, so that each server is first as often, and ever
    more of them, since each look is one more chance to be wrong."""
    wanted = FEWEST_ROUNDS if made < FEWEST_ROUNDS else max(made + 2, int(made * _GROWTH))
    wanted += wanted % 2
    return min(wanted, most - most % 2)


def looks_until(most: int) -> int:
    """How often the figures are looked at when every look leaves them open."""
    looks = [0]
    while (look := next_look(looks[-1], most)) > looks[-1]:
        looks.append(look)
    return max(1, len(looks) - 1)


def first_of(number: int) -> Which:
    """Old, new, new, old: what rises or falls evenly while it is measured does the same to both."""
    return "new" if number % 2 else "old"
