"""The values of a Helm chart, their schema, and where they go in the objects. The measurements are among them for
reference; the schema refuses to change them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from config.quantity import quantity
from k8s.manifests import ADDONS, Files, Plan, to_yaml

# Stand-ins for values while the objects are rendered; no spec contains these names.
PLACEHOLDERS = {
    "namespace": "marina-chart-namespace",
    "registry": "marina-chart-registry",
    "memory": "marina-chart-memory",
    "min": "marina-chart-min",
    "max": "marina-chart-max",
    "hosts": "marina-chart-hosts",
}
_EXPRESSIONS = {
    "namespace": "{{ .Values.namespace }}",
    "registry": "{{ .Values.registry }}",
    "memory": '{{ include "memory" . }}',
    "min": "{{ int .Values.replicas.min }}",
    "max": "{{ int .Values.replicas.max }}",
}
_HOSTS = re.compile(rf"( *)hostnames:\n *- {PLACEHOLDERS['hosts']}\n")
_HOSTS_TEMPLATE = r"\1{{- with .Values.hosts }}\n\1hostnames: {{ toJson . }}\n\1{{- end }}\n"
_MIB = 2**20
_COMMENTS = {
    "namespace": "The namespace of every object.",
    "createNamespace": "Whether the chart creates the namespace.",
    "registry": "The registry that the image is pulled from; the digest stays the same.",
    "replicas": "The minimum and maximum number of pods.",
    "memoryMi": "Memory of a pod in MiB, at least the measured peak.",
    "hosts": "Host names that the Gateway's route accepts; empty: all that the Gateway listens for.",
    "monitoring": "Whether to install the objects for the Prometheus operator.",
    "keda": "Whether to install the objects for KEDA.",
    "gateway": "Whether to install the objects for the Gateway API.",
    "measured": "The measurements that the numbers in this chart follow from. For reference: cannot be changed.",
}


@dataclass(frozen=True)
class Values:
    """The values with their defaults, and the least memory that a pod may get."""

    defaults: dict[str, Any]
    least_memory_mi: int

    def text(self, origin: str) -> str:
        """The text of `values.yaml`, with a comment above each value."""
        parts = [to_yaml([{key: value}], [_COMMENTS[key]]) for key, value in self.defaults.items()]
        return f"# {origin}\n\n" + "\n".join(parts)

    def schema(self) -> dict[str, Any]:
        """The data of `values.schema.json`, which refuses unknown values and those that the measurement does not
        cover."""
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
        properties = {key: known[key] | {"description": _COMMENTS[key]} for key in self.defaults}
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "additionalProperties": False,
            "required": list(self.defaults),
            # Helm adds `global` by itself to the values of a chart inside another chart.
            "properties": properties | {"global": {"type": "object"}},
        }

    def insert_placeholders(self, document: dict[str, Any]) -> None:
        """Replaces numbers and host names in a rendered object with placeholders."""
        for path, placeholder in _PLACES.get(document["kind"], ()):
            _set(document, path, placeholder)
        if document["kind"] == "Deployment" and "memoryMi" in self.defaults:
            resources = _server(document)["resources"]
            for part in resources.values():
                part["memory"] = PLACEHOLDERS["memory"]
        if document["kind"] == "HTTPRoute":
            document["spec"]["hostnames"] = [PLACEHOLDERS["hosts"]]

    def fill_placeholders(self, text: str) -> str:
        """The text with Helm's expressions in place of the placeholders."""
        text = _HOSTS.sub(_HOSTS_TEMPLATE, text)
        for name, expression in _EXPRESSIONS.items():
            text = text.replace(PLACEHOLDERS[name], expression)
        return text


_PLACES = {
    "Deployment": (("spec.replicas", PLACEHOLDERS["min"]),),
    "HorizontalPodAutoscaler": (("spec.minReplicas", PLACEHOLDERS["min"]), ("spec.maxReplicas", PLACEHOLDERS["max"])),
    "ScaledObject": (
        ("spec.minReplicaCount", PLACEHOLDERS["min"]),
        ("spec.maxReplicaCount", PLACEHOLDERS["max"]),
        ("spec.fallback.replicas", PLACEHOLDERS["min"]),
    ),
}


def make_values(plan: Plan, files: Files) -> Values:
    """The chart's values for a plan, with defaults that give the rendered objects."""
    spec, evidence = plan.spec, plan.evidence
    memory = quantity(plan.memory) / _MIB
    measured = evidence.memory.total_bytes if evidence and evidence.memory else 2 * spec.serving.java_heap_mb * _MIB
    defaults: dict[str, Any] = {
        "namespace": plan.namespace,
        **({"createNamespace": True} if spec.kubernetes.create_namespace else {}),
        "registry": spec.kubernetes.registry,
        "replicas": {"min": spec.scaling.min_replicas, "max": spec.scaling.max_replicas},
        **({"memoryMi": int(memory)} if memory.is_integer() else {}),
        **({"hosts": list(spec.kubernetes.route.hostnames)} if spec.kubernetes.route else {}),
        **{addon: True for addon in sorted(ADDONS) if any(name.startswith(f"{addon}/") for name in files)},
    }
    if evidence:
        defaults["measured"] = {
            "package": evidence.package,
            "evidence": evidence.sha256,
            **({"memoryMi": math.ceil(measured / _MIB)} if evidence.memory else {}),
            **({"kneeRps": evidence.knee.rps} if evidence.knee else {}),
            **({"targetRpsPerPod": plan.target_rps_per_pod} if plan.target_rps_per_pod else {}),
        }
    return Values(defaults, math.ceil(measured / _MIB))


def _server(document: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = document["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == "server")


def _set(document: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        document = document.get(parent, {})
    if last in document:
        document[last] = value
