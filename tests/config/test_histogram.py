import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marina.config.histogram import HIGHEST_MS, LOWEST_MS, RATIO, Histogram, bucket_ms, nearest_rank

latencies = st.lists(st.floats(LOWEST_MS, HIGHEST_MS), min_size=1, max_size=200)
shares = st.sampled_from([0.01, 0.07, 0.5, 0.9, 0.99, 0.999, 1.0])


def filled(values: list[float], limits: tuple[float, ...] = ()) -> Histogram:
    histogram = Histogram(limits)
    for value in values:
        histogram.add(value)
    return histogram


@given(latencies, shares)
def test_percentile_is_at_most_one_percent_above_the_nearest_rank(values: list[float], share: float) -> None:
    truth = sorted(values)[nearest_rank(share, len(values)) - 1]
    shown = filled(values).percentile(share)
    assert shown is not None
    assert truth <= shown <= truth * RATIO * (1 + 1e-12)


@given(latencies, st.floats(1, 1000), shares)
def test_percentile_is_shown_above_a_limit_exactly_when_it_is(values: list[float], limit: float, share: float) -> None:
    histogram = filled([*values, limit], (limit,))
    ordered = sorted([*values, limit])
    shown = histogram.percentile(share)
    assert shown is not None
    assert (shown > limit) == (ordered[nearest_rank(share, len(ordered)) - 1] > limit)
    assert histogram.within(limit) == sum(value <= limit for value in ordered)


@given(st.lists(latencies, min_size=1, max_size=4))
def test_merged_parts_equal_the_whole(parts: list[list[float]]) -> None:
    merged = Histogram((104,))
    for part in parts:
        merged.merge(filled(part, (104,)))
    whole = filled([value for part in parts for value in part], (104,))
    assert merged._counts == whole._counts
    assert (merged.min_ms, merged.max_ms, merged.count) == (whole.min_ms, whole.max_ms, whole.count)
    assert math.isclose(merged.sum_ms, whole.sum_ms)


@given(latencies)
def test_json_and_back_is_the_same_histogram(values: list[float]) -> None:
    histogram = filled([*values, HIGHEST_MS * 3], (104, 105.5))
    assert Histogram.from_data(json.loads(json.dumps(histogram.to_data()))) == histogram


def test_values_that_locust_would_round_stay_on_their_side_of_the_limit() -> None:
    histogram = filled([104.9] * 1000, (104, 105))
    assert histogram.percentile(0.99) == 104.9
    assert (histogram.within(104), histogram.within(105)) == (0, 1000)


def test_a_value_exactly_on_the_limit_is_within_it() -> None:
    histogram = filled([104.0, math.nextafter(104.0, 200)], (104,))
    assert histogram.within(104) == 1
    assert histogram.percentile(0.5) == 104.0


@pytest.mark.parametrize(
    ("share", "count", "rank"),
    [(0.99, 1000, 990), (0.99, 1001, 991), (0.07, 100, 7), (0.999, 1000, 999), (1.0, 3, 3), (0.01, 1, 1)],
)
def test_rank_is_not_moved_by_floating_point(share: float, count: int, rank: int) -> None:
    assert nearest_rank(share, count) == rank


def test_no_values_have_no_percentile() -> None:
    assert Histogram().percentile(0.99) is None
    assert Histogram().mean_ms is None


def test_values_outside_the_range_are_kept_at_its_ends() -> None:
    histogram = filled([0.0001, HIGHEST_MS * 2])
    assert histogram.percentile(0.5) == LOWEST_MS
    assert histogram.percentile(1.0) == HIGHEST_MS * 2


def test_histograms_for_other_limits_are_not_merged() -> None:
    with pytest.raises(ValueError, match="limits differ"):
        Histogram((104,)).merge(Histogram((105,)))


def test_a_count_at_a_limit_that_is_not_exact_is_refused() -> None:
    with pytest.raises(KeyError):
        filled([1.0], (104,)).within(105)


def test_values_over_are_counted_without_the_bucket_of_the_value_itself() -> None:
    assert filled([9.0, 10.0, 10.01, 11.0, 700_000.0]).over(10.0) == 2


def test_curve_rises_to_the_largest_value() -> None:
    curve = list(filled([1, 2, 2, 50]).curve())
    assert curve == sorted(curve)
    assert curve[-1] == (1.0, 50)


@given(st.floats(LOWEST_MS, HIGHEST_MS))
def test_locusts_rounding_is_replaced_by_one_percent(value: float) -> None:
    assert value <= bucket_ms(value) <= value * RATIO * (1 + 1e-12)
