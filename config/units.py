"""Formats numbers and times."""

from datetime import UTC, datetime


def figure(value: float) -> str:
    """`0.4132`, `412.3`, `1,712`: four significant figures or a whole number, never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(share: float) -> str:
    """`0.1 %`, with three significant figures, so that small rates can be told apart."""
    return f"{100 * share:.3g} %"


def utc_now() -> str:
    """The time as records state it: `2026-03-02T08:00:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
