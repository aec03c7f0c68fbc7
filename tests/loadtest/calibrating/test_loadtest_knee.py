"""The search for the knee and for the best settings, on simulated servers."""

import random
from collections import Counter

import pytest
from queues import Queue, always, measured, true_knee

from marina.loadtest.calibrating.evidence import ServingSettings
from marina.loadtest.calibrating.fitted_knee import fitted_knee
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted, estimate_capacity, find_knee
from marina.loadtest.calibrating.settings_search import SettingsSpace, Tuning, search_settings
from marina.loadtest.judging.slo import judge
from marina.loadtest.judging.verdict import Objective, Verdict, VerdictStatus
from marina.loadtest.measuring import Histogram, Measurement
from marina.loadtest.scheduling import Schedule

OBJECTIVE = Objective(p99_ms=50, error_rate=0.001, throughput_rps=None)


def simulate(rate: float, service_ms: float, seed: int, workers: int = 1, queue: int = 200) -> VerdictStatus:
    """One run of a queue whose workers' service time varies by a fifth; the arrivals are the same each time."""
    source = random.Random(seed)
    schedule = Schedule(arrivals="poisson", rate=rate, warmup_s=2, duration_s=max(8, 2500 / rate))
    free_at, ends = [0.0] * workers, []
    response, errors = Histogram((OBJECTIVE.p99_ms,)), 0
    for due in schedule.times():
        ends = [end for end in ends if end > due]
        if len(ends) >= queue:
            errors += due >= schedule.warmup_s
            continue
        free_at.sort()
        end = max(due, free_at[0]) + service_ms / 1000 * source.uniform(0.8, 1.2)
        free_at[0] = end
        ends.append(end)
        if due >= schedule.warmup_s:
            response.add((end - due) * 1000)
    run = Measurement(
        rate=rate, asked_s=schedule.duration_s, ran_s=schedule.duration_s, planned=schedule.planned,
        sent=schedule.planned, dropped=0, warmup=0, in_time=response.count, errors={"shed": errors} if errors else {},
        response=response, service=response, lag=Histogram(), loop_lag=Histogram(), seconds=(), generators=(),
    )  # fmt: skip
    return judge(run, OBJECTIVE).status


class Simulated:
    """Trials whose service times are never the same."""

    def __init__(self, service_ms: float, seed: int) -> None:
        self.service_ms, self.seed, self.rates = service_ms, seed, list[float]()

    def __call__(self, rate: float) -> VerdictStatus:
        self.rates.append(rate)
        return simulate(rate, self.service_ms, 1000 * self.seed + len(self.rates))


@pytest.mark.parametrize("first", [10, 80, 400])
def test_the_knee_of_a_queue_is_found_from_below_and_above(first: float) -> None:
    knee = find_knee(Simulated(service_ms=10, seed=1), first, repeats=3)
    assert 45 < knee.rps < 60


def test_two_calibrations_agree_within_ten_percent() -> None:
    knee, other = (find_knee(Simulated(service_ms=10, seed=seed), 40, repeats=3) for seed in (1, 2))
    assert knee.agrees
    assert other.agrees
    assert abs(knee.rps - other.rps) / knee.rps < 0.1


def test_repeats_do_not_try_the_same_rates_again() -> None:
    trials = Simulated(service_ms=10, seed=1)
    find_knee(trials, 40, repeats=3)
    assert max(Counter(trials.rates).values()) == 1
    assert len(trials.rates) < 30


def test_a_sharp_knee_is_found_within_the_tolerance() -> None:
    knee = find_knee(lambda rate: "PASS" if rate <= 137 else "FAIL", 20, repeats=3, tolerance=0.02)
    assert all(137 / 1.02 <= knee_rps <= 137 for knee_rps in knee.found)


def test_searches_that_differ_do_not_agree() -> None:
    limits = iter([100.0, 150.0, 200.0])
    state = {"limit": next(limits), "fails": 0}

    def drifting(rate: float) -> VerdictStatus:
        if rate > state["limit"]:
            state["fails"] += 1
            if state["fails"] % 6 == 0:
                state["limit"] = next(limits, state["limit"])
            return "FAIL"
        return "PASS"

    assert not find_knee(drifting, 50, repeats=3).agrees


@pytest.mark.slow
def test_the_knee_is_read_from_the_runs_that_can_be_trusted() -> None:
    def runs(queue: Queue, seed: int) -> list[tuple[Measurement, Verdict]]:
        schedules = [Schedule(arrivals="poisson", rate=rate, warmup_s=0, duration_s=60) for rate in range(40, 71, 2)]
        seen = [measured(queue, schedule, OBJECTIVE.p99_ms, seed) for schedule in schedules]
        return [(run, judge(run, OBJECTIVE)) for run in seen]

    searched = find_knee(lambda rate: "PASS" if rate <= 55 else "FAIL", 40, repeats=1)
    trusted = [(run, verdict) for run, verdict in runs(always(0.01), 1) if verdict.status != "INVALID"]
    disturbed = [(run, verdict.model_copy(update={"status": "INVALID"})) for run, verdict in runs(always(0.011), 2)]
    knee = fitted_knee([*trusted, *disturbed], searched, searched.rps, OBJECTIVE)
    assert knee == fitted_knee(trusted, searched, searched.rps, OBJECTIVE)
    assert knee.interval
    assert knee.interval[0] < true_knee(always(0.01), OBJECTIVE.p99_ms) < knee.interval[1]


def test_an_invalid_run_is_tried_again() -> None:
    seen: Counter[float] = Counter()

    def shaky(rate: float) -> VerdictStatus:
        seen[rate] += 1
        return "INVALID" if seen[rate] == 1 else "PASS" if rate <= 100 else "FAIL"

    assert 97 < find_knee(shaky, 50, repeats=1).rps <= 100


def test_a_rate_that_stays_invalid_ends_the_search() -> None:
    with pytest.raises(Untrusted, match="4 runs at 50 requests/s were INVALID"):
        find_knee(lambda _: "INVALID", 50, repeats=1)


def test_a_rate_above_a_passed_one_that_cannot_be_measured_ends_the_search() -> None:
    knee = find_knee(lambda rate: "PASS" if rate <= 100 else "INVALID", 20, repeats=3, tolerance=0.02)
    assert (knee.limit, 97 < knee.rps <= 100) == ("generator", True)


def test_only_a_rate_that_the_generator_could_not_measure_makes_it_the_limit() -> None:
    def other_trouble(rate: float) -> VerdictStatus:
        if rate > 100:
            raise Untrusted("the server serves another package")
        return "PASS"

    with pytest.raises(Untrusted, match="another package"):
        find_knee(other_trouble, 20, repeats=1)


def test_a_rate_that_fails_below_one_that_could_not_be_measured_is_the_servers_limit() -> None:
    def answers(rate: float) -> VerdictStatus:
        return "PASS" if rate <= 100 else "FAIL" if rate <= 110 else "INVALID"

    assert find_knee(answers, 20, repeats=1, tolerance=0.02).limit == "objective"


def test_a_server_that_never_meets_the_objective_has_no_knee() -> None:
    with pytest.raises(NeverHeld, match="does not hold even at"):
        find_knee(lambda _: "FAIL", 50, repeats=1)


def test_a_server_that_holds_everything_has_no_knee() -> None:
    with pytest.raises(Untrusted, match="still holds at"):
        find_knee(lambda _: "PASS", 50, repeats=1)


def test_bursts_estimate_what_a_server_holds() -> None:
    assert estimate_capacity(lambda rate: min(rate, 137), 20) == 137


def test_bursts_are_repeated_while_a_server_still_gets_faster() -> None:
    asked = list[float]()

    def held(rate: float) -> float:
        asked.append(rate)
        return min(rate, 137 * min(1, 0.2 * len(asked)))

    assert estimate_capacity(held, 20) == 137
    assert len(asked) < 12


def test_a_server_that_collapses_under_too_much_load_is_estimated_by_its_best_burst() -> None:
    assert estimate_capacity(lambda rate: rate if rate < 137 else 20, 20) == 80


SPACE = SettingsSpace(cores=8, batches=(1, 2, 4, 8, 16), delays_ms=(1, 2, 5, 10, 20))
START = ServingSettings(workers=8, threads=1, max_batch=1, max_batch_delay_ms=2)


def held(settings: ServingSettings) -> float:
    """More workers of fewer threads help until four; a batch helps until eight; waiting costs."""
    split = {1: 60, 2: 90, 4: 100, 8: 80}[settings.workers]
    batch = {1: 1.0, 2: 1.5, 4: 2.1, 8: 2.5, 16: 2.2}[settings.max_batch]
    waiting = 1 - 0.01 * abs(settings.max_batch_delay_ms - 5) * (settings.max_batch > 1)
    return split * batch * waiting


def surface(settings: ServingSettings, to_beat: float) -> float | None:
    return rate if (rate := held(settings)) >= to_beat else None


def tuned() -> Tuning:
    return search_settings(surface, START, SPACE)


def test_the_best_settings_are_found_in_far_fewer_runs_than_the_grid() -> None:
    best = max(
        held(ServingSettings(workers=workers, threads=threads, max_batch=batch, max_batch_delay_ms=delay))
        for workers, threads in SPACE.splits
        for batch in SPACE.batches
        for delay in SPACE.delays_ms
    )
    tuning = tuned()
    assert tuning.best.rps >= 0.97 * best
    assert len(tuning.tried) <= SPACE.size / 5


def test_tuning_starts_with_the_specs_own_settings_and_says_why_it_changed_them() -> None:
    tuning = tuned()
    assert tuning.tried[0].settings == START
    assert tuning.why[0] == "`workers × threads`: 8 × 1 to 4 × 2 raises the knee from 80 to 100 requests/s"
    assert any(reason.startswith("`max_batch`: 1 to 8 raises the knee") for reason in tuning.why)


def test_a_setting_that_does_not_beat_the_best_is_not_measured_further() -> None:
    bars = [tried.to_beat for tried in tuned().tried]
    assert bars[0] == 0
    assert bars[1] == pytest.approx(1.03 * held(START))
    assert bars == sorted(bars)


def test_settings_that_are_already_the_best_stay() -> None:
    best = ServingSettings(workers=4, threads=2, max_batch=8, max_batch_delay_ms=5)
    assert search_settings(surface, best, SPACE).best.settings == best


def test_a_difference_within_the_noise_changes_nothing() -> None:
    assert search_settings(lambda settings, _: 100 + settings.max_batch / 10, START, SPACE).best.settings == START
