"""What each of several pods answered in a run."""

from collections.abc import Iterable

from config.record import Part
from loadtest.measuring.histogram import Histogram
from loadtest.measuring.streams import Latencies, add_up


class PodShare(Part):
    """What one pod answered in the measured window."""

    name: str
    good: int = 0
    failed: int = 0
    response: Latencies = Histogram()
    """The latencies of its requests."""


def merge_pod_shares(runs: Iterable[tuple[PodShare, ...]]) -> tuple[PodShare, ...]:
    """The shares of each pod, added up over several processes or runs."""
    by_name: dict[str, list[PodShare]] = {}
    for shares in runs:
        for share in shares:
            by_name.setdefault(share.name, []).append(share)
    return tuple(PodShare(name=name, **add_up(parts, "good", "failed", "response")) for name, parts in by_name.items())
