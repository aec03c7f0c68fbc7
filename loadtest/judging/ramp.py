"""The rate at which an objective breaks: a run with a rising rate is cut into steps, each judged by its intervals."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile

from marina.loadtest.judging.certainty import P99_SHARE, errors_interval, goodput_interval, tail_interval
from marina.loadtest.judging.interval import CONFIDENCE
from marina.loadtest.judging.record import RampResult, RampStep
from marina.loadtest.judging.stream_checks import judged_tails
from marina.loadtest.judging.trust import busy_machine_reasons, distrust_reasons, server_died_reasons
from marina.loadtest.judging.verdict import TOO_FEW, UNDECIDED, Check, Objective, Reason, Verdict, VerdictStatus
from marina.loadtest.measuring import Measurement, Slice, figure, merge_slices, percent
from marina.loadtest.scheduling import Ramp

# With steps of this size and number, simulated queues certainly break at less than one and a half times their knee.
STEP_REQUESTS, MOST_STEPS = 1000, 20
_FEWEST_STEPS = 4
# How many neighbouring steps are judged together.
_TOGETHER = (1, 2, 4, 8)
_PROMISED_SHARE = 0.99


def ramp_result(run: Measurement, ramp: Ramp, objective: Objective) -> RampResult:
    """The steps of a run, and the two rates between which the objective broke.

    No server gets faster with more load. So if several steps in a row certainly miss the objective, it is missed at the
    highest of their rates; if they certainly meet it, it is met at the lowest."""
    cuts = _cut(run.slices)
    spans = [[cuts[at : at + count] for count in _TOGETHER if at + count <= len(cuts)] for at in range(len(cuts))]
    # Of so many windows, one in twenty would miss its limit by chance. So each must miss it more surely (Bonferroni).
    missing = _sure_of(sum(map(len, spans)))
    by_begin = [
        [_step(run, (span[0][0], span[-1][1]), ramp, objective, missing) for span in beginning] for beginning in spans
    ]
    steps = tuple(windows[0] for windows in by_begin)
    broke = min((window.end_rps for windows in by_begin for window in windows if window.status == "FAIL"), default=None)
    # From the lowest rate up to the first that is not sure: however many are tried in this order, none gets less sure.
    sure = takewhile(_is_met, by_begin)
    held = max((first.begin_rps for first, *_ in sure if broke is None or first.begin_rps < broke), default=None)
    return RampResult(
        begin_rps=ramp.begin,
        end_rps=ramp.end,
        held_rps=held,
        broke_rps=None if broke is None else (held or 0.0, broke),
        about_rps=_about(steps, objective),
        recovered=broke is not None and any(_is_met(windows) and windows[0].begin_rps >= broke for windows in by_begin),
        steps=steps,
    )


def _sure_of(windows: int) -> float:
    """The confidence of each of so many windows, with which all of them are as sure together as any other verdict."""
    return 1 - (1 - CONFIDENCE) / max(1, windows)


def _is_met(windows: Sequence[RampStep]) -> bool:
    return any(window.status == "PASS" for window in windows)


def _about(steps: Sequence[RampStep], objective: Objective) -> float | None:
    """The rate that best separates the steps that met the objective from those that missed it; None if all met it."""
    missed = [_excess(step, objective) is not None for step in steps]
    wrong = [sum(missed[:place]) + missed[place:].count(False) for place in range(len(missed) + 1)]
    place = len(wrong) - 1 - wrong[::-1].index(min(wrong))
    return steps[place].begin_rps if place < len(steps) else None


def judge_ramp(run: Measurement, result: RampResult, objective: Objective) -> Verdict:
    """Whether the objective held up to `slo.throughput_rps`, or without one up to the end of the ramp."""
    promised = objective.throughput_rps or result.end_rps
    check = Check(
        objective="throughput",
        status="PASS",
        limit=promised,
        measured=(result.about_rps or result.end_rps) if len(result.steps) >= _FEWEST_STEPS else None,
        interval=result.broke_rps,
        unit="requests/s",
    )
    against, died = distrust_reasons(run, objective), server_died_reasons(run)
    status, reasons = _check_ramp(run, result, promised, objective)
    check = check.model_copy(update={"status": "INVALID" if against else status, "reasons": reasons})
    whole: VerdictStatus = "FAIL" if died else check.status
    busy = busy_machine_reasons(run) if whole == "FAIL" else []
    return Verdict(status=whole, reasons=(*died, *against, *busy), checks=(check,))


def ramp_text(result: RampResult, objective: Objective) -> str:
    """`ramp: the objective broke at about 140 requests/s, certainly between 120 and 155: p99 812 ms`."""
    if result.broke_rps:
        return f"ramp: {_broke(result, objective)}"
    held = "at no rate" if result.held_rps is None else f"up to {figure(result.held_rps)} requests/s"
    return f"ramp: the objective certainly held {held}; no rate certainly broke it"


def _check_ramp(
    run: Measurement, result: RampResult, promised: float, objective: Objective
) -> tuple[VerdictStatus, tuple[Reason, ...]]:
    if run.finished and not run.good:
        text = f"none of {run.finished:,} requests got a good answer: {', '.join(sorted(run.errors))}"
        return "FAIL", (Reason(id="errors-only", text=text),)
    if len(result.steps) < _FEWEST_STEPS:
        text = f"{run.due:,} requests are too few for a ramp"
        return "INVALID", (Reason(id=TOO_FEW, text=f"{text}, needed: {_FEWEST_STEPS * STEP_REQUESTS:,}"),)
    if result.broke_rps and result.broke_rps[1] <= promised:
        return "FAIL", (Reason(id="broke", text=_broke(result, objective)),)
    if result.end_rps < _PROMISED_SHARE * promised:
        text = f"the ramp ended at {figure(result.end_rps)} requests/s, the objective is {figure(promised)}"
        return "INVALID", (Reason(id="rate-below-objective", text=text),)
    # The last step begins a little below the end of the ramp, and no later one could show more.
    if result.held_rps is not None and result.held_rps >= min(_PROMISED_SHARE * promised, result.steps[-1].begin_rps):
        return "PASS", ()
    text = f"it is not certain that the objective held at {figure(promised)} requests/s"
    return "INVALID", (Reason(id=UNDECIDED, text=text),)


def _broke(result: RampResult, objective: Objective) -> str:
    low, high = result.broke_rps or (0.0, 0.0)
    step = next((step for step in result.steps if step.end_rps >= high), result.steps[-1])
    excess = _excess(step, objective) or f"errors {percent(step.error_rate)}"
    where = f"between {figure(low)} and {figure(high)}" if low else f"below {figure(high)}"
    about = f"{where} requests/s"
    if result.about_rps:
        about = f"at about {figure(result.about_rps)} requests/s, certainly {where}"
    later = ", but it held again at a higher rate, so the rate was not the only cause" if result.recovered else ""
    return f"the objective broke {about}: {excess}{later}"


def _excess(step: RampStep, objective: Objective) -> str | None:
    """A figure of a step that misses its limit; None if all of them meet theirs."""
    if step.p99_ms is not None and step.p99_ms > objective.p99_ms:
        return f"p99 {figure(step.p99_ms)} ms"
    if step.error_rate > objective.error_rate:
        return f"errors {percent(step.error_rate)}"
    streamed = (("ttft", step.ttft_p99_ms, objective.ttft_p99_ms), ("itl", step.itl_p99_ms, objective.itl_p99_ms))
    for name, measured, limit in streamed:
        if measured is not None and limit is not None and measured > limit:
            return f"{name} p99 {figure(measured)} ms"
    if step.goodput is not None and objective.goodput is not None and step.goodput < objective.goodput:
        return f"goodput {percent(step.goodput)}"
    return None


def _step(run: Measurement, cut: tuple[int, int], ramp: Ramp, objective: Objective, missing: float) -> RampStep:
    """`missing` is how sure it must be that the objective is missed."""
    begin, end = cut
    slices = run.slices[begin:end]
    whole = merge_slices(slices)
    streams = whole.streams
    part = run.model_copy(update={"slices": slices, "response": whole.response, "streams": streams})
    step = RampStep(
        begin_rps=ramp.rate(begin / len(run.slices)),
        end_rps=ramp.rate(end / len(run.slices)),
        requests=whole.due,
        p99_ms=whole.response.percentile(P99_SHARE),
        error_rate=whole.failed / whole.due,
        ttft_p99_ms=streams and streams.first.percentile(P99_SHARE),
        itl_p99_ms=streams and streams.gaps.percentile(P99_SHARE),
        goodput=streams and streams.met / whole.due,
        status="INVALID",
    )
    return step.model_copy(update={"status": _status(part, step, objective, missing)})


def _status(part: Measurement, step: RampStep, objective: Objective, missing: float) -> VerdictStatus:
    def latencies(confidence: float) -> list[VerdictStatus]:
        tails = [
            (tail.of(part), [tail.of(piece) for piece in part.slices], tail.limit) for tail in judged_tails(objective)
        ]
        return [tail_interval(*tail, confidence).status if tail[0].count else "INVALID" for tail in tails]

    shares = [errors_interval(part, objective.error_rate, missing).status]
    if objective.goodput is not None and part.streams is not None:
        shares.append(goodput_interval(part, objective.goodput, missing).status)
    if "FAIL" in (*shares, *latencies(missing)):
        return "FAIL"
    met = _excess(step, objective) is None and set(latencies(_sure_of(len(_TOGETHER)))) == {"PASS"}
    return "PASS" if met else "INVALID"


def _cut(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """The first slice of each step and the first one after it; all steps have about the same number of requests."""
    so_far = list(accumulate((piece.due for piece in slices), initial=0))
    steps = min(MOST_STEPS, so_far[-1] // STEP_REQUESTS)
    cuts = [bisect_right(so_far, so_far[-1] * number / steps - 0.5) for number in range(steps + 1)] if steps else []
    return [(begin, end) for begin, end in pairwise(cuts) if so_far[end] > so_far[begin]]
