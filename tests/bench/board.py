"""How a bench reports: medians over its rounds, ratios with their intervals, a table on the terminal, a JSON record,
and a page with bars."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.pages import render_template
from marina.config.record import write_json, write_text
from marina.loadtest.comparing.ratios import Ratio, ratio
from marina.loadtest.measuring import this_machine

# How often an end of an interval is exceeded: the most that five rounds can promise.
_WRONG = 0.05
_BAR_WIDTH, _ROW, _LABEL, _FIGURE = 420, 26, 150, 56


@dataclass(frozen=True)
class Column:
    """One figure of each row: its key in the record, its heading, how it is written."""

    key: str
    heading: str
    form: str = "{:,.1f}"

    def text(self, value: Any) -> str:
        """The value as it stands in the table; a dash for one that was not measured."""
        if value is None:
            return "–"
        return value if isinstance(value, str) else self.form.format(value)


def median(values: Sequence[float | None]) -> float | None:
    """The middle of the values that were measured."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def spread(values: Sequence[float]) -> float:
    """Highest less lowest, as a share of the median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def against(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """New / old of what was measured in turns, round by round, judged as `marina compare` does."""
    return ratio(old, new, _WRONG, _WRONG)


def ratio_text(quotient: Ratio) -> str:
    """`1.23 (1.18 to 1.29)`."""
    if not math.isfinite(quotient.high):
        return f"{quotient.value:.2f} (too few rounds for an interval)"
    return f"{quotient.value:.2f} ({quotient.low:.2f} to {quotient.high:.2f})"


def table(rows: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """The rows as aligned text."""
    cells = [["", *(column.heading for column in columns)]]
    cells += [[name, *(column.text(row.get(column.key)) for column in columns)] for name, row in rows.items()]
    widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in cells
    )


def write_report(
    folder: Path,
    *,
    title: str,
    lead: str,
    record: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    columns: Sequence[Column],
    bars: Sequence[tuple[str, str]],
) -> None:
    """`bench.json` and `bench.html` in a folder; `bars` names the figures that are drawn, with their titles."""
    machine = this_machine()
    write_json(folder / "bench.json", {**record, "machine": machine.model_dump(), "rows": rows})
    page = render_template(
        Path(__file__).with_name("board.html"),
        title=title,
        lead=f"{lead} On {machine}.",
        charts=[_bars(heading, rows, key) for key, heading in bars],
        columns=["", *(column.heading for column in columns)],
        rows=[[name, *(column.text(row.get(column.key)) for column in columns)] for name, row in rows.items()],
    )
    write_text(folder / "bench.html", page)


def _bars(title: str, rows: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, Any]:
    values = {name: row[key] for name, row in rows.items() if row.get(key) is not None}
    longest = max(values.values(), default=0) or 1
    room = _BAR_WIDTH - _LABEL - _FIGURE
    bars = [
        {
            "name": name,
            "value": f"{value:,.3g}",
            "y": _ROW * index,
            "length": max(1.0, round(room * value / longest, 1)),
        }
        for index, (name, value) in enumerate(values.items())
    ]
    return {"title": title, "bars": bars, "width": _BAR_WIDTH, "height": _ROW * len(bars), "left": _LABEL, "row": _ROW}
