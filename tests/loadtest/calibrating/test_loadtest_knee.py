"""The search for the knee and for the best settings, on simulated servers."""

from collections import Counter
from pathlib import Path

import pytest
from queues import Queue, always, measured, true_knee

from marina.config.measured import Objective, ServingSettings, Verdict, VerdictStatus
from marina.loadtest.calibrating.knee import NeverHeld, Untrusted, bisect_knee, estimate_capacity, narrowed
from marina.loadtest.calibrating.tuning import SettingsSpace, search_settings
from marina.loadtest.judging.slo import judge
from marina.loadtest.measuring import Measurement
from marina.loadtest.scheduling import Schedule

OBJECTIVE = Objective(p99_ms=50, error_rate=0.001, throughput_rps=None)


def sharp(rate: float) -> VerdictStatus:
    return "PASS" if rate <= 137 else "FAIL"


@pytest.mark.parametrize("first", [10, 130, 140, 4000])
def test_a_sharp_knee_is_bracketed_from_below_and_above(first: float) -> None:
    low, high = bisect_knee(sharp, first, tolerance=0.02).interval or (0, 0)
    assert low <= 137 < high <= 1.0405 * low


@pytest.mark.slow
def test_the_knee_is_read_from_the_runs_that_can_be_trusted() -> None:
    def runs(queue: Queue, seed: int) -> list[tuple[Measurement, Verdict]]:
        schedules = [Schedule(arrivals="poisson", rate=rate, warmup_s=0, duration_s=60) for rate in range(40, 71, 2)]
        seen = [measured(queue, schedule, OBJECTIVE.p99_ms, seed) for schedule in schedules]
        return [(run, judge(run, OBJECTIVE)) for run in seen]

    found = bisect_knee(lambda rate: "PASS" if rate <= 55 else "FAIL", 40, 0.03)
    trusted = [(run, verdict) for run, verdict in runs(always(0.01), 1) if verdict.status != "INVALID"]
    disturbed = [(run, verdict.model_copy(update={"status": "INVALID"})) for run, verdict in runs(always(0.011), 2)]
    knee = narrowed(found, found.rps, [*trusted, *disturbed], OBJECTIVE, 0.03)
    assert knee == narrowed(found, found.rps, trusted, OBJECTIVE, 0.03)
    assert knee.interval
    assert knee.interval[0] < true_knee(always(0.01), OBJECTIVE.p99_ms, requests=300_000) < knee.interval[1]


def test_an_invalid_run_is_tried_again() -> None:
    seen: Counter[float] = Counter()

    def shaky(rate: float) -> VerdictStatus:
        seen[rate] += 1
        return "INVALID" if seen[rate] == 1 else "PASS" if rate <= 100 else "FAIL"

    assert bisect_knee(shaky, 50, 0.02).rps == pytest.approx(100, rel=0.03)


def test_a_rate_that_stays_invalid_ends_the_search() -> None:
    with pytest.raises(Untrusted, match="4 runs at 50 requests/s were INVALID"):
        bisect_knee(lambda _: "INVALID", 50, 0.02)


def test_a_rate_above_a_passed_one_that_cannot_be_measured_ends_the_search() -> None:
    knee = bisect_knee(lambda rate: "PASS" if rate <= 100 else "INVALID", 20, 0.02)
    assert (knee.limit, 97 < knee.rps <= 100) == ("generator", True)


def test_only_a_rate_that_the_generator_could_not_measure_makes_it_the_limit() -> None:
    def other_trouble(rate: float) -> VerdictStatus:
        if rate > 100:
            raise Untrusted("the server serves another package")
        return "PASS"

    with pytest.raises(Untrusted, match="another package"):
        bisect_knee(other_trouble, 20, 0.02)


def test_a_rate_that_fails_below_one_that_could_not_be_measured_is_the_servers_limit() -> None:
    def answers(rate: float) -> VerdictStatus:
        return "PASS" if rate <= 100 else "FAIL" if rate <= 110 else "INVALID"

    assert bisect_knee(answers, 20, 0.02).limit == "objective"


def test_a_server_that_never_meets_the_objective_has_no_knee() -> None:
    with pytest.raises(NeverHeld, match="does not hold even at"):
        bisect_knee(lambda _: "FAIL", 50, 0.02)


def test_a_server_that_holds_everything_has_no_knee() -> None:
    with pytest.raises(Untrusted, match="still holds at"):
        bisect_knee(lambda _: "PASS", 50, 0.02)


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


def test_the_best_settings_are_found_in_far_fewer_runs_than_the_grid() -> None:
    best = max(
        held(ServingSettings(workers=workers, threads=threads, max_batch=batch, max_batch_delay_ms=delay))
        for workers, threads in SPACE.splits
        for batch in SPACE.batches
        for delay in SPACE.delays_ms
    )
    tuning = search_settings(surface, START, SPACE)
    assert tuning.best.rps >= 0.97 * best
    assert len(tuning.tried) <= SPACE.size / 5


def test_tuning_starts_with_the_specs_own_settings_and_says_what_it_tried() -> None:
    tuning = search_settings(surface, START, SPACE)
    assert tuning.tried[0].settings == START
    lines = tuning.to_text(Path("my/spec.yaml")).splitlines()
    assert lines[0] == "  workers × threads 8 × 1, batches of up to 1 after 2 ms: 80 requests/s"
    assert lines[1].endswith("1 × 8, batches of up to 1 after 2 ms: less than 82.4 requests/s")
    assert lines[-3:] == [
        f"tried {len(tuning.tried)} of 100 settings",
        "better settings: 80 to 250 requests/s",
        "hint: set under `serving` in my/spec.yaml: workers: 4, threads: 2, max_batch: 8, max_batch_delay_ms: 5",
    ]


def test_a_setting_that_does_not_beat_the_best_is_not_measured_further() -> None:
    bars = [tried.to_beat for tried in search_settings(surface, START, SPACE).tried]
    assert bars[0] == 0
    assert bars[1] == pytest.approx(1.03 * held(START))
    assert bars == sorted(bars)


def test_settings_that_are_already_the_best_stay() -> None:
    best = ServingSettings(workers=4, threads=2, max_batch=8, max_batch_delay_ms=5)
    assert search_settings(surface, best, SPACE).best.settings == best


def test_a_difference_within_the_noise_changes_nothing() -> None:
    assert search_settings(lambda settings, _: 100 + settings.max_batch / 10, START, SPACE).best.settings == START
