"""The objects of one application, and how they refer to each other: which selects which, which scales which."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from marina.config.quantity import quantity
from marina.config.yaml_lines import Location
from marina.k8s.monitoring import SERVER_CONTAINER
from marina.k8s.verify.located import LocatedDocument, Place, nearest
from marina.k8s.verify.schemas import Schemas, is_built_in, is_shipped

_Item = TypeVar("_Item")
# Path of the pod template in each kind.
_TEMPLATES: dict[str, tuple[str, ...]] = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Deployment": ("spec", "template"),
    "Job": ("spec", "template"),
    "Pod": (),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
}
SCALABLE = {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"}
SERVING = SCALABLE | {"DaemonSet", "Pod"}
# The kinds of operators that rules look at. Every other kind is Kubernetes' own: Calico has a NetworkPolicy, too, and
# Knative a Service.
_OPERATED = {"HTTPRoute", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor"}
# `torchserve` as a program in a command, and not in an address or a path to a file.
_PROGRAM = re.compile(r"(?<![\w:.=-])(?<!//)torchserve(?![\w:./-])")
# TorchServe's own ports: management, metrics, gRPC inference, gRPC management.
METRICS_PORT = 8082
TORCHSERVE_PORTS = {8081: "management", METRICS_PORT: "metrics", 7070: "gRPC inference", 7071: "gRPC management"}
_GRPC_PORTS = {7070, 7071}


def amount(node: Place) -> float | None:
    """The number that a quantity stands for; None if there is none or it is not a quantity."""
    try:
        return quantity(str(node.value))
    except ValueError:
        return None


def matches(selector: Place, labels: dict[str, str]) -> bool:
    """Whether a label selector matches these labels; an empty one matches all."""
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


def target_ports(service: LocatedDocument) -> list[Place]:
    """The fields in which a Service names the ports of its pods."""
    ports = service.root.at("spec", "ports").items()
    return [port.at("targetPort") if port.at("targetPort").given else port.at("port") for port in ports]


def makes_pods(document: LocatedDocument) -> bool:
    """Whether a custom resource has a pod template in the same place as a Deployment, as Argo's Rollout does."""
    containers = document.root.at("spec", "template", "spec", "containers").items()
    return not is_built_in(document) and bool(containers)


def startup_budget_s(container: Place) -> int | None:
    """How many seconds a container may take to start before a probe kills it; None if it has no such probe."""
    probe = container.at("startupProbe")
    if not probe.given:
        probe = container.at("livenessProbe")
    if not probe.given:
        return None
    period, failures = probe.at("periodSeconds").number or 10, probe.at("failureThreshold").number or 3
    return (probe.at("initialDelaySeconds").number or 0) + period * failures


def least_pods(scaler: LocatedDocument) -> tuple[int, Place]:
    """The least number of pods that an autoscaler leaves, and the field that sets it. By default, KEDA scales to 0."""
    name, default = ("minReplicaCount", 0) if scaler.kind == "ScaledObject" else ("minReplicas", 1)
    field = scaler.root.at("spec", name)
    return (default if field.number is None else field.number), field


def _runs_torchserve(container: Place) -> bool:
    """Whether a container runs TorchServe, by its image, command or ports."""
    words = [word.text for name in ("command", "args") for word in container.at(name).items()]
    numbers = {port.at("containerPort").number for port in container.at("ports").items()}
    # Many servers use some of 8080 to 8082.
    by_ports = len(numbers & {*TORCHSERVE_PORTS, 8080}) > 2 and bool(numbers & _GRPC_PORTS)
    return "torchserve" in container.at("image").text or any(map(_PROGRAM.search, words)) or by_ports


@dataclass(frozen=True)
class Workload:
    """An object that makes pods, with its pod template."""

    document: LocatedDocument
    template: Place

    @property
    def pod(self) -> Place:
        return self.template.at("spec")

    @cached_property
    def labels(self) -> dict[str, str]:
        """The labels of its pods; the cluster adds those of a Job."""
        added = ("job-name", "batch.kubernetes.io/job-name") if self.document.kind == "Job" else ()
        return self.template.at("metadata", "labels").texts | dict.fromkeys(added, self.document.name)

    @property
    def serves(self) -> bool:
        """Whether its pods serve requests rather than run to completion."""
        return self.document.kind in SERVING or self.document.kind not in _TEMPLATES

    @property
    def containers(self) -> list[Place]:
        return self.pod.at("containers").items()

    @property
    def all_containers(self) -> list[Place]:
        return [*self.pod.at("initContainers").items(), *self.containers]

    @property
    def long_lived(self) -> list[Place]:
        """The containers that run as long as the pod. Sidecars are init containers with `restartPolicy: Always`."""
        sidecars = [
            container
            for container in self.pod.at("initContainers").items()
            if container.at("restartPolicy").text == "Always"
        ]
        return [*sidecars, *self.containers]

    def ports(self) -> Iterator[Place]:
        """The declared ports of its long-lived containers."""
        return (port for container in self.long_lived for port in container.at("ports").items())

    def port_number(self, target: Place) -> int | None:
        """The number of a port given by number or name; None if no container declares the name."""
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

    @cached_property
    def torchserves(self) -> list[Place]:
        """Its long-lived containers that run TorchServe. Others beside them, such as a proxy, may do as they like."""
        return [
            container
            for container in self.long_lived
            if _runs_torchserve(container) or (self.made_by_marina and container.at("name").text == SERVER_CONTAINER)
        ]

    @property
    def made_by_marina(self) -> bool:
        """Whether Marina rendered it. Its supervisor then drains the server before it stops."""
        return any(name.startswith("marina/") for name in self.template.at("metadata", "annotations").texts)


def _grouped(items: Iterable[_Item], key: Callable[[_Item], tuple[str, str]]) -> dict[tuple[str, str], list[_Item]]:
    groups: dict[tuple[str, str], list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True)
class Application:
    """All documents of one application."""

    documents: tuple[LocatedDocument, ...]
    # What was computed before: in a folder of thousands of objects, the rules ask for each of them again and again.
    _of: dict[tuple[str, ...], list[LocatedDocument]] = field(default_factory=dict, init=False, repr=False)
    _services: dict[int, list[LocatedDocument]] = field(default_factory=dict, init=False, repr=False)
    _selected: dict[tuple[int, Location], dict[int, Workload]] = field(default_factory=dict, init=False, repr=False)

    def of(self, *kinds: str) -> list[LocatedDocument]:
        """The documents of these kinds."""
        if kinds not in self._of:
            self._of[kinds] = [
                document
                for document in self.documents
                if document.kind in kinds and (document.kind in _OPERATED or is_built_in(document))
            ]
        return self._of[kinds]

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
        """The workloads whose pods serve requests."""
        return [workload for workload in self.workloads if workload.serves]

    @cached_property
    def torchserves(self) -> list[Workload]:
        return [workload for workload in self.workloads if workload.torchserves]

    @cached_property
    def made_by_marina(self) -> list[Workload]:
        return [workload for workload in self.workloads if workload.made_by_marina]

    @cached_property
    def exposed(self) -> list[Workload]:
        """The workloads behind a Service."""
        return [workload for workload in self.workloads if self.services_of(workload)]

    @cached_property
    def containers(self) -> list[Place]:
        """The containers of all workloads, init containers included."""
        return [container for workload in self.workloads for container in workload.all_containers]

    @cached_property
    def long_lived(self) -> list[Place]:
        """The long-lived containers of all workloads."""
        return [container for workload in self.workloads for container in workload.long_lived]

    def find(self, kind: str, name: str, near: LocatedDocument) -> LocatedDocument | None:
        """The object of this kind and name in the namespace of `near`."""
        named = ((document, document) for document in self.of(kind) if document.name == name)
        return next(iter(nearest(named, near)), None)

    def selected(self, selector: Place, plain: bool = False) -> list[Workload]:
        """The workloads that a selector matches in its namespace; with a `plain` selector, a mapping of labels as a
        Service has it, only those that serve."""
        return list(self._selected_by(selector, plain).values())

    def selects(self, selector: Place, workload: Workload, plain: bool = False) -> bool:
        """Whether `selected` has this workload."""
        return id(workload) in self._selected_by(selector, plain)

    def _selected_by(self, selector: Place, plain: bool) -> dict[int, Workload]:
        place = id(selector.document), selector.path
        if place not in self._selected:
            fits = [
                (workload.document, workload)
                for workload in self.workloads
                if (
                    workload.serves and selector.texts.items() <= workload.labels.items()
                    if plain
                    else matches(selector, workload.labels)
                )
            ]
            self._selected[place] = {id(workload): workload for workload in nearest(fits, selector.document)}
        return self._selected[place]

    @cached_property
    def is_whole(self) -> bool:
        """Whether no custom resource here may stand for further objects, as a database's stands for its pods and
        Services, and no kustomization adds labels."""
        return not any(
            document.gets_labels or not (is_built_in(document) or makes_pods(document) or is_shipped(document))
            for document in self.documents
        )

    @property
    def has_all_pods(self) -> bool:
        """Whether all pods seem to be made by objects that are here."""
        return bool(self.workloads) and self.is_whole

    def services_of(self, workload: Workload) -> list[LocatedDocument]:
        """The Services that select the workload's pods."""
        known = self._services.get(id(workload.document))
        if known is None:
            known = self._services[id(workload.document)] = [
                service
                for service in self.of("Service")
                if service.root.at("spec", "selector").texts
                and self.selects(service.root.at("spec", "selector"), workload, plain=True)
            ]
        return known

    @cached_property
    def scalers(self) -> list[LocatedDocument]:
        return self.of("HorizontalPodAutoscaler", "ScaledObject")

    def scale_target(self, scaler: LocatedDocument) -> tuple[str, str]:
        """Kind and name of the workload that an autoscaler scales."""
        reference = scaler.root.at("spec", "scaleTargetRef")
        default = "Deployment" if scaler.kind == "ScaledObject" else ""
        return reference.at("kind").text or default, reference.at("name").text

    def scaled_workload(self, scaler: LocatedDocument) -> Workload | None:
        """The workload that an autoscaler scales; None if it is not among the objects."""
        return next(iter(self._scaled(scaler)), None)

    def _scaled(self, scaler: LocatedDocument) -> list[Workload]:
        named = self._workloads_by_name.get(self.scale_target(scaler), [])
        return nearest(((workload.document, workload) for workload in named), scaler)

    def scaler_of(self, workload: Workload) -> LocatedDocument | None:
        """The first autoscaler that scales a workload."""
        scalers = self._scalers_by_target.get((workload.document.kind, workload.document.name), [])
        return next((scaler for scaler in scalers if any(other is workload for other in self._scaled(scaler))), None)

    @cached_property
    def _scalers_by_target(self) -> dict[tuple[str, str], list[LocatedDocument]]:
        return _grouped(self.scalers, self.scale_target)

    @cached_property
    def _workloads_by_name(self) -> dict[tuple[str, str], list[Workload]]:
        return _grouped(self.workloads, lambda workload: (workload.document.kind, workload.document.name))

    def min_pods(self, workload: Workload) -> tuple[int, Place]:
        """The least number of pods that a workload has, and the field that sets it."""
        if scaler := self.scaler_of(workload):
            return least_pods(scaler)
        replicas = workload.document.root.at("spec", "replicas")
        return (1 if replicas.number is None else replicas.number), replicas

    def may_have_several(self, workload: Workload) -> bool:
        """Whether a workload can have more than one pod."""
        scaler = self.scaler_of(workload)
        names = ("minReplicas", "maxReplicas", "minReplicaCount", "maxReplicaCount")
        bounds = [scaler.root.at("spec", name) for name in names] if scaler else []
        return any((field.number or 0) > 1 for field in [workload.document.root.at("spec", "replicas"), *bounds])

    def enforces_restricted(self, document: LocatedDocument) -> bool:
        """Whether the object's Namespace is among the objects and refuses pods that are not `restricted`."""
        label = "pod-security.kubernetes.io/enforce"
        spaces = [space for space in self.of("Namespace") if not document.namespace or space.name == document.namespace]
        return any(space.root.at("metadata", "labels").texts.get(label) == "restricted" for space in spaces)
