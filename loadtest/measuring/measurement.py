"""What one run measured, as one record: each generator process makes its own, merged they are the run's.

Nothing is judged here. Latencies are in ms, everything else that is a time in seconds from the start of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from pydantic import Field

from config.record import Part
from loadtest.measuring.histogram import Histogram
from loadtest.measuring.other_processes import OtherProcesses
from loadtest.measuring.pod_shares import PodShare, merge_pod_shares
from loadtest.measuring.server_readings import ServerReadings
from loadtest.measuring.streams import Latencies, Streams, merge_histograms, merge_streams


class GeneratorHealth(Part):
    """How one generator process was in one second."""

    cpu: float
    """Share of one core that it used."""
    loop_lag_ms: float
    """Longest that its event loop was late."""


class Second(Part):
    """One second of the run, warm-up included."""

    due: int = 0
    """Arrivals that the schedule has in it."""
    answered: int = 0
    """Good answers that came in it."""
    errors: dict[str, int] = Field(default_factory=dict)
    """How many of its arrivals failed, by name."""
    response: Latencies = Histogram()
    """From the intended send to the answer, of its arrivals."""


class Slice(Part):
    """A stretch of the measured window, the same length for all of a run, with the arrivals that were due in it.

    Latencies of neighbours rise and fall together, so how sure a percentile is can only be told from whole stretches.
    """

    due: int = 0
    in_time: int = 0
    """Those of its arrivals that got a good answer in time."""
    failed: int = 0
    response: Latencies = Histogram()
    """As of the whole run, exact at the same limits."""
    streams: Streams | None = None
    """None where answers come whole."""


class PackageIdentity(Part):
    """Which package should be, and which is, behind the URL; hashes of the MAR."""

    wanted: str | None
    found: str | None
    why_unknown: str | None = None


class Measurement(Part):
    """One run: a warm-up, which is counted and otherwise left out, and the measured window."""

    rate: float
    asked_s: float
    """Length of the measured window that was asked for."""
    ran_s: float
    """How much of it was run; shorter when the run was interrupted."""
    planned: int
    """Arrivals that the schedule has in the window."""
    sent: int
    """Those that were sent."""
    dropped: int
    """Those that were due and not sent, because too many were already open."""
    warmup: int
    """Requests of the warm-up."""
    in_time: int
    """Good answers that came before the window's end plus the latency limit: what the server kept up with."""
    errors: dict[str, int]
    """Requests without a good answer, by the name of what happened."""
    response: Latencies
    """From the intended send to the answer; good answers, and timeouts at the time they were given up."""
    service: Latencies
    """From the real send to the answer, of the same requests."""
    lag: Latencies
    """From the intended to the real send, of every request."""
    loop_lag: Latencies
    """How late the generator's event loop was, asked every 10 ms."""
    seconds: tuple[Second, ...]
    generators: tuple[tuple[GeneratorHealth, ...], ...]
    """Per process, per second of the measured window."""
    slices: tuple[Slice, ...] = ()
    """The window in stretches; none for a closed loop, which has no schedule."""
    streams: Streams | None = None
    """Of answers that come token by token; None where they come whole."""
    shares: tuple[PodShare, ...] = ()
    """What each pod answered, where the load chose among several."""
    identity: PackageIdentity | None = None
    starts_ms: tuple[float, ...] = ()
    """Per process, how long after the agreed moment its schedule began."""
    clocks_ms: float = 0.0
    """How far from each other the clocks may be on which that moment was agreed."""
    lost_processes: tuple[str, ...] = ()
    """Generator processes of which nothing came back, and the hosts that they ran on."""
    interrupted: bool = False
    """Whether somebody wanted it to end, by Ctrl-C."""
    others: OtherProcesses | None = None
    """What other processes used of the machine; None where the server is on another one."""
    vitals: ServerReadings | None = None
    """How the server's processes were, where it was looked at."""
    server_end: str | None = None
    """What is known of the server's end, if it ended during the run."""

    @property
    def failed(self) -> int:
        """Requests without a good answer."""
        return sum(self.errors.values())

    @property
    def finished(self) -> int:
        """Requests that ended, well or not."""
        return self.good + self.failed

    @property
    def good(self) -> int:
        """Good answers."""
        return self.response.count - self.errors.get("timeout", 0)

    @property
    def error_rate(self) -> float | None:
        """Share of the finished requests that failed; None when none finished."""
        return self.failed / self.finished if self.finished else None

    @property
    def written_s(self) -> float:
        """The window, or longer where the last answer ended after it."""
        return max(self.asked_s, self.streams.took_s if self.streams else 0.0)

    @property
    def held_rps(self) -> float:
        """Good answers a second, counting only what came in time."""
        return self.in_time / self.asked_s


def merge_measurements(parts: Sequence[Measurement]) -> Measurement:
    """The run that these processes made together."""
    first = parts[0]
    histograms = ("response", "service", "lag", "loop_lag")
    seconds = zip_longest(*(part.seconds for part in parts), fillvalue=Second())
    return first.model_copy(
        update={
            "ran_s": min(part.ran_s for part in parts),
            "sent": sum(part.sent for part in parts),
            "dropped": sum(part.dropped for part in parts),
            "warmup": sum(part.warmup for part in parts),
            "in_time": sum(part.in_time for part in parts),
            "errors": _added(part.errors for part in parts),
            **{name: merge_histograms([getattr(part, name) for part in parts]) for name in histograms},
            "streams": merge_streams(part.streams for part in parts),
            "shares": merge_pod_shares(part.shares for part in parts),
            "seconds": tuple(map(merge_seconds, seconds)),
            "slices": tuple(map(merge_slices, zip(*(part.slices for part in parts), strict=True))),
            "starts_ms": tuple(start for part in parts for start in part.starts_ms),
            "generators": tuple(beats for part in parts for beats in part.generators),
        }
    )


def merge_seconds(parts: Iterable[Second]) -> Second:
    """The same second of several processes."""
    parts = list(parts)
    return Second(
        due=sum(part.due for part in parts),
        answered=sum(part.answered for part in parts),
        errors=_added(part.errors for part in parts),
        response=merge_histograms([part.response for part in parts]),
    )


def merge_slices(parts: Sequence[Slice]) -> Slice:
    """The same slice of several processes, or neighbouring ones, as one."""
    return Slice(
        due=sum(part.due for part in parts),
        in_time=sum(part.in_time for part in parts),
        failed=sum(part.failed for part in parts),
        response=merge_histograms([part.response for part in parts]),
        streams=merge_streams(part.streams for part in parts),
    )


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))
