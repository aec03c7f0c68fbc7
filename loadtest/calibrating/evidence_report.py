"""`evidence.html`: the rate against p50 and p99, the knee, and what it was measured on. One file, no network."""

from __future__ import annotations

from html import escape

from loadtest.calibrating.evidence import MAY_HOLD_MORE, Evidence, TrialRecord, interval_text, knee_text
from loadtest.measuring import MB, figure, percent
from loadtest.reporting import (
    Axis,
    Chart,
    Line,
    arrivals_text,
    cost_facts,
    drawing,
    facts,
    linear_axis,
    log_axis,
    milliseconds,
    ms,
    page,
    reason_list,
)


def evidence_html(evidence: Evidence) -> str:
    """The file's text."""
    name = escape(f"{evidence.name} {evidence.version}")
    headline = knee_text(evidence.knee) if evidence.knee else "no knee"
    body = [
        f'<header><span class="badge {evidence.status}">{evidence.status}</span><h1>{name}: {headline}</h1></header>',
        '<p class="lead">The highest rate that meets the objective, found by a search and long runs.</p>',
        f'<section class="card"><h2>The knee</h2>{_knee(evidence)}{reason_list(evidence.reasons)}</section>',
        f'<div class="charts">{_chart(evidence)}{facts("What was measured", _measured(evidence))}</div>',
        _costs(evidence),
        _trials(evidence),
    ]
    return page(f"{evidence.status}: {name}", "\n".join(filter(None, body)))


def _costs(evidence: Evidence) -> str:
    costs = evidence.costs
    if costs is None:
        return ""
    over = reason_list([costs.over]) if costs.over else ""
    return facts("Cost of 10,000 requests, idle time included", cost_facts(costs)) + over


def _knee(evidence: Evidence) -> str:
    rows = []
    if evidence.knee:
        if evidence.knee.interval:
            rows.append(("Between", f"{interval_text(evidence.knee)}, in 19 of 20 calibrations"))
        found = ", ".join(f"{figure(rate)}" for rate in evidence.knee.found)
        apart = f", {percent(evidence.knee.spread)} apart" if len(evidence.knee.found) > 1 else ""
        rows.append(("Searches ended at", f"{found} requests/s{apart}"))
        if evidence.knee.limit == "generator":
            rows.append(("Limit", MAY_HOLD_MORE))
    for label, at in (("Latency at the knee", evidence.at_knee), ("At 70 % of it, long run", evidence.at_70_percent)):
        if at:
            latency = f"p50 {ms(at.response.p50)}, p99 {ms(at.response.p99)}"
            rows.append((label, f"{latency} at {figure(at.rate)} requests/s, {at.status}"))
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows) + "</dl>"


def _chart(evidence: Evidence) -> str:
    judged = (trial for trial in evidence.trials if trial.status != "INVALID" and trial.p99_ms is not None)
    trials = sorted(judged, key=lambda trial: trial.rate)
    if not trials:
        return ""
    limit = evidence.objective.p99_ms
    shown = [value for trial in trials for value in (trial.p50_ms, trial.p99_ms) if value]
    chart = Chart(
        title="Rate against latency",
        x=linear_axis(0, max(trial.rate for trial in trials)),
        y=_latency_axis([*shown, limit]),
        lines=[Line("p99", "two", _medians(trials, "p99_ms")), Line("p50", "one", _medians(trials, "p50_ms"))],
        dots=[
            Line(f"{name} {status}", f"{css} ink-{css} {kind}", _points(trials, field, status == "PASS"))
            for name, css, field in (("p50", "one", "p50_ms"), ("p99", "two", "p99_ms"))
            for status, kind in (("PASS", "pass"), ("FAIL", "fail"))
        ],
        mark=evidence.knee.rps if evidence.knee else None,
        limit=limit,
    )
    legend = [
        ("ink-one", "", "p50"),
        ("ink-two", "", "p99"),
        ("ink-limit", "dash", f"p99 limit, {milliseconds(limit)}"),
        ("ink-soft", "dash", "knee"),
    ]
    return drawing(chart, "One dot a run, filled where the objective was missed; requests/s", legend)


def _latency_axis(values: list[float]) -> Axis:
    return log_axis(max(0.01, min(values)), max(values), milliseconds)


def _points(trials: list[TrialRecord], field: str, passed: bool) -> list[tuple[float, float | None]]:
    return [(trial.rate, getattr(trial, field)) for trial in trials if (trial.status == "PASS") == passed]


def _medians(trials: list[TrialRecord], field: str) -> list[tuple[float, float | None]]:
    """One point a rate, so that runs at the same rate do not draw a comb."""
    by_rate: dict[float, list[float]] = {}
    for trial in trials:
        by_rate.setdefault(trial.rate, []).append(getattr(trial, field))
    return [(rate, sorted(values)[len(values) // 2]) for rate, values in by_rate.items()]


def _measured(evidence: Evidence) -> dict[str, str]:
    memory, limits = evidence.memory, evidence.objective
    found = {
        "Package": evidence.package or "not known here",
        "Objective": f"p99 {limits.p99_ms:g} ms, errors {percent(limits.error_rate)}",
        "Settings": str(evidence.settings),
        "Machine": f"{evidence.machine}, {evidence.machine.system}",
    }
    if evidence.server is not None:
        found["Server"] = f"{evidence.server}; {evidence.server.machine.processor}"
    if evidence.cold_start_s is not None:
        found["Cold start"] = f"{evidence.cold_start_s:.1f} s"
    if memory is not None:
        workers = ", ".join(f"{size / MB:,.0f}" for size in memory.workers_bytes) or "none"
        found["Peak memory"] = (
            f"{memory.total_bytes / MB:,.0f} MB: Java {memory.java_bytes / MB:,.0f}, workers {workers}, "
            f"supervisor {memory.supervisor_bytes / MB:,.0f}"
        )
    return found | {"Arrivals": arrivals_text(evidence.arrivals), "Begun": evidence.at}


def _trials(evidence: Evidence) -> str:
    rows = "".join(
        f'<tr><td class="number">{figure(trial.rate)}</td><td class="number">{ms(trial.p50_ms)}</td>'
        f'<td class="number">{ms(trial.p99_ms)}</td><td class="number">{percent(trial.error_rate or 0)}</td>'
        f'<td><span class="status {trial.status}">{trial.status}</span></td></tr>'
        for trial in evidence.trials
    )
    return (
        '<section class="card wide"><h2>Runs</h2><table><thead><tr><th class="number">Requests/s</th>'
        '<th class="number">p50</th><th class="number">p99</th><th class="number">Errors</th><th>Status</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></section>"
    )
