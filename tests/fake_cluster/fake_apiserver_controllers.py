"""The controllers behind the fake API server: Deployments make ReplicaSets, these make pods, pods follow their script.

What pods do is a script: a list of steps, each the status of the pod from then on and the warnings that come with it.
A script is chosen by a word in the container's image, so that a test deploys the failure it wants to see.
"""

import hashlib
import json
import threading
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import fake_apiserver_fields as fields
from fake_apiserver_kinds import BUILT_IN, Kind
from fake_apiserver_rolling import Limits, Size, next_sizes
from fake_apiserver_store import Document, Store, key, now

_REVISION, _WANTED, _MOST = (
    f"deployment.kubernetes.io/{name}" for name in ("revision", "desired-replicas", "max-replicas")
)
KIND = {kind.kind: kind for kind in BUILT_IN}


@dataclass(frozen=True)
class Step:
    """One stage of a pod: its phase, its container's state, whether it is ready, and its warning events."""

    phase: str = "Pending"
    state: Document = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    ready: bool = False
    restarts: int = 0
    last: Document = field(default_factory=dict)
    unscheduled: str = ""
    warnings: tuple[tuple[str, str], ...] = ()
    """The reason and message of each event."""


RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def _backoff(reason: str, words: str) -> Document:
    return {"waiting": {"reason": reason, "message": words}}


def _ended(code: int, reason: str = "Error") -> Document:
    return {"terminated": {"exitCode": code, "reason": reason}}


_PULL = 'Failed to pull image "{image}": rpc error: code = NotFound desc = failed to resolve: {image}: not found'
SCRIPTS: dict[str, tuple[Step, ...]] = {
    "good": (Step(), Step("Running", RUNNING), Step("Running", RUNNING, ready=True)),
    "no-such-image": (
        Step(),
        Step(state=_backoff("ErrImagePull", "rpc error: not found"), warnings=(("Failed", _PULL),)),
        Step(state=_backoff("ImagePullBackOff", 'Back-off pulling image "{image}"')),
    ),
    "nowhere": (
        Step(
            unscheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            warnings=(("FailedScheduling", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),),
        ),
    ),
    "crashing": (
        Step("Running", RUNNING),
        Step("Running", _ended(3)),
        Step(
            "Running",
            _backoff("CrashLoopBackOff", "back-off 10s restarting failed container"),
            restarts=3,
            last=_ended(3),
        ),
    ),
    "greedy": (
        Step("Running", RUNNING),
        Step("Running", _backoff("CrashLoopBackOff", "back-off"), restarts=3, last=_ended(137, "OOMKilled")),
    ),
    "unready": (
        Step(
            "Running",
            RUNNING,
            warnings=(("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503"),),
        ),
    ),
    "slow": tuple([Step("Running", RUNNING)] * 5 + [Step("Running", RUNNING, ready=True)]),
}


class Controllers:
    """One thread that moves the objects step by step towards their wanted state."""

    def __init__(self, store: Store) -> None:
        self.refused = ""
        """If set, every pod is refused, with this message."""
        self.stuck = False
        """If set, no controller does anything."""
        self.has_kubelet = False
        """Whether pods follow no script: a kubelet starts and ends them."""
        self.scripts = dict(SCRIPTS)
        self._store = store
        self._stop = threading.Event()
        self._steps: dict[str, int] = {}
        self._born: dict[str, int] = {}
        self._warned: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.03):
            with self._store.lock:
                if not self.stuck:
                    for document in self._store.list(KIND["Deployment"], ""):
                        self._deployment(document)

    def _deployment(self, deployment: Document) -> None:
        limits = Limits.of(deployment["spec"])
        newest, older = self._replicasets(deployment, limits)
        known = [*older, *([newest] if newest else [])]
        sizes = [self._size(each) for each in known]
        if newest and _waits(deployment):
            sizes[-1] = replace(sizes[-1], available=0)
        wanted = next_sizes(limits, sizes[-1] if newest else None, sizes[: len(older)])
        for number, replicaset in enumerate(known):
            replicaset = known[number] = self._scale(replicaset, wanted[replicaset["metadata"]["name"]], limits)
            self._fill(replicaset)
            for pod in () if self.has_kubelet else self._pods(replicaset):
                self._advance(pod)
        self._report(deployment, known[-1] if newest else None, known[: len(older)])

    def _size(self, replicaset: Document) -> Size:
        metadata = replicaset["metadata"]
        return Size(
            name=metadata["name"],
            replicas=replicaset["spec"]["replicas"],
            available=sum(map(is_ready, self._pods(replicaset))),
            wanted=int(metadata["annotations"][_WANTED]),
            most=int(metadata["annotations"][_MOST]),
            age=int(metadata["annotations"][_REVISION]),
        )

    def _scale(self, replicaset: Document, replicas: int, limits: Limits) -> Document:
        changed = deepcopy(replicaset)
        changed["spec"]["replicas"] = replicas
        changed["metadata"]["annotations"] |= {_WANTED: str(limits.replicas), _MOST: str(limits.most)}
        return replicaset if changed == replicaset else self._store.put(KIND["ReplicaSet"], changed)

    def _fill(self, replicaset: Document) -> None:
        """Makes the pods that are missing, and deletes those that are too many: first the ones that are not ready, then
        the newest."""
        pods, wanted = self._pods(replicaset), replicaset["spec"]["replicas"]
        for _ in range(len(pods), wanted):
            if self.refused:
                # Every attempt has a new pod name, and after some attempts they are combined into one event.
                attempt = min(len(self._warned), 9)
                text = f'Error creating: pods "x-{attempt}" is forbidden: {self.refused}'
                combined = text if attempt < 9 else f"(combined from similar events): {text}"
                self._warn(replicaset, "FailedCreate", combined)
            else:
                self._make_pod(replicaset)
        oldest = sorted(pods, key=lambda pod: (not is_ready(pod), self._born[pod["metadata"]["uid"]]))
        for pod in oldest[wanted:]:
            self.delete(pod, "Pod")

    def _replicasets(self, deployment: Document, limits: Limits) -> tuple[Document | None, list[Document]]:
        """The ReplicaSet of the Deployment's template, and the others. While it is paused, none is made."""
        mine = [document for document in self._store.list(KIND["ReplicaSet"], "") if _owned(document, deployment)]
        template = deployment["spec"]["template"]
        same = [document for document in mine if document["metadata"]["annotations"]["template"] == _hash(template)]
        last = max((int(document["metadata"]["annotations"][_REVISION]) for document in mine), default=0)
        if same and same[0]["metadata"]["annotations"][_REVISION] != str(last):
            same[0]["metadata"]["annotations"][_REVISION] = str(last + 1)
            same = [self._store.put(KIND["ReplicaSet"], same[0])]
        if not same and limits.paused:
            return None, mine
        newest = same[0] if same else self._make_replicaset(deployment, last + 1)
        number = newest["metadata"]["annotations"][_REVISION]
        if (deployment["metadata"].get("annotations") or {}).get(_REVISION) != number:
            changed = deepcopy(deployment)
            changed["metadata"].setdefault("annotations", {})[_REVISION] = number
            stored = self._write(KIND["Deployment"], deployment, changed)
            deployment["metadata"] = stored["metadata"]
        return newest, [document for document in mine if document["metadata"]["uid"] != newest["metadata"]["uid"]]

    def _make_replicaset(self, deployment: Document, number: int) -> Document:
        template = deployment["spec"]["template"]
        metadata = {
            "name": f"{deployment['metadata']['name']}-{_hash(template)[:8]}",
            "namespace": deployment["metadata"]["namespace"],
            "labels": template["metadata"].get("labels", {}),
            "annotations": {
                _REVISION: str(number),
                "template": _hash(template),
                **dict.fromkeys((_WANTED, _MOST), "0"),
            },
            "ownerReferences": [_reference(deployment)],
        }
        spec = {"replicas": 0, "template": template}
        document = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
        return self._store.put(KIND["ReplicaSet"], document)

    def _make_pod(self, replicaset: Document) -> None:
        template = replicaset["spec"]["template"]
        suffix = hashlib.sha256(f"{replicaset['metadata']['uid']}{len(self._born)}".encode()).hexdigest()[:5]
        metadata = {
            "name": f"{replicaset['metadata']['name']}-{suffix}",
            "namespace": replicaset["metadata"]["namespace"],
            "labels": template["metadata"].get("labels", {}),
            "ownerReferences": [_reference(replicaset)],
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": {}}
        made = self._store.put(KIND["Pod"], document)
        self._born[made["metadata"]["uid"]] = len(self._born)

    def _advance(self, pod: Document) -> None:
        """Moves the pod to the next stage of its script; it stays in the last one."""
        image = pod["spec"]["containers"][0]["image"]
        script = next((steps for word, steps in self.scripts.items() if word in image), self.scripts["good"])
        uid = pod["metadata"]["uid"]
        at = min(self._steps.get(uid, -1) + 1, len(script) - 1)
        self._steps[uid] = at
        step = _filled(script[at], image)
        scheduled = {"type": "PodScheduled", "status": "True"}
        if step.unscheduled:
            scheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": step.unscheduled,
            }
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": image,
            "ready": step.ready,
            "restartCount": step.restarts,
            "state": step.state,
            "lastState": step.last,
        }
        pod["status"] = {
            "phase": step.phase,
            "conditions": [scheduled, {"type": "Ready", "status": str(step.ready)}],
            "containerStatuses": [] if step.unscheduled else [container],
        }
        self._store.put(KIND["Pod"], pod)
        for reason, message in step.warnings:
            self._warn(pod, reason, message)

    def _report(self, deployment: Document, newest: Document | None, older: list[Document]) -> None:
        changed = deepcopy(deployment)
        new, old = (self._pods(newest) if newest else []), [pod for each in older for pod in self._pods(each)]
        conditions = [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]
        if deployment["spec"].get("paused"):
            conditions = [{"type": "Progressing", "status": "Unknown", "reason": "DeploymentPaused"}]
        if self.refused and not new:
            message = f'pods "x" is forbidden: {self.refused}'
            conditions.append(
                {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
            )
        ready = sum(map(is_ready, [*new, *old]))
        changed["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(new) + len(old),
            "updatedReplicas": len(new),
            "readyReplicas": ready,
            "availableReplicas": sum(map(is_ready, old)) if _waits(deployment) else ready,
            "conditions": conditions,
        }
        self._write(KIND["Deployment"], deployment, changed, "status")

    def _write(self, kind: Kind, before: Document, after: Document, subresource: str = "") -> Document:
        written = fields.update(before, after, "kube-controller-manager", moment=now(), subresource=subresource)
        return self._store.put(kind, written)

    def _warn(self, about: Document, reason: str, message: str) -> None:
        if (about["metadata"]["uid"], message) in self._warned:
            return
        self._warned.add((about["metadata"]["uid"], message))
        metadata = {
            "name": f"{about['metadata']['name']}.{len(self._warned)}",
            "namespace": about["metadata"]["namespace"],
        }
        involved = {"kind": about["kind"], "name": about["metadata"]["name"], "uid": about["metadata"]["uid"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "involvedObject": involved,
            "lastTimestamp": now(),
        }
        self._store.put(KIND["Event"], event)

    def _pods(self, replicaset: Document) -> list[Document]:
        owned = [document for document in self._store.list(KIND["Pod"], "") if _owned(document, replicaset)]
        return [document for document in owned if "deletionTimestamp" not in document["metadata"]]

    def delete(self, document: Document, kind: str) -> None:
        metadata = document["metadata"]
        if self.has_kubelet and kind == "Pod":
            # It ends when its server does.
            metadata.setdefault("deletionTimestamp", now())
            self._store.put(KIND[kind], document)
            return
        self._store.remove(key(KIND[kind], metadata["namespace"], metadata["name"]))


def _filled(step: Step, image: str) -> Step:
    text = json.dumps([step.state, step.last, step.warnings]).replace("{image}", image)
    state, last, warnings = json.loads(text)
    return Step(step.phase, state, step.ready, step.restarts, last, step.unscheduled, tuple(map(tuple, warnings)))


def is_ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _owned(document: Document, owner: Document) -> bool:
    return any(ref["uid"] == owner["metadata"]["uid"] for ref in document["metadata"].get("ownerReferences", []))


def _reference(owner: Document) -> dict[str, Any]:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def _hash(template: Document) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()


def _waits(deployment: Document) -> bool:
    """Whether its new pods must be ready for longer than any test runs before they are available."""
    return int(deployment["spec"].get("minReadySeconds") or 0) > 3600
