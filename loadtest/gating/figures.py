"""The figures of a gate: failed and refused requests and two percentiles, of the new revision against the old. No I/O.

The percentiles are those of the latency, or with a language model, whose answers are as long as they are asked for, of
the time to the first token and from one token to the next.

A percentile is compared by what lies above a line: if the new revision may be 1.2 times as slow, its answers above 1.2
times the line are compared with the old one's above the line. That needs no percentile of a window, which with twenty
requests would be the slowest of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from marina.config.histogram import Histogram
from marina.loadtest.comparing.comparison import Figure, FigureName
from marina.loadtest.gating.difference import Clumps, clumps, surplus
from marina.loadtest.gating.readings import LiveRound, PodWindow, failures, merged, refusals
from marina.loadtest.judging import CONFIDENCE, P99_SHARE, UNDECIDED, Counts, with_status
from marina.loadtest.measuring import figure, percent

_HALVINGS = 40
# The ends of a ratio's interval are shown to 2 %, between a quarter and four times.
_WIDEST, _SHOWN_HALVINGS = 4.0, 7
Pods = Mapping[str, PodWindow]
Percentile = Literal["p50", "p99"]
SHARES: dict[Percentile, float] = {"p50": 0.5, "p99": P99_SHARE}
_NAMES: dict[tuple[str, Percentile], FigureName] = {
    ("", "p50"): "p50",
    ("", "p99"): "p99",
    ("ttft", "p50"): "ttft p50",
    ("ttft", "p99"): "ttft p99",
    ("itl", "p50"): "itl p50",
    ("itl", "p99"): "itl p99",
}
# What is less rare than answers above the p99.
_WIDE_SHARE = 0.9
# A client sends as many bad requests as it likes, and may stay with one pod: fewer than these on top mean nothing.
_REFUSED = 0.01


class Wrong(NamedTuple):
    """How often a figure may fail, and pass, wrongly."""

    fails: float
    passes: float = 1 - CONFIDENCE


class Tails:
    """The latencies of both revisions above a line, in each round: those of good answers, or of their tokens."""

    def __init__(self, rounds: Sequence[LiveRound], of: str = "") -> None:
        self.of = of
        self._old = [merged(each.old.values(), of) for each in rounds]
        self._new = [merged(each.new.values(), of) for each in rounds]
        self.old, self.new = _whole(self._old), _whole(self._new)

    @classmethod
    def all_of(cls, rounds: Sequence[LiveRound]) -> "list[Tails]":
        """Those that are judged; empty if one of the revisions gave no good answer."""
        old, new = ({kind for each in side for pod in each.values() for kind in pod.tokens} for side in _sides(rounds))
        every = [cls(rounds, kind) for kind in sorted(old & new, reverse=True) or [""]] if rounds else []
        return every if all(tails.old.count and tails.new.count for tails in every) else []

    def compared(self, share: float, times: float) -> tuple[Counts, Counts, Clumps]:
        """The answers above the line, and how many of them carry as much information as one."""
        old, new = self.above(share, times)
        return old, new, clumps(old, new, *([self.above(_WIDE_SHARE, times)] if share > _WIDE_SHARE else []))

    def named(self, percentile: Percentile) -> FigureName:
        """The name of one of its percentiles."""
        return _NAMES[self.of, percentile]

    def above(self, share: float, times: float) -> tuple[Counts, Counts]:
        """The old revision's answers above the line, and the new one's above `times` the line, of which `share` of both
        together are within it. Both count alike, however many answers each gave."""
        line = self._line(share, times)
        return _over(self._old, line), _over(self._new, times * line)

    def _line(self, share: float, times: float) -> float:
        old, new = self.old, self.new
        low, high = min(old.min_ms, new.min_ms / times), max(old.max_ms, new.max_ms / times)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = old.over(middle) / old.count + new.over(times * middle) / new.count
            low, high = (middle, high) if above > 2 * (1 - share) else (low, middle)
        return high


def percentile_figure(tails: Tails, percentile: Percentile, regression: float, wrong: Wrong, *, shown: bool) -> Figure:
    """One percentile of the new revision against the old. Only a figure that is `shown` has an interval."""
    limit, share, name = 1 + regression, SHARES[percentile], tails.named(percentile)

    def end(times: float) -> tuple[float, float]:
        return surplus(*tails.compared(share, times), wrong.fails, wrong.passes)

    low, high = end(limit)
    old, new = tails.old.percentile(share) or 0.0, tails.new.percentile(share) or 0.0
    made = Figure(
        figure=name,
        status="FAIL" if low > 0 else "PASS" if high <= 0 else "INVALID",
        old=old,
        new=new,
        ratio=new / old if old else None,
        interval=_interval(end) if shown else None,
        limit=limit,
        unit="ms",
    )
    text = f"{name} is {figure(new)} ms, and {figure(old)} ms in the old revision"
    if made.status == "FAIL":
        reason = f"{name.replace(' ', '-')}-worse"
        return with_status(made, "FAIL", reason, f"{text}: certainly more than {regression:.0%} slower")
    if made.status == "INVALID":
        return with_status(made, "INVALID", UNDECIDED, f"{text}: perhaps more than {regression:.0%} slower")
    return made


def error_figure(rounds: Sequence[LiveRound], limit: float, wrong: Wrong) -> Figure:
    """The share of failed requests, as a difference: a ratio of two rare things would never be certain."""
    old, new = map(failures, _sides(rounds))
    known = clumps(old, new)
    low, high = surplus(old, new, known, wrong.fails, wrong.passes)
    # No number of good answers proves that requests never fail.
    passes = high <= limit or (limit == 0 and new.share <= old.share)
    made = Figure(
        figure="errors",
        status="FAIL" if low > limit else "PASS" if passes else "INVALID",
        old=old.share,
        new=new.share,
        interval=(low, high),
        limit=limit,
        unit="share",
    )
    text = f"{percent(new.share)} of the requests failed, and {percent(old.share)} in the old revision"
    if made.status == "FAIL":
        return with_status(made, "FAIL", "errors-worse", f"{text}: certainly more than {percent(limit)} on top")
    if made.status == "INVALID":
        text = f"{text}: perhaps {percent(high)} on top, allowed: {percent(limit)}"
        return with_status(made, "INVALID", UNDECIDED, text)
    return made


def refused_figure(rounds: Sequence[LiveRound], limit: float, wrong: Wrong) -> Figure:
    """The share of requests that were refused, with a status of 400 to 499. It passes unless it is certainly larger:
    which requests are bad, the clients decide, and these may be others for each pod."""
    old, new = map(refusals, _sides(rounds))
    low, high = surplus(old, new, clumps(old, new), wrong.fails, wrong.passes)
    limit = max(limit, _REFUSED)
    made = Figure(
        figure="refused",
        status="FAIL" if low > limit else "PASS",
        old=old.share,
        new=new.share,
        interval=(low, high),
        limit=limit,
        unit="share",
    )
    if made.status == "PASS":
        return made
    text = f"{percent(new.share)} of the requests were refused (4xx), and {percent(old.share)} in the old revision"
    return with_status(made, "FAIL", "refused-more", f"{text}: certainly more than {percent(limit)} on top")


def _sides(rounds: Sequence[LiveRound]) -> tuple[list[Pods], list[Pods]]:
    return [each.old for each in rounds], [each.new for each in rounds]


def _whole(histograms: Sequence[Histogram]) -> Histogram:
    whole = Histogram(histograms[0].limits)
    for each in histograms:
        whole.merge(each)
    return whole


def _over(windows: Sequence[Histogram], line_ms: float) -> Counts:
    return Counts([each.over(line_ms) for each in windows], [each.count for each in windows])


def _interval(end: Callable[[float], tuple[float, float]]) -> tuple[float, float | None]:
    """The ratios at whose ends the difference of the shares is certainly no longer above, and below, 0."""
    low, _ = _bracket(lambda times: end(times)[0] > 0)
    _, high = _bracket(lambda times: end(times)[1] > 0)
    return (low if low > 1 / _WIDEST else 0.0), (high if high < _WIDEST else None)


def _bracket(is_within: Callable[[float], bool]) -> tuple[float, float]:
    """The ratio up to which something holds, by bisection of its logarithm."""
    low, high = 1 / _WIDEST, _WIDEST
    for _ in range(_SHOWN_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low, high
