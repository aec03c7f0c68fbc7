"""The parts of a verdict: the objective, a check for each part of it, and the reasons."""

from typing import Literal

from marina.config.record import Part
from marina.loadtest.measuring import figure, percent

VerdictStatus = Literal["PASS", "FAIL", "INVALID"]
UNDECIDED, TOO_FEW = "undecided", "too-few-samples"
EXIT_CODES: dict[VerdictStatus, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3}
# Requests may be sent late by this share of the latency limit; an idle event loop needs up to 2 ms.
LATE_SHARE, LATE_FLOOR_MS = 0.2, 2.0
# A piece of text is read as late as the event loop runs, which must be little compared with the limit.
COARSE_SHARE = 0.1


class Objective(Part):
    """The objective: the spec's `slo` section."""

    p99_ms: float
    error_rate: float
    throughput_rps: float | None
    ttft_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    goodput: float | None = None

    @property
    def limits(self) -> dict[str, float | None]:
        """The fields of a `LoadPlan` that hold limits, so that counts at these limits are exact."""
        return {"limit_ms": self.p99_ms, "first_ms": self.ttft_p99_ms, "gap_ms": self.itl_p99_ms}

    @property
    def late_ms(self) -> float:
        """How late requests may be sent, at p99, before the latencies say more about the generator than the server."""
        return max(LATE_FLOOR_MS, LATE_SHARE * (self.ttft_p99_ms or self.p99_ms))

    @property
    def coarse_ms(self) -> float:
        """How late the generator may read what arrives, at p99."""
        pieces = [limit for limit in (self.ttft_p99_ms, self.itl_p99_ms) if limit is not None]
        return COARSE_SHARE * min(pieces) if pieces else self.late_ms


class Reason(Part):
    """The reason why a status is not PASS: a stable id and a sentence."""

    id: str
    text: str


class Check(Part):
    """One part of the objective, judged over all runs together."""

    objective: Literal["p99", "errors", "throughput", "ttft", "itl", "goodput", "memory", "files", "drift"]
    status: VerdictStatus
    limit: float
    measured: float | None
    interval: tuple[float, float] | None = None
    """Each end is exceeded by one measurement in twenty; None for a closed loop, which cannot have one."""
    unit: Literal["ms", "share", "requests/s"]
    reasons: tuple[Reason, ...] = ()


class Verdict(Part):
    """PASS, FAIL or INVALID, and why."""

    status: VerdictStatus
    reasons: tuple[Reason, ...]
    """Reasons against the run as a whole; those against one objective are in its check."""
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def every_reason(self) -> list[Reason]:
        """The reasons against the run, then those of each check."""
        return [*self.reasons, *(reason for check in self.checks for reason in check.reasons)]


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
