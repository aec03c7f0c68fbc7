"""Runs the Job of a load test: creates it, follows and returns the log of its leading pod, and deletes it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from marina.config.errors import ClusterError
from marina.config.progress import Progress
from marina.k8s.cluster import Cluster, Document, Ref
from marina.k8s.manifests import LOAD_CONTAINER, LoadJob, Plan, load_objects
from marina.k8s.rollout.diagnosis import DeploymentView, find_problem, find_refusal
from marina.k8s.rollout.inference import pod_page, served_package
from marina.k8s.rollout.wait import POLL_S

_RECENT_LINES, _ALL_LINES, _ERROR_LINES = 3, 100_000, 20
_INDEX = "batch.kubernetes.io/job-completion-index"
# Time for pods to get a node and the image, on top of the load itself.
_STARTUP_S = 900.0


def run_load(
    cluster: Cluster,
    plan: Plan,
    job: LoadJob,
    *,
    on_line: Callable[[str], None],
    progress: Progress,
    ends: threading.Event | None = None,
) -> list[str]:
    """The whole log of the leading pod; nothing if the load was ended before its time. Raises ClusterError if a pod
    fails or the load takes too long."""
    with _created(cluster, plan, job, progress):
        leader = _follow(cluster, plan, job, on_line, progress, ends or threading.Event())
        if leader is None:
            return []
        return cluster.logs(plan.namespace, leader, LOAD_CONTAINER, lines=_ALL_LINES).splitlines()


def served_packages(cluster: Cluster, plan: Plan, pods: Iterable[str]) -> list[str]:
    """The sha256 of the package that each pod reports. Raises ClusterError if one cannot be read."""
    packages = []
    for pod in pods:
        sha256 = served_package(cluster, plan.namespace, pod)
        if not sha256:
            raise ClusterError(f"cannot read by a port-forward to {pod} which package it serves")
        packages.append(sha256)
    return packages


def pod_metrics(cluster: Cluster, plan: Plan, pod: str) -> str:
    """The metrics page of a pod's supervisor; empty if it cannot be read."""
    return pod_page(cluster, plan.namespace, pod, "metrics").decode(errors="replace")


@contextmanager
def _created(cluster: Cluster, plan: Plan, job: LoadJob, progress: Progress) -> Iterator[None]:
    """Creates the Job and the objects that it owns; the cluster deletes these with the Job."""
    first, *others = load_objects(plan, job)
    uid = cluster.create(first)["metadata"]["uid"]
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": uid}
        for document in others:
            cluster.create(document | {"metadata": document["metadata"] | {"ownerReferences": [owner]}})
        yield
    finally:
        try:
            cluster.delete(Ref.of(first), uid=uid)
        except ClusterError as err:
            # What was measured must not be lost; the cluster deletes the Job an hour after it ended.
            progress.say(f"note: Job {job.name} is not deleted yet: {err.message}")


def _follow(
    cluster: Cluster,
    plan: Plan,
    job: LoadJob,
    on_line: Callable[[str], None],
    progress: Progress,
    ends: threading.Event,
) -> str | None:
    """Waits until the leading pod has succeeded, and returns its name; None if `ends` came first. Raises ClusterError
    if a pod has failed or cannot start; the others would only wait for it."""
    until, reported = time.monotonic() + job.seconds + _STARTUP_S, dict[str, str]()

    def report(name: str, text: str) -> None:
        if reported.get(name) != text:
            reported[name] = text
            progress.say(f"  {name}  {text}")

    while True:
        view = _read_view(cluster, plan, job)
        for pod in view.pods:
            name, phase, problem = pod["metadata"]["name"], _phase(pod), find_problem(pod, view)
            report(name, phase + (f": {problem.text}" if problem else ""))
            if phase == "Failed" or (problem and problem.final):
                words = cluster.logs(plan.namespace, name, LOAD_CONTAINER, lines=_ERROR_LINES)
                lines = "".join(f"\n    | {line}" for line in words.splitlines())
                raise ClusterError(f"the load cannot run: {name}: {problem.text if problem else 'it failed'}{lines}")
        if refused := None if view.pods else find_refusal(job.name, view.events):
            if refused.final:
                raise ClusterError(f"the load cannot run: {refused}", hint=refused.hint)
            report(job.name, refused.text)
        if leader := next((pod for pod in view.pods if _index(pod) == 0), None):
            name = leader["metadata"]["name"]
            if _phase(leader) == "Succeeded":
                return str(name)
            for line in cluster.logs(plan.namespace, name, LOAD_CONTAINER, lines=_RECENT_LINES).splitlines():
                on_line(line)
        if time.monotonic() > until:
            states = ", ".join(f"{name} {text}" for name, text in sorted(reported.items())) or "no pod was created"
            raise ClusterError(f"the load did not end within {job.seconds + _STARTUP_S:g} s: {states}")
        if ends.wait(POLL_S):
            return None


def _read_view(cluster: Cluster, plan: Plan, job: LoadJob) -> DeploymentView:
    pods = cluster.list("v1", "Pod", plan.namespace, labels=f"marina/run={job.name}")
    events: list[Document] = []
    with contextlib.suppress(ClusterError):
        events = cluster.list("v1", "Event", plan.namespace, fields="type=Warning")
    return DeploymentView({}, pods=tuple(pods), events=tuple(events))


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _index(pod: Document) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX, -1))
