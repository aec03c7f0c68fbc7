"""The search for the best settings under the objective, without trying all of them. The caller measures. No I/O.

It starts from the spec's own settings and improves one group at a time, the most important one first, until nothing
nearby is better: workers and threads, which share the cores; then the batch size; then how long a batch waits to fill.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marina.loadtest.calibrating.evidence import ServingSettings
from marina.loadtest.measuring import figure

Measure = Callable[[ServingSettings, float], float | None]
"""Returns the rate that settings hold within the objective, requests/s; None if it is less than the given rate."""

# A smaller difference is noise: two searches for the same knee differ by as much.
_BETTER = 1.03


@dataclass(frozen=True)
class SettingsSpace:
    """The settings that may be tried."""

    cores: int
    batches: Sequence[int]
    """The compiled batch sizes; a larger batch would be split."""
    delays_ms: Sequence[int]

    @property
    def splits(self) -> list[tuple[int, int]]:
        """All pairs of workers and threads that use every core exactly once."""
        return [(workers, self.cores // workers) for workers in range(1, self.cores + 1) if not self.cores % workers]

    @property
    def size(self) -> int:
        """The number of settings in the full grid."""
        return len(self.splits) * len(self.batches) * len(self.delays_ms)


@dataclass(frozen=True)
class TriedSettings:
    """Settings and the rate that they hold; None, and not measured any further, if they do not hold `to_beat`."""

    settings: ServingSettings
    rps: float | None
    to_beat: float


@dataclass(frozen=True)
class Tuning:
    """The result: the best settings, all that were tried, in order and starting with the spec's own, and why."""

    best: TriedSettings
    tried: tuple[TriedSettings, ...]
    why: tuple[str, ...]


def search_settings(measure: Measure, start: ServingSettings, space: SettingsSpace) -> Tuning:
    """Searches the space for the best settings, starting from `start`."""
    search = _SettingsSearch(measure)
    best = search.try_settings(start, 0.0)
    improved = True
    while improved:
        before = best
        best = search.best_of(best, [_split(best.settings, *split) for split in space.splits], "workers × threads")
        best = search.climb(best, "max_batch", space.batches)
        # A batch of one does not wait, so its delay has no effect.
        if best.settings.max_batch > 1:
            best = search.climb(best, "max_batch_delay_ms", space.delays_ms)
        improved = best != before
    return Tuning(best, tuple(search.tried.values()), tuple(search.why))


class _SettingsSearch:
    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.tried: dict[ServingSettings, TriedSettings] = {}
        self.why: list[str] = []

    def try_settings(self, settings: ServingSettings, to_beat: float) -> TriedSettings:
        # Settings that did not hold an earlier rate do not hold a later one, which is higher.
        if settings not in self.tried:
            self.tried[settings] = TriedSettings(settings, self._measure(settings, to_beat), to_beat)
        return self.tried[settings]

    def best_of(self, best: TriedSettings, others: Sequence[ServingSettings], name: str) -> TriedSettings:
        known = len(self.tried)
        winner = best
        for settings in others:
            tried = self.try_settings(settings, _BETTER * _rps(winner))
            winner = tried if _is_better(tried, winner) else winner
        if winner != best or len(self.tried) > known:
            self._explain(name, best, winner)
        return winner

    def climb(self, best: TriedSettings, field: str, values: Sequence[int]) -> TriedSettings:
        """Moves one field up or down, as long as each step is better."""
        begun, known = best, len(self.tried)
        current = getattr(best.settings, field)
        up = [value for value in sorted(values) if value > current]
        down = [value for value in sorted(values, reverse=True) if value < current]
        for direction in (up, down):
            for value in direction:
                tried = self.try_settings(best.settings.model_copy(update={field: value}), _BETTER * _rps(best))
                if not _is_better(tried, best):
                    break
                best = tried
            if best != begun:
                break
        if best != begun or len(self.tried) > known:
            self._explain(field, begun, best)
        return best

    def _explain(self, name: str, before: TriedSettings, after: TriedSettings) -> None:
        if after == before:
            kept = f"{_shown(name, after)}, {figure(_rps(after))} requests/s"
            self.why.append(f"`{name}`: nothing else tried is better than {kept}")
        else:
            change = f"{_shown(name, before)} to {_shown(name, after)}"
            rates = f"{figure(_rps(before))} to {figure(_rps(after))} requests/s"
            self.why.append(f"`{name}`: {change} raises the knee from {rates}")


def _split(settings: ServingSettings, workers: int, threads: int) -> ServingSettings:
    return settings.model_copy(update={"workers": workers, "threads": threads})


def _is_better(tried: TriedSettings, other: TriedSettings) -> bool:
    return _rps(tried) > _BETTER * _rps(other)


def _rps(tried: TriedSettings) -> float:
    return tried.rps or 0.0


def _shown(name: str, tried: TriedSettings) -> str:
    if name == "workers × threads":
        return f"{tried.settings.workers} × {tried.settings.threads}"
    return str(getattr(tried.settings, name))
