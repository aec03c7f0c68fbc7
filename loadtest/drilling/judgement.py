"""Turns the load of a drill, and what was broken meanwhile, into PASS, FAIL or INVALID. No I/O.

A drill is one event and not a sample of many, so what clients saw of it is judged as it was counted."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marina.config.measured import Machine, Objective, Reason, VerdictStatus
from marina.config.spec import Spec
from marina.loadtest.drilling.record import Broken, DrillCheck, DrillFigure, DrillRecord, Unit
from marina.loadtest.judging import P99_SHARE, distrust_reasons, worst_status
from marina.loadtest.measuring import Histogram, Measurement, Second, figure, merge_histograms, percent
from marina.loadtest.scheduling import Schedule

# Fewer answers have no 99th percentile.
_FEWEST = 100


@dataclass(frozen=True)
class LoadedDrill:
    """The load of a drill."""

    measurement: Measurement
    schedule: Schedule
    url: str
    machine: Machine
    at: str
    interrupted: bool
    """Whether the user ended it; that the drill itself ends the load early is as it should be."""


def judge_drill(spec: Spec, objective: Objective, broken: Broken, load: LoadedDrill) -> DrillRecord:
    """The record, with its verdict."""
    seconds = load.measurement.seconds
    first, end = _judged(broken, len(seconds))
    judged, after = seconds[first:end], seconds[end:]
    lost = _errors(judged)
    reasons = list(_against(objective, broken, load, seconds[:first]))
    checks = list(_checks(objective, broken, load.measurement, judged)) if broken.begun_s is not None else []
    statuses: list[VerdictStatus] = [check.status for check in checks]
    return DrillRecord(
        status="INVALID" if reasons or not statuses else worst_status(statuses),
        reasons=tuple(reasons),
        checks=tuple(checks),
        name=spec.name,
        version=spec.version,
        namespace=spec.kubernetes.namespace,
        url=load.url,
        objective=objective,
        broken=broken,
        judged=sum(second.due for second in judged),
        lost=lost,
        lost_after=_errors(after) if broken.notice_s is not None else {},
        rate=load.schedule.rate,
        arrivals=load.schedule.spacing,
        machine=load.machine,
        at=load.at,
        measurement=load.measurement,
    )


def _judged(broken: Broken, seconds: int) -> tuple[int, int]:
    """The seconds whose arrivals are judged. An arrival just before the break may still have been open at it; the
    second in which the notice ends is left out."""
    if broken.begun_s is None:
        return seconds, seconds
    first = max(0, math.floor(broken.begun_s) - 1)
    if broken.notice_s is None:
        return first, seconds
    return first, min(seconds, math.floor(broken.begun_s + broken.notice_s))


def _errors(seconds: Sequence[Second]) -> dict[str, int]:
    return dict(sorted(sum((Counter(second.errors) for second in seconds), Counter[str]()).items()))


def _against(objective: Objective, broken: Broken, load: LoadedDrill, before: Sequence[Second]) -> Iterator[Reason]:
    """Every reason not to trust the drill as a whole."""
    if load.interrupted:
        yield Reason(id="interrupted", text="the drill was interrupted")
    elif broken.error:
        yield Reason(id="not-broken", text=broken.error)
    elif broken.begun_s is None:
        yield Reason(id="not-broken", text="the load ended before anything was broken")
    # The load of a drill ends when the drill does, and each server stays what it is.
    ours = {"cut-short", "package-differs", "package-unknown"}
    yield from (reason for reason in distrust_reasons(load.measurement, objective) if reason.id not in ours)
    if errors := _errors(before):
        text = f"{sum(errors.values()):,} requests had no good answer before anything was broken: {_named(errors)}"
        yield Reason(id="lost-before", text=text)


def _checks(
    objective: Objective, broken: Broken, measured: Measurement, judged: Sequence[Second]
) -> Iterator[DrillCheck]:
    errors, due = _errors(judged), sum(second.due for second in judged)
    lost, allowed = sum(errors.values()), objective.error_rate
    # What a dead process was answering is lost, whoever restarts it.
    if broken.kind != "kill":
        text = f"{lost:,} of {due:,} requests: {_named(errors)}"
        yield _check("lost", lost, 0, "requests", Reason(id="requests-lost", text=text))
    yield _pods(broken)
    share = lost / due if due else None
    text = "no request was due after the break" if share is None else f"{percent(share)}, allowed: {percent(allowed)}"
    yield _check("errors", share, allowed, "share", Reason(id="errors-over", text=text))
    latencies = merge_histograms([second.response for second in judged] or [Histogram()])
    yield _tail("p99", latencies, objective.p99_ms)
    if streams := measured.streams:
        if objective.ttft_p99_ms is not None:
            yield _tail("ttft", streams.first, objective.ttft_p99_ms)
        if objective.itl_p99_ms is not None:
            yield _tail("itl", streams.gaps, objective.itl_p99_ms)


def _pods(broken: Broken) -> DrillCheck:
    if broken.begun_s is not None and broken.enough_s is not None:
        took_s = max(0.0, broken.enough_s - broken.begun_s)
        return DrillCheck(figure="pods", status="PASS", measured=took_s, limit=broken.within_s, unit="s")
    last = broken.pods[-1] if broken.pods else None
    seen = f"{last.serving} of {last.wanted} pods served at the end" if last else "no pod was seen"
    refused = f"; {broken.refused}" if broken.refused else ""
    why = Reason(id="too-few-pods", text=f"not enough within {broken.within_s:g} s: {seen}{refused}")
    return DrillCheck(figure="pods", status="FAIL", measured=None, limit=broken.within_s, unit="s", reasons=(why,))


def _tail(name: DrillFigure, latencies: Histogram, limit: float) -> DrillCheck:
    value = latencies.percentile(P99_SHARE) if latencies.count >= _FEWEST else None
    if value is None:
        text = f"{latencies.count:,} answers are too few for a p99, which needs {_FEWEST}"
        return _check(name, None, limit, "ms", Reason(id="too-few-samples", text=text))
    text = f"{figure(value)} ms at p99, allowed: {figure(limit)} ms"
    return _check(name, value, limit, "ms", Reason(id=f"{name}-over", text=text))


def _check(name: DrillFigure, value: float | None, limit: float, unit: Unit, why: Reason) -> DrillCheck:
    """What was measured against its limit, with the reason why it is not PASS if it is not."""
    status: VerdictStatus = "INVALID" if value is None else "PASS" if value <= limit else "FAIL"
    reasons = () if status == "PASS" else (why,)
    return DrillCheck(figure=name, status=status, measured=value, limit=limit, unit=unit, reasons=reasons)


def _named(errors: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in errors.items())
