"""`evidence.json`: how much load a package holds on a machine. `k8s` derives targets, probes and limits from it."""

from typing import Final, Literal

from marina.config.record import Document, Part
from marina.loadtest.calibrating.knee import Knee
from marina.loadtest.judging import Costs, LatencySummary, Objective, Reason, VerdictStatus
from marina.loadtest.measuring import Machine, PeakMemory, figure
from marina.loadtest.running import ServerLimits
from marina.loadtest.scheduling import Arrivals

SCHEMA: Final = "marina.evidence/1"
MAY_HOLD_MORE = "the generator reached its limit, not the server: send the load from another machine to find more"


class ServingSettings(Part):
    """The settings of `serving` that decide how much load a server holds."""

    workers: int
    threads: int
    max_batch: int
    max_batch_delay_ms: int

    def __str__(self) -> str:
        batches = f"batches of up to {self.max_batch} after {self.max_batch_delay_ms} ms"
        return f"workers × threads {self.workers} × {self.threads}, {batches}"


def knee_text(knee: Knee) -> str:
    """The knee as text: `at least 4,038 requests/s` if the generator was the limit."""
    return ("at least " if knee.limit == "generator" else "") + f"{figure(knee.rps)} requests/s"


def knee_interval_text(knee: Knee) -> str:
    """The knee's interval as text, `61.3 and 65 requests/s`; empty if there is none."""
    return " and ".join(map(figure, knee.interval)) + " requests/s" if knee.interval else ""


class LatencyAtRate(Part):
    rate: float
    status: VerdictStatus
    response: LatencySummary


class TrialRecord(Part):
    """One run of the search."""

    rate: float
    status: VerdictStatus
    p50_ms: float | None
    p99_ms: float | None
    error_rate: float | None
    reasons: tuple[Reason, ...]


class Evidence(Document):
    """The whole record of a calibration. If its status is INVALID, nothing may be derived from it."""

    schema_: Literal["marina.evidence/1"] = SCHEMA
    status: Literal["PASS", "INVALID"]
    reasons: tuple[Reason, ...]
    name: str
    version: str
    package: str | None
    """The hash of the MAR that was measured."""
    objective: Objective
    settings: ServingSettings
    knee: Knee | None
    at_70_percent: LatencyAtRate | None
    """The confirming run."""
    cold_start_s: float | None
    """From the start of the command to ready; None for a server that was already running."""
    memory: PeakMemory | None
    """The peak during the whole calibration; None for a server that was already running."""
    machine: Machine
    """The generator's machine."""
    server: ServerLimits | None = None
    """What the server could use, and on which machine; None for a server that was already running."""
    arrivals: Arrivals
    at: str
    trials: tuple[TrialRecord, ...]
    costs: Costs | None = None
    """What 10,000 requests cost at the knee (`at_seen`) and at the target rate; None if the spec has no `cost`."""

    @property
    def exit_code(self) -> int:
        if self.status == "INVALID":
            return 3
        return 1 if self.costs and self.costs.over else 0
