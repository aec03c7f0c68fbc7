"""`run`, the verb `marina loadtest`: from a spec to a verdict and its three files."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from config.errors import InputError
from config.record import write_json, write_text
from config.spec import Spec
from loadtest.judging import (
    Load,
    Objective,
    Outcome,
    Run,
    Subject,
    combine,
    judge,
    objective_of,
    run_of,
    samples_needed,
)
from loadtest.reporting import figures_text, verdict_html, verdict_lines, verdict_xml
from loadtest.running.session import Session, Where, open_session
from loadtest.sending import Arrivals, Schedule

_SHORTEST_S = 30
# So that a few dropped samples do not make a run too small for its percentile.
_SPARE_SAMPLES = 1.1
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class RunOptions(BaseModel):
    """How to load, as the command line says it; None is a default that depends on the objective."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Positive | None = None
    """Requests/s; default: the spec's `slo.throughput_rps`."""
    duration_s: Positive | None = None
    """Length of the measured window; default: 30 s, or as long as p99 needs."""
    warmup_s: Annotated[float, Field(ge=0)] = 5
    repeat: Count = 1
    processes: Count = 1
    arrivals: Arrivals = "poisson"
    seed: int = 0
    """Of the Poisson schedule; each repeat adds one."""
    timeout_s: Positive | None = None
    """How long a client waits for an answer; default: twice the latency limit, at least 10 s."""

    def schedule(self, spec: Spec, objective: Objective, run: int = 0) -> Schedule:
        """The schedule of one run; InputError when neither options nor objective say a rate."""
        rate = self.rate or objective.throughput_rps
        if rate is None:
            text = f"{spec.file}: `slo.throughput_rps`: missing, and no rate was asked for"
            raise InputError(text, hint=f"marina loadtest {spec.file} --rate 50")
        duration_s = self.duration_s or max(_SHORTEST_S, math.ceil(_SPARE_SAMPLES * samples_needed() / rate))
        return Schedule(
            arrivals=self.arrivals, rate=rate, warmup_s=self.warmup_s, duration_s=duration_s, seed=self.seed + run
        )


def run(spec: Spec, options: RunOptions, where: Where, *, quiet: bool = False) -> Outcome:
    """Loads the server as often as asked, judges, and writes `verdict.json`, `.xml` and `.html` into `where.out`."""
    objective = objective_of(spec)
    schedules = [options.schedule(spec, objective, number) for number in range(options.repeat)]
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    runs: list[Run] = []
    with open_session(
        spec, where, objective=objective, processes=options.processes, timeout_s=options.timeout_s, quiet=quiet
    ) as session:
        for number, schedule in enumerate(schedules, 1):
            label = f"run {number} of {options.repeat}" if options.repeat > 1 else spec.name
            measurement = session.measure(schedule, label)
            runs.append(run_of(measurement, judge(measurement, objective)))
            session.progress.say(f"  {label:<44} {runs[-1].verdict.status} {figures_text(runs[-1].verdict)}")
            if measurement.interrupted or measurement.server_end:
                break
        outcome = Outcome(
            verdict=combine([each.verdict for each in runs]),
            objective=objective,
            tested=_tested(spec, session, runs),
            load=_load(options, schedules[0], session),
            machine=session.machine,
            at=at,
            runs=tuple(runs),
        )
    write_outcome(outcome, where.out)
    return outcome


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """The three files, each whole or not at all."""
    write_json(folder / "verdict.json", outcome.to_data())
    write_text(folder / "verdict.xml", verdict_xml(outcome))
    write_text(folder / "verdict.html", verdict_html(outcome))


def verdict_text(outcome: Outcome) -> str:
    """The verdict as a few lines for a terminal."""
    requests = sum(each.measurement.finished for each in outcome.runs)
    return verdict_lines(outcome.verdict, requests, outcome.load.arrivals)


def _tested(spec: Spec, session: Session, runs: list[Run]) -> Subject:
    identity = runs[-1].measurement.identity
    return Subject(
        name=spec.name,
        version=spec.version,
        spec=str(spec.file),
        url=session.target.url,
        started=session.target.pid is not None,
        package=session.package.sha256 if session.package else None,
        served=identity.found if identity else None,
        cold_start_s=session.target.cold_start_s,
    )


def _load(options: RunOptions, schedule: Schedule, session: Session) -> Load:
    return Load(
        arrivals=schedule.arrivals,
        rate=schedule.rate,
        warmup_s=schedule.warmup_s,
        duration_s=schedule.duration_s,
        repeat=options.repeat,
        processes=options.processes,
        seed=options.seed,
        timeout_s=session.timeout_s,
        sample_bytes=len(session.request.body),
        sample_content_type=session.request.content_type,
    )
