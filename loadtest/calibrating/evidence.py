"""`evidence.json`: how much a package holds on a machine. `k8s` derives targets, probes and limits from it."""

from __future__ import annotations

from typing import Final, Literal

from config.record import Document, Part
from loadtest.calibrating.knee import Limit
from loadtest.judging import Costs, LatencySummary, Objective, Reason, Status
from loadtest.measuring import Machine, PeakMemory, figure
from loadtest.running import ServerLimits
from loadtest.scheduling import Arrivals

SCHEMA: Final = "marina.evidence/1"


class ServingSettings(Part):
    """The settings of `serving` that decide how much is held."""

    workers: int
    threads: int
    max_batch: int
    max_batch_delay_ms: int

    def __str__(self) -> str:
        batches = f"batches of up to {self.max_batch} after {self.max_batch_delay_ms} ms"
        return f"workers × threads {self.workers} × {self.threads}, {batches}"


class KneeRecord(Part):
    """The highest rate that meets the objective, requests/s."""

    rps: float
    """Where long runs at it and beside it say that the limit is crossed."""
    interval: tuple[float, float] | None = None
    """Holds the true one in 19 of 20 calibrations; None where the generator is the limit."""
    found: tuple[float, ...]
    """What each search found."""
    spread: float
    """Their range, as a share of the median."""
    limit: Limit
    """`generator`: no higher rate could be measured from here, so the server may hold more."""


MAY_HOLD_MORE = "the generator reached its limit, not the server: send the load from another machine to find more"


def knee_text(knee: KneeRecord) -> str:
    """`at least 4,038 requests/s`: the rate, and whether it is the server's limit."""
    return ("at least " if knee.limit == "generator" else "") + f"{figure(knee.rps)} requests/s"


def knee_interval_text(knee: KneeRecord) -> str:
    """`61.3 and 65 requests/s`; empty without an interval."""
    if knee.interval is None:
        return ""
    return " and ".join(map(figure, knee.interval)) + " requests/s"


class LatencyAtRate(Part):
    """Latency at one rate."""

    rate: float
    status: Status
    response: LatencySummary


class TrialRecord(Part):
    """One run of the search."""

    rate: float
    status: Status
    p50_ms: float | None
    p99_ms: float | None
    error_rate: float | None
    reasons: tuple[Reason, ...]


class Evidence(Document):
    """The whole record. With status INVALID nothing may be derived from it."""

    schema_: Literal["marina.evidence/1"] = SCHEMA
    status: Literal["PASS", "INVALID"]
    reasons: tuple[Reason, ...]
    name: str
    version: str
    package: str | None
    """Hash of the MAR that was measured."""
    objective: Objective
    settings: ServingSettings
    knee: KneeRecord | None
    at_knee: LatencyAtRate | None
    at_70_percent: LatencyAtRate | None
    cold_start_s: float | None
    """From the start of the command to ready; None for a server that was there already."""
    memory: PeakMemory | None
    """Peak of the whole calibration; None for a server that was there already."""
    machine: Machine
    """That of the generator."""
    server: ServerLimits | None = None
    """What the server could use, and on which machine; None for one that was there already."""
    arrivals: Arrivals
    at: str
    trials: tuple[TrialRecord, ...]
    costs: Costs | None = None
    """At the knee (`at_seen`) and at the target rate; None without a `cost` in the spec."""

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        if self.status == "INVALID":
            return 3
        return 1 if self.costs and self.costs.over else 0
