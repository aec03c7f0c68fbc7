"""`simulation.html`: the table and charts of a simulation, in one file without scripts or network access."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from marina.config.pages import Axis, Chart, Drawing, Line, linear_axis, render_template
from marina.k8s.simulating.replay import Moment
from marina.k8s.simulating.simulation import Simulation, duration

_POINTS = 800
_COLOURS = ("one", "two", "three")
_HOURS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 168)


def simulation_html(simulation: Simulation) -> str:
    """The text of the file."""
    heading = f"{simulation.name}: {simulation.traffic.name}"
    knee = simulation.pod.knee_rps
    traffic = Line("traffic", "zero", _points(simulation.results[0].replay.moments, lambda moment: moment.rate))
    capacity = _lines(simulation, lambda moment: moment.ready * knee)
    return render_template(
        Path(__file__).with_name("simulation.html"),
        title=heading,
        lead=f"{duration(len(simulation.traffic.rates))}; {simulation.pod}",
        rows=simulation.rows(),
        drawings=[
            _drawing("Requests/s: the traffic, and what the ready pods can hold", [traffic, *capacity], simulation),
            _drawing(
                "Pods that the autoscaler asked for", _lines(simulation, lambda moment: moment.wanted), simulation
            ),
            _drawing("Requests that missed the objective so far", _lines(simulation, _missed_so_far()), simulation),
        ],
        assumed=simulation.assumed,
    )


def _missed_so_far() -> Callable[[Moment], float]:
    total = 0.0

    def value(moment: Moment) -> float:
        nonlocal total
        total = moment.missed + (total if moment.at_s else 0.0)
        return total

    return value


def _lines(simulation: Simulation, value: Callable[[Moment], float]) -> list[Line]:
    """A line for each autoscaler; all but the first are dashed, so that none hides another."""
    return [
        Line(result.label, css if css == _COLOURS[0] else f"{css} dash", _points(result.replay.moments, value))
        for result, css in zip(simulation.results, _COLOURS, strict=False)
    ]


def _points(moments: Sequence[Moment], value: Callable[[Moment], float]) -> list[tuple[float, float]]:
    """A value over time, thinned out to the peaks of at most `_POINTS` stretches."""
    every = math.ceil(len(moments) / _POINTS)
    points = [(float(moment.at_s), value(moment)) for moment in moments]
    return [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]


def _drawing(title: str, lines: Sequence[Line], simulation: Simulation) -> Drawing:
    most = max((y or 0.0 for line in lines for _, y in line.points), default=0.0)
    # Reversed, so that the first line is on top.
    chart = Chart(
        title=title,
        x=_hours_axis(len(simulation.traffic.rates)),
        y=linear_axis(0, max(4.0, most)),
        lines=list(reversed(lines)),
    )
    return Drawing(chart, "", {line.name: f"ink-{line.css}" for line in lines})


def _hours_axis(end_s: float) -> Axis:
    hours = end_s / 3600
    every = next((step for step in _HOURS if hours / step <= 8), _HOURS[-1])
    ticks = [(index * every * 3600, _clock(index * every)) for index in range(math.floor(hours / every) + 1)]
    return Axis(lambda value: value / end_s, ticks)


def _clock(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 or not hours else f"{hours * 60:g} min"
