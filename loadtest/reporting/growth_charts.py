"""The charts of a soak: the memory and open files of each server process, relative to the end of the first third."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from marina.config.pages import Axis, Chart, Drawing, Line, linear_axis
from marina.loadtest.judging import GROWTH_ALLOWED, judged_from_s
from marina.loadtest.measuring import Measurement, ServerReading

# The supervisor and Java each have their own colour; all workers share one.
_COLOURS = {"supervisor": "one", "torchserve": "two"}
_WORKERS = "three"
_TITLES: dict[Literal["memory", "files"], str] = {"memory": "Memory", "files": "Open files"}
# The median of the first readings of the judged time, this many, is the 100 %.
_FIRST = 12


def growth_charts(run: Measurement, warmup_s: float, time: Axis) -> list[Drawing]:
    """A chart of memory and one of open files; empty if the server's metrics were not read."""
    readings = run.vitals.readings if run.vitals else ()
    from_s = judged_from_s(run.asked_s, warmup_s)
    drawings = []
    for kind, title in _TITLES.items():
        lines = _lines(readings, kind, from_s)
        if lines:
            drawings.append(_drawing(kind, title, lines, time, from_s))
    return drawings


def _lines(readings: Sequence[ServerReading], kind: Literal["memory", "files"], from_s: float) -> list[Line]:
    """One line per process, in percent of its value at the start of the judged time."""
    values: dict[str, list[tuple[float, float]]] = {}
    for reading in readings:
        for name, value in (reading.memory if kind == "memory" else reading.files).items():
            values.setdefault(name, []).append((reading.at_s, value))
    lines = []
    for name, points in sorted(values.items()):
        judged = [value for at, value in points if at >= from_s]
        base = median(judged[:_FIRST]) if judged else 0
        if base:
            colour = _COLOURS.get(name, _WORKERS)
            lines.append(Line(name, colour, [(at, 100 * value / base) for at, value in points]))
    return lines


def _drawing(kind: Literal["memory", "files"], title: str, lines: list[Line], time: Axis, from_s: float) -> Drawing:
    limit = 100 * (1 + GROWTH_ALLOWED[kind])
    judged = [value for line in lines for at, value in line.points if value is not None and at >= from_s]
    axis = linear_axis(min(98.0, *judged), max(104.0, *judged), lambda value: f"{value:g} %")
    shown = [Line(line.name, line.css, _above(axis.ticks[0][0], line.points)) for line in lines]
    chart = Chart(title=title, x=time, y=axis, lines=shown, limit=limit, shaded=[(0, from_s)])
    workers = sum(line.css == _WORKERS for line in lines)
    legend = {line.name: f"ink-{line.css}" for line in lines if line.css != _WORKERS}
    legend |= {"worker" if workers == 1 else f"{workers} workers": f"ink-{_WORKERS}"} if workers else {}
    legend |= {f"{limit:g} %": "ink-limit dash", "not judged": "ink-shade block"}
    return Drawing(chart, "Each process, compared with what it used after the first third of the run", legend)


def _above(lowest: float, points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """The points without those below `lowest`: while caches fill, values are far below those that are judged."""
    return [(at, value if value is not None and value >= lowest else None) for at, value in points]
