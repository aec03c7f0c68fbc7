"""Whether a server falls behind: in a short run, even a queue that only grows can stay below a high limit. No I/O."""

import math
from collections.abc import Sequence

from marina.loadtest.judging.verdict import Reason
from marina.loadtest.measuring import Histogram, Measurement, Slice, figure, merge_histograms

_PARTS, _FEWEST_IN_PART = 5, 20
# A queue that grows by this share of the time that passes is that of a server that answers this share too little.
_BEHIND = 0.01
# Two counts at the same rate never differ by this many standard deviations.
_BY_CHANCE = 4


def backlog_grows(runs: Sequence[Measurement]) -> list[Reason]:
    """The reason for a FAIL, if the queue grew during most of the measured time."""
    growing = [run for run in runs if _grew(run)]
    if 2 * sum(run.asked_s for run in growing) <= sum(run.asked_s for run in runs):
        return []
    first, *_, last = _parts(growing[-1])
    begun, ended = (figure(part.percentile(0.5) or 0.0) for part in (first, last))
    text = f"requests wait longer and longer: p50 rose from {begun} ms to {ended} ms and never fell back"
    return [Reason(id="backlog-grows", text=f"{text}, so the server gets more than it can answer")]


def _grew(run: Measurement) -> bool:
    """Whether the queue grew throughout a run.

    The first fifth must be the fastest and the last the slowest, and even the fast answers of the last fifth must be
    slower than the slow ones of the first. A queue that empties now and then does not show that. And the waits must
    grow by more than a server's that answers nearly all: one that only becomes slower has no queue."""
    parts = _parts(run)
    if not parts or min(part.count for part in parts) < _FEWEST_IN_PART or more_came(run):
        return False
    middles = [part.percentile(0.5) or 0.0 for part in parts]
    if middles[-1] - middles[0] <= 1000 * _BEHIND * run.asked_s * (_PARTS - 1) / _PARTS:
        return False
    fastest, slowest = parts[-1].percentile(0.1) or 0.0, parts[0].percentile(0.9) or 0.0
    return middles[0] == min(middles) and middles[-1] == max(middles) and fastest > slowest


def more_came(run: Measurement) -> bool:
    """Whether the last fifth had more arrivals than the first, as a trace may have: then longer waits are expected."""
    fifth = len(run.slices) // _PARTS
    first, last = (sum(piece.due for piece in pieces) for pieces in (run.slices[:fifth], run.slices[-fifth:]))
    return last - first > _BY_CHANCE * math.sqrt(last + first)


def _parts(run: Measurement) -> list[Histogram]:
    """The latencies of each fifth of a run; for streamed answers, whose lengths differ, the times to the first text."""
    fifth = len(run.slices) // _PARTS
    if not fifth:
        return []
    return [
        merge_histograms([_waited(piece) for piece in run.slices[at * fifth : (at + 1) * fifth]])
        for at in range(_PARTS)
    ]


def _waited(piece: Slice) -> Histogram:
    return piece.streams.first if piece.streams else piece.response
