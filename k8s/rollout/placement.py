"""The arguments of the verbs: where a release is, and the user's options."""

from collections.abc import Collection
from dataclasses import dataclass

from marina.k8s.cluster import Cluster
from marina.k8s.rollout.history import Store


@dataclass(frozen=True)
class Placement:
    """Where one spec is, or will be, deployed. Rollback, delete and status need nothing else."""

    cluster: Cluster
    name: str
    namespace: str
    typed: str = "SPEC"
    """How the user named it on the command line, for the hints about what to type next."""

    @property
    def store(self) -> Store:
        """The release's state and revisions in the cluster."""
        return Store(self.cluster, self.namespace, self.name, self.typed)


@dataclass(frozen=True)
class RolloutOptions:
    """The options of the verbs that change a cluster."""

    timeout_s: float | None = None
    """How long a rollout may take; None: as long as it makes progress."""
    force: bool = False
    """Take over fields that others own."""
    go_back: bool = True
    """Go back to the revision before if the rollout fails."""
    dry_run: bool = False
    accepted: Collection[str] = ()
    """Ids of the blockers to ignore."""
