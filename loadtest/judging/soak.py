"""Whether memory, open files or latency grow while a server is loaded for hours. No I/O.

The first third of a run, in which caches fill, is left out. Of the rest, each figure has a median in each of twelve
blocks. It grows if the last four blocks lie above the first four by more than is allowed, the four between them on the
way, since a single jump is not growth, and in four of five pairs of blocks the later one is higher."""

from collections.abc import Iterable, Sequence
from itertools import combinations, groupby, pairwise
from statistics import median
from typing import Literal, TypeVar

from marina.config.measured import Check, Reason, Verdict, VerdictStatus
from marina.loadtest.judging.slo import more_came
from marina.loadtest.judging.verdict import worst_status
from marina.loadtest.measuring import MB, Measurement, ServerReading, ServerReadings, figure, merge_histograms

T = TypeVar("T")
GrowthKind = Literal["memory", "files", "drift"]
# How much a figure may grow from the first four blocks to the last four, and how much growth never counts.
GROWTH_ALLOWED: dict[GrowthKind, float] = {"memory": 0.02, "files": 0.02, "drift": 0.1}
_NEGLIGIBLE: dict[GrowthKind, float] = {"memory": 1_000_000, "files": 2, "drift": 0.5}
_SETTLING, _BLOCKS = 1 / 3, 12
_FEWEST_READINGS, _SEEN_SHARE = 4 * _BLOCKS, 0.9
# Each half of the way has at least this share of the growth, and growth whose second half is smaller than this share of
# the first half may stop.
_HALF_SHARE, _SLOWER = 0.25, 2 / 3
# By what share of all pairs of blocks more rise than fall. Of a hundred figures that do not grow, one or two are above.
_RISING = 0.6
# A process keeps something of each request in bounded buffers; after this many requests they are full, and hold at most
# this many bytes. Java does not collect its garbage until its heap is full.
_FULL_AFTER, _FILLING_BYTES, _JAVA = 100_000, 10_000_000, "torchserve"
_SUBJECTS: dict[GrowthKind, str] = {"memory": "the memory", "files": "the open files", "drift": "the response time"}


def judge_soak(verdict: Verdict, run: Measurement, warmup_s: float, java_heap_mb: float = 0) -> Verdict:
    """The verdict on a long run, with additional checks of memory, open files and latency."""
    begin_s = judged_from_s(run.asked_s, warmup_s)
    checks = [
        _process_check(run, "memory", begin_s, java_heap_mb * MB),
        _process_check(run, "files", begin_s),
        _drift_check(run, begin_s, warmup_s),
    ]
    if {reason.id for reason in verdict.reasons} - {"server-died", "machine-busy"}:
        checks = [check.model_copy(update={"status": "INVALID"}) for check in checks]
    status = worst_status([verdict.status, *(check.status for check in checks)])
    return verdict.model_copy(update={"status": status, "checks": (*verdict.checks, *checks)})


def judged_from_s(asked_s: float, warmup_s: float) -> float:
    """When caches and heaps are considered full, in seconds from the start of the run."""
    return warmup_s + _SETTLING * asked_s


def growth(blocks: Sequence[float], kind: GrowthKind) -> VerdictStatus:
    """FAIL for a figure that grows; INVALID for one that grows more and more slowly, so that it may stop."""
    first, middle, last = _thirds(blocks)
    grown = last - first
    halves = middle - first, last - middle
    if grown <= max(GROWTH_ALLOWED[kind] * first, _NEGLIGIBLE[kind]) or min(halves) < _HALF_SHARE * grown:
        return "PASS"
    pairs = [(later > earlier) - (later < earlier) for earlier, later in combinations(blocks, 2)]
    if sum(pairs) < _RISING * len(pairs):
        return "PASS"
    return "INVALID" if halves[1] < _SLOWER * halves[0] else "FAIL"


def _thirds(blocks: Sequence[float]) -> list[float]:
    return [median(blocks[at : at + _BLOCKS // 3]) for at in range(0, _BLOCKS, _BLOCKS // 3)]


def _process_check(run: Measurement, kind: GrowthKind, begin_s: float, heap_bytes: float = 0) -> Check:
    vitals = run.vitals or ServerReadings()
    early = [reading for reading in vitals.readings if reading.at_s < begin_s]
    readings = vitals.readings[len(early) :]
    series = _by_process(readings or early, kind)
    if not series or len(vitals.readings) < _SEEN_SHARE * (len(vitals.readings) + vitals.missed):
        why = vitals.why or "the server's metrics do not include it"
        return _unknown(kind, "server-unseen", f"{_SUBJECTS[kind]} could not be read: {why}")
    if len(readings) < _FEWEST_READINGS:
        return _few(kind, f"{len(readings)} readings of the server's metrics")
    # A process that started later has too few readings.
    whole = {
        name: [median(block) for block in _blocks(values)]
        for name, values in series.items()
        if len(values) >= _SEEN_SHARE * len(readings)
    }
    again = [
        Reason(id="restarted", text=f"{name} ended and was restarted")
        for name in (_restarted(vitals) if kind == "memory" else ())
    ]
    before = {name: max(map(median, _blocks(values))) for name, values in _by_process(early, kind).items() if values}
    doubts = {}
    for name, blocks in whole.items():
        if kind == "memory" and _still_fills(blocks, run, heap_bytes if name == _JAVA else 0):
            what = "a heap does while it fills up" if name == _JAVA else "buffers do while they fill up"
            doubts[name] = f"as {what} during the first {_FULL_AFTER:,} requests"
        elif before.get(name, 0.0) >= blocks[-1]:
            doubts[name] = "but it was as high before"
    return _growth_check(kind, whole, run, again, doubts)


def _by_process(readings: Iterable[ServerReading], kind: GrowthKind) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {}
    for reading in readings:
        for name, value in (reading.memory if kind == "memory" else reading.files).items():
            series.setdefault(name, []).append(value)
    return series


def _restarted(vitals: ServerReadings) -> list[str]:
    """What ended and was started again: workers, or the whole server. Those behind one address are read in turns."""
    counts: dict[str, list[float]] = {}
    for reading in vitals.readings:
        for name, count in reading.restarts.items():
            counts.setdefault(name, []).append(count)
    names = [name for name, seen in sorted(counts.items()) if seen[-1] > seen[0]]
    starts = [start for start, _ in groupby(reading.start_s for reading in vitals.readings if reading.start_s)]
    return [*names, "the whole server"] if 1 < len(starts) == len(set(starts)) else names


def _still_fills(blocks: Sequence[float], run: Measurement, most: float) -> bool:
    """Whether growth may only be that of buffers, or of a heap of `most` bytes, that were not yet full: the first third
    of the run had too few requests."""
    early_requests = sum(second.due for second in run.seconds[: int(len(run.seconds) * _SETTLING)])
    return early_requests < _FULL_AFTER and max(blocks) - blocks[0] < max(_FILLING_BYTES, most)


def _drift_check(run: Measurement, begin_s: float, warmup_s: float) -> Check:
    seconds = run.seconds[int(begin_s) : int(warmup_s + run.asked_s)]
    answered = [second.response for second in seconds if second.response.count]
    if len(answered) < _FEWEST_READINGS:
        return _few("drift", f"answers in {len(answered)} seconds")
    blocks = [merge_histograms(block) for block in _blocks(answered)]
    shares = {"p50": 0.5, "p99": 0.99}
    series = {name: [block.percentile(share) or 0.0 for block in blocks] for name, share in shares.items()}
    # If a trace sends more and more, a growing latency is expected.
    return _growth_check("drift", {} if more_came(run) else series, run, [], {})


def _growth_check(
    kind: GrowthKind,
    series: dict[str, list[float]],
    run: Measurement,
    reasons: list[Reason],
    doubts: dict[str, str],
) -> Check:
    """The check of several figures of one kind, each given as its blocks; `doubts` are other explanations of growth."""
    statuses: list[VerdictStatus] = ["FAIL" if reasons else "PASS"]
    for name, blocks in series.items():
        if (status := growth(blocks, kind)) == "PASS":
            continue
        doubt = "but more and more slowly" if status == "INVALID" else doubts.get(name)
        end = f", {doubt}: a longer soak will show whether it stops" if doubt else " and never fell back: it grows, or "
        text = (
            _grown(kind, name, blocks, run) + end + ("" if doubt else "rises and falls in cycles longer than this soak")
        )
        reasons.append(Reason(id="settles" if doubt else f"{kind}-grows", text=text))
        statuses.append("INVALID" if doubt else "FAIL")
    thirds = [_thirds(blocks) for blocks in series.values()]
    most = max((last / first - 1 for first, _, last in thirds if first), default=None)
    return _check(kind, worst_status(statuses), most, reasons)


def _blocks(values: Sequence[T]) -> list[Sequence[T]]:
    """The values in twelve blocks, or in fewer if there are not as many values."""
    cuts = [round(len(values) * number / _BLOCKS) for number in range(_BLOCKS + 1)]
    return [values[first:last] for first, last in pairwise(cuts) if first < last]


def _few(kind: GrowthKind, noun: str) -> Check:
    return _unknown(kind, "too-few-readings", f"{noun} are too few to see growth, which needs {_FEWEST_READINGS}")


def _unknown(kind: GrowthKind, reason: str, text: str) -> Check:
    return _check(kind, "INVALID", None, [Reason(id=reason, text=text)])


def _check(kind: GrowthKind, status: VerdictStatus, measured: float | None, reasons: list[Reason]) -> Check:
    limit = GROWTH_ALLOWED[kind]
    return Check(objective=kind, status=status, limit=limit, measured=measured, unit="share", reasons=tuple(reasons))


def _grown(kind: GrowthKind, name: str, blocks: Sequence[float], run: Measurement) -> str:
    first, _, last = _thirds(blocks)
    begin, end = (f"{value / MB:,.0f} MB" if kind == "memory" else figure(value) for value in (first, last))
    unit = " ms" if kind == "drift" else ""
    # From the middle of the first four blocks to the middle of the last four.
    minutes = run.asked_s * (1 - _SETTLING) * 2 / 3 / 60
    return f"{_SUBJECTS[kind]} of {name} grew from {begin} to {end}{unit} in {minutes:.3g} minutes"
