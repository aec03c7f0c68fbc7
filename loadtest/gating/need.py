"""How many requests a gate needs, before the new revision has answered one. No I/O.

The old revision's pods are compared with each other: one of them plays the new revision. That shows what its traffic
is like, from window to window and from pod to pod, in the same numbers that the gate will judge."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from statistics import NormalDist, mean

from marina.config.record import Part
from marina.loadtest.gating.difference import BLOCK_TIMES, FEWEST_BLOCKS, clumps
from marina.loadtest.gating.figures import SHARES, Percentile, Pods, Tails, Wrong
from marina.loadtest.gating.readings import LiveRound, failures
from marina.loadtest.judging import arrivals_to_decide

# How often a difference is found, and an equal revision passes, at the number of requests that is announced.
_POWER = 0.95
# What is to be found is half as far above the limit again: 30 % at a limit of 20 %.
_FOUND = 1.5
# So many of the old revision's pods play the new one.
_MOST_ROLES = 4
# A few windows show only roughly how many it takes.
_CAUTION = 2.0


class Need(Part):
    """What a gate needs to decide."""

    requests: int
    """How many the new revision must answer, and the old one at least as many."""
    errors: int
    """How many it takes to judge failures alone."""
    latency: int
    """And latency alone."""
    windows: int
    """Over how many windows: those that follow each other are alike."""

    def seconds(self, rate: float, window_s: float) -> float:
        """How long that takes if the new revision gets this many requests a second; infinite if it gets none."""
        return max(self.requests / rate if rate else math.inf, self.windows * window_s)


def needed(before: Sequence[Pods], error_rate: float, regression: float, wrong: Wrong) -> Need | None:
    """What it takes, from windows in which only the old revision served; None if these are too few to tell.

    Each of its pods plays the new revision once, and what that takes on average is announced."""
    estimates = [
        _needed(rounds, error_rate, regression, wrong)
        for rounds in _among_themselves(before)
        if len(rounds) >= FEWEST_BLOCKS and Tails.all_of(rounds)
    ]
    if not estimates:
        return None
    errors, latency, windows = (math.ceil(mean(values)) for values in zip(*estimates, strict=True))
    return Need(requests=math.ceil(_CAUTION * max(errors, latency)), errors=errors, latency=latency, windows=windows)


def _among_themselves(before: Sequence[Pods]) -> Iterator[list[LiveRound]]:
    """Rounds in which one pod of the old revision plays the new one. If there is only one pod, each window is played
    against the next."""
    names = sorted({pod for each in before for pod in each})
    if len(names) == 1:
        yield [LiveRound(one, other) for one, other in zip(before[::2], before[1::2], strict=False)]
        return
    for name in names[:_MOST_ROLES]:
        yield [
            LiveRound({pod: window for pod, window in each.items() if pod != name}, {name: each[name]})
            for each in before
            if name in each and len(each) > 1
        ]


def _needed(rounds: Sequence[LiveRound], error_rate: float, regression: float, wrong: Wrong) -> tuple[float, ...]:
    """How many requests for errors and for latency, and how many windows."""
    old, new = failures([each.old for each in rounds]), failures([each.new for each in rounds])
    share, arms = (sum(old.over) + sum(new.over)) / max(1, old.total + new.total), old.total / max(1, new.total)
    known = [clumps(old, new)]
    errors, latency = known[0].widened(wrong.fails) * _to_tell(share, share + error_rate, arms, wrong), 0.0
    for tails, name in product(Tails.all_of(rounds), SHARES):
        known.append(tails.compared(SHARES[name], 1.0)[2])
        values = known[-1].widened(wrong.fails) * _for_latency(tails, name, regression, arms, wrong)
        # An answer has many tokens.
        latency = max(latency, values * old.total / tails.old.count)
    times = max(each.windows for each in known)
    return errors, latency, FEWEST_BLOCKS * BLOCK_TIMES * times if times > 1 else FEWEST_BLOCKS


def _for_latency(tails: Tails, name: Percentile, regression: float, arms: float, wrong: Wrong) -> float:
    """How many independent answers it takes to find what is `_FOUND` times as much slower as allowed, and to pass what
    is not slower: by the shape of the old revision's latencies."""
    old = tails.old
    line, limit, slower = old.percentile(SHARES[name]) or 0.0, 1 + regression, 1 + _FOUND * regression
    above = old.over(line) / old.count
    found = old.over(line * limit / slower) / old.count
    equal = old.over(line * limit) / old.count
    return max(_to_tell(above, found, arms, wrong), _to_tell(above, equal, arms, wrong))


def _to_tell(old: float, new: float, arms: float, wrong: Wrong) -> float:
    """How many answers of the new revision it takes to tell two shares from each other, if the old one has `arms` times
    as many."""
    less, more = sorted((old, new))
    if not more > less:
        return 0.0
    if not less:
        return arrivals_to_decide(more, 0.0, 1.0)
    normal = NormalDist()
    ends = normal.inv_cdf(1 - wrong.fails) + normal.inv_cdf(_POWER)
    return ends**2 * (old * (1 - old) / arms + new * (1 - new)) / (more - less) ** 2
