"""The record of what one run measured: each generator process makes its own, and merged they are the run's.

Nothing is judged here. Latencies are in ms; all other times are in seconds from the start of the run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from marina.config.histogram import Histogram
from marina.config.record import Part
from marina.loadtest.measuring.machine import OtherProcesses
from marina.loadtest.measuring.server_readings import ServerReadings


def _histogram(value: Any) -> Histogram:
    return value if isinstance(value, Histogram) else Histogram.from_data(value)


Latencies = Annotated[Histogram, BeforeValidator(_histogram), PlainSerializer(Histogram.to_data)]


class Streams(Part):
    """The streamed answers of a window, or of a slice of it."""

    first: Latencies
    """From the intended send to the first text (TTFT)."""
    gaps: Latencies
    """From one piece of text to the next, as they arrive (ITL); each gap counts in the slice in which it ends."""
    pace: Latencies
    """For each answer, from its first text to its last token, divided by the tokens after the first (TPOT)."""
    met: int
    """Requests that met every objective; the pace is what `itl_p99_ms` limits here."""
    tokens: int
    """Tokens written, as counted by the server; if it does not count, pieces of text."""
    prompt_tokens: int
    """Tokens of the prompts, if the server counts them."""
    cached_tokens: int
    """Prompt tokens that the server did not compute again."""
    took_s: float = 0.0
    """From the start of the window to the end of the last of these answers."""


class GeneratorHealth(Part):
    """How busy and how late one generator process was in one second."""

    cpu: float
    """The share of one core that it used."""
    loop_lag_ms: float
    """The longest delay of its event loop."""


class Second(Part):
    """One second of the run, which includes the warm-up."""

    due: int = 0
    """Arrivals that the schedule has in this second."""
    answered: int = 0
    """Good answers that came in this second."""
    limited: int = 0
    """How many of its arrivals were refused with 429."""
    errors: dict[str, int] = Field(default_factory=dict)
    """How many of its arrivals failed, by the name of the error."""
    response: Latencies = Histogram()
    """The latencies of its arrivals, from the intended send to the answer."""


class Slice(Part):
    """A part of the measured window, with the arrivals that were due in it; all slices of a run have the same length.

    Neighbouring latencies rise and fall together, so only whole slices show how certain a percentile is."""

    due: int = 0
    in_time: int = 0
    """How many of its arrivals got a good answer in time."""
    failed: int = 0
    limited: int = 0
    """How many were refused with 429; they are neither good nor failed."""
    response: Latencies = Histogram()
    """As `response` of the whole run, exact at the same limits."""
    streams: Streams | None = None
    """None if answers are not streamed."""

    @property
    def admitted(self) -> int:
        """Its arrivals that no rate limit refused."""
        return self.due - self.limited


class PodShare(Part):
    """What one pod answered in the measured window."""

    name: str
    good: int = 0
    failed: int = 0
    response: Latencies = Histogram()
    """The latencies of its requests."""


class PackageIdentity(Part):
    """The package that the server should serve, and the one that it serves, as hashes of their MARs."""

    wanted: str | None
    found: str | None
    why_unknown: str | None = None


class Measurement(Part):
    """One run: a warm-up, of which only the number of requests is kept, and the measured window."""

    rate: float
    asked_s: float
    """The intended length of the measured window."""
    ran_s: float
    """How much of the window was run; less if the run was interrupted."""
    planned: int
    """Arrivals that the schedule has in the window."""
    sent: int
    dropped: int
    """Requests that were due but not sent, because too many were open."""
    warmup: int
    """Requests in the warm-up."""
    in_time: int
    """Good answers no later than the window's end plus the latency limit: what the server kept up with."""
    errors: dict[str, int]
    """Requests without a good answer, by the name of the error; without those that a rate limit refused."""
    limited: int = 0
    """Requests that a rate limit refused with 429."""
    response: Latencies
    """From the intended send to the answer, of good answers, and of timeouts until they were given up."""
    service: Latencies
    """From the real send to the answer, of the same requests."""
    lag: Latencies
    """From the intended send to the real send, of every request."""
    loop_lag: Latencies
    """How late the generator's event loop was, measured every 10 ms."""
    seconds: tuple[Second, ...]
    generators: tuple[tuple[GeneratorHealth, ...], ...]
    """For each process, each second of the measured window."""
    slices: tuple[Slice, ...] = ()
    """The window in slices; empty for a closed loop, which has no schedule."""
    streams: Streams | None = None
    """Measurements of streamed answers; None if answers are not streamed."""
    shares: tuple[PodShare, ...] = ()
    """What each pod answered, if the load was sent to several."""
    identity: PackageIdentity | None = None
    starts_ms: tuple[float, ...] = ()
    """For each process, how long after the agreed moment its schedule started."""
    clocks_ms: float = 0.0
    """How far apart the clocks may be on which that moment was agreed."""
    lost_processes: tuple[str, ...] = ()
    """Generator processes that sent no result, with their hosts."""
    interrupted: bool = False
    """Whether Ctrl-C ended the run."""
    others: OtherProcesses | None = None
    """What other processes used of the machine; None if the server runs on another machine."""
    vitals: ServerReadings | None = None
    """Readings of the server's processes during a soak; None otherwise."""
    server_end: str | None = None
    """What is known about the server's death, if it died during the run."""

    @property
    def failed(self) -> int:
        """The number of requests without a good answer."""
        return sum(self.errors.values())

    @property
    def finished(self) -> int:
        """The number of requests that ended, well or not; without those that a rate limit refused."""
        return self.good + self.failed

    @property
    def good(self) -> int:
        return self.response.count - self.errors.get("timeout", 0)

    @property
    def error_rate(self) -> float | None:
        """The share of the finished requests that failed; None if none finished."""
        return self.failed / self.finished if self.finished else None

    @property
    def written_s(self) -> float:
        """Seconds until the end of the window, or until the last streamed answer ended if that was later."""
        return max(self.window_s, self.streams.took_s if self.streams else 0.0)

    @property
    def window_s(self) -> float:
        """The length of the window, or of the part of it that was run if the run was cut short."""
        return self.ran_s or self.asked_s

    @property
    def due(self) -> int:
        """Arrivals that became due before the run ended."""
        return sum(piece.due for piece in self.slices) or self.planned

    @property
    def admitted(self) -> int:
        """The arrivals that no rate limit refused."""
        return self.due - self.limited

    @property
    def held_rps(self) -> float:
        """Good answers in time, per second."""
        return self.in_time / self.window_s


def merge_measurements(parts: Sequence[Measurement]) -> Measurement:
    """The measurement of a run from those of its processes."""
    counts = ("sent", "dropped", "warmup", "in_time", "limited", "errors")
    histograms = ("response", "service", "lag", "loop_lag")
    seconds = zip_longest(*(part.seconds for part in parts), fillvalue=Second())
    return parts[0].model_copy(
        update={
            **add_up(parts, *counts, *histograms, "starts_ms", "generators"),
            "ran_s": min(part.ran_s for part in parts),
            "streams": merge_streams(part.streams for part in parts),
            "shares": merge_pod_shares(part.shares for part in parts),
            "seconds": tuple(map(merge_seconds, seconds)),
            "slices": tuple(map(merge_slices, zip(*(part.slices for part in parts), strict=True))),
        }
    )


def merge_seconds(parts: Sequence[Second]) -> Second:
    """One second of a run from those of its processes."""
    return Second(**add_up(parts, "due", "answered", "limited", "errors", "response"))


def merge_slices(parts: Sequence[Slice]) -> Slice:
    """One slice from the same slices of several processes, or from neighbouring slices of a run."""
    streams = merge_streams(part.streams for part in parts)
    return Slice(**add_up(parts, "due", "in_time", "failed", "limited", "response"), streams=streams)


def merge_pod_shares(runs: Iterable[tuple[PodShare, ...]]) -> tuple[PodShare, ...]:
    """The shares of each pod, added up over several processes or runs."""
    by_name: dict[str, list[PodShare]] = {}
    for shares in runs:
        for share in shares:
            by_name.setdefault(share.name, []).append(share)
    return tuple(PodShare(name=name, **add_up(parts, "good", "failed", "response")) for name, parts in by_name.items())


def pool(runs: Sequence[Measurement]) -> Measurement:
    """The runs as one measurement, as if they were a single run one after another."""
    if len(runs) == 1:
        return runs[0]
    counts = ("asked_s", "ran_s", "planned", "sent", "dropped", "warmup", "in_time", "limited", "errors")
    histograms = ("response", "service", "lag", "loop_lag")
    return runs[0].model_copy(
        update={
            **add_up(runs, *counts, *histograms, "seconds", "generators"),
            "streams": _pooled_streams(runs),
            "shares": merge_pod_shares(run.shares for run in runs),
            "slices": _even_slices(runs),
        }
    )


def _pooled_streams(runs: Sequence[Measurement]) -> Streams | None:
    streams = merge_streams(run.streams for run in runs)
    took_s = sum(run.written_s for run in runs if run.streams)
    return streams and streams.model_copy(update={"took_s": took_s})


def _even_slices(runs: Sequence[Measurement]) -> tuple[Slice, ...]:
    """The slices of all runs; those of shorter runs are joined until all are about as long as the longest."""
    if not all(run.slices for run in runs):
        return ()
    length_s = max(run.asked_s / len(run.slices) for run in runs)
    pieces: list[Slice] = []
    for run in runs:
        joined = max(1, round(length_s * len(run.slices) / run.asked_s))
        pieces += [merge_slices(run.slices[at : at + joined]) for at in range(0, len(run.slices), joined)]
    return tuple(pieces)


def merge_streams(parts: Iterable[Streams | None]) -> Streams | None:
    """Merges the streams of several processes, slices or runs; None if no answer was streamed."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    sums = add_up(present, "first", "gaps", "pace", "met", "tokens", "prompt_tokens", "cached_tokens")
    return Streams(**sums, took_s=max(part.took_s for part in present))


def add_up(parts: Sequence[Part], *names: str) -> dict[str, Any]:
    """The named fields, each added up over all parts: numbers, counts by name, histograms or tuples."""
    return {name: _sum([getattr(part, name) for part in parts]) for name in names}


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Histogram):
        return merge_histograms(values)
    if isinstance(values[0], dict):
        return dict(sorted(sum(map(Counter, values), Counter()).items()))
    if isinstance(values[0], tuple):
        return tuple(chain.from_iterable(values))
    return sum(values)


def merge_histograms(histograms: Sequence[Histogram]) -> Histogram:
    whole = Histogram(histograms[0].limits)
    for histogram in histograms:
        whole.merge(histogram)
    return whole
