"""The bucket edges of the latency histograms, the same for every model and objective.

So the histograms of all pods and versions can be added up, and a new objective changes alerts and dashboards only."""

from bisect import bisect_left

# Whole milliseconds, because TorchServe counts in them; closest together where objectives usually are.
_DECADE = (10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90)
_SLOW = (1000, 1250, 1500, 2000, 2500, 3000, 4000, 5000, 6000, 8000, 10_000, 15_000, 20_000, 30_000, 60_000)
_OUTLIERS = (120_000, 300_000, 600_000)
EDGES_MS = (*range(1, 10), *_DECADE, *(10 * edge for edge in _DECADE), *_SLOW, *_OUTLIERS)
EDGES_S = tuple(edge / 1000 for edge in EDGES_MS)

# For language models, measured by the worker: the time to the first text, and from one token to the next.
FIRST_EDGES_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    *(1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
GAP_EDGES_S = (
    *(0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0),
)


def edges_around(limit_s: float, edges: tuple[float, ...] = EDGES_S) -> tuple[float, float, float]:
    """The edges below and above a limit, and the share of the way from one to the other at which the limit lies.

    Values between two edges are assumed to be spread evenly. If the limit is an edge itself, that edge is returned
    twice, with share 0; a limit below the first or above the last edge counts as that edge."""
    above = bisect_left(edges, limit_s - 1e-9)
    if above in (0, len(edges)) or abs(edges[above] - limit_s) < 1e-9:
        edge = edges[min(above, len(edges) - 1)]
        return edge, edge, 0.0
    low, high = edges[above - 1], edges[above]
    return low, high, (limit_s - low) / (high - low)
