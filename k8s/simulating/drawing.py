"""`simulation.html`: the table and the drawings of a simulation. One file, light and dark, no network, no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from config.pages import Axis, Chart, Drawing, LegendEntry, Line, linear_axis, render_template
from k8s.simulating.outcome import Simulation, duration
from k8s.simulating.world import Moment

_POINTS = 800
_COLOURS = ("one", "two", "three")
_HOURS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 168)


def simulation_html(simulation: Simulation) -> str:
    """The file's text."""
    heading = f"{simulation.name}: {simulation.trace.name}"
    knee = simulation.service.knee_rps
    traffic = Line("traffic", "zero", _points(simulation.outcomes[0].run.moments, lambda moment: moment.rate))
    held = _lines(simulation, lambda moment: moment.ready * knee)
    return render_template(
        Path(__file__).with_name("simulation.html"),
        title=heading,
        lead=f"{duration(len(simulation.trace.rates))};{simulation.service_text()}",
        rows=simulation.rows(),
        drawings=[
            _drawing("Requests/s: what came, and what the ready pods hold", [traffic, *held], simulation),
            _drawing(
                "Pods that the autoscaler asked for", _lines(simulation, lambda moment: moment.wanted), simulation
            ),
            _drawing("Requests beyond the objective, so far", _lines(simulation, _beyond_so_far()), simulation),
        ],
        assumed=simulation.assumed,
    )


def _beyond_so_far() -> Callable[[Moment], float]:
    total = 0.0

    def value(moment: Moment) -> float:
        nonlocal total
        total = moment.beyond + (total if moment.at_s else 0.0)
        return total

    return value


def _lines(simulation: Simulation, value: Callable[[Moment], float]) -> list[Line]:
    """A line for each autoscaler, all but the first one dashed, so that one does not hide another."""
    return [
        Line(outcome.label, css if css == _COLOURS[0] else f"{css} dash", _points(outcome.run.moments, value))
        for outcome, css in zip(simulation.outcomes, _COLOURS, strict=False)
    ]


def _points(moments: Sequence[Moment], value: Callable[[Moment], float]) -> list[tuple[float, float]]:
    """A value over time, with no more points than can be seen."""
    every = math.ceil(len(moments) / _POINTS)
    points = [(float(moment.at_s), value(moment)) for moment in moments]
    return [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]


def _drawing(title: str, lines: Sequence[Line], simulation: Simulation) -> Drawing:
    most = max((y or 0.0 for line in lines for _, y in line.points), default=0.0)
    # Drawn in reverse, so that the first line lies on top.
    chart = Chart(
        title=title,
        x=_hours_axis(len(simulation.trace.rates)),
        y=linear_axis(0, max(4.0, most)),
        lines=list(reversed(lines)),
        width=960,
        height=260,
    )
    return Drawing(chart, "", [LegendEntry(f"ink-{line.css}", line.name) for line in lines])


def _hours_axis(end_s: float) -> Axis:
    hours = end_s / 3600
    every = next((step for step in _HOURS if hours / step <= 8), _HOURS[-1])
    ticks = [(index * every * 3600, _clock(index * every)) for index in range(math.floor(hours / every) + 1)]
    return Axis(lambda value: value / end_s, ticks)


def _clock(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 or not hours else f"{hours * 60:g} min"
