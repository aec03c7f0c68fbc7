"""Waits until a Deployment's new pods are available, reporting each pod's progress; says why when they are not."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from marina.config.errors import ClusterError
from marina.config.progress import Progress
from marina.k8s.cluster import Cluster, Document, Mirror, Ref, is_ready
from marina.k8s.rollout.diagnosis import Cause, DeploymentView, describe_problem, find_causes, is_hopeless

_LOG_LINES = 20
# How often time limits are checked while nothing changes.
_TICK_S = 1.0
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

    def __str__(self) -> str:
        restarts = f", {self.restarts} restart{'' if self.restarts == 1 else 's'}" if self.restarts else ""
        return f"{self.name}  {self.phase}, {self.ready} ready{restarts}" + (
            f": {self.message}" if self.message else ""
        )


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
    changed, begun = threading.Event(), time.monotonic()
    report, noticed_s = _Report(progress), 0.0
    before: str | None = None
    with _followed(cluster, deployment, changed) as follow:
        while True:
            changed.clear()
            waited_s = time.monotonic() - begun
            view = follow()
            if view is None:
                return WaitResult(False, f"{deployment} was deleted during the wait", (), seconds=waited_s)
            report.changes_in(view)
            # An autoscaler may change the number of pods during the wait, and the controller then has as long again.
            noticed_s = waited_s if _is_noticed(view.deployment) else noticed_s
            available = availability(view.deployment)
            before = _given_up(view.deployment) if before is None else before
            stale = new and waited_s < _deadline_s(view.deployment) and before == _given_up(view.deployment)
            over = _end_reason(view, waited_s, waited_s - noticed_s, timeout_s, stale=stale)
            if available or over:
                break
            changed.wait(_TICK_S)
    # The mirrors may be late, each by its own time, so the end is judged and reported by reading everything once more.
    last = view
    with suppress(ClusterError):
        last = read_view(cluster, deployment) or view
    available = available or availability(last.deployment)
    report.changes_in(last)
    why_not = () if available else tuple(find_causes(last, _logs(cluster, deployment.namespace)))
    return WaitResult(bool(available), available or over, tuple(summarise_pods(last)), why_not, waited_s)


@contextmanager
def _followed(
    cluster: Cluster, deployment: Ref, changed: threading.Event
) -> Iterator[Callable[[], DeploymentView | None]]:
    """A function that returns the newest view of a Deployment, or None once it was deleted. `changed` is set whenever
    there is a newer view."""
    labels = _selector(cluster.get(deployment))
    with ExitStack() as stack:

        def mirror(version: str, kind: str, **selected: str) -> Mirror:
            return stack.enter_context(Mirror(cluster, version, kind, deployment.namespace, changed, **selected))

        deployments = mirror("apps/v1", "Deployment", fields=f"metadata.name={deployment.name}")
        replicasets = mirror("apps/v1", "ReplicaSet", labels=labels)
        pods = mirror("v1", "Pod", labels=labels)
        events = mirror("v1", "Event", fields="type=Warning")

        def newest() -> DeploymentView | None:
            known = deployments.objects
            if not known:
                return None
            return DeploymentView(known[-1], tuple(replicasets.objects), tuple(pods.objects), tuple(events.objects))

        yield newest


def read_view(cluster: Cluster, deployment: Ref) -> DeploymentView | None:
    """Reads a Deployment with its ReplicaSets, pods and events; None if it does not exist."""
    document = cluster.get(deployment)
    if document is None:
        return None

    def items(version: str, kind: str, **selected: str) -> tuple[Document, ...]:
        return tuple(cluster.list(version, kind, deployment.namespace, **selected)["items"])

    labels = _selector(document)
    replicasets, pods = items("apps/v1", "ReplicaSet", labels=labels), items("v1", "Pod", labels=labels)
    return DeploymentView(document, replicasets, pods, items("v1", "Event", fields="type=Warning"))


def summarise_pods(view: DeploymentView) -> list[PodSummary]:
    """The pods of the current template."""
    return [_summarise(pod, view) for pod in view.new_pods]


def _summarise(pod: Document, view: DeploymentView) -> PodSummary:
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or []
    total = len(pod["spec"]["containers"])
    phase = "Terminating" if pod["metadata"].get("deletionTimestamp") else status.get("phase", "Pending")
    return PodSummary(
        name=pod["metadata"]["name"],
        phase=phase,
        ready=f"{sum(bool(container.get('ready')) for container in containers)}/{total}",
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        message=describe_problem(pod, view),
    )


class _Report:
    """Prints a line for a pod whenever its state changes, and for each cause at the Deployment itself."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._reported: dict[str, str] = {}

    def changes_in(self, view: DeploymentView) -> None:
        for state in summarise_pods(view):
            self._line(state.name, str(state))
        for cause in find_causes(view):
            if cause.subject.startswith("Deployment"):
                self._line(cause.text, str(cause))

    def _line(self, key: str, text: str) -> None:
        if self._reported.get(key) != text:
            self._reported[key] = text
            self._progress.say(f"  {text}")


def availability(deployment: Document) -> str:
    """How many pods are available, once all are of the current template and available; else empty."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    if not _is_noticed(deployment):
        return ""
    updated, total = int(status.get("updatedReplicas") or 0), int(status.get("replicas") or 0)
    available = int(status.get("availableReplicas") or 0)
    # The conditions of `kubectl rollout status`: all new, none old, all available.
    if updated < wanted or total > updated or available < updated:
        return ""
    return f"{available} of {wanted} pods available"


def describe_empty(deployment: Ref, objects: Iterable[Ref]) -> str:
    """What to do about a Deployment that wants no pod; `objects` are those of its release."""
    kubectl = f"kubectl -n {deployment.namespace}"
    for ref in objects:
        if ref.kind == "ScaledObject":
            # It would undo what `kubectl scale` does.
            paused = "autoscaling.keda.sh/paused-replicas"
            start = f"{kubectl} annotate --overwrite scaledobject {ref.name} {paused}=1"
            return f"is scaled to 0 by KEDA, so nothing serves: `{start}`; once it is deployed, `{paused}-` ends that"
    return f"is scaled to 0, so nothing serves: `{kubectl} scale deployment {deployment.name} --replicas 1`"


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


def _selector(deployment: Document | None) -> str:
    labels: dict[str, str] = (deployment or {}).get("spec", {}).get("selector", {}).get("matchLabels", {})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _logs(cluster: Cluster, namespace: str) -> Callable[[str, str, bool], str]:
    def read(pod: str, container: str, previous: bool) -> str:
        text = cluster.logs(namespace, pod, container, previous=previous, lines=_LOG_LINES)
        return text or (cluster.logs(namespace, pod, container, previous=False, lines=_LOG_LINES) if previous else "")

    return read
