"""`verdict.xml`: JUnit with one test case per objective, so that any CI system can show the verdict.

FAIL is a failure, INVALID an error: a measurement that cannot be trusted must not look like a skipped one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from marina.config.measured import Costs, Reason, VerdictStatus
from marina.loadtest.judging import LoadTestOutcome
from marina.loadtest.measuring import figure
from marina.loadtest.reporting.text import arrivals_text, check_title

# Texts may quote a server, and names of processes; XML cannot hold these characters, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {"FAIL": "failure", "INVALID": "error"}


@dataclass(frozen=True)
class JUnitCase:
    """One test case: what was judged, and why it is not PASS."""

    name: str
    status: VerdictStatus
    reasons: Sequence[Reason]


def verdict_xml(outcome: LoadTestOutcome) -> str:
    against = outcome.verdict.reasons
    # The budget has a case of its own.
    whole = [reason for reason in against if outcome.costs is None or reason != outcome.costs.over]
    cases = [
        JUnitCase(
            check_title(check),
            check.status,
            [*whole, *check.reasons] if check.status == "INVALID" else [*check.reasons, *whole],
        )
        for check in outcome.verdict.checks
    ]
    cases += cost_cases(outcome.costs)
    if outcome.verdict.status not in {case.status for case in cases}:
        # The server died after its last answer, or one of several runs cannot be trusted.
        cases.insert(
            0, JUnitCase("all runs can be trusted, and the server stayed alive", outcome.verdict.status, against)
        )
    seconds = sum(run.measurement.ran_s for run in outcome.runs)
    return suite_xml("loadtest", outcome.tested.name, cases, _properties(outcome), at=outcome.at, seconds=seconds)


def cost_cases(costs: Costs | None) -> list[JUnitCase]:
    """A test case for the budget; empty if there is none."""
    if costs is None or costs.budget is None:
        return []
    over = costs.over
    name = f"10,000 requests cost at most {costs.budget:g} {costs.currency}"
    return [JUnitCase(name, "FAIL" if over else "PASS", [over] if over else [])]


def suite_xml(
    verb: str, name: str, cases: Sequence[JUnitCase], properties: Mapping[str, str], *, at: str, seconds: float
) -> str:
    """The XML of one test suite: what `marina VERB` judged about the service `name`."""
    counts = {
        "tests": len(cases),
        "failures": sum(case.status == "FAIL" for case in cases),
        "errors": sum(case.status == "INVALID" for case in cases),
        "skipped": 0,
    }
    attributes = {key: str(value) for key, value in counts.items()}
    attributes |= {"name": f"marina {verb} {name}", "time": f"{seconds:.3f}"}
    root = Element("testsuites", attributes)
    suite = SubElement(root, "testsuite", attributes | {"timestamp": at})
    listed = SubElement(suite, "properties")
    for key, value in properties.items():
        SubElement(listed, "property", name=key, value=value)
    for case in cases:
        _add_case(suite, f"marina.{name}", case, seconds)
    ElementTree.indent(root)
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ElementTree.tostring(root, "unicode", xml_declaration=True)) + "\n"


def _properties(outcome: LoadTestOutcome) -> dict[str, str]:
    tested, load = outcome.tested, outcome.load
    return {
        "url": tested.url,
        "package": tested.package or "unknown",
        "served": tested.served or "unknown",
        "machine": str(outcome.machine),
        "load": f"{figure(load.rate)} requests/s, {arrivals_text(load.arrivals)}, for {load.duration_s:g} s",
        **({"limited": str(outcome.pooled.limited)} if outcome.pooled.limited else {}),
    }


def _add_case(suite: Element, classname: str, case: JUnitCase, seconds: float) -> None:
    added = SubElement(suite, "testcase", classname=classname, name=case.name, time=f"{seconds:.3f}")
    if case.status == "PASS":
        return
    detail = SubElement(
        added,
        _ELEMENTS[case.status],
        type=case.reasons[0].id if case.reasons else case.status.lower(),
        message="; ".join(reason.text for reason in case.reasons),
    )
    detail.text = "\n".join(f"{reason.id}: {reason.text}" for reason in case.reasons)
