"""Whether memory, open files or latency grow while a server is loaded for hours: a test for a trend. No I/O.

The first third of a run, in which caches fill, is left out. The rest is cut into twelve blocks, and each figure has a
median in each block. The Mann-Kendall test counts in how many pairs of blocks the later one is higher.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, groupby, pairwise
from statistics import fmean, median
from typing import Literal, TypeVar

from marina.loadtest.judging.trend import more_came
from marina.loadtest.judging.verdict import Check, Reason, Verdict, VerdictStatus, worst_status
from marina.loadtest.measuring import MB, Measurement, ServerReading, ServerReadings, figure, merge_histograms

T = TypeVar("T")
GrowthKind = Literal["memory", "files", "drift"]
# How much a figure may grow over the judged time (a share), and how much growth never counts (bytes, files, ms).
GROWTH_ALLOWED: dict[GrowthKind, float] = {"memory": 0.02, "files": 0.02, "drift": 0.1}
_NEGLIGIBLE: dict[GrowthKind, float] = {"memory": 1_000_000, "files": 2, "drift": 0.5}
_SETTLING, _BLOCKS, _QUARTERS = 1 / 3, 12, 4
# A process keeps something of each request in bounded buffers; after this many requests they are full, and hold at most
# this many bytes. Java does not collect its garbage until its heap is full.
_FULL_AFTER, _FILLING_BYTES, _JAVA = 100_000, 10_000_000, "torchserve"
_FEWEST_READINGS = 4 * _BLOCKS
# Standard deviations: one false alarm in a hundred figures that do not grow, before the shape of the growth is tested.
_SURE = 2.33
# A leak grows all the time: each quarter has at least this share of the growth, and the last quarter grows at least
# this fast compared with the first.
_QUARTER_SHARE, _LAST_TO_FIRST = 0.1, 0.5
_SEEN_SHARE = 0.9
_LONGER = "a longer soak will show whether it stops"
_OR_CYCLES = ": it grows, or rises and falls in cycles longer than this soak"
_SUBJECTS: dict[GrowthKind, str] = {"memory": "the memory", "files": "the open files", "drift": "the response time"}


def judge_soak(verdict: Verdict, run: Measurement, warmup_s: float, java_heap_mb: float = 0) -> Verdict:
    """The verdict on a long run, with additional checks of memory, open files and latency."""
    begin_s = judged_from_s(run.asked_s, warmup_s)
    fills = {_JAVA: java_heap_mb * MB}
    checks = [
        _process_check(run, "memory", begin_s, fills),
        _process_check(run, "files", begin_s, {}),
        _drift_check(run, begin_s, warmup_s),
    ]
    if {reason.id for reason in verdict.reasons} - {"server-died", "machine-busy"}:
        checks = [check.model_copy(update={"status": "INVALID"}) for check in checks]
    status = worst_status([verdict.status, *(check.status for check in checks)])
    return verdict.model_copy(update={"status": status, "checks": (*verdict.checks, *checks)})


def judged_from_s(asked_s: float, warmup_s: float) -> float:
    """When caches and heaps are considered full, in seconds from the start of the run."""
    return warmup_s + _SETTLING * asked_s


def _process_check(run: Measurement, kind: GrowthKind, begin_s: float, fills: Mapping[str, float]) -> Check:
    vitals = run.vitals or ServerReadings()
    early = [reading for reading in vitals.readings if reading.at_s < begin_s]
    readings = vitals.readings[len(early) :]
    looks = len(vitals.readings) + vitals.missed
    series = _by_process(readings or early, kind)
    if not series or len(vitals.readings) < _SEEN_SHARE * looks:
        why = vitals.why or "the server's metrics do not include it"
        text = f"{_SUBJECTS[kind]} could not be read: {why}"
        return _check(kind, "INVALID", None, [Reason(id="server-unseen", text=text)])
    if len(readings) < _FEWEST_READINGS:
        return _check(kind, "INVALID", None, [_too_few(f"{len(readings)} readings of the server's metrics")])
    restarted = [name for name in sorted(readings[-1].restarts) if _restarts(vitals, name)] if kind == "memory" else []
    if kind == "memory" and _started_again(vitals):
        restarted.append("the whole server")
    again = [Reason(id="restarted", text=f"{name} ended and was restarted") for name in restarted]
    # A process that started later has too few readings.
    whole = {name: values for name, values in series.items() if len(values) >= _SEEN_SHARE * len(readings)}
    medians = {name: [median(block) for block in _blocks(values)] for name, values in whole.items()}
    highest = {
        name: max(map(median, _blocks(values)))
        for name, values in _by_process(early, kind).items()
        if len(values) >= _BLOCKS
    }
    return _growth_check(kind, medians, run, again, fills, highest)


def _by_process(readings: Sequence[ServerReading], kind: GrowthKind) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for reading in readings:
        for name, value in (reading.memory if kind == "memory" else reading.files).items():
            series.setdefault(name, []).append(value)
    return series


def _drift_check(run: Measurement, begin_s: float, warmup_s: float) -> Check:
    seconds = run.seconds[int(begin_s) : int(warmup_s + run.asked_s)]
    answered = [second.response for second in seconds if second.response.count]
    if len(answered) < _FEWEST_READINGS:
        return _check("drift", "INVALID", None, [_too_few(f"answers in {len(answered)} seconds")])
    blocks = [merge_histograms(block) for block in _blocks(answered)]
    shares = {"p50": 0.5, "p99": 0.99}
    series = {name: [block.percentile(share) or 0.0 for block in blocks] for name, share in shares.items()}
    # If a trace sends more and more, a growing latency is expected.
    return _growth_check("drift", {} if more_came(run) else series, run, [], {}, {})


def _too_few(noun: str) -> Reason:
    return Reason(id="too-few-readings", text=f"{noun} are too few to see a trend, which needs {_FEWEST_READINGS}")


def _restarts(vitals: ServerReadings, name: str) -> bool:
    counts = [reading.restarts[name] for reading in vitals.readings if name in reading.restarts]
    return counts[-1] > counts[0]


def _started_again(vitals: ServerReadings) -> bool:
    """Whether another server was read from some moment on; those behind one address are read in turns."""
    starts = [start for start, _ in groupby(reading.start_s for reading in vitals.readings if reading.start_s)]
    return 1 < len(starts) == len(set(starts))


def _growth_check(
    kind: GrowthKind,
    series: dict[str, list[float]],
    run: Measurement,
    reasons: list[Reason],
    fills: Mapping[str, float],
    highest: Mapping[str, float],
) -> Check:
    """The check of several figures of one kind, each given as the medians of its blocks.

    `fills` is how many bytes each process may fill at first, `highest` how high each figure was before these blocks."""
    status: VerdictStatus = "FAIL" if reasons else "PASS"
    for name, blocks in series.items():
        if (shown := trend(blocks, kind)) == "PASS":
            continue
        doubt = ""
        if shown == "INVALID":
            doubt = f", but more and more slowly: {_LONGER}"
        elif _still_fills(blocks, kind, run, fills.get(name, 0)):
            what = "a heap does while it fills up" if name == _JAVA else "buffers do while they fill up"
            doubt = f", as {what} during the first {_FULL_AFTER:,} requests: {_LONGER}"
        elif highest.get(name, 0.0) >= blocks[-1]:
            doubt = f", but it was as high before: {_LONGER}"
        elif not _surely_over(blocks, kind):
            doubt = ", perhaps by no more than allowed: a longer soak will show it"
        text = f"{_grown(kind, name, blocks, run)}{doubt or f' and never fell back{_OR_CYCLES}'}"
        reasons.append(Reason(id="settles" if doubt else f"{kind}-grows", text=text))
        status = worst_status([status, "INVALID" if doubt else "FAIL"])
    return _check(kind, status, max(map(rise, series.values()), default=None), reasons)


def trend(blocks: Sequence[float], kind: GrowthKind) -> VerdictStatus:
    """FAIL for a figure that grows steadily; INVALID for one whose growth slows down, so that it may stop."""
    grown = rise(blocks)
    if grown <= GROWTH_ALLOWED[kind] or grown * blocks[0] <= _NEGLIGIBLE[kind] or _surely_rising(blocks) < _SURE:
        return "PASS"
    size = len(blocks) // _QUARTERS
    quarters = [fmean(blocks[at * size : (at + 1) * size]) for at in range(_QUARTERS)]
    steps = [after - before for before, after in pairwise(quarters)]
    if min(steps) < _QUARTER_SHARE * sum(steps):
        return "PASS"
    return "FAIL" if steps[-1] >= _LAST_TO_FIRST * steps[0] else "INVALID"


def _surely_over(blocks: Sequence[float], kind: GrowthKind) -> bool:
    """Whether a figure surely grew by more than allowed: what exceeds the allowed growth must rise, too."""
    allowed = max(GROWTH_ALLOWED[kind] * blocks[0], _NEGLIGIBLE[kind])
    return _surely_rising([value - allowed * at / (len(blocks) - 1) for at, value in enumerate(blocks)]) >= _SURE


def _still_fills(blocks: Sequence[float], kind: GrowthKind, run: Measurement, most: float) -> bool:
    """Whether this growth may only be that of buffers, or of a heap of `most` bytes, that were not yet full.

    They are not full yet if the first third of the run had too few requests.
    """
    early_requests = sum(second.due for second in run.seconds[: int(len(run.seconds) * _SETTLING)])
    return kind == "memory" and early_requests < _FULL_AFTER and max(blocks) - blocks[0] < max(_FILLING_BYTES, most)


def rise(blocks: Sequence[float]) -> float:
    """By what share a figure grew from start to end: the median slope of all pairs of blocks (Theil-Sen)."""
    slope = median((later - earlier) / (at - of) for (of, earlier), (at, later) in combinations(enumerate(blocks), 2))
    return slope * (len(blocks) - 1) / blocks[0] if blocks[0] else 0.0


def _surely_rising(blocks: Sequence[float]) -> float:
    """By how many standard deviations more pairs rise than chance explains (Mann-Kendall)."""
    count = len(blocks)
    more = sum((later > earlier) - (later < earlier) for earlier, later in combinations(blocks, 2))
    ties = [blocks.count(value) for value in set(blocks)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(tie * (tie - 1) * (2 * tie + 5) for tie in ties)) / 18
    return (more - 1) / math.sqrt(variance) if variance > 0 and more > 0 else 0.0


def _blocks(values: Sequence[T]) -> list[Sequence[T]]:
    cuts = [round(len(values) * number / _BLOCKS) for number in range(_BLOCKS + 1)]
    return [values[first:last] for first, last in pairwise(cuts)]


def _check(kind: GrowthKind, status: VerdictStatus, measured: float | None, reasons: list[Reason]) -> Check:
    return Check(
        objective=kind,
        status=status,
        limit=GROWTH_ALLOWED[kind],
        measured=measured,
        unit="share",
        reasons=tuple(reasons),
    )


def _grown(kind: GrowthKind, name: str, blocks: Sequence[float], run: Measurement) -> str:
    begin, end = (f"{value / MB:,.0f} MB" if kind == "memory" else figure(value) for value in (blocks[0], blocks[-1]))
    unit = {"memory": "", "files": "", "drift": " ms"}[kind]
    minutes = run.asked_s * (1 - _SETTLING) / 60
    return f"{_SUBJECTS[kind]} of {name} grew from {begin} to {end}{unit} in {minutes:.3g} minutes"
