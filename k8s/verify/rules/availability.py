"""Rules about staying available while nodes are drained and while a new version is rolled out."""

import math
import re
from collections.abc import Iterator

from marina.k8s.verify.application import SCALABLE, Application, Workload, startup_budget_s
from marina.k8s.verify.located import LocatedDocument, Place
from marina.k8s.verify.rule import Level, Remark, Scope, Topic, repeated

TOPIC = Topic("Staying available")

_DEFAULT_PROGRESS_S = 600


def _share(node: Place, of: int, *, up: bool) -> int | None:
    """A number of pods, or a percentage of `of` pods, rounded as Kubernetes does."""
    if node.number is not None:
        return node.number
    percent = re.fullmatch(r"([0-9]{1,9})%", node.text)
    if percent is None:
        return None
    exact = int(percent[1]) * of / 100
    return math.ceil(exact) if up else math.floor(exact)


def _protected(application: Application, budget: LocatedDocument) -> list[Workload]:
    """The workloads whose pods a budget selects: without a selector none, with an empty one all."""
    selector = budget.root.at("spec", "selector")
    return application.selected(selector) if selector.given else []


def _budgets(application: Application) -> Iterator[tuple[LocatedDocument, list[Workload], int]]:
    """Each PodDisruptionBudget with the workloads that it selects, and the least number of their pods."""
    for budget in application.of("PodDisruptionBudget"):
        workloads = [workload for workload in _protected(application, budget) if workload.document.kind in SCALABLE]
        yield budget, workloads, sum(application.min_pods(workload)[0] for workload in workloads)


def _kept(budget: LocatedDocument, least: int) -> int | None:
    """How many of `least` pods a budget keeps from eviction."""
    spec = budget.root.at("spec")
    if spec.at("maxUnavailable").given:
        away = _share(spec.at("maxUnavailable"), least, up=True)
        return None if away is None else least - away
    return _share(spec.at("minAvailable"), least, up=True)


@TOPIC.rule(
    "pdb-blocks-drain",
    "error",
    what="A PodDisruptionBudget allows no eviction, or none while an autoscaler is at its minimum, or two select the "
    "same pods.",
    why="A node with one of the pods can never be drained, so it can never be updated. Percentages are rounded up: "
    "`minAvailable: 60%` of two pods keeps both.",
    fix="maxUnavailable: 1, or a higher minimum of the autoscaler",
)
def _blocks(application: Application, _: Scope) -> Iterator[Remark]:
    for budget, workloads, least in _budgets(application):
        kept = _kept(budget, least)
        if kept is not None and 0 < least <= kept:
            minima = [application.min_pods(workload) for workload in workloads if application.scaler_of(workload)]
            texts = [f", `{field.field}` of {field.document.reference} is {number}" for number, field in minima]
            text = f"keeps {kept} of {least} pods{''.join(texts)}, so none can be evicted"
            yield Remark(_amount_field(budget), text)
    # A drain leaves the pods of a DaemonSet where they are.
    evicted = [workload for workload in application.workloads if workload.document.kind != "DaemonSet"]
    for workload in evicted:
        for earlier, budget in repeated(_budgets_of(application, workload), lambda _: ()):
            if earlier.reference != budget.reference:
                text = f"selects pods that {earlier.reference} selects, too: pods of two budgets cannot be evicted"
                level: Level | None = "warning" if budget.is_beside(earlier) else None
                yield Remark(budget.root.at("spec", "selector"), text, "one budget for each pod", level)


def _budgets_of(application: Application, workload: Workload) -> list[LocatedDocument]:
    budgets = application.of("PodDisruptionBudget")
    return [budget for budget in budgets if any(other is workload for other in _protected(application, budget))]


def _amount_field(budget: LocatedDocument) -> Place:
    spec = budget.root.at("spec")
    return spec.at("maxUnavailable") if spec.at("maxUnavailable").given else spec.at("minAvailable")


@TOPIC.rule(
    "pdb-selects-nothing",
    "error",
    what="No pod has the labels that a PodDisruptionBudget selects.",
    why="It is valid but protects nothing: all pods can be evicted at once.",
    fix="use the workload's own selector as `spec.selector`; if another folder has the pods, check both as one",
)
def _budget_selector(application: Application, _: Scope) -> Iterator[Remark]:
    for budget in application.of("PodDisruptionBudget"):
        selector = budget.root.at("spec", "selector")
        if not selector.given:
            yield Remark(selector, "missing, so it selects no pod")
        elif not application.selected(selector):
            known = application.has_all_pods
            yield Remark(selector, "no pod here has these labels", level=None if known else "warning")


@TOPIC.rule(
    "pdb-missing",
    "warning",
    what="No PodDisruptionBudget selects the pods of a Service that always has several.",
    why="Draining two nodes at once can take all of them away.",
    fix="add a PodDisruptionBudget with `maxUnavailable: 1` and the workload's selector",
)
def _no_budget(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in _replicated(application):
        if not _budgets_of(application, workload):
            yield Remark(workload.document.root, "no PodDisruptionBudget selects its pods")


def _replicated(application: Application) -> Iterator[Workload]:
    """Workloads behind a Service that always have two pods or more."""
    for workload in application.workloads:
        if (
            workload.document.kind in SCALABLE
            and application.min_pods(workload)[0] > 1
            and application.services_of(workload)
        ):
            yield workload


@TOPIC.rule(
    "rollout-capacity",
    "warning",
    what="A rollout removes pods before the new ones are ready.",
    why="That is Kubernetes' default. Until the new pods have started, fewer pods carry the full load.",
    fix="strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 25%}}",
)
def _capacity(application: Application, scope: Scope) -> Iterator[Remark]:
    chosen = scope.plan.spec.kubernetes.rollout.max_unavailable if scope.plan else 0
    for workload in _replicated(application):
        strategy = workload.document.root.at("spec", "strategy")
        fewer = strategy.at("rollingUpdate", "maxUnavailable")
        if workload.document.kind != "Deployment":
            continue
        if strategy.at("type").text == "Recreate":
            yield Remark(strategy.at("type"), "got `Recreate`: all pods stop before the first new one starts")
        elif not fewer.given:
            yield Remark(fewer, "missing, so it is 25%")
        elif fewer.value not in (0, "0%", chosen):
            yield Remark(fewer, f"got `{fewer.value}`")


@TOPIC.rule(
    "progress-deadline",
    "error",
    what="A rollout's deadline is shorter than the time that the probes allow a pod to start.",
    why="The Deployment reports failure while a pod is still allowed to start, and it is rolled back needlessly.",
    fix="`progressDeadlineSeconds` over what the startup probe allows",
)
def _progress(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        deadline = workload.document.root.at("spec", "progressDeadlineSeconds")
        allowed = _DEFAULT_PROGRESS_S if deadline.number is None else deadline.number
        budget = max((startup_budget_s(container) or 0 for container in workload.containers), default=0)
        if workload.document.kind == "Deployment" and budget > allowed:
            allowance = f"got {allowed} s" if deadline.given else f"missing, so it is {allowed} s"
            yield Remark(
                deadline, f"{allowance}, but a start may take {budget} s", f"progressDeadlineSeconds: {budget + 300}"
            )
