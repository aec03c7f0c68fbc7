"""Why pods do not come up, in words, from what the cluster says of them. Pure: it decides from documents alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from k8s.cluster import Document, is_ready

Logs = Callable[[str, str, bool], str]
"""The last lines of a container: pod, container, whether of the run before."""

_PULL = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
# A registry that says so will say so again; anything else may be a registry that is down.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|unauthorized|denied|forbidden|invalid reference", re.IGNORECASE
)
# Who is refused has a new name at each attempt, and events of many attempts are put together.
_ATTEMPT = re.compile(r'^(\(combined from similar events\): )?(Error creating: )?(pods "[^"]*" is forbidden: )?')
_LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per |limit to request ratio per ")
_CRASHES_ENOUGH = 3
_SIGNALLED = 128
# How a container ends that its kubelet told to; one that crashes fails its probe too, until it is found dead.
_TOLD = (0, 137, 143)


@dataclass(frozen=True)
class View:
    """What is known of one Deployment: itself, its ReplicaSets, its pods, and the warnings about all of them."""

    deployment: Document
    replicasets: tuple[Document, ...] = ()
    pods: tuple[Document, ...] = ()
    events: tuple[Document, ...] = ()

    @property
    def newest(self) -> Document | None:
        """The ReplicaSet of the Deployment's present template; None before the controller made it."""
        number = _annotation(self.deployment, "deployment.kubernetes.io/revision")
        owned = [replicaset for replicaset in self.replicasets if _belongs(replicaset, self.deployment)]
        same = [
            replicaset for replicaset in owned if _annotation(replicaset, "deployment.kubernetes.io/revision") == number
        ]
        return same[-1] if same and number else None

    @property
    def new_pods(self) -> list[Document]:
        """The pods of the present template."""
        newest = self.newest
        return [pod for pod in self.pods if newest and _belongs(pod, newest)]

    def about(self, document: Document) -> list[Document]:
        """The warnings about one object, oldest first."""
        uid = document["metadata"]["uid"]
        events = [event for event in self.events if (event.get("involvedObject") or {}).get("uid") == uid]
        return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


@dataclass(frozen=True)
class Cause:
    """One cause: its kind, the object, the sentence, and whether waiting can change it."""

    kind: str
    subject: str
    text: str
    final: bool = False
    lines: tuple[str, ...] = ()
    hint: str | None = None
    others: int = 0
    """How many more pods say the same."""

    def to_data(self) -> dict[str, Any]:
        data = {"kind": self.kind, "object": self.subject, "text": self.text, "final": self.final}
        return data | {"lines": list(self.lines), "hint": self.hint, "pods_more": self.others}

    def __str__(self) -> str:
        more = f" (and {self.others} more)" if self.others else ""
        return "\n".join([f"{self.subject}{more}: {self.text}", *(f"    | {line}" for line in self.lines)])


def causes(view: View, logs: Logs | None = None) -> list[Cause]:
    """Every cause there is, each once, with the last log lines of what crashed; the most telling first."""
    distinct: dict[tuple[str, str], Cause] = {}
    for cause in _all(view):
        key = (cause.kind, cause.text)
        known = distinct.get(key)
        distinct[key] = replace(known, others=known.others + 1) if known else cause
    complete = [_with_logs(cause, view, logs) for cause in distinct.values()]
    return sorted(complete, key=lambda cause: not cause.final)


def hopeless(view: View) -> bool:
    """Whether one of the causes is known to stay, however long the wait."""
    return any(cause.final for cause in _all(view))


def hopeless_pod(pod: Document, view: View) -> bool:
    """Whether one pod's trouble is known to stay."""
    return any(cause.final for cause in _of_pod(pod, view))


def message(pod: Document, view: View) -> str:
    """One pod's trouble in a few words; empty when there is none."""
    for cause in _of_pod(pod, view):
        return cause.text
    return ""


def _all(view: View) -> Iterator[Cause]:
    yield from _of_deployment(view)
    for pod in view.new_pods:
        yield from _of_pod(pod, view)


def _of_deployment(view: View) -> Iterator[Cause]:
    """Pods that were never made: admission said no."""
    name = f"Deployment {view.deployment['metadata']['name']}"
    texts = [c["message"] for c in _conditions(view.deployment) if _is(c, "ReplicaFailure") and c.get("message")]
    if view.newest:
        texts += [event["message"] for event in view.about(view.newest) if event.get("reason") == "FailedCreate"]
    # A condition or event may outlive its cause; pods that exist prove that admission lets them in.
    if texts and not view.new_pods:
        yield _rejected(name, texts[-1])


def _rejected(name: str, text: str) -> Cause:
    text = _ATTEMPT.sub("", text)
    if "violates PodSecurity" in text:
        violation = text.partition("violates PodSecurity")[2].strip()
        hint = (
            "the namespace's `pod-security.kubernetes.io/enforce` label decides; marina's own pods satisfy `restricted`"
        )
        return Cause(
            "pod-security", name, f"no pod was admitted: it violates Pod Security {violation}", True, hint=hint
        )
    if "exceeded quota" in text:
        quota = "exceeded quota" + text.partition("exceeded quota")[2]
        return Cause("quota", name, f"no pod was admitted: {quota}", hint="kubectl describe resourcequota")
    if _LIMIT_RANGE.search(text):
        return Cause("limit-range", name, f"no pod was admitted: {text}", True, hint="kubectl describe limitrange")
    if "admission webhook" in text or "ValidatingAdmissionPolicy" in text:
        return Cause("admission", name, f"no pod was admitted: {text}", "denied" in text)
    return Cause("not-created", name, f"no pod could be made: {text}")


def _of_pod(pod: Document, view: View) -> Iterator[Cause]:
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    if status.get("reason") == "Evicted":
        yield Cause("evicted", name, f"evicted: {status.get('message', '')}".rstrip(": "))
        return
    yield from list(_of_containers(pod, view)) or list(_of_waiting(pod, view)) or list(_of_probes(pod, view))


def _of_waiting(pod: Document, view: View) -> Iterator[Cause]:
    """Pods that no container of has started."""
    name = pod["metadata"]["name"]
    for condition in _conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield Cause(
                "unschedulable", name, f"no node takes it: {condition.get('message') or condition.get('reason')}"
            )
            return
    for event in reversed(view.about(pod)):
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            yield Cause("volume", name, f"a volume is missing: {event['message']}")
            return
        if event.get("reason") == "FailedCreatePodSandBox":
            yield Cause("sandbox", name, f"its node cannot start it: {event['message']}")
            return


def _of_containers(pod: Document, view: View) -> Iterator[Cause]:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _PULL:
            yield _not_pulled(name, container, waiting, view.about(pod))
        elif waiting.get("reason") in _CONFIG:
            text = f"container `{container['name']}` cannot start: {waiting.get('message', waiting['reason'])}"
            yield Cause("config", name, text)
        elif (ended := _ended(container)) and not container.get("ready"):
            yield from _crashed(name, container, ended, view.about(pod))


def _not_pulled(name: str, container: Document, waiting: Document, events: list[Document]) -> Cause:
    failures = [event["message"] for event in events if event.get("reason") == "Failed" and "pull" in event["message"]]
    # `Back-off pulling image "…"` only says that it waits; newer kubelets add why, older ones have it in an event.
    now = str(waiting.get("message") or waiting["reason"])
    text = now.partition('": ')[2] if now.startswith("Back-off") else now
    text = text or next((failure for failure in reversed(failures) if not failure.startswith("Back-off")), now)
    final = waiting["reason"] in ("InvalidImageName", "ErrImageNeverPull") or bool(_NO_SUCH_IMAGE.search(text))
    hint = "marina image SPEC builds and pushes it; a private registry needs `imagePullSecrets`"
    return Cause("image-pull", name, f"image `{container.get('image', '')}` cannot be pulled: {text}", final, hint=hint)


def _crashed(name: str, container: Document, ended: Document, events: list[Document]) -> Iterator[Cause]:
    restarts, code = int(container.get("restartCount", 0)), ended.get("exitCode")
    final = restarts >= _CRASHES_ENOUGH
    who = f"container `{container['name']}`"
    if ended.get("reason") == "OOMKilled":
        hint = "raise `kubernetes.resources.memory`, or lower `serving.workers`"
        yield Cause(
            "out-of-memory",
            name,
            f"{who} was killed because it ran out of memory, {_times(restarts)}",
            final,
            hint=hint,
        )
        return
    if code in _TOLD and (probe := _probe(events, killing=True)):
        yield Cause("probe", name, f"{who} was restarted, {_times(restarts)}: {probe}", final)
        return
    how = f"signal {code - _SIGNALLED}" if isinstance(code, int) and code > _SIGNALLED else f"code {code}"
    words = f": {ended['message'].strip()}" if ended.get("message") else ""
    yield Cause("crash", name, f"{who} ended with {how}, {_times(restarts)}{words}", final)


def _of_probes(pod: Document, view: View) -> Iterator[Cause]:
    if not is_ready(pod) and (probe := _probe(view.about(pod), killing=False)):
        yield Cause("probe", pod["metadata"]["name"], probe)


def _probe(events: list[Document], *, killing: bool) -> str:
    """What the kubelet said of a probe; with `killing`, only when it restarts the container for it."""
    for event in reversed(events):
        text = str(event.get("message", ""))
        if event.get("reason") == "Unhealthy" and (not killing or text.startswith(("Liveness", "Startup"))):
            return text
    return ""


def _ended(container: Document) -> Document:
    """How the container's last run ended; empty while it has not."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    ended: Document = state.get("terminated") or last.get("terminated") or {}
    # A server that ends with 0 has ended all the same, and is started again and again.
    crashing = (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return ended if ended.get("exitCode") or crashing else {}


def _with_logs(cause: Cause, view: View, logs: Logs | None) -> Cause:
    """A crash is shown with the last lines of the container that crashed."""
    if logs is None or cause.kind not in ("crash", "out-of-memory", "probe"):
        return cause
    pod = next((pod for pod in view.pods if pod["metadata"]["name"] == cause.subject), None)
    for container in ((pod or {}).get("status") or {}).get("containerStatuses") or []:
        if not container.get("ready"):
            over = bool((container.get("state") or {}).get("waiting")) or cause.kind != "probe"
            text = logs(cause.subject, container["name"], over and container.get("restartCount", 0) > 0)
            return replace(cause, lines=tuple(text.splitlines()))
    return cause


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


def _times(restarts: int) -> str:
    return f"{restarts} restart{'' if restarts == 1 else 's'}"
