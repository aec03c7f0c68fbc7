"""`verdict.html`: the verdict and the evidence for it, in one file that needs no network and no script."""

import math
from pathlib import Path

from marina.config.measured import Costs, VerdictHead
from marina.config.pages import render_template
from marina.loadtest.judging import CONFIDENCE, P99_SHARE, LoadTestOutcome, stream_figures
from marina.loadtest.measuring import figure, percent
from marina.loadtest.reporting.charts import charts
from marina.loadtest.reporting.text import (
    arrivals_text,
    check_title,
    interval_note,
    limited_text,
    ms,
    pod_share_text,
    reason_items,
    stream_facts,
    texts_by_id,
)

_MEANING = {
    "PASS": "The service met its objective, and the measurement can be trusted.",
    "FAIL": "The service missed its objective.",
    "INVALID": "The measurement cannot be trusted, so it says nothing about the service.",
}
_UNJUDGED = "The measurement does not show whether the service met its whole objective."
_OVER_BUDGET = "The service met its objective, but costs more than its budget."


def verdict_html(outcome: LoadTestOutcome) -> str:
    verdict, tested = outcome.verdict, outcome.tested
    name = f"{tested.name} {tested.version}"
    return render_template(
        Path(__file__).with_name("verdict.html"),
        title=f"{verdict.status}: {name}",
        heading=name,
        status=verdict.status,
        meaning=_meaning(outcome),
        checks=[
            (check_title(check), measured_text(check.measured, check.unit), interval_note(check), check.status)
            for check in verdict.checks
        ],
        reasons=texts_by_id(verdict.every_reason()),
        drawings=charts(outcome),
        runs=outcome.runs if len(outcome.runs) > 1 else (),
        pieces=stream_facts(stream_figures(outcome.pooled)),
        tested=_tested(outcome),
        generator=_generator(outcome),
        costs=cost_facts(outcome.costs),
        ms=ms,
    )


def verdict_markdown(head: VerdictHead) -> str:
    """The verdict and its table, for where people review a change."""
    verdict = head.verdict
    lines = [f"**{verdict.status}** {_MEANING[verdict.status]}", "", "| | measured | |", "| --- | --- | --- |"]
    for check in verdict.checks:
        note = interval_note(check)
        measured = measured_text(check.measured, check.unit) + (f" ({note})" if note else "")
        lines.append(f"| {check_title(check)} | {measured} | {check.status} |")
    return "\n".join([*lines, "", *reason_items(verdict.every_reason())])


def _meaning(outcome: LoadTestOutcome) -> str:
    verdict, took_s = outcome.verdict, outcome.pooled.ran_s
    if verdict.status == "PASS":
        # What comes this often on average, at random, is missing in one of twenty such measurements.
        seldom = figure(float(f"{took_s / -math.log(1 - CONFIDENCE):.2g}"))
        seen = f"It took {figure(took_s)} s, so it may have missed what comes less often than once in {seldom} s"
        return f"{_MEANING['PASS']} {seen}, or changes more slowly."
    if {reason.id for reason in verdict.reasons} <= {"over-budget"}:
        # Nothing is wrong with the run as a whole.
        statuses = {check.status for check in verdict.checks}
        return _MEANING["FAIL"] if "FAIL" in statuses else _UNJUDGED if "INVALID" in statuses else _OVER_BUDGET
    return _MEANING[verdict.status]


def measured_text(value: float | None, unit: str) -> str:
    """A measured value with its unit, or a dash if there is none: `1.2 %`, `26 ms`, `99.8/s`."""
    if value is None:
        return "-"
    if unit == "share":
        return percent(value)
    return ms(value) if unit == "ms" else f"{figure(value)}/s"


def _tested(outcome: LoadTestOutcome) -> dict[str, str]:
    tested, load = outcome.tested, outcome.load
    cold = "" if tested.cold_start_s is None else f", started for the test in {tested.cold_start_s:.1f} s"
    times = f"{load.repeat} times " if load.repeat > 1 else ""
    same = tested.served is not None and tested.served == tested.package
    replayed = f" of {load.replay}, {load.speed:g} times as fast" if load.replay else ""
    return {
        "Package": tested.package or "unknown",
        "Served": "the same" if same else tested.served or "unknown: not asked, or the server did not say",
        "Server": tested.url + cold,
        "Machine of the generator": f"{outcome.machine}, {outcome.machine.system}",
        **_pods(outcome),
        "Load": f"{times}{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}{replayed}, "
        f"{load.duration_s:g} s after {load.warmup_s:g} s of warm-up",
        "Request": f"{load.sample_content_type}, {load.sample_bytes:,} bytes",
        "Spec": tested.spec,
        "Started": outcome.at,
    }


def _pods(outcome: LoadTestOutcome) -> dict[str, str]:
    """What each pod answered; empty if there was only one server."""
    shares = outcome.pooled.shares
    return {"Pods": "; ".join(map(pod_share_text, shares))} if shares else {}


def _generator(outcome: LoadTestOutcome) -> dict[str, str]:
    measurements = [run.measurement for run in outcome.runs]
    beats = [beat for run in measurements for process in run.generators for beat in process]
    busiest = max((beat.cpu for beat in beats), default=0.0)
    late = max((run.lag.percentile(P99_SHARE) or 0.0 for run in measurements), default=0.0)
    loop = max((run.loop_lag.percentile(P99_SHARE) or 0.0 for run in measurements), default=0.0)
    return {
        "Processes": str(outcome.load.processes),
        "Busiest second": f"{busiest:.0%} of a core",
        "Requests sent late, p99": f"{late:.2f} ms of {outcome.objective.late_ms:g} ms allowed",
        "Event loop late, p99": f"{loop:.2f} ms of {outcome.objective.coarse_ms:g} ms allowed",
        "Requests sent": f"{sum(run.sent for run in measurements):,}",
        **({"Refused by a rate limit": limited_text(outcome.pooled)} if outcome.pooled.limited else {}),
    }


def cost_facts(costs: Costs | None) -> dict[str, str]:
    """What 10,000 requests cost, and the budget; empty if the spec has no `cost`."""
    if costs is None:
        return {}
    rates = (("At the target rate", costs.at_target, costs.target_rps), ("As measured", costs.at_seen, costs.seen_rps))
    cost_texts = {
        name: f"{cost:.3g} {costs.currency}, {figure(rate or 0.0)} requests/s per pod"
        for name, cost, rate in rates
        if cost is not None
    }
    budget = {} if costs.budget is None else {"Budget": f"{costs.budget:.3g} {costs.currency}"}
    return cost_texts | budget | {"Price of a pod": f"{costs.pod_hour:g} {costs.currency} per hour"}
