"""Runs at different rates against one server: judges whether it holds each rate, and finds the knee between them."""

from functools import partial

from marina.config.errors import InputError, MarinaError
from marina.config.measured import Knee, LatencyAtRate, Objective, Reason, Verdict, VerdictStatus
from marina.loadtest.calibrating import knee
from marina.loadtest.calibrating.knee import Untrusted, bisect_knee, narrowed
from marina.loadtest.calibrating.options import CalibrateOptions
from marina.loadtest.judging import (
    GENERATOR_REASONS,
    TOO_FEW,
    UNDECIDED,
    best_guess,
    busy_machine_reasons,
    decided_early,
    is_undecided,
    judge,
    latency_summary,
)
from marina.loadtest.measuring import Measurement, figure, pool
from marina.loadtest.reporting import figures_text
from marina.loadtest.running import Session
from marina.loadtest.scheduling import Schedule

_FIRST_RPS = 20.0
_BURST_S = 2.0
_UNDER_ESTIMATE = 0.7
# The bisection ends with a bracket this wide; the runs that narrow it are at its middle and beside that, or they would
# not show how steeply the latency rises.
_COARSE = 0.07
_BESIDE = (1.0, 1.04, 0.96)
_NARROWING_LENGTHS, _FEWEST_RUNS, _MOST_RUNS = 1.5, 5, 25
_CONFIRMING_LENGTHS, _CONFIRMING_S = 2, 30.0


class ServerEnded(MarinaError):
    """Raised if the server under test died."""


class OutOfTime(Untrusted):
    """Raised if the next run would take longer than `--max-duration` allows."""


class RateTrials:
    """Runs at different rates against one server, each judged by whether that rate was held within the objective."""

    def __init__(self, session: Session, objective: Objective, options: CalibrateOptions) -> None:
        self._session = session
        # The search judges whether the offered rate is held, not whether that of the spec is.
        self._objective = objective.model_copy(update={"throughput_rps": None})
        self._options = options
        self.runs: list[tuple[Measurement, Verdict]] = []
        self._number = 0
        self._measured_s = self._reserved_s = 0.0

    @property
    def tolerance(self) -> float:
        """Half the width of the interval that was asked for, as a share of the knee."""
        return self._options.tolerance

    def judge_rate(self, rate: float) -> VerdictStatus:
        """Whether a rate is held, by one short run if that is clear, otherwise by the figures of longer ones.

        INVALID if the generator could not measure it; Untrusted if anything else was wrong."""
        looks_s = self._options.first_look_s(rate, self._objective)
        most_s = self._options.length_s(rate, self._objective)
        measured: list[Measurement] = []
        while True:
            try:
                measured.append(self._run(rate, looks_s))
            except OutOfTime:
                if measured:
                    self.runs.append((pool(measured), judge(measured, self._objective)))
                raise
            verdict = judge(measured, self._objective)
            so_far_s = sum(run.asked_s for run in measured)
            early = decided_early(verdict, measured, self._objective)
            if early or not _may_decide_later(verdict) or so_far_s >= most_s:
                return self._record(rate, measured, verdict, early)
            self._say(rate, verdict)
            looks_s = min(so_far_s, most_s - so_far_s)

    def _record(
        self, rate: float, runs: list[Measurement], verdict: Verdict, early: VerdictStatus | None = None
    ) -> VerdictStatus:
        status = early or best_guess(verdict, self._objective)
        judged = verdict.model_copy(update={"status": status})
        self.runs.append((pool(runs), judged))
        self._say(rate, judged)
        expected = {*GENERATOR_REASONS, UNDECIDED, TOO_FEW}
        # If the run itself is not trusted, its missed limits are not a problem of their own.
        others = [reason for reason in verdict.reasons or verdict.every_reason() if reason.id not in expected]
        if status == "INVALID" and others:
            raise Untrusted(f"{figure(rate)} requests/s: {others[0].text}")
        return status

    def _run(self, rate: float, length_s: float) -> Measurement:
        self._number += 1
        schedule = Schedule(
            arrivals=self._options.arrivals,
            rate=rate,
            warmup_s=self._options.warmup_s,
            duration_s=length_s,
            # Each run has other arrivals: with the same ones, all would be off by the same chance, and agree.
            seed=self._options.seed + self._number,
        )
        allowed_s = self._options.max_duration_s
        if allowed_s is not None and self._measured_s + self._reserved_s + schedule.total_s > allowed_s:
            raise OutOfTime(f"`--max-duration` leaves no time for the run at {figure(rate)} requests/s")
        return self._measured(schedule, self._label(rate))

    def _label(self, rate: float) -> str:
        return f"run {self._number}, {figure(rate)} requests/s"

    def _say(self, rate: float, verdict: Verdict) -> None:
        self._session.progress.say(f"  {self._label(rate):<44} {verdict.status} {figures_text(verdict)}")

    def _judge_once(self, rate: float, length_s: float) -> VerdictStatus:
        """Whether a rate is held, judged by a single run."""
        measured = [self._run(rate, length_s)]
        return self._record(rate, measured, judge(measured, self._objective))

    def _measured(self, schedule: Schedule, label: str) -> Measurement:
        """Measures one run. Ctrl-C or the death of the server says nothing about a rate, so either ends the search."""
        measurement = self._session.measure(schedule, label)
        self._measured_s += schedule.total_s
        if measurement.interrupted:
            raise KeyboardInterrupt
        if measurement.limited:
            text = f"{measurement.limited:,} requests were refused with 429: the knee would be that of a rate limit"
            raise InputError(text, hint="--url, with the address of the server itself and not of its gateway")
        if measurement.server_end is not None:
            raise ServerEnded(f"the server died at {figure(schedule.rate)} requests/s: {measurement.server_end}")
        return measurement

    def holds(self, rate: float) -> bool:
        """Whether a rate is held within the objective; Untrusted if no run at it can be trusted."""
        return knee.holds(self.judge_rate, rate)

    def warm_up(self, rate: float = _FIRST_RPS) -> float:
        """Sends bursts, starting at `rate`, until the server gets no faster; returns roughly the rate that it holds."""
        return knee.estimate_capacity(self._burst, rate)

    def find(self, first: float | None) -> Knee:
        """Finds roughly where the knee is; Untrusted if it cannot be found."""
        if first is None:
            first = _UNDER_ESTIMATE * self.warm_up()
            self._say_how_long(first)
        return bisect_knee(self.judge_rate, first, max(_COARSE, self.tolerance))

    def narrow(self, found: Knee) -> Knee:
        """Measures the knee by runs in the middle of its interval and beside it, until that is narrow enough or the
        time is over. Returns the knee unchanged if the generator ended the search."""
        if found.limit == "generator":
            return found
        narrow = found
        # Reserve the time of the confirming run, which comes after these.
        self._reserved_s = self._confirming_s(found.rps)
        try:
            for number in range(_MOST_RUNS):
                if number >= _FEWEST_RUNS and narrow.width <= 1.001 * self.tolerance:
                    break
                rate = narrow.rps * _BESIDE[number % len(_BESIDE)]
                length_s = _NARROWING_LENGTHS * self._options.length_s(rate, self._objective)
                knee.holds(partial(self._judge_once, length_s=length_s), rate)
                narrow = narrowed(found, narrow.rps, self.runs, self._objective, self.tolerance)
        except OutOfTime:
            narrow = narrowed(found, narrow.rps, self.runs, self._objective, self.tolerance)
        finally:
            self._reserved_s = 0.0
        return narrow

    def confirm(self, rate: float) -> LatencyAtRate:
        """One run twice as long as the others, and at least half a minute unless `--trial` sets their length."""
        status = self._judge_once(rate, self._confirming_s(rate))
        return LatencyAtRate(rate=rate, status=status, response=latency_summary(self.runs[-1][0].response))

    def _confirming_s(self, rate: float) -> float:
        shortest_s = _CONFIRMING_S if self._options.trial_s is None else 0.0
        return max(shortest_s, _CONFIRMING_LENGTHS * self._options.length_s(rate, self._objective))

    def _say_how_long(self, rate: float) -> None:
        minutes = max(1, round(self._options.usual_s(rate, self._objective) / 60))
        most_s = self._options.max_duration_s
        bound = "`--max-duration` limits it"
        if most_s:
            is_short = most_s < 60 * minutes
            bound = f"{'but ' if is_short else ''}`--max-duration` ends it after {max(1, round(most_s / 60))}"
        text = f"  about {figure(rate)} requests/s: measuring takes about {minutes} minutes, {bound}"
        self._session.progress.say(text)

    def _burst(self, rate: float) -> float:
        """Good answers per second in a short burst."""
        schedule = Schedule(arrivals="constant", rate=rate, warmup_s=_BURST_S / 2, duration_s=_BURST_S)
        burst = self._measured(schedule, f"burst, {figure(rate)} requests/s")
        # A lower rate helps a server that is too slow, but not one that refuses everything.
        if rate <= _FIRST_RPS and burst.failed and not burst.good and not {"shed", "timeout"} & set(burst.errors):
            named = ", ".join(f"{count:,} {name}" for name, count in burst.errors.items())
            raise knee.NeverHeld(f"none of {burst.finished:,} requests got a good answer: {named}")
        return burst.held_rps

    def busy_machine(self) -> list[Reason]:
        """A note if other processes used the machine while the server missed the objective: it may hold more."""
        missed = [busy_machine_reasons(run) for run, verdict in self.runs if verdict.status == "FAIL"]
        busy = [reason for reasons in missed for reason in reasons]
        text = f"in {len(busy)} of {len(missed)} runs that missed the objective, "
        return [reason.model_copy(update={"text": text + reason.text}) for reason in busy[-1:]]

    def last_reasons(self) -> list[Reason]:
        """All reasons of the last run."""
        return self.runs[-1][1].every_reason() if self.runs else []


def _may_decide_later(verdict: Verdict) -> bool:
    """Whether another run at the rate may decide it. A search, unlike `loadtest`, needs no proof that nothing fails."""
    unsure = [check for check in verdict.checks if check.status == "INVALID"]
    few = {reason.id for reason in verdict.every_reason()} <= {UNDECIDED, TOO_FEW} and verdict.status == "INVALID"
    return (is_undecided(verdict) or few) and not all(
        check.objective == "errors" and check.measured == 0 for check in unsure
    )
