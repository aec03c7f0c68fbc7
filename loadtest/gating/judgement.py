"""Turns what two revisions answered side by side into PASS, FAIL or INVALID: is the new one certainly worse than the
old one by more than allowed?

While the gate stands, the figures are looked at a few times, and only a FAIL ends it early. Over all looks and figures
together, a FAIL is wrong once in fifty times. At the end, a figure passes if it is certainly within its limit, which is
wrong once in twenty times; one that is neither makes it INVALID. No I/O."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from marina.config.measured import EXIT_CODES, Reason, VerdictStatus
from marina.config.record import Part
from marina.loadtest.comparing.comparison import Figure
from marina.loadtest.comparing.judgement import look_schedule, look_share, ratio_text
from marina.loadtest.gating.figures import (
    SHARES,
    Pods,
    Tails,
    Wrong,
    error_figure,
    percentile_figure,
    refused_figure,
)
from marina.loadtest.gating.need import Need, needed
from marina.loadtest.gating.readings import LiveRound, LiveRounds
from marina.loadtest.judging import growth, worst_status
from marina.loadtest.measuring import MB, percent

# How often a gate may fail wrongly, over all looks, and how many figures may cause that, unless the model is one of
# language: failed and refused requests, and the percentiles.
_WRONG, _JUDGED = 0.02, 2 + len(SHARES)
_SHARES = ("errors", "refused")
FEWEST_ROUNDS = 12
# Growth is seen in twelve blocks of readings, after a third of them; buffers that fill up hold at most this much.
_BLOCKS, _SETTLING, _FEWEST_READINGS, _FILLING_BYTES = 12, 1 / 3, 72, 10_000_000


class LiveLimits(Part):
    """By how much the new revision may be worse."""

    error_rate: float
    """The share of requests that may fail on top of the old revision's."""
    regression: float
    """How much slower it may be, as a share."""
    min_requests: int = 0
    """How many requests each revision must have answered for a PASS."""


class LiveVerdict(Part):
    """What a gate says, and on what grounds."""

    status: VerdictStatus
    reasons: tuple[Reason, ...]
    """Reasons against the new revision, or against the gate, as a whole."""
    figures: tuple[Figure, ...]
    old_requests: int
    new_requests: int
    rounds: int
    """Windows in which both served."""
    need: Need | None = None
    """What was announced."""

    @classmethod
    def without_figures(cls, why: Reason) -> "LiveVerdict":
        """INVALID: nothing could be compared."""
        return cls(status="INVALID", reasons=(why,), figures=(), old_requests=0, new_requests=0, rounds=0)

    def every_reason(self) -> list[Reason]:
        """The reasons as a whole, then those of each figure."""
        return [*self.reasons, *(reason for figure in self.figures for reason in figure.reasons)]

    @property
    def text(self) -> str:
        """The verdict on one line: `PASS, 6,400 and 1,600 requests: p50 1.02 (0.98 to 1.05), …`."""
        figures = [
            f"{each.figure} {percent(each.new or 0.0)} / {percent(each.old or 0.0)}"
            if each.figure in _SHARES
            else ratio_text(each)
            for each in self.figures
            if each.figure == "errors" or (each.interval and (each.figure != "refused" or each.new or each.old))
        ]
        counts = f"{self.old_requests:,} and {self.new_requests:,} requests"
        return f"{self.status}, {counts}" + (f": {', '.join(figures)}" if figures else "")

    @property
    def why(self) -> str:
        """Why it is not a PASS: what made it so."""
        worst = [each for each in self.figures if each.status == self.status]
        return "; ".join(reason.text for reason in (*self.reasons, *(each for one in worst for each in one.reasons)))

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def to_data(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return self.model_dump(mode="json", by_alias=True)


def looks_at(rounds: int) -> tuple[int, ...]:
    """After how many rounds of so many the figures are looked at."""
    return look_schedule(max(FEWEST_ROUNDS, rounds))


def wrong_at(look: int, looks: Sequence[int]) -> Wrong:
    """How often one figure may be wrong at one look."""
    return Wrong(fails=look_share(look, looks) * _WRONG / _JUDGED)


def announced(before: Sequence[Pods], limits: LiveLimits) -> Need | None:
    """What the gate needs, from windows in which only the old revision served; None if they are too few to tell."""
    # As many errors as the last of five looks may use.
    return needed(before, limits.error_rate, limits.regression, Wrong(fails=_WRONG / _JUDGED / 3))


def judge_live(
    live: LiveRounds, limits: LiveLimits, wrong: Wrong, *, last: bool = True, need: Need | None = None
) -> LiveVerdict:
    """The verdict on the rounds so far. Before the `last` look, figures have no intervals."""
    rounds = live.rounds
    against = [Reason(id="restarted", text=text) for _, text in sorted(live.restarted.items())]
    against += [reason for pod, readings in sorted(live.memory.items()) for reason in _grows(pod, readings)]
    statuses: list[VerdictStatus] = ["FAIL" if against else "PASS"]
    figures: tuple[Figure, ...] = ()
    if lacking := _lacking(rounds, limits):
        against.append(lacking)
        statuses.append("INVALID")
    every = Tails.all_of(rounds)
    each = Wrong(wrong.fails * _JUDGED / (2 + len(SHARES) * max(1, len(every))), wrong.passes)
    # One that fails or refuses every request has no latency.
    if every or sum(pod.failed + pod.refused for one in rounds for pod in one.new.values()):
        figures = (
            *(
                percentile_figure(tails, name, limits.regression, each, shown=last)
                for tails in every
                for name in SHARES
            ),
            error_figure(rounds, limits.error_rate, each),
            refused_figure(rounds, limits.error_rate, each),
        )
    return LiveVerdict(
        status=worst_status([*statuses, *(figure.status for figure in figures)]),
        reasons=tuple(against),
        figures=figures,
        old_requests=_answered(rounds, new=False),
        new_requests=_answered(rounds, new=True),
        rounds=len(rounds),
        need=need,
    )


def _lacking(rounds: Sequence[LiveRound], limits: LiveLimits) -> Reason | None:
    """Why the rounds are too few for a PASS; None if they are not."""
    if len(rounds) < FEWEST_ROUNDS:
        text = f"both revisions served in {len(rounds)} windows, needed: {FEWEST_ROUNDS}"
        return Reason(id="too-few-rounds", text=text)
    if not Tails.all_of(rounds):
        return Reason(id="no-traffic", text="one of the revisions answered no request while both served")
    for name, new in (("old", False), ("new", True)):
        if (count := _answered(rounds, new=new)) < limits.min_requests:
            text = f"the {name} revision answered {count:,} requests, needed: {limits.min_requests:,}"
            return Reason(id="too-few-requests", text=text)
    return None


def _grows(pod: str, readings: Sequence[float]) -> list[Reason]:
    """Growth of one pod's memory that does not stop and is more than buffers hold."""
    settled = readings[int(len(readings) * _SETTLING) :]
    if len(readings) < _FEWEST_READINGS:
        return []
    cuts = [round(len(settled) * number / _BLOCKS) for number in range(_BLOCKS + 1)]
    blocks = [median(settled[cuts[at] : cuts[at + 1]]) for at in range(_BLOCKS)]
    grown = blocks[-1] - blocks[0]
    if grown <= _FILLING_BYTES or growth(blocks, "memory") != "FAIL":
        return []
    text = f"the memory of {pod} grew from {blocks[0] / MB:,.0f} to {blocks[-1] / MB:,.0f} MB and did not stop"
    return [Reason(id="memory-grows", text=text)]


def _answered(rounds: Sequence[LiveRound], *, new: bool) -> int:
    return sum(pod.answered for each in rounds for pod in (each.new if new else each.old).values())
