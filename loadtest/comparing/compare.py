"""`compare`, for `marina compare`: measures two servers in turns and records the result."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated

from pydantic import Field

from marina.config.measured import Arrivals, Objective, Reason, VerdictStatus
from marina.config.record import Options, write_json, write_text
from marina.config.sections import Positive
from marina.config.spec import Spec
from marina.loadtest.comparing.answer_comparison import compare_answers
from marina.loadtest.comparing.comparison import (
    Comparison,
    ComparisonLoad,
    Round,
    SideName,
    Turn,
    turn_from,
)
from marina.loadtest.comparing.judgement import (
    FEWEST_ROUNDS,
    Judgement,
    first_side,
    judge_rounds,
    look_schedule,
    look_share,
    ratio_text,
)
from marina.loadtest.comparing.report import comparison_html, comparison_xml
from marina.loadtest.comparing.sides import Contender, OpenedSide, find_contender, open_side, paused
from marina.loadtest.judging import (
    SPARE_SAMPLES,
    arrivals_needed,
    client_timeout_s,
    costs_of,
    costs_text,
    distrust_reasons,
    objective_of,
)
from marina.loadtest.measuring import cpu_seconds, figure, this_machine, utc_now
from marina.loadtest.running import TargetOptions, await_ready, find_package, known_knee, stated_rate
from marina.loadtest.scheduling import Schedule
from marina.loadtest.sending import running_generator

# Short enough that most rounds have no disturbance of the machine in them, and long enough that each has a tail.
_SHORTEST_S, _FEWEST_REQUESTS = 1.0, 50
_LONGEST_S, _FEWEST_ROUNDS_ALLOWED = 720.0, 40
_READY_AGAIN_S = 30.0
# As long as the first run of a load test: what comes every few seconds must be able to show.
_SHORTEST_PASS_S = 30.0
# A comparison that takes longer than the user expects is announced.
_LONG_S = 300.0


class CompareOptions(Options):
    """The options of `marina compare`; None stands for a default that depends on the objective."""

    rate: Positive | None = None
    """Requests/s to both servers; default: the spec's `slo.throughput_rps`."""
    turn_s: Annotated[float, Field(ge=0.001, le=3600)] | None = None
    """Measured seconds of each server in a round; default: one second, or as long as fifty requests take."""
    max_duration_s: Positive | None = None
    """The longest measured time of all turns together; default: 720 s, or longer if forty rounds or the error rate need
    it."""
    warmup_s: Annotated[float, Field(ge=0)] = 0.5
    arrivals: Arrivals = "poisson"
    seed: int = 0
    timeout_s: Positive | None = None

    def load(self, spec: Spec, objective: Objective) -> ComparisonLoad:
        """The load that each server gets; InputError if neither the options nor the objective state a rate."""
        rate = stated_rate(self.rate, spec, objective, f"marina compare {spec.file} --against OLD")
        shortest_s = max(_SHORTEST_S, math.ceil(_FEWEST_REQUESTS / rate))
        return ComparisonLoad(
            arrivals=self.arrivals,
            rate=rate,
            warmup_s=self.warmup_s,
            turn_s=self.turn_s or shortest_s,
            seed=self.seed,
            timeout_s=client_timeout_s(objective, self.timeout_s),
        )

    def most_rounds(self, load: ComparisonLoad, objective: Objective) -> int:
        """How many rounds fit into the longest measured time."""
        round_s = 2 * load.turn_s
        if self.max_duration_s:
            return int(self.max_duration_s / round_s)
        # Enough to show that errors are as rare as they must be.
        needed = math.ceil(SPARE_SAMPLES * arrivals_needed(objective.error_rate) / (load.rate * load.turn_s))
        return max(int(_LONGEST_S / round_s), _FEWEST_ROUNDS_ALLOWED, needed)

    def note(self, load: ComparisonLoad, objective: Objective) -> str | None:
        """What the user should know before the first round: how long a PASS takes, if that is long."""
        shortest_s = max(FEWEST_ROUNDS * load.turn_s, _SHORTEST_PASS_S)
        requests = math.ceil(max(shortest_s * load.rate, arrivals_needed(objective.error_rate)))
        takes_s = 2 * requests / load.rate * (1 + load.warmup_s / load.turn_s)
        if takes_s <= _LONG_S:
            return None
        needed = f"{requests:,} requests to each server, at {figure(load.rate)} requests/s"
        return f"a PASS takes {takes_s / 60:,.0f} minutes or more, for {needed}; a higher `--rate` shortens it"


class _RoundRunner:
    """Runs the rounds of two servers that are up."""

    def __init__(self, old: OpenedSide, new: OpenedSide, load: ComparisonLoad, objective: Objective) -> None:
        self._sides: dict[SideName, OpenedSide] = {"old": old, "new": new}
        self._load, self._objective = load, objective
        self.rounds: list[Round] = []
        self.ended: tuple[Reason, VerdictStatus] | None = None

    def round(self) -> None:
        """Runs one turn of each server under the same arrivals."""
        number = len(self.rounds)
        schedule = Schedule(
            arrivals=self._load.arrivals,
            rate=self._load.rate,
            warmup_s=self._load.warmup_s,
            duration_s=self._load.turn_s,
            seed=self._load.seed + number,
        )
        first = first_side(number)
        other: SideName = "new" if first == "old" else "old"
        against: list[Reason] = []
        turns = {which: self._turn(which, than, schedule, against) for which, than in ((first, other), (other, first))}
        self.rounds.append(Round(first=first, old=turns["old"], new=turns["new"], left_out=tuple(against)))

    def _turn(self, which: SideName, other: SideName, schedule: Schedule, against: list[Reason]) -> Turn:
        """Measures one server; reasons not to trust the turn are added to `against`."""
        session = self._sides[which].session
        pid = session.target.pid
        label = f"round {len(self.rounds) + 1}, {which}"
        with paused(self._sides[other].session.target.pid):
            is_ready = pid is None or await_ready(session.target, _READY_AGAIN_S)
            before = cpu_seconds(pid) if pid else 0.0
            measurement = session.measure(schedule, label)
            cpu_s = cpu_seconds(pid) - before if pid else None
        if measurement.interrupted:
            raise KeyboardInterrupt
        if measurement.server_end is not None:
            text = f"the {which} server died in round {len(self.rounds) + 1}: {measurement.server_end}"
            self.ended = (Reason(id="server-died", text=text), "FAIL" if which == "new" else "INVALID")
        reasons = distrust_reasons(measurement, self._objective)
        if not is_ready:
            reasons.append(Reason(id="not-ready", text="the server did not become ready again after it was paused"))
        against += [Reason(id=reason.id, text=f"{label}: {reason.text}") for reason in reasons]
        return turn_from(measurement, cpu_s)


def compare(
    spec: Spec, against: str, options: CompareOptions, where: TargetOptions, *, quiet: bool = False
) -> Comparison:
    """Measures two servers in turns until the result is clear, judges them, and writes `compare.json`, `.xml` and
    `.html`.

    `against` names the old server. The files go to `where.out`. `where.url` is the new server, unless it is to be
    started."""
    objective = objective_of(spec)
    assert spec.slo is not None
    load = options.load(spec, objective)
    package = find_package(where)
    new = Contender("new", spec, package, where.out, url=where.url, supervisor=where.supervisor)
    old = find_contender(against, new, where.out)
    at = utc_now()
    with ExitStack() as stack:
        generator = stack.enter_context(running_generator())
        opened = partial(open_side, objective=objective, timeout_s=load.timeout_s, generator=generator, quiet=quiet)
        sides = [stack.enter_context(opened(side, new, where)) for side in (old, new)]
        answers = compare_answers(sides[0].session.request, sides[1].session.request, spec)
        if note := options.note(load, objective):
            sides[1].session.progress.say(f"note: {note}")
        runner = _RoundRunner(sides[0], sides[1], load, objective)
        looks = look_schedule(options.most_rounds(load, objective))
        judgement = _until_clear(
            runner,
            looks,
            load.turn_s,
            partial(
                judge_rounds,
                objective=objective,
                regression=spec.slo.regression,
                answers=answers,
                agreement=spec.model.min_agreement,
            ),
        )
    seen_rps = sum(turn.new.in_time for turn in runner.rounds) / sum(turn.new.asked_s for turn in runner.rounds)
    costs = costs_of(spec, seen_rps, known_knee(where.out, package))
    over = [costs.over] if costs and costs.over else []
    comparison = Comparison(
        status="FAIL" if over and judgement.status == "PASS" else judgement.status,
        reasons=(*judgement.reasons, *over),
        figures=judgement.figures,
        regression=spec.slo.regression,
        objective=objective,
        old=sides[0].side,
        new=sides[1].side,
        answers=answers,
        load=load,
        machine=this_machine(),
        at=at,
        rounds=tuple(runner.rounds),
        looks=len(looks),
        costs=costs,
    )
    write_json(where.out / "compare.json", comparison.to_data())
    write_text(where.out / "compare.xml", comparison_xml(comparison))
    write_text(where.out / "compare.html", comparison_html(comparison))
    return comparison


def _until_clear(
    runner: _RoundRunner, looks: Sequence[int], turn_s: float, judge: Callable[..., Judgement]
) -> Judgement:
    """Runs rounds until the figures decide, a server has died, or the time is over.

    A PASS needs half a minute of each server."""
    for look in looks:
        while len(runner.rounds) < look and runner.ended is None:
            runner.round()
        judgement = judge(runner.rounds, share=look_share(look, looks), ended=runner.ended)
        too_short = judgement.status == "PASS" and look * turn_s < _SHORTEST_PASS_S
        if not judgement.needs_more_rounds and not too_short:
            break
    return judgement


def comparison_text(comparison: Comparison) -> str:
    """The comparison as a few lines for the terminal."""
    counted, load = len(comparison.counted), comparison.load
    sent = f"{counted} rounds, {figure(load.rate)} requests/s for {load.turn_s:g} s each"
    ratios = ", ".join(map(ratio_text, comparison.figures))
    compared = f"new / old: {ratios}; {sent}" if ratios else "nothing was compared"
    lines = [f"compare: {comparison.status} {compared}"]
    lines += [costs_text(comparison.costs)] if comparison.costs else []
    return "\n".join([*lines, *(f"  {reason.id}: {reason.text}" for reason in comparison.every_reason())])
