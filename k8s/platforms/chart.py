"""Renders a plan as a Helm chart. Its templates are the rendered objects, with the few values that are chosen at
install time left open; with the defaults in `values.yaml` they give exactly the rendered objects.

Placeholders mark the open values. The namespace and the registry are replaced in the plan before it is rendered, so
that they are found in PromQL expressions and on the dashboard as well; numbers are replaced in the rendered objects."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

from marina.config.sections import Patch
from marina.k8s.manifests import ADDONS, ORIGIN, Files, Plan, render_objects, to_yaml
from marina.k8s.monitoring import dashboard_identity
from marina.k8s.platforms.chart_values import PLACEHOLDERS, Values, make_values

_NAMESPACE, _REGISTRY = PLACEHOLDERS["namespace"], PLACEHOLDERS["registry"]
# A semantic version whose minor and patch numbers may be missing.
_VERSION = re.compile(r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?")
_HELPERS = """\
{{- /* The quantity in the form in which the API server stores it. */}}
{{- define "memory" }}
{{- $mi := int .Values.memoryMi }}
{{- if mod $mi 1024 }}{{ $mi }}Mi{{ else }}{{ div $mi 1024 }}Gi{{ end }}
{{- end }}
{{- define "check" }}
{{- if eq (toString .Values.enabled) "false" }}
{{- fail "enabled: only a chart that includes this one can leave it out" }}
{{- end }}
{{- $low := int .Values.replicas.min }}
{{- $high := int (default $low .Values.replicas.max) }}
{{- if gt $low $high }}
{{- fail (printf "replicas.min: got %d, but replicas.max is %d" $low $high) }}
{{- end }}
{{- end }}
"""
_NOTES = """\
{{ .Chart.Name }} {{ .Chart.AppVersion }} in namespace {{ .Values.namespace }}. Its objects are named NAME.

  kubectl -n {{ .Values.namespace }} rollout status deployment/NAME

Clients in the namespace reach it at http://NAME.{{ .Values.namespace }}.svc:PORT/predictions/URL_NAME
"""


def chart_texts(plan: Plan) -> dict[str, str]:
    """The text of every file of the chart, by path."""
    values = make_values(plan, render_objects(plan))
    files = _render_with_placeholders(plan, values)
    texts = {
        f"templates/{name.replace('/', '-')}": _template(name, documents, values) for name, documents in files.items()
    }
    # Grafana identifies the dashboard by a hash of the service's namespace and name.
    dashboard = f'{{{{ printf "%s/{plan.name}" .Values.namespace | sha256sum | trunc 16 }}}}'
    identity = dashboard_identity(_NAMESPACE, plan.name)
    texts = {name: text.replace(identity, dashboard) for name, text in texts.items()}
    # A patch may have changed the port.
    ports = files["50-service.yaml"][0]["spec"].get("ports") or [{"port": plan.ports.inference}]
    notes = (
        _NOTES.replace("URL_NAME", plan.spec.url_name).replace("NAME", plan.name).replace("PORT", str(ports[0]["port"]))
    )
    return {
        "Chart.yaml": to_yaml([_metadata(plan)], [ORIGIN]),
        "values.yaml": values.text(ORIGIN),
        "values.schema.json": json.dumps(values.schema(), indent=2) + "\n",
        "templates/_helpers.tpl": _HELPERS,
        "templates/NOTES.txt": notes,
        **texts,
    }


def _metadata(plan: Plan) -> dict[str, Any]:
    match = _VERSION.fullmatch(plan.spec.version)
    numbers = ".".join(str(int(part or 0)) for part in match.groups()) if match else "0.1.0"
    metadata = {
        "apiVersion": "v2",
        "name": plan.name,
        "description": f"{plan.name} {plan.spec.version}, served by TorchServe",
        "type": "application",
        "version": numbers,
        "appVersion": plan.spec.version,
        "kubeVersion": f">={plan.oldest_kubernetes}.0-0",
    }
    return metadata | ({"annotations": {"marina/package": plan.package.sha256}} if plan.package else {})


def _with_placeholders(plan: Plan) -> Plan:
    kubernetes = plan.spec.kubernetes
    patches = tuple(map(_for_placeholders, kubernetes.patches))
    changed = kubernetes.model_copy(update={"namespace": _NAMESPACE, "patches": patches})
    spec = plan.spec.model_copy(update={"kubernetes": changed})
    image = plan.image.replace(f"{kubernetes.registry}/", f"{_REGISTRY}/", 1)
    return replace(plan, spec=spec, image=image)


def _render_with_placeholders(plan: Plan, values: Values) -> Files:
    files = deepcopy(render_objects(_with_placeholders(plan)))
    for documents in files.values():
        for document in documents:
            values.insert_placeholders(document)
    return files


def _for_placeholders(patch: Patch) -> Patch:
    """A patch as it applies to objects with placeholders: it may name the namespace of its object."""
    metadata = patch.merge.get("metadata")
    if isinstance(metadata, dict) and "namespace" in metadata:
        return patch.model_copy(update={"merge": patch.merge | {"metadata": metadata | {"namespace": _NAMESPACE}}})
    return patch


def _template(name: str, documents: list[dict[str, Any]], values: Values) -> str:
    # Braces that belong to Prometheus or Grafana templates are escaped, so that Helm leaves them alone.
    text = re.sub(r"\{\{|\}\}", lambda match: "{{ " + json.dumps(match[0]) + " }}", to_yaml(documents, [ORIGIN]))
    text = values.fill_placeholders(text)
    condition = "createNamespace" if name.startswith("00-") else name.partition("/")[0] if "/" in name else ""
    if condition == "createNamespace" or condition in ADDONS:
        text = f"{{{{- if .Values.{condition} }}}}\n{text}{{{{- end }}}}\n"
    return '{{- include "check" . -}}\n' + text
