"""Panels of a Grafana dashboard as plain data, and their layout on its grid."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One panel, with the queries of its series by their legends. `limits` are the values at which it turns yellow or
    red; a chart shows them as lines. `low_is_bad` means that values below a limit are the bad ones. `maximum` is the
    top of the axis. A table shows only the current values."""

    title: str
    description: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    limits: tuple[float, ...] = ()
    low_is_bad: bool = False
    maximum: float | None = None

    def json(self, ident: int, place: Json) -> Json:
        """The panel in Grafana's format."""
        return {
            "id": ident,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": place,
            "targets": [self._target(number, *query) for number, query in enumerate(self.queries.items())],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": _OPTIONS[self.kind],
            **({"transformations": _TABLE} if self.kind == "table" else {}),
        }

    def _target(self, number: int, legend: str, expr: str) -> Json:
        return {
            "refId": chr(ord("A") + number),
            "datasource": DATASOURCE,
            "expr": expr,
            "legendFormat": legend,
            "format": self.kind if self.kind in ("heatmap", "table") else "time_series",
            "instant": self.kind == "table",
            "range": self.kind != "table",
        }

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit, "thresholds": {"mode": "absolute", "steps": self._steps()}}
        if self.maximum is not None:
            defaults["max"] = self.maximum
        if self.kind == "timeseries":
            defaults["color"] = {"mode": "palette-classic"}
            defaults["min"] = 0
            defaults["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 5,
                "showPoints": "never",
                "spanNulls": False,
                "stacking": {"mode": "none", "group": "A"},
                "thresholdsStyle": {"mode": "dashed" if self.limits else "off"},
                # The limit stays in view, however far below it the values are.
                **({"axisSoftMax": 1.2 * max(self.limits)} if self.limits and self.maximum is None else {}),
            }
        return defaults

    def _steps(self) -> list[Json]:
        colours = ["green", "red"] if len(self.limits) < 2 else ["green", "yellow", "red"]
        if self.low_is_bad:
            colours.reverse()
        return [
            {"color": colour, "value": value}
            for colour, value in zip(colours, (None, *sorted(self.limits)), strict=False)
        ]


def place_panels(rows: Iterable[tuple[str, Iterable[Panel]]]) -> list[Json]:
    """Places rows of panels on the grid, from left to right, each row under a heading."""
    placed: list[Json] = []
    top = 0
    for title, panels in rows:
        placed.append(_heading(len(placed) + 1, title, top))
        top, left, deepest = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > WIDTH:
                top, left, deepest = top + deepest, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            placed.append(panel.json(len(placed) + 1, place))
            left, deepest = left + panel.width, max(deepest, panel.height)
        top += deepest
    return placed


def _heading(ident: int, title: str, top: int) -> Json:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"id": ident, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"], "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    },
    "table": {"cellHeight": "sm", "showHeader": True, "footer": {"show": False}},
}
_TABLE = [
    {
        "id": "organize",
        "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {"Value": "pods"}},
    }
]
