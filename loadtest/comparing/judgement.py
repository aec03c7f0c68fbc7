"""From rounds to PASS, FAIL or INVALID: is the new server surely worse than the old one by more than is allowed? Pure.

A ratio is judged by its interval: FAIL when all of it is over the limit, PASS when all of it is within, INVALID
`undecided` when the limit is inside. Over all looks a FAIL is wrong once in fifty, and so is a PASS. One figure is
enough for a FAIL, so all share that; a PASS needs every figure, so each has all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.comparing.comparison import AnswerCounts, Figure, FigureName, Round, Turn, Unit
from loadtest.comparing.ratios import Ratio, ratio
from loadtest.comparing.swaps import by_chance, late_line, more_late
from loadtest.judging import P99_SHARE, UNDECIDED, Objective, Reason, Status, worst_status
from loadtest.measuring import figure, merge_histograms, percent

FEWEST_ROUNDS = 12
# How often a verdict may be wrong, over all looks; a FAIL is one of the ratios of p50, p99, rate and CPU time, of what
# is late, or of what fails.
_WRONG, _JUDGED = 0.02, 6
# Late answers that chance explains as seldom leave it open whether the new server stalls.
_OPEN = 0.05
# A disturbed round is left out, with both its turns; where more than one in five is, the machine cannot compare.
MOST_LEFT_OUT = 0.2
_WORSE = {"p50": "slower", "p99": "slower", "cpu": "more CPU time", "rate": "fewer answers in time"}


@dataclass(frozen=True)
class SideFigure:
    """One figure of one server: over all rounds, and of each."""

    whole: float
    rounds: Sequence[float]


@dataclass(frozen=True)
class FalseRates:
    """How often one figure may fail, and pass, wrongly: how often either end of its interval is exceeded."""

    fails: float
    passes: float

    @classmethod
    def of(cls, share: float) -> FalseRates:
        """Of one look, by its share of all."""
        return cls(fails=share * _WRONG / _JUDGED, passes=share * _WRONG)


@dataclass(frozen=True)
class Judgement:
    """What the rounds until now say."""

    status: Status
    reasons: tuple[Reason, ...]
    figures: tuple[Figure, ...]
    needs_more_rounds: bool
    """Whether more rounds may turn INVALID into an answer: nothing has failed, and most rounds can be trusted."""


def judge_rounds(
    rounds: Sequence[Round],
    objective: Objective,
    regression: float,
    *,
    share: float = 1.0,
    answers: AnswerCounts | None = None,
    agreement: float = 1.0,
    ended: tuple[Reason, Status] | None = None,
) -> Judgement:
    """The verdict on the rounds; `share` is this look's of all that may go wrong, `ended` is why a server ended before
    them all, and what that makes it."""
    wrong = FalseRates.of(share)
    counted = [turns for turns in rounds if not turns.left_out]
    against = _against(rounds, counted)
    figures = [
        *_figures(counted, regression, wrong),
        *_errors(counted, objective, wrong.fails),
        *_answers(answers, agreement),
    ]
    if against:
        # The answers do not depend on how undisturbed the machine was.
        figures = [value if value.figure == "answers" else _with(value, "INVALID") for value in figures]
    statuses: list[Status] = [value.status for value in figures] + (["INVALID"] if against else [])
    if ended:
        against, statuses = [ended[0], *against], [*statuses, ended[1]]
    status = worst_status(statuses)
    needs_more_rounds = status == "INVALID" and not ended and 2 * len(counted) >= len(rounds)
    return Judgement(status, tuple(against), tuple(figures), needs_more_rounds)


def _against(rounds: Sequence[Round], counted: Sequence[Round]) -> list[Reason]:
    """Why the rounds as a whole cannot be judged."""
    left_out = len(rounds) - len(counted)
    if left_out > MOST_LEFT_OUT * len(rounds):
        named = {reason.id: reason for turns in rounds for reason in turns.left_out}
        text = f"{left_out} of {len(rounds)} rounds cannot be trusted, allowed: one in {1 / MOST_LEFT_OUT:.0f}"
        return [Reason(id="disturbed", text=text), *named.values()]
    if len(counted) < FEWEST_ROUNDS:
        text = f"{len(counted)} rounds say nothing of how they vary, needed: {FEWEST_ROUNDS}"
        return [Reason(id="too-few-rounds", text=text)]
    if not all(turns.old.response.count and turns.new.response.count for turns in counted):
        return [Reason(id="no-answers", text="in some rounds one of them answered nothing, so there is no ratio")]
    return []


def _figures(rounds: Sequence[Round], regression: float, wrong: FalseRates) -> list[Figure]:
    """Latencies, rate and CPU time, each by the interval of its ratio."""
    if not rounds or any(not turns.old.response.count or not turns.new.response.count for turns in rounds):
        return []
    old, new = [turns.old for turns in rounds], [turns.new for turns in rounds]
    worse = 1 + regression
    figures = [
        _judged("p50", [_latency(turns, 0.5) for turns in (old, new)], worse, "ms", wrong),
        _stalls(
            _judged("p99", [_latency(turns, P99_SHARE) for turns in (old, new)], worse, "ms", wrong),
            rounds,
            wrong.fails,
        ),
        _judged("rate", [_rate(turns) for turns in (old, new)], 1 / worse, "requests/s", wrong),
    ]
    if all(turn.cpu_s and turn.answered for turn in (*old, *new)):
        figures.append(_judged("cpu", [_cpu_ms(turns) for turns in (old, new)], worse, "ms", wrong))
    return figures


def _latency(turns: Sequence[Turn], share: float) -> SideFigure:
    whole = merge_histograms([turn.response for turn in turns])
    return SideFigure(whole.percentile(share) or 0.0, [turn.response.percentile(share) or 0.0 for turn in turns])


def _rate(turns: Sequence[Turn]) -> SideFigure:
    """Good answers in time, a second; of a turn without any, half an answer, so that it has a ratio, a very bad one."""
    return _quotient([max(turn.in_time, 0.5) for turn in turns], [turn.asked_s for turn in turns])


def _cpu_ms(turns: Sequence[Turn]) -> SideFigure:
    """CPU time for each answer."""
    return _quotient([1000 * (turn.cpu_s or 0.0) for turn in turns], [turn.answered for turn in turns])


def _quotient(above: Sequence[float], below: Sequence[float]) -> SideFigure:
    return SideFigure(sum(above) / sum(below), [part / of for part, of in zip(above, below, strict=True)])


def _judged(name: FigureName, shown: Sequence[SideFigure], limit: float, unit: Unit, wrong: FalseRates) -> Figure:
    """A ratio against its limit, which is the most that it may be, or of the rate the least."""
    old, new = shown
    if limit < 1:
        quotient = ratio(old.rounds, new.rounds, low=wrong.passes, high=wrong.fails)
        fails, passes = quotient.high < limit, quotient.low >= limit
    else:
        quotient = ratio(old.rounds, new.rounds, low=wrong.fails, high=wrong.passes)
        fails, passes = quotient.low > limit, quotient.high <= limit
    made = Figure(
        figure=name,
        status="FAIL" if fails else "PASS" if passes else "INVALID",
        old=old.whole,
        new=new.whole,
        ratio=quotient.value,
        interval=(quotient.low, quotient.high),
        limit=limit,
        unit=unit,
    )
    if fails:
        text = f"{_WORSE[name]} by {_share(quotient.value)}, surely more than the {_share(limit)} that are allowed"
        return _with(made, "FAIL", f"{name}-worse", f"{name} {text}")
    if not passes:
        text = f"{name} of new / old, {quotient.low:.3g} to {quotient.high:.3g}, holds the limit of {limit:.3g}"
        return _with(made, "INVALID", UNDECIDED, f"{text}: {_more(quotient, limit, len(old.rounds))} would decide")
    return made


def _stalls(made: Figure, rounds: Sequence[Round], wrong: float) -> Figure:
    """The p99 again, of all rounds together: a server that stalls now and then is as fast as ever in most of them."""
    line_ms = late_line(rounds, made.limit)
    more = more_late(rounds, line_ms, made.limit)
    chance = by_chance(more)
    if made.status == "FAIL" or chance >= _OPEN:
        return made
    slower, faster = (sum(sign * surplus > 0 for surplus in more) for sign in (1, -1))
    text = (
        f"the new server's answers over {figure(made.limit * line_ms)} ms outnumber the old one's over "
        f"{figure(line_ms)} ms in {slower} rounds, and are fewer in {faster}"
    )
    if chance < wrong:
        return _with(made, "FAIL", "stalls", f"{text}: surely more than are allowed")
    reason = Reason(id=UNDECIDED, text=f"{text}: more rounds would tell whether that is chance")
    return made.model_copy(update={"status": "INVALID", "reasons": (*made.reasons, reason)})


def _share(value: float) -> str:
    return f"{abs(value - 1):.0%}"


def _more(quotient: Ratio, limit: float, rounds: int) -> str:
    distance = abs(math.log(limit / quotient.value))
    needed = rounds * (quotient.reach(limit) / distance) ** 2 - rounds if distance else math.inf
    return f"about {max(2, math.ceil(needed)):,} more rounds" if needed < 1000 else "more than 1,000 more rounds"


def _errors(rounds: Sequence[Round], objective: Objective, wrong: float) -> list[Figure]:
    """How many more of its requests fail: a ratio of two rare things would never be sure."""
    if not rounds:
        return []
    limit = objective.error_rate
    before, after = _failed([turns.old for turns in rounds]), _failed([turns.new for turns in rounds])
    made = Figure(figure="errors", status="PASS", old=before, new=after, limit=limit, unit="share")
    if after - before <= limit:
        return [made]
    text = f"{percent(after)} of the requests fail, of the old server's {percent(before)}"
    if by_chance([turns.new.failed - turns.old.failed for turns in rounds]) >= wrong:
        return [_with(made, "INVALID", UNDECIDED, f"{text}: more rounds would tell whether that is chance")]
    return [_with(made, "FAIL", "errors-worse", f"{text}: more than the {percent(limit)} that may be added")]


def _failed(turns: Sequence[Turn]) -> float:
    sent = sum(turn.sent for turn in turns)
    return sum(turn.failed for turn in turns) / sent if sent else 0.0


def _answers(answers: AnswerCounts | None, agreement: float) -> list[Figure]:
    if answers is None or not answers.inputs:
        return []
    same = answers.same / answers.inputs
    made = Figure(figure="answers", status="PASS", old=None, new=same, limit=agreement, unit="share")
    if same >= agreement:
        return [made]
    named = ", ".join(answers.differing)
    text = f"{answers.inputs - answers.same} of {answers.inputs} inputs are answered differently: {named}"
    return [_with(made, "FAIL", "answers-differ", f"{text}; at least {percent(agreement)} must be the same")]


def _with(made: Figure, status: Status, reason: str = "", text: str = "") -> Figure:
    reasons = (Reason(id=reason, text=text),) if reason else ()
    return made.model_copy(update={"status": status, "reasons": reasons})


def ratios_text(figures: Sequence[Figure]) -> str:
    """`p50 1.02 (0.99 to 1.05), …`: each ratio with its interval."""
    return ", ".join(ratio_text(value) for value in figures)


def ratio_text(value: Figure) -> str:
    """One figure, as a terminal shows it."""
    if value.figure == "answers":
        return f"answers {percent(value.new or 0.0)} the same"
    if value.figure == "errors":
        return f"errors {percent(value.old or 0.0)} and {percent(value.new or 0.0)}"
    low, high = value.interval or (0.0, math.inf)
    return f"{value.figure} {value.ratio:.3g} ({low:.3g} to {high:.3g})"
