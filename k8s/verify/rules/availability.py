"""Rules about staying there while nodes are drained and while a version is rolled out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from k8s.verify.application import SCALABLE, Bundle, Workload, matches, startup_budget_s
from k8s.verify.located import Document, Node
from k8s.verify.rule import Context, Found, Topic

TOPIC = Topic("Staying available")

_DEFAULT_PROGRESS_S = 600


def _share(node: Node, of: int, *, up: bool) -> int | None:
    """A number of pods, or a percentage of some; rounded as Kubernetes does."""
    if node.number is not None:
        return node.number
    percent = node.text.removesuffix("%")
    if not (node.text.endswith("%") and percent.isascii() and percent.isdigit()):
        return None
    exact = int(percent) * of / 100
    return math.ceil(exact) if up else math.floor(exact)


def _budgets(bundle: Bundle) -> Iterator[tuple[Document, Workload, int, Node]]:
    """Each budget with a workload it is about, its fewest pods, and the field that says how few they may be."""
    for budget in bundle.of("PodDisruptionBudget"):
        for workload in bundle.selected(budget.root.at("spec", "selector")):
            if workload.document.kind in SCALABLE:
                least, field = bundle.least_pods(workload)
                yield budget, workload, least, field


def _kept(budget: Document, least: int) -> int | None:
    """How many of the fewest pods a budget keeps."""
    spec = budget.root.at("spec")
    if spec.at("maxUnavailable").given:
        away = _share(spec.at("maxUnavailable"), least, up=True)
        return None if away is None else least - away
    return _share(spec.at("minAvailable"), least, up=True)


@TOPIC.rule(
    "pdb-blocks-drain",
    "error",
    what="A PodDisruptionBudget lets no pod go.",
    why="A node with one of the pods can never be drained, so it can never be updated.",
    fix="maxUnavailable: 1",
)
def _blocks(bundle: Bundle, _: Context) -> Iterator[Found]:
    for budget, workload, least, _field in _budgets(bundle):
        kept = _kept(budget, least)
        if bundle.scaler_of(workload) is None and kept is not None and 0 < least <= kept:
            yield Found(_stated(budget), f"keeps {kept} of {least} pods: none may be evicted")


@TOPIC.rule(
    "pdb-against-scaler",
    "error",
    what="A PodDisruptionBudget lets no pod go while an autoscaler runs its fewest.",
    why="At night, when nodes are drained, no pod may be evicted.",
    fix="maxUnavailable: 1, or more `minReplicas`",
)
def _blocks_scaled(bundle: Bundle, _: Context) -> Iterator[Found]:
    for budget, workload, least, field in _budgets(bundle):
        kept = _kept(budget, least)
        if bundle.scaler_of(workload) is not None and kept is not None and 0 < least <= kept:
            text = f"keeps {kept} pods, and `{field.field}` of {field.document.reference} is {least}"
            yield Found(_stated(budget), f"{text}: none may be evicted")


def _stated(budget: Document) -> Node:
    spec = budget.root.at("spec")
    return spec.at("maxUnavailable") if spec.at("maxUnavailable").given else spec.at("minAvailable")


@TOPIC.rule(
    "pdb-selects-nothing",
    "error",
    what="No pod has the labels that a PodDisruptionBudget selects.",
    why="It protects nothing: all pods may be evicted at once.",
    fix="write the workload's own selector as `spec.selector`",
)
def _budget_selector(bundle: Bundle, _: Context) -> Iterator[Found]:
    for budget in bundle.of("PodDisruptionBudget"):
        selector = budget.root.at("spec", "selector")
        if not bundle.selected(selector):
            yield Found(selector, "no pod here has these labels")


@TOPIC.rule(
    "pdb-missing",
    "warning",
    what="Several pods serve, and no PodDisruptionBudget is about them.",
    why="Draining two nodes may take all of them away at once.",
    fix="add a PodDisruptionBudget with `maxUnavailable: 1` and the workload's selector",
)
def _no_budget(bundle: Bundle, _: Context) -> Iterator[Found]:
    for workload in _replicated(bundle):
        budgets = [one for one in bundle.of("PodDisruptionBudget") if bundle.together(one, workload.document)]
        if not any(matches(one.root.at("spec", "selector"), workload.labels) for one in budgets):
            yield Found(workload.document.root, "no PodDisruptionBudget selects its pods")


def _replicated(bundle: Bundle) -> Iterator[Workload]:
    """Workloads of two pods or more that a Service sends requests to."""
    for workload in bundle.workloads:
        if workload.document.kind in SCALABLE and bundle.least_pods(workload)[0] > 1 and bundle.services_of(workload):
            yield workload


@TOPIC.rule(
    "pdb-unhealthy",
    "warning",
    what="A PodDisruptionBudget protects pods that are not ready.",
    why="A pod in a crash loop keeps its node from being drained.",
    fix="unhealthyPodEvictionPolicy: AlwaysAllow",
)
def _unhealthy(bundle: Bundle, _: Context) -> Iterator[Found]:
    for budget in bundle.of("PodDisruptionBudget"):
        policy = budget.root.at("spec", "unhealthyPodEvictionPolicy")
        if policy.value in (None, "IfHealthyBudget"):
            yield Found(policy, "got `IfHealthyBudget`" if policy.given else "missing, so it is `IfHealthyBudget`")


@TOPIC.rule(
    "spread-missing",
    "warning",
    what="Nothing spreads the pods over nodes and zones.",
    why="One node, or one zone, may take all of them down.",
    fix="add `topologySpreadConstraints` for `kubernetes.io/hostname` and `topology.kubernetes.io/zone`",
)
def _no_spread(bundle: Bundle, _: Context) -> Iterator[Found]:
    for workload in _replicated(bundle):
        apart = workload.pod.at("affinity", "podAntiAffinity")
        if not workload.pod.at("topologySpreadConstraints").items() and not apart.given:
            yield Found(workload.pod.at("topologySpreadConstraints"), "missing")


@TOPIC.rule(
    "rollout-stuck",
    "error",
    what="A rollout may neither add a pod nor take one away.",
    why="The API server refuses the Deployment; with percentages of few pods, it stands still.",
    fix="maxSurge: 1 with maxUnavailable: 0",
)
def _stuck(bundle: Bundle, _: Context) -> Iterator[Found]:
    for document in bundle.of("Deployment"):
        strategy = document.root.at("spec", "strategy", "rollingUpdate")
        more, fewer = strategy.at("maxSurge"), strategy.at("maxUnavailable")
        if more.value in (0, "0%") and fewer.value in (0, "0%"):
            yield Found(more, "got 0, and `maxUnavailable` is 0")


@TOPIC.rule(
    "rollout-capacity",
    "warning",
    what="A rollout takes pods away before their successors are ready.",
    why="The load of a full service falls on fewer pods, and a pod that starts slowly makes it long.",
    fix="strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 25%}}",
)
def _capacity(bundle: Bundle, _: Context) -> Iterator[Found]:
    for workload in _replicated(bundle):
        strategy = workload.document.root.at("spec", "strategy")
        fewer = strategy.at("rollingUpdate", "maxUnavailable")
        if workload.document.kind != "Deployment":
            continue
        if strategy.at("type").text == "Recreate":
            yield Found(strategy.at("type"), "got `Recreate`: all pods go before the first new one starts")
        elif not fewer.given:
            yield Found(fewer, "missing, so it is 25%")
        elif fewer.value not in (0, "0%"):
            yield Found(fewer, f"got `{fewer.value}`")


@TOPIC.rule(
    "progress-deadline",
    "error",
    what="A rollout is given up before a pod may have started.",
    why="The startup probe still waits when the Deployment already reports failure: a rollback for nothing.",
    fix="`progressDeadlineSeconds` over what the startup probe allows",
)
def _progress(bundle: Bundle, _: Context) -> Iterator[Found]:
    for workload in bundle.workloads:
        deadline = workload.document.root.at("spec", "progressDeadlineSeconds")
        allowed = _DEFAULT_PROGRESS_S if deadline.number is None else deadline.number
        budget = max((startup_budget_s(one) or 0 for one in workload.containers), default=0)
        if workload.document.kind == "Deployment" and budget > allowed:
            told = f"got {allowed} s" if deadline.given else f"missing, so it is {allowed} s"
            yield Found(
                deadline, f"{told}, and a start may take {budget} s", f"progressDeadlineSeconds: {budget + 300}"
            )
