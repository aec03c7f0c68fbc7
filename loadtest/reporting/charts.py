"""The charts of `verdict.html`."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from marina.config.pages import Axis, Bars, Chart, Drawing, Line, linear_axis, log_axis, milliseconds
from marina.loadtest.judging import LoadTestOutcome, RampResult
from marina.loadtest.measuring import Histogram, Second
from marina.loadtest.reporting.growth_charts import growth_charts

_SHARES = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
_MOST_ERROR_NAMES = 5
_MOST_LABELS = 8


def charts(outcome: LoadTestOutcome) -> list[Drawing]:
    rising = [_ramp(outcome.ramp, outcome)] if outcome.ramp else []
    growing = growth_charts(outcome.runs[0].measurement, outcome.load.warmup_s, _time_axis(outcome))
    return [*rising, _curve(outcome), _latency(outcome), _rate(outcome), _errors(outcome), *growing]


def _curve(outcome: LoadTestOutcome) -> Drawing:
    limit = outcome.objective.p99_ms
    pooled = outcome.pooled
    response, service = pooled.response, pooled.service
    lowest = min(service.min_ms, limit) if service.count else limit / 10
    highest = max(response.max_ms, limit * 1.2)
    most = max(100, response.count)
    chart = Chart(
        title="Percentiles",
        x=percentile_axis(most),
        y=log_axis(max(0.01, lowest), highest, milliseconds),
        lines=[Line("service", "three", _steps(service)), Line("response", "one", _steps(response))],
        limit=limit,
    )
    legend = {
        "response, from the intended send": "ink-one",
        "service, from the real send": "ink-three",
        f"p99 limit, {milliseconds(limit)}": "ink-limit dash",
    }
    return Drawing(chart, "Share of requests answered within a time, all runs together", legend)


def _ramp(ramp: RampResult, outcome: LoadTestOutcome) -> Drawing:
    limit = outcome.objective.p99_ms
    points = [((step.begin_rps + step.end_rps) / 2, step.p99_ms) for step in ramp.steps]
    rates = linear_axis(ramp.begin_rps, ramp.end_rps)
    chart = Chart(
        title="Latency by rate",
        x=Axis(rates.place, [tick for tick in rates.ticks if tick[0] <= ramp.end_rps]),
        y=_latency_axis(points, limit),
        lines=[Line("p99", "two", points)],
        dots=[Line("steps", "two", points)],
        limit=limit,
        shaded=[ramp.broke_rps] if ramp.broke_rps else [],
    )
    legend = {"p99": "ink-two", "p99 limit": "ink-limit dash", "where it broke": "ink-shade block"}
    return Drawing(chart, "Response time of each step of the ramp, requests/s", legend)


def _latency_axis(points: Iterable[tuple[float, float | None]], limit: float) -> Axis:
    values = [limit, *(value for _, value in points if value is not None)]
    return log_axis(max(0.01, min(values)), max(values), milliseconds)


def percentile_axis(most: int) -> Axis:
    """An axis for percentiles of up to `most` values, on which each further nine takes up as much room as the first."""
    return Axis(
        lambda share: math.log10(1 / max(1 - share, 1 / most)) / math.log10(most),
        [(share, text) for share, text in _SHARES if share < 1 - 1 / most],
    )


def _steps(histogram: Histogram) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = [(0.0, histogram.min_ms)] if histogram.count else []
    return points + [(share, latency) for share, latency in histogram.curve()]


def _latency(outcome: LoadTestOutcome) -> Drawing:
    seconds, limit = _seconds(outcome), outcome.objective.p99_ms
    middle = [(at + 0.5, second.response.percentile(0.5)) for at, second in seconds]
    tail = [(at + 0.5, second.response.percentile(0.99)) for at, second in seconds]
    chart = Chart(
        title="Latency over time",
        x=_time_axis(outcome),
        y=_latency_axis([*middle, *tail], limit),
        lines=[Line("p99", "two", tail), Line("p50", "one", middle)],
        limit=limit,
        shaded=_warmups(outcome),
    )
    legend = {"p50": "ink-one", "p99": "ink-two", "p99 limit": "ink-limit dash", "warm-up": "ink-shade block"}
    return Drawing(chart, "Response time of the requests due in each second", legend)


def _rate(outcome: LoadTestOutcome) -> Drawing:
    seconds = _seconds(outcome)
    highest = max([second.due for _, second in seconds] + [second.answered for _, second in seconds] + [1])
    chart = Chart(
        title="Rate",
        x=_time_axis(outcome),
        y=linear_axis(0, highest),
        lines=[
            Line("intended", "two", [(at + 0.5, float(second.due)) for at, second in seconds]),
            Line("achieved", "one", [(at + 0.5, float(second.answered)) for at, second in seconds]),
        ],
        shaded=_warmups(outcome),
    )
    legend = {"intended": "ink-two", "achieved: good answers": "ink-one", "warm-up": "ink-shade block"}
    return Drawing(chart, "Requests per second", legend)


def _errors(outcome: LoadTestOutcome) -> Drawing:
    seconds = _seconds(outcome)
    total: Counter[str] = Counter()
    for _, second in seconds:
        total.update(second.errors)
    names = [name for name, _ in total.most_common()]
    shown = names if len(names) <= _MOST_ERROR_NAMES else names[: _MOST_ERROR_NAMES - 1]
    bars = [
        Bars(name, f"e{number}", [(at, float(second.errors.get(name, 0))) for at, second in seconds])
        for number, name in enumerate(shown, 1)
    ]
    if len(shown) < len(names):
        rest = [(at, float(sum(second.errors.get(name, 0) for name in names[len(shown) :]))) for at, second in seconds]
        bars.append(Bars("others", f"e{_MOST_ERROR_NAMES}", rest))
    highest = max([sum(second.errors.values()) for _, second in seconds] + [4])
    chart = Chart(title="Errors", x=_time_axis(outcome), y=linear_axis(0, highest), bars=bars, shaded=_warmups(outcome))
    counts = {series.name: sum(value for _, value in series.values) for series in bars}
    legend = {f"{series.name}: {counts[series.name]:,.0f}": f"{series.css} block" for series in bars}
    return Drawing(
        chart,
        "Failed requests by the second they were due in, warm-up included" if names else "No request failed",
        legend,
    )


def _seconds(outcome: LoadTestOutcome) -> list[tuple[float, Second]]:
    """The seconds of all runs, one run after another, each with its place on the axis."""
    return [
        (begin + at, second)
        for run, (begin, end) in zip(outcome.runs, _spans(outcome), strict=True)
        for at, second in enumerate(run.measurement.seconds[: end - begin])
    ]


def _spans(outcome: LoadTestOutcome) -> list[tuple[int, int]]:
    """Where each run starts and ends on the axis."""
    lengths = [math.ceil(outcome.load.warmup_s + run.measurement.asked_s) for run in outcome.runs]
    ends = list(accumulate(max(1, length) for length in lengths))
    return list(pairwise([0, *ends]))


def _time_axis(outcome: LoadTestOutcome) -> Axis:
    spans = _spans(outcome)
    whole = spans[-1][1]
    if len(spans) == 1:
        even = linear_axis(0, whole)
        ticks = [(value, f"{value:g} s") for value, _ in even.ticks if value <= whole]
    else:
        # Only runs that are long enough have room for a label; those after a long first run may be too short.
        wide = [(number, span) for number, span in enumerate(spans, 1) if span[1] - span[0] >= whole / _MOST_LABELS]
        ticks = [((begin + end) / 2, f"run {number}") for number, (begin, end) in _some(wide)]
    return Axis(lambda value: value / whole, ticks)


def _some(spans: Sequence[tuple[int, tuple[int, int]]]) -> Iterable[tuple[int, tuple[int, int]]]:
    return spans[:: max(1, math.ceil(len(spans) / 5))]


def _warmups(outcome: LoadTestOutcome) -> list[tuple[float, float]]:
    return [(begin, begin + outcome.load.warmup_s) for begin, _ in _spans(outcome)]
