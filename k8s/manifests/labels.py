"""The labels and annotations of every object, and the labels that selectors use because they never change."""

from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest

PART_OF = MANAGED_BY = "marina"
INFERENCE_COMPONENT = "inference"
JUDGE = "judge"
NAME_LABEL = "app.kubernetes.io/name"
# Marina's annotations: hashes of what an object was made from.
PACKAGE_ANNOTATION, CONFIG_ANNOTATION, EVIDENCE_ANNOTATION = "marina/package", "marina/config", "marina/evidence"


def selector_labels(plan: Plan, component: str = INFERENCE_COMPONENT) -> dict[str, str]:
    """The labels for selectors, which are the same for every version."""
    return {
        NAME_LABEL: plan.name,
        "app.kubernetes.io/instance": plan.name,
        "app.kubernetes.io/component": component,
    }


def pods_selector(plan: Plan) -> dict[str, str]:
    """The labels of all pods that serve. Flagger renames those that clients reach: it appends `-primary` to their
    `app.kubernetes.io/name`."""
    whole = selector_labels(plan)
    return {key: value for key, value in whole.items() if plan.engine != "flagger" or key != NAME_LABEL}


def labels(plan: Plan, component: str = INFERENCE_COMPONENT) -> dict[str, str]:
    """All labels of an object."""
    return selector_labels(plan, component) | {
        "app.kubernetes.io/version": plan.spec.version,
        "app.kubernetes.io/part-of": PART_OF,
        "app.kubernetes.io/managed-by": MANAGED_BY,
    }


def metadata(
    plan: Plan,
    name: str | None = None,
    *,
    component: str = INFERENCE_COMPONENT,
    annotations: dict[str, str] | None = None,
) -> Manifest:
    """The metadata of an object; its name is the plan's unless given."""
    known = {"name": name or plan.name, "namespace": plan.namespace, "labels": labels(plan, component)}
    return known | ({"annotations": annotations} if annotations else {})
