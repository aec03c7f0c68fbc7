"""Turns rounds into PASS, FAIL or INVALID: is the new server certainly worse than the old one by more than allowed?

A ratio is judged by its interval: FAIL if all of it is over the limit, PASS if all of it is within the limit, INVALID
`undecided` if the limit lies inside it. Over all looks together, a FAIL is wrong once in fifty times, and so is a PASS.
One figure is enough for a FAIL, so all figures share that error; a PASS needs every figure, so each may use all of it.
Errors pass wrongly once in twenty times at each look, or a PASS would take half as many rounds again. No I/O."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from marina.config.measured import Objective, Reason, VerdictStatus
from marina.loadtest.comparing.comparison import AnswerCounts, Figure, FigureName, Round, SideName, Turn, Unit
from marina.loadtest.comparing.ratios import Ratio, by_chance, late_line, more_late, ratio
from marina.loadtest.judging import (
    CONFIDENCE,
    P99_SHARE,
    UNDECIDED,
    Counts,
    difference_interval,
    with_status,
    worst_status,
)
from marina.loadtest.measuring import figure, merge_histograms, percent

FEWEST_ROUNDS = 12
_GROWTH = 1.5
# How often a verdict may be wrong over all looks, and how many figures may cause a FAIL: the ratios of p50, p99, rate
# and CPU time, late answers, and errors.
_WRONG, _JUDGED = 0.02, 6
# A disturbed round is left out with both its turns. If more than one in five are, the machine is unfit for comparisons.
MOST_LEFT_OUT = 0.2
_NO_ANSWERS = "no-answers"
_MORE_ROUNDS = "more rounds would show whether that is chance"


class FalseRates(NamedTuple):
    """How often one figure may fail and pass wrongly: how often each end of its interval may be exceeded."""

    fails: float
    passes: float

    @classmethod
    def of(cls, share: float) -> "FalseRates":
        """The rates of one look, which may use this share of all errors."""
        return cls(fails=share * _WRONG / _JUDGED, passes=share * _WRONG)


class Judgement(NamedTuple):
    """The verdict on the rounds so far."""

    status: VerdictStatus
    reasons: tuple[Reason, ...]
    figures: tuple[Figure, ...]
    needs_more_rounds: bool
    """Whether more rounds may turn INVALID into an answer: no server has died, and most rounds can be trusted."""


def look_schedule(most: int) -> tuple[int, ...]:
    """After how many rounds the figures are looked at, as long as they are undecided.

    The numbers are even, so that each server is first equally often. They grow, since each look is one more chance to
    be wrong."""
    last = max(2, most - most % 2)
    looks = [min(FEWEST_ROUNDS, last)]
    while looks[-1] < last:
        wanted = max(looks[-1] + 2, int(looks[-1] * _GROWTH))
        looks.append(min(wanted + wanted % 2, last))
    return tuple(looks)


def look_share(look: int, looks: Sequence[int]) -> float:
    """The share of the allowed error that one look may use.

    Half of the error is shared equally, half in proportion to the rounds: the last looks decide what is close, and no
    look comes after them."""
    return (1 / len(looks) + look / sum(looks)) / 2


def first_side(number: int) -> SideName:
    """Which server is first in round `number`. As they alternate, a steady drift of the machine affects both alike."""
    return "new" if number % 2 else "old"


def judge_rounds(
    rounds: Sequence[Round],
    objective: Objective,
    regression: float,
    *,
    share: float = 1.0,
    answers: AnswerCounts | None = None,
    agreement: float = 1.0,
    ended: tuple[Reason, VerdictStatus] | None = None,
) -> Judgement:
    """The verdict on the rounds.

    `share` is the part of the allowed error that this look may use. `ended` is the reason if a server died before all
    rounds were done, and the status that follows from it."""
    wrong = FalseRates.of(share)
    counted = [turns for turns in rounds if not turns.left_out]
    against = _against(rounds, counted)
    figures = [
        *_figures(counted, regression, wrong),
        *_errors(counted, objective, wrong.fails),
        *_answers(answers, agreement),
    ]
    if against and against[0].id != _NO_ANSWERS:
        # The answers do not depend on whether the machine was disturbed.
        figures = [value if value.figure == "answers" else with_status(value, "INVALID") for value in figures]
    statuses: list[VerdictStatus] = [value.status for value in figures] + (["INVALID"] if against else [])
    if ended:
        against, statuses = [ended[0], *against], [*statuses, ended[1]]
    status = worst_status(statuses)
    may_change = any(value.status == "INVALID" for value in figures) and 2 * len(counted) >= len(rounds)
    needs_more_rounds = status == "INVALID" and not ended and may_change
    return Judgement(status, tuple(against), tuple(figures), needs_more_rounds)


def _against(rounds: Sequence[Round], counted: Sequence[Round]) -> list[Reason]:
    """The reasons why the rounds as a whole cannot be judged; empty if they can."""
    left_out = len(rounds) - len(counted)
    if left_out > MOST_LEFT_OUT * len(rounds):
        named = {reason.id: reason for turns in rounds for reason in turns.left_out}
        text = f"{left_out} of {len(rounds)} rounds cannot be trusted, allowed: one in {1 / MOST_LEFT_OUT:.0f}"
        return [Reason(id="disturbed", text=text), *named.values()]
    if len(counted) < FEWEST_ROUNDS:
        text = f"{len(counted)} rounds are too few to show how they vary, needed: {FEWEST_ROUNDS}"
        return [Reason(id="too-few-rounds", text=text)]
    if not all(turns.both_answered for turns in counted):
        return [Reason(id=_NO_ANSWERS, text="in some rounds one server answered nothing, so there is no ratio")]
    return []


def _figures(rounds: Sequence[Round], regression: float, wrong: FalseRates) -> list[Figure]:
    """The figures of latency, rate and CPU time, each judged by the interval of its ratio."""
    if not rounds or not all(turns.both_answered for turns in rounds):
        return []
    sides = [turns.old for turns in rounds], [turns.new for turns in rounds]
    worse = 1 + regression
    p99 = _ratio_figure("p99", [_latency(turns, P99_SHARE) for turns in sides], worse, "ms", wrong)
    # A turn without any answer in time counts as half an answer, so that it has a (bad) ratio.
    rates = [[(max(turn.in_time, 0.5), turn.asked_s) for turn in turns] for turns in sides]
    figures = [
        _ratio_figure("p50", [_latency(turns, 0.5) for turns in sides], worse, "ms", wrong),
        _with_stalls(p99, rounds, wrong.fails),
        _ratio_figure("rate", [_quotient(parts) for parts in rates], 1 / worse, "requests/s", wrong),
    ]
    if all(turn.cpu_s and turn.answered for turns in sides for turn in turns):
        spent = [[(1000 * (turn.cpu_s or 0.0), turn.answered) for turn in turns] for turns in sides]
        figures.append(_ratio_figure("cpu", [_quotient(parts) for parts in spent], worse, "ms", wrong))
    return figures


SideFigure = tuple[float, Sequence[float]]
"""One figure of one server: over all rounds, and in each round."""


def _latency(turns: Sequence[Turn], share: float) -> SideFigure:
    whole = merge_histograms([turn.response for turn in turns])
    return whole.percentile(share) or 0.0, [turn.response.percentile(share) or 0.0 for turn in turns]


def _quotient(parts: Sequence[tuple[float, float]]) -> SideFigure:
    return sum(part for part, _ in parts) / sum(of for _, of in parts), [part / of for part, of in parts]


def _ratio_figure(name: FigureName, shown: Sequence[SideFigure], limit: float, unit: Unit, wrong: FalseRates) -> Figure:
    """The figure of a ratio; the limit is the highest that is allowed, or if it is below 1 (`rate`), the lowest."""
    (old, old_rounds), (new, new_rounds) = shown
    if limit < 1:
        quotient = ratio(old_rounds, new_rounds, low=wrong.passes, high=wrong.fails)
        fails, passes = quotient.high < limit, quotient.low >= limit
    else:
        quotient = ratio(old_rounds, new_rounds, low=wrong.fails, high=wrong.passes)
        fails, passes = quotient.low > limit, quotient.high <= limit
    made = Figure(
        figure=name,
        status="FAIL" if fails else "PASS" if passes else "INVALID",
        old=old,
        new=new,
        ratio=quotient.value,
        interval=(quotient.low, quotient.high if math.isfinite(quotient.high) else None),
        limit=limit,
        unit=unit,
    )
    if fails:
        difference = f"{name} is {_share(quotient.value)} {'lower' if limit < 1 else 'higher'}"
        text = f"{difference}, certainly more than the allowed {_share(limit)}"
        return with_status(made, "FAIL", f"{name}-worse", text)
    if not passes:
        text = f"the limit of {limit:.3g} lies inside the interval of {name}, {between_text(made)}"
        text = f"{text}: {_more(quotient, limit, len(old_rounds))} would decide"
        return with_status(made, "INVALID", UNDECIDED, text)
    return made


def _with_stalls(made: Figure, rounds: Sequence[Round], wrong: float) -> Figure:
    """The p99 figure, also judged by the answers of all rounds together.

    A server that stalls now and then is as fast as ever in most rounds, so the ratios of the rounds do not show it."""
    line_ms = late_line(rounds, made.limit)
    more = more_late(rounds, line_ms, made.limit)
    old_ms, new_ms = made.old or 0.0, made.new or 0.0
    if made.status != "FAIL" and by_chance(more) < wrong:
        slower, faster = (sum(sign * surplus > 0 for surplus in more) for sign in (1, -1))
        text = (
            f"in {slower} rounds the new server gave more answers over {figure(made.limit * line_ms)} ms than the old "
            f"one gave over {figure(line_ms)} ms, in {faster} rounds fewer: certainly more than allowed"
        )
        return with_status(made, "FAIL", "stalls", text)
    if made.status == "PASS" and new_ms > made.limit * old_ms:
        text = f"in most rounds p99 is within the limit, but over all rounds it is {figure(new_ms)} ms, and was "
        return with_status(made, "INVALID", UNDECIDED, f"{text}{figure(old_ms)} ms: {_MORE_ROUNDS}")
    return made


def _share(value: float) -> str:
    return f"{abs(value - 1):.0%}"


def _more(quotient: Ratio, limit: float, rounds: int) -> str:
    distance = abs(math.log(limit / quotient.value))
    needed = rounds * (quotient.reach(limit) / distance) ** 2 - rounds if distance else math.inf
    return f"about {max(2, math.ceil(needed)):,} more rounds" if needed < 1000 else "more than 1,000 more rounds"


def _errors(rounds: Sequence[Round], objective: Objective, wrong: float) -> list[Figure]:
    """The figure of errors, as a difference of two shares: a ratio of two rare things would never be certain."""
    if not rounds:
        return []
    limit = objective.error_rate
    sides = [turns.old for turns in rounds], [turns.new for turns in rounds]
    before, after = (Counts([turn.failed for turn in turns], [turn.sent for turn in turns]) for turns in sides)
    low, high = difference_interval(before, after, low=wrong, high=1 - CONFIDENCE)
    made = Figure(
        figure="errors",
        status="PASS",
        old=before.share,
        new=after.share,
        interval=(low, high),
        limit=limit,
        unit="share",
    )
    text = f"the new server fails {percent(after.share)} of the requests, the old one {percent(before.share)}"
    if low > limit:
        text = f"{text}: certainly more than the allowed {percent(limit)} on top"
        return [with_status(made, "FAIL", "errors-worse", text)]
    # No number of good answers proves that requests never fail.
    if high > limit and not (limit == 0 and after.share <= before.share):
        text = f"{text}: perhaps up to {percent(high)} on top, allowed: {percent(limit)}"
        return [with_status(made, "INVALID", UNDECIDED, f"{text}; {_MORE_ROUNDS}")]
    return [made]


def _answers(answers: AnswerCounts | None, agreement: float) -> list[Figure]:
    if answers is None or not answers.inputs:
        return []
    same = answers.same / answers.inputs
    made = Figure(figure="answers", status="PASS", old=None, new=same, limit=agreement, unit="share")
    if same >= agreement:
        return [made]
    named = ", ".join(answers.differing)
    text = f"{answers.inputs - answers.same} of {answers.inputs} inputs are answered differently: {named}"
    return [with_status(made, "FAIL", "answers-differ", f"{text}; at least {percent(agreement)} must be the same")]


def ratio_text(value: Figure) -> str:
    """One figure as the terminal shows it: `p99 1.02 (0.99 to 1.05)`."""
    if value.figure == "answers":
        return f"answers {percent(value.new or 0.0)} the same"
    if value.figure == "errors":
        return f"errors {percent(value.new or 0.0)} / {percent(value.old or 0.0)}"
    return f"{value.figure} {value.ratio:.3g} ({between_text(value)})"


def between_text(value: Figure) -> str:
    """The interval of a ratio as text, `0.99 to 1.05`."""
    low, high = value.interval or (0.0, None)
    return f"{low:.3g} to {'∞' if high is None else f'{high:.3g}'}"
