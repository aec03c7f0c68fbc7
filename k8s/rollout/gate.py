"""The gate of a rollout: one pod of the new revision serves beside all old ones until a judge has decided.

While it stands, the Deployment is paused by a field of the applied document, so whoever applies a document without that
field ends it: the next deploy, a rollback, or `kubectl rollout resume`. An autoscaler goes on scaling a paused
Deployment, and its controller divides new pods between both revisions. So there may be more than one new pod, and the
judge counts requests, not shares."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marina.config.answers import answers_match
from marina.config.errors import ClusterError, MarinaError
from marina.config.progress import Progress
from marina.config.record import TOLERANCE
from marina.k8s.cluster import Cluster, Document, Ref, is_ready
from marina.k8s.rollout.apply import apply
from marina.k8s.rollout.diagnosis import GATE_ANNOTATION, DeploymentView, find_causes, is_gated, is_hopeless
from marina.k8s.rollout.history import Placement
from marina.k8s.rollout.inference import Canary, CanaryRequest, ask_each, infer, pod_page
from marina.k8s.rollout.record import AnswersAlike, GateResult, RolloutOptions
from marina.k8s.rollout.wait import read_view, summarise_pods

POLL_S = 0.5
_CANARY_S = 60.0
# A controller makes a ReplicaSet at once.
_NOTICED_S = 60.0
_READERS = 16
# Longer than any gate stands, and what Kubernetes takes by default.
_NEVER_S, _DEADLINE_S = 7 * 86_400, 600
# How long each revision is asked, at most, and how many inputs are named.
_ASKING_S, _MOST_NAMED = 120.0, 5


class Said(Protocol):
    """A verdict."""

    @property
    def status(self) -> str:
        """PASS, FAIL or INVALID."""

    @property
    def text(self) -> str:
        """Its figures on one line."""

    @property
    def why(self) -> str:
        """Why it is not PASS."""

    def to_data(self) -> dict[str, Any]:
        """All of it, for `rollout.json`."""


class Judge(Protocol):
    """Decides by the pages of the pods, at the end of every window."""

    seconds: float
    window_s: float
    announced_after: int
    """After how many windows it can say what it needs."""

    def observe(self, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> None:
        """Takes the page `/latencies` of each pod."""

    def announcement(self) -> str:
        """What it needs, and how long that takes."""

    def verdict(self, *, over: bool) -> Said | None:
        """What it says; None to go on."""


class Load(Protocol):
    """Requests of Marina's own, to each pod of both revisions."""

    @property
    def sent(self) -> int:
        """How many were sent so far."""


@dataclass(frozen=True)
class Gate:
    """What a new revision must pass."""

    judge: Judge
    inputs: Mapping[str, CanaryRequest] = field(default_factory=dict)
    """What both revisions are asked, by name."""
    agreement: float | None = None
    """Which share of the inputs must be answered alike; None: any."""
    load: Callable[[], AbstractContextManager[Load]] | None = None
    """Sends requests while its context lasts; None: clients send enough."""


def needs_gate(cluster: Cluster, document: Document) -> bool:
    """Whether applying this Deployment replaces pods that serve, or would have while a gate that was left stands."""
    live = cluster.get(Ref.of(document))
    if live is None or not (live.get("status") or {}).get("availableReplicas"):
        return False
    return is_gated(live) or not _same_template(cluster, live, document)


def stand_gate(
    placement: Placement,
    document: Document,
    request: CanaryRequest | None,
    gate: Gate,
    before: Document | None,
    options: RolloutOptions,
    progress: Progress,
) -> GateResult:
    """Starts one pod of the new revision, waits until the judge has decided, and leaves the Deployment paused. `before`
    is the Deployment of the revision that serves. Raises ClusterError if the pod does not come up."""
    cluster, ref = placement.cluster, Ref.of(document)
    live = cluster.get(ref)
    if live and is_gated(live) and not _same_template(cluster, live, document) and before:
        # Its new pod would serve as an old one.
        progress.say("a gate was left with a pod of yet another revision: that goes first")
        apply(cluster, before, force=options.force)
        _await(cluster, ref, lambda view: len(_serving(view)[1]) >= 1 and not _old_pods(view), "went back")
    resumed = live is not None and is_gated(live) and _same_template(cluster, live, document)
    if not resumed:
        apply(cluster, _gated(document, paused=False), force=options.force)
        _await(cluster, ref, _wants_new_pod, "made a ReplicaSet")
    apply(cluster, _gated(document, paused=True), force=options.force)
    progress.say("the gate stands: one pod of the new revision, beside all old ones")
    pod = _await_new_pod(cluster, ref, gate.judge, options.timeout_s)
    if request is not None:
        with progress.step("infer the sample"):
            answer = infer(cluster, placement.namespace, pod, request, timeout_s=_CANARY_S)
        if not answer.ok:
            text = f"FAIL: the new pod is ready, but the inference of the sample failed: {answer.answer}"
            return GateResult("FAIL", text, {})
        _show_difference(placement, ref, answer, request, progress)
    alike = _compare_answers(placement, ref, pod, gate, progress)
    if alike and gate.agreement is not None and alike.same < gate.agreement * alike.inputs:
        text = f"FAIL: {alike}, needed: {gate.agreement:.6g} of them"
        return GateResult("FAIL", text, {}, alike)
    return replace(_judge(cluster, ref, gate, progress), answers=alike)


def _show_difference(
    placement: Placement, ref: Ref, answer: Canary, request: CanaryRequest, progress: Progress
) -> None:
    """Says if an old pod answers the sample otherwise. That decides nothing: a model that was trained again should."""
    old, _ = _serving(_view(placement.cluster, ref))
    if old:
        of_any = replace(request, sha256=None, answer=None)
        before = infer(placement.cluster, placement.namespace, old[0], of_any, timeout_s=_CANARY_S)
        if before.ok and before.answer != answer.answer:
            progress.say(f"note: the new revision answers the sample with {answer.answer}")
            progress.say(f"  and the old one with {before.answer}")


def _compare_answers(placement: Placement, ref: Ref, pod: str, gate: Gate, progress: Progress) -> AnswersAlike | None:
    """Asks both revisions the same, as far as there is time. None if there is nothing to ask."""
    old, _ = _serving(_view(placement.cluster, ref))
    if not gate.inputs or not old:
        return None
    names, requests = list(gate.inputs), list(gate.inputs.values())
    with progress.step(f"ask both revisions {len(names):,} inputs"):
        before, after = (
            ask_each(placement.cluster, placement.namespace, each, requests, within_s=_ASKING_S)
            for each in (old[0], pod)
        )
    pairs = list(zip(names, before, after, strict=False))
    differing = [name for name, one, other in pairs if not answers_match(one, other, TOLERANCE)]
    alike = AnswersAlike(len(pairs), len(pairs) - len(differing), tuple(differing[:_MOST_NAMED]))
    progress.say(f"  {alike}")
    return alike


def _judge(cluster: Cluster, ref: Ref, gate: Gate, progress: Progress) -> GateResult:
    if gate.load is None:
        return _await_verdict(cluster, ref, gate.judge, progress)
    with gate.load() as load:
        said = _await_verdict(cluster, ref, gate.judge, progress)
        text = f"{said.text}; of the requests of both, marina sent {load.sent:,}"
        return replace(said, text=text, sent=load.sent)


def _await_verdict(cluster: Cluster, ref: Ref, judge: Judge, progress: Progress) -> GateResult:
    begun, announced = time.monotonic(), False
    while True:
        over = time.monotonic() - begun >= judge.seconds
        view = _view(cluster, ref)
        if not is_gated(view.deployment):
            raise ClusterError(f"{ref} was resumed by somebody while the gate stood")
        if again := [pod for pod in summarise_pods(view) if pod.restarts]:
            return GateResult("FAIL", f"FAIL: {again[0].name} was restarted: {again[0].message or 'see its log'}", {})
        old, new = _serving(view)
        judge.observe(_pages(cluster, ref.namespace, old), _pages(cluster, ref.namespace, new))
        if said := judge.verdict(over=over):
            text = said.text if said.status == "PASS" else f"{said.text}: {said.why}"
            return GateResult(said.status, text, said.to_data())
        if not announced and time.monotonic() - begun > judge.announced_after * judge.window_s:
            progress.say(judge.announcement())
            announced = True
        time.sleep(judge.window_s)


def _await_new_pod(cluster: Cluster, ref: Ref, judge: Judge, timeout_s: float | None) -> str:
    """Waits until a new pod is ready and returns its name; meanwhile the judge watches the old ones."""
    begun, watched = time.monotonic(), 0.0
    while True:
        view, waited = _view(cluster, ref), time.monotonic() - begun
        old, new = _serving(view)
        if new:
            return new[0]
        spec = view.deployment["spec"]
        limit_s = timeout_s or spec.get("progressDeadlineSeconds", _DEADLINE_S) - spec.get("minReadySeconds", 0)
        if is_hopeless(view) or waited > limit_s:
            causes = "; ".join(map(str, find_causes(view))) or f"not ready after {waited:.0f} s"
            raise ClusterError(f"the new pod did not come up: {causes}")
        if waited - watched >= judge.window_s or not watched:
            watched = waited or 1e-9
            judge.observe(_pages(cluster, ref.namespace, old), {})
        time.sleep(POLL_S)


def _pages(cluster: Cluster, namespace: str, pods: Iterable[str]) -> dict[str, bytes]:
    """The pages of these pods; a pod that just ended has none."""
    pods = list(pods)
    with ThreadPoolExecutor(min(_READERS, max(1, len(pods)))) as pool:
        pages = pool.map(lambda pod: pod_page(cluster, namespace, pod, "latencies"), pods)
        return {pod: page for pod, page in zip(pods, pages, strict=True) if page}


def _serving(view: DeploymentView) -> tuple[list[str], list[str]]:
    """The names of the old and of the new pods that serve."""
    new = [pod["metadata"]["name"] for pod in view.new_pods if _serves(pod)]
    return [pod["metadata"]["name"] for pod in _old_pods(view) if _serves(pod)], new


def _old_pods(view: DeploymentView) -> list[Document]:
    new = {pod["metadata"]["uid"] for pod in view.new_pods}
    return [pod for pod in view.pods if pod["metadata"]["uid"] not in new]


def _serves(pod: Document) -> bool:
    return is_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def _wants_new_pod(view: DeploymentView) -> bool:
    newest = view.newest
    observed = int((view.deployment.get("status") or {}).get("observedGeneration") or 0)
    noticed = observed >= int(view.deployment["metadata"].get("generation") or 0)
    return noticed and newest is not None and int(newest["spec"].get("replicas") or 0) >= 1


def _gated(document: Document, *, paused: bool) -> Document:
    """The Deployment while the gate stands: at most one pod more, none less, and paused once that one is wanted.

    Its new pods are ready, but never available: a controller that sees as many available ones as are wanted takes the
    old ones away, even while it is paused, and where one pod is wanted the first is enough."""
    metadata, spec = document["metadata"], document["spec"]
    deadline_s = int(spec.get("progressDeadlineSeconds") or _DEADLINE_S)
    never = {"minReadySeconds": _NEVER_S, "progressDeadlineSeconds": _NEVER_S + deadline_s}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    annotations = {**(metadata.get("annotations") or {}), GATE_ANNOTATION: "stands"}
    changed = spec | {"strategy": rolling} | never | ({"paused": True} if paused else {})
    return document | {"metadata": metadata | {"annotations": annotations}, "spec": changed}


def _same_template(cluster: Cluster, live: Document, document: Document) -> bool:
    """Whether applying the document would leave the pods' template as it is, defaults included."""
    try:
        applied = cluster.apply(document, force=True, dry_run=True).document
    except MarinaError:
        return False
    return bool(applied["spec"]["template"] == live["spec"]["template"])


def _await(cluster: Cluster, ref: Ref, holds: Any, what: str) -> None:
    begun = time.monotonic()
    while not holds(_view(cluster, ref)):
        if time.monotonic() - begun > _NOTICED_S:
            raise ClusterError(f"no controller {what} for {ref} within {_NOTICED_S:g} s: is one running?")
        time.sleep(POLL_S)


def _view(cluster: Cluster, ref: Ref) -> DeploymentView:
    view = read_view(cluster, ref)
    if view is None:
        raise ClusterError(f"{ref} was deleted while the gate stood")
    return view
