"""How others judge a new revision on the same windows, written anew from what their documentation describes.

Argo Rollouts' and Flagger's examples compare one number a minute with a threshold and count the misses. Kayenta
compares the minutes' numbers of both revisions with a test by Mann and Whitney."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import NormalDist

from marina.config.histogram import Histogram
from marina.loadtest.gating import LiveRound, PodWindow

Said = str
Rule = Callable[[Sequence[LiveRound]], Said]
# The objective that the thresholds are set by, as their users do: a tenth above what the old revision has.
_HEADROOM = 1.1


def minutes(rounds: Sequence[LiveRound], windows: int = 12) -> list[tuple[PodWindow, PodWindow]]:
    """The old and new revision's answers in each minute of `windows` windows."""
    cuts = range(0, len(rounds) - windows + 1, windows)
    return [
        (_joined([pod for each in rounds[at : at + windows] for pod in each.old.values()]),
         _joined([pod for each in rounds[at : at + windows] for pod in each.new.values()]))
        for at in cuts
    ]  # fmt: skip


def argo_success(rounds: Sequence[LiveRound]) -> Said:
    """`successCondition: result[0] >= 0.99`, ten measurements a minute apart, `failureLimit: 3`."""
    return _threshold(rounds, 10, 3, lambda minute: _success(minute) >= 0.99)


def argo_docs(rounds: Sequence[LiveRound]) -> Said:
    """As their documentation writes it: `result[0] >= 0.95`, `failureLimit: 3`."""
    return _threshold(rounds, 10, 3, lambda minute: _success(minute) >= 0.95)


def flagger_docs(rounds: Sequence[LiveRound]) -> Said:
    """`request-success-rate` of at least 99 and a `request-duration` (p99) within the objective, every minute, rolled
    back after five failed checks of ten."""
    before = _joined([pod for each in rounds for pod in each.old.values()]).response.percentile(0.99) or 0.0
    limit = _HEADROOM * before
    return _threshold(
        rounds, 10, 4, lambda minute: _success(minute) >= 0.99 and (minute.response.percentile(0.99) or 0.0) <= limit
    )


def argo_p99(rounds: Sequence[LiveRound]) -> Said:
    """A p99 within the objective in every one of ten minutes, `failureLimit: 0`."""
    before = _joined([pod for each in rounds for pod in each.old.values()]).response.percentile(0.99) or 0.0
    return _threshold(rounds, 10, 0, lambda minute: (minute.response.percentile(0.99) or 0.0) <= _HEADROOM * before)


def kayenta(rounds: Sequence[LiveRound]) -> Said:
    """Of six figures a minute (p50, p90, p99, mean, largest, failures), none is High.

    High is a figure of which the 98 % interval of Hodges and Lehmann's shift lies above a quarter of the shift itself:
    the tolerance is relative to the shift, not to the figure, so it is a test of any difference at all."""
    pairs = minutes(rounds)
    figures: list[Callable[[PodWindow], float]] = [
        lambda minute: minute.response.percentile(0.5) or 0.0,
        lambda minute: minute.response.percentile(0.9) or 0.0,
        lambda minute: minute.response.percentile(0.99) or 0.0,
        lambda minute: minute.response.mean_ms or 0.0,
        lambda minute: minute.response.max_ms,
        lambda minute: minute.failed / max(1, minute.answered),
    ]
    high = any(_high([of(old) for old, _ in pairs], [of(new) for _, new in pairs]) for of in figures)
    return "FAIL" if high else "PASS"


RULES: dict[str, Rule] = {
    "Argo: success >= 0.99, limit 3": argo_success,
    "Argo: success >= 0.95, limit 3": argo_docs,
    "Argo: p99 <= objective, limit 0": argo_p99,
    "Flagger: 99 % and p99, 5 of 10": flagger_docs,
    "Kayenta: six figures": kayenta,
}


def _threshold(rounds: Sequence[LiveRound], most: int, failures: int, holds: Callable[[PodWindow], bool]) -> Said:
    missed = sum(not holds(new) for _, new in minutes(rounds)[:most])
    return "FAIL" if missed > failures else "PASS"


def _success(minute: PodWindow) -> float:
    return minute.response.count / max(1, minute.answered)


def _high(old: Sequence[float], new: Sequence[float]) -> bool:
    shifts = sorted(after - before for before, after in product(old, new))
    if not shifts or shifts[0] == shifts[-1]:
        return False
    normal = NormalDist().inv_cdf(0.99)
    count = len(old)
    cut = int(count * count / 2 - normal * math.sqrt(count * count * (2 * count + 1) / 12))
    return shifts[max(0, cut)] > 0.25 * abs(shifts[len(shifts) // 2])


def _joined(windows: Sequence[PodWindow]) -> PodWindow:
    whole = Histogram(windows[0].response.limits)
    for each in windows:
        whole.merge(each.response)
    return PodWindow(whole, sum(each.failed for each in windows))
