"""Simulated live traffic: pods whose latencies wander, window by window, together and each by itself.

In every window the level of a pod's latencies is that of the traffic times its own. Both follow an autoregression of
the first order, so a pod that is slow in one window is slow in the next. Within a window, latencies are lognormal."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from marina.config.histogram import Histogram, _edges
from marina.config.latency import EDGES_MS
from marina.loadtest.gating import LiveRound, PodWindow

_EDGES = np.array(_edges(tuple(sorted(set(EDGES_MS)))))
_MEDIAN_MS = 20.0


@dataclass(frozen=True)
class Change:
    """What is different in the new revision."""

    slower: float = 1.0
    tail_slower: float = 1.0
    """Of the slowest sixth."""
    failed: float = 0.0
    """The share that fails, instead of that of the traffic."""


SAME = Change()


@dataclass(frozen=True)
class Traffic:
    """What the old revision's traffic is like."""

    name: str
    pods: int = 4
    requests: float = 20
    """Of one pod in one window."""
    spread: float = 0.25
    """Standard deviation of the logarithm of latencies within a window."""
    together: float = 0.1
    alone: float = 0.05
    correlation: float = 0.8
    failed: float = 0.0

    def simulate(self, windows: int, seed: int, change: Change, slow_node: float = 1.0) -> Iterator[LiveRound]:
        """Rounds of `pods` pods of the old revision and one of the new one."""
        dice = np.random.default_rng(seed)
        together = self._level(dice, windows, self.together)
        new, *old = (together + self._level(dice, windows, self.alone) for _ in range(self.pods + 1))
        changed = Change(change.slower, change.tail_slower, max(change.failed, self.failed))
        for at in range(windows):
            pods = {f"old-{pod}": self._window(dice, old[pod][at], SAME, self.failed) for pod in range(self.pods)}
            canary = self._window(dice, new[at] + np.log(slow_node), changed, changed.failed)
            yield LiveRound(pods, {"new": canary})

    def _level(self, dice: np.random.Generator, windows: int, size: float) -> np.ndarray:
        level, levels = dice.normal(0, size), []
        for _ in range(windows):
            levels.append(level)
            level = self.correlation * level + dice.normal(0, size * np.sqrt(1 - self.correlation**2))
        return np.array(levels)

    def _window(self, dice: np.random.Generator, level: float, change: Change, fails: float) -> PodWindow:
        count = dice.poisson(self.requests)
        failed = dice.binomial(count, fails)
        values = dice.normal(0, self.spread, count - failed)
        slow = np.where(values > self.spread, change.tail_slower, 1.0)
        response = Histogram(EDGES_MS)
        _count(response, _MEDIAN_MS * np.exp(values + level) * change.slower * slow)
        return PodWindow(response, int(failed))


def _count(into: Histogram, values: np.ndarray) -> None:
    """Adds many values at once, as `Histogram.add` does one by one."""
    if values.size:
        places, counts = np.unique(np.searchsorted(_EDGES, values), return_counts=True)
        into._counts = dict(zip(places.tolist(), counts.tolist(), strict=True))
        into.count, into.sum_ms = int(values.size), float(values.sum())
        into.min_ms, into.max_ms = float(values.min()), float(values.max())
