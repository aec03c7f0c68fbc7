"""Documents that belong together, and how they refer to each other: who selects whom, who scales what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from k8s.verify.located import LocatedDocument, Place
from k8s.verify.schemas import Schemas, is_built_in

# Where the pods of each kind are described.
_TEMPLATES: dict[str, tuple[str, ...]] = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "Job": ("spec", "template"),
    "Pod": (),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
}
SCALABLE = {"Deployment", "ReplicaSet", "StatefulSet"}
SERVING = SCALABLE | {"DaemonSet", "Pod"}
# TorchServe's own ports: management, metrics, gRPC inference, gRPC management.
TORCHSERVE_PORTS = {8081: "management", 8082: "metrics", 7070: "gRPC inference", 7071: "gRPC management"}


# What the API server takes as an amount; a spec takes less.
_AMOUNT = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE])?)")
_POWERS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_POWERS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def amount(node: Place) -> float | None:
    """The number that a quantity stands for; None when there is none or it is not one."""
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    match = _AMOUNT.fullmatch(node.text)
    return None if match is None else float(match[1] + (match[2] or "")) * _POWERS[match[3] or ""]


def matches(selector: Place, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels; one without terms takes all."""
    wanted = selector.at("matchLabels").texts
    return wanted.items() <= labels.items() and all(
        _holds(term, labels) for term in selector.at("matchExpressions").items()
    )


def _holds(term: Place, labels: dict[str, str]) -> bool:
    key, values = term.at("key").text, [value.text for value in term.at("values").items()]
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(term.at("operator").text, False)


def makes_pods(document: LocatedDocument) -> bool:
    """Whether a custom resource has a template of pods where a Deployment has it, as Argo's Rollout does."""
    containers = document.root.at("spec", "template", "spec", "containers").items()
    return document.kind not in _TEMPLATES and not is_built_in(document) and bool(containers)


def startup_budget_s(container: Place) -> int | None:
    """How long a container may take to start before it is killed; None without a probe that would."""
    probe = container.at("startupProbe")
    if not probe.given:
        probe = container.at("livenessProbe")
    if not probe.given:
        return None
    period, failures = probe.at("periodSeconds").number or 10, probe.at("failureThreshold").number or 3
    return (probe.at("initialDelaySeconds").number or 0) + period * failures


@dataclass(frozen=True)
class Workload:
    """Something that makes pods, and the pods it makes."""

    document: LocatedDocument
    template: Place

    @property
    def pod(self) -> Place:
        return self.template.at("spec")

    @property
    def labels(self) -> dict[str, str]:
        """Labels of its pods."""
        return self.template.at("metadata", "labels").texts

    @property
    def serves(self) -> bool:
        """Whether its pods are there to be asked, not to end."""
        return self.document.kind in SERVING or self.document.kind not in _TEMPLATES

    @property
    def containers(self) -> list[Place]:
        return self.pod.at("containers").items()

    @property
    def all_containers(self) -> list[Place]:
        """Those that start first, too."""
        return [*self.pod.at("initContainers").items(), *self.containers]

    @property
    def long_lived(self) -> list[Place]:
        """Containers that run as long as the pod: sidecars are init containers that start again."""
        sidecars = [
            container
            for container in self.pod.at("initContainers").items()
            if container.at("restartPolicy").text == "Always"
        ]
        return [*sidecars, *self.containers]

    def ports(self) -> Iterator[Place]:
        """Declared ports of all containers that run as long as the pod."""
        return (port for container in self.long_lived for port in container.at("ports").items())

    def port_number(self, target: Place) -> int | None:
        """What a port's name or number stands for in these pods; None when no container declares the name."""
        if target.number is not None:
            return target.number
        return next(
            (
                port.at("containerPort").number
                for port in self.ports()
                if port.at("name").value == target.value and target.given
            ),
            None,
        )

    @property
    def has_torchserve(self) -> bool:
        """Whether the pods run TorchServe, by their image, command or ports."""
        numbers = {port.at("containerPort").number for port in self.ports()}
        words = [
            str(word.value)
            for container in self.containers
            for word in (container.at("image"), *container.at("command").items(), *container.at("args").items())
        ]
        return any("torchserve" in word for word in words) or len(numbers & {*TORCHSERVE_PORTS, 8080}) > 2 or self.ours

    @property
    def ours(self) -> bool:
        """Whether Marina made it: its supervisor is the server's parent, so stops are drained."""
        return any(name.startswith("marina/") for name in self.template.at("metadata", "annotations").texts)


@dataclass(frozen=True)
class Application:
    """All documents of one application."""

    documents: tuple[LocatedDocument, ...]

    def of(self, *kinds: str) -> list[LocatedDocument]:
        """The documents of some kinds."""
        return [document for document in self.documents if document.kind in kinds]

    @cached_property
    def schemas(self) -> Schemas:
        return Schemas(self.documents)

    @cached_property
    def workloads(self) -> list[Workload]:
        known = [Workload(document, document.root.at(*_TEMPLATES[document.kind])) for document in self.of(*_TEMPLATES)]
        return known + [
            Workload(document, document.root.at("spec", "template"))
            for document in self.documents
            if makes_pods(document)
        ]

    @cached_property
    def serving(self) -> list[Workload]:
        """Those whose pods are there to be asked."""
        return [workload for workload in self.workloads if workload.serves]

    @cached_property
    def torchserves(self) -> list[Workload]:
        return [workload for workload in self.workloads if workload.has_torchserve]

    @cached_property
    def ours(self) -> list[Workload]:
        return [workload for workload in self.workloads if workload.ours]

    @cached_property
    def exposed(self) -> list[Workload]:
        """Those that a Service sends requests to."""
        return [workload for workload in self.workloads if self.services_of(workload)]

    @cached_property
    def containers(self) -> list[Place]:
        """Of all workloads, those that start first, too."""
        return [container for workload in self.workloads for container in workload.all_containers]

    @cached_property
    def long_lived(self) -> list[Place]:
        """Of all workloads."""
        return [container for workload in self.workloads for container in workload.long_lived]

    def find(self, kind: str, name: str, near: LocatedDocument) -> LocatedDocument | None:
        """An object by name, in the namespace of another."""
        return next(
            (document for document in self.of(kind) if document.name == name and self.together(document, near)), None
        )

    def together(self, document: LocatedDocument, other: LocatedDocument) -> bool:
        """Whether two objects end up in one namespace; one that names none goes with any."""
        return document.namespace == other.namespace or not (document.namespace and other.namespace)

    def selected(self, selector: Place, plain: bool = False) -> list[Workload]:
        """Serving workloads in the selector's namespace that it takes; `plain` is a Service's mapping of labels."""
        return [
            workload
            for workload in self.workloads
            if workload.serves
            and self.together(workload.document, selector.document)
            and (selector.texts.items() <= workload.labels.items() if plain else matches(selector, workload.labels))
        ]

    def services_of(self, workload: Workload) -> list[LocatedDocument]:
        """The Services whose requests its pods answer."""
        return [
            service
            for service in self.of("Service")
            if service.root.at("spec", "selector").texts
            and workload in self.selected(service.root.at("spec", "selector"), plain=True)
        ]

    @cached_property
    def scalers(self) -> list[LocatedDocument]:
        return self.of("HorizontalPodAutoscaler", "ScaledObject")

    def target(self, scaler: LocatedDocument) -> tuple[str, str]:
        """Kind and name of what an autoscaler scales."""
        reference = scaler.root.at("spec", "scaleTargetRef")
        default = "Deployment" if scaler.kind == "ScaledObject" else ""
        return reference.at("kind").text or default, reference.at("name").text

    def scaled(self, scaler: LocatedDocument) -> Workload | None:
        """The workload that an autoscaler scales, if it is here."""
        return next(
            (
                workload
                for workload in self.workloads
                if (workload.document.kind, workload.document.name) == self.target(scaler)
                and self.together(workload.document, scaler)
            ),
            None,
        )

    def scaler_of(self, workload: Workload) -> LocatedDocument | None:
        """The first autoscaler of a workload."""
        return next((scaler for scaler in self.scalers if self.scaled(scaler) is workload), None)

    def least_pods(self, workload: Workload) -> tuple[int, Place]:
        """How many pods there are at least, and the field that says so."""
        scaler = self.scaler_of(workload)
        if scaler is None:
            field = workload.document.root.at("spec", "replicas")
        else:
            field = scaler.root.at("spec", "minReplicas" if scaler.kind != "ScaledObject" else "minReplicaCount")
        # KEDA scales to nothing unless told otherwise; everything else keeps one.
        default = 0 if scaler is not None and scaler.kind == "ScaledObject" else 1
        return (default if field.number is None else field.number), field

    def may_be_many(self, workload: Workload) -> bool:
        """Whether there may be more than one pod."""
        scaler = self.scaler_of(workload)
        names = ("minReplicas", "maxReplicas", "minReplicaCount", "maxReplicaCount")
        stated = [scaler.root.at("spec", name) for name in names] if scaler else []
        return any((field.number or 0) > 1 for field in [workload.document.root.at("spec", "replicas"), *stated])

    def enforces_restricted(self, document: LocatedDocument) -> bool:
        """Whether an object's Namespace is here and refuses pods that are not `restricted`."""
        label = "pod-security.kubernetes.io/enforce"
        spaces = [space for space in self.of("Namespace") if not document.namespace or space.name == document.namespace]
        return any(space.root.at("metadata", "labels").texts.get(label) == "restricted" for space in spaces)
