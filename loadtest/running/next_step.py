"""The command to type after a FAIL or INVALID."""

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from marina.loadtest.judging import (
    MOST_STEPS,
    SPARE_SAMPLES,
    STEP_REQUESTS,
    TOO_FEW,
    UNDECIDED,
    LoadTestOutcome,
    client_timeout_s,
    samples_needed,
)
from marina.loadtest.running.options import RunOptions

_CLUSTER = "--in-cluster"


def next_step(outcome: LoadTestOutcome, folder: Path, where: Sequence[str] = ()) -> str | None:
    """The command that would tell more; None after a PASS.

    `folder` holds the records. `where` is what the user typed to choose the server, such as `--in-cluster --one-pod`.
    """
    if outcome.verdict.status == "PASS":
        return None
    spec, load, in_cluster = outcome.tested.spec, outcome.load, _CLUSTER in where
    ids = {reason.id for reason in outcome.verdict.every_reason()}
    measured_s = sum(run.measurement.asked_s for run in outcome.runs)
    soaked = any(run.measurement.vitals is not None for run in outcome.runs)
    kept = [f"--soak {measured_s:g}s"] if soaked else []
    same = _same_load(outcome, where, load.processes)
    again, more = (" ".join([words, *kept]) for words in (same, _same_load(outcome, where, load.processes + 1)))
    # Sending pods are on other machines already, and each sends a share.
    spread = more if in_cluster else f"{again}{'' if where else ' --url URL'} from another machine than the server's"
    read_log = (
        f"marina status {spec}"
        if in_cluster
        else f"less {shlex.quote(str(folder / 'server.log'))}"
        if outcome.tested.started
        else None
    )
    if ids & {"errors-only", "server-died"}:
        # Another load would not help, or nothing is left to send it to.
        return read_log
    pages = "" if in_cluster or "--pages-url" in where else "; `--pages-url URL` says where the supervisor's pages are"
    find_knee = _calibrate(outcome, where)
    longer = "soak" if soaked else "duration" if outcome.ramp else "max-duration"
    steps = {
        "package-differs": f"marina deploy {spec}" if in_cluster else f"marina package {spec}, then serve that",
        "package-unknown": f"{again} --any-package skips this check{pages}",
        "machine-busy": f"{again} when nothing else runs {'on the nodes of its pods' if in_cluster else 'here'}",
        "arrivals-late": spread,
        "generator-stalled": spread,
        "generator-saturated": more,
        "shed": find_knee,
        "errors-over": read_log,
        "broke": find_knee,
        "backlog-grows": find_knee,
        "throughput-not-held": find_knee,
        **dict.fromkeys(("p99-over", "ttft-over", "itl-over", "goodput-low"), find_knee),
        # What was measured is too little to say more than that the same load must run to its end.
        "cut-short": again,
        **dict.fromkeys(
            ("settles", "memory-grows", "files-grows", "drift-grows"), f"{same} --soak {2 * measured_s:g}s"
        ),
        # More of such a load would not reach a verdict, unless the run was only too short for a request more.
        "rate-below-objective": None
        if outcome.ramp or load.replay or in_cluster or load.rate == outcome.objective.throughput_rps
        else " ".join([_same_load(outcome, where, load.processes, outcome.objective.throughput_rps), *kept]),
        TOO_FEW: f"{same} --{'soak' if soaked else 'duration'} {_enough_s(outcome)}",
        UNDECIDED: f"{same} --{longer} {math.ceil(4 * measured_s)}",
        "over-budget": None
        if outcome.pooled.streams
        else f"{_calibration(outcome)} --tune searches settings with which the same pod answers more",
    }
    return next((step for name, step in steps.items() if name in ids and step), None)


def _same_load(outcome: LoadTestOutcome, where: Sequence[str], processes: int, rate: float | None = None) -> str:
    """The command for the same load on the same server, or for another rate, sent by this many processes."""
    words = ["marina loadtest", outcome.tested.spec, _load_options(outcome, rate), shlex.join(where)]
    return " ".join([*filter(None, words), *([f"--processes {processes}"] if processes > 1 else [])])


def _enough_s(outcome: LoadTestOutcome) -> int:
    """The seconds after which the same load has enough requests, or enough answers if only a part of them gets one."""
    if outcome.ramp:
        return math.ceil(SPARE_SAMPLES * MOST_STEPS * STEP_REQUESTS / outcome.load.rate)
    run = outcome.pooled
    answered = run.response.count / run.finished if run.finished else 1.0
    return math.ceil(SPARE_SAMPLES * samples_needed() / (outcome.load.rate * (answered or 1.0)))


def _calibration(outcome: LoadTestOutcome, where: Sequence[str] = ()) -> str:
    """The command for a calibration that sends as the load was sent."""
    processes = [f"--processes {outcome.load.processes}"] if outcome.load.processes > 1 else []
    return " ".join(
        ["marina calibrate", outcome.tested.spec, *_sending_options(outcome), *map(shlex.quote, where), *processes]
    )


def _calibrate(outcome: LoadTestOutcome, where: Sequence[str]) -> str:
    """The command for a calibration of the same server, or of one pod of the cluster's service."""
    pods = ("--one-pod", "--service")
    kept = [word for before, word in pairwise(("", *where)) if word not in pods and before != "--service"]
    held = "one pod holds" if _CLUSTER in where else "it holds"
    more = "" if where or outcome.pooled.streams else "; `--tune` searches settings that hold more"
    return f"{_calibration(outcome, kept)} says which rate {held}{more}"


def _load_options(outcome: LoadTestOutcome, rate: float | None) -> str:
    load, ramp = outcome.load, outcome.ramp
    if ramp is not None:
        words = [f"--ramp {ramp.begin_rps:g}:{ramp.end_rps:g}"]
    elif load.replay:
        words = [f"--replay {shlex.quote(load.replay)} --speed {load.speed:g}"]
    else:
        words = [f"--rate {rate or load.rate:g}"]
    if load.warmup_s != RunOptions().warmup_s:
        words.append(f"--warmup {load.warmup_s:g}")
    return " ".join([*words, *_sending_options(outcome)])


def _sending_options(outcome: LoadTestOutcome) -> list[str]:
    """The options of any stage that sends load, where they differ from the defaults."""
    load, words = outcome.load, list[str]()
    if load.arrivals == "constant":
        words.append("--arrivals constant")
    if load.seed != RunOptions().seed:
        words.append(f"--seed {load.seed}")
    if load.timeout_s != client_timeout_s(outcome.objective):
        words.append(f"--timeout {load.timeout_s:g}")
    return words
