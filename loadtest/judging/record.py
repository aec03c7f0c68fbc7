"""The record `verdict.json`: the verdict, every run behind it, and what was tested where.

docs/how-to/load-test.md explains each field."""

from functools import cached_property

from marina.config.measured import Costs, LatencySummary, Machine, Objective, Verdict, VerdictHead
from marina.config.record import Part
from marina.loadtest.measuring import Histogram, Measurement, pool
from marina.loadtest.scheduling import Spacing

SUMMARY_SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)


class LoadRecord(Part):
    arrivals: Spacing
    rate: float
    warmup_s: float
    duration_s: float
    replay: str | None = None
    """The file of the trace that was replayed."""
    speed: float = 1.0
    """How many times as fast as recorded."""
    repeat: int
    processes: int
    seed: int
    timeout_s: float
    samples: int = 1
    """The number of different bodies."""
    samples_sha256: str | None = None
    """The hash of them all, with their types and weights; None in a record of before."""
    sample_bytes: int
    """The size of the largest body."""
    sample_content_type: str


class StreamFigures(Part):
    ttft: LatencySummary
    itl: LatencySummary
    tpot: LatencySummary
    goodput: float
    """The share of the requests that met every objective."""
    goodput_rps: float
    """Requests per second that met every objective."""
    tokens_per_s: float
    """Counted until the last answer ended, because tokens written after the window took that time."""
    cached_share: float
    """The share of prompt tokens that the server did not compute again; clients that repeat less see worse results."""
    heard_late_ms: float | None
    """How late the generator read what arrived, p99."""


class RunRecord(Part):
    """One run: its verdict, a summary, and everything measured."""

    verdict: Verdict
    response: LatencySummary
    service: LatencySummary
    pieces: StreamFigures | None = None
    """None if answers were not streamed."""
    measurement: Measurement


class LoadTestOutcome(VerdictHead):
    """The whole record of a load test."""

    objective: Objective
    load: LoadRecord
    machine: Machine
    runs: tuple[RunRecord, ...]
    costs: Costs | None = None
    """None if the spec has no `cost`."""

    @cached_property
    def pooled(self) -> Measurement:
        """All runs as one measurement."""
        return pool([run.measurement for run in self.runs])

    @property
    def together(self) -> RunRecord:
        """The record of all runs as if they were one."""
        return run_record(self.pooled, self.verdict)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the load test early."""
        return any(run.measurement.interrupted for run in self.runs)


def run_record(measurement: Measurement, verdict: Verdict) -> RunRecord:
    return RunRecord(
        verdict=verdict,
        response=latency_summary(measurement.response),
        service=latency_summary(measurement.service),
        pieces=stream_figures(measurement),
        measurement=measurement,
    )


def stream_figures(measurement: Measurement) -> StreamFigures | None:
    """A summary of the streamed answers; None if answers were not streamed."""
    streams = measurement.streams
    if streams is None:
        return None
    return StreamFigures(
        ttft=latency_summary(streams.first),
        itl=latency_summary(streams.gaps),
        tpot=latency_summary(streams.pace),
        goodput=streams.met / max(1, measurement.admitted),
        goodput_rps=streams.met / measurement.window_s,
        tokens_per_s=streams.tokens / measurement.written_s,
        cached_share=streams.cached_tokens / max(1, streams.prompt_tokens),
        heard_late_ms=measurement.loop_lag.percentile(0.99),
    )


def latency_summary(histogram: Histogram) -> LatencySummary:
    """A few percentiles of the histogram."""
    p50, p90, p95, p99, p999 = (histogram.percentile(share) for share in SUMMARY_SHARES)
    highest = histogram.max_ms if histogram.count else None
    return LatencySummary(p50=p50, p90=p90, p95=p95, p99=p99, p999=p999, mean=histogram.mean_ms, max=highest)
