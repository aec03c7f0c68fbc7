"""`verdict.json`: the verdict, every run behind it, and what was tested where. docs/04-loadtest.md explains
each field."""

from __future__ import annotations

from typing import Final, Literal

from config.record import Document, Part
from loadtest.judging.cost import Costs
from loadtest.judging.verdict import Objective, Status, Verdict
from loadtest.measuring import Histogram, Machine, Measurement
from loadtest.scheduling import Spacing

SCHEMA: Final = "marina.verdict/1"
SUMMARY_SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


class LoadRecord(Part):
    """What was sent."""

    arrivals: Spacing
    rate: float
    warmup_s: float
    duration_s: float
    replay: str | None = None
    """The file of the trace that was replayed."""
    speed: float = 1.0
    """How many times as fast."""
    repeat: int
    processes: int
    seed: int
    timeout_s: float
    samples: int = 1
    """How many different bodies."""
    sample_bytes: int
    """Of the largest of them."""
    sample_content_type: str


class LoadedServer(Part):
    """What it was sent to."""

    name: str
    version: str
    spec: str
    url: str
    started: bool
    """Whether the server was started for the test, on the machine of the generator."""
    package: str | None
    """Hash of the MAR that the spec's package record names."""
    served: str | None
    """Hash of the MAR that the server named."""
    cold_start_s: float | None


class LatencySummary(Part):
    """A histogram in a few figures, ms; the whole of it is in the measurement."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    mean: float | None
    max: float | None


class StreamFigures(Part):
    """Answers that came token by token, in a few figures."""

    ttft: LatencySummary
    itl: LatencySummary
    tpot: LatencySummary
    goodput: float
    """Share of the requests that met every objective."""
    goodput_rps: float
    """Those a second."""
    tokens_per_s: float
    """Until the last answer ended: what a server wrote after the window, it wrote later."""
    cached_share: float
    """Of the prompts' tokens, those that the server did not compute again: if your clients repeat less, they see a
    worse result."""
    heard_late_ms: float | None
    """How late the generator heard of what came, p99."""


class RunRecord(Part):
    """One run: its verdict, its figures, and everything measured."""

    verdict: Verdict
    response: LatencySummary
    service: LatencySummary
    pieces: StreamFigures | None = None
    """None where answers came whole."""
    measurement: Measurement


class RampStep(Part):
    """A part of a ramp."""

    begin_rps: float
    end_rps: float
    requests: int
    p99_ms: float | None
    error_rate: float
    status: Status
    """FAIL when its p99 or its errors surely miss the limit, PASS when its p99 surely meets it and no more failed."""


class RampResult(Part):
    """What a rising rate showed."""

    begin_rps: float
    end_rps: float
    held_rps: float | None
    """It surely held at this rate; None where that is sure of no rate."""
    broke_rps: tuple[float, float] | None
    """From there, or 0, to a rate at which it surely did not hold; None without such a rate."""
    about_rps: float | None
    """The rate that parts the steps that met the objective from those that did not best; None where all met it."""
    recovered: bool
    """Whether it surely held again at a higher rate."""
    steps: tuple[RampStep, ...]


class LoadTestOutcome(Document):
    """The whole record."""

    schema_: Literal["marina.verdict/1"] = SCHEMA
    verdict: Verdict
    objective: Objective
    tested: LoadedServer
    load: LoadRecord
    machine: Machine
    at: str
    """When the first run began, UTC."""
    runs: tuple[RunRecord, ...]
    costs: Costs | None = None
    """Without a `cost` in the spec, none."""
    ramp: RampResult | None = None
    """Of a rate that rose."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it before it was done."""
        return any(run.measurement.interrupted for run in self.runs)


def run_record(measurement: Measurement, verdict: Verdict) -> RunRecord:
    """A run's entry in the record."""
    return RunRecord(
        verdict=verdict,
        response=latency_summary(measurement.response),
        service=latency_summary(measurement.service),
        pieces=stream_figures(measurement),
        measurement=measurement,
    )


def stream_figures(measurement: Measurement) -> StreamFigures | None:
    """What came token by token, in a few figures."""
    streams = measurement.streams
    if streams is None:
        return None
    return StreamFigures(
        ttft=latency_summary(streams.first),
        itl=latency_summary(streams.gaps),
        tpot=latency_summary(streams.pace),
        goodput=streams.met / max(1, measurement.planned),
        goodput_rps=streams.met / measurement.asked_s,
        tokens_per_s=streams.tokens / measurement.written_s,
        cached_share=streams.cached_tokens / max(1, streams.prompt_tokens),
        heard_late_ms=measurement.loop_lag.percentile(0.99),
    )


def latency_summary(histogram: Histogram) -> LatencySummary:
    """The few figures."""
    p50, p90, p95, p99, p999 = (histogram.percentile(share) for share in SUMMARY_SHARES)
    highest = histogram.max_ms if histogram.count else None
    return LatencySummary(p50=p50, p90=p90, p95=p95, p99=p99, p999=p999, mean=histogram.mean_ms, max=highest)
