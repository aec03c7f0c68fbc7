"""The record `drill.json`: what was broken, when, how many pods served, what clients saw, and the verdict.

All times are in seconds from the start of the load. docs/how-to/drill.md explains each field."""

from typing import Final, Literal

from marina.config.measured import EXIT_CODES, Machine, Objective, Reason, VerdictStatus
from marina.config.record import Document, Part
from marina.loadtest.measuring import Measurement
from marina.loadtest.scheduling import Spacing

SCHEMA: Final = "marina.drill/1"
DrillFigure = Literal["lost", "pods", "errors", "p99", "ttft", "itl"]
Unit = Literal["requests", "s", "share", "ms"]


class PodsAt(Part):
    """How many pods served at a moment, and how many should have."""

    at_s: float
    serving: int
    wanted: int


class Broken(Part):
    """What was broken, and what became of it."""

    kind: str
    what: tuple[str, ...]
    """What the drill said that it would do."""
    begun_s: float | None = None
    """When it began to break; None if the load ended before."""
    enough_s: float | None = None
    """When there were enough pods again; None if they never were."""
    notice_s: float | None = None
    """How long after that moment the cluster may go on sending to what was broken, if it does not learn of it; None if
    it learns of it."""
    within_s: float
    """How long it may take until there are enough pods."""
    refused: str = ""
    """Why the last eviction was refused, if it never was allowed."""
    error: str = ""
    """Why it could not be broken, or not be followed."""
    pods: tuple[PodsAt, ...] = ()


class DrillCheck(Part):
    """One thing that must hold."""

    figure: DrillFigure
    status: VerdictStatus
    measured: float | None
    limit: float
    unit: Unit
    reasons: tuple[Reason, ...] = ()


class DrillRecord(Document):
    schema_: Literal["marina.drill/1"] = SCHEMA
    status: VerdictStatus
    reasons: tuple[Reason, ...]
    """Reasons against the drill as a whole."""
    checks: tuple[DrillCheck, ...]
    name: str
    version: str
    namespace: str
    url: str
    objective: Objective
    broken: Broken
    judged: int
    """Requests that were due from a second before the break on, and within the notice if there is one."""
    lost: dict[str, int]
    """How many of these got no good answer, by the name of the error."""
    lost_after: dict[str, int]
    """The same of those after the notice: what was broken may still have been sent requests, and could not answer."""
    rate: float
    arrivals: Spacing
    machine: Machine
    at: str
    measurement: Measurement

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def every_reason(self) -> list[Reason]:
        """The reasons against the drill, then those of each check."""
        return [*self.reasons, *(reason for check in self.checks for reason in check.reasons)]
