"""Deletes one release from a cluster: the objects that Marina applied, and nothing else."""

from pathlib import Path

from marina.config.errors import Refused
from marina.config.progress import Progress
from marina.k8s.cluster import Ref
from marina.k8s.rollout.apply import dry_run_all, prune_objects
from marina.k8s.rollout.history import State, others_in
from marina.k8s.rollout.hold import held
from marina.k8s.rollout.placement import Placement
from marina.k8s.rollout.preflight import check_permissions
from marina.k8s.rollout.record import RolloutRecord, recorded, start_record
from marina.k8s.rollout.rollback import load_state

# Kinds that somebody would miss if their namespace were deleted; the cluster makes most other objects itself.
_PRECIOUS = (
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "CronJob"),
    ("batch/v1", "Job"),
    ("v1", "ConfigMap"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
    ("v1", "Service"),
)
# ConfigMaps that clusters put into every namespace.
_MADE_BY_CLUSTERS = ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert")
_SHOWN = 5


def delete(
    placement: Placement, progress: Progress, record_file: Path | None, *, with_namespace: bool = False
) -> RolloutRecord:
    """Deletes everything that this spec applied. `with_namespace` deletes the Namespace too, if the spec created it and
    nothing else is in it."""
    record = start_record("delete", placement)
    with recorded(record, record_file):
        state = load_state(placement)
        record.previous = record.running = state.current
        spaces = [ref for ref in state.objects if ref.kind == "Namespace"]
        if with_namespace:
            _check_namespace(placement, state, spaces)
        else:
            spaces.clear()
        objects = [ref for ref in state.objects if ref.kind != "Namespace"]
        check_permissions(placement.cluster, (*objects, *spaces), placement.namespace, deleting=True)
        dry_run_all(placement.cluster, (), (*objects, *spaces)).check()
        words = " --with-namespace" if with_namespace else ""
        with held(placement, state, record, progress, words=words) as hold:
            hold.save(phase="deleting")
            record.running = 0
            record.pruned += prune_objects(placement.cluster, objects, progress)
            gone = prune_objects(placement.cluster, spaces, progress)
            record.pruned += gone
            # The cluster deletes all that is in a namespace, and with it perhaps our permissions.
            if not gone:
                rest = [placement.cluster.get(ref) for ref in objects if str(ref) not in record.pruned]
                left = [live for live in rest if live and "deletionTimestamp" not in live["metadata"]]
                record.left = [str(Ref.of(live)) for live in left]
                placement.store.erase()
            hold.state = State()
        record.result = "deleted"
    return record


def _check_namespace(placement: Placement, state: State, spaces: list[Ref]) -> None:
    name = placement.namespace
    hint = f"marina delete {placement.typed} without `--with-namespace` leaves it"
    if not spaces:
        raise Refused(f"namespace `{name}` was not created by this spec, so it stays", hint=hint)
    if others := others_in(placement.cluster, name, placement.name):
        raise Refused(f"namespace `{name}` also holds {', '.join(f'`{other}`' for other in others)}", hint=hint)
    if foreign := _foreign_objects(placement, state):
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        shown = ", ".join(map(str, foreign[:_SHOWN])) + more
        raise Refused(f"namespace `{name}` also holds objects that this spec did not create: {shown}", hint=hint)


def _foreign_objects(placement: Placement, state: State) -> list[Ref]:
    foreign = []
    for version, kind in _PRECIOUS:
        for item in placement.cluster.list(version, kind, placement.namespace)["items"]:
            metadata = item["metadata"]
            ref = Ref(version, kind, placement.namespace, metadata["name"])
            known = ref in state.objects or ref.name in _MADE_BY_CLUSTERS or metadata.get("ownerReferences")
            if not known and not placement.store.owns(ref):
                foreign.append(ref)
    return foreign
