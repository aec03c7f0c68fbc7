"""`compare.json`: the verdict of a comparison, each figure of it, and every round behind it. docs/04-loadtest.md
explains each field."""

from __future__ import annotations

from typing import Final, Literal

from config.record import Document, Part
from loadtest.judging import EXIT_CODES, Costs, Objective, Reason, Status
from loadtest.measuring import Latencies, Machine, Measurement
from loadtest.scheduling import Spacing

SCHEMA: Final = "marina.comparison/1"
FigureName = Literal["p50", "p99", "rate", "cpu", "errors", "answers"]
Unit = Literal["ms", "requests/s", "share"]
SideName = Literal["old", "new"]


class Turn(Part):
    """What one server showed in one round."""

    asked_s: float
    planned: int
    sent: int
    answered: int
    """Good answers, those of the warm-up too: what the CPU time was used for."""
    in_time: int
    """Good answers to the arrivals of the window, in time."""
    failed: int
    cpu_s: float | None
    """CPU time of the server's processes, warm-up included; None for a server that runs elsewhere."""
    response: Latencies


class Round(Part):
    """One turn of each server under the same arrivals."""

    first: SideName
    old: Turn
    new: Turn
    left_out: tuple[Reason, ...] = ()
    """Why it cannot be trusted; empty for one that counts."""


class Figure(Part):
    """One thing that is compared, over all rounds that count."""

    figure: FigureName
    status: Status
    old: float | None
    new: float | None
    ratio: float | None = None
    """New / old: the middle of that of each round, so that one that was disturbed does not decide."""
    interval: tuple[float, float] | None = None
    """Of the ratio; how often an end is exceeded, `looks` of the comparison decides. None for errors and answers."""
    limit: float
    """Of the ratio; of the errors and answers, the share that is allowed."""
    unit: Unit
    reasons: tuple[Reason, ...] = ()


class Side(Part):
    """One of the two servers."""

    name: str
    version: str
    spec: str | None
    url: str
    package: str | None
    """Hash of the MAR."""
    started: bool
    """Whether it was started here; only then it stands still while the other is measured, and its CPU time is known."""


class AnswerCounts(Part):
    """How the two answered the same inputs."""

    inputs: int
    same: int
    differing: tuple[str, ...]
    """The names of some that were answered differently."""


class ComparisonLoad(Part):
    """How the two were loaded."""

    arrivals: Spacing
    rate: float
    warmup_s: float
    turn_s: float
    seed: int
    """Of the first round; each further one adds one."""
    timeout_s: float


class Comparison(Document):
    """The whole record."""

    schema_: Literal["marina.comparison/1"] = SCHEMA
    status: Status
    reasons: tuple[Reason, ...]
    """Against the comparison as a whole."""
    figures: tuple[Figure, ...]
    regression: float
    """The spec's `slo.regression`."""
    objective: Objective
    old: Side
    new: Side
    answers: AnswerCounts | None
    load: ComparisonLoad
    machine: Machine
    at: str
    rounds: tuple[Round, ...]
    looks: int = 1
    """How often the figures might be looked at: the more often, the surer each look must be."""
    costs: Costs | None = None
    """Of the new server; without a `cost` in the spec, none."""

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return EXIT_CODES[self.status]

    @property
    def counted(self) -> list[Round]:
        """The rounds that are judged."""
        return [turns for turns in self.rounds if not turns.left_out]

    def every_reason(self) -> list[Reason]:
        """The reasons of the whole and of each figure, in order."""
        return [*self.reasons, *(reason for figure in self.figures for reason in figure.reasons)]


def turn_from(measurement: Measurement, cpu_s: float | None) -> Turn:
    """A run's share of a comparison."""
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
