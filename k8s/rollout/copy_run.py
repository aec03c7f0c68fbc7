"""Runs a copy of a pod of the service beside it, for as long as it is measured."""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from marina.config.errors import ClusterError
from marina.config.progress import Progress
from marina.k8s.cluster import Cluster, Document, Endpoint, Ref, is_ready, label_text
from marina.k8s.manifests import Plan, copy_objects, copy_selector
from marina.k8s.rollout.diagnosis import DeploymentView, find_problem
from marina.k8s.rollout.wait import POLL_S

# A node and its image, on top of a start.
_STARTUP_S = 300
# How long the copy outlives who made it, and how often its end is put off.
_LEASE_S, _EXTEND_S = 600, 120


@contextmanager
def copied_pod(cluster: Cluster, plan: Plan, progress: Progress) -> Iterator[Endpoint]:
    """A ready copy, deleted at the end of the context; by the cluster, ten minutes after this process was killed.
    Raises ClusterError if there is no Deployment, or the copy does not become ready."""
    deployment = Ref("apps/v1", "Deployment", plan.namespace, plan.name)
    live = cluster.get(deployment)
    if live is None:
        raise ClusterError(f"there is no {deployment} in namespace `{plan.namespace}`", hint="marina deploy SPEC")
    name, pod_spec = f"{plan.name}-copy-{secrets.token_hex(3)}", live["spec"]["template"]["spec"]
    begun = time.monotonic()
    job, *others = copy_objects(plan, name, pod_spec, plan.startup_budget_s + _STARTUP_S + _LEASE_S)
    uid = cluster.create(job)["metadata"]["uid"]
    done = threading.Event()
    keeper = threading.Thread(target=_extend, args=(cluster, Ref.of(job), begun, done), name="copy", daemon=True)
    keeper.start()
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        for document in others:
            cluster.create(document | {"metadata": document["metadata"] | {"ownerReferences": [owner]}})
        with progress.step(f"start a copy of a pod, {name}"):
            pod = _ready_pod(cluster, plan, name)
        yield Endpoint(pod["metadata"]["name"], pod["status"]["podIP"], _port(pod_spec, plan), pod)
    finally:
        done.set()
        keeper.join()
        try:
            cluster.delete(Ref.of(job), uid=uid)
        except ClusterError as err:
            # What was measured must not be lost.
            progress.say(f"note: Job {name} is not deleted yet: {err.message}")


def _extend(cluster: Cluster, job: Ref, begun: float, done: threading.Event) -> None:
    """Puts off the end of the Job again and again."""
    metadata = {"name": job.name, "namespace": job.namespace}
    while not done.wait(_EXTEND_S):
        spec = {"activeDeadlineSeconds": int(time.monotonic() - begun) + _EXTEND_S + _LEASE_S}
        document = {"apiVersion": job.api_version, "kind": job.kind, "metadata": metadata, "spec": spec}
        with suppress(ClusterError):
            cluster.apply(document, force=True)


def _port(pod_spec: Document, plan: Plan) -> int:
    ports = [port for container in pod_spec["containers"] for port in container.get("ports") or []]
    named = (int(port["containerPort"]) for port in ports if port.get("name") == "inference")
    return next(named, plan.ports.inference)


def _ready_pod(cluster: Cluster, plan: Plan, name: str) -> Document:
    until = time.monotonic() + plan.startup_budget_s + _STARTUP_S
    while True:
        pods = cluster.list("v1", "Pod", plan.namespace, labels=label_text(copy_selector(plan, name)))
        if pods and is_ready(pods[0]) and pods[0]["status"].get("podIP"):
            return pods[0]
        events: list[Document] = []
        with suppress(ClusterError):
            events = cluster.list("v1", "Event", plan.namespace, fields="type=Warning")
        view = DeploymentView({}, pods=tuple(pods), events=tuple(events))
        problem = find_problem(pods[0], view) if pods else None
        late = time.monotonic() > until
        if late or (problem and problem.final):
            why = problem.text if problem else "it is not ready" if pods else "no pod was created"
            raise ClusterError(f"the copy of a pod cannot be measured: {name}: {why}")
        time.sleep(POLL_S)
