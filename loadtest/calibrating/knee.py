"""The search for the knee, the highest rate that meets the objective: bursts say roughly where it is, a bisection puts
it between two rates, and what the runs near it measured narrows that bracket.

The caller provides the trials; this module only decides which rate to try next, and when to stop. No I/O."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marina.config.measured import Knee, Objective, Verdict, VerdictStatus
from marina.loadtest.judging import P99_SHARE, failed_clumps, judged_tails, missed_clumps, slow_clumps
from marina.loadtest.measuring import Measurement, figure

TrialFunction = Callable[[float], VerdictStatus]
"""Whether a server holds a rate; INVALID if the generator could not measure it. Untrusted ends the search."""
Run = tuple[Measurement, Verdict]

TOLERANCE = 0.05
TRIES = 4
# Bursts have said roughly where the knee is; a first rate that somebody chose may be far from it.
_RAISE, _MOST_RAISE = 1.3, 2.0
_BURST_RAISE, _KEPT_UP = 4.0, 0.9
_ESTIMATES, _GROWN = 4, 1.1
_LOWEST_RPS, _HIGHEST_RPS = 0.5, 100_000.0
# Runs within this factor of the knee say where it is; further away, lateness rises in another way.
_NEAR = 1.2
# Twice the log-likelihood falls by this much at the ends of an interval that 19 of 20 such intervals hold the truth in.
_FALL = 3.84
# A run sees only a few clumps, and takes them for smaller than they are, by about this factor (`make bench-knee`); it
# counts as much as these many runs, which say by their differences how large they are.
_MORE_CLUMPED, _AS_MANY_RUNS = 1.5, 4
_CANDIDATES = 241
_STEEPNESS = [5 * 1.6**step for step in range(9)]


class Untrusted(Exception):
    """Raised if no run at a rate can be trusted; its text says why."""


class NotMeasurable(Untrusted):
    """Raised if the generator repeatedly failed to measure a rate."""


class NeverHeld(Untrusted):
    """Raised if the objective does not hold at any rate."""


def estimate_capacity(held: Callable[[float], float], first: float) -> float:
    """Roughly the rate that a server holds: the most good answers per second in bursts at higher and higher rates.

    The bursts are repeated until that no longer grows, since a server that has just started gets faster every second.

    This is only a starting point for the search; a burst is too short to be judged."""
    best = answered = 0.0
    for _ in range(_ESTIMATES):
        answered = _most_answered(held, first)
        if answered <= _GROWN * best:
            break
        best, first = answered, answered / _BURST_RAISE
    return max(best, answered, _LOWEST_RPS)


def _most_answered(held: Callable[[float], float], rate: float) -> float:
    """The most good answers per second of one burst; the rate rises until clearly fewer answers are good than sent."""
    most = 0.0
    while (answered := held(rate)) >= _KEPT_UP * rate and rate < _HIGHEST_RPS:
        most = max(most, answered)
        rate *= _BURST_RAISE
    return max(most, answered)


def holds(trial: TrialFunction, rate: float) -> bool:
    """Whether a rate is held; an INVALID run is repeated a few times."""
    for _ in range(TRIES):
        status = trial(rate)
        if status != "INVALID":
            return status == "PASS"
    raise NotMeasurable(f"{TRIES} runs at {figure(rate)} requests/s were INVALID")


def bisect_knee(trial: TrialFunction, first: float, tolerance: float) -> Knee:
    """Moves out from `first` until one rate is held and one is not, then bisects; Untrusted if no rate is held, or all
    are. A rate above a held one that cannot be measured counts as not held."""
    low, high, unmeasured = 0.0, math.inf, False
    rate, step = first, _RAISE
    while high / max(low, 1e-9) > (1 + tolerance) ** 2:
        try:
            passed, lost = holds(trial, rate), False
        except NotMeasurable:
            if not low:
                raise
            passed, lost = False, True
        if passed:
            low = rate
        else:
            # Only the lowest rate that was not held shows what the limit is.
            high, unmeasured = rate, lost
        if low > _HIGHEST_RPS:
            text = f"the objective still holds at {figure(low)} requests/s, the highest rate tried"
            raise Untrusted(text)
        if high < _LOWEST_RPS:
            raise NeverHeld(
                f"the objective does not hold even at {figure(high)} requests/s: one answer takes longer than "
                "`slo.p99_ms` allows, or the machine is busy"
            )
        if low and high < math.inf:
            rate = math.sqrt(low * high)
        else:
            rate, step = low * step or high / step, min(step * step, _MOST_RAISE)
    if unmeasured:
        return Knee(rps=low, limit="generator")
    return Knee(rps=math.sqrt(low * high), interval=(low, high))


@dataclass(frozen=True)
class _Look:
    """What one run says about the knee: at this rate, `over` of `total` independent requests missed a limit that
    `share` of them may miss."""

    rate: float
    over: float
    total: float
    share: float

    @property
    def excess(self) -> float:
        return self.over / (self.share * self.total)

    def chance(self, knee: float, steep: float) -> float:
        """The chance that a request misses its limit here: at the knee it is `share`, and its odds grow with a power of
        the rate."""
        odds = math.log(self.share / (1 - self.share)) + steep * math.log(self.rate / knee)
        return min(1 - 1e-12, max(1e-12, 1 / (1 + math.exp(-max(-60.0, min(60.0, odds))))))

    def likelihood(self, knee: float, steep: float) -> float:
        chance = self.chance(knee, steep)
        return self.over * math.log(chance) + (self.total - self.over) * math.log1p(-chance)

    def surprise(self, knee: float, steep: float) -> float:
        chance = self.chance(knee, steep)
        return (self.over - self.total * chance) ** 2 / (self.total * chance * (1 - chance))


def narrowed(found: Knee, about: float, runs: Sequence[Run], objective: Objective, tolerance: float) -> Knee:
    """The knee that fits all runs near `about`, and the interval of those that fit nearly as well.

    If these runs only tell whether a rate was held, as those of a server that answers with errors above its knee, the
    interval is that between the highest held rate and the lowest one that was not."""
    judged = [run for run, verdict in runs if verdict.status != "INVALID"]
    near = [run for run in judged if about / _NEAR <= run.rate <= about * _NEAR]
    looks = _looks(near, objective)
    if any(look.excess > 1 for look in looks) and any(look.excess <= 1 for look in looks):
        low, rps, high = _interval(looks, about / _NEAR, about * _NEAR)
    else:
        around = [(run.rate, verdict.status) for run, verdict in runs if run.rate <= 2 * found.rps]
        held = max((rate for rate, status in around if status == "PASS"), default=found.rps)
        missed = min((rate for rate, status in around if status == "FAIL"), default=held)
        low, high = sorted((held, missed))
        rps = math.sqrt(low * high)
    # An interval that is narrower than it was asked to be claims too much: how clumped the runs are is only estimated.
    low, high = min(low, (1 - tolerance) * rps), max(high, (1 + tolerance) * rps)
    return found.model_copy(update={"rps": rps, "interval": (low, high)})


def _looks(near: Sequence[Measurement], objective: Objective) -> list[_Look]:
    """For each run the limit that it misses by most. Requests in a queue are late in clumps, so each run counts only as
    many requests as are independent."""
    looks: list[list[_Look]] = [[] for _ in near]

    def add(share: float, clumps: float, counts: Sequence[tuple[float, float]]) -> None:
        for mine, run, (over, total) in zip(looks, near, counts, strict=True):
            if total:
                mine.append(_Look(run.rate, over / clumps, total / clumps, share))

    for tail in judged_tails(objective):
        slow = [(tail.of(run).over(tail.limit), tail.of(run).count) for run in near]
        add(1 - P99_SHARE, slow_clumps(near, tail.of), slow)
    if objective.goodput is not None:
        met = [(run.planned - run.streams.met, run.planned) if run.streams else (0, 0) for run in near]
        add(1 - objective.goodput, missed_clumps(near), met)
    if 0 < objective.error_rate < 1:
        add(objective.error_rate, failed_clumps(near), [(run.failed, run.finished) for run in near])
    return [max(mine, key=lambda look: look.excess) for mine in looks if mine]


def _interval(looks: Sequence[_Look], lowest: float, highest: float) -> tuple[float, float, float]:
    """The ends of the interval, and the likeliest knee between them."""
    step = (highest / lowest) ** (1 / (_CANDIDATES - 1))
    knees = [lowest * step**place for place in range(_CANDIDATES)]
    fits = [max((sum(look.likelihood(knee, steep) for look in looks), steep) for steep in _STEEPNESS) for knee in knees]
    best, steep = max(fits)
    flat = [knee for knee, (likelihood, _) in zip(knees, fits, strict=True) if best - likelihood < 1e-3]
    rps = math.sqrt(flat[0] * flat[-1])
    # If runs differ from each other more than chance explains, the interval becomes wider.
    surprises = _AS_MANY_RUNS * _MORE_CLUMPED + sum(look.surprise(rps, steep) for look in looks)
    allowed = _FALL / 2 * max(1.0, surprises / (_AS_MANY_RUNS + len(looks) - 2))
    inside = [knee for knee, (likelihood, _) in zip(knees, fits, strict=True) if best - likelihood <= allowed]
    return inside[0], rps, inside[-1]
