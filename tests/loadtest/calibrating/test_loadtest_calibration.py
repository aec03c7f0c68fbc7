"""Calibrates simulated servers, by the same trials as real ones."""

import io
from typing import Any

import numpy as np
import pytest
from queues import Dice, Queue, Seconds, SimulatedSession, always, pausing, two_workers

from marina.config.measured import Objective
from marina.config.progress import Progress
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.calibrating.trials import OutOfTime, RateTrials
from marina.loadtest.judging import samples_needed
from marina.loadtest.measuring import Histogram, Measurement, OtherProcesses, PackageIdentity

OBJECTIVE = Objective(p99_ms=60, error_rate=0.001, throughput_rps=200)

# `true_knee(always(0.01), 60)`, from 1.5 million requests at each rate.
TRUE_KNEE_RPS = 63.15


def trials(queue: Queue, seed: int = 0, **options: Any) -> tuple[RateTrials, SimulatedSession]:
    session = SimulatedSession(queue, OBJECTIVE, seed, options.pop("change", lambda run: run))
    return RateTrials(session, OBJECTIVE, CalibrateOptions(seed=seed, **options)), session  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "status", "looks"), [(20, "PASS", 1), (150, "FAIL", 1), (60, "PASS", 3)])
def test_a_clear_rate_takes_one_short_run_and_a_rate_near_the_knee_several(
    rate: float, status: str, looks: int
) -> None:
    made, session = trials(always(0.01))
    assert made.judge_rate(rate) == status
    assert len(session.schedules) == looks


@pytest.mark.parametrize(("rate", "statuses"), [(20, ["PASS"]), (60, ["INVALID", "INVALID", "PASS"])])
def test_the_line_of_a_run_says_what_the_search_takes_it_for(rate: float, statuses: list[str]) -> None:
    made, session = trials(always(0.01))
    session.progress = Progress(stream=(said := io.StringIO()))
    made.judge_rate(rate)
    assert [line.split(" requests/s ")[1].split()[0] for line in said.getvalue().splitlines()] == statuses
    assert made.runs[-1][1].status == statuses[-1]


@pytest.mark.parametrize(("cores", "noted"), [(1.2, True), (0.1, False)])
def test_other_processes_are_named_if_the_server_missed_the_objective_beside_them(cores: float, noted: bool) -> None:
    others = OtherProcesses(cores=cores, of=2, processes=(("mypy", cores),))
    made, _ = trials(always(0.01), change=lambda run: run.model_copy(update={"others": others}))
    made.judge_rate(20)
    assert made.busy_machine() == []
    made.judge_rate(150)
    text = "in 1 of 1 runs that missed the objective, other processes used 1.2 of 2 cores: mypy 1.2; "
    assert [reason.text.startswith(text) for reason in made.busy_machine()] == [True] * noted


def test_a_slow_server_that_clearly_fails_is_not_measured_for_a_thousand_answers() -> None:
    made, session = trials(always(0.4))
    assert made.judge_rate(5) == "FAIL"
    assert session.schedules[-1].planned < samples_needed()
    assert len(session.schedules) == 1


@pytest.mark.slow
def test_every_run_of_a_search_has_arrivals_of_its_own() -> None:
    made, session = trials(two_workers([0.018, 0.024, 0.030, 0.036]))
    made.narrow(made.find(150))
    seeds = [schedule.seed for schedule in session.schedules]
    assert len(set(seeds)) == len(seeds) > 5


def late(run: Measurement) -> Measurement:
    lag = Histogram((OBJECTIVE.p99_ms,))
    for _ in range(100):
        lag.add(50.0)
    return run.model_copy(update={"lag": lag})


def test_late_sends_above_a_rate_make_the_generator_the_limit() -> None:
    made, _ = trials(always(0.001), change=lambda run: late(run) if run.rate > 100 else run)
    assert made.find(50).limit == "generator"


def test_a_late_run_that_also_misses_a_limit_is_measured_again_and_does_not_end_the_search() -> None:
    made, session = trials(always(0.01), change=lambda run: late(run) if run.rate > 80 else run, trial_s=15)
    assert made.judge_rate(200) == "INVALID"
    assert "p99-over" in [reason.id for reason in made.last_reasons()]
    assert made.find(50).rps == pytest.approx(TRUE_KNEE_RPS, rel=0.15)
    assert len({schedule.rate for schedule in session.schedules}) > 3


def test_another_package_is_not_a_limit_of_the_generator() -> None:
    def swapped(run: Measurement) -> Measurement:
        return run.model_copy(update={"identity": PackageIdentity(wanted="aa", found="bb" if run.rate > 100 else "aa")})

    made, _ = trials(always(0.001), change=swapped)
    with pytest.raises(Untrusted, match="the server serves package bb, but the spec's is aa"):
        made.find(50)


@pytest.mark.slow
def test_the_interval_of_a_calibration_holds_the_true_knee_and_is_at_most_a_tenth_wide() -> None:
    for seed in range(3):
        made, session = trials(always(0.01), seed=1000 * seed)
        knee = made.narrow(made.find(None))
        low, high = knee.interval or (0, 0)
        assert low <= TRUE_KNEE_RPS <= high
        assert knee.width <= 0.0501
        assert knee.rps == pytest.approx(TRUE_KNEE_RPS, rel=0.04)
        # Half of what it took before it stopped as soon as the interval was narrow.
        assert sum(schedule.total_s for schedule in session.schedules) < 1200


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 29])
def test_lucky_runs_of_a_server_that_pauses_do_not_end_a_calibration(seed: int) -> None:
    objective = Objective(p99_ms=80, error_rate=0.001, throughput_rps=None)
    session: Any = SimulatedSession(pausing(0.005, 2, 0.06), objective, seed)
    made = RateTrials(session, objective, CalibrateOptions(seed=1000 * seed))
    low, high = made.narrow(made.find(None)).interval or (0, 0)
    # `true_knee(pausing(0.005, 2, 0.06), 80)`
    assert low < 136.7 < high


@pytest.mark.slow
def test_more_runs_narrow_the_interval_to_a_smaller_tolerance() -> None:
    made, _ = trials(always(0.01), tolerance=0.08)
    before = made.narrow(knee := made.find(60))
    runs = len(made.runs)
    made._options = made._options.model_copy(update={"tolerance": 0.03})
    assert made.narrow(knee).width < before.width
    assert len(made.runs) > runs + 1


@pytest.mark.slow
def test_a_calibration_measures_no_longer_than_it_may() -> None:
    made, session = trials(always(0.01), max_duration_s=900)
    knee = made.narrow(made.find(None))
    made.confirm(0.7 * knee.rps)
    assert knee.interval is not None
    assert sum(schedule.total_s for schedule in session.schedules) <= 900


def test_a_search_that_has_no_time_left_says_so() -> None:
    made, _ = trials(always(0.01), max_duration_s=60)
    with pytest.raises(OutOfTime, match="`--max-duration` leaves no time"):
        made.find(None)


def test_what_was_measured_before_the_time_was_over_is_kept() -> None:
    made, session = trials(always(0.01), max_duration_s=30)
    with pytest.raises(OutOfTime):
        made.judge_rate(60)
    ((measured, verdict),) = made.runs
    assert (len(session.schedules), verdict.status) == (2, "INVALID")
    assert measured.planned == sum(schedule.planned for schedule in session.schedules)


def shedding(run: Measurement) -> Measurement:
    """The run of a server that sheds every request."""
    none = Histogram(run.response.limits)
    nothing = {"response": none, "in_time": 0}
    slices = tuple(piece.model_copy(update=nothing | {"failed": piece.due}) for piece in run.slices)
    return run.model_copy(update=nothing | {"service": none, "errors": {"shed": run.planned}, "slices": slices})


@pytest.mark.slow
def test_a_server_that_collapses_just_above_its_knee_has_one() -> None:
    made, _ = trials(always(0.01), change=lambda run: shedding(run) if run.rate > 70 else run)
    assert made.narrow(made.find(60)).rps == pytest.approx(TRUE_KNEE_RPS, rel=0.1)


def test_a_server_that_refuses_everything_is_not_searched_for_hours() -> None:
    made, session = trials(
        always(0.01), change=lambda run: shedding(run).model_copy(update={"errors": {"http 500": run.planned}})
    )
    with pytest.raises(NeverHeld, match="none of 40 requests got a good answer: 40 http 500"):
        made.find(None)
    assert len(session.schedules) == 1


def test_the_interval_of_a_server_that_fails_abruptly_is_between_what_it_held_and_what_it_did_not() -> None:
    made, _ = trials(Queue("a cliff", 100, cliff))
    low, high = made.narrow(made.find(40)).interval or (0, 0)
    assert low <= 100.1
    assert 99.9 <= high <= 1.11 * low


def cliff(times: Seconds, _: Dice) -> Seconds:
    """All answers are fast up to 100 requests/s, and none above."""
    return np.full(len(times), 0.01 if len(times) / times[-1] <= 100 else 1.0)
