"""The values of a Helm chart, their schema, and where they go in the objects. The measurements are among them for
reference; the schema refuses to change them."""

import math
import re
from dataclasses import dataclass
from typing import Any

from marina.config.quantity import quantity
from marina.config.sections import REGISTRY_PATTERN
from marina.k8s.manifests import ADDONS, Files, Plan, to_yaml

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
# A namespace that is a whole value of its own, and might be `on` or `123`.
_WHOLE = re.compile(rf": {PLACEHOLDERS['namespace']}$", re.MULTILINE)
_HOSTS = re.compile(rf"( *)hostnames:\n *- {PLACEHOLDERS['hosts']}\n")
_HOSTS_TEMPLATE = r"\1{{- with .Values.hosts }}\n\1hostnames: {{ toJson . }}\n\1{{- end }}\n"
_MIB = 2**20
_COMMENTS = {
    "namespace": "The namespace of every object.",
    "createNamespace": "Whether the chart creates the namespace.",
    "registry": "The registry that the image is pulled from; the digest stays the same.",
    "replicas": "The number of pods, from `min` to `max`; without an autoscaler, `min`.",
    "memoryMi": "Memory of a pod in MiB, at least the measured peak.",
    "hosts": "Host names that the Gateway's route accepts; empty: all that the Gateway listens for.",
    "monitoring": "Whether to install the objects for the Prometheus operator.",
    "keda": "Whether to install the objects for KEDA.",
    "gateway": "Whether to install the objects for the Gateway API.",
    "measured": "The measurements that the numbers in this chart follow from. For reference: cannot be changed.",
}


@dataclass(frozen=True)
class Values:
    """The values with their defaults, a pod's memory as it is rendered, and the least that it may get."""

    defaults: dict[str, Any]
    memory: str
    least_memory_mi: int

    def text(self, origin: str) -> str:
        """The text of `values.yaml`, with a comment above each value."""
        parts = [to_yaml([{key: value}], [_COMMENTS[key]]) for key, value in self.defaults.items()]
        return f"# {origin}\n\n" + "\n".join(parts)

    def schema(self) -> dict[str, Any]:
        """The data of `values.schema.json`, which refuses unknown values and those that the measurement does not
        cover."""
        name = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
        counts = {key: {"type": "integer", "minimum": 1} for key in self.defaults["replicas"]}
        known: dict[str, Any] = {
            "namespace": name,
            "registry": {"type": "string", "pattern": REGISTRY_PATTERN},
            "replicas": {
                "type": "object",
                "additionalProperties": False,
                "required": sorted(counts),
                "properties": counts,
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
        # `--set createNamespace=false` is right for every chart, also for one that has no Namespace.
        properties.setdefault("createNamespace", {"const": False})
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "additionalProperties": False,
            "required": list(self.defaults),
            # What a chart inside another one gets too: Helm's `global`, and the usual name of the condition on which
            # the outer chart includes it.
            "properties": properties | {"enabled": {"type": "boolean"}, "global": {"type": "object"}},
        }

    def insert_placeholders(self, document: dict[str, Any]) -> None:
        """Replaces numbers and host names in a rendered object with placeholders, where no patch changed them."""
        spec = document.get("spec", {})
        for path, name in _PLACES.get(document["kind"], ()):
            *parents, last = path.split(".")
            parent = spec
            for key in parents:
                parent = _table(parent.get(key))
            if parent.get(last) == self.defaults["replicas"].get(name):
                parent[last] = PLACEHOLDERS[name]
        if document["kind"] == "Deployment" and "memoryMi" in self.defaults:
            resources = _table(_server(document).get("resources"))
            for part in (_table(resources.get("requests")), _table(resources.get("limits"))):
                if part.get("memory") == self.memory:
                    part["memory"] = PLACEHOLDERS["memory"]
        if document["kind"] == "HTTPRoute" and spec.get("hostnames", []) == self.defaults["hosts"]:
            spec["hostnames"] = [PLACEHOLDERS["hosts"]]

    def fill_placeholders(self, text: str) -> str:
        """The text with Helm's expressions in place of the placeholders."""
        text = _HOSTS.sub(_HOSTS_TEMPLATE, text)
        text = _WHOLE.sub(": {{ .Values.namespace | quote }}", text)
        for name, expression in _EXPRESSIONS.items():
            text = text.replace(PLACEHOLDERS[name], expression)
        return text


# Where `replicas` goes in the `spec` of an object.
_PLACES = {
    "Deployment": (("replicas", "min"),),
    "HorizontalPodAutoscaler": (("minReplicas", "min"), ("maxReplicas", "max")),
    "ScaledObject": (("minReplicaCount", "min"), ("maxReplicaCount", "max"), ("fallback.replicas", "min")),
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
        "replicas": {"min": spec.scaling.min_replicas}
        | ({"max": spec.scaling.max_replicas} if plan.autoscaled else {}),
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
    return Values(defaults, plan.memory, math.ceil(measured / _MIB))


def _table(value: Any) -> dict[str, Any]:
    """The mapping, or an empty one in place of whatever else a patch wrote there."""
    return value if isinstance(value, dict) else {}


def _server(document: dict[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = document["spec"]["template"]["spec"]["containers"]
    return next(container for container in containers if container["name"] == "server")
