"""The intervals of verdicts, on simulated queues whose p99 is known and on counts whose interval is known."""

import math
import random

import numpy as np
import pytest
from queues import Dice, Queue, Seconds, always, measured, single, true_p99_ms, two_workers

from marina.config.measured import Objective, Verdict
from marina.loadtest.judging import is_undecided, judge
from marina.loadtest.judging.interval import (
    Counts,
    arrivals_to_decide,
    clumping,
    correlation_time,
    difference_interval,
    fewest_surely_above,
    most_surely_below,
    share_interval,
)
from marina.loadtest.measuring import Measurement
from marina.loadtest.running import RunOptions
from marina.loadtest.scheduling import Schedule


@pytest.mark.parametrize(
    ("over", "total", "low", "high"),
    # The Clopper-Pearson interval, as in any table, 5 % at each end.
    [(0, 3000, 0.0, 0.000998), (30, 3000, 0.007207, 0.013539), (5, 10, 0.222441, 0.777559), (10, 10, 0.741134, 1.0)],
)
def test_the_interval_of_independent_arrivals_is_the_exact_binomial_one(
    over: int, total: int, low: float, high: float
) -> None:
    assert share_interval(over, total, clumps=1) == pytest.approx((low, high), abs=1e-6)


def test_the_interval_of_a_difference_is_that_of_newcombe() -> None:
    # His example, 56 of 70 and 48 of 80, to 2.5 % at each end: 0.052 to 0.334 with Wilson's intervals.
    one_by_one = [Counts([1] * over + [0] * (total - over), [1] * total) for over, total in ((48, 80), (56, 70))]
    assert difference_interval(*one_by_one, 0.025, 0.025) == pytest.approx((0.052, 0.334), abs=0.012)
    # Arrivals of one turn that share a fate count as one.
    turns = [Counts([7 * over for over in each.over], [7] * len(each.of)) for each in one_by_one]
    assert difference_interval(*turns, 0.025, 0.025) == pytest.approx((0.052, 0.334), abs=0.012)


def test_counts_at_the_ends_of_an_interval_are_those_that_just_decide() -> None:
    below, above = most_surely_below(0.01, 3000, 1), fewest_surely_above(0.01, 3000, 1)
    assert (below, above) == (20, 40)
    assert share_interval(below, 3000, 1)[1] <= 0.01 < share_interval(below + 1, 3000, 1)[1]
    assert share_interval(above - 1, 3000, 1)[0] < 0.01 <= share_interval(above, 3000, 1)[0]
    assert most_surely_below(0.01, 100, 1) == -1


def counts(share: float, together: int, slices: int = 600, seed: int = 0) -> Counts:
    """Slices of ten arrivals; the arrivals of `together` neighbouring slices are all late or all in time."""
    dice = random.Random(seed)
    fates = [fate for _ in range(slices // together) for fate in [10 * (dice.random() < share)] * together]
    return Counts(fates, [10] * len(fates))


def test_arrivals_that_share_a_fate_count_as_one() -> None:
    dice = random.Random(3)
    alone = Counts([int(dice.random() < 0.1) for _ in range(600)], [1] * 600)
    # Never less than the true value, and up to twice as much, because few blocks tell little.
    for together, each in ((1, alone), (10, counts(0.1, 1)), (100, counts(0.1, 10))):
        assert 0.8 * together < clumping(each, each) < 2.5 * together


def test_correlation_is_measured_in_slices() -> None:
    dice = random.Random(1)
    values, value = [], 0.0
    for _ in range(5000):
        value = 0.8 * value + dice.gauss(0, 1)
        values.append(value)
    # (1 + 0.8) / (1 - 0.8)
    assert correlation_time(values) == pytest.approx(9, rel=0.4)
    assert correlation_time([dice.random() for _ in range(5000)]) < 1.3
    assert correlation_time([3.0] * 100) == 1


def test_the_nearer_the_limit_the_more_arrivals_are_needed() -> None:
    far, near = arrivals_to_decide(0.01, 0.02, 1), arrivals_to_decide(0.01, 0.011, 1)
    assert near == pytest.approx(100 * far)
    assert arrivals_to_decide(0.01, 0.01, 1) == float("inf")


@pytest.mark.parametrize(("share", "clumps"), [(0.001, 1), (0.01, 1), (0.01, 2.5)])
def test_as_many_arrivals_as_are_said_to_be_missing_decide_if_none_is_over_the_limit(
    share: float, clumps: float
) -> None:
    needed = arrivals_to_decide(share, 0, clumps)
    assert most_surely_below(share, math.ceil(needed), clumps) == 0
    assert most_surely_below(share, math.floor(0.99 * needed), clumps) == -1


WORKERS = two_workers([0.018, 0.024, 0.030, 0.036])
RATE = 0.5 * WORKERS.most


@pytest.fixture(scope="module")
def true_ms() -> float:
    return true_p99_ms(WORKERS, RATE, requests=300_000)


def load_test(
    queue: Queue, rate: float, limit_ms: float, seed: int, **options: float
) -> tuple[Verdict, list[Measurement]]:
    """Does what `marina loadtest` does, on a simulated queue."""
    objective = Objective(p99_ms=limit_ms, error_rate=0.001, throughput_rps=None)
    how = RunOptions(rate=rate, seed=1000 * seed, **options)  # type: ignore[arg-type]
    first = how.schedule_of(rate, objective)
    runs: list[Measurement] = []
    schedule: Schedule | None = first
    while schedule is not None:
        runs.append(measured(queue, schedule, limit_ms, seed))
        schedule = how.next_schedule(first, objective, runs)
    return judge(runs, objective), runs


@pytest.mark.slow
@pytest.mark.parametrize(("times", "wrong"), [(1 / 1.1, "PASS"), (1 / 0.9, "FAIL")], ids=["10 % over", "10 % under"])
def test_the_verdict_on_a_known_queue_is_never_the_opposite(true_ms: float, times: float, wrong: str) -> None:
    verdicts = [load_test(WORKERS, RATE, true_ms * times, seed)[0].status for seed in range(10)]
    assert verdicts.count(wrong) == 0  # type: ignore[arg-type]
    assert verdicts.count("INVALID") <= 2


def test_a_limit_that_is_the_true_p99_stays_undecided(true_ms: float) -> None:
    verdict, runs = load_test(WORKERS, RATE, true_ms, seed=4, max_duration_s=90)
    assert [run.asked_s for run in runs] == [30, 30, 30]
    assert verdict.status == "INVALID"
    latency = verdict.checks[0]
    assert latency.interval is not None
    assert latency.interval[0] < latency.limit < latency.interval[1]
    reason = latency.reasons[0]
    assert reason.id == "undecided"
    assert "more requests would decide" in reason.text
    assert is_undecided(verdict)


def test_a_clear_answer_takes_one_run(true_ms: float) -> None:
    for limit, status in ((3 * true_ms, "PASS"), (true_ms / 2, "FAIL")):
        verdict, runs = load_test(WORKERS, RATE, limit, seed=0)
        assert (verdict.status, len(runs)) == (status, 1)


def test_each_look_doubles_what_was_measured_up_to_the_longest_allowed() -> None:
    _, runs = load_test(always(0.01), 85, 150, seed=1, max_duration_s=200)
    assert [run.asked_s for run in runs] == [39, 39, 78, 44]
    assert len({run.response.sum_ms for run in runs}) == len(runs)


def test_a_few_good_answers_do_not_show_a_small_error_rate() -> None:
    queue, objective = always(0.001), Objective(p99_ms=50, error_rate=0.001, throughput_rps=None)
    few, enough = (
        measured(queue, Schedule(arrivals="poisson", rate=100, warmup_s=0, duration_s=length), 50, 0)
        for length in (20, 30)
    )
    assert judge(few, objective).checks[1].reasons[0].id == "undecided"
    assert judge(enough, objective).status == "PASS"
    assert judge(enough, objective).checks[1].interval == pytest.approx((0, 0.000998), abs=1e-6)


@pytest.mark.parametrize(("length_s", "varies"), [(0.8, 0.0), (2, 0.3)], ids=["equal", "far over the limit"])
def test_one_episode_of_slow_answers_does_not_show_how_often_such_come(length_s: float, varies: float) -> None:
    def serve(times: Seconds, dice: Dice) -> Seconds:
        slow = (times >= 20) & (times < 20 + length_s)
        return np.where(slow, 1.0, 0.01) * (1 + varies * dice.exponential(1, len(times)))

    run = measured(Queue("", 1, serve), Schedule(arrivals="poisson", rate=100, warmup_s=5, duration_s=33), 500, 1)
    assert (run.response.percentile(0.99) or 0) > 500
    assert is_undecided(judge(run, Objective(p99_ms=500, error_rate=0.001, throughput_rps=None)))


# 40 requests/s at a server of 38: after 25 s the slowest has waited 1.6 s, and the limit is 2 s.
OVERLOADED = always(1 / 38)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_queue_that_only_grows_fails_although_the_limit_is_long(seed: int) -> None:
    schedule = Schedule(arrivals="poisson", rate=40, warmup_s=2, duration_s=25, seed=seed)
    run = measured(OVERLOADED, schedule, 2000, seed)
    assert (run.response.percentile(0.99) or 0) < 2000
    verdict = judge(run, Objective(p99_ms=2000, error_rate=0.01, throughput_rps=None))
    assert (verdict.status, verdict.checks[2].status) == ("FAIL", "FAIL")
    assert verdict.checks[2].reasons[-1].id == "backlog-grows"
    assert "so the server gets more than it can answer" in verdict.checks[2].reasons[-1].text


def test_an_overloaded_server_never_passes_and_fails_before_long() -> None:
    for seed in range(10):
        verdict, _ = load_test(OVERLOADED, 40, 2000, seed, duration_s=25, warmup_s=2)
        assert verdict.status == "FAIL"


@pytest.mark.slow
def test_a_busy_queue_that_empties_now_and_then_does_not_grow() -> None:
    objective = Objective(p99_ms=60_000, error_rate=0.01, throughput_rps=None)
    for seed in range(20):
        schedule = Schedule(arrivals="poisson", rate=90, warmup_s=5, duration_s=30, seed=seed)
        run = measured(always(0.01), schedule, 60_000, seed)
        assert "backlog-grows" not in [reason.id for reason in judge(run, objective).every_reason()]


def test_a_server_that_becomes_slower_but_answers_everything_has_no_backlog() -> None:
    queue = Queue("", 1, lambda times, _: np.where(times < 20, 0.01, 0.1) + 0.001 * times)
    run = measured(queue, Schedule(arrivals="poisson", rate=100, warmup_s=5, duration_s=33), 500, 1)
    assert judge(run, Objective(p99_ms=500, error_rate=0.001, throughput_rps=None)).status == "PASS"


def test_a_simulated_server_is_first_come_first_served() -> None:
    took = single(np.array([0.0, 0.5, 5.0]), np.array([1.0, 1.0, 1.0]))
    assert took.tolist() == [1.0, 1.5, 1.0]
