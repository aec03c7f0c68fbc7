"""What may be chosen where a chart is installed: its values, their schema, and where they go in the objects. What was
measured stands among them to be read, and cannot be changed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from config.quantity import quantity
from k8s.manifests import Files, Plan, to_yaml

ADDONS = ("gateway", "keda", "monitoring")
# Names that stand where a value goes; no spec has them.
MARKS = {
    "namespace": "marina-chart-namespace",
    "registry": "marina-chart-registry",
    "memory": "marina-chart-memory",
    "min": "marina-chart-min",
    "max": "marina-chart-max",
    "hosts": "marina-chart-hosts",
}
_OPENED = {
    "namespace": "{{ .Values.namespace }}",
    "registry": "{{ .Values.registry }}",
    "memory": '{{ include "memory" . }}',
    "min": "{{ int .Values.replicas.min }}",
    "max": "{{ int .Values.replicas.max }}",
}
_HOSTS = re.compile(rf"( *)hostnames:\n *- {MARKS['hosts']}\n")
_OPENED_HOSTS = r"\1{{- with .Values.hosts }}\n\1hostnames: {{ toJson . }}\n\1{{- end }}\n"
_MIB = 2**20
_ABOUT = {
    "namespace": "Where every object goes.",
    "createNamespace": "Whether the Namespace is an object of the chart.",
    "registry": "Where the image lies; its digest stays.",
    "replicas": "Pods at rest and at most.",
    "memoryMi": "Memory of a pod, MiB; not under what was measured.",
    "hosts": "Names that clients ask the Gateway for; none: all that it listens for.",
    "monitoring": "Objects for the Prometheus operator.",
    "keda": "Objects for KEDA.",
    "gateway": "Objects for the Gateway API.",
    "measured": "What the numbers of this chart follow from; to be read, not changed.",
}


@dataclass(frozen=True)
class Values:
    """The values with their defaults, and the smallest memory."""

    defaults: dict[str, Any]
    least_memory_mi: int

    def text(self, origin: str) -> str:
        """`values.yaml`, a comment above each value."""
        parts = [to_yaml([{key: value}], [_ABOUT[key]]) for key, value in self.defaults.items()]
        return f"# {origin}\n\n" + "\n".join(parts)

    def schema(self) -> dict[str, Any]:
        """`values.schema.json`: an unknown value, or one that the measurement does not cover, is refused."""
        name = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
        count = {"type": "integer", "minimum": 1}
        known: dict[str, Any] = {
            "namespace": name,
            "registry": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9._:/]*[a-z0-9])?$"},
            "replicas": {
                "type": "object",
                "additionalProperties": False,
                "required": ["max", "min"],
                "properties": {"min": count, "max": count},
            },
            "memoryMi": {"type": "integer", "minimum": self.least_memory_mi},
            "hosts": {
                "type": "array",
                "items": {"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
            },
            "measured": {"const": self.defaults.get("measured")},
        }
        known |= {key: {"type": "boolean"} for key in ("createNamespace", *ADDONS)}
        chosen = {key: known[key] | {"description": _ABOUT[key]} for key in self.defaults}
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "additionalProperties": False,
            "required": list(self.defaults),
            # Helm itself puts `global` there for a chart within a chart.
            "properties": chosen | {"global": {"type": "object"}},
        }

    def mark(self, document: dict[str, Any]) -> None:
        """Puts marks where the numbers go."""
        for path, mark in _PLACES.get(document["kind"], ()):
            _set(document, path, mark)
        if document["kind"] == "Deployment" and "memoryMi" in self.defaults:
            resources = _server(document)["resources"]
            for part in resources.values():
                part["memory"] = MARKS["memory"]
        if document["kind"] == "HTTPRoute":
            document["spec"]["hostnames"] = [MARKS["hosts"]]

    def opened(self, text: str) -> str:
        """A text with Helm's expressions where the marks are."""
        text = _HOSTS.sub(_OPENED_HOSTS, text)
        for name, expression in _OPENED.items():
            text = text.replace(MARKS[name], expression)
        return text


_PLACES = {
    "Deployment": (("spec.replicas", MARKS["min"]),),
    "HorizontalPodAutoscaler": (("spec.minReplicas", MARKS["min"]), ("spec.maxReplicas", MARKS["max"])),
    "ScaledObject": (
        ("spec.minReplicaCount", MARKS["min"]),
        ("spec.maxReplicaCount", MARKS["max"]),
        ("spec.fallback.replicas", MARKS["min"]),
    ),
}


def make_values(plan: Plan, files: Files) -> Values:
    """The values of a plan: what its objects say now."""
    spec, evidence = plan.spec, plan.evidence
    memory = quantity(plan.memory) / _MIB
    measured = evidence.memory.total_bytes if evidence and evidence.memory else 2 * spec.serving.java_heap_mb * _MIB
    chosen: dict[str, Any] = {
        "namespace": plan.namespace,
        **({"createNamespace": True} if spec.kubernetes.create_namespace else {}),
        "registry": spec.kubernetes.registry,
        "replicas": {"min": spec.scaling.min_replicas, "max": spec.scaling.max_replicas},
        **({"memoryMi": int(memory)} if memory.is_integer() else {}),
        **({"hosts": list(spec.kubernetes.route.hostnames)} if spec.kubernetes.route else {}),
        **{addon: True for addon in ADDONS if any(name.startswith(f"{addon}/") for name in files)},
    }
    if evidence:
        chosen["measured"] = {
            "package": evidence.package,
            "evidence": evidence.sha256,
            **({"memoryMi": math.ceil(measured / _MIB)} if evidence.memory else {}),
            **({"kneeRps": evidence.knee.rps} if evidence.knee else {}),
            **({"targetRpsPerPod": plan.target_rps_per_pod} if plan.target_rps_per_pod else {}),
        }
    return Values(chosen, math.ceil(measured / _MIB))


def _server(document: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = document["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == "server")


def _set(document: dict[str, Any], path: str, mark: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        document = document.get(parent, {})
    if last in document:
        document[last] = mark
