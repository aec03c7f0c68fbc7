"""Finds out why pods do not come up, from the objects and events of the cluster, and says it in a sentence. It makes no
requests."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from marina.k8s.cluster import Document, is_ready

Logs = Callable[[str, str, bool], str]
"""Reads the last log lines of a container; called with the pod, the container, and whether to read its previous run."""

_PULL = re.compile(r"Image|Registry|Signature")
# With these answers of a registry, retrying does not help; with any other, the registry may be down.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|unauthorized|denied|forbidden|invalid reference", re.IGNORECASE
)
# Prefixes of admission messages that differ from attempt to attempt: the pod's name, and whether events are combined.
_ATTEMPT = re.compile(r'^(\(combined from similar events\): )?(Error creating: )?(pods "[^"]*" is forbidden: )?')
# What admission refuses for ever. A quota may have room again.
_REFUSED = re.compile(
    r"violates PodSecurity|must specify|usage per |ratio per |webhook .*denied|AdmissionPolicy .*denied"
)
_HINTS = {
    "image-pull": "marina image SPEC --push builds and pushes it; a private registry needs `kubernetes.pull_secrets`",
    "out-of-memory": "raise `kubernetes.resources.memory`, or lower `serving.workers`",
    "not-admitted": "kubectl -n {} describe resourcequota,limitrange",
}
# On a Deployment that a gate has paused.
GATE_ANNOTATION = "marina/gate"
_CRASHES_ENOUGH = 3
# Exit codes of a container that was ended by a signal; and of one that the kubelet stopped. One that crashes by itself
# also fails its probe until it is found dead.
_SIGNALLED, _STOPPED_CODES = range(129, 129 + 64), (0, 137, 143)


@dataclass(frozen=True)
class DeploymentView:
    """One Deployment, its ReplicaSets and pods, and the namespace's warning events, at one moment."""

    deployment: Document
    replicasets: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()
    events: tuple[Document, ...] = ()

    @property
    def newest(self) -> Document | None:
        """The ReplicaSet of the Deployment's current template; None until the controller has made it."""
        number = _revision(self.deployment)
        owned = [replicaset for replicaset in self.replicasets if _belongs(replicaset, self.deployment)]
        return next((replicaset for replicaset in reversed(owned) if number and _revision(replicaset) == number), None)

    @property
    def new_pods(self) -> list[Document]:
        """The pods of the current template."""
        newest = self.newest
        return [pod for pod in self.pods if newest and _belongs(pod, newest)]

    def about(self, document: Document) -> list[Document]:
        """The warning events about one object, newest first."""
        uid = document["metadata"]["uid"]
        events = [event for event in self.events if (event.get("involvedObject") or {}).get("uid") == uid]
        return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))[::-1]


@dataclass(frozen=True)
class Cause:
    """Why pods do not come up."""

    kind: str
    subject: str
    """The pod, or `Deployment NAME`."""
    text: str
    final: bool = False
    """Whether waiting cannot help."""
    lines: tuple[str, ...] = ()
    """The last log lines of the container."""
    hint: str | None = None
    others: int = 0
    """How many more pods have the same cause."""

    def to_data(self) -> dict[str, Any]:
        data = {"kind": self.kind, "object": self.subject, "text": self.text, "final": self.final}
        return data | {"lines": list(self.lines), "hint": self.hint, "pods_more": self.others}

    def __str__(self) -> str:
        more = f" (and {self.others} more)" if self.others else ""
        return "\n".join([f"{self.subject}{more}: {self.text}", *(f"    | {line}" for line in self.lines)])

    def with_hint(self) -> str:
        """The cause, and what may help."""
        return f"{self}\n    hint: {self.hint}" if self.hint else str(self)


def is_gated(deployment: Document) -> bool:
    """Whether a gate has paused it, or is about to: then one pod of the new revision serves beside all old ones."""
    return GATE_ANNOTATION in (deployment["metadata"].get("annotations") or {})


def find_causes(view: DeploymentView, logs: Logs | None = None) -> list[Cause]:
    """Every distinct cause, with the last log lines of containers that crashed; causes that stay come first."""
    distinct: dict[tuple[str, str], Cause] = {}
    for cause in _all(view):
        key = (cause.kind, cause.text)
        known = distinct.get(key)
        distinct[key] = replace(known, others=known.others + 1) if known else cause
    complete = [_with_logs(cause, view, logs) for cause in distinct.values()]
    return sorted(complete, key=lambda cause: not cause.final)


def is_hopeless(view: DeploymentView) -> bool:
    """Whether waiting cannot help, because one of the causes stays."""
    return any(cause.final for cause in _all(view))


def find_problem(pod: Document, view: DeploymentView) -> Cause | None:
    """Why one pod does not come up; None if nothing is wrong."""
    return next(_of_pod(pod, view), None)


def find_refusal(job: str, events: Iterable[Document]) -> Cause | None:
    """Why a Job has no pods; None if the events do not tell."""
    for event in events:
        if event.get("reason") == "FailedCreate" and (event.get("involvedObject") or {}).get("name") == job:
            return _not_created(f"Job {job}", event["metadata"]["namespace"], "no pod was", event["message"])
    return None


def _all(view: DeploymentView) -> Iterator[Cause]:
    yield from _of_deployment(view)
    for pod in view.new_pods:
        yield from _of_pod(pod, view)


def _of_deployment(view: DeploymentView) -> Iterator[Cause]:
    """A pause, and pods that were never created because admission refused them."""
    metadata = view.deployment["metadata"]
    name = f"Deployment {metadata['name']}"
    if is_gated(view.deployment):
        text = "a gate stands: one pod of the new revision serves beside all old ones"
        hint = "marina deploy SPEC continues, marina rollback SPEC goes back"
        yield Cause("gate", name, text, hint=hint)
    elif view.deployment["spec"].get("paused"):
        resume = f"kubectl -n {metadata['namespace']} rollout resume deployment {metadata['name']}"
        yield Cause("paused", name, f"is paused, so its pods stay as they are: `{resume}`", True)
    failed = _condition(view.deployment, "ReplicaFailure", "True")
    texts = [failed["message"]] if failed and failed.get("message") else []
    # Unlike the condition, events outlive their cause; if pods exist, admission accepts them.
    if view.newest and not view.new_pods:
        texts += [event["message"] for event in view.about(view.newest) if event.get("reason") == "FailedCreate"]
    if texts:
        which = "no more pods are" if view.new_pods else "no pod was"
        cause = _not_created(name, metadata["namespace"], which, texts[0])
        yield replace(cause, final=cause.final and not view.new_pods)


def _not_created(name: str, namespace: str, which: str, message: str) -> Cause:
    text = _ATTEMPT.sub("", message)
    hint = _HINTS["not-admitted"].format(namespace) if "quota" in text or " per " in text else None
    return Cause("not-admitted", name, f"{which} created: {text}", bool(_REFUSED.search(text)), hint=hint)


def _of_pod(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if reason := status.get("reason"):
        # A kubelet refused it or ended it, whatever its containers did.
        yield Cause("node", name, f"{reason}: {status.get('message', '')}".rstrip(": "))
    elif pod["metadata"].get("deletionTimestamp"):
        return  # it ends because somebody wants it to
    elif unscheduled := _condition(pod, "PodScheduled", "False"):
        why = unscheduled.get("message") or unscheduled.get("reason")
        yield Cause("unschedulable", name, f"cannot be scheduled: {why}")
    elif causes := list(_of_containers(pod, view)):
        yield from causes
    elif not is_ready(pod) and status.get("phase") != "Succeeded":
        unready = _condition(pod, "Ready", "False") or {}
        if unready.get("reason") == "ReadinessGatesNotReady":
            yield Cause("readiness-gate", name, f"its containers are ready, but it is not: {unready.get('message')}")
        elif event := next(iter(_present_events(pod, view)), None):
            yield Cause("probe" if event.get("reason") == "Unhealthy" else "event", name, event["message"])


def _present_events(pod: Document, view: DeploymentView) -> list[Document]:
    """The events about a pod, newest first, that may still hold: those from before its sandbox was made do not once it
    is. Before Kubernetes 1.29 only the start of a container tells."""
    begun = any((container.get("state") or {}).keys() & {"running", "terminated"} for container in _containers(pod))
    begun = begun or _condition(pod, "PodReadyToStartContainers", "True") is not None
    return [event for event in view.about(pod) if not begun or event.get("reason") == "Unhealthy"]


def _of_containers(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    name = pod["metadata"]["name"]
    # The pods of a Job end with 0 when they are done.
    is_kept_up = (pod.get("spec") or {}).get("restartPolicy", "Always") == "Always"
    for container in _containers(pod):
        waiting, ended = (container.get("state") or {}).get("waiting") or {}, _ended(container)
        reason = waiting.get("reason", "")
        if _PULL.search(reason):
            yield _not_pulled(name, container, waiting, view.about(pod))
        elif reason.endswith("Error"):
            text = f"container `{container['name']}` cannot start: {waiting.get('message', reason)}"
            yield Cause("config", name, text, container.get("restartCount", 0) >= _CRASHES_ENOUGH)
        elif ended and not container.get("ready") and (ended.get("exitCode") or is_kept_up):
            yield _crashed(name, container, ended, view.about(pod))


def _not_pulled(name: str, container: Document, waiting: Document, events: list[Document]) -> Cause:
    # `Back-off pulling image "…"` only says that the kubelet waits. Newer ones add the reason, older ones put it into
    # an event.
    now = str(waiting.get("message") or waiting["reason"])
    text = now.partition('": ')[2] if now.startswith("Back-off") else now
    text = text or next((event["message"] for event in events if event.get("reason") == "Failed"), now)
    final = waiting["reason"] in ("InvalidImageName", "ErrImageNeverPull") or bool(_NO_SUCH_IMAGE.search(text))
    told = f"image `{container.get('image', '')}` cannot be pulled: {text}"
    return Cause("image-pull", name, told, final, hint=_HINTS["image-pull"])


def _crashed(name: str, container: Document, ended: Document, events: list[Document]) -> Cause:
    restarts, code = int(container.get("restartCount", 0)), ended.get("exitCode")
    # One that runs again may come up: its restarts may be of another day.
    final = restarts >= _CRASHES_ENOUGH and "running" not in (container.get("state") or {})
    who, times = f"container `{container['name']}`", f"{restarts} restart{'' if restarts == 1 else 's'}"
    if ended.get("reason") == "OOMKilled":
        text = f"{who} was killed because it ran out of memory, {times}"
        return Cause("out-of-memory", name, text, final, hint=_HINTS["out-of-memory"])
    probes = [str(event.get("message")) for event in events if event.get("reason") == "Unhealthy"]
    fatal = next((text for text in probes if text.startswith(("Liveness", "Startup"))), "")
    if code in _STOPPED_CODES and fatal:
        return Cause("probe", name, f"{who} was restarted, {times}: {fatal}", final)
    how = f"signal {code - 128}" if isinstance(code, int) and code in _SIGNALLED else f"code {code}"
    words = f": {ended['message'].strip()}" if ended.get("message") else ""
    return Cause("crash", name, f"{who} ended with {how}, {times}{words}", final)


def _ended(container: Document) -> Document:
    """How the container's last run ended; empty if it still runs."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended: Document = state.get("terminated") or last.get("terminated") or {}
    # A server that exits with 0 has failed too: it is restarted again and again. Until then, a kubelet says that it
    # waits, or how it ended.
    down = "terminated" in state or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return ended if ended.get("exitCode") or down else {}


def _with_logs(cause: Cause, view: DeploymentView, logs: Logs | None) -> Cause:
    """The cause of a crash, with the last log lines of the container that crashed."""
    pod = next((pod for pod in view.pods if pod["metadata"]["name"] == cause.subject), {})
    unready = [container for container in _containers(pod) if not container.get("ready")]
    if logs is None or not unready or cause.kind not in ("crash", "out-of-memory", "probe", "event"):
        return cause
    # While an init container crashes, the others wait and have no log.
    container = next(filter(_ended, unready), unready[0])
    # Unless it runs again, its newest log is that of the run that crashed: the one before is deleted soon.
    again = "running" in (container.get("state") or {}) and container.get("restartCount", 0) > 0
    return replace(cause, lines=tuple(logs(cause.subject, container["name"], again).splitlines()))


def _containers(pod: Document) -> list[Document]:
    """The statuses of a pod's containers, init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _condition(document: Document, kind: str, status: str) -> Document | None:
    conditions: list[Document] = (document.get("status") or {}).get("conditions") or []
    return next((known for known in conditions if (known.get("type"), known.get("status")) == (kind, status)), None)


def _belongs(document: Document, owner: Document) -> bool:
    uid = owner["metadata"]["uid"]
    return any(reference.get("uid") == uid for reference in document["metadata"].get("ownerReferences") or [])


def _revision(document: Document) -> str | None:
    value: str | None = (document["metadata"].get("annotations") or {}).get("deployment.kubernetes.io/revision")
    return value
