"""`compare.html`, the latencies of two servers as curves and their differences, and `compare.xml` for CI."""

import math
from collections.abc import Sequence
from pathlib import Path

from marina.config.pages import Axis, Chart, Drawing, Line, linear_axis, log_axis, milliseconds, render_template
from marina.loadtest.comparing.comparison import Comparison, Figure, Round, Side, Turn, responses
from marina.loadtest.comparing.judgement import between_text
from marina.loadtest.judging import P99_SHARE
from marina.loadtest.measuring import Histogram, figure, percent
from marina.loadtest.reporting import (
    JUnitCase,
    arrivals_text,
    cost_cases,
    cost_facts,
    measured_text,
    percentile_axis,
    reason_items,
    suite_xml,
    texts_by_id,
)

_MEANING = {
    "PASS": "The new server is not worse than the old one by more than allowed.",
    "FAIL": "The new server is worse than the old one by more than allowed.",
    "INVALID": "The measurement does not show whether the new server is worse than the old one.",
}
_OVER_BUDGET = f"{_MEANING['PASS']} But it costs more than its budget."
_LEGEND = {"old": "ink-two", "new": "ink-one"}


def comparison_html(comparison: Comparison) -> str:
    status, new, old = comparison.status, comparison.new, comparison.old
    name = f"{new.name}: {_version(new)} against {_version(old)}"
    reasons = {reason.id for reason in comparison.every_reason()}
    return render_template(
        Path(__file__).with_name("compare.html"),
        title=f"{status}: {name}",
        heading=name,
        status=status,
        meaning=_OVER_BUDGET if reasons == {"over-budget"} else _MEANING[status],
        rows=[_row(value) for value in comparison.figures],
        reasons=texts_by_id(comparison.every_reason()),
        drawings=_charts(comparison),
        compared=_compared(comparison),
        costs=cost_facts(comparison.costs),
    )


def _version(side: Side) -> str:
    return f"{side.version} ({side.package[:12]})" if side.package else side.url


def _row(value: Figure) -> dict[str, str]:
    return {
        "title": figure_title(value),
        "old": measured_text(value.old, value.unit),
        "new": measured_text(value.new, value.unit),
        "ratio": "-" if value.ratio is None else f"{value.ratio:.3g}",
        "between": "" if value.ratio is None else between_text(value),
        "status": value.status,
    }


def _charts(comparison: Comparison) -> list[Drawing]:
    counted = comparison.counted
    old, new = responses(counted) if counted else (Histogram(), Histogram())
    if not old.count or not new.count:
        return []
    return [_cumulative(old, new), _tail(old, new), _each_round(counted)]


def _cumulative(old: Histogram, new: Histogram) -> Drawing:
    low, high = min(old.min_ms, new.min_ms), max(old.ranked(_rank(old)), new.ranked(_rank(new)))
    chart = Chart(
        title="Cumulative latency",
        x=log_axis(max(0.01, low), high, milliseconds),
        y=Axis(lambda share: share, [(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)]),
        lines=[Line("old", "two", _share_within(old)), Line("new", "one", _share_within(new))],
    )
    return Drawing(chart, "Share of requests answered within a time: the curve to the left is the faster one", _LEGEND)


def _rank(histogram: Histogram) -> int:
    """The rank of the slowest latency that is drawn: the very slowest would squeeze all others into a corner."""
    return max(1, math.ceil(0.999 * histogram.count))


def _share_within(histogram: Histogram) -> list[tuple[float, float | None]]:
    points: list[tuple[float, float | None]] = [(histogram.min_ms, 0.0)]
    return points + [(latency, share) for share, latency in histogram.curve()]


def _tail(old: Histogram, new: Histogram) -> Drawing:
    chart = Chart(
        title="Percentiles",
        x=percentile_axis(max(100, old.count, new.count)),
        y=log_axis(max(0.01, min(old.min_ms, new.min_ms)), max(old.max_ms, new.max_ms), milliseconds),
        lines=[
            Line(name, css, list(latencies.curve()))
            for name, css, latencies in (("old", "two", old), ("new", "one", new))
        ],
    )
    return Drawing(chart, "The same, with the slowest requests drawn as wide as all others", _LEGEND)


def _each_round(rounds: Sequence[Round]) -> Drawing:
    dots, shown = [], []
    for share, name in ((0.5, "three"), (P99_SHARE, "limit")):
        values = [_percentile(turns.new, share) / _percentile(turns.old, share) for turns in rounds]
        shown += values
        dots.append(Line(name, f"fail ink-{name}", [(at + 0.5, value) for at, value in enumerate(values)]))
    chart = Chart(
        title="Rounds",
        x=Axis(lambda value: value / len(rounds), [(0, "first round"), (len(rounds), f"round {len(rounds)}")]),
        y=linear_axis(0, max(2.0, *shown), lambda value: f"{value:g}"),
        dots=dots,
        limit=1.0,
    )
    legend = {"p50": "ink-three block", "p99": "ink-limit block", "no difference": "ink-limit dash"}
    return Drawing(chart, "New / old of each round that counts", legend)


def _percentile(turn: Turn, share: float) -> float:
    return turn.response.percentile(share) or 1.0


def _compared(comparison: Comparison) -> dict[str, str]:
    load, answers = comparison.load, comparison.answers
    left_out = len(comparison.rounds) - len(comparison.counted)
    never_paused = [side for side in (comparison.old, comparison.new) if not side.started]
    return {
        "Old": _subject(comparison.old),
        "New": _subject(comparison.new),
        "Load": f"{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}, {load.turn_s:g} s each per round, "
        f"after {load.warmup_s:g} s of warm-up",
        "Rounds": f"{len(comparison.rounds)} (old, new, new, old and so on), {left_out} of them left out",
        "Other server": "each was paused while the other was measured"
        if not never_paused
        else "a server that was not started here keeps running, and its CPU time is unknown",
        "Answers": f"{answers.same:,} of {answers.inputs:,} inputs answered the same",
        "Machine": f"{comparison.machine}, {comparison.machine.system}",
        "Started": comparison.at,
    }


def _subject(side: Side) -> str:
    return f"{side.name} {side.version}, package {side.package or 'unknown'}, {side.url}"


def comparison_markdown(comparison: Comparison) -> str:
    """The verdict and its table, for where people review a change."""
    lines = [
        f"**{comparison.status}** {_MEANING[comparison.status]}",
        "",
        "| | old | new | new / old | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in map(_row, comparison.figures):
        ratio = f"{row['ratio']} ({row['between']})" if row["between"] else row["ratio"]
        lines.append(f"| {row['title']} | {row['old']} | {row['new']} | {ratio} | {row['status']} |")
    return "\n".join([*lines, "", *reason_items(comparison.every_reason())])


def comparison_xml(comparison: Comparison) -> str:
    """JUnit with one test case per figure."""
    against = [reason for reason in comparison.reasons if reason.id != "over-budget"]
    cases = [
        JUnitCase(figure_title(value), value.status, [*(against if value.status == "INVALID" else ()), *value.reasons])
        for value in comparison.figures
    ]
    if against:
        cases.insert(0, JUnitCase("can be compared", comparison.status, against))
    cases += cost_cases(comparison.costs)
    load = comparison.load
    seconds = sum(turns.old.asked_s + turns.new.asked_s for turns in comparison.rounds)
    properties = {
        "old": comparison.old.package or comparison.old.url,
        "new": comparison.new.package or comparison.new.url,
        "machine": str(comparison.machine),
        "load": f"{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}, {len(comparison.rounds)} rounds "
        f"of {load.turn_s:g} s each",
    }
    return suite_xml("compare", comparison.new.name, cases, properties, at=comparison.at, seconds=seconds)


def figure_title(value: Figure) -> str:
    """What must hold: `p99 of new / old at most 1.2`."""
    if value.figure == "errors":
        return f"errors at most {percent(value.limit)} more"
    if value.figure == "answers":
        return f"answers at least {percent(value.limit)} the same"
    name = "CPU time a request" if value.figure == "cpu" else value.figure
    return f"{name} of new / old at {'least' if value.figure == 'rate' else 'most'} {value.limit:.3g}"
