"""Whether chance explains that the new server has more of something rare, such as late or failed answers.

A few rounds have nearly all of what is rare, so neither the ratios of the rounds nor one ratio of all rounds says much.
But if there were no difference, the two turns of each round could be swapped: all ways to swap them are equally likely,
and it is counted how many of them give the new server at least as much. So a stall that hits either server decides
nothing, but one that hits only the new server, again and again, does. No I/O and no random numbers."""

from collections.abc import Sequence

from marina.loadtest.comparing.comparison import Round, responses
from marina.loadtest.judging import P99_SHARE

# The largest difference counts as at most this many steps, so that counting the ways of hundreds of rounds is quick.
_STEPS = 50
_HALVINGS = 40


def by_chance(more: Sequence[float]) -> float:
    """The probability that swaps alone give the new server at least as much.

    `more` is how much more the new server had in each round, negative if the old one had more."""
    unit = max(1.0, max((abs(surplus) / _STEPS for surplus in more), default=1.0))
    steps = [step for surplus in more if (step := round(surplus / unit))]
    likely = [1.0]
    for step in map(abs, steps):
        longer = [*likely, *[0.0] * step]
        likely = [(part + (longer[at - step] if at >= step else 0.0)) / 2 for at, part in enumerate(longer)]
    return sum(likely[sum(step for step in steps if step > 0) :])


def late_line(rounds: Sequence[Round], allowed: float) -> float:
    """The latency above which an answer counts as late: one in a hundred of both servers' answers together is.

    For the new server it is `allowed` times as high. So it is the p99 of both if the new server is as much slower as
    allowed."""
    old, new = responses(rounds)
    most = (1 - P99_SHARE) * (old.count + new.count)
    low, high = min(old.min_ms, new.min_ms / allowed), max(old.max_ms, new.max_ms / allowed)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if old.over(middle) + new.over(allowed * middle) > most else (low, middle)
    return high


def more_late(rounds: Sequence[Round], line_ms: float, allowed: float) -> list[int]:
    """How many more late answers the new server gave than the old one, in each round."""
    return [turns.new.response.over(allowed * line_ms) - turns.old.response.over(line_ms) for turns in rounds]
