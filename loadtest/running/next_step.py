"""The command to type after a FAIL or INVALID."""

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from marina.loadtest.judging import (
    SPARE_SAMPLES,
    TOO_FEW,
    UNDECIDED,
    LoadTestOutcome,
    client_timeout_s,
    samples_needed,
)
from marina.loadtest.running.options import RunOptions

# Reasons, and what to type after one of them. The first row counts whose command is not empty.
_STEPS = {
    "package-differs": "{package}",
    "package-unknown": "{same} --any-package skips this check{pages}",
    "machine-busy": "{same} when nothing else runs {here}",
    "arrivals-late generator-stalled": "{elsewhere}",
    "generator-saturated": "{more}",
    "shed": "{knee}",
    "errors-over": "{log}",
    "backlog-grows throughput-not-held p99-over ttft-over itl-over goodput-low": "{knee}",
    # What was measured is too little to say more than that the same load must run to its end.
    "cut-short": "{same}",
    "settles memory-grows files-grows drift-grows": "{load} --soak {twice}s",
    "rate-below-objective": "{promised}",
    TOO_FEW: "{load} --{length} {enough}",
    UNDECIDED: "{load} --{most} {longer}",
    "over-budget": "{tune}",
}


def next_step(outcome: LoadTestOutcome, folder: Path, where: Sequence[str] = ()) -> str | None:
    """The command that would tell more; None after a PASS.

    `folder` holds the records. `where` is what the user typed to choose the server, such as `--in-cluster --one-pod`.
    """
    if outcome.verdict.status == "PASS":
        return None
    ids = {reason.id for reason in outcome.verdict.every_reason()}
    texts = _texts(outcome, folder, where)
    if ids & {"errors-only", "server-died"}:
        # Another load would not help, or nothing is left to send it to.
        return texts["log"] or None
    steps = [step.format_map(texts) for reasons, step in _STEPS.items() if ids & set(reasons.split())]
    return next(filter(None, steps), None)


def _texts(outcome: LoadTestOutcome, folder: Path, where: Sequence[str]) -> dict[str, str]:
    """The parts of the steps; what cannot be done is empty."""
    spec, load, in_cluster = outcome.tested.spec, outcome.load, "--in-cluster" in where
    measured_s = sum(run.measurement.asked_s for run in outcome.runs)
    soaked = any(run.measurement.vitals is not None for run in outcome.runs)
    streamed, promised = outcome.pooled.streams is not None, outcome.objective.throughput_rps
    # A calibration in the cluster always measures one pod.
    one_pod = [
        word
        for before, word in pairwise(("", *where))
        if word not in ("--one-pod", "--service") and before != "--service"
    ]
    soak = f" --soak {measured_s:g}s" if soaked else ""
    same = _same_load(outcome, where, load.processes)
    more = _same_load(outcome, where, load.processes + 1) + soak
    held = "one pod holds" if in_cluster else "it holds"
    log = f"less {shlex.quote(str(folder / 'server.log'))}" if outcome.tested.started else ""
    # More of such a load would not reach a verdict, unless the run was only too short for a request more.
    reachable = not (load.replay or load.rate == promised)
    return {
        "load": same,
        "same": same + soak,
        "more": more,
        # Sending pods are on other machines already, and each sends a share.
        "elsewhere": more
        if in_cluster
        else f"{same}{soak}{'' if where else ' --url URL'} from another machine than the server's",
        "here": "on the nodes of its pods" if in_cluster else "here",
        "log": f"marina status {spec}" if in_cluster else log,
        "package": f"marina deploy {spec}" if in_cluster else f"marina package {spec}, then serve that",
        "pages": ""
        if in_cluster or "--pages-url" in where
        else "; `--pages-url URL` says where the supervisor's pages are",
        "knee": f"{_calibration(outcome, one_pod)} says which rate {held}"
        + ("" if where or streamed else "; `--tune` searches settings that hold more"),
        "tune": ""
        if streamed
        else f"{_calibration(outcome)} --tune searches settings with which the same pod answers more",
        "promised": _same_load(outcome, where, load.processes, promised) + soak if reachable else "",
        "length": "soak" if soaked else "duration",
        "most": "soak" if soaked else "max-duration",
        "twice": f"{2 * measured_s:g}",
        "longer": f"{math.ceil(4 * measured_s)}",
        "enough": f"{_enough_s(outcome)}",
    }


def _enough_s(outcome: LoadTestOutcome) -> int:
    """The seconds after which the same load has enough requests, or enough answers if only a part of them gets one."""
    run = outcome.pooled
    answered = run.response.count / run.finished if run.finished else 1.0
    return math.ceil(SPARE_SAMPLES * samples_needed() / (outcome.load.rate * (answered or 1.0)))


def _same_load(outcome: LoadTestOutcome, where: Sequence[str], processes: int, rate: float | None = None) -> str:
    """The command for the same load on the same server, or for another rate, sent by this many processes."""
    load = outcome.load
    words = [f"--rate {rate or load.rate:g}"]
    if load.replay:
        words = [f"--replay {shlex.quote(load.replay)} --speed {load.speed:g}"]
    if load.warmup_s != RunOptions().warmup_s:
        words.append(f"--warmup {load.warmup_s:g}")
    return _command("loadtest", outcome, words, where, processes)


def _calibration(outcome: LoadTestOutcome, where: Sequence[str] = ()) -> str:
    """The command for a calibration that sends as the load was sent."""
    return _command("calibrate", outcome, [], where, outcome.load.processes)


def _command(verb: str, outcome: LoadTestOutcome, words: list[str], where: Sequence[str], processes: int) -> str:
    """A command with the options of any stage that sends load, where they differ from the defaults."""
    load = outcome.load
    given = {
        "--arrivals constant": load.arrivals == "constant",
        f"--seed {load.seed}": load.seed != RunOptions().seed,
        f"--timeout {load.timeout_s:g}": load.timeout_s != client_timeout_s(outcome.objective),
        shlex.join(where): bool(where),
        f"--processes {processes}": processes > 1,
    }
    return " ".join(
        ["marina", verb, outcome.tested.spec, *words, *(text for text, differs in given.items() if differs)]
    )
