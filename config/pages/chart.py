"""Charts: lines, dots and stacked bars over one axis each way, and where each of them stands in a drawing.

`parts.html` writes them as SVG. Colours are CSS classes, so themes can change. A drawing is as wide as a phone shows
it, and scales up; legends are HTML beside it, so no text can overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_NICE = (1, 2, 5)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 26
# About as wide as a letter of a label is.
_LETTER = 6.0


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
class Box:
    """A rectangle of a drawing."""

    x: float
    y: float
    width: float
    height: float
    css: str = ""


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
    shaded: Sequence[tuple[float, float]] = ()
    """Ranges of x that are apart, such as the warm-up."""
    width: int = 420
    height: int = 220

    left, top = _LEFT, _TOP

    @property
    def right(self) -> int:
        """Where the x axis ends."""
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        """Where the y axis begins."""
        return self.height - _BOTTOM

    def across(self, value: float) -> float:
        """Where a value of the x axis stands."""
        return round(_LEFT + _clipped(self.x.place(value)) * (self.right - _LEFT), 1)

    def up(self, value: float) -> float:
        """Where a value of the y axis stands."""
        return round(self.bottom - _clipped(self.y.place(value)) * (self.bottom - _TOP), 1)

    def anchor(self, value: float) -> str:
        """How a label of the x axis is aligned: at the end of the axis it would stick out of the drawing."""
        x = self.across(value)
        return "end" if x > self.right - 12 else "start" if x < _LEFT + 2 else "middle"

    def labels(self) -> list[tuple[float, str]]:
        """The labels of the x axis that have room: the last one, and those that end before the next one begins."""
        shown, begin = list[tuple[float, str]](), math.inf
        for value, text in reversed(self.x.ticks):
            wide = _LETTER * len(text)
            at = self.across(value) - wide * {"start": 0, "middle": 0.5, "end": 1}[self.anchor(value)]
            if at + wide < begin:
                shown, begin = [(value, text), *shown], at
        return shown

    def path(self, points: Sequence[tuple[float, float | None]]) -> str:
        """A line's way, broken where there is no value."""
        words, pen = [], "M"
        for x, y in points:
            if y is None:
                pen = "M"
                continue
            words.append(f"{pen}{self.across(x)} {self.up(y)}")
            pen = "L"
        return "".join(words)

    def shades(self) -> Iterable[Box]:
        """The ranges of x that are apart."""
        for low, high in self.shaded:
            left = self.across(low)
            yield Box(left, _TOP, round(self.across(high) - left, 1), self.bottom - _TOP)

    def columns(self) -> Iterable[Box]:
        """The bars, each on those before it."""
        tops: dict[float, float] = {}
        for bars in self.bars:
            for at, value in bars.values:
                if value <= 0:
                    continue
                base = tops.get(at, 0.0)
                tops[at] = base + value
                left, upper = self.across(at), self.up(tops[at])
                width = max(1.0, round(self.across(at + 1) - left - 0.5, 1))
                yield Box(left, upper, width, max(1.0, round(self.up(base) - upper, 1)), bars.css)


@dataclass(frozen=True)
class LegendEntry:
    """What a legend says of a colour; `css` may add `dash` or `block` to it."""

    css: str
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart with a sentence and a legend."""

    chart: Chart
    note: str
    legend: Sequence[LegendEntry]


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


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (*_NICE, 10) if nice * power >= rough * (1 - 1e-9))
