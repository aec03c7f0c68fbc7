"""What was measured of a package, as other stages read it: `evidence.json`, and the head of `verdict.json`.

`loadtest` writes both; `k8s` derives targets, probes and limits from the evidence, and shows the verdict."""

import math
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, computed_field

from marina.config.record import Document, Part
from marina.config.units import figure

EVIDENCE_SCHEMA: Final = "marina.evidence/1"
VERDICT_SCHEMA: Final = "marina.verdict/1"
VerdictStatus = Literal["PASS", "FAIL", "INVALID"]
Arrivals = Literal["constant", "poisson"]
EXIT_CODES: dict[VerdictStatus, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3}
# Requests may be sent late by this share of the latency limit; an idle event loop needs up to 2 ms.
LATE_SHARE, LATE_FLOOR_MS = 0.2, 2.0
# A piece of text is read as late as the event loop runs, which must be little compared with the limit.
COARSE_SHARE = 0.1
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Measured(Part):
    """The base of these parts: unknown keys are ignored, because a file may be from another version of Marina."""

    model_config = ConfigDict(extra="ignore")


class Objective(Measured):
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


class Reason(Measured):
    """The reason why a status is not PASS: a stable id and a sentence."""

    id: str
    text: str


class Check(Measured):
    """One part of the objective, judged over all runs together."""

    objective: Literal["p99", "errors", "throughput", "ttft", "itl", "goodput", "memory", "files", "drift"]
    status: VerdictStatus
    limit: float
    measured: float | None
    interval: tuple[float, float] | None = None
    """Each end is exceeded by one measurement in twenty; None for a closed loop, which cannot have one."""
    unit: Literal["ms", "share", "requests/s"]
    reasons: tuple[Reason, ...] = ()


class Verdict(Measured):
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


class LoadedServer(Measured):
    name: str
    version: str
    spec: str
    url: str
    started: bool
    """Whether the server was started for the test, on the generator's machine."""
    package: str | None
    """The hash of the MAR in the spec's package record."""
    served: str | None
    """The hash of the MAR that the server says it serves."""
    cold_start_s: float | None


class LatencySummary(Measured):
    """A few percentiles of a histogram, ms; the measurement has the whole histogram."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    mean: float | None
    max: float | None


class Machine(Measured):
    """The processor, how much of it may be used, and the memory."""

    processor: str
    cores: int
    """The number of cores that this process may run on."""
    cpu_limit: float | None
    """The number of cores that the cgroup allows; None without a limit."""
    memory_bytes: int | None
    memory_limit_bytes: int | None
    """The memory that the cgroup allows; None without a limit."""
    system: str
    python: str
    isa: tuple[str, ...] = ()
    """The processor's vector and matrix instruction sets."""

    def __str__(self) -> str:
        limit = f", cgroup limit {self.cpu_limit:g}" if self.cpu_limit else ""
        memory = min(filter(None, [self.memory_bytes, self.memory_limit_bytes]), default=None)
        size = f", {memory / 2**30:.1f} GiB" if memory else ""
        return f"{self.processor}, {self.cores} cores{limit}{size}"


class ServerLimits(Measured):
    """The resources that a server could use, and what limited it to them."""

    by: Literal["affinity", "nothing", "pod"]
    """`nothing` if the machine has no more cores than the pod may use; `pod` if the server was a pod of the cluster."""
    cores: float
    memory_bytes: int | None
    """None without a limit. Only a pod's is enforced; that of others is compared."""
    machine: Machine
    """The server's machine."""

    def __str__(self) -> str:
        by = {"pod": "a pod's own limits", "affinity": "by CPU affinity", "nothing": "all that this machine has"}
        return f"{self.cores:g} core{'' if self.cores == 1 else 's'}, {by[self.by]}"


class PeakMemory(Measured):
    """The peak resident memory of a server's processes, bytes."""

    java_bytes: Annotated[int, Field(ge=0)]
    workers_bytes: tuple[int, ...]
    supervisor_bytes: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total_bytes(self) -> int:
        """The sum; pages that workers share are counted for each of them."""
        return self.java_bytes + sum(self.workers_bytes) + self.supervisor_bytes


class Knee(Measured):
    """The highest rate that meets the objective."""

    rps: Positive
    limit: Literal["objective", "generator"] = "objective"
    """What ended the search: the objective broke, or no higher rate could be measured: the server may hold more."""
    interval: tuple[float, float] | None = None
    """Holds the true knee in 9 of 10 calibrations; None if the generator is the limit."""

    @property
    def width(self) -> float:
        """Half the width of the interval, as a share of the knee."""
        low, high = self.interval or (self.rps, self.rps)
        return (high - low) / 2 / self.rps


class ServingSettings(Measured):
    """The settings of `serving` that decide how much load a server holds."""

    workers: int
    threads: int
    max_batch: int
    max_batch_delay_ms: int

    def __str__(self) -> str:
        batches = f"batches of up to {self.max_batch} after {self.max_batch_delay_ms} ms"
        return f"workers × threads {self.workers} × {self.threads}, {batches}"


class LatencyAtRate(Measured):
    rate: Positive
    status: VerdictStatus
    response: LatencySummary


class TrialRecord(Measured):
    """One run of the search."""

    rate: float
    status: VerdictStatus
    p50_ms: float | None
    p99_ms: float | None
    error_rate: float | None
    reasons: tuple[Reason, ...]


class Costs(Measured):
    """What 10,000 requests cost, including the pod's idle time."""

    currency: str
    pod_hour: float
    target_rps: float | None
    """The rate that a pod is meant to run at; None if neither the spec nor a calibration says it."""
    seen_rps: float
    at_target: float | None
    at_seen: float | None
    """The cost at the measured rate; None if nothing was answered."""
    budget: float | None

    @property
    def judged(self) -> float | None:
        """The cost that is compared with the budget."""
        return self.at_target or self.at_seen

    @property
    def over(self) -> Reason | None:
        """The reason for a FAIL if 10,000 requests cost more than the budget; None otherwise."""
        if self.budget is None or self.judged is None or self.judged <= self.budget:
            return None
        rate = self.target_rps or self.seen_rps
        text = f"10,000 requests cost {self.judged:.3g} {self.currency} at {figure(rate)} requests/s per pod"
        return Reason(id="over-budget", text=f"{text}, allowed: {self.budget:.3g}")


class VerdictHead(Document):
    """The head of `verdict.json`: the verdict, and what was tested when."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["marina.verdict/1"] = VERDICT_SCHEMA
    verdict: Verdict
    tested: LoadedServer
    at: str
    """When the first run started, UTC."""


class Evidence(Document):
    """The whole record of a calibration. If its status is INVALID, nothing may be derived from it."""

    model_config = ConfigDict(extra="ignore")

    schema_: Literal["marina.evidence/1"] = EVIDENCE_SCHEMA
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
    cold_start_s: Positive | None
    """From the start of the command to ready; None for a server that was already running."""
    cold_start_phases: dict[str, float] = Field(default_factory=dict)
    """How long each phase of that took, s, by name; empty for a server that was already running, or does not say."""
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
    def usable_cores(self) -> float:
        """Cores that the server could use. For a server that was already running, those of the generator's machine."""
        return self.server.cores if self.server else min(self.machine.cores, self.machine.cpu_limit or math.inf)

    @property
    def exit_code(self) -> int:
        if self.status == "INVALID":
            return 3
        return 1 if self.costs and self.costs.over else 0
