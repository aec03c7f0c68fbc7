"""Confidence intervals of a run's p99, error rate and throughput, and whether each decides its limit. No I/O."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple, TypeVar

from marina.config.measured import Check, Objective, Reason, VerdictStatus
from marina.config.record import Part
from marina.loadtest.judging import interval
from marina.loadtest.judging.interval import Counts
from marina.loadtest.judging.verdict import UNDECIDED, interval_text, value_text
from marina.loadtest.measuring import Histogram, Measurement, Slice

P99_SHARE = 0.99
# A percentile needs ten samples above it to be more than an anecdote.
_SAMPLES_ABOVE = 10
# So that a few dropped samples, or a schedule with few arrivals, do not make a run too small to judge.
SPARE_SAMPLES = 1.1
# A lower percentile: more latencies cross it, so it shows better for how long they stay high.
_WIDE_SHARE = 0.95
# The tail of a queue falls at least exponentially: if no latency is over half a limit, fewer than 1 % exceed it.
NONE_OVER_SHARE = 0.5
_MOST_STATED = 1_000_000
Judged = TypeVar("Judged", bound=Part)
LatenciesOf = Callable[[Measurement | Slice], Histogram]
_NONE = Histogram()


class Tail(NamedTuple):
    """A kind of latency of which 99 in 100 must be within a limit."""

    name: Literal["p99", "ttft", "itl"]
    limit: float
    of: LatenciesOf


@dataclass(frozen=True)
class Interval:
    """An interval, each of whose ends is exceeded by one measurement in twenty, and what it says about a limit."""

    low: float
    high: float
    status: VerdictStatus
    """INVALID if the limit lies inside the interval."""
    more: float
    """About how many more arrivals it would take to decide."""


def judged_tails(objective: Objective) -> list[Tail]:
    """The latencies that have a limit; that of whole answers comes first."""
    tails = [Tail("p99", objective.p99_ms, lambda run: run.response)]
    if objective.ttft_p99_ms is not None:
        tails.append(Tail("ttft", objective.ttft_p99_ms, lambda run: run.streams.first if run.streams else _NONE))
    if objective.itl_p99_ms is not None:
        tails.append(Tail("itl", objective.itl_p99_ms, lambda run: run.streams.gaps if run.streams else _NONE))
    return tails


def samples_needed(share: float = P99_SHARE) -> int:
    """How many answers it takes to judge a percentile."""
    return math.ceil(_SAMPLES_ABOVE / (1 - Fraction(str(share))))


def arrivals_needed(error_rate: float) -> int:
    """How many requests without a single error show that fewer than `error_rate` of them fail."""
    return math.ceil(interval.arrivals_to_decide(error_rate, 0, 1)) if 0 < error_rate < 1 else 1


def tail_interval(response: Histogram, slices: Sequence[Histogram], limit_ms: float) -> Interval:
    """The interval of the p99 of any latencies: `response` has all of them, `slices` the same ones slice by slice."""
    count, share = response.count, 1 - P99_SHARE
    near, wide = (_beyond(slices, response, part) for part in (P99_SHARE, _WIDE_SHARE))
    at_limit = Counts([piece.over(limit_ms) for piece in slices], near.of)
    clumps = max(interval.clumping(counts, wide) for counts in (near, at_limit))
    most = interval.most_surely_below(share, count, clumps)
    fewest = interval.fewest_surely_above(share, count, clumps)
    high = min(response.max_ms / NONE_OVER_SHARE, response.ranked(count - most) if most >= 0 else math.inf)
    low = response.ranked(count + 1 - fewest) if fewest <= count else response.min_ms
    over = count - response.within(limit_ms)
    more = interval.arrivals_to_decide(share, over / count, clumps) - count
    return Interval(low, high, _decided(low > limit_ms, high <= limit_ms), more)


def errors_interval(measurement: Measurement, limit: float) -> Interval:
    """The interval of the share of requests that fail."""
    counts = _failed(measurement)
    low, high, clumps = _share_between(counts)
    # No number of good answers proves that requests never fail.
    status = _decided(low > limit or (limit == 0 and counts.share > 0), high <= limit or counts.share == limit == 0)
    return Interval(low, high, status, interval.arrivals_to_decide(limit, counts.share, clumps) - counts.total)


def throughput_interval(measurement: Measurement, limit_rps: float) -> Interval:
    """The interval of the good answers in time per second."""
    slices = measurement.slices
    counts = Counts([max(0, piece.due - piece.in_time) for piece in slices], [piece.due for piece in slices])
    least, most, clumps = _share_between(counts)
    offered = measurement.planned / measurement.asked_s
    low, high = offered * (1 - most), offered * (1 - least)
    missing = max(0.0, 1 - limit_rps / offered)
    more = interval.arrivals_to_decide(missing, counts.share, clumps) - counts.total
    return Interval(low, high, _decided(high < limit_rps, low >= limit_rps), more)


def goodput_interval(measurement: Measurement, limit: float) -> Interval:
    """The interval of the share of streamed requests that met every objective."""
    counts = _missed(measurement)
    least, most, clumps = _share_between(counts)
    more = interval.arrivals_to_decide(1 - limit, counts.share, clumps) - counts.total
    return Interval(1 - most, 1 - least, _decided(1 - least < limit, 1 - most >= limit), more)


def decide(check: Check, between: Interval, judged: float | None = None) -> tuple[Check, VerdictStatus]:
    """The check with its interval, and its status: INVALID if the limit lies inside the interval.

    `judged` is the limit of the interval, if it is not that of the check."""
    check = check.model_copy(update={"interval": (between.low, between.high)})
    if between.status != "INVALID":
        return check, between.status
    limit = value_text(check, check.limit if judged is None else judged)
    text = f"the limit of {limit} lies inside the interval of {check.objective}, {interval_text(check)}"
    return with_status(check, "INVALID", UNDECIDED, f"{text}: {_more(between.more)} would decide"), "INVALID"


def _more(requests: float) -> str:
    if requests > _MOST_STATED:
        return f"more than {_MOST_STATED:,} more requests"
    return f"about {float(f'{max(requests, 100):.2g}'):,.0f} more requests"


def with_status(check: Judged, status: VerdictStatus, reason: str = "", text: str = "") -> Judged:
    """A copy of the check, or of a compared figure, with this status, and with a reason for it if one is given."""
    reasons = (Reason(id=reason, text=text),) if reason else ()
    return check.model_copy(update={"status": status, "reasons": reasons})


def slow_clumps(runs: Sequence[Measurement], of: LatenciesOf = lambda run: run.response) -> float:
    """How many latencies carry as much information as one independent one, estimated from all these runs together."""
    windows = []
    for run in runs:
        if run.slices and of(run).count:
            slices = [of(piece) for piece in run.slices]
            near, wide = (_beyond(slices, of(run), share) for share in (P99_SHARE, _WIDE_SHARE))
            windows.append((near, wide))
    return interval.clumping_together(windows)


def failed_clumps(runs: Sequence[Measurement]) -> float:
    """The same as `slow_clumps`, for failed requests."""
    counts = [_failed(run) for run in runs if run.slices]
    return interval.clumping_together([(count, count) for count in counts])


def missed_clumps(runs: Sequence[Measurement]) -> float:
    """The same as `slow_clumps`, for streamed requests that missed an objective."""
    counts = [_missed(run) for run in runs if run.slices]
    return interval.clumping_together([(count, count) for count in counts])


def _missed(measurement: Measurement) -> Counts:
    missed = [piece.admitted - (piece.streams.met if piece.streams else 0) for piece in measurement.slices]
    return Counts(missed, [piece.admitted for piece in measurement.slices])


def _failed(measurement: Measurement) -> Counts:
    return Counts([piece.failed for piece in measurement.slices], [piece.admitted for piece in measurement.slices])


def _share_between(counts: Counts) -> tuple[float, float, float]:
    clumps = interval.clumping(counts, counts)
    return *interval.share_interval(sum(counts.over), counts.total, clumps), clumps


def _beyond(slices: Sequence[Histogram], whole: Histogram, share: float) -> Counts:
    """The latencies above a percentile, with those in its own bucket if that comes nearer to the share it leaves above.

    Without them, a tail of equal latencies, such as those of timeouts, would have nothing above its p99."""
    line, above = whole.percentile(share) or 0.0, (1 - share) * whole.count
    own = whole.over(line) * whole.over(line, own_bucket=True) < above**2
    return Counts([piece.over(line, own_bucket=own) for piece in slices], [piece.count for piece in slices])


def _decided(misses: bool, meets: bool) -> VerdictStatus:
    return "FAIL" if misses else "PASS" if meets else "INVALID"
