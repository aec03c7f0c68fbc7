"""Charts with an x and a y axis: lines, dots and stacked bars, and their coordinates.

`parts.html` writes them as SVG. Colours are CSS classes, so that pages can be light or dark. A chart is as wide as a
phone's screen, and scales up; its legend is HTML below the title, so that no text can overlap."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_NICE = (1, 2, 5)
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 26
# The average width of a letter in a label.
_LETTER = 6.0


@dataclass(frozen=True)
class Axis:
    """An axis: `place` maps its values to 0..1, and `ticks` are the values that have labels."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Line:
    """A line with a name; it is interrupted where y is None."""

    name: str
    css: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Bars:
    """Bars that are 1 wide and start at each x; several `Bars` are stacked in their order."""

    name: str
    css: str
    values: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Box:
    """A rectangle of a chart, in its coordinates."""

    x: float
    y: float
    width: float
    height: float
    css: str = ""


@dataclass(frozen=True)
class Chart:
    """What is drawn, and the coordinates of every part."""

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
    """Shaded ranges of x, such as the warm-up."""
    width: int = 420
    height: int = 220

    left, top = _LEFT, _TOP

    @property
    def right(self) -> int:
        """The right end of the x axis."""
        return self.width - _RIGHT

    @property
    def bottom(self) -> int:
        """The lower end of the y axis."""
        return self.height - _BOTTOM

    def x_of(self, value: float) -> float:
        return round(_LEFT + _clipped(self.x.place(value)) * (self.right - _LEFT), 1)

    def y_of(self, value: float) -> float:
        return round(self.bottom - _clipped(self.y.place(value)) * (self.bottom - _TOP), 1)

    def anchor(self, value: float) -> str:
        """The alignment of a label of the x axis: at the ends of the axis, a centred one would stick out."""
        x = self.x_of(value)
        return "end" if x > self.right - 12 else "start" if x < _LEFT + 2 else "middle"

    def labels(self) -> list[tuple[float, str]]:
        """The labels of the x axis that have room: the last one, and those that end before the next one begins."""
        shown, next_left = list[tuple[float, str]](), math.inf
        for value, text in reversed(self.x.ticks):
            width = _LETTER * len(text)
            left = self.x_of(value) - width * {"start": 0, "middle": 0.5, "end": 1}[self.anchor(value)]
            if left + width + _LETTER <= next_left:
                shown, next_left = [(value, text), *shown], left
        return shown

    def path(self, points: Sequence[tuple[float, float | None]]) -> str:
        """A line as the `d` of an SVG path, interrupted where there is no value."""
        words, pen = [], "M"
        for x, y in points:
            if y is None:
                pen = "M"
                continue
            words.append(f"{pen}{self.x_of(x)} {self.y_of(y)}")
            pen = "L"
        return "".join(words)

    def shaded_boxes(self) -> Iterable[Box]:
        for low, high in self.shaded:
            left = self.x_of(low)
            yield Box(left, _TOP, round(self.x_of(high) - left, 1), self.bottom - _TOP)

    def bar_boxes(self) -> Iterable[Box]:
        """The bars, each on top of those before it."""
        tops: dict[float, float] = {}
        for bars in self.bars:
            for x, value in bars.values:
                if value <= 0:
                    continue
                base = tops.get(x, 0.0)
                tops[x] = base + value
                left, upper = self.x_of(x), self.y_of(tops[x])
                width = max(1.0, round(self.x_of(x + 1) - left - 0.5, 1))
                yield Box(left, upper, width, max(1.0, round(self.y_of(base) - upper, 1)), bars.css)


@dataclass(frozen=True)
class Drawing:
    """A chart with a sentence about it, and its legend: what each colour means, with the colour's CSS class, to which
    `dash` or `block` may be added."""

    chart: Chart
    note: str
    legend: Mapping[str, str]


def linear_axis(low: float, high: float, text: Callable[[float], str] = lambda value: f"{value:,g}") -> Axis:
    """An axis with even steps from `low` to at least `high`."""
    step = _nice_step((high - low) / 4 or 1)
    top = max(low + step, math.ceil(high / step - 1e-9) * step)
    count = round((top - low) / step)
    ticks = [(low + step * index, text(round(low + step * index, 9))) for index in range(count + 1)]
    return Axis(lambda value: (value - low) / (top - low), ticks)


def log_axis(low: float, high: float, text: Callable[[float], str]) -> Axis:
    """A logarithmic axis with ticks at powers of ten, and at 2 and 5 between them if there is room."""
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
    """A time in milliseconds as text: `500 µs`, `20 ms`, `1.5 s`."""
    # Half a unit below the next one, or rounding would write `1e+03 ms`.
    if value >= 999.5:
        return f"{value / 1000:.3g} s" if value < 999_500 else f"{value / 1000:,.0f} s"
    return f"{value:.3g} ms" if value >= 0.9995 else f"{value * 1000:.3g} µs"


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (*_NICE, 10) if nice * power >= rough * (1 - 1e-9))
