"""The record `compare.json`: the verdict of a comparison, each figure, and every round behind it.

docs/how-to/load-test.md explains each field."""

from collections.abc import Sequence
from typing import Final, Literal

from marina.config.measured import EXIT_CODES, Costs, Machine, Objective, Reason, VerdictStatus
from marina.config.record import Document, Part
from marina.loadtest.measuring import Histogram, Latencies, Measurement, merge_histograms
from marina.loadtest.scheduling import Spacing

SCHEMA: Final = "marina.comparison/1"
FigureName = Literal[
    "p50", "p99", "ttft p50", "ttft p99", "itl p50", "itl p99", "rate", "cpu", "errors", "refused", "answers"
]
Unit = Literal["ms", "requests/s", "share"]
SideName = Literal["old", "new"]


class Turn(Part):
    """What was measured of one server in one round."""

    asked_s: float
    planned: int
    sent: int
    answered: int
    """Good answers, including those of the warm-up, since the CPU time includes it, too."""
    in_time: int
    """Good answers in time to the arrivals of the window."""
    failed: int
    cpu_s: float | None
    """CPU time of the server's processes, including the warm-up; None for a server that was not started here."""
    response: Latencies


class Round(Part):
    """One turn of each server under the same arrivals."""

    first: SideName
    old: Turn
    new: Turn
    left_out: tuple[Reason, ...] = ()
    """Why the round cannot be trusted; empty for one that counts."""

    @property
    def both_answered(self) -> bool:
        """Whether each server answered at least one request."""
        return self.old.response.count > 0 and self.new.response.count > 0


class Figure(Part):
    """One figure that is compared, over all rounds that count."""

    figure: FigureName
    status: VerdictStatus
    old: float | None
    new: float | None
    ratio: float | None = None
    """New / old: the Hodges-Lehmann median of the rounds' own ratios, so that one disturbed round does not decide."""
    interval: tuple[float, float | None] | None = None
    """The interval of the ratio, for errors that of new - old. How often its ends are exceeded depends on `looks`. None
    for answers, and as the upper end of what so few rounds do not limit."""
    limit: float
    """The limit of the ratio; for errors and answers, the allowed share."""
    unit: Unit
    reasons: tuple[Reason, ...] = ()


class Side(Part):
    """One of the two servers."""

    name: str
    version: str
    spec: str | None
    url: str
    package: str | None
    """The hash of the MAR."""
    started: bool
    """Whether it was started here: only then is it paused while the other is measured, and its CPU time known."""


class AnswerCounts(Part):
    """How many inputs both servers answered in the same way."""

    inputs: int
    same: int
    differing: tuple[str, ...]
    """The names of some inputs that were answered differently."""


class ComparisonLoad(Part):
    """The load that both servers got."""

    arrivals: Spacing
    rate: float
    warmup_s: float
    turn_s: float
    seed: int
    """The seed of the first round; each further round adds one."""
    timeout_s: float


class Comparison(Document):
    schema_: Literal["marina.comparison/1"] = SCHEMA
    status: VerdictStatus
    reasons: tuple[Reason, ...]
    """Reasons against the comparison as a whole."""
    figures: tuple[Figure, ...]
    regression: float
    """The spec's `slo.regression`."""
    objective: Objective
    old: Side
    new: Side
    answers: AnswerCounts
    load: ComparisonLoad
    machine: Machine
    at: str
    rounds: tuple[Round, ...]
    looks: int = 1
    """How often the figures could be looked at: the more often, the stricter each look must be."""
    costs: Costs | None = None
    """What the new server costs; None if the spec has no `cost`."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def counted(self) -> list[Round]:
        """The rounds that are judged."""
        return [turns for turns in self.rounds if not turns.left_out]

    def every_reason(self) -> list[Reason]:
        """The reasons against the comparison, then those of each figure."""
        return [*self.reasons, *(reason for figure in self.figures for reason in figure.reasons)]


def responses(rounds: Sequence[Round]) -> tuple[Histogram, Histogram]:
    """The latencies of the old and of the new server, over all rounds."""
    old, new = [turns.old.response for turns in rounds], [turns.new.response for turns in rounds]
    return merge_histograms(old), merge_histograms(new)


def turn_from(measurement: Measurement, cpu_s: float | None) -> Turn:
    """The turn that a measurement makes in a comparison."""
    return Turn(
        asked_s=measurement.asked_s,
        planned=measurement.planned,
        sent=measurement.sent,
        answered=measurement.good + measurement.warmup,
        in_time=measurement.in_time,
        failed=measurement.failed,
        cpu_s=cpu_s,
        response=measurement.response,
    )
