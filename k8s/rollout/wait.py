"""Waits until a Deployment's new pods are available, reporting each pod's progress; says why when they are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from config.progress import Progress
from k8s.cluster import Cluster, Document, Mirror, Ref, is_ready
from k8s.rollout.diagnosis import Cause, View, causes, hopeless, message

_LOG_LINES = 20
# How often time limits are looked at while nothing changes.
_TICK_S = 1.0
# A controller that is alive takes note of a change at once.
_NOTICED_S = 60.0


@dataclass(frozen=True)
class PodState:
    """One pod as the progress shows it."""

    name: str
    phase: str
    ready: str
    restarts: int
    message: str

    def __str__(self) -> str:
        restarts = f", {self.restarts} restart{'' if self.restarts == 1 else 's'}" if self.restarts else ""
        return f"{self.name}  {self.phase}, {self.ready} ready{restarts}" + (
            f": {self.message}" if self.message else ""
        )


@dataclass(frozen=True)
class WaitResult:
    """How a wait ended."""

    complete: bool
    why: str
    """The sentence about it: what is there, or what is missing."""
    pods: tuple[PodState, ...]
    causes: tuple[Cause, ...] = ()
    seconds: float = 0.0


def wait(cluster: Cluster, deployment: Ref, progress: Progress, *, timeout_s: float | None) -> WaitResult:
    """Follows a rollout to its end."""
    changed, begun = threading.Event(), time.monotonic()
    report = _Report(progress)
    with _followed(cluster, deployment, changed) as follow:
        while True:
            changed.clear()
            waited_s = time.monotonic() - begun
            view = follow()
            if view is None:
                return WaitResult(False, f"{deployment} was deleted while it was waited for", (), seconds=waited_s)
            report.changes_in(view)
            available, over = availability(view.deployment), _end_reason(view, waited_s, timeout_s)
            if available or over:
                break
            changed.wait(_TICK_S)
    # Each mirror is as fresh as its own watch; what is reported is seen at one moment.
    last = read_view(cluster, deployment) or view
    report.changes_in(last)
    why_not = () if available else tuple(causes(last, _logs(cluster, deployment.namespace)))
    return WaitResult(bool(available), available or over, tuple(pod_states(last)), why_not, waited_s)


@contextmanager
def _followed(cluster: Cluster, deployment: Ref, changed: threading.Event) -> Iterator[Callable[[], View | None]]:
    """What gives the newest view of a Deployment, None once it was deleted; `changed` is set when there is a newer."""
    labels = _selector(cluster.get(deployment))
    with ExitStack() as stack:

        def mirror(version: str, kind: str, **selected: str) -> Mirror:
            return stack.enter_context(Mirror(cluster, version, kind, deployment.namespace, changed, **selected))

        deployments = mirror("apps/v1", "Deployment", fields=f"metadata.name={deployment.name}")
        replicasets = mirror("apps/v1", "ReplicaSet", labels=labels)
        pods = mirror("v1", "Pod", labels=labels)
        events = mirror("v1", "Event", fields="type=Warning")

        def newest() -> View | None:
            known = deployments.objects
            if not known:
                return None
            return View(known[-1], tuple(replicasets.objects), tuple(pods.objects), tuple(events.objects))

        yield newest


def read_view(cluster: Cluster, deployment: Ref) -> View | None:
    """The view of a Deployment at this moment; None when it is not there."""
    document = cluster.get(deployment)
    if document is None:
        return None

    def items(version: str, kind: str, **selected: str) -> tuple[Document, ...]:
        return tuple(cluster.list(version, kind, deployment.namespace, **selected)["items"])

    labels = _selector(document)
    replicasets, pods = items("apps/v1", "ReplicaSet", labels=labels), items("v1", "Pod", labels=labels)
    return View(document, replicasets, pods, items("v1", "Event", fields="type=Warning"))


def pod_states(view: View) -> list[PodState]:
    """The pods of the present template."""
    return [_pod_state(pod, view) for pod in view.new_pods]


def _pod_state(pod: Document, view: View) -> PodState:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    total = len(pod["spec"]["containers"])
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return PodState(
        name=pod["metadata"]["name"],
        phase=phase,
        ready=f"{sum(bool(container.get('ready')) for container in containers)}/{total}",
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        message=message(pod, view),
    )


class _Report:
    """A line for each pod whenever its state changes, and one for each cause at the Deployment itself."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._reported: dict[str, str] = {}

    def changes_in(self, view: View) -> None:
        for state in pod_states(view):
            self._line(state.name, str(state))
        for cause in causes(view):
            if cause.subject.startswith("Deployment"):
                self._line(cause.text, str(cause))

    def _line(self, key: str, text: str) -> None:
        if self._reported.get(key) != text:
            self._reported[key] = text
            self._progress.say(f"  {text}")


def availability(deployment: Document) -> str:
    """How many pods are available, once all are of the present template and were ready for long enough; else empty."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if int(status.get("observedGeneration") or 0) < int(deployment["metadata"].get("generation") or 0):
        return ""
    updated, total = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    available = int(status.get("availableReplicas") or 0)
    # As `kubectl rollout status` counts: all new, none old, all available.
    if updated < wanted or total > updated or available < updated:
        return ""
    return f"{available} of {wanted} pods available"


def _end_reason(view: View, waited_s: float, timeout_s: float | None) -> str:
    """Why there is nothing more to wait for; empty while there is."""
    deployment = view.deployment
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    noticed = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)
    short = f"{status.get('updatedReplicas') or 0} new and {sum(map(is_ready, view.new_pods))} ready of {wanted} pods"
    if not noticed:
        late = waited_s > _NOTICED_S
        return f"no controller took note of the change in {_NOTICED_S:g} s: does one run?" if late else ""
    if hopeless(view):
        return f"{short}, and waiting will not change it"
    for condition in status.get("conditions") or []:
        if condition.get("type") == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            deadline = deployment["spec"].get("progressDeadlineSeconds", 600)
            return f"{short}, and no progress in {deadline} s"
    if timeout_s is not None and waited_s >= timeout_s:
        return f"{short} after {timeout_s:g} s"
    return ""


def _selector(deployment: Document | None) -> str:
    labels: dict[str, str] = (deployment or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _logs(cluster: Cluster, namespace: str) -> Callable[[str, str, bool], str]:
    def read(pod: str, container: str, previous: bool) -> str:
        text = cluster.logs(namespace, pod, container, previous=previous, lines=_LOG_LINES)
        return text or (cluster.logs(namespace, pod, container, previous=False, lines=_LOG_LINES) if previous else "")

    return read
