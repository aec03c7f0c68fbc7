"""Defects that are put into sound manifests, one at a time, each with the only rule that must find it.

A path is the keys that lead to a place, separated by blanks; a number is the index of a list item.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import yaml

Objects = list[dict[str, Any]]
Change = Callable[[Objects], None]

POD = "spec template spec"
SERVER = f"{POD} containers 0"
HPA, PDB = "HorizontalPodAutoscaler", "PodDisruptionBudget"
KEDA = {"scaling.autoscaler": "keda"}
ROUTE = {"kubernetes.route": {"gateway": "edge/public"}}
REDIS = {"serving.cache": {"redis": "redis://cache.tools.svc"}}
BY_SERVICE = {"kubernetes.monitoring": {"monitor": "service"}}
FIXED = {"scaling.autoscaler": "none", "scaling.min_replicas": 2}
CLAIM = {"kubernetes.model": {"claim": "models"}}


@dataclass(frozen=True)
class Seed:
    """One defect."""

    rule: str
    changes: tuple[Change, ...]
    base: dict[str, Any] = field(default_factory=dict)
    """Changes of the spec from which the sound manifests are rendered."""
    foreign: bool = False
    """Whether only the objects are known, as for manifests of others."""


def seed(rule: str, *changes: Change, base: dict[str, Any] | None = None, foreign: bool = False) -> Seed:
    return Seed(rule, changes, base or {}, foreign)


def sown(objects: Objects, seed: Seed) -> Objects:
    """A copy of sound objects with the defect in them."""
    copy = deepcopy(objects)
    for change in seed.changes:
        change(copy)
    return copy


def put(kind: str, path: str, value: Any) -> Change:
    """Writes a value, and the mappings on the way to it."""

    def change(objects: Objects) -> None:
        place, last = _reach(objects, kind, path)
        if isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value

    return change


def drop(kind: str, path: str) -> Change:
    """Deletes a value."""

    def change(objects: Objects) -> None:
        place, last = _reach(objects, kind, path)
        del place[last]

    return change


def move(kind: str, path: str, other: str) -> Change:
    """Renames a key."""

    def change(objects: Objects) -> None:
        place, last = _reach(objects, kind, path)
        place[other] = place.pop(last)

    return change


def add(text: str) -> Change:
    """Adds an object, with the labels and the namespace of the others."""

    def change(objects: Objects) -> None:
        added = yaml.safe_load(text)
        given = added.setdefault("metadata", {})
        usual = next(other for other in objects if other["kind"] == "Deployment")["metadata"]
        added["metadata"] = {"name": "other", "namespace": usual["namespace"], "labels": dict(usual["labels"])} | given
        objects.append(added)

    return change


def without(kind: str) -> Change:
    """Removes every object of a kind."""

    def change(objects: Objects) -> None:
        assert any(document["kind"] == kind for document in objects)
        objects[:] = [document for document in objects if document["kind"] != kind]

    return change


def bare(objects: Objects) -> None:
    """Turns Marina's pods into pods of a stock TorchServe image, as others write them."""
    template = next(document for document in objects if document["kind"] == "Deployment")["spec"]["template"]
    template["metadata"].pop("annotations")
    template["spec"]["containers"][0]["image"] = "registry.local/torchserve:0.12@sha256:" + "a" * 64
    template["spec"]["containers"][0]["env"] = [{"name": "TS_DISABLE_TOKEN_AUTHORIZATION", "value": "true"}]
    template["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 10}}}


def _reach(objects: Objects, kind: str, path: str) -> tuple[Any, Any]:
    place: Any = next(document for document in objects if document["kind"] == kind)
    *keys, last = [int(key) if key.isdigit() else key for key in path.split()]
    for key in keys:
        place = place[key] if isinstance(key, int) else place.setdefault(key, {})
    return place, last
