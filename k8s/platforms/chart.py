"""A Helm chart of a plan. Its templates are the rendered objects, with holes for the few values that are chosen where
it is installed; with the defaults of `values.yaml` they are the objects to the last field.

The holes are made by rendering a plan whose namespace and registry are marks, so that a name in an expression or on the
dashboard is found as well as the one in `metadata`; numbers are marked in the finished objects.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from config.progress import Progress
from k8s.manifests import ORIGIN, Files, Plan, render, to_yaml
from k8s.monitoring import dashboard_identity
from k8s.platforms.chart_test import test_objects
from k8s.platforms.chart_values import ADDONS, MARKS, Values, make_values

_NAMESPACE, _REGISTRY = MARKS["namespace"], MARKS["registry"]
# A semantic version, of which the later parts may be missing.
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")
_HELPERS = """\
{{- /* The amount as the API server stores it. */}}
{{- define "memory" }}
{{- $mi := int .Values.memoryMi }}
{{- if mod $mi 1024 }}{{ $mi }}Mi{{ else }}{{ div $mi 1024 }}Gi{{ end }}
{{- end }}
{{- define "check" }}
{{- $low := int .Values.replicas.min }}
{{- $high := int .Values.replicas.max }}
{{- if gt $low $high }}
{{- fail (printf "replicas.min: got %d, but replicas.max is %d" $low $high) }}
{{- end }}
{{- end }}
"""
_NOTES = """\
{{ .Chart.Name }} {{ .Chart.AppVersion }} in namespace {{ .Values.namespace }}, objects of this chart are called NAME.

  kubectl -n {{ .Values.namespace }} rollout status deployment/NAME
  helm test {{ .Release.Name }} -n {{ .Release.Namespace }}

Clients in the namespace find it at http://NAME.{{ .Values.namespace }}.svc:PORT/predictions/NAME
"""


def chart_texts(plan: Plan, mar: Path, progress: Progress) -> dict[str, str]:
    """Every file of the chart. Without the MAR it has no test, and that is said."""
    values = make_values(plan, render(plan))
    files = _marked(plan, values)
    tests = test_objects(_with_marks(plan), mar)
    if not tests:
        progress.say("note: nothing was packaged yet: the chart has no test, which would send the sample")
    texts = {f"templates/{_flat(name)}": _template(name, documents, values) for name, documents in files.items()}
    texts |= {f"templates/tests/{name}": _template(name, documents, values) for name, documents in tests.items()}
    # Grafana knows the dashboard by a hash of where the service is.
    dashboard = f'{{{{ printf "%s/{plan.name}" .Values.namespace | sha256sum | trunc 16 }}}}'
    identity = dashboard_identity(_NAMESPACE, plan.name)
    texts = {name: text.replace(identity, dashboard) for name, text in texts.items()}
    notes = _NOTES.replace("NAME", plan.name).replace("PORT", str(plan.ports.inference))
    return {
        "Chart.yaml": to_yaml([_about(plan)], [ORIGIN]),
        "values.yaml": values.text(ORIGIN),
        "values.schema.json": json.dumps(values.schema(), indent=2) + "\n",
        "templates/_helpers.tpl": _HELPERS,
        "templates/NOTES.txt": notes,
        **texts,
    }


def _about(plan: Plan) -> dict[str, Any]:
    match = _VERSION.fullmatch(plan.spec.version)
    numbers = ".".join(part or "0" for part in match.groups()) if match else "0.1.0"
    about = {
        "apiVersion": "v2",
        "name": plan.name,
        "description": f"{plan.name} {plan.spec.version}, served by TorchServe",
        "type": "application",
        "version": numbers,
        "appVersion": plan.spec.version,
        "kubeVersion": f">={plan.oldest_kubernetes}.0-0",
    }
    return about | ({"annotations": {"marina/package": plan.package.sha256}} if plan.package else {})


def _with_marks(plan: Plan) -> Plan:
    kubernetes = plan.spec.kubernetes
    marked = plan.spec.model_copy(update={"kubernetes": kubernetes.model_copy(update={"namespace": _NAMESPACE})})
    image = plan.image.replace(f"{kubernetes.registry}/", f"{_REGISTRY}/", 1)
    return replace(plan, spec=marked, image=image)


def _marked(plan: Plan, values: Values) -> Files:
    files = deepcopy(render(_with_marks(plan)))
    for documents in files.values():
        for document in documents:
            values.mark(document)
    return files


def _template(name: str, documents: list[dict[str, Any]], values: Values) -> str:
    # What is a template of Prometheus or Grafana already is none of Helm's.
    text = re.sub(r"\{\{|\}\}", lambda match: "{{ " + json.dumps(match[0]) + " }}", to_yaml(documents, [ORIGIN]))
    text = values.opened(text)
    condition = "createNamespace" if name.startswith("00-") else name.partition("/")[0] if "/" in name else ""
    if condition == "createNamespace" or condition in ADDONS:
        text = f"{{{{- if .Values.{condition} }}}}\n{text}{{{{- end }}}}\n"
    return '{{- include "check" . -}}\n' + text


def _flat(name: str) -> str:
    return name.replace("/", "-")
