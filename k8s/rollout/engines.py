"""Whether another engine replaces the pods of a service: then `deploy` must not, and `status` names who to ask."""

from dataclasses import dataclass
from shlex import quote

from marina.k8s.cluster import ApiError, Cluster, Ref

# By kind: its API version, the engine, the format of `marina manifests`, and what shows its state.
_ENGINES = {
    "Rollout": ("argoproj.io/v1alpha1", "Argo Rollouts", "argo-rollouts", "kubectl argo rollouts get rollout"),
    "Canary": ("flagger.app/v1beta1", "Flagger", "flagger", "kubectl get canary"),
}


@dataclass(frozen=True)
class OtherEngine:
    """What replaces the pods of a service instead of `deploy`."""

    ref: Ref
    name: str
    output_format: str
    show: str
    """The command that shows its state."""

    @property
    def text(self) -> str:
        return f"{self.name} replaces its pods, as {self.ref} says"


def find_engine(cluster: Cluster, name: str, namespace: str) -> OtherEngine | None:
    """The engine that has an object of this name; None if there is none, or if it may not be read."""
    for kind, (version, engine, output_format, show) in _ENGINES.items():
        ref = Ref(version, kind, namespace, name)
        try:
            if cluster.plural(version, kind) and cluster.get(ref):
                return OtherEngine(ref, engine, output_format, f"{show} {quote(name)} -n {quote(namespace)}")
        except ApiError as err:
            if err.status != 403:
                raise
    return None
