"""What the pods of two revisions answered on live traffic, window by window, read from their pages `/latencies`.

A page counts since its server's start. The difference of two readings is what a pod answered in between, exactly. A
round is a window in which both revisions served; a pod that was started again in a window has none in it. No I/O."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marina.config.errors import ClusterError
from marina.config.histogram import Histogram
from marina.config.latency import EDGES_MS
from marina.loadtest.judging import Counts

SCHEMA = "marina.latencies/1"
_NONE = Histogram()


@dataclass(frozen=True)
class PodReading:
    """One page of one pod."""

    package: str
    started: float
    worker_restarts: int
    memory_bytes: int
    answers: Mapping[int, Histogram]
    """By status code."""
    tokens: Mapping[str, Histogram] = field(default_factory=dict)
    """Of a language model: the times to the first token, and from one to the next; empty for other models."""

    @classmethod
    def parse(cls, pod: str, page: bytes) -> "PodReading":
        """Raises ClusterError for a page of something else, such as an older Marina."""
        try:
            data: dict[str, Any] = json.loads(page)
            if data["schema"] != SCHEMA:
                raise ValueError(data["schema"])
            answers = {int(code): Histogram.from_data(counts) for code, counts in data["answers"].items()}
            tokens = {name: Histogram.from_data(counts) for name, counts in data.get("tokens", {}).items()}
            plain = (data["sha256"], data["started"], data["worker_restarts"], data["memory_bytes"])
            return cls(*plain, answers, tokens)
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            text = f"{pod} has no page /latencies that this marina can read"
            raise ClusterError(text, hint="its image was built by another version of Marina") from err


@dataclass(frozen=True)
class PodWindow:
    """What one pod answered in one window."""

    response: Histogram
    """The latencies of good answers."""
    failed: int
    """Answers of 500 and above."""
    refused: int = 0
    """Answers of 400 to 499, which are about the request."""
    tokens: Mapping[str, Histogram] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Without the refused ones, of which a client may send as many as it likes."""
        return self.response.count + self.failed

    def latencies(self, of: str) -> Histogram:
        """The latencies of good answers, or of their tokens."""
        return self.tokens.get(of, _NONE) if of else self.response

    @classmethod
    def between(cls, before: PodReading, after: PodReading) -> "PodWindow":
        response, failed, refused = Histogram(EDGES_MS), 0, 0
        for code, counts in after.answers.items():
            new = counts.since(before.answers[code]) if code in before.answers else counts
            if code < 400:
                response.merge(new)
            elif code >= 500:
                failed += new.count
            else:
                refused += new.count
        tokens = {
            name: counts.since(before.tokens[name]) if name in before.tokens else counts
            for name, counts in after.tokens.items()
        }
        return cls(response, failed, refused, tokens)


@dataclass(frozen=True)
class LiveRound:
    """What each pod of both revisions answered in one window."""

    old: Mapping[str, PodWindow]
    new: Mapping[str, PodWindow]


@dataclass
class LiveRounds:
    """Makes rounds of the readings, and keeps what else they tell of the new pods."""

    rounds: list[LiveRound] = field(default_factory=list)
    restarted: dict[str, str] = field(default_factory=dict)
    """What happened to the new pods that were started again."""
    memory: dict[str, list[float]] = field(default_factory=dict)
    """The memory of each new pod, bytes, reading by reading."""
    _last: dict[str, PodReading] = field(default_factory=dict)

    def add(self, old: Mapping[str, PodReading], new: Mapping[str, PodReading]) -> None:
        """Takes a reading of every pod that serves now."""
        for pod, reading in new.items():
            before = self._last.get(pod)
            if before and before.started != reading.started:
                self.restarted[pod] = f"the server of {pod} ended and was started again"
            elif before and before.worker_restarts < reading.worker_restarts:
                self.restarted[pod] = f"a worker of {pod} ended and was started again"
            self.memory.setdefault(pod, []).append(reading.memory_bytes)
        made = LiveRound(self._windows(old), self._windows(new))
        self._last = {**old, **new}
        if made.old and made.new:
            self.rounds.append(made)

    def _windows(self, readings: Mapping[str, PodReading]) -> dict[str, PodWindow]:
        return {
            pod: PodWindow.between(before, reading)
            for pod, reading in readings.items()
            if (before := self._last.get(pod)) and before.started == reading.started
        }


def merged(windows: Iterable[PodWindow], of: str = "") -> Histogram:
    """The latencies of several windows together."""
    whole = Histogram(() if of else EDGES_MS)
    for window in windows:
        whole.merge(window.latencies(of))
    return whole


def failures(rounds: Sequence[Mapping[str, PodWindow]]) -> Counts:
    """How many requests failed in each round."""
    failed = [sum(pod.failed for pod in pods.values()) for pods in rounds]
    return Counts(failed, [sum(pod.answered for pod in pods.values()) for pods in rounds])


def refusals(rounds: Sequence[Mapping[str, PodWindow]]) -> Counts:
    """How many requests were refused in each round."""
    refused = [sum(pod.refused for pod in pods.values()) for pods in rounds]
    return Counts(refused, [sum(pod.refused + pod.answered for pod in pods.values()) for pods in rounds])
