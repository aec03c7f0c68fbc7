"""`judge`: turns a measurement and an objective into PASS, FAIL or INVALID, with every reason. No I/O.

Each objective has its own status. A reason against the whole run (a late generator, another package) makes everything
INVALID; a reason against a single figure (too few samples for a p99) makes only that objective INVALID. A trusted FAIL
outweighs an INVALID objective, so that a server that fails every request is not excused by a short run."""

import math
from collections.abc import Sequence

from marina.config.errors import InputError
from marina.config.measured import Check, Objective, Reason, Verdict, VerdictStatus
from marina.config.spec import Spec
from marina.loadtest.judging.certainty import (
    P99_SHARE,
    Tail,
    decide,
    errors_interval,
    goodput_interval,
    judged_tails,
    samples_needed,
    tail_interval,
    throughput_interval,
    with_status,
)
from marina.loadtest.judging.trust import busy_machine_reasons, distrust_reasons, server_died_reasons
from marina.loadtest.judging.verdict import TOO_FEW, is_undecided, worst_status
from marina.loadtest.measuring import Histogram, Measurement, figure, merge_histograms, nearest_rank, percent, pool

HELD_SHARE = 0.99
# Late requests are sent all at once, and about as many behind them wait until the server has caught up.
_DELAYED_BY_LATE = 2
_SHORTEST_TIMEOUT_S = 10.0
_PARTS, _FEWEST_IN_PART = 5, 20
# A queue that grows by this share of the time that passes is that of a server that answers this share too little.
_BEHIND = 0.01
# Two counts at the same rate never differ by this many standard deviations.
_BY_CHANCE = 4
# For each kind of latency, what there are too few of, and what is too slow.
_TAIL_TEXTS = {
    "p99": ("answers are too few for a p99", "p99"),
    "ttft": ("are too few for a p99 of ttft", "first text p99"),
    "itl": ("are too few for a p99 of itl", "time between pieces of text p99"),
}


def objective_of(spec: Spec) -> Objective:
    """The spec's objective; InputError if it has none."""
    if spec.slo is None:
        hint = "add to the spec: slo: {p99_ms: 100, error_rate: 0.001, throughput_rps: 50}"
        raise InputError(f"{spec.file}: `slo`: missing, a verdict needs an objective", hint=hint)
    return Objective(**{name: getattr(spec.slo, name) for name in Objective.model_fields})


def client_timeout_s(objective: Objective, given_s: float | None = None) -> float:
    """How long a client waits for an answer; InputError if it would give up on answers that are still in time."""
    limit_s = objective.p99_ms / 1000
    if given_s is None:
        return max(_SHORTEST_TIMEOUT_S, 2 * limit_s)
    if given_s <= limit_s:
        text = f"`--timeout`: got {given_s:g}, allowed: more than the {limit_s:g} s of `slo.p99_ms`"
        text = f"{text}, or a client would give up on answers that are still in time"
        raise InputError(text, hint=f"--timeout {2 * limit_s:g}")
    return given_s


def judge(runs: Measurement | Sequence[Measurement], objective: Objective) -> Verdict:
    """The verdict on a run, or on several: the runs that can be trusted are judged together."""
    runs = [runs] if isinstance(runs, Measurement) else list(runs)
    against = [distrust_reasons(run, objective) for run in runs]
    trusted = [run for run, reasons in zip(runs, against, strict=True) if not reasons]
    untrusted, died = _numbered(against), _numbered([server_died_reasons(run) for run in runs])
    pooled = pool(trusted or runs)
    # How many requests may be slow or shed only because some were sent late.
    late = _DELAYED_BY_LATE * pooled.lag.over(objective.late_ms)
    whole, *pieces = [_latency(tail, pooled, late) for tail in judged_tails(objective)]
    checks = [whole, _errors(pooled, objective, late), _throughput(pooled, objective, trusted), *pieces]
    if objective.goodput is not None:
        checks.append(_goodput(objective.goodput, pooled))
    if not trusted:
        checks = [check.model_copy(update={"status": "INVALID"}) for check in checks]
    status = worst_status([check.status for check in checks] + (["INVALID"] if untrusted else []))
    # Whatever else was wrong with the run, a server that dies under load does not meet its objective.
    status = "FAIL" if died else status
    busy = _numbered([busy_machine_reasons(run) for run in runs]) if status == "FAIL" else []
    return Verdict(status=status, reasons=(*died, *untrusted, *busy), checks=tuple(checks))


def best_guess(verdict: Verdict, objective: Objective) -> VerdictStatus:
    """PASS or FAIL by the measured figures alone if the verdict is undecided; otherwise the verdict's status."""
    if not is_undecided(verdict):
        return verdict.status
    return "PASS" if all(_meets_limit(check, objective) for check in verdict.checks) else "FAIL"


def _held_share(objective: Objective) -> float:
    """Which share of the arrivals must be answered well and in time; those that may fail are judged as errors."""
    return min(HELD_SHARE, 1 - objective.error_rate)


def _meets_limit(check: Check, objective: Objective) -> bool:
    if check.measured is None:
        return False
    if check.objective == "goodput":
        return check.measured >= check.limit
    if check.objective == "throughput":
        return check.measured >= _held_share(objective) * check.limit
    return check.measured <= check.limit


def _numbered(reasons: Sequence[list[Reason]]) -> list[Reason]:
    """The reasons of all runs; if there are several runs, each reason starts with the number of its run."""
    if len(reasons) == 1:
        return reasons[0]
    return [
        Reason(id=reason.id, text=f"run {number}: {reason.text}")
        for number, run_reasons in enumerate(reasons, 1)
        for reason in run_reasons
    ]


def _latency(tail: Tail, run: Measurement, late: int) -> Check:
    """The check of one kind of latency: of whole answers, or of the pieces of streamed ones."""
    name, limit, latencies = tail.name, tail.limit, tail.of(run)
    measured = latencies.percentile(P99_SHARE)
    check = Check(objective=name, status="PASS", limit=limit, measured=measured, unit="ms")
    of_pieces, (few, slow) = name != "p99", _TAIL_TEXTS[name]
    if of_pieces and run.streams is None:
        return with_status(check, "INVALID", "no-events", f"no answer was streamed, so {name} cannot be measured")
    if not run.finished:
        return with_status(check, "INVALID")
    if not run.good:
        text = f"none of {run.finished:,} requests got a good answer"
        return with_status(check, "FAIL", "" if of_pieces else "errors-only", text)
    if latencies.count < samples_needed():
        text = f"{latencies.count:,} {few}, which needs {samples_needed():,}"
        return with_status(check, "INVALID", TOO_FEW, text)
    status: VerdictStatus = "PASS" if _meets(latencies, limit) else "FAIL"
    if run.slices:
        check, status = decide(check, tail_interval(latencies, [tail.of(piece) for piece in run.slices], limit))
    if status != "FAIL":
        return check
    over = f"{slow} {figure(measured or 0.0)} ms > {figure(limit)} ms"
    if _meets(latencies, limit, forgiven=late) or (not of_pieces and _meets(run.service, limit)):
        return _blame_late_sends(check, over)
    return with_status(check, "FAIL", f"{name}-over", over)


def _meets(latencies: Histogram, limit: float, forgiven: int = 0) -> bool:
    return latencies.within(limit) + forgiven >= nearest_rank(P99_SHARE, latencies.count)


def _blame_late_sends(check: Check, text: str) -> Check:
    """The check as INVALID: its limit was missed, but the generator's own delays explain that."""
    text = f"{text}, but only because the generator sent some requests late"
    return with_status(check, "INVALID", "lag-decides", text)


def _errors(run: Measurement, objective: Objective, late: int) -> Check:
    limit, rate = objective.error_rate, run.error_rate
    check = Check(objective="errors", status="PASS", limit=limit, measured=rate, unit="share")
    if rate is None:
        return with_status(check, "INVALID")
    status: VerdictStatus = "PASS" if rate <= limit else "FAIL"
    if run.slices:
        check, status = decide(check, errors_interval(run, limit))
    if status != "FAIL":
        return check
    shed = run.errors.get("shed", 0)
    named = ", ".join(f"{count:,} {name}" for name, count in run.errors.items())
    text = f"errors {percent(rate)} > {percent(limit)}: {named} of {run.finished:,} requests"
    if run.failed - min(shed, late) <= limit * run.finished:
        return _blame_late_sends(check, text)
    failed = with_status(check, "FAIL", "errors-over", text)
    if not shed:
        return failed
    reason = Reason(id="shed", text=f"{shed:,} requests were shed: the server's queue was full")
    return failed.model_copy(update={"reasons": (*failed.reasons, reason)})


def _throughput(run: Measurement, objective: Objective, runs: Sequence[Measurement]) -> Check:
    # A short run has a whole number of requests, so it may offer less, or more, than its rate.
    offered = run.planned / run.asked_s
    limit = objective.throughput_rps or offered
    least, held = _held_share(objective) * limit, run.held_rps
    check = Check(objective="throughput", status="PASS", limit=limit, measured=held, unit="requests/s")
    if not run.finished:
        return with_status(check, "INVALID")
    if offered < HELD_SHARE * limit:
        text = f"the run offered {figure(offered)} requests/s, the objective is {figure(limit)}"
        return with_status(check, "INVALID", "rate-below-objective", text)
    status: VerdictStatus = "PASS" if held >= least else "FAIL"
    if run.slices:
        check, status = decide(check, throughput_interval(run, least), least)
    if status == "FAIL":
        text = f"{figure(held)} requests/s were answered well and in time < {figure(limit)}"
        text += f": a rate limit refused {run.limited:,} requests with 429" if run.limited else ""
        check = with_status(check, "FAIL", "throughput-not-held", text)
    if grows := backlog_grows(runs):
        failures = check.reasons if check.status == "FAIL" else ()
        check = check.model_copy(update={"status": "FAIL", "reasons": (*failures, *grows)})
    return check


def _goodput(limit: float, run: Measurement) -> Check:
    check = Check(objective="goodput", status="PASS", limit=limit, measured=None, unit="share")
    if run.streams is None or not run.finished:
        return with_status(check, "INVALID")
    met = run.streams.met / max(1, run.admitted)
    check = check.model_copy(update={"measured": met})
    status: VerdictStatus = "PASS" if met >= limit else "FAIL"
    if run.slices:
        check, status = decide(check, goodput_interval(run, limit))
    if status != "FAIL":
        return check
    text = f"{percent(met)} of requests met every objective < {percent(limit)}"
    return with_status(check, "FAIL", "goodput-low", text)


def backlog_grows(runs: Sequence[Measurement]) -> list[Reason]:
    """The reason for a FAIL, if the queue grew during most of the measured time: in a short run, even a queue that only
    grows can stay below a high limit."""
    growing = [run for run in runs if _grew(run)]
    if 2 * sum(run.asked_s for run in growing) <= sum(run.asked_s for run in runs):
        return []
    first, *_, last = _parts(growing[-1])
    begun, ended = (figure(part.percentile(0.5) or 0.0) for part in (first, last))
    text = f"requests wait longer and longer: p50 rose from {begun} ms to {ended} ms and never fell back"
    return [Reason(id="backlog-grows", text=f"{text}, so the server gets more than it can answer")]


def _grew(run: Measurement) -> bool:
    """Whether the queue grew throughout a run.

    The first fifth must be the fastest and the last the slowest, and even the fast answers of the last fifth must be
    slower than the slow ones of the first. A queue that empties now and then does not show that. And the waits must
    grow by more than a server's that answers nearly all: one that only becomes slower has no queue."""
    parts = _parts(run)
    if not parts or min(part.count for part in parts) < _FEWEST_IN_PART or more_came(run):
        return False
    middles = [part.percentile(0.5) or 0.0 for part in parts]
    if middles[-1] - middles[0] <= 1000 * _BEHIND * run.asked_s * (_PARTS - 1) / _PARTS:
        return False
    fastest, slowest = parts[-1].percentile(0.1) or 0.0, parts[0].percentile(0.9) or 0.0
    return middles[0] == min(middles) and middles[-1] == max(middles) and fastest > slowest


def more_came(run: Measurement) -> bool:
    """Whether the last fifth had more arrivals than the first, as a trace may have: then longer waits are expected."""
    fifth = len(run.slices) // _PARTS
    first, last = (sum(piece.due for piece in pieces) for pieces in (run.slices[:fifth], run.slices[-fifth:]))
    return last - first > _BY_CHANCE * math.sqrt(last + first)


def _parts(run: Measurement) -> list[Histogram]:
    """The latencies of each fifth of a run; for streamed answers, whose lengths differ, the times to the first text."""
    fifth = len(run.slices) // _PARTS
    waited = [piece.streams.first if piece.streams else piece.response for piece in run.slices]
    return [merge_histograms(waited[at * fifth : (at + 1) * fifth]) for at in range(_PARTS)] if fifth else []
