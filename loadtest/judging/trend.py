"""Whether a server falls behind: a queue that only grows meets any limit that is longer than the run. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadtest.judging.verdict import Reason
from loadtest.measuring import Histogram, Measurement, Slice, figure, merge_histograms

_PARTS, _FEWEST_IN_PART = 5, 20
# Standard deviations by which two counts at one rate never differ.
_BY_CHANCE = 4


def backlog_grows(runs: Sequence[Measurement]) -> list[Reason]:
    """The reason, when that is what most of the measured time shows."""
    growing = [run for run in runs if _grew(run)]
    if 2 * sum(run.asked_s for run in growing) <= sum(run.asked_s for run in runs):
        return []
    first, *_, last = _parts(growing[-1])
    begun, ended = (figure(part.percentile(0.5) or 0.0) for part in (first, last))
    text = f"requests wait longer and longer: p50 rose from {begun} ms to {ended} ms and never fell back"
    return [Reason(id="backlog-grows", text=f"{text}, so more is asked for than the server answers")]


def _grew(run: Measurement) -> bool:
    """Fastest in the first fifth, slowest in the last, and at the end even the fast answers slower than the slow ones
    at the start: a queue that empties now and then does not show that."""
    parts = _parts(run)
    if not parts or min(part.count for part in parts) < _FEWEST_IN_PART or more_came(run):
        return False
    middles = [part.percentile(0.5) or 0.0 for part in parts]
    fastest, slowest = parts[-1].percentile(0.1) or 0.0, parts[0].percentile(0.9) or 0.0
    return middles[0] == min(middles) and middles[-1] == max(middles) and fastest > slowest


def more_came(run: Measurement) -> bool:
    """Whether the last fifth was asked for more than the first, as a trace may: then waiting is expected."""
    fifth = len(run.slices) // _PARTS
    first, last = (sum(piece.due for piece in pieces) for pieces in (run.slices[:fifth], run.slices[-fifth:]))
    return last - first > _BY_CHANCE * math.sqrt(last + first)


def _parts(run: Measurement) -> list[Histogram]:
    """The latencies of each fifth of a run, of answers in pieces those of their beginning: their lengths differ."""
    fifth = len(run.slices) // _PARTS
    if not fifth:
        return []
    return [
        merge_histograms([_waited(piece) for piece in run.slices[at * fifth : (at + 1) * fifth]])
        for at in range(_PARTS)
    ]


def _waited(piece: Slice) -> Histogram:
    return piece.streams.first if piece.streams else piece.response
