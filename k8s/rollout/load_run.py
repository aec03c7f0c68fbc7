"""Runs a load test's Job: makes it, follows its first pod's log, returns all of it, and deletes everything again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from config.errors import ClusterError
from config.progress import Progress
from k8s.cluster import Cluster, Document, Ref
from k8s.manifests import LOAD_CONTAINER, LoadJob, Plan, load_objects
from k8s.rollout.diagnosis import View, hopeless_pod, message
from k8s.rollout.inference import pod_page, served_package

_POLL_S = 1.0
_RECENT_LINES, _ALL_LINES, _LAST_WORDS = 3, 100_000, 20
_INDEX = "batch.kubernetes.io/job-completion-index"
# Pods that wait for a node and an image.
_BESIDES_S, _ASKED_S = 900.0, 10.0


def run_load(
    cluster: Cluster, plan: Plan, job: LoadJob, *, on_line: Callable[[str], None], progress: Progress
) -> list[str]:
    """The whole log of the pod that leads; ClusterError says why there is none."""
    with _made(cluster, plan, job):
        leader = _followed(cluster, plan, job, on_line, progress)
        return cluster.logs(plan.namespace, leader, LOAD_CONTAINER, previous=False, lines=_ALL_LINES).splitlines()


def served_packages(cluster: Cluster, plan: Plan, pods: Iterable[str]) -> list[str]:
    """What each of these pods says it serves; ClusterError when one cannot be asked."""
    return [_served(cluster, plan, pod) for pod in pods]


def pod_metrics(cluster: Cluster, plan: Plan, pod: str) -> str:
    """What a pod's supervisor measures; empty when it cannot be asked."""
    return pod_page(cluster, plan.namespace, pod, "metrics", _ASKED_S).decode(errors="replace")


def _served(cluster: Cluster, plan: Plan, pod: str) -> str:
    if sha256 := served_package(cluster, plan.namespace, [pod], _ASKED_S):
        return sha256
    raise ClusterError(
        f"{pod} cannot be asked which package it serves, neither by the API server nor by a port-forward"
    )


@contextmanager
def _made(cluster: Cluster, plan: Plan, job: LoadJob) -> Iterator[None]:
    """The Job and what belongs to it; the cluster takes the rest away with the Job."""
    first, *others = load_objects(plan, job)
    made = cluster.create(first)
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": made["metadata"]["uid"]}
        for document in others:
            cluster.create(document | {"metadata": document["metadata"] | {"ownerReferences": [owner]}})
        yield
    finally:
        cluster.delete(Ref.of(first), uid=made["metadata"]["uid"])


def _followed(cluster: Cluster, plan: Plan, job: LoadJob, on_line: Callable[[str], None], progress: Progress) -> str:
    """Waits until the pods have done their work; the name of the one that leads."""
    until, reported = time.monotonic() + job.seconds + _BESIDES_S, dict[str, str]()
    while True:
        view = _look(cluster, plan, job)
        for pod in view.pods:
            name, text = pod["metadata"]["name"], _pod_text(pod, view)
            if reported.get(name) != text:
                reported[name] = text
                progress.say(f"  {name}  {text}")
        _check(cluster, plan, view)
        leader = next((pod for pod in view.pods if _part(pod) == 0), None)
        if leader is not None:
            name, phase = leader["metadata"]["name"], (leader.get("status") or {}).get("phase")
            if phase == "Succeeded":
                return str(name)
            for line in cluster.logs(
                plan.namespace, name, LOAD_CONTAINER, previous=False, lines=_RECENT_LINES
            ).splitlines():
                on_line(line)
        if time.monotonic() > until:
            states = ", ".join(f"{name} {text}" for name, text in sorted(reported.items())) or "no pod was made"
            raise ClusterError(f"the load did not end within {job.seconds + _BESIDES_S:g} s: {states}")
        time.sleep(_POLL_S)


def _look(cluster: Cluster, plan: Plan, job: LoadJob) -> View:
    pods = cluster.list("v1", "Pod", plan.namespace, labels=f"marina/run={job.name}")["items"]
    events: list[Any] = []
    with contextlib.suppress(ClusterError):
        events = cluster.list("v1", "Event", plan.namespace, fields="type=Warning")["items"]
    return View({}, pods=tuple(pods), events=tuple(events))


def _check(cluster: Cluster, plan: Plan, view: View) -> None:
    """ClusterError when a pod will not do its part; the others would only wait for it."""
    for pod in view.pods:
        name, failed = pod["metadata"]["name"], (pod.get("status") or {}).get("phase") == "Failed"
        if failed or hopeless_pod(pod, view):
            words = cluster.logs(plan.namespace, name, LOAD_CONTAINER, previous=False, lines=_LAST_WORDS)
            lines = "".join(f"\n    | {line}" for line in words.splitlines())
            raise ClusterError(f"the load cannot run: {name}: {message(pod, view) or 'it failed'}{lines}")


def _pod_text(pod: Document, view: View) -> str:
    phase = str((pod.get("status") or {}).get("phase", "Pending"))
    trouble = message(pod, view)
    return f"{phase}: {trouble}" if trouble else phase


def _part(pod: Document) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX, -1))
