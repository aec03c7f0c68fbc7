import itertools
import math
import statistics
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marina.config.errors import InputError
from marina.config.measured import Arrivals
from marina.loadtest.calibrating import CalibrateOptions
from marina.loadtest.comparing import CompareOptions
from marina.loadtest.running import RunOptions
from marina.loadtest.scheduling import Schedule


def schedule(arrivals: Arrivals = "constant", **changes: float) -> Schedule:
    return Schedule(arrivals=arrivals, **({"rate": 100, "warmup_s": 2, "duration_s": 10} | changes))  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.sampled_from(get_args(Arrivals)), st.integers(1, 9), st.floats(0.5, 500), st.integers(0, 3))
def test_any_number_of_processes_sends_the_same_schedule(kind: Arrivals, parts: int, rate: float, seed: int) -> None:
    whole = schedule(kind, rate=rate, seed=seed)
    shared = sorted(time for part in range(parts) for time in whole.times(part, parts))
    assert shared == list(whole.times())


@pytest.mark.parametrize("kind", get_args(Arrivals))
def test_window_holds_exactly_what_the_rate_asks_for(kind: Arrivals) -> None:
    times = schedule(kind).times()
    assert sum(time >= 2 for time in times) == schedule(kind).planned == 1000
    assert sum(time < 2 for time in times) == 200
    assert times[0] >= 0
    assert times[-1] < 12


def test_constant_arrivals_are_evenly_spaced() -> None:
    times = schedule(warmup_s=0).times()
    assert times[0] == 0
    assert times[500] == 5.0


def test_poisson_gaps_vary_as_an_exponential_does() -> None:
    times = schedule("poisson", duration_s=100, warmup_s=0).times()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(1, rel=0.05)


def test_seed_decides_the_poisson_schedule() -> None:
    assert schedule("poisson", seed=1).times() == schedule("poisson", seed=1).times()
    assert schedule("poisson", seed=1).times() != schedule("poisson", seed=2).times()


@pytest.mark.parametrize("much", [{"rate": 1e9}, {"duration_s": 1e300}, {"rate": 1e200, "warmup_s": 1e200}])
def test_more_arrivals_than_a_machine_can_hold_are_refused_before_they_are_drawn(much: dict[str, float]) -> None:
    with pytest.raises(InputError, match="more than 100,000,000 requests, the most that one run may have"):
        schedule(**much)


def test_a_run_of_years_is_refused_before_its_seconds_take_the_memory() -> None:
    with pytest.raises(InputError, match=r"a run at 0\.001 requests/s would take 347 days, allowed: 31"):
        schedule(rate=0.001, duration_s=3e7)


@pytest.mark.parametrize("kind", [RunOptions, CalibrateOptions, CompareOptions])
@pytest.mark.parametrize("option", ["warmup_s", "timeout_s", "max_duration_s"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_no_time_is_endless(kind: Any, option: str, value: float) -> None:
    with pytest.raises(ValidationError):
        kind(**{option: value})


def test_random_arrivals_are_the_default_of_every_verb() -> None:
    assert (RunOptions().arrivals, CalibrateOptions().arrivals) == ("poisson", "poisson")
