"""`run_load_test`, for `marina loadtest`: from a spec to a verdict and its three files."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from marina.config.errors import InputError
from marina.config.measured import Evidence, LoadedServer, Objective
from marina.config.record import Package, read_document, write_text
from marina.config.spec import Spec
from marina.loadtest.judging import (
    HELD_SHARE,
    LoadRecord,
    LoadTestOutcome,
    RunRecord,
    costs_of,
    costs_text,
    judge,
    judge_soak,
    objective_of,
    run_record,
    stream_figures,
    with_costs,
)
from marina.loadtest.measuring import Measurement, figure, pool, utc_now
from marina.loadtest.reporting import (
    figures_text,
    pod_share_text,
    stream_lines,
    verdict_html,
    verdict_lines,
    verdict_xml,
)
from marina.loadtest.running.options import RunOptions
from marina.loadtest.running.session import Session, TargetOptions, open_session
from marina.loadtest.scheduling import Schedule

# A run that takes longer than the user expects is announced.
_LONG_S = 300.0


def run_load_test(spec: Spec, options: RunOptions, where: TargetOptions, *, quiet: bool = False) -> LoadTestOutcome:
    """Loads the server until the verdict is clear, and writes `verdict.json`, `.xml` and `.html` into `where.out`."""
    # The spec's objective is that of each pod.
    pods = where.remote.pods if where.remote else 1
    objective = objective_of(spec)
    if objective.throughput_rps is not None:
        objective = objective.model_copy(update={"throughput_rps": pods * objective.throughput_rps})
    first = options.schedule(spec, objective)
    if options.soak_s and where.remote:
        text = "`--soak`: not together with `--in-cluster`: it reads the memory of one server, not of several pods"
        raise InputError(text, hint="kubectl port-forward POD 8080 8090, then --url http://127.0.0.1:8080")
    if first.trace:
        # The recorded requests must be answered, however many requests/s one pod must hold.
        objective = objective.model_copy(update={"throughput_rps": None})
    at = utc_now()
    runs: list[RunRecord] = []
    with open_session(spec, where, objective, options, trace=first.trace, quiet=quiet) as session:
        measured: list[Measurement] = []
        for note in _notes(first, objective, options):
            session.progress.say(f"note: {note}")
        while (schedule := options.next_schedule(first, objective, measured)) is not None:
            label = f"{spec.name}, run {len(runs) + 1}" if runs or options.repeat > 1 else spec.name
            measured.append((session.soak if options.soak_s else session.measure)(schedule, label))
            verdict = judge(measured, objective)
            if options.soak_s:
                verdict = judge_soak(verdict, measured[0], first.warmup_s, spec.serving.java_heap_mb)
            runs.append(run_record(measured[-1], verdict if len(measured) == 1 else judge(measured[-1], objective)))
            session.progress.say(f"  {label:<44} {verdict.status} {figures_text(verdict)}")
        costs = costs_of(spec, pool(measured).held_rps / pods, known_knee(where.out, session.package))
        outcome = LoadTestOutcome(
            verdict=with_costs(verdict, costs),
            objective=objective,
            tested=_tested(spec, session, runs),
            load=_load(spec, options, first, session),
            machine=session.machine,
            at=at,
            runs=tuple(runs),
            costs=costs,
        )
    write_outcome(outcome, where.out)
    return outcome


def _notes(first: Schedule, objective: Objective, options: RunOptions) -> Iterator[str]:
    """What the user should know before the first run."""
    promised = objective.throughput_rps
    if promised is not None and first.rate < HELD_SHARE * promised:
        offered = f"{figure(first.rate)} requests/s are less than `slo.throughput_rps`, {figure(promised)}"
        yield f"{offered}: the throughput will be INVALID"
    if first.duration_s > _LONG_S and options.duration_s is None and options.soak_s is None:
        needed = f"the verdict needs {first.planned:,} requests, at {figure(first.rate)} requests/s"
        yield f"the first run takes {first.duration_s / 60:,.0f} minutes: {needed}; `--duration` shortens it"


def write_outcome(outcome: LoadTestOutcome, folder: Path) -> None:
    """Writes the three files, each atomically."""
    # On one line: of a record with the seconds of hours, indentation would take most of the time and of the room.
    write_text(folder / "verdict.json", json.dumps(outcome.to_data(), sort_keys=True) + "\n")
    write_text(folder / "verdict.xml", verdict_xml(outcome))
    write_text(folder / "verdict.html", verdict_html(outcome))


def verdict_text(outcome: LoadTestOutcome) -> str:
    """The verdict as a few lines for the terminal."""
    lines = verdict_lines(outcome.verdict, outcome.pooled, outcome.load.arrivals)
    pieces = stream_lines(stream_figures(outcome.pooled))
    shares = [f"  {pod_share_text(share)}" for share in outcome.pooled.shares]
    return "\n".join([lines, *pieces, *shares, *([costs_text(outcome.costs)] if outcome.costs else [])])


def _tested(spec: Spec, session: Session, runs: list[RunRecord]) -> LoadedServer:
    identity = runs[-1].measurement.identity
    return LoadedServer(
        name=spec.name,
        version=spec.version,
        spec=str(spec.file),
        url=session.target.url,
        started=session.target.pid is not None,
        package=session.package.sha256 if session.package else None,
        served=identity.found if identity else None,
        cold_start_s=session.target.cold_start_s,
    )


def _load(spec: Spec, options: RunOptions, schedule: Schedule, session: Session) -> LoadRecord:
    return LoadRecord(
        arrivals=schedule.spacing,
        rate=schedule.rate,
        warmup_s=schedule.warmup_s,
        duration_s=schedule.duration_s,
        replay=str(options.replayed(spec)) if schedule.trace else None,
        speed=options.speed or 1.0,
        repeat=options.repeat,
        processes=options.processes,
        seed=options.seed,
        timeout_s=session.timeout_s,
        samples=len(session.request.all_bodies),
        samples_sha256=session.request.bodies_sha256,
        sample_bytes=max(len(body.body) for body in session.request.all_bodies),
        sample_content_type=session.request.content_type,
    )


def known_knee(folder: Path, package: Package | None) -> float | None:
    """The knee that a calibration of this package recorded in the build folder, requests/s; None if none is valid."""
    with suppress(InputError):
        evidence = read_document(folder / "evidence.json", Evidence, hint="")
        if evidence and package and evidence.package == package.sha256 and evidence.status == "PASS" and evidence.knee:
            return evidence.knee.rps
    return None
