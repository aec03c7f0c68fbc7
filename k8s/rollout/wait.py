"""Waits until a Deployment's new pods are available, reporting each pod's progress; says why when they are not."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from marina.config.errors import ClusterError
from marina.config.progress import Progress
from marina.k8s.cluster import Cluster, Document, Ref, is_ready, label_text
from marina.k8s.rollout.diagnosis import Cause, DeploymentView, find_causes, find_problem, is_hopeless

_LOG_LINES = 20
POLL_S = 1.0
# A running controller notices a change at once.
_NOTICED_S = 60.0


@dataclass(frozen=True)
class PodSummary:
    """One pod, as the progress and the status show it."""

    name: str
    phase: str
    ready: str
    restarts: int
    message: str
    node: str = ""

    def __str__(self) -> str:
        node = f" on {self.node}" if self.node else ""
        restarts = f", {self.restarts} restart{'' if self.restarts == 1 else 's'}" if self.restarts else ""
        message = f": {self.message}" if self.message else ""
        return f"{self.name}  {self.phase}{node}, {self.ready} ready{restarts}{message}"


@dataclass(frozen=True)
class WaitResult:
    complete: bool
    summary: str
    """How many pods are available, or why the wait ended without them."""
    pods: tuple[PodSummary, ...]
    causes: tuple[Cause, ...] = ()
    seconds: float = 0.0


def wait(
    cluster: Cluster, deployment: Ref, progress: Progress, *, timeout_s: float | None, new: bool = False
) -> WaitResult:
    """Follows a rollout until its pods are available, or will not be. A `new` one was applied just now."""
    begun, reported, noticed_s = time.monotonic(), dict[str, str](), 0.0
    before: str | None = None
    while True:
        view, waited_s = read_view(cluster, deployment), time.monotonic() - begun
        if view is None:
            return WaitResult(False, f"{deployment} was deleted during the wait", (), seconds=waited_s)
        _report_changes(view, reported, progress)
        if available := availability(view.deployment):
            return WaitResult(True, available, tuple(summarise_pods(view)), seconds=waited_s)
        # An autoscaler may change the number of pods during the wait, and the controller then has as long again.
        noticed_s = waited_s if _is_noticed(view.deployment) else noticed_s
        before = _given_up(view.deployment) if before is None else before
        stale = new and waited_s < _deadline_s(view.deployment) and before == _given_up(view.deployment)
        if over := _end_reason(view, waited_s, waited_s - noticed_s, timeout_s, stale=stale):
            causes = tuple(find_causes(view, _logs(cluster, deployment.namespace)))
            return WaitResult(False, over, tuple(summarise_pods(view)), causes, waited_s)
        time.sleep(POLL_S)


def read_view(cluster: Cluster, deployment: Ref) -> DeploymentView | None:
    """Reads a Deployment with its ReplicaSets, pods and events; None if it does not exist."""
    document = cluster.get(deployment)
    if document is None:
        return None
    labels, space = label_text(document["spec"]["selector"].get("matchLabels") or {}), deployment.namespace
    events: list[Document] = []
    # A wait does without reasons, if it must.
    with suppress(ClusterError):
        events = cluster.list("v1", "Event", space, fields="type=Warning")
    replicasets, pods = (
        sorted(cluster.list(version, kind, space, labels=labels), key=_age)
        for version, kind in (("apps/v1", "ReplicaSet"), ("v1", "Pod"))
    )
    return DeploymentView(document, tuple(replicasets), tuple(pods), tuple(events))


def summarise_pods(view: DeploymentView) -> list[PodSummary]:
    """The pods of the current template."""
    return [_summarise(pod, view) for pod in view.new_pods]


def availability(deployment: Document) -> str:
    """How many pods are available, once all are of the current template and available; else empty."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    updated, total = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    available = int(status.get("availableReplicas") or 0)
    # The conditions of `kubectl rollout status`: all new, none old, all available.
    if not _is_noticed(deployment) or updated < wanted or total > updated or available < updated:
        return ""
    return f"{available} of {wanted} pods available"


def shortfall(deployment: Document) -> str:
    """What keeps a rollout from being complete, in numbers of pods."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if not _is_noticed(deployment):
        return "no controller has noticed the newest change yet"
    updated, total = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    available, settle_s = int(status.get("availableReplicas") or 0), deployment["spec"].get("minReadySeconds", 0)
    parts = [f"{wanted} wanted, {updated} of this revision, {available} available"]
    parts += [f"{total - updated} of another revision not gone yet"] if total > updated else []
    parts += [f"a pod counts once it was ready for {settle_s} s"] if settle_s and available < updated else []
    return "; ".join(parts)


def _summarise(pod: Document, view: DeploymentView) -> PodSummary:
    status = pod.get("status") or {}
    containers, problem = status.get("containerStatuses") or [], find_problem(pod, view)
    return PodSummary(
        name=pod["metadata"]["name"],
        phase="Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "Pending"),
        ready=f"{sum(bool(container.get('ready')) for container in containers)}/{len(pod['spec']['containers'])}",
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        message=problem.text if problem else "",
        node=pod["spec"].get("nodeName") or "",
    )


def _report_changes(view: DeploymentView, reported: dict[str, str], progress: Progress) -> None:
    """Prints a line for a pod whenever its state changes, and for each cause at the Deployment itself."""
    lines = {state.name: str(state) for state in summarise_pods(view)}
    lines |= {cause.text: str(cause) for cause in find_causes(view) if cause.subject.startswith("Deployment")}
    for key, text in lines.items():
        if reported.get(key) != text:
            reported[key] = text
            progress.say(f"  {text}")


def _is_noticed(deployment: Document) -> bool:
    """Whether the Deployment's controller has seen its newest change."""
    observed = int((deployment.get("status") or {}).get("observedGeneration") or 0)
    return observed >= int(deployment["metadata"].get("generation") or 0)


def _given_up(deployment: Document) -> str:
    """Since when the Deployment's controller has seen no progress for too long; empty if it still waits."""
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return str(condition.get("lastTransitionTime") or "once")
    return ""


def _deadline_s(deployment: Document) -> int:
    return int(deployment["spec"].get("progressDeadlineSeconds") or 600)


def _end_reason(
    view: DeploymentView, waited_s: float, unnoticed_s: float, timeout_s: float | None, *, stale: bool
) -> str:
    """Why to stop waiting; empty to go on. `unnoticed_s` is how long the newest change has not been noticed. With
    `stale`, that the controller has given up is about the rollout before: it takes this back at the first progress."""
    deployment = view.deployment
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    ready = sum(map(is_ready, view.new_pods))
    short = f"{ready} of {wanted} new pods ready ({status.get('updatedReplicas') or 0} created)"
    if not _is_noticed(deployment):
        late = unnoticed_s > _NOTICED_S
        return f"no controller noticed the change within {_NOTICED_S:g} s: is one running?" if late else ""
    if is_hopeless(view):
        return f"{short}, and waiting will not help"
    if _given_up(deployment) and not stale:
        return f"{short}, no progress for {_deadline_s(deployment)} s"
    if timeout_s is not None and waited_s >= timeout_s:
        return f"{short} after {timeout_s:g} s"
    return ""


def _age(document: Document) -> tuple[str, str]:
    metadata = document["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["name"]


def _logs(cluster: Cluster, namespace: str) -> Callable[[str, str, bool], str]:
    def read(pod: str, container: str, previous: bool) -> str:
        text = cluster.logs(namespace, pod, container, previous=previous, lines=_LOG_LINES)
        return text or (cluster.logs(namespace, pod, container, lines=_LOG_LINES) if previous else "")

    return read
