"""`compare.xml`: JUnit with one test case per figure, so that any CI system can show the result of a comparison."""

from marina.loadtest.comparing.comparison import Comparison, Figure
from marina.loadtest.measuring import figure, percent
from marina.loadtest.reporting import JUnitCase, arrivals_text, cost_cases, suite_xml


def comparison_xml(comparison: Comparison) -> str:
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
