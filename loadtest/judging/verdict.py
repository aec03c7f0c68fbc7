"""What a verdict is made of: the objective, each objective's check, the reasons; and one verdict out of several."""

from __future__ import annotations

from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["PASS", "FAIL", "INVALID"]
EXIT_CODES: dict[Status, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3}
# Arrivals may be late by this share of the latency limit, but 2 ms is what an idle event loop needs.
LATE_SHARE, LATE_FLOOR_MS = 0.2, 2.0


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Objective(_Record):
    """What must hold: the spec's `slo` block."""

    p99_ms: float
    error_rate: float
    throughput_rps: float | None

    @property
    def late_ms(self) -> float:
        """How late arrivals may be at p99 before they blur the judgement."""
        return max(LATE_FLOOR_MS, LATE_SHARE * self.p99_ms)


class Reason(_Record):
    """Why a status is not PASS: a stable id and a sentence."""

    id: str
    text: str


class Check(_Record):
    """One objective, judged; over several runs `measured` is the median and `spread` the range."""

    objective: Literal["p99", "errors", "throughput"]
    status: Status
    limit: float
    measured: float | None
    spread: tuple[float, float] | None = None
    unit: Literal["ms", "share", "requests/s"]
    reasons: tuple[Reason, ...] = ()


class Verdict(_Record):
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


def worst(statuses: list[Status]) -> Status:
    """One trusted FAIL decides; without one, anything INVALID does."""
    order: tuple[Status, ...] = ("FAIL", "INVALID", "PASS")
    return next(status for status in order if status in statuses)


def combine(verdicts: list[Verdict]) -> Verdict:
    """The verdict over repeated runs; the reasons say which run they are from."""
    if len(verdicts) == 1:
        return verdicts[0]
    reasons = [_numbered(reason, run) for run, one in enumerate(verdicts, 1) for reason in one.reasons]
    checks = []
    for same in zip(*(one.checks for one in verdicts), strict=True):
        values = [check.measured for check in same if check.measured is not None]
        update = {
            "status": worst([check.status for check in same]),
            "measured": median(values) if values else None,
            "spread": (min(values), max(values)) if values else None,
            "reasons": tuple(_numbered(reason, run) for run, check in enumerate(same, 1) for reason in check.reasons),
        }
        checks.append(same[0].model_copy(update=update))
    return Verdict(status=worst([one.status for one in verdicts]), reasons=tuple(reasons), checks=tuple(checks))


def _numbered(reason: Reason, run: int) -> Reason:
    return Reason(id=reason.id, text=f"run {run}: {reason.text}")
