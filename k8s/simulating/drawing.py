"""`simulation.html`: the table and the drawings of a simulation. One file, light and dark, no network, no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from k8s.simulating.outcome import Simulation, duration
from k8s.simulating.world import Moment

_WIDTH, _HEIGHT = 960, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 28
_POINTS = 800
_COLOURS = ("one", "two", "three")
_HOURS = (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 168)

Points = list[tuple[float, float]]
Line = tuple[str, str, Points]

_CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #16202c; --soft: #5a6878; --rule: #e1e6ec;
  --zero: #5a6878; --one: #1d66d6; --two: #c2500c; --three: #0f7b6c; }
@media (prefers-color-scheme: dark) { :root { --page: #10151c; --card: #19212b; --ink: #e8edf3; --soft: #9fadbd;
  --rule: #2b3643; --zero: #9fadbd; --one: #6aa5ff; --two: #ff9d5c; --three: #4fd1be; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 4px; }
p { margin: 0 0 16px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 16px; margin: 0 0 16px;
  overflow-x: auto; }
table { width: 100%; border-collapse: collapse; }
th, td { text-align: right; padding: 8px 0 8px 16px; border-top: 1px solid var(--rule); font-weight: 400; }
thead th { border-top: 0; color: var(--soft); font-size: 13px; } th:first-child { text-align: left; padding-left: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--soft); margin: 0 0 8px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 16px; height: 3px; border-radius: 2px; }
svg { display: block; width: 100%; min-width: 560px; height: auto; }
svg text { font-size: 12px; fill: var(--soft); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--rule); } svg path { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
path.zero { stroke: var(--zero); } path.one { stroke: var(--one); } path.two { stroke: var(--two); }
path.three { stroke: var(--three); } path.two, path.three { stroke-dasharray: 6 4; }
i.zero { background: var(--zero); } i.one { background: var(--one); } i.two { background: var(--two); }
i.three { background: var(--three); }
"""


def simulation_html(simulation: Simulation) -> str:
    """The file's text."""
    title = f"{escape(simulation.name)}: {escape(simulation.trace.name)}"
    knee = simulation.service.knee_rps
    traffic: Line = ("traffic", "zero", _of(simulation.outcomes[0].run.moments, lambda one: one.rate))
    held = _lines(simulation, lambda one: one.ready * knee)
    body = [
        f"<h1>{title}</h1>",
        f"<p>{duration(len(simulation.trace.rates))};{escape(simulation.service_text())}</p>",
        f"<section>{_table(simulation.rows())}</section>",
        _drawn("Requests/s: what came, and what the ready pods hold", [traffic, *held], simulation),
        _drawn("Pods that the autoscaler asked for", _lines(simulation, lambda one: one.wanted), simulation),
        _drawn("Requests beyond the objective, so far", _lines(simulation, _beyond_so_far()), simulation),
    ]
    if simulation.assumed:
        rows = "".join(f"<li>{escape(one)}</li>" for one in simulation.assumed)
        body.append(f"<section><h2>Assumed, not measured</h2><ul>{rows}</ul></section>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _beyond_so_far() -> Callable[[Moment], float]:
    total = 0.0

    def value(one: Moment) -> float:
        nonlocal total
        total = one.beyond + (total if one.at_s else 0.0)
        return total

    return value


def _lines(simulation: Simulation, value: Callable[[Moment], float]) -> list[Line]:
    return [
        (one.label, css, _of(one.run.moments, value)) for one, css in zip(simulation.outcomes, _COLOURS, strict=False)
    ]


def _of(moments: Sequence[Moment], value: Callable[[Moment], float]) -> Points:
    """A value over time, with no more points than can be seen."""
    every = math.ceil(len(moments) / _POINTS)
    points = [(float(one.at_s), value(one)) for one in moments]
    return [max(points[at : at + every], key=lambda point: point[1]) for at in range(0, len(points), every)]


def _table(rows: list[list[str]]) -> str:
    head, *rest = ([escape(cell) for cell in row] for row in rows)
    lines = ["<tr><th>" + f"{row[0]}</th><td>" + "</td><td>".join(row[1:]) + "</td></tr>" for row in rest]
    return f"<table><thead><tr><th>{'</th><th>'.join(head)}</th></tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _drawn(title: str, lines: list[Line], simulation: Simulation) -> str:
    legend = "".join(f'<span><i class="{css}"></i>{escape(name)}</span>' for name, css, _ in lines)
    return (
        f'<section><h2>{title}</h2><div class="legend">{legend}</div>'
        f"{_svg(title, lines, len(simulation.trace.rates))}</section>"
    )


def _svg(title: str, lines: list[Line], end_s: float) -> str:
    most = max((y for _, _, points in lines for _, y in points), default=0)
    step = _nice(most / 4)
    top = step * max(1, math.ceil(most / step))

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = x / end_s, y / top
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    for index in range(round(top / step) + 1):
        x, y = place(0, index * step)
        parts.append(f'<line class="grid" x1="{x}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{x - 8}" y="{y + 4:.1f}">{index * step:,g}</text>')
    hours = end_s / 3600
    every = next((one for one in _HOURS if hours / one <= 8), _HOURS[-1])
    for index in range(math.floor(hours / every) + 1):
        x, y = place(index * every * 3600, 0)
        anchor = "middle" if x < _WIDTH - _RIGHT - 24 else "end"
        parts.append(f'<text class="{anchor}" x="{x:.1f}" y="{y + 20:.1f}">{_clock(index * every)}</text>')
    for _, css, points in reversed(lines):
        drawn = "L".join("{:.1f} {:.1f}".format(*place(x, y)) for x, y in points)
        parts.append(f'<path class="{css}" d="M{drawn}"/>')
    return "".join([*parts, "</svg>"])


def _clock(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 or not hours else f"{hours * 60:g} min"


def _nice(rough: float) -> float:
    if rough <= 0.25:
        return 1
    power = 10.0 ** math.floor(math.log10(rough))
    return next(nice * power for nice in (1, 2, 5, 10) if nice * power >= rough * (1 - 1e-9))
