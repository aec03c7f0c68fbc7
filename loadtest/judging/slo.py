"""`judge`: turns a measurement and an objective into PASS, FAIL or INVALID, with every reason. No I/O.

Each objective has its own status. A reason against the whole run (a late generator, another package) makes everything
INVALID; a reason against a single figure (too few samples for a p99) makes only that objective INVALID. A trusted FAIL
outweighs an INVALID objective, so that a server that fails every request is not excused by a short run."""

from collections.abc import Sequence

from marina.config.errors import InputError
from marina.config.spec import Spec
from marina.loadtest.judging.certainty import (
    P99_SHARE,
    blame_late_sends,
    decide,
    errors_interval,
    latency_interval,
    samples_needed,
    throughput_interval,
    with_status,
)
from marina.loadtest.judging.pooling import pool
from marina.loadtest.judging.stream_checks import stream_checks
from marina.loadtest.judging.trend import backlog_grows
from marina.loadtest.judging.trust import busy_machine_reasons, distrust_reasons, server_died_reasons
from marina.loadtest.judging.verdict import (
    TOO_FEW,
    Check,
    Objective,
    Reason,
    Verdict,
    VerdictStatus,
    is_undecided,
    worst_status,
)
from marina.loadtest.measuring import Histogram, Measurement, figure, nearest_rank, percent

HELD_SHARE = 0.99
# Late requests are sent all at once, and about as many behind them wait until the server has caught up.
_DELAYED_BY_LATE = 2
_SHORTEST_TIMEOUT_S = 10.0


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
    checks = [_latency(pooled, objective), _errors(pooled, objective), _throughput(pooled, objective, trusted)]
    checks += stream_checks(pooled, objective, _late_burst(pooled, objective))
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


def _latency(measurement: Measurement, objective: Objective) -> Check:
    limit, response = objective.p99_ms, measurement.response
    measured = response.percentile(P99_SHARE)
    check = Check(objective="p99", status="PASS", limit=limit, measured=measured, unit="ms")
    if not measurement.finished:
        return with_status(check, "INVALID")
    if not measurement.good:
        return with_status(check, "FAIL", "errors-only", f"none of {measurement.finished:,} requests got a good answer")
    if response.count < samples_needed():
        text = f"{response.count:,} answers are too few for a p99, which needs {samples_needed():,}"
        return with_status(check, "INVALID", TOO_FEW, text)
    if not measurement.slices:
        status: VerdictStatus = "PASS" if _meets(response, limit) else "FAIL"
    else:
        check, status = decide(check, latency_interval(measurement, limit))
    if status != "FAIL":
        return check
    over = f"p99 {figure(measured or 0.0)} ms > {figure(limit)} ms"
    if _meets(measurement.service, limit) or _meets(response, limit, forgiven=_late_burst(measurement, objective)):
        return blame_late_sends(check, over)
    return with_status(check, "FAIL", "p99-over", over)


def _meets(latencies: Histogram, limit: float, forgiven: int = 0) -> bool:
    return latencies.within(limit) + forgiven >= nearest_rank(P99_SHARE, latencies.count)


def _late_burst(measurement: Measurement, objective: Objective) -> int:
    """How many requests may be slow or shed only because some were sent late."""
    return _DELAYED_BY_LATE * measurement.lag.over(objective.late_ms)


def _errors(measurement: Measurement, objective: Objective) -> Check:
    limit, rate = objective.error_rate, measurement.error_rate
    check = Check(objective="errors", status="PASS", limit=limit, measured=rate, unit="share")
    if rate is None:
        return with_status(check, "INVALID")
    status: VerdictStatus = "PASS" if rate <= limit else "FAIL"
    if measurement.slices:
        check, status = decide(check, errors_interval(measurement, limit))
    if status != "FAIL":
        return check
    shed = measurement.errors.get("shed", 0)
    named = ", ".join(f"{count:,} {name}" for name, count in measurement.errors.items())
    text = f"errors {percent(rate)} > {percent(limit)}: {named} of {measurement.finished:,} requests"
    if measurement.failed - min(shed, _late_burst(measurement, objective)) <= limit * measurement.finished:
        return blame_late_sends(check, text)
    failed = with_status(check, "FAIL", "errors-over", text)
    if not shed:
        return failed
    reason = Reason(id="shed", text=f"{shed:,} requests were shed: the server's queue was full")
    return failed.model_copy(update={"reasons": (*failed.reasons, reason)})


def _throughput(measurement: Measurement, objective: Objective, runs: Sequence[Measurement]) -> Check:
    # A short run has a whole number of requests, so it may offer less, or more, than its rate.
    offered = measurement.planned / measurement.asked_s
    limit = objective.throughput_rps or offered
    least = _held_share(objective) * limit
    held = measurement.held_rps
    check = Check(objective="throughput", status="PASS", limit=limit, measured=held, unit="requests/s")
    if not measurement.finished:
        return with_status(check, "INVALID")
    if offered < HELD_SHARE * limit:
        text = f"the run offered {figure(offered)} requests/s, the objective is {figure(limit)}"
        return with_status(check, "INVALID", "rate-below-objective", text)
    status: VerdictStatus = "PASS" if held >= least else "FAIL"
    if measurement.slices:
        check, status = decide(check, throughput_interval(measurement, least), least)
    grows = backlog_grows(runs)
    if status == "FAIL":
        text = f"{figure(held)} requests/s were answered well and in time < {figure(limit)}"
        check = with_status(check, "FAIL", "throughput-not-held", text)
    if grows:
        failures = check.reasons if check.status == "FAIL" else ()
        check = check.model_copy(update={"status": "FAIL", "reasons": (*failures, *grows)})
    return check
