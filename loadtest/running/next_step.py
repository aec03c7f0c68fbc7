"""What to type after a FAIL or INVALID."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from loadtest.judging import MOST_STEPS, STEP_REQUESTS, TOO_FEW, UNDECIDED, LoadTestOutcome, samples_needed

_CLUSTER = "--in-cluster"


def next_step(outcome: LoadTestOutcome, folder: Path, where: Sequence[str] = ()) -> str | None:
    """The command that tells more; None after a PASS. `folder` is that of the records, `where` what was typed to say
    which server is loaded: `--in-cluster --one-pod`."""
    if outcome.verdict.status == "PASS":
        return None
    spec, load, there = outcome.tested.spec, outcome.load, _CLUSTER in where
    ids = {reason.id for reason in outcome.verdict.every_reason()}
    measured_s = sum(run.measurement.asked_s for run in outcome.runs)
    again, more = (_again(outcome, where, load.processes + extra) for extra in (0, 1))
    needed = MOST_STEPS * STEP_REQUESTS if outcome.ramp else samples_needed()
    # Pods that send are on machines of their own already, and each sends a share.
    apart = more if there else f"{again}{'' if where else ' --url URL'} from another machine than the server's"
    look = (
        f"marina status {spec}"
        if there
        else f"less {shlex.quote(str(folder / 'server.log'))}"
        if outcome.tested.started
        else None
    )
    holds = _knee(spec, where)
    steps = {
        "server-died": look,
        "package-differs": f"marina deploy {spec}" if there else f"marina package {spec}, then serve that",
        "machine-busy": f"{again} once nothing else runs {'on the nodes of its pods' if there else 'here'}",
        "arrivals-late": apart,
        "generator-stalled": apart,
        "generator-saturated": more,
        "errors-over": look,
        "broke": holds,
        "backlog-grows": holds,
        "throughput-not-held": holds,
        "p99-over": holds,
        "over-budget": f"marina calibrate {spec} --tune looks for settings that answer more with the same pod",
        TOO_FEW: f"{again} --duration {math.ceil(1.1 * needed / load.rate)}",
        UNDECIDED: f"{again} --{'duration' if outcome.ramp else 'max-duration'} {math.ceil(4 * measured_s)}",
    }
    return next((step for name, step in steps.items() if name in ids and step), None)


def _again(outcome: LoadTestOutcome, where: Sequence[str], processes: int) -> str:
    """The same load on the same server, sent by so many."""
    words = ["marina loadtest", outcome.tested.spec, _what(outcome), shlex.join(where)]
    return " ".join([*filter(None, words), *([f"--processes {processes}"] if processes > 1 else [])])


def _knee(spec: str, where: Sequence[str]) -> str:
    """A calibration of the same server, or of one pod of those that a cluster has."""
    chosen = [at for at, word in enumerate(where) if word in ("--one-pod", "--service")]
    values = [at + 1 for at in chosen if where[at] == "--service"]
    kept = [word for at, word in enumerate(where) if at not in (*chosen, *values)]
    held = "one pod holds" if _CLUSTER in where else "it holds"
    more = "" if where else "; `--tune` looks for settings that hold more"
    return f"{' '.join(['marina calibrate', spec, *map(shlex.quote, kept)])} says which rate {held}{more}"


def _what(outcome: LoadTestOutcome) -> str:
    """What was sent, as it was asked for."""
    load, ramp = outcome.load, outcome.ramp
    if ramp is not None:
        return f"--ramp {ramp.begin_rps:g}:{ramp.end_rps:g}"
    return f"--replay {load.replay} --speed {load.speed:g}" if load.replay else f"--rate {load.rate:g}"
