"""What to type after a verdict that is no PASS."""

from __future__ import annotations

import math
from pathlib import Path

from loadtest.judging import MOST_STEPS, STEP_REQUESTS, TOO_FEW, UNDECIDED, Outcome, samples_needed

_HOLDS = "says which rate it holds; `--tune` looks for settings that hold more"


def next_step(outcome: Outcome, folder: Path) -> str | None:
    """The command that tells more; None after a PASS. `folder` is that of the records."""
    if outcome.verdict.status == "PASS":
        return None
    spec, load = outcome.tested.spec, outcome.load
    ids = {reason.id for reason in outcome.verdict.every_reason()}
    measured_s = sum(run.measurement.asked_s for run in outcome.runs)
    again = f"marina loadtest {spec} {_what(outcome)}"
    needed = MOST_STEPS * STEP_REQUESTS if outcome.ramp else samples_needed()
    steps = {
        "server-died": f"less {folder / 'server.log'}" if outcome.tested.started else None,
        "package-differs": f"marina package {spec}, then serve that",
        "machine-busy": f"{again} once nothing else runs here",
        "arrivals-late": f"{again} --url URL from another machine than the server's",
        "generator-stalled": f"{again} --url URL from another machine than the server's",
        "generator-saturated": f"{again} --processes {load.processes + 1}",
        "errors-over": f"less {folder / 'server.log'}" if outcome.tested.started else None,
        "broke": f"marina calibrate {spec} {_HOLDS}",
        "backlog-grows": f"marina calibrate {spec} {_HOLDS}",
        "throughput-not-held": f"marina calibrate {spec} {_HOLDS}",
        "p99-over": f"marina calibrate {spec} {_HOLDS}",
        "over-budget": f"marina calibrate {spec} --tune looks for settings that answer more with the same pod",
        TOO_FEW: f"{again} --duration {math.ceil(1.1 * needed / load.rate)}",
        UNDECIDED: f"{again} --{'duration' if outcome.ramp else 'max-duration'} {math.ceil(4 * measured_s)}",
    }
    return next((step for name, step in steps.items() if name in ids and step), None)


def _what(outcome: Outcome) -> str:
    """What was sent, as it was asked for."""
    load, ramp = outcome.load, outcome.ramp
    if ramp is not None:
        return f"--ramp {ramp.begin_rps:g}:{ramp.end_rps:g}"
    return f"--replay {load.replay} --speed {load.speed:g}" if load.replay else f"--rate {load.rate:g}"
