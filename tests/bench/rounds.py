"""The course that all contestants of a bench run: saturation, then an open loop at a share of it, round after round."""

import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import process_tree
from board import median, spread
from closed_loop import ClosedLoop
from contestants import Contestant, Started

from marina.config.render import Ports
from marina.config.spec import Spec
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import LoadPlan, generate
from marina.server.java.checks import find_java
from marina.server.java.launch import plan_launch

Round = dict[str, Any]


@dataclass(frozen=True)
class Course:
    """How long and how often."""

    rounds: int
    seconds: float
    open_s: float
    cores: int
    clients: int = 32
    warmup_s: float = 3.0
    """Long enough for a watchdog to start again a worker that had not answered it while all stood still."""
    share: float = 0.7
    """Of the saturation, in the open loop."""
    foreign: float = 0.15
    """Where others took a larger share of the cores, a measurement is made again."""
    patience: int = 10
    """How many measurements are made again at most, in all rounds together."""


def start(contestants: Sequence[Contestant], stack: ExitStack) -> dict[str, Started]:
    """All of them, by name, until the stack is left, which a SIGTERM does too."""
    process_tree.unwind_on_sigterm()
    running: dict[str, Started] = {}
    for contestant in contestants:
        running[contestant.name] = started = stack.enter_context(contestant())
        print(f"{contestant.name:<24} started in {started.start_s:.1f} s", file=sys.stderr, flush=True)
    return running


def measure(
    running: Mapping[str, Started], course: Course, beside: Mapping[str, Callable[[], Round]] | None = None
) -> dict[str, list[Round]]:
    """The rounds of each contestant, and of what is measured beside them, by name."""
    measured: dict[str, list[Round]] = {name: [] for name in (*(beside or {}), *running)}
    patience = _Patience(course)
    for number in range(course.rounds):
        for name, act in (beside or {}).items():
            with alone(None, running):
                seen = act()
            measured[name].append(_said(number, name, seen))
        for name, started in running.items():
            with alone(started, running):
                seen = _one(started, course, number, patience)
            measured[name].append(_said(number, name, seen))
    return measured


@contextmanager
def alone(started: Started | None, running: Mapping[str, Started]) -> Iterator[None]:
    """The other servers stand still meanwhile: idle ones look after themselves, some with a tenth of a core."""
    idle = [pid for other in running.values() if other is not started for pid in process_tree.tree(other.pid)]
    process_tree.send(signal.SIGSTOP, idle)
    try:
        yield
    finally:
        # Children first: a parent that runs again may ask them whether they live.
        process_tree.send(signal.SIGCONT, idle[::-1])


class _Patience:
    """Makes measurements again that were disturbed, as long as it lasts; the least disturbed one counts."""

    def __init__(self, course: Course) -> None:
        self._limit, self._left = course.foreign, course.patience

    def best(self, act: Callable[[], Round]) -> Round:
        seen = act()
        while seen["foreign"] > self._limit and self._left > 0:
            self._left -= 1
            seen = min(seen, act(), key=lambda attempt: attempt["foreign"])
        return seen


def _one(started: Started, course: Course, number: int, patience: _Patience) -> Round:
    seen = patience.best(lambda: _saturated(started, course))
    seen |= {"start_s": started.start_s, "resident_mb": process_tree.resident_mb(started.pid)}
    if course.open_s:
        opened = patience.best(lambda: _open_loop(started, course, course.share * seen["rps"], number))
        seen |= {**opened, "foreign": max(seen["foreign"], opened["foreign"])}
    return seen


def _saturated(started: Started, course: Course) -> Round:
    with ClosedLoop(started.request, course.clients) as loop:
        return asdict(loop.window(started.pid, course.warmup_s, course.seconds, cores=course.cores))


def _open_loop(started: Started, course: Course, rate: float, number: int) -> Round:
    schedule = Schedule(
        arrivals="poisson", rate=max(1.0, rate), warmup_s=course.warmup_s, duration_s=course.open_s, seed=number
    )
    before = _marks(started.pid)
    got = generate(LoadPlan(request=started.request, schedule=schedule, timeout_s=30, limit_ms=100))
    took, whole, server, generator = (after - mark for after, mark in zip(_marks(started.pid), before, strict=True))
    return {
        "open_rps": got.rate,
        "p50_ms": got.response.percentile(0.5),
        "p99_ms": got.response.percentile(0.99),
        "lag_p99_ms": got.lag.percentile(0.99),
        "open_errors": got.errors,
        "foreign": max(0.0, whole - server - generator) / (took * course.cores),
    }


def _marks(pid: int) -> tuple[float, float, float, float]:
    # The generator is a child that has ended; the servers are children that have not.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), process_tree.machine_cpu_s(), process_tree.cpu_s(pid), ended.ru_utime + ended.ru_stime


def _said(number: int, name: str, seen: Round) -> Round:
    p99 = f"  p99 {seen['p99_ms']:.0f} ms" if seen.get("p99_ms") is not None else ""
    foreign = f"  foreign {seen['foreign']:.0%}" if "foreign" in seen else ""
    errors = {**seen.get("errors", {}), **seen.get("open_errors", {})}
    text = f"round {number + 1}  {name:<24} {seen['rps']:8.1f}/s  cpu {seen['cpu_ms']:6.2f} ms{p99}{foreign}"
    print(f"{text}  {errors or ''}".rstrip(), file=sys.stderr, flush=True)
    return seen


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """The medians of a contestant's rounds."""
    keys = ("rps", "cpu_ms", "client_cpu_ms", "p50_ms", "p99_ms", "resident_mb", "start_s", "foreign")
    row: dict[str, Any] = {key: median([measured.get(key) for measured in rounds]) for key in keys}
    return row | {"spread": spread([measured["rps"] for measured in rounds])}


def worker_environment(spec: Spec, mar: Path) -> dict[str, str]:
    """What the server sets for its workers, for whoever must run under the same conditions."""
    folder = Path("/nonexistent")
    return plan_launch(
        spec, mar=mar, ports=Ports(), host="127.0.0.1", directory=folder, java=find_java()
    ).environment | {"TMPDIR": "/tmp"}
