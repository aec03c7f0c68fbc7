"""What the verbs are about: one spec's deployment in one cluster, and how its user wants it changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from k8s.cluster import Cluster
from k8s.rollout.history import Store


@dataclass(frozen=True)
class Placement:
    """Where one spec is, or will be, deployed: all that going back, deleting and looking need."""

    cluster: Cluster
    name: str
    namespace: str
    typed: str = "SPEC"
    """How it was named on the command line, for what to type next."""

    @property
    def store(self) -> Store:
        """What the cluster remembers of it."""
        return Store(self.cluster, self.namespace, self.name)


@dataclass(frozen=True)
class RolloutOptions:
    """The options of the verbs that change a cluster."""

    timeout_s: float | None = None
    """How long a rollout may take; default: as long as it makes progress."""
    force: bool = False
    """Take over fields that others own."""
    go_back: bool = True
    dry_run: bool = False
    accepted: Collection[str] = ()
    """Ids of the blockers that are passed over."""
