"""The checks of streamed answers: the time to the first text, the gaps between texts, and goodput. No I/O."""

from typing import Literal, NamedTuple

from marina.loadtest.judging.certainty import (
    P99_SHARE,
    LatenciesOf,
    blame_late_sends,
    decide,
    goodput_interval,
    samples_needed,
    tail_interval,
    with_status,
)
from marina.loadtest.judging.verdict import TOO_FEW, Check, Objective, VerdictStatus
from marina.loadtest.measuring import Histogram, Measurement, figure, nearest_rank, percent

_NAMES = {"ttft": "first text", "itl": "time between pieces of text"}
_NONE = Histogram()


class Tail(NamedTuple):
    """A kind of latency of which 99 in 100 must be within a limit."""

    name: Literal["p99", "ttft", "itl"]
    limit: float
    of: LatenciesOf


def judged_tails(objective: Objective) -> list[Tail]:
    """The latencies that have a limit; that of whole answers comes first."""
    tails = [Tail("p99", objective.p99_ms, lambda run: run.response)]
    if objective.ttft_p99_ms is not None:
        tails.append(Tail("ttft", objective.ttft_p99_ms, lambda run: run.streams.first if run.streams else _NONE))
    if objective.itl_p99_ms is not None:
        tails.append(Tail("itl", objective.itl_p99_ms, lambda run: run.streams.gaps if run.streams else _NONE))
    return tails


def stream_checks(measurement: Measurement, objective: Objective, late: int) -> list[Check]:
    """One check for each objective of streams; up to `late` requests may be slow only because they were sent late."""
    checks = [_tail(tail, measurement, late if tail.name == "ttft" else 0) for tail in judged_tails(objective)[1:]]
    return checks if objective.goodput is None else [*checks, _goodput(objective.goodput, measurement)]


def _tail(tail: Tail, measurement: Measurement, late: int) -> Check:
    name, limit = tail.name, tail.limit
    check = Check(objective=name, status="PASS", limit=limit, measured=None, unit="ms")
    if measurement.streams is None:
        return with_status(check, "INVALID", "no-events", f"no answer was streamed, so {name} cannot be measured")
    whole = tail.of(measurement)
    check = check.model_copy(update={"measured": whole.percentile(P99_SHARE)})
    if not measurement.good:
        return with_status(check, "FAIL" if measurement.finished else "INVALID")
    if whole.count < samples_needed():
        text = f"{whole.count:,} are too few for a p99 of {name}, which needs {samples_needed():,}"
        return with_status(check, "INVALID", TOO_FEW, text)
    over = whole.count - whole.within(limit)
    allowed = whole.count - nearest_rank(P99_SHARE, whole.count)
    status: VerdictStatus = "PASS" if over <= allowed else "FAIL"
    if measurement.slices:
        check, status = decide(check, tail_interval(whole, [tail.of(piece) for piece in measurement.slices], limit))
    if status != "FAIL":
        return check
    text = f"{_NAMES[name]} p99 {figure(check.measured or 0.0)} ms > {figure(limit)} ms"
    if over - late <= allowed:
        return blame_late_sends(check, text)
    return with_status(check, "FAIL", f"{name}-over", text)


def _goodput(limit: float, measurement: Measurement) -> Check:
    check = Check(objective="goodput", status="PASS", limit=limit, measured=None, unit="share")
    streams = measurement.streams
    if streams is None or not measurement.finished:
        return with_status(check, "INVALID")
    met = streams.met / measurement.due
    check = check.model_copy(update={"measured": met})
    status: VerdictStatus = "PASS" if met >= limit else "FAIL"
    if measurement.slices:
        check, status = decide(check, goodput_interval(measurement, limit))
    if status != "FAIL":
        return check
    text = f"{percent(met)} of requests met every objective < {percent(limit)}"
    return with_status(check, "FAIL", "goodput-low", text)
