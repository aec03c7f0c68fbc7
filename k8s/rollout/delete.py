"""Takes one release out of a cluster: what it applied, and nothing else."""

from __future__ import annotations

from config.errors import Refused
from k8s.rollout.cluster import Cluster, Ref
from k8s.rollout.deploy import load
from k8s.rollout.history import others_in
from k8s.rollout.record import Rollout
from k8s.rollout.steps import Steps

# What somebody would miss; the rest of a namespace comes and goes with it, or is made by the cluster itself.
_MISSED = (
    ("apps/v1", "DaemonSet"), ("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "CronJob"),
    ("batch/v1", "Job"), ("v1", "ConfigMap"), ("v1", "PersistentVolumeClaim"), ("v1", "Secret"), ("v1", "Service"),
)  # fmt: skip
_MADE_BY_CLUSTERS = ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert")


def delete(steps: Steps, *, namespace: bool = False) -> Rollout:
    """Deletes what this spec applied; its Namespace only when asked, if it made it, and if nothing else is in it."""
    record = steps.record("delete")
    with steps.told(record):
        steps.state = load(steps)
        record.previous = record.running = steps.state.current
        space = [ref for ref in steps.state.objects if ref.kind == "Namespace"]
        if namespace:
            _check_namespace(steps, space)
        with steps.held(record):
            steps.save(phase="deleting")
            steps.prune(record, [ref for ref in steps.state.objects if ref not in space])
            steps.store.erase()
            if namespace:
                steps.prune(record, space)
        record.result, record.running = "deleted", 0
    return record


def _check_namespace(steps: Steps, space: list[Ref]) -> None:
    name = steps.release.namespace
    hint = f"marina delete {steps.how.spec} without `--namespace` leaves it"
    if not space:
        raise Refused(f"namespace `{name}` was not made by this spec, so it stays", hint=hint)
    if others := others_in(steps.cluster, name, steps.release.name):
        raise Refused(f"namespace `{name}` also holds {', '.join(f'`{one}`' for one in others)}", hint=hint)
    if strangers := _strangers(steps.cluster, name, steps):
        shown = ", ".join(map(str, strangers[:5])) + (f" and {len(strangers) - 5} more" if len(strangers) > 5 else "")
        raise Refused(f"namespace `{name}` also holds what this spec did not make: {shown}", hint=hint)


def _strangers(cluster: Cluster, namespace: str, steps: Steps) -> list[Ref]:
    found = []
    for version, kind in _MISSED:
        for item in cluster.list(version, kind, namespace)["items"]:
            metadata = item["metadata"]
            ref = Ref(version, kind, namespace, metadata["name"])
            known = ref in steps.state.objects or ref.name in _MADE_BY_CLUSTERS or metadata.get("ownerReferences")
            if not known and not steps.store.owns(ref):
                found.append(ref)
    return found
