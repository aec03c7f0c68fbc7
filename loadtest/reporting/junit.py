"""`verdict.xml`: JUnit with one case per objective, so that any CI shows the verdict.

FAIL is a failure, INVALID an error: a measurement that cannot be trusted must not look like a skipped one.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from loadtest.judging import Check, Outcome
from loadtest.measuring import figure
from loadtest.reporting.words import arrivals_text, check_title

_ELEMENTS = {"FAIL": "failure", "INVALID": "error"}


def verdict_xml(outcome: Outcome) -> str:
    """The file's text."""
    checks = outcome.verdict.checks
    seconds = sum(run.measurement.ran_s for run in outcome.runs)
    counts = {
        "tests": len(checks),
        "failures": sum(check.status == "FAIL" for check in checks),
        "errors": sum(check.status == "INVALID" for check in checks),
        "skipped": 0,
    }
    attributes = {key: str(value) for key, value in counts.items()}
    attributes |= {"name": f"marina loadtest {outcome.tested.name}", "time": f"{seconds:.3f}"}
    root = Element("testsuites", attributes)
    suite = SubElement(root, "testsuite", attributes | {"timestamp": outcome.at})
    properties = SubElement(suite, "properties")
    for key, value in _properties(outcome).items():
        SubElement(properties, "property", name=key, value=value)
    for check in checks:
        _add_case(suite, outcome, check, seconds)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _properties(outcome: Outcome) -> dict[str, str]:
    tested, load = outcome.tested, outcome.load
    return {
        "url": tested.url,
        "package": tested.package or "unknown",
        "served": tested.served or "unknown",
        "machine": str(outcome.machine),
        "load": f"{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}, for {load.duration_s:g} s",
    }


def _add_case(suite: Element, outcome: Outcome, check: Check, seconds: float) -> None:
    case = SubElement(
        suite, "testcase", classname=f"marina.{outcome.tested.name}", name=check_title(check), time=f"{seconds:.3f}"
    )
    if check.status == "PASS":
        return
    against_run = outcome.verdict.reasons if check.status == "INVALID" else ()
    reasons = [*against_run, *check.reasons]
    detail = SubElement(
        case,
        _ELEMENTS[check.status],
        type=reasons[0].id if reasons else check.status.lower(),
        message="; ".join(reason.text for reason in reasons),
    )
    detail.text = "\n".join(f"{reason.id}: {reason.text}" for reason in reasons)
