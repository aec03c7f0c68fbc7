"""`compare.xml`: JUnit with one case for each figure, so that any CI shows the verdict of a comparison."""

from __future__ import annotations

from loadtest.comparing.comparison import Comparison, Figure
from loadtest.measuring import figure, percent
from loadtest.reporting import Case, arrivals_text, cost_cases, suite_xml


def comparison_xml(comparison: Comparison) -> str:
    """The file's text."""
    against = [reason for reason in comparison.reasons if reason.id != "over-budget"]
    cases = [
        Case(figure_title(each), each.status, [*(against if each.status == "INVALID" else ()), *each.reasons])
        for each in comparison.figures
    ]
    if against:
        cases.insert(0, Case("can be compared", comparison.status, against))
    cases += cost_cases(comparison.costs)
    load = comparison.load
    seconds = sum(each.old.asked_s + each.new.asked_s for each in comparison.rounds)
    properties = {
        "old": comparison.old.package or comparison.old.url,
        "new": comparison.new.package or comparison.new.url,
        "machine": str(comparison.machine),
        "load": f"{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}, {len(comparison.rounds)} rounds "
        f"of {load.turn_s:g} s each",
    }
    return suite_xml("compare", comparison.new.name, cases, properties, at=comparison.at, seconds=seconds)


def figure_title(each: Figure) -> str:
    """What must hold of a figure: `p99 of new / old at most 1.2`."""
    if each.figure == "errors":
        return f"errors at most {percent(each.limit)} more"
    if each.figure == "answers":
        return f"answers at least {percent(each.limit)} the same"
    name = "CPU time a request" if each.figure == "cpu" else each.figure
    return f"{name} of new / old at {'least' if each.figure == 'rate' else 'most'} {each.limit:.3g}"
