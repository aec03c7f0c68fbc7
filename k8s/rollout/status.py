"""The status of a release right now: which revision runs, its pods, what its autoscaler wants, and what is wrong."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.errors import InputError
from marina.config.measured import VerdictHead
from marina.config.record import read_document
from marina.k8s.cluster import ApiError, Cluster, Ref
from marina.k8s.rollout.apply import describe_empty
from marina.k8s.rollout.diagnosis import Cause, find_causes
from marina.k8s.rollout.engines import find_engine
from marina.k8s.rollout.history import Placement, State
from marina.k8s.rollout.wait import PodSummary, availability, read_view, shortfall, summarise_pods

SCHEMA = "marina.status/1"
_SHA = 12


@dataclass(frozen=True)
class ServiceStatus:
    """The status of a release right now."""

    name: str
    namespace: str
    context: str
    typed: str
    """How the user named it on the command line."""
    state: State | None
    facts: dict[str, str]
    pods: tuple[PodSummary, ...]
    rollout: str
    """How many pods are available; empty while the rollout is not complete."""
    shortfall: str
    """What the rollout still lacks; empty once it is complete."""
    autoscaler: str
    """The pods that it has and wants; empty if there is none."""
    scaling_blocked: str
    """What the autoscaler cannot do, and why; empty if it works."""
    causes: tuple[Cause, ...]
    verdict: str
    """The verdict of the last load test in the build folder; empty if there is none."""
    gates: dict[int, str]
    """What the gate said of each stored revision that had to pass one."""

    engine: str = ""
    """What replaces its pods instead of `deploy`, and the command that shows it; empty if nothing does."""

    @property
    def exit_code(self) -> int:
        """0 if the last deploy succeeded, all its pods are available and none of its objects is missing, else 1."""
        missing = any(cause.kind == "missing" for cause in self.causes)
        return 0 if self.state and self.state.phase == "deployed" and self.rollout and not missing else 1

    def to_data(self) -> dict[str, Any]:
        plain = ("name", "namespace", "context", "facts", "autoscaler", "scaling_blocked", "verdict", "engine")
        state = self.state
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in plain},
            "phase": state.phase if state else "absent",
            "revision": state.current if state else 0,
            "trying": state.trying if state else 0,
            "kept": sorted(state.good) if state else [],
            "gates": {str(number): text for number, text in self.gates.items()},
            "refused": state.refused if state else {},
            "held_by": state.holder if state else "",
            "message": state.message if state else "",
            "complete": bool(self.rollout),
            "pods": [vars(pod) for pod in self.pods],
            "reasons": [cause.to_data() for cause in self.causes],
        }

    def to_text(self) -> str:
        """The status for people: a line for each fact, pod and cause."""
        state, where = self.state, f"{self.name} in {self.namespace} (context {self.context})"
        if state is None:
            return f"{where}: not deployed" + (f" by Marina: {self.engine}" if self.engine else "")
        lines = [f"{where}: {_phase(state, self.typed)}"]
        facts = self.facts
        lines += [f"  {key:<11}{facts[key]}" for key in ("version", "image", "patched") if key in facts]
        lines += [f"  {key:<11}{facts[key][:_SHA]}…" for key in ("package", "evidence") if key in facts]
        lines += [f"  pods       {self.rollout or self.shortfall or 'none'}"]
        lines += [f"    {pod}" for pod in self.pods]
        lines += [f"  autoscaler {self.autoscaler}"] if self.autoscaler else []
        lines += [f"    {self.scaling_blocked}"] if self.scaling_blocked else []
        lines += [f"  verdict    {self.verdict}"] if self.verdict else []
        lines += [f"  kept       {', '.join(map(str, sorted(state.good)))}"] if state.good else []
        lines += [f"  gate       revision {number}: {text}" for number, text in self.gates.items()]
        lines += [f"  refused    {why}" for why in state.refused.values()]
        lines += [f"  message    {state.message}"] if state.message else []
        lines += [f"  engine     {self.engine}"] if self.engine else []
        lines += [f"  {cause.with_hint()}" for cause in self.causes]
        return "\n".join(lines)


def read_status(placement: Placement, folder: Path) -> ServiceStatus:
    """Reads the status of a release, and the last verdict from its build folder, if there is one."""
    cluster, store = placement.cluster, placement.store
    state = store.load()
    revision = store.read_revision(state.trying or state.current) if state else None
    objects = [Ref.of(document) for document in revision.documents] if revision else []
    deployment = next((ref for ref in objects if ref.kind == "Deployment"), None)
    view = read_view(cluster, deployment) if deployment else None
    facts = revision.facts if revision else {}
    wanted, causes = view.deployment["spec"].get("replicas", 1) if view else 0, tuple(find_causes(view)) if view else ()
    if deployment and not wanted:
        kind, text = ("empty", describe_empty(deployment, objects)) if view else ("missing", "does not exist")
        causes = (Cause(kind, str(deployment), text),)
    if state and revision and state.phase == "deployed":
        causes += tuple(_missing(cluster, objects))
    engine = find_engine(cluster, placement.name, placement.namespace)
    scaling, blocked = _autoscaler(cluster, deployment) if deployment else ("", "")
    return ServiceStatus(
        name=placement.name,
        namespace=placement.namespace,
        context=cluster.context,
        typed=placement.typed,
        state=state,
        facts=facts,
        pods=tuple(summarise_pods(view)) if view else (),
        rollout=availability(view.deployment) if view and wanted else "",
        shortfall="" if not view or availability(view.deployment) else shortfall(view.deployment),
        autoscaler=scaling,
        scaling_blocked=blocked,
        causes=causes,
        verdict=_verdict(folder, facts),
        gates={each.number: each.facts["gate"] for each in store.revisions() if "gate" in each.facts} if state else {},
        engine=f"{engine.text}; `{engine.show}` shows it" if engine else "",
    )


def _missing(cluster: Cluster, objects: list[Ref]) -> Iterator[Cause]:
    """The objects that somebody deleted; of the Deployment, the pods tell, and unknown kinds were left out."""
    for ref in objects:
        try:
            if ref.kind != "Deployment" and cluster.plural(ref.api_version, ref.kind) and cluster.get(ref) is None:
                yield Cause("missing", str(ref), "does not exist", hint="marina deploy SPEC creates it again")
        except ApiError as err:
            if err.status != 403:
                raise


def _phase(state: State, typed: str) -> str:
    number = state.trying or state.current
    named = f"revision {number}" if number else "the first revision"
    if state.holder:
        changed = f"{named} is being changed by {state.holder}"
        return f"{changed}, unless that was killed: it holds the release until {state.until} by its clock"
    if state.phase == "deployed":
        return f"revision {state.current}"
    if state.phase == "deleting":
        return f"partly deleted: marina delete {typed} finishes it"
    before = f"; the last one that became ready is {state.current}" if state.current else ""
    return f"{named} {state.phase}{before}"


def _verdict(folder: Path, facts: dict[str, str]) -> str:
    with suppress(InputError):
        record = read_document(folder / "verdict.json", VerdictHead, hint="")
        if record:
            text = f"{record.verdict.status} at {record.at}"
            same = record.tested.package and record.tested.package == facts.get("package", "")
            return text if same else f"{text}, of another package than the one deployed"
    return ""


def _autoscaler(cluster: Cluster, deployment: Ref) -> tuple[str, str]:
    """What the autoscaler of a Deployment wants, and what it cannot do. KEDA's are HorizontalPodAutoscalers, too."""
    try:
        autoscalers = cluster.list("autoscaling/v2", "HorizontalPodAutoscaler", deployment.namespace)
    except ApiError as err:
        if err.status != 403:
            raise
        return f"unknown: {err.message}", ""
    ours = (each for each in autoscalers if each["spec"]["scaleTargetRef"]["name"] == deployment.name)
    document = next(ours, None)
    if document is None:
        return "", ""
    spec, status = document["spec"], document.get("status") or {}
    present, wanted = status.get("currentReplicas"), status.get("desiredReplicas")
    # Although there are pods, `desiredReplicas` is 0 until the autoscaler has metrics for its first decision.
    decided = "has not decided yet" if wanted is None or (present and not wanted) else f"wants {wanted}"
    failing = {
        condition["type"]: str(condition.get("message") or condition.get("reason"))
        for condition in status.get("conditions") or []
        if condition.get("status") == "False"
    }
    blocked = ""
    if why := failing.get("ScalingActive"):
        # By the metrics that it knows, if any, an autoscaler still adds pods.
        # https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
        blocked = f"it removes no pods, and adds none by metrics that it cannot read: {why}"
    if why := failing.get("AbleToScale"):
        blocked = f"it cannot change the number of pods: {why}"
    return f"{spec.get('minReplicas', 1)} to {spec['maxReplicas']} pods, now {present or 0}, {decided}", blocked
