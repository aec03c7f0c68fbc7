"""What makes the pods of a service, and by which series and names expressions find them."""

from dataclasses import dataclass
from typing import Literal

Engine = Literal["", "argo-rollouts", "flagger"]
"""What replaces the pods of a version by those of the next one; empty for a Deployment alone."""


@dataclass(frozen=True)
class Workload:
    """What makes the pods."""

    api_version: str
    kind: str
    shown: str
    """Who wants the pods, in a sentence."""
    wanted: str
    """The series of the pods that it wants."""
    available: str
    between: str = ""
    """A pattern for what may stand between the model's name and the hash in the name of a pod."""
    scaled: str = ""
    """What the name of the object that the autoscaler scales has after the model's."""

    def pods(self, series: str, namespace: str, model: str) -> str:
        """The value of one of its series; `max`, because two exporters in one cluster export each of them twice."""
        if self.kind == "Rollout":
            # Argo's controller exports the labels `namespace` and `name`. If its scrape does not honour them, the first
            # is renamed; both forms are found.
            renamed = f'{series}{{exported_namespace="{namespace}",name="{model}"}}'
            renamed = f'label_replace({renamed}, "namespace", "$1", "exported_namespace", "(.*)")'
            return f'max by (namespace) ({series}{{namespace="{namespace}",name="{model}"}} or {renamed})'
        if self.between:
            both = f'{series}{{namespace="{namespace}",deployment=~"{model}{self.between}"}}'
            return f"sum by (namespace) (max by (namespace, deployment) ({both}))"
        return f'max by (namespace) ({series}{{namespace="{namespace}",deployment="{model}"}})'

    def autoscalers(self, model: str) -> str:
        """A pattern for the name of the HorizontalPodAutoscaler, which is a different one if KEDA makes it."""
        scaled = f"{model}{self.scaled}"
        return f"{scaled}|keda-hpa-{scaled}"


_WANTED, _AVAILABLE = "kube_deployment_spec_replicas", "kube_deployment_status_replicas_available"
# Flagger runs what serves as a Deployment with `-primary` in its name, and gives that an autoscaler of its own. The one
# of the next version has no pods between rollouts, and so an autoscaler that is switched off.
WORKLOADS: dict[Engine, Workload] = {
    "": Workload("apps/v1", "Deployment", "the Deployment wants", _WANTED, _AVAILABLE),
    "argo-rollouts": Workload(
        "argoproj.io/v1alpha1",
        "Rollout",
        "the Rollout wants",
        "rollout_info_replicas_desired",
        "rollout_info_replicas_available",
    ),
    "flagger": Workload(
        "apps/v1", "Deployment", "the Deployments want", _WANTED, _AVAILABLE, "(-primary)?", "-primary"
    ),
}
DEPLOYMENT = WORKLOADS[""]
