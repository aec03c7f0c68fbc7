"""`evidence.html`: p50 and p99 at each rate, the knee, and what it was measured on. One file, no network."""

from pathlib import Path

from marina.config.measured import Evidence, TrialRecord
from marina.config.pages import Chart, Drawing, Line, linear_axis, log_axis, milliseconds, render_template
from marina.loadtest.calibrating.evidence import MAY_HOLD_MORE, knee_interval_text, knee_text
from marina.loadtest.measuring import MB, figure, percent
from marina.loadtest.reporting import arrivals_text, cost_facts, ms, texts_by_id


def evidence_html(evidence: Evidence) -> str:
    name = f"{evidence.name} {evidence.version}"
    costs = evidence.costs
    return render_template(
        Path(__file__).with_name("evidence.html"),
        title=f"{evidence.status}: {name}",
        heading=f"{name}: {knee_text(evidence.knee) if evidence.knee else 'no knee'}",
        status=evidence.status,
        knee=_knee(evidence),
        reasons=texts_by_id(evidence.reasons),
        drawing=_drawing(evidence),
        measured=_measured(evidence),
        costs=cost_facts(costs),
        over_budget=texts_by_id([costs.over] if costs and costs.over else []),
        trials=evidence.trials,
        figure=figure,
        ms=ms,
        percent=percent,
    )


def _knee(evidence: Evidence) -> dict[str, str]:
    rows: dict[str, str] = {}
    knee, at = evidence.knee, evidence.at_70_percent
    if knee and knee.interval:
        rows["Between"] = f"{knee_interval_text(knee)}, in 9 of 10 calibrations"
    if knee and knee.limit == "generator":
        rows["Limit"] = MAY_HOLD_MORE
    if at:
        latency = f"p50 {ms(at.response.p50)}, p99 {ms(at.response.p99)}"
        rows["At 70 % of it"] = f"{latency} at {figure(at.rate)} requests/s, {at.status}"
    return rows


def _drawing(evidence: Evidence) -> Drawing | None:
    judged = (trial for trial in evidence.trials if trial.status != "INVALID" and trial.p99_ms is not None)
    trials = sorted(judged, key=lambda trial: trial.rate)
    if not trials:
        return None
    limit = evidence.objective.p99_ms
    shown = [limit, *(value for trial in trials for value in (trial.p50_ms, trial.p99_ms) if value)]
    chart = Chart(
        title="Rate against latency",
        x=linear_axis(0, max(trial.rate for trial in trials)),
        y=log_axis(max(0.01, min(shown)), max(shown), milliseconds),
        dots=[
            Line(f"{name} {status}", f"{css} ink-{css} {kind}", _points(trials, field, status == "PASS"))
            for name, css, field in (("p50", "one", "p50_ms"), ("p99", "two", "p99_ms"))
            for status, kind in (("PASS", "pass"), ("FAIL", "fail"))
        ],
        mark=evidence.knee.rps if evidence.knee else None,
        limit=limit,
    )
    legend = {"p50": "ink-one", "p99": "ink-two", f"p99 limit, {milliseconds(limit)}": "ink-limit dash"}
    legend |= {"knee": "ink-soft dotted"} if evidence.knee else {}
    return Drawing(chart, "One dot per run, filled if the objective was missed; requests/s", legend)


def _points(trials: list[TrialRecord], field: str, passed: bool) -> list[tuple[float, float | None]]:
    return [(trial.rate, getattr(trial, field)) for trial in trials if (trial.status == "PASS") == passed]


def _measured(evidence: Evidence) -> dict[str, str]:
    memory, limits = evidence.memory, evidence.objective
    measured = {
        "Package": evidence.package or "unknown",
        "Objective": f"p99 {figure(limits.p99_ms)} ms, errors {percent(limits.error_rate)}",
        "Settings": str(evidence.settings),
        "Machine": f"{evidence.machine}, {evidence.machine.system}",
    }
    if evidence.server is not None:
        measured["Server"] = f"{evidence.server}; {evidence.server.machine.processor}"
    if evidence.cold_start_s is not None:
        phases = ", ".join(f"{name} {length:.1f}" for name, length in evidence.cold_start_phases.items())
        measured["Cold start"] = f"{evidence.cold_start_s:.1f} s{f': {phases}' if phases else ''}"
    if memory is not None:
        workers = ", ".join(f"{size / MB:,.0f}" for size in memory.workers_bytes) or "none"
        measured["Peak memory"] = (
            f"{memory.total_bytes / MB:,.0f} MB: Java {memory.java_bytes / MB:,.0f}, workers {workers}, "
            f"supervisor {memory.supervisor_bytes / MB:,.0f}"
        )
    return measured | {"Arrivals": arrivals_text(evidence.arrivals), "Started": evidence.at}
