"""Calibrations of simulated servers, through the same trials as of real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from queues import Queue, always, measured, two_workers

from config.progress import Progress
from loadtest.calibrating.calibration import Search, Trials
from loadtest.calibrating.knee import Untrusted
from loadtest.judging import Objective
from loadtest.measuring import Histogram, Identity, Measurement
from loadtest.sending import Schedule

OBJECTIVE = Objective(p99_ms=60, error_rate=0.001, throughput_rps=200)


class SimulatedSession:
    """A session with a server that exists only as a queue."""

    def __init__(self, queue: Queue, seed: int, change: Callable[[Measurement], Measurement] = lambda run: run) -> None:
        self._queue, self._seed, self._change = queue, seed, change
        self.progress = Progress(quiet=True)
        self.schedules: list[Schedule] = []

    def measure(self, schedule: Schedule, label: str) -> Measurement:
        self.schedules.append(schedule)
        assert label
        return self._change(measured(self._queue, schedule, OBJECTIVE.p99_ms, self._seed))


def trials(queue: Queue, seed: int = 0, **options: Any) -> tuple[Trials, SimulatedSession]:
    session = SimulatedSession(queue, seed, options.pop("change", lambda run: run))
    return Trials(session, OBJECTIVE, Search(seed=seed, **options)), session  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "status", "runs"), [(20, "PASS", 1), (150, "FAIL", 1), (63, "FAIL", 4)])
def test_a_clear_rate_takes_one_run_and_one_near_the_knee_several(rate: float, status: str, runs: int) -> None:
    made, session = trials(always(0.01))
    assert made.at(rate) == status
    assert len(session.schedules) == runs


def test_every_run_of_a_search_has_arrivals_of_its_own() -> None:
    made, session = trials(two_workers([0.018, 0.024, 0.030, 0.036]), repeat=1)
    made.find(60)
    seeds = [schedule.seed for schedule in session.schedules]
    assert len(set(seeds)) == len(seeds) > 5


def late(run: Measurement) -> Measurement:
    lag = Histogram((OBJECTIVE.p99_ms,))
    for _ in range(100):
        lag.add(50.0)
    return run.model_copy(update={"lag": lag})


def test_late_arrivals_above_a_rate_are_the_generators_limit() -> None:
    made, _ = trials(always(0.001), change=lambda run: late(run) if run.rate > 100 else run, repeat=1)
    assert made.find(50).limit == "generator"


def test_another_package_is_no_limit_of_the_generator() -> None:
    def swapped(run: Measurement) -> Measurement:
        return run.model_copy(update={"identity": Identity(wanted="aa", found="bb" if run.rate > 100 else "aa")})

    made, _ = trials(always(0.001), change=swapped, repeat=1)
    with pytest.raises(Untrusted, match="the server serves package bb, the spec's is aa"):
        made.find(50)
