"""The charts of `verdict.html`."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Literal

from marina.config.pages import Axis, Bars, Chart, Drawing, Line, linear_axis, log_axis, milliseconds
from marina.loadtest.judging import GROWTH_ALLOWED, LoadTestOutcome, judged_from_s
from marina.loadtest.measuring import Histogram, Measurement, Second

_SHARES = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
_MOST_ERROR_NAMES = 5
_MOST_LABELS = 8
# In the charts of growth, the supervisor and Java each have their own colour; all workers share one.
_COLOURS = {"supervisor": "one", "torchserve": "two"}
_WORKERS = "three"
_GROWING: dict[Literal["memory", "files"], str] = {"memory": "Memory", "files": "Open files"}
# The median of the first readings of the judged time, this many, is the 100 %.
_FIRST = 12


def charts(outcome: LoadTestOutcome) -> list[Drawing]:
    growing = growth_charts(outcome.runs[0].measurement, outcome.load.warmup_s, _time_axis(outcome))
    return [_curve(outcome), _latency(outcome), _rate(outcome), _errors(outcome), *growing]


def _curve(outcome: LoadTestOutcome) -> Drawing:
    limit, pooled = outcome.objective.p99_ms, outcome.pooled
    response, service = pooled.response, pooled.service
    lowest = min(service.min_ms, limit) if service.count else limit / 10
    chart = Chart(
        title="Percentiles",
        x=percentile_axis(max(100, response.count)),
        y=log_axis(max(0.01, lowest), max(response.max_ms, limit * 1.2), milliseconds),
        lines=[Line("service", "three", _steps(service)), Line("response", "one", _steps(response))],
        limit=limit,
    )
    legend = {
        "response, from the intended send": "ink-one",
        "service, from the real send": "ink-three",
        f"p99 limit, {milliseconds(limit)}": "ink-limit dash",
    }
    return Drawing(chart, "Share of requests answered within a time, all runs together", legend)


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
    middle, tail = ([(at + 0.5, second.response.percentile(share)) for at, second in seconds] for share in (0.5, 0.99))
    values = [limit, *(value for _, value in (*middle, *tail) if value is not None)]
    chart = Chart(
        title="Latency over time",
        x=_time_axis(outcome),
        y=log_axis(max(0.01, min(values)), max(values), milliseconds),
        lines=[Line("p99", "two", tail), Line("p50", "one", middle)],
        limit=limit,
        shaded=_warmups(outcome),
    )
    legend = {"p50": "ink-one", "p99": "ink-two", "p99 limit": "ink-limit dash", "warm-up": "ink-shade block"}
    return Drawing(chart, "Response time of the requests due in each second", legend)


def _rate(outcome: LoadTestOutcome) -> Drawing:
    seconds = _seconds(outcome)
    limited = [(at + 0.5, float(second.limited)) for at, second in seconds] if outcome.pooled.limited else []
    chart = Chart(
        title="Rate",
        x=_time_axis(outcome),
        y=linear_axis(0, max([1, *(max(second.due, second.answered) for _, second in seconds)])),
        lines=[
            Line("intended", "two", [(at + 0.5, float(second.due)) for at, second in seconds]),
            Line("achieved", "one", [(at + 0.5, float(second.answered)) for at, second in seconds]),
            *([Line("limited", "three", limited)] if limited else []),
        ],
        shaded=_warmups(outcome),
    )
    legend = {"intended": "ink-two", "achieved: good answers": "ink-one", "warm-up": "ink-shade block"}
    legend |= {"refused with 429": "ink-three"} if limited else {}
    return Drawing(chart, "Requests per second", legend)


def _errors(outcome: LoadTestOutcome) -> Drawing:
    seconds = _seconds(outcome)
    total = sum((Counter(second.errors) for _, second in seconds), Counter[str]())
    names = [name for name, _ in total.most_common()]
    shown = names if len(names) <= _MOST_ERROR_NAMES else names[: _MOST_ERROR_NAMES - 1]
    # Each colour with the errors that it stands for: the last one for all that are rare.
    groups = [(name, [name]) for name in shown]
    if len(shown) < len(names):
        groups.append(("others", names[len(shown) :]))
    bars = [
        Bars(
            title, f"e{number}", [(at, float(sum(second.errors.get(name, 0) for name in of))) for at, second in seconds]
        )
        for number, (title, of) in enumerate(groups, 1)
    ]
    highest = max([4, *(sum(second.errors.values()) for _, second in seconds)])
    chart = Chart(title="Errors", x=_time_axis(outcome), y=linear_axis(0, highest), bars=bars, shaded=_warmups(outcome))
    counts = {title: sum(total[name] for name in of) for title, of in groups}
    legend = {f"{series.name}: {counts[series.name]:,}": f"{series.css} block" for series in bars}
    text = "Failed requests by the second they were due in, warm-up included" if names else "No request failed"
    return Drawing(chart, text, legend)


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
    return list(pairwise([0, *accumulate(max(1, length) for length in lengths)]))


def _time_axis(outcome: LoadTestOutcome) -> Axis:
    spans = _spans(outcome)
    whole = spans[-1][1]
    if len(spans) == 1:
        ticks = [(value, f"{value:g} s") for value, _ in linear_axis(0, whole).ticks if value <= whole]
    else:
        # Only runs that are long enough have room for a label; those after a long first run may be too short.
        wide = [(number, span) for number, span in enumerate(spans, 1) if span[1] - span[0] >= whole / _MOST_LABELS]
        some = wide[:: max(1, math.ceil(len(wide) / 5))]
        ticks = [((begin + end) / 2, f"run {number}") for number, (begin, end) in some]
    return Axis(lambda value: value / whole, ticks)


def _warmups(outcome: LoadTestOutcome) -> list[tuple[float, float]]:
    return [(begin, begin + outcome.load.warmup_s) for begin, _ in _spans(outcome)]


def growth_charts(run: Measurement, warmup_s: float, time: Axis) -> list[Drawing]:
    """A soak's charts of the memory and open files of each process; empty if the server's metrics were not read."""
    from_s = judged_from_s(run.asked_s, warmup_s)
    lines = {kind: _growth_lines(run, kind, from_s) for kind in _GROWING}
    return [_growth(kind, drawn, time, from_s) for kind, drawn in lines.items() if drawn]


def _growth_lines(run: Measurement, kind: Literal["memory", "files"], from_s: float) -> list[Line]:
    """One line per process, in percent of its value at the start of the judged time."""
    values: dict[str, list[tuple[float, float]]] = {}
    for reading in run.vitals.readings if run.vitals else ():
        for name, value in (reading.memory if kind == "memory" else reading.files).items():
            values.setdefault(name, []).append((reading.at_s, value))
    lines = []
    for name, points in sorted(values.items()):
        judged = [value for at, value in points if at >= from_s]
        if base := median(judged[:_FIRST]) if judged else 0:
            lines.append(Line(name, _COLOURS.get(name, _WORKERS), [(at, 100 * value / base) for at, value in points]))
    return lines


def _growth(kind: Literal["memory", "files"], lines: Sequence[Line], time: Axis, from_s: float) -> Drawing:
    limit = 100 * (1 + GROWTH_ALLOWED[kind])
    judged = [value for line in lines for at, value in line.points if value is not None and at >= from_s]
    axis = linear_axis(min(98.0, *judged), max(104.0, *judged), lambda value: f"{value:g} %")
    # While caches fill, values are far below those that are judged.
    shown = [Line(line.name, line.css, _above(axis.ticks[0][0], line.points)) for line in lines]
    chart = Chart(title=_GROWING[kind], x=time, y=axis, lines=shown, limit=limit, shaded=[(0, from_s)])
    workers = sum(line.css == _WORKERS for line in lines)
    legend = {line.name: f"ink-{line.css}" for line in lines if line.css != _WORKERS}
    legend |= {"worker" if workers == 1 else f"{workers} workers": f"ink-{_WORKERS}"} if workers else {}
    legend |= {f"{limit:g} %": "ink-limit dash", "not judged": "ink-shade block"}
    return Drawing(chart, "Each process, compared with what it used after the first third of the run", legend)


def _above(lowest: float, points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    return [(at, value if value is not None and value >= lowest else None) for at, value in points]
