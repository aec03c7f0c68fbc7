"""The verdict in words: for a terminal, a report's table, a test case's name."""

from __future__ import annotations

from collections.abc import Iterable

from loadtest.judging import Check, Reason, Verdict, interval_text
from loadtest.measuring import figure, percent
from loadtest.scheduling import Spacing

_ARRIVALS: dict[Spacing, str] = {
    "constant": "evenly spaced arrivals",
    "poisson": "Poisson arrivals",
    "replay": "replayed arrivals",
}


def verdict_lines(verdict: Verdict, requests: int, arrivals: Spacing = "poisson") -> str:
    """`slo: FAIL p99 412 ms > 250 ms, …`, then every reason on a line of its own.

    Arrivals that are not random are named: evenly spaced ones flatter a server, and replayed ones are of one trace.
    """
    spacing = f", {arrivals_text(arrivals)}" if arrivals != "poisson" else ""
    lines = [f"slo: {verdict.status} {figures_text(verdict)}, {requests:,} requests{spacing}"]
    return "\n".join([*lines, *(f"  {reason.id}: {reason.text}" for reason in verdict.every_reason())])


def arrivals_text(arrivals: Spacing) -> str:
    """How the requests of a schedule are spaced."""
    return _ARRIVALS[arrivals]


def figures_text(verdict: Verdict) -> str:
    """What was measured, beside each limit."""
    return ", ".join(check_text(check) for check in verdict.checks)


def check_text(check: Check) -> str:
    """`p99 412 ms (380 to 431 ms) > 250 ms`: what was measured, beside the limit."""
    if check.measured is None:
        return f"{check.objective} not measured"
    if check.unit == "requests/s":
        return f"{figure(check.measured)} of {figure(check.limit)} requests/s"
    sign = "<=" if check.measured <= check.limit else ">"
    if check.unit == "share":
        return f"errors {percent(check.measured)} {sign} {percent(check.limit)}"
    between = f" ({interval_text(check)})" if check.interval else ""
    return f"p99 {figure(check.measured)} ms{between} {sign} {check.limit:g} ms"


def check_title(check: Check) -> str:
    """The objective alone: `p99 at most 250 ms`."""
    if check.objective == "errors":
        return f"errors at most {percent(check.limit)}"
    return f"p99 at most {check.limit:g} ms" if check.objective == "p99" else f"holds {figure(check.limit)} requests/s"


def texts_by_id(reasons: Iterable[Reason]) -> dict[str, list[str]]:
    """One entry for each reason's id, in the order they came, so that repeats do not repeat it."""
    texts: dict[str, list[str]] = {}
    for reason in reasons:
        texts.setdefault(reason.id, []).append(reason.text)
    return texts
