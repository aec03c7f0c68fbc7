"""Whether chance may explain that the new server has more of something rare, such as late or failed answers. Pure, and
without dice.

Of what is rare a few rounds have nearly all, so neither a ratio of each round nor one of all together says much. But
without a difference each round's two turns could as well be the other's: all ways to swap them are as likely, and how
many of these give the new server as much is counted. A stall that hits either side decides nothing; one that hits the
new server alone, and again and again, does.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.comparing.comparison import Round
from loadtest.judging import P99_SHARE
from loadtest.measuring import merge_histograms

# Differences are counted in as many steps at most: the ways of hundreds of rounds are then counted in no time.
_STEPS = 50
_HALVINGS = 40


def by_chance(more: Sequence[float]) -> float:
    """How likely swaps alone give the new server as much: `more` it had in each round, negative where the old one."""
    unit = max(1.0, max((abs(surplus) / _STEPS for surplus in more), default=1.0))
    steps = [step for surplus in more if (step := round(surplus / unit))]
    likely = [1.0]
    for step in map(abs, steps):
        longer = [*likely, *[0.0] * step]
        likely = [(part + (longer[at - step] if at >= step else 0.0)) / 2 for at, part in enumerate(longer)]
    return sum(likely[sum(step for step in steps if step > 0) :])


def late_line(rounds: Sequence[Round], allowed: float) -> float:
    """The latency over which one in a hundred is late, of the old server's answers and, `allowed` times as high, of the
    new one's together: the p99 of both if the new one is as much slower as it may be."""
    old, new = (
        merge_histograms([turns.old.response for turns in rounds]),
        merge_histograms([turns.new.response for turns in rounds]),
    )
    most = (1 - P99_SHARE) * (old.count + new.count)
    low, high = min(old.min_ms, new.min_ms / allowed), max(old.max_ms, new.max_ms / allowed)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if old.over(middle) + new.over(allowed * middle) > most else (low, middle)
    return high


def more_late(rounds: Sequence[Round], line_ms: float, allowed: float) -> list[int]:
    """How many more late answers the new server gave, round by round."""
    return [turns.new.response.over(allowed * line_ms) - turns.old.response.over(line_ms) for turns in rounds]
