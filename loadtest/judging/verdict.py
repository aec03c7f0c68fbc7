"""What a verdict is made of: the objective, each objective's check, the reasons."""

from __future__ import annotations

from typing import Literal

from config.record import Part
from loadtest.measuring import figure, percent

Status = Literal["PASS", "FAIL", "INVALID"]
UNDECIDED, TOO_FEW = "undecided", "too-few-samples"
EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3}
# Arrivals may be late by this share of the latency limit, but 2 ms is what an idle event loop needs.
LATE_SHARE, LATE_FLOOR_MS = 0.2, 2.0
# A piece of text is heard as late as the event loop is, which must be little beside what is judged.
COARSE_SHARE = 0.1


class Objective(Part):
    """What must hold: the spec's `slo` block."""

    p99_ms: float
    error_rate: float
    throughput_rps: float | None
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    goodput: float | None = None

    @property
    def limits(self) -> dict[str, float | None]:
        """What a plan of a load says of it: the limits at which counts must be exact."""
        return {"limit_ms": self.p99_ms, "first_ms": self.ttft_p99_ms, "gap_ms": self.itl_p99_ms}

    @property
    def late_ms(self) -> float:
        """How late arrivals may be at p99 before they blur the judgement."""
        return max(LATE_FLOOR_MS, LATE_SHARE * (self.ttft_p99_ms or self.p99_ms))

    @property
    def coarse_ms(self) -> float:
        """How late the generator may hear of what arrives, at p99."""
        pieces = [limit for limit in (self.ttft_p99_ms, self.itl_p99_ms) if limit is not None]
        return COARSE_SHARE * min(pieces) if pieces else self.late_ms


class Reason(Part):
    """Why a status is not PASS: a stable id and a sentence."""

    id: str
    text: str


class Check(Part):
    """One objective, judged over all runs together."""

    objective: Literal["p99", "errors", "throughput", "ttft", "itl", "goodput", "memory", "files", "drift"]
    status: Status
    limit: float
    measured: float | None
    interval: tuple[float, float] | None = None
    """Each end is exceeded by one measurement in twenty; None for a closed loop, which says nothing of it."""
    unit: Literal["ms", "share", "requests/s"]
    reasons: tuple[Reason, ...] = ()


class Verdict(Part):
    """PASS, FAIL or INVALID, and why."""

    status: Status
    reasons: tuple[Reason, ...]
    """Against the run as a whole; what is against one objective is with its check."""
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return EXIT_CODES[self.status]

    def every_reason(self) -> list[Reason]:
        """The reasons of the run and of each objective, in order."""
        return [*self.reasons, *(reason for check in self.checks for reason in check.reasons)]


def worst_status(statuses: list[Status]) -> Status:
    """One trusted FAIL decides; without one, anything INVALID does."""
    order: tuple[Status, ...] = ("FAIL", "INVALID", "PASS")
    return next(status for status in order if status in statuses)


def is_undecided(verdict: Verdict) -> bool:
    """Whether a longer measurement may still turn INVALID into an answer: nothing else is wrong, nothing has failed."""
    open_ids = {reason.id for reason in verdict.every_reason()}
    return verdict.status == "INVALID" and open_ids <= {UNDECIDED}


def value_text(check: Check, value: float) -> str:
    """A value in the unit of its check."""
    if check.unit == "share":
        return percent(value)
    return f"{figure(value)} {check.unit}"


def interval_text(check: Check) -> str:
    """`48 to 61 ms`; empty without an interval."""
    if check.interval is None:
        return ""
    low, high = check.interval
    lowest = f"{100 * low:.3g}" if check.unit == "share" else figure(low)
    return f"{lowest} to {value_text(check, high)}"
