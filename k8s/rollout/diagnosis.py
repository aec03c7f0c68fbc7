"""Finds out why pods do not come up, from the objects and events of the cluster, and says it in a sentence. It makes no
requests."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from marina.k8s.cluster import Document, is_ready

Logs = Callable[[str, str, bool], str]
"""Reads the last log lines of a container; called with the pod, the container, and whether to read its previous run."""

_PULL = {
    *("ErrImageNeverPull", "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName"),
    *("RegistryUnavailable", "SignatureValidationFailed"),
}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
# With these answers of a registry, retrying does not help; with any other, the registry may be down.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|unauthorized|denied|forbidden|invalid reference", re.IGNORECASE
)
# Prefixes of admission messages that differ from attempt to attempt: the pod's name, and whether events are combined.
_ATTEMPT = re.compile(r'^(\(combined from similar events\): )?(Error creating: )?(pods "[^"]*" is forbidden: )?')
_LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per |limit to request ratio per ")
_CRASHES_ENOUGH = 3
# Exit codes of a container that was ended by a signal.
_SIGNALLED = range(129, 129 + 64)
# Exit codes of a container that the kubelet stopped. One that crashes by itself also fails its probe until it is found
# dead.
_STOPPED_CODES = (0, 137, 143)


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
        number = _annotation(self.deployment, "deployment.kubernetes.io/revision")
        owned = [replicaset for replicaset in self.replicasets if _belongs(replicaset, self.deployment)]
        same = [
            replicaset for replicaset in owned if _annotation(replicaset, "deployment.kubernetes.io/revision") == number
        ]
        return same[-1] if same and number else None

    @property
    def new_pods(self) -> list[Document]:
        """The pods of the current template."""
        newest = self.newest
        return [pod for pod in self.pods if newest and _belongs(pod, newest)]

    def about(self, document: Document) -> list[Document]:
        """The warning events about one object, oldest first."""
        uid = document["metadata"]["uid"]
        events = [event for event in self.events if (event.get("involvedObject") or {}).get("uid") == uid]
        return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


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


def is_hopeless_pod(pod: Document, view: DeploymentView) -> bool:
    """Whether one pod will not come up, however long the wait."""
    return any(cause.final for cause in _of_pod(pod, view))


def describe_problem(pod: Document, view: DeploymentView) -> str:
    """Why one pod does not come up; empty if nothing is wrong."""
    return next((cause.text for cause in _of_pod(pod, view)), "")


def find_refusal(job: str, events: Iterable[Document]) -> Cause | None:
    """Why a Job has no pods; None if the events do not tell."""
    for event in events:
        if event.get("reason") == "FailedCreate" and (event.get("involvedObject") or {}).get("name") == job:
            text = _ATTEMPT.sub("", event["message"])
            return _rejected(f"Job {job}", event["metadata"]["namespace"], "no pod was", text)
    return None


def _all(view: DeploymentView) -> Iterator[Cause]:
    yield from _of_deployment(view)
    for pod in view.new_pods:
        yield from _of_pod(pod, view)


def _of_deployment(view: DeploymentView) -> Iterator[Cause]:
    """A pause, and pods that were never created because admission refused them."""
    metadata = view.deployment["metadata"]
    name = f"Deployment {metadata['name']}"
    if view.deployment["spec"].get("paused"):
        resume = f"kubectl -n {metadata['namespace']} rollout resume deployment {metadata['name']}"
        yield Cause("paused", name, f"is paused, so its pods stay as they are: `{resume}`", True)
    texts = [c["message"] for c in _conditions(view.deployment) if _is(c, "ReplicaFailure") and c.get("message")]
    # Unlike the condition, events outlive their cause; if pods exist, admission accepts them.
    if view.newest and not view.new_pods:
        texts += [event["message"] for event in view.about(view.newest) if event.get("reason") == "FailedCreate"]
    if texts:
        which = "no more pods are" if view.new_pods else "no pod was"
        cause = _rejected(name, metadata["namespace"], which, _ATTEMPT.sub("", texts[-1]))
        yield replace(cause, final=cause.final and not view.new_pods)


def _rejected(name: str, namespace: str, which: str, text: str) -> Cause:
    describe = f"kubectl -n {namespace} describe"
    if "violates PodSecurity" in text:
        violation = text.partition("violates PodSecurity")[2].strip()
        hint = (
            "the namespace's `pod-security.kubernetes.io/enforce` label decides; marina's own pods satisfy `restricted`"
        )
        return Cause("pod-security", name, f"{which} admitted: it violates Pod Security {violation}", True, hint=hint)
    if "exceeded quota" in text:
        quota = "exceeded quota" + text.partition("exceeded quota")[2]
        return Cause("quota", name, f"{which} admitted: {quota}", hint=f"{describe} resourcequota")
    if "failed quota" in text and "must specify" in text:
        return Cause("quota", name, f"{which} admitted: {text}", True, hint=f"{describe} resourcequota")
    if _LIMIT_RANGE.search(text):
        return Cause("limit-range", name, f"{which} admitted: {text}", True, hint=f"{describe} limitrange")
    if "admission webhook" in text or "ValidatingAdmissionPolicy" in text:
        return Cause("admission", name, f"{which} admitted: {text}", "denied" in text)
    return Cause("not-created", name, f"{which} created: {text}")


def _of_pod(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if reason := status.get("reason"):
        # A kubelet refused it or ended it, whatever its containers did.
        kind, word = ("evicted", "evicted") if reason == "Evicted" else ("node", reason)
        yield Cause(kind, name, f"{word}: {status.get('message', '')}".rstrip(": "))
        return
    if pod["metadata"].get("deletionTimestamp"):  # it ends because somebody wants it to
        return
    yield from list(_of_containers(pod, view)) or list(_of_waiting(pod, view)) or list(_of_probes(pod, view))


def _of_waiting(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    """A pod of which no container has started."""
    name = pod["metadata"]["name"]
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Cause(
                "unschedulable", name, f"cannot be scheduled: {condition.get('message') or condition.get('reason')}"
            )
            return
    if _has_sandbox(pod):  # events outlive their cause
        return
    for event in reversed(view.about(pod)):
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            yield Cause("volume", name, f"a volume cannot be mounted: {event['message']}")
            return
        if event.get("reason") == "FailedCreatePodSandBox":
            yield Cause("sandbox", name, f"the node cannot start it: {event['message']}")
            return


def _has_sandbox(pod: Document) -> bool:
    """Whether the node has mounted the pod's volumes and made its sandbox. Before Kubernetes 1.29 only the start of a
    container tells."""
    started = any((container.get("state") or {}).keys() & {"running", "terminated"} for container in _containers(pod))
    return started or any(_is(condition, "PodReadyToStartContainers") for condition in _conditions(pod))


def _of_containers(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    name = pod["metadata"]["name"]
    # The pods of a Job end with 0 when they are done.
    is_kept_up = (pod.get("spec") or {}).get("restartPolicy", "Always") == "Always"
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _PULL:
            yield _not_pulled(name, container, waiting, view.about(pod))
        elif waiting.get("reason") in _CONFIG:
            text = f"container `{container['name']}` cannot start: {waiting.get('message', waiting['reason'])}"
            yield Cause("config", name, text, container.get("restartCount", 0) >= _CRASHES_ENOUGH)
        elif (ended := _ended(container)) and not container.get("ready") and (ended.get("exitCode") or is_kept_up):
            yield from _crashed(name, container, ended, view.about(pod))


def _not_pulled(name: str, container: Document, waiting: Document, events: list[Document]) -> Cause:
    failures = [event["message"] for event in events if event.get("reason") == "Failed" and "pull" in event["message"]]
    # `Back-off pulling image "…"` only says that the kubelet waits. Newer ones add the reason, older ones put it into
    # an event.
    now = str(waiting.get("message") or waiting["reason"])
    text = now.partition('": ')[2] if now.startswith("Back-off") else now
    text = text or next((failure for failure in reversed(failures) if not failure.startswith("Back-off")), now)
    final = waiting["reason"] in ("InvalidImageName", "ErrImageNeverPull") or bool(_NO_SUCH_IMAGE.search(text))
    hint = "marina image SPEC --push builds and pushes it; a private registry needs `kubernetes.pull_secrets`"
    return Cause("image-pull", name, f"image `{container.get('image', '')}` cannot be pulled: {text}", final, hint=hint)


def _crashed(name: str, container: Document, ended: Document, events: list[Document]) -> Iterator[Cause]:
    restarts, code = int(container.get("restartCount", 0)), ended.get("exitCode")
    # One that runs again may come up: its restarts may be of another day.
    final = restarts >= _CRASHES_ENOUGH and "running" not in (container.get("state") or {})
    who = f"container `{container['name']}`"
    if ended.get("reason") == "OOMKilled":
        hint = "raise `kubernetes.resources.memory`, or lower `serving.workers`"
        yield Cause(
            "out-of-memory",
            name,
            f"{who} was killed because it ran out of memory, {_restarts(restarts)}",
            final,
            hint=hint,
        )
        return
    if code in _STOPPED_CODES and (probe := _probe(events, killing=True)):
        yield Cause("probe", name, f"{who} was restarted, {_restarts(restarts)}: {probe}", final)
        return
    how = f"signal {code - 128}" if isinstance(code, int) and code in _SIGNALLED else f"code {code}"
    words = f": {ended['message'].strip()}" if ended.get("message") else ""
    yield Cause("crash", name, f"{who} ended with {how}, {_restarts(restarts)}{words}", final)


def _of_probes(pod: Document, view: DeploymentView) -> Iterator[Cause]:
    name = pod["metadata"]["name"]
    if not is_ready(pod) and (probe := _probe(view.about(pod), killing=False)):
        yield Cause("probe", name, probe)
    for condition in _conditions(pod):
        if condition.get("reason") == "ReadinessGatesNotReady":
            yield Cause("readiness-gate", name, f"its containers are ready, but it is not: {condition.get('message')}")


def _probe(events: list[Document], *, killing: bool) -> str:
    """The kubelet's last message about a failed probe; with `killing`, only of probes that restart the container."""
    for event in reversed(events):
        text = str(event.get("message", ""))
        if event.get("reason") == "Unhealthy" and (not killing or text.startswith(("Liveness", "Startup"))):
            return text
    return ""


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
    if logs is None or cause.kind not in ("crash", "out-of-memory", "probe"):
        return cause
    pod = next((pod for pod in view.pods if pod["metadata"]["name"] == cause.subject), None)
    unready = [container for container in _containers(pod or {}) if not container.get("ready")]
    if not unready:
        return cause
    # While an init container crashes, the others wait and have no log.
    container = next(filter(_ended, unready), unready[0])
    # Unless it runs again, its newest log is that of the run that crashed: the one before is deleted soon.
    again = "running" in (container.get("state") or {}) and container.get("restartCount", 0) > 0
    text = logs(cause.subject, container["name"], again and cause.kind != "probe")
    return replace(cause, lines=tuple(text.splitlines()))


def _containers(pod: Document) -> list[Document]:
    """The statuses of a pod's containers, init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _conditions(document: Document) -> list[Document]:
    conditions: list[Document] = (document.get("status") or {}).get("conditions") or []
    return conditions


def _is(condition: Document, kind: str) -> bool:
    return condition.get("type") == kind and condition.get("status") == "True"


def _belongs(document: Document, owner: Document) -> bool:
    uid = owner["metadata"]["uid"]
    return any(reference.get("uid") == uid for reference in document["metadata"].get("ownerReferences") or [])


def _annotation(document: Document, key: str) -> str | None:
    value: str | None = (document["metadata"].get("annotations") or {}).get(key)
    return value


def _restarts(restarts: int) -> str:
    return f"{restarts} restart{'' if restarts == 1 else 's'}"
