"""`run`, the verb `marina loadtest`: from a spec to a verdict and its three files."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    arrivals_needed,
    costs_of,
    costs_text,
    goes_on,
    judge,
    objective_of,
    pool,
    run_of,
    samples_needed,
    with_costs,
)
from loadtest.measuring import Measurement
from loadtest.reporting import figures_text, verdict_html, verdict_lines, verdict_xml
from loadtest.running.known_knee import known_knee
from loadtest.running.session import Session, Where, open_session
from loadtest.sending import Arrivals, Schedule

_SHORTEST_S = 30
# So that a few dropped samples, or a schedule that drew few arrivals, do not make a run too small to judge.
_SPARE_SAMPLES = 1.1
# A first run that leaves it open is followed by others, until all are this many times as long.
_LONGER = 10
# What is left of the time allowed may be too little to say anything more.
_SHORTEST_SHARE = 0.2
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class RunOptions(BaseModel):
    """How to load, as the command line says it; None is a default that depends on the objective."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Positive | None = None
    """Requests/s; default: the spec's `slo.throughput_rps`."""
    duration_s: Positive | None = None
    """Length of the first run's measured window; default: 30 s, or as long as p99 and the error rate need."""
    max_duration_s: Positive | None = None
    """How long may be measured, all runs together, while the limit is inside an interval; default: ten times the first
    run."""
    warmup_s: Annotated[float, Field(ge=0)] = 5
    repeat: Count = 1
    """Runs at least, which are judged together."""
    processes: Count = 1
    arrivals: Arrivals = "poisson"
    seed: int = 0
    """Of the Poisson schedule; each repeat adds one."""
    timeout_s: Positive | None = None
    """How long a client waits for an answer; default: twice the latency limit, at least 10 s."""

    def schedule(self, spec: Spec, objective: Objective) -> Schedule:
        """The schedule of the first run; InputError when neither options nor objective say a rate."""
        rate = self.rate or objective.throughput_rps
        if rate is None:
            text = f"{spec.file}: `slo.throughput_rps`: missing, and no rate was asked for"
            raise InputError(text, hint=f"marina loadtest {spec.file} --rate 50")
        return self.schedule_of(rate, objective)

    def schedule_of(self, rate: float, objective: Objective) -> Schedule:
        """The schedule of the first run at a rate."""
        needed = _SPARE_SAMPLES * max(samples_needed(), arrivals_needed(objective.error_rate))
        duration_s = self.duration_s or max(_SHORTEST_S, math.ceil(needed / rate))
        return Schedule(
            arrivals=self.arrivals, rate=rate, warmup_s=self.warmup_s, duration_s=duration_s, seed=self.seed
        )

    def next_schedule(self, first: Schedule, objective: Objective, measured: Sequence[Measurement]) -> Schedule | None:
        """The schedule after these runs; None when they are enough, or longer ones are not allowed.

        Each further run doubles what was measured, so that there are few looks at what is not decided yet.
        """
        number, so_far_s = len(measured), sum(each.asked_s for each in measured)
        if any(each.interrupted or each.server_end for each in measured):
            return None
        length_s = first.duration_s
        if number >= self.repeat:
            left_s = (self.max_duration_s or _LONGER * first.duration_s) - so_far_s
            length_s = min(so_far_s, left_s)
            if length_s < _SHORTEST_SHARE * first.duration_s or not goes_on(judge(measured, objective)):
                return None
        return first.model_copy(update={"duration_s": length_s, "seed": self.seed + number})


def run(spec: Spec, options: RunOptions, where: Where, *, quiet: bool = False) -> Outcome:
    """Loads the server as often as asked, judges, and writes `verdict.json`, `.xml` and `.html` into `where.out`."""
    objective = objective_of(spec)
    first = options.schedule(spec, objective)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    runs: list[Run] = []
    with open_session(
        spec, where, objective=objective, processes=options.processes, timeout_s=options.timeout_s, quiet=quiet
    ) as session:
        measured: list[Measurement] = []
        while (schedule := options.next_schedule(first, objective, measured)) is not None:
            label = f"{spec.name}, run {len(runs) + 1}" if runs or options.repeat > 1 else spec.name
            measured.append(session.measure(schedule, label))
            runs.append(run_of(measured[-1], judge(measured[-1], objective)))
            verdict = judge(measured, objective)
            session.progress.say(f"  {label:<44} {verdict.status} {figures_text(verdict)}")
        costs = costs_of(spec, pool(measured).held_rps, known_knee(where.out, session.package))
        outcome = Outcome(
            verdict=with_costs(judge(measured, objective), costs),
            objective=objective,
            tested=_tested(spec, session, runs),
            load=_load(options, first, session),
            machine=session.machine,
            at=at,
            runs=tuple(runs),
            costs=costs,
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
    lines = verdict_lines(outcome.verdict, requests, outcome.load.arrivals)
    return f"{lines}\n{costs_text(outcome.costs)}" if outcome.costs else lines


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
        samples=len(session.request.all_bodies),
        sample_bytes=max(len(body.body) for body in session.request.all_bodies),
        sample_content_type=session.request.content_type,
    )
