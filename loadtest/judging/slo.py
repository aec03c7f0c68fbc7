"""`judge`: from a measurement and an objective to PASS, FAIL or INVALID, with every reason. Pure.

Each objective has its own status. A reason against the whole run (a late generator, another package) makes everything
INVALID; one against a single figure (too few samples for p99) only that objective. A trusted FAIL outweighs an INVALID
objective beside it, so that a server which fails every request is not excused by a short run.
"""

from __future__ import annotations

import math
from fractions import Fraction

from config.errors import InputError
from config.spec import Spec
from loadtest.judging.trust import SHARE, against_run, server_died
from loadtest.judging.verdict import Check, Objective, Reason, Status, Verdict, worst
from loadtest.measuring import Histogram, Measurement, figure, nearest_rank, percent

# A percentile needs ten samples above it to be more than an anecdote.
SAMPLES_ABOVE = 10
HELD_SHARE = 0.99
# Late arrivals come all at once; about as many behind them wait for the server to work that off.
_DELAYED_BY_LATE = 2
_SHORTEST_TIMEOUT_S = 10.0


def objective_of(spec: Spec) -> Objective:
    """The spec's objective; InputError without one."""
    if spec.slo is None:
        hint = "add to the spec: slo: {p99_ms: 100, error_rate: 0.001, throughput_rps: 50}"
        raise InputError(f"{spec.file}: `slo`: missing, a verdict needs an objective", hint=hint)
    return Objective(p99_ms=spec.slo.p99_ms, error_rate=spec.slo.error_rate, throughput_rps=spec.slo.throughput_rps)


def client_timeout_s(objective: Objective, given_s: float | None = None) -> float:
    """How long a client waits for an answer; InputError when it would give up what is still within the limit."""
    limit_s = objective.p99_ms / 1000
    if given_s is None:
        return max(_SHORTEST_TIMEOUT_S, 2 * limit_s)
    if given_s <= limit_s:
        text = f"`--timeout`: got {given_s:g}, allowed: more than the {limit_s:g} s of `slo.p99_ms`"
        raise InputError(f"{text}, or a client gives up what is still in time", hint=f"--timeout {2 * limit_s:g}")
    return given_s


def judge(measurement: Measurement, objective: Objective) -> Verdict:
    """The verdict on one run."""
    untrusted = against_run(measurement, objective)
    died = server_died(measurement)
    checks = [_latency(measurement, objective), _errors(measurement, objective), _throughput(measurement, objective)]
    if untrusted:
        checks = [check.model_copy(update={"status": "INVALID"}) for check in checks]
    status: Status = "INVALID" if untrusted else worst([check.status for check in checks])
    # Whatever else was wrong with the run, a server that ends under load does not meet its objective.
    return Verdict(status="FAIL" if died else status, reasons=(*died, *untrusted), checks=tuple(checks))


def samples_needed(share: float = SHARE) -> int:
    """How many answers a percentile needs."""
    return math.ceil(SAMPLES_ABOVE / (1 - Fraction(str(share))))


def _latency(measurement: Measurement, objective: Objective) -> Check:
    limit, response = objective.p99_ms, measurement.response
    measured = response.percentile(SHARE)
    check = Check(objective="p99", status="PASS", limit=limit, measured=measured, unit="ms")
    if not measurement.finished:
        return _with(check, "INVALID")
    if not measurement.good:
        return _with(check, "FAIL", "errors-only", f"none of {measurement.finished:,} requests got a good answer")
    if response.count < samples_needed():
        text = f"{response.count:,} answers are too few for a p99, needed: {samples_needed():,}"
        return _with(check, "INVALID", "too-few-samples", text)
    if measured is None or _meets(response, limit):
        return check
    over = f"p99 {figure(measured)} ms > {limit:g} ms"
    if _meets(measurement.service, limit) or _meets(response, limit, forgiven=_late_burst(measurement, objective)):
        return _with(check, "INVALID", "lag-decides", f"{over}, but not without the arrivals that were late")
    return _with(check, "FAIL", "p99-over", over)


def _meets(latencies: Histogram, limit: float, forgiven: int = 0) -> bool:
    return latencies.within(limit) + forgiven >= nearest_rank(SHARE, latencies.count)


def _late_burst(measurement: Measurement, objective: Objective) -> int:
    """How many requests may be slow or shed through late arrivals alone."""
    return _DELAYED_BY_LATE * measurement.lag.over(objective.late_ms)


def _errors(measurement: Measurement, objective: Objective) -> Check:
    limit, rate = objective.error_rate, measurement.error_rate
    check = Check(objective="errors", status="PASS", limit=limit, measured=rate, unit="share")
    if rate is None:
        return _with(check, "INVALID")
    if rate <= limit:
        return check
    shed = measurement.errors.get("shed", 0)
    named = ", ".join(f"{count:,} {name}" for name, count in measurement.errors.items())
    text = f"errors {percent(rate)} > {percent(limit)}: {named} of {measurement.finished:,} requests"
    if measurement.failed - min(shed, _late_burst(measurement, objective)) <= limit * measurement.finished:
        return _with(check, "INVALID", "lag-decides", f"{text}, but not without the arrivals that were late")
    failed = _with(check, "FAIL", "errors-over", text)
    if not shed:
        return failed
    reason = Reason(id="shed", text=f"{shed:,} requests were shed: the server's queue was full")
    return failed.model_copy(update={"reasons": (*failed.reasons, reason)})


def _throughput(measurement: Measurement, objective: Objective) -> Check:
    limit = objective.throughput_rps or measurement.rate
    held = measurement.held_rps
    check = Check(objective="throughput", status="PASS", limit=limit, measured=held, unit="requests/s")
    if not measurement.finished:
        return _with(check, "INVALID")
    if measurement.planned < HELD_SHARE * limit * measurement.asked_s:
        text = f"the run offered {figure(measurement.rate)} requests/s, the objective is {figure(limit)}"
        return _with(check, "INVALID", "rate-below-objective", text)
    if held < HELD_SHARE * limit:
        text = f"{figure(held)} requests/s answered well and in time < {figure(limit)}"
        return _with(check, "FAIL", "throughput-not-held", text)
    return check


def _with(check: Check, status: Status, reason: str = "", text: str = "") -> Check:
    reasons = (Reason(id=reason, text=text),) if reason else ()
    return check.model_copy(update={"status": status, "reasons": reasons})
