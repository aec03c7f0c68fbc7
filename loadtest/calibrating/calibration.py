"""`calibrate`, the verb: how much this package holds on this machine, as `evidence.json` and `evidence.html`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from config.errors import MarinaError
from config.record import write_json, write_text
from config.spec import Spec
from loadtest.calibrating import knee
from loadtest.calibrating.evidence import MAY_HOLD_MORE, At, Evidence, KneeRecord, Settings, TrialRecord, knee_text
from loadtest.calibrating.evidence_report import evidence_html
from loadtest.calibrating.knee import Knee, Untrusted, find_knee
from loadtest.judging import (
    GENERATOR_REASONS,
    UNDECIDED,
    Objective,
    Reason,
    Status,
    Verdict,
    goes_on,
    judge,
    latency_of,
    objective_of,
    on_balance,
    pool,
    samples_needed,
)
from loadtest.measuring import Measurement, figure
from loadtest.reporting import figures_text
from loadtest.running import Session, Where, open_session
from loadtest.sending import Arrivals, Schedule

_FIRST_RPS = 20.0
_SHORTEST_TRIAL_S, _LONGEST_TRIAL_S = 8.0, 60.0
_SPARE_SAMPLES = 1.1
# Neighbouring latencies of random arrivals rise and fall together; with fewer, simulated knees differ by 15 %.
_STEADY_SAMPLES: dict[Arrivals, float] = {"constant": 1.1, "poisson": 2.5}
_MOST_RUNS = 4
_LONG_RUN_S = 30.0
_BURST_S = 2.0
_UNDER_ESTIMATE = 0.7
_HEADROOM = 0.7


class Search(BaseModel):
    """How to search, as the command line says it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: Annotated[float, Field(gt=0)] | None = None
    """Rate of the first run, requests/s; default: a little under what short bursts show."""
    trial_s: Annotated[float, Field(gt=0)] | None = None
    """Length of each run, if that is enough for p99; default: also long enough for a queue to grow past the limit."""
    warmup_s: Annotated[float, Field(ge=0)] = 2
    repeat: Annotated[int, Field(ge=1)] = 3
    processes: Annotated[int, Field(ge=1)] = 1
    arrivals: Arrivals = "poisson"
    seed: int = 0
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    tolerance: Annotated[float, Field(gt=0, lt=1)] = knee.TOLERANCE

    def length_s(self, rate: float, objective: Objective) -> float:
        """How long a run at `rate` must be to be judged."""
        if self.trial_s is not None:
            return max(self.trial_s, _SPARE_SAMPLES * samples_needed() / rate)
        enough_s = _STEADY_SAMPLES[self.arrivals] * samples_needed() / rate
        # Just above what a server holds, its queue takes this long to become slower than the limit.
        growth_s = min(_LONGEST_TRIAL_S, objective.p99_ms / 1000 / self.tolerance)
        return max(_SHORTEST_TRIAL_S, growth_s, enough_s)


class ServerEnded(MarinaError):
    """Raised when the server under test ended by itself."""


class Trials:
    """Runs at different rates against one server, each judged by whether that rate was held within the objective."""

    def __init__(self, session: Session, objective: Objective, options: Search) -> None:
        self._session = session
        # The search asks whether the offered rate is held, not whether the spec's is.
        self._objective = objective.model_copy(update={"throughput_rps": None})
        self._options = options
        self.runs: list[tuple[Measurement, Verdict]] = []
        self._number = 0

    def at(self, rate: float, length_s: float | None = None) -> Status:
        """Whether a rate is held: one run where that is clear, up to four where it is not, which then decide on
        balance; INVALID when the generator could not measure it, Untrusted when anything else was wrong."""
        length_s = length_s or self._options.length_s(rate, self._objective)
        measured = [self._run(rate, length_s)]
        verdict = judge(measured, self._objective)
        while _is_close(verdict) and len(measured) < _MOST_RUNS:
            measured.append(self._run(rate, length_s))
            verdict = judge(measured, self._objective)
        status = on_balance(verdict)
        self.runs.append((pool(measured), verdict.model_copy(update={"status": status})))
        others = [reason for reason in verdict.every_reason() if reason.id not in {*GENERATOR_REASONS, UNDECIDED}]
        if status == "INVALID" and others:
            raise Untrusted(f"{figure(rate)} requests/s: {others[0].text}")
        return status

    def _run(self, rate: float, length_s: float) -> Measurement:
        self._number += 1
        schedule = Schedule(
            arrivals=self._options.arrivals,
            rate=rate,
            warmup_s=self._options.warmup_s,
            duration_s=length_s,
            # Other arrivals each time: with the same ones, all searches would be wrong by the same dice, and agree.
            seed=self._options.seed + self._number,
        )
        label = f"run {self._number}, {figure(rate)} requests/s"
        measurement = self._measured(schedule, label)
        verdict = judge(measurement, self._objective)
        self._session.progress.say(f"  {label:<44} {verdict.status} {figures_text(verdict)}")
        return measurement

    def _measured(self, schedule: Schedule, label: str) -> Measurement:
        """One run; neither Ctrl-C nor the end of the server is an answer about a rate, so both end the search."""
        measurement = self._session.measure(schedule, label)
        if measurement.interrupted:
            raise KeyboardInterrupt
        if measurement.server_end is not None:
            raise ServerEnded(f"the server ended at {figure(schedule.rate)} requests/s: {measurement.server_end}")
        return measurement

    def holds(self, rate: float) -> bool:
        """Whether a rate is held within the objective; Untrusted when no run at it can be trusted."""
        return knee.holds(self.at, rate)

    def warm_up(self, rate: float = _FIRST_RPS) -> float:
        """Bursts from a rate on until the server, which may have just started, no longer gets faster; about what it
        holds then."""
        return knee.estimate(self._burst, rate)

    def find(self, first: float | None) -> Knee:
        """The knee; Untrusted when it cannot be found."""
        if first is None:
            first = _UNDER_ESTIMATE * self.warm_up()
        return find_knee(self.at, first, self._options.repeat, self._options.tolerance)

    def _burst(self, rate: float) -> float:
        """Good answers a second of a short burst."""
        schedule = Schedule(arrivals="constant", rate=rate, warmup_s=_BURST_S / 2, duration_s=_BURST_S)
        return self._measured(schedule, f"burst, {figure(rate)} requests/s").held_rps

    def nearest_pass(self, rate: float) -> At | None:
        """The latencies of the run that passed nearest to a rate."""
        passed = [measurement for measurement, verdict in self.runs if verdict.status == "PASS"]
        if not passed:
            return None
        found = min(passed, key=lambda measurement: abs(measurement.rate - rate))
        return At(rate=found.rate, status="PASS", response=latency_of(found.response))

    def long_run(self, rate: float) -> At:
        """A run three times as long as the others, at least half a minute unless lengths were asked for."""
        shortest_s = _LONG_RUN_S if self._options.trial_s is None else 0.0
        status = self.at(rate, max(shortest_s, 3 * self._options.length_s(rate, self._objective)))
        return At(rate=rate, status=status, response=latency_of(self.runs[-1][0].response))

    def why(self) -> list[Reason]:
        """Every reason of the last run."""
        return self.runs[-1][1].every_reason() if self.runs else []


def calibrate(spec: Spec, options: Search, where: Where, *, quiet: bool = False) -> Evidence:
    """Finds the knee and writes `evidence.json` and `evidence.html` into `where.out`."""
    objective = objective_of(spec)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open_session(
        spec, where, objective=objective, processes=options.processes, timeout_s=options.timeout_s, quiet=quiet
    ) as session:
        trials = Trials(session, objective, options)
        found, long_run, reasons = _search(trials, options.first)
        evidence = Evidence(
            status="INVALID" if reasons else "PASS",
            reasons=tuple(reasons),
            name=spec.name,
            version=spec.version,
            package=session.package.sha256 if session.package else None,
            objective=objective,
            settings=settings_of(spec),
            knee=KneeRecord(rps=found.rps, found=found.found, spread=found.spread, limit=found.limit)
            if found
            else None,
            at_knee=trials.nearest_pass(found.rps) if found else None,
            at_70_percent=long_run,
            cold_start_s=session.target.cold_start_s,
            memory=session.target.memory,
            machine=session.machine,
            arrivals=options.arrivals,
            at=at,
            trials=tuple(_record(measurement, verdict) for measurement, verdict in trials.runs),
        )
    write_json(where.out / "evidence.json", evidence.to_data())
    write_text(where.out / "evidence.html", evidence_html(evidence))
    return evidence


def evidence_text(evidence: Evidence) -> str:
    """The evidence as a few lines for a terminal."""
    lines = [f"  {reason.id}: {reason.text}" for reason in evidence.reasons]
    found = evidence.knee
    if found is None:
        return "\n".join([f"knee: {evidence.status}", *lines])
    spread = f"{figure(min(found.found))} to {figure(max(found.found))} in {len(found.found)} searches"
    if found.limit == "generator":
        lines.append(f"  {MAY_HOLD_MORE}")
    return "\n".join([f"knee: {evidence.status} {knee_text(found)}, {spread}", *lines])


def _is_close(verdict: Verdict) -> bool:
    """Whether another run at the rate would tell more; that nothing fails needs no proof here, `loadtest` wants one."""
    unsure = [check for check in verdict.checks if check.status == "INVALID"]
    return goes_on(verdict) and not all(check.objective == "errors" and check.measured == 0 for check in unsure)


def settings_of(spec: Spec) -> Settings:
    """The spec's settings, completed."""
    return Settings(
        workers=spec.workers,
        threads=spec.threads,
        max_batch=spec.max_batch,
        max_batch_delay_ms=spec.serving.max_batch_delay_ms,
    )


def _search(trials: Trials, first: float | None) -> tuple[Knee | None, At | None, list[Reason]]:
    try:
        found = trials.find(first)
    except Untrusted as err:
        return None, None, [Reason(id="no-knee", text=str(err)), *trials.why()]
    reasons = []
    if not found.agrees:
        text = f"the searches differ by {found.spread:.0%} of the knee, allowed: {knee.AGREEMENT:.0%}"
        reasons.append(Reason(id="searches-differ", text=text))
    try:
        long_run = trials.long_run(_HEADROOM * found.rps)
    except Untrusted as err:
        return found, None, [*reasons, Reason(id="cut-short", text=str(err))]
    if long_run.status != "PASS":
        text = f"a long run at {figure(long_run.rate)} requests/s, 70 % of the knee, is {long_run.status}"
        reasons += [Reason(id="knee-not-held", text=text), *trials.why()]
    return found, long_run, reasons


def _record(measurement: Measurement, verdict: Verdict) -> TrialRecord:
    return TrialRecord(
        rate=measurement.rate,
        status=verdict.status,
        p50_ms=measurement.response.percentile(0.5),
        p99_ms=measurement.response.percentile(0.99),
        error_rate=measurement.error_rate,
        reasons=tuple(verdict.every_reason()),
    )
