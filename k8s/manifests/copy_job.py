"""A copy of a pod of the service, as a Job, which the cluster itself ends and deletes, whoever made it.

Its labels are not those of the service: neither the Service nor the autoscaler nor the disruption budget knows it."""

from collections.abc import Mapping
from typing import Any

from marina.k8s.manifests import network
from marina.k8s.manifests.labels import labels, metadata, selector_labels
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest, ordered, resource

COPY = "copy"
_TTL_S = 60


def copy_selector(plan: Plan, name: str) -> dict[str, str]:
    """The labels of the copy only."""
    return selector_labels(plan, COPY) | {"marina/run": name}


def copy_objects(plan: Plan, name: str, pod_spec: Mapping[str, Any], seconds: int) -> list[Manifest]:
    """The Job and, if the service has one, its NetworkPolicy for the copy; the Job owns it. `pod_spec` is that of the
    Deployment's template."""
    # Its pods are spread by labels that the copy does not have.
    left_out = ("topologySpreadConstraints",)
    kept = {key: value for key, value in pod_spec.items() if key not in left_out}
    own = copy_selector(plan, name)
    spec = {
        "activeDeadlineSeconds": seconds,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels(plan, COPY) | own}, "spec": kept | {"restartPolicy": "Never"}},
        "ttlSecondsAfterFinished": _TTL_S,
    }
    named = metadata(plan, name, component=COPY)
    objects = [resource("batch/v1", "Job", named, spec=spec)]
    if plan.spec.kubernetes.network.policy:
        allowed = network.network_policy(plan)
        policy = allowed["spec"] | {"podSelector": {"matchLabels": own}}
        objects.append(resource(allowed["apiVersion"], allowed["kind"], named, spec=policy))
    return ordered(*objects)
