"""Adds several runs up into one measurement, so that all of them together decide. No I/O."""

from collections.abc import Sequence

from marina.loadtest.measuring import Measurement, Slice, Streams, add_up, merge_pod_shares, merge_slices, merge_streams


def pool(runs: Sequence[Measurement]) -> Measurement:
    """The runs as one measurement, as if they were a single run one after another."""
    if len(runs) == 1:
        return runs[0]
    counts = ("asked_s", "ran_s", "planned", "sent", "dropped", "warmup", "in_time", "errors")
    histograms = ("response", "service", "lag", "loop_lag")
    return runs[0].model_copy(
        update={
            **add_up(runs, *counts, *histograms, "seconds", "generators"),
            "streams": _pooled_streams(runs),
            "shares": merge_pod_shares(run.shares for run in runs),
            "slices": _even_slices(runs),
        }
    )


def _pooled_streams(runs: Sequence[Measurement]) -> Streams | None:
    streams = merge_streams(run.streams for run in runs)
    took_s = sum(run.written_s for run in runs if run.streams)
    return streams and streams.model_copy(update={"took_s": took_s})


def _even_slices(runs: Sequence[Measurement]) -> tuple[Slice, ...]:
    """The slices of all runs; those of shorter runs are joined until all are about as long as the longest."""
    if not all(run.slices for run in runs):
        return ()
    length_s = max(run.asked_s / len(run.slices) for run in runs)
    pieces: list[Slice] = []
    for run in runs:
        joined = max(1, round(length_s * len(run.slices) / run.asked_s))
        pieces += [merge_slices(run.slices[at : at + joined]) for at in range(0, len(run.slices), joined)]
    return tuple(pieces)
