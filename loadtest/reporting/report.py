"""`verdict.html`: the verdict and what it rests on, in one file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from loadtest.judging import SHARE, Check, Costs, Outcome, Reason, goes_on, interval_text
from loadtest.measuring import figure, percent
from loadtest.reporting.figures import figures
from loadtest.reporting.theme import page
from loadtest.reporting.words import arrivals_text, check_title

_MEANING = {
    "PASS": "The service met its objective, and the measurement can be trusted.",
    "FAIL": "The service missed its objective.",
    "INVALID": "The measurement cannot be trusted, so it says nothing about the service.",
}
_UNDECIDED = "What was measured is too little to tell whether the service met its objective."


def verdict_html(outcome: Outcome) -> str:
    """The file's text."""
    status, tested = outcome.verdict.status, outcome.tested
    name = escape(f"{tested.name} {tested.version}")
    body = [
        f'<header><span class="badge {status}">{status}</span><h1>{name}</h1></header>',
        f'<p class="lead">{_UNDECIDED if goes_on(outcome.verdict) else _MEANING[status]}</p>',
        _verdict_table(outcome),
        figures(outcome),
        _runs_table(outcome) if len(outcome.runs) > 1 else "",
        facts("What was tested", _tested(outcome)),
        facts("The generator", _generator(outcome)),
        facts("Cost of 10,000 requests, idle time included", cost_facts(outcome.costs)) if outcome.costs else "",
        "<footer>Latency counts from the time a request was meant to be sent, so a server that stands still is seen. "
        "Percentiles are nearest-rank, in buckets of 1 %; counts at the limit are exact.</footer>",
    ]
    return page(f"{status}: {name}", "\n".join(filter(None, body)))


def _verdict_table(outcome: Outcome) -> str:
    rows = "".join(_check_row(check) for check in outcome.verdict.checks)
    listed = reason_list(outcome.verdict.every_reason())
    return (
        '<section class="card"><table><thead><tr><th>Objective</th><th class="number">Measured</th>'
        f'<th class="number">Status</th></tr></thead><tbody>{rows}</tbody></table>{listed}</section>'
    )


def reason_list(reasons: Sequence[Reason]) -> str:
    """Reasons as a list, empty without any; one entry for each id, so that repeats do not repeat it."""
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        texts.setdefault(reason.id, []).append(escape(reason.text))
    entries = "".join(f"<li><code>{escape(name)}</code>{'<br>'.join(lines)}</li>" for name, lines in texts.items())
    return f'<ul class="reasons">{entries}</ul>' if entries else ""


def _check_row(check: Check) -> str:
    measured = "-" if check.measured is None else _figure(check, check.measured)
    between = f'<br><span class="note">{escape(interval_text(check))}</span>' if check.interval else ""
    return (
        f'<tr><td>{escape(check_title(check))}</td><td class="number">{measured}{between}</td>'
        f'<td class="number"><span class="status {check.status}">{check.status}</span></td></tr>'
    )


def _figure(check: Check, value: float) -> str:
    if check.unit == "share":
        return percent(value)
    return f"{figure(value)} ms" if check.unit == "ms" else f"{figure(value)}/s"


def _runs_table(outcome: Outcome) -> str:
    rows = "".join(
        f'<tr><td>{number}</td><td><span class="status {run.verdict.status}">{run.verdict.status}</span></td>'
        f'<td class="number">{ms(run.response.p50)}</td><td class="number">{ms(run.response.p99)}</td>'
        f'<td class="number">{ms(run.response.max)}</td><td class="number">{run.measurement.failed:,}</td></tr>'
        for number, run in enumerate(outcome.runs, 1)
    )
    return (
        '<section class="card wide"><h2>Runs</h2><table><thead><tr><th>Run</th><th>Status</th>'
        '<th class="number">p50</th><th class="number">p99</th><th class="number">Slowest</th>'
        f'<th class="number">Errors</th></tr></thead><tbody>{rows}</tbody></table></section>'
    )


def _tested(outcome: Outcome) -> dict[str, str]:
    tested, load = outcome.tested, outcome.load
    cold = "" if tested.cold_start_s is None else f", started for the test in {tested.cold_start_s:.1f} s"
    each = f"{load.repeat} times " if load.repeat > 1 else ""
    same = tested.served is not None and tested.served == tested.package
    replayed = f" of {load.replay}, {load.speed:g} times as fast" if load.replay else ""
    return {
        "Package": tested.package or "not known here",
        "Served": "the same" if same else tested.served or "not asked, or the server did not say",
        "Server": tested.url + cold,
        "Machine of the generator": f"{outcome.machine}, {outcome.machine.system}",
        "Load": f"{each}{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}{replayed}, "
        f"{load.duration_s:g} s after {load.warmup_s:g} s of warm-up",
        "Request": f"{load.sample_content_type}, {load.sample_bytes:,} bytes",
        "Spec": tested.spec,
        "Begun": outcome.at,
    }


def _generator(outcome: Outcome) -> dict[str, str]:
    measurements = [run.measurement for run in outcome.runs]
    beats = [beat for each in measurements for process in each.generators for beat in process]
    busiest = max((beat.cpu for beat in beats), default=0.0)
    late = max((each.lag.percentile(SHARE) or 0.0 for each in measurements), default=0.0)
    loop = max((each.loop_lag.percentile(SHARE) or 0.0 for each in measurements), default=0.0)
    return {
        "Processes": str(outcome.load.processes),
        "Busiest second": f"{busiest:.0%} of a core",
        "Arrivals late, p99": f"{late:.2f} ms of {outcome.objective.late_ms:g} ms allowed",
        "Event loop late, p99": f"{loop:.2f} ms",
        "Requests sent": f"{sum(each.sent for each in measurements):,}",
    }


def cost_facts(costs: Costs) -> dict[str, str]:
    """What 10,000 requests cost, and may."""
    rates = (("At the target rate", costs.at_target, costs.target_rps), ("As seen", costs.at_seen, costs.seen_rps))
    found = {
        name: f"{cost:.3g} {costs.currency}, {figure(rate or 0.0)} requests/s a pod"
        for name, cost, rate in rates
        if cost is not None
    }
    budget = {} if costs.budget is None else {"Allowed": f"{costs.budget:.3g} {costs.currency}"}
    return found | budget | {"A pod": f"{costs.pod_hour:g} {costs.currency} an hour"}


def facts(heading: str, facts: dict[str, str]) -> str:
    """A card of names and values."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f'<section class="card"><h2>{heading}</h2><dl>{rows}</dl></section>'


def ms(value: float | None) -> str:
    """A latency, or a dash without one."""
    return "-" if value is None else f"{figure(value)} ms"
