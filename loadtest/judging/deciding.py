"""One objective's check, from what was measured and how sure that is. Pure."""

from __future__ import annotations

from loadtest.judging.certainty import Between
from loadtest.judging.verdict import UNDECIDED, Check, Reason, Status, interval_text, value_text

_MANY = 1_000_000


def decide(check: Check, between: Between) -> tuple[Check, Status]:
    """The check with its interval, INVALID when that holds the limit; and what it says."""
    check = check.model_copy(update={"interval": (between.low, between.high)})
    if between.status != "INVALID":
        return check, between.status
    limit = value_text(check, check.limit)
    text = f"{check.objective} of {interval_text(check)} holds the limit of {limit}: {_more(between.more)} would decide"
    return with_status(check, "INVALID", UNDECIDED, text), "INVALID"


def _more(requests: float) -> str:
    if requests > _MANY:
        return f"more than {_MANY:,} more requests"
    return f"about {float(f'{max(requests, 100):.2g}'):,.0f} more requests"


def with_status(check: Check, status: Status, reason: str = "", text: str = "") -> Check:
    """The check with this status, and the reason for it."""
    reasons = (Reason(id=reason, text=text),) if reason else ()
    return check.model_copy(update={"status": status, "reasons": reasons})
