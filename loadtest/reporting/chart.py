"""Charts as inline SVG: lines and stacked bars over one axis each way. Colours are CSS classes, so themes can change.

The drawing is as wide as a phone shows it, and scales up; legends are HTML beside it, so no text can overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 420, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 26
_NICE = (1, 2, 5)


@dataclass(frozen=True)
class Axis:
    """Where values lie between 0 and 1, and which of them are written."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Line:
    """A named line; None breaks it."""

    name: str
    css: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Bars:
    """Bars of width 1 that start at each x, stacked in the order given."""

    name: str
    css: str
    values: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """One drawing."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    dots: Sequence[Line] = ()
    bars: Sequence[Bars] = ()
    mark: float | None = None
    """A dashed vertical line."""
    limit: float | None = None
    """A dashed horizontal line."""
    shaded: Sequence[tuple[float, float]] = field(default=())
    """Ranges of x that are apart, such as the warm-up."""


def linear_axis(low: float, high: float, text: Callable[[float], str] = lambda value: f"{value:,g}") -> Axis:
    """Even steps from `low` to at least `high`."""
    step = _nice_step((high - low) / 4 or 1)
    top = max(low + step, math.ceil(high / step - 1e-9) * step)
    count = round((top - low) / step)
    ticks = [(low + step * index, text(round(low + step * index, 9))) for index in range(count + 1)]
    return Axis(lambda value: (value - low) / (top - low), ticks)


def log_axis(low: float, high: float, text: Callable[[float], str]) -> Axis:
    """Powers of ten with 2 and 5 between them where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    candidates = [nice * 10.0**power for power in range(first, last + 1) for nice in _NICE]
    bottom = max((value for value in candidates if value <= low * (1 + 1e-9)), default=low)
    top = next((value for value in candidates if value >= high * (1 - 1e-9) and value > bottom), bottom * 10)
    inside = [value for value in candidates if bottom <= value <= top]
    if len(inside) > 8:
        inside = [value for value in inside if math.isclose(math.log10(value) % 1, 0, abs_tol=1e-9)]
    span = math.log10(top / bottom)
    return Axis(
        lambda value: math.log10(max(value, bottom) / bottom) / span, [(value, text(value)) for value in inside]
    )


def milliseconds(value: float) -> str:
    """`500 µs`, `20 ms`, `1.5 s`."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value >= 1 else f"{value * 1000:.3g} µs"


def svg(chart: Chart) -> str:
    """The drawing as an `svg` element."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        *(_shade(chart, low, high) for low, high in chart.shaded),
        *_grid(chart),
        *_stacked(chart),
        *(f'<path class="line {line.css}" d="{_path(chart, line.points)}"/>' for line in chart.lines),
    ]
    for dots in chart.dots:
        parts += [
            f'<circle class="dot {dots.css}" cx="{_x(chart, x):.1f}" cy="{_y(chart, y):.1f}" r="3"/>'
            for x, y in dots.points
            if y is not None
        ]
    if chart.mark is not None:
        x = _x(chart, chart.mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
    if chart.limit is not None:
        y = _y(chart, chart.limit)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return "".join([*parts, "</svg>"])


def _grid(chart: Chart) -> Iterable[str]:
    for value, text in chart.y.ticks:
        y = _y(chart, value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick end" x="{_LEFT - 6}" y="{y + 3.5:.1f}">{escape(text)}</text>'
    for value, text in chart.x.ticks:
        x = _x(chart, value)
        # A label at the end of the axis would stick out of the drawing.
        anchor = "end" if x > WIDTH - _RIGHT - 12 else "start" if x < _LEFT + 2 else "middle"
        yield f'<text class="tick {anchor}" x="{x:.1f}" y="{HEIGHT - 8}">{escape(text)}</text>'


def _stacked(chart: Chart) -> Iterable[str]:
    tops: dict[float, float] = {}
    for bars in chart.bars:
        for at, value in bars.values:
            if value <= 0:
                continue
            base = tops.get(at, 0.0)
            tops[at] = base + value
            left, right = _x(chart, at), _x(chart, at + 1)
            upper, lower = _y(chart, tops[at]), _y(chart, base)
            width = max(1.0, right - left - 0.5)
            yield (
                f'<rect class="bar {bars.css}" x="{left:.1f}" y="{upper:.1f}" '
                f'width="{width:.1f}" height="{max(1.0, lower - upper):.1f}"/>'
            )


def _path(chart: Chart, points: Sequence[tuple[float, float | None]]) -> str:
    words, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        words.append(f"{pen}{_x(chart, x):.1f} {_y(chart, y):.1f}")
        pen = "L"
    return "".join(words)


def _shade(chart: Chart, low: float, high: float) -> str:
    left, right = _x(chart, low), _x(chart, high)
    height = HEIGHT - _TOP - _BOTTOM
    return f'<rect class="shade" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{height}"/>'


def _x(chart: Chart, value: float) -> float:
    return _LEFT + _clipped(chart.x.place(value)) * (WIDTH - _LEFT - _RIGHT)


def _y(chart: Chart, value: float) -> float:
    return HEIGHT - _BOTTOM - _clipped(chart.y.place(value)) * (HEIGHT - _TOP - _BOTTOM)


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (*_NICE, 10) if nice * power >= rough * (1 - 1e-9))
