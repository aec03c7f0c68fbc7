"""How many pods each ReplicaSet of a Deployment is to have next, as the Deployment controller decides it in one look.

A rolling update adds pods of the new template as far as the surge allows, and takes old ones away as far as enough are
available. While a Deployment is paused, no ReplicaSet is made; and whenever its number of pods changes in the middle of
an update, paused or not, the change is divided among its ReplicaSets in proportion to their sizes.
https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#proportional-scaling"""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """One ReplicaSet."""

    name: str
    replicas: int
    available: int
    wanted: int
    """How many pods the Deployment wanted when the ReplicaSet was last scaled."""
    most: int
    """And how many it might have had then, with its surge."""
    age: int
    """Its revision: older ones have smaller numbers."""


@dataclass(frozen=True)
class Limits:
    """What a Deployment asks for."""

    replicas: int
    surge: int
    unavailable: int
    paused: bool = False

    @classmethod
    def of(cls, spec: dict[str, Any]) -> "Limits":
        rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
        replicas = spec["replicas"]
        surge = _count(rolling.get("maxSurge", "25%"), replicas, math.ceil)
        unavailable = _count(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
        return cls(replicas, surge, unavailable if surge or unavailable else 1, bool(spec.get("paused")))

    @property
    def most(self) -> int:
        return self.replicas + self.surge if self.replicas else 0


def next_sizes(limits: Limits, newest: Size | None, older: list[Size]) -> dict[str, int]:
    """The sizes after the controller's next look; those that it leaves alone are as they were."""
    every = [*older, *([newest] if newest else [])]
    sizes = {each.name: each.replicas for each in every}
    scaled = any(each.replicas and each.wanted != limits.replicas for each in every)
    if limits.paused or scaled:
        return sizes | _scaled(limits, newest, older)
    if newest:
        grown = _new_size(limits, newest, older)
        if grown != newest.replicas:
            return sizes | {newest.name: grown}
        return sizes | _old_sizes(limits, newest, older)
    return sizes


def _scaled(limits: Limits, newest: Size | None, older: list[Size]) -> dict[str, int]:
    every = [*older, *([newest] if newest else [])]
    active = [each for each in every if each.replicas]
    if len(active) < 2:
        only = active[0] if active else newest or max(older, key=lambda each: each.age, default=None)
        return {only.name: limits.replicas} if only else {}
    if newest and newest.replicas == newest.wanted == newest.available == limits.replicas:
        return {each.name: 0 for each in older}
    more = limits.most - sum(each.replicas for each in active)
    # The largest come first; of equal ones the newer to grow, the older to shrink.
    active.sort(key=lambda each: (-each.replicas, -each.age if more > 0 else each.age))
    sizes, added = {}, 0
    for each in active:
        share = _share(limits, each, more, added)
        sizes[each.name] = each.replicas + share
        added += share
    sizes[active[0].name] = max(0, sizes[active[0].name] + more - added)
    return sizes


def _share(limits: Limits, size: Size, more: int, added: int) -> int:
    """How much of a change one ReplicaSet gets."""
    if more in (0, added):
        return 0
    if not limits.replicas:
        share = -size.replicas
    else:
        share = math.floor(size.replicas * limits.most / size.most + 0.5) - size.replicas if size.most else 0
    return min(share, more - added) if more > 0 else max(share, more - added)


def _new_size(limits: Limits, newest: Size, older: list[Size]) -> int:
    if newest.replicas >= limits.replicas:
        return limits.replicas
    room = limits.replicas + limits.surge - newest.replicas - sum(each.replicas for each in older)
    return newest.replicas + max(0, min(room, limits.replicas - newest.replicas))


def _old_sizes(limits: Limits, newest: Size, older: list[Size]) -> dict[str, int]:
    fewest = limits.replicas - limits.unavailable
    total = newest.replicas + sum(each.replicas for each in older)
    spare = total - fewest - (newest.replicas - newest.available)
    sizes = {each.name: each.replicas for each in sorted(older, key=lambda each: each.age)}
    if spare <= 0:
        return sizes
    # First those that are not available anyway, then as many as are more than enough.
    for each in older:
        gone = min(spare, each.replicas - each.available, sizes[each.name])
        sizes[each.name] -= gone
        spare -= gone
    enough = newest.available + sum(each.available for each in older) - fewest
    for name in sizes:
        gone = max(0, min(enough, sizes[name]))
        sizes[name] -= gone
        enough -= gone
    return sizes


def _count(given: int | str, replicas: int, rounded: Any) -> int:
    return int(rounded(replicas * int(given[:-1]) / 100)) if isinstance(given, str) else given
