"""Verdicts and checks in words and together."""

from marina.config.measured import Check, Verdict, VerdictStatus
from marina.loadtest.measuring import figure, percent

UNDECIDED, TOO_FEW = "undecided", "too-few-samples"


def worst_status(statuses: list[VerdictStatus]) -> VerdictStatus:
    """FAIL if any status is FAIL, else INVALID if any is INVALID, else PASS."""
    order: tuple[VerdictStatus, ...] = ("FAIL", "INVALID", "PASS")
    return next(status for status in order if status in statuses)


def is_undecided(verdict: Verdict) -> bool:
    """Whether the verdict is INVALID only because it is undecided, so that a longer measurement may decide it."""
    open_ids = {reason.id for reason in verdict.every_reason()}
    return verdict.status == "INVALID" and open_ids <= {UNDECIDED}


def value_text(check: Check, value: float) -> str:
    """A value with the unit of its check."""
    if check.unit == "share":
        return percent(value)
    return f"{figure(value)} {check.unit}"


def interval_text(check: Check) -> str:
    """The interval of a check as text, `48 to 61 ms`; empty if it has none."""
    if check.interval is None:
        return ""
    low, high = check.interval
    lowest = f"{100 * low:.3g}" if check.unit == "share" else figure(low)
    return f"{lowest} to {value_text(check, high)}"
