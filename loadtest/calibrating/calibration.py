"""`calibrate`, for `marina calibrate`: measures the knee of a package, and writes `evidence.json` and `.html`."""

from dataclasses import replace

from marina.config.measured import Evidence, Knee, LatencyAtRate, Reason, ServingSettings, TrialRecord, Verdict
from marina.config.record import write_json, write_text
from marina.config.spec import Spec
from marina.loadtest.calibrating.evidence import MAY_HOLD_MORE, knee_interval_text, knee_text
from marina.loadtest.calibrating.evidence_report import evidence_html
from marina.loadtest.calibrating.knee import Untrusted
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.trials import OutOfTime, RateTrials
from marina.loadtest.judging import costs_of, costs_text, objective_of
from marina.loadtest.measuring import Measurement, figure, utc_now
from marina.loadtest.reporting import arrivals_text
from marina.loadtest.running import Target, TargetOptions, open_session

_HEADROOM = 0.7
# A wider interval, half of it as a share of the knee, is too unsure to derive anything from.
_WIDEST = 0.1
MIB = 2**20


def calibrate(spec: Spec, options: CalibrateOptions, where: TargetOptions, *, quiet: bool = False) -> Evidence:
    """Measures the knee, and writes `evidence.json` and `evidence.html` into `where.out`."""
    objective = objective_of(spec)
    at = utc_now()
    where = replace(where, as_pod=True)
    with open_session(spec, where, objective, options, quiet=quiet) as session:
        trials = RateTrials(session, objective, options)
        if session.target.confined:
            session.progress.say(f"  the server may use {session.target.confined}; its pod gets {figure(spec.cores)}")
        measured, confirmed, reasons = _search(trials, options.first)
        reasons += _memory_over(session.target)
        evidence = Evidence(
            status="INVALID" if reasons else "PASS",
            reasons=(*reasons, *trials.busy_machine()),
            name=spec.name,
            version=spec.version,
            package=session.package.sha256 if session.package else None,
            objective=objective,
            settings=settings_of(spec),
            knee=measured,
            at_70_percent=confirmed,
            cold_start_s=session.target.cold_start_s,
            cold_start_phases=dict(session.target.start_phases),
            memory=session.target.memory,
            machine=session.machine,
            server=session.target.confined,
            arrivals=options.arrivals,
            at=at,
            trials=tuple(_record(measurement, verdict) for measurement, verdict in trials.runs),
            costs=costs_of(spec, measured.rps, measured.rps) if measured else None,
        )
    write_json(where.out / "evidence.json", evidence.to_data())
    write_text(where.out / "evidence.html", evidence_html(evidence))
    return evidence


def evidence_text(evidence: Evidence) -> str:
    """The evidence as a few lines for the terminal."""
    lines = [f"  {reason.id}: {reason.text}" for reason in evidence.reasons]
    measured = evidence.knee
    if measured is None:
        return "\n".join([f"knee: {evidence.status}", *lines])
    if measured.limit == "generator":
        lines.append(f"  {MAY_HOLD_MORE}")
    if evidence.costs:
        over = evidence.costs.over
        lines += [costs_text(evidence.costs), *([f"  {over.id}: {over.text}"] if over else [])]
    between = f", between {knee_interval_text(measured)}" if measured.interval else ""
    spacing = f", {arrivals_text(evidence.arrivals)}" if evidence.arrivals != "poisson" else ""
    return "\n".join([f"knee: {evidence.status} {knee_text(measured)}{between}{spacing}", *lines])


def settings_of(spec: Spec) -> ServingSettings:
    """The settings of the completed spec."""
    return ServingSettings(
        workers=spec.workers,
        threads=spec.threads,
        max_batch=spec.max_batch,
        max_batch_delay_ms=spec.serving.max_batch_delay_ms,
    )


def _memory_over(server: Target) -> list[Reason]:
    """A reason if the server took more memory than its pod gets: without a control group nothing stopped it."""
    limit, memory = server.confined and server.confined.memory_bytes, server.memory
    if not limit or memory is None or memory.total_bytes <= limit:
        return []
    text = f"the server's memory peaked at {memory.total_bytes / MIB:.0f} Mi, but its pod gets {limit / MIB:.0f} Mi"
    return [Reason(id="memory-over", text=f"{text}: `kubernetes.resources.memory`")]


def _search(trials: RateTrials, first: float | None) -> tuple[Knee | None, LatencyAtRate | None, list[Reason]]:
    measured = None
    try:
        measured = trials.find(first)
        measured = trials.narrow(measured)
        confirmed = trials.confirm(_HEADROOM * measured.rps)
    except OutOfTime as err:
        return measured, None, [Reason(id="cut-short", text=str(err))]
    except Untrusted as err:
        reason = Reason(id="cut-short" if measured else "no-knee", text=str(err))
        return measured, None, [reason, *trials.last_reasons()]
    reasons = []
    allowed = max(_WIDEST, trials.tolerance)
    if measured.width > 1.001 * allowed:
        text = f"the knee's interval reaches {measured.width:.0%} to each side, allowed: {allowed:.0%}"
        reasons.append(Reason(id="knee-unsure", text=text))
    if confirmed.status != "PASS":
        text = f"a run at {figure(confirmed.rate)} requests/s, 70 % of the knee, ended as {confirmed.status}"
        reasons += [Reason(id="knee-not-held", text=text), *trials.last_reasons()]
    return measured, confirmed, reasons


def _record(measurement: Measurement, verdict: Verdict) -> TrialRecord:
    return TrialRecord(
        rate=measurement.rate,
        status=verdict.status,
        p50_ms=measurement.response.percentile(0.5),
        p99_ms=measurement.response.percentile(0.99),
        error_rate=measurement.error_rate,
        reasons=tuple(verdict.every_reason()),
    )
