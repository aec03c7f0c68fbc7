"""Counts the answers to one model's requests from the access log, by status and duration.

The supervisor's own inferences are in the log like any other, and are kept out of the numbers that users and
autoscalers see. Open requests are counted by the door in front of TorchServe (`server/java/door.py`)."""

import re
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from marina.config.histogram import Histogram
from marina.config.latency import EDGES_MS
from marina.config.spec import Spec

_LINE = re.compile(r'^A (\S*) "(\S+) (.*) (\S+)" (\d+) ([\d.]+)((?: \S+)*)$')
# These series exist from the start: Prometheus sees no increase in the first value of a series, so the first failures
# of a new one would be invisible.
_ALWAYS_SHOWN = (200, 500, 503, 507)


@dataclass(frozen=True)
class RequestSpan:
    """A request that is traced, as the door saw it (`server/java/marina/Trace.java`); times after the first are
    microseconds since its head was read."""

    trace: str
    id: str
    parent: str | None
    begun_us: int
    """When its head was read, microseconds of the machine's monotonic clock."""
    received_us: int
    answered_us: int
    """When its answer began."""
    ended_us: int
    body_bytes: int
    request_id: str | None

    @classmethod
    def parse(cls, words: list[str]) -> "RequestSpan":
        """Reads what follows the duration in the access log."""
        trace, span, parent, begun, received, answered, ended, size, request_id = words
        return cls(
            trace=trace,
            id=span,
            parent=_or_none(parent),
            begun_us=int(begun),
            received_us=int(received),
            answered_us=int(answered),
            ended_us=int(ended),
            body_bytes=int(size),
            request_id=_or_none(request_id),
        )


@dataclass(frozen=True)
class AccessLogEntry:
    client: str
    method: str
    path: str
    code: int
    duration_ms: float
    protocol: str = "HTTP/1.1"
    trace: str | None = None
    """The trace that the request belongs to, recorded or not; None if it has none."""
    span: RequestSpan | None = None
    """None if the request is not traced."""


@dataclass(frozen=True)
class Exemplar:
    """A traced request of a bucket, by which a figure leads to a trace."""

    trace: str
    span: str
    seconds: float
    at: float
    """When it was counted, s since 1970."""


@dataclass
class DurationHistogram:
    """Durations of the answers with one status code. `buckets` has one count for each edge and one for everything above
    the last; `exemplars` has the newest traced request of each bucket that has one."""

    buckets: list[int]
    total_s: float = 0.0
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.buckets)


def parse_line(line: str) -> AccessLogEntry | None:
    """Parses a line of the access log and drops the query of its URI; None for any other line on Java's stdout."""
    match = _LINE.match(line)
    if match is None:
        return None
    client, method, uri, protocol, code, duration, rest = match.groups()
    words = rest.split()
    return AccessLogEntry(
        client,
        method,
        uri.partition("?")[0],
        int(code),
        float(duration),
        protocol,
        trace=words[0] if words else None,
        span=RequestSpan.parse(words) if len(words) > 1 else None,
    )


def _or_none(word: str) -> str | None:
    return None if word == "-" else word


class Traffic:
    """Counts of one model. Thread-safe."""

    def __init__(self, spec: Spec) -> None:
        name, version = re.escape(spec.url_name), re.escape(spec.url_version)
        # Every path that TorchServe counts as an arrival for this model, as the door lets clients write it
        # (`server/java/marina/Route.java`) and cuts it. A wrong version is a 404 that it does not count.
        openai = "/v1/(?:chat/)?completions" if spec.model.writes else "/v1/(?:embeddings|audio/transcriptions)"
        versioned = rf"(?:versions/{version}/)?"
        if spec.model.adopted:
            # For an archive the door changes no path.
            openai = versioned = ""
        self._inference = re.compile(
            rf"/(?:predictions|explanations)/{name}(?:/{version}(?:/.*)?|/*(?:\.\.\.)?)"
            rf"|/{name}(?:/{version})?/predict|/models/(?:{name})?/invoke"
            rf"|/v1/models/{name}:(?:predict|explain)(?::.*)?"
            rf"|/v2/models/{name}/(?:{versioned}infer|explain)|{openai}|/invocations"
        )
        self._lock = threading.Lock()
        self._histograms = {code: Histogram(EDGES_MS) for code in _ALWAYS_SHOWN}
        self._own_sent = 0
        self._own_open: set[str] = set()
        self._shown_arrivals = 0
        self._exemplars: defaultdict[int, dict[int, Exemplar]] = defaultdict(dict)
        self.seen = 0
        """How many lines of the access log were read, of any requests."""

    def begin_own_inference(self, client: str) -> None:
        """Records that the supervisor is about to send an inference of its own from this address."""
        with self._lock:
            self._own_open.add(client)
            self._own_sent += 1

    def withdraw_own_inference(self, client: str) -> None:
        """Records that TorchServe saw nothing of this inference: it was neither counted nor logged."""
        with self._lock:
            self._own_open.discard(client)
            self._own_sent -= 1

    def record(self, answers: Iterable[AccessLogEntry]) -> list[AccessLogEntry]:
        """Counts answers, and returns those that were for users."""
        with self._lock:
            return [answer for answer in answers if self._record(answer)]

    def is_inference(self, answer: AccessLogEntry) -> bool:
        """True if TorchServe counted this request as an arrival for the model."""
        return answer.method != "OPTIONS" and self._inference.fullmatch(unquote(answer.path)) is not None

    def arrivals(self, counted: int) -> int:
        """Requests by users, out of all arrivals that TorchServe counted. Never falls, although one of our own
        inferences may be sent but not counted yet."""
        with self._lock:
            self._shown_arrivals = max(self._shown_arrivals, counted - self._own_sent)
            return self._shown_arrivals

    @property
    def own_open(self) -> int:
        """Number of the supervisor's own inferences without an answer."""
        with self._lock:
            return len(self._own_open)

    def histograms(self) -> dict[int, DurationHistogram]:
        """The histograms by status code, in the buckets of `/metrics`; those of `_ALWAYS_SHOWN` are always included."""
        with self._lock:
            return {
                code: DurationHistogram(
                    histogram.buckets(EDGES_MS), histogram.sum_ms / 1000, dict(self._exemplars[code])
                )
                for code, histogram in sorted(self._histograms.items())
            }

    def answers(self) -> dict[str, dict[str, Any]]:
        """The same histograms by status code in buckets of 1 %, as JSON: what a gate compares two revisions by."""
        with self._lock:
            return {str(code): each.to_data() for code, each in sorted(self._histograms.items()) if each.count}

    def _record(self, answer: AccessLogEntry) -> bool:
        self.seen += 1
        if not self.is_inference(answer):
            return False
        if answer.client in self._own_open:
            self._own_open.discard(answer.client)
            return False
        histogram = self._histograms.get(answer.code)
        if histogram is None:
            histogram = self._histograms[answer.code] = Histogram(EDGES_MS)
        histogram.add(answer.duration_ms)
        if span := answer.span:
            exemplar = Exemplar(span.trace, span.id, answer.duration_ms / 1000, time.time())
            self._exemplars[answer.code][bisect_left(EDGES_MS, answer.duration_ms)] = exemplar
        return True
