"""Renders a plan as a KServe InferenceService with the same pod, in KServe's Standard mode (formerly RawDeployment):
KServe makes the Deployment and the Service; the autoscaler, the disruption budget and the NetworkPolicy stay
Marina's."""

import json
from copy import deepcopy
from typing import Any

from marina.config.errors import InputError
from marina.k8s.manifests import Files, Plan, render_objects
from marina.k8s.monitoring import POD_NAME, SERVER_CONTAINER

# KServe finds the serving container by this name.
_CONTAINER = "kserve-container"
_MODE = {"serving.kserve.io/deploymentMode": "Standard", "serving.kserve.io/autoscalerClass": "external"}
# With this label KServe makes no route of its own, which would have the same name as Marina's.
_HAS_ROUTE = {"networking.kserve.io/visibility": "cluster-local"}
_FILE, _SERVICE = "40-inference-service.yaml", "50-service.yaml"
# The port of KServe's Service, which forwards to the container's first port.
_PORT = 80
# Kubernetes cuts a pod's name to 58 characters and appends five random ones. With a longer name, too little of
# `NAME-predictor-HASH-` would be left for the PromQL expressions to match the pods.
_LONGEST_NAME = 36
_REFUSED_VARIABLE = "PYTHONPATH"


def kserve_files(plan: Plan) -> Files:
    """The objects by file, without those that KServe makes itself."""
    if len(plan.name) > _LONGEST_NAME:
        allowed = f"allowed with `--format kserve`: at most {_LONGEST_NAME} characters, since KServe adds `-predictor`"
        raise InputError(f"{plan.spec.file}: `name`: got `{plan.name}`, {allowed}")
    files = deepcopy(render_objects(plan))
    (deployment,) = files.pop("40-deployment.yaml")
    files.pop(_SERVICE)
    rendered = {**files, _FILE: [_inference_service(plan, deployment)]}
    return {name: _renamed(plan, documents) for name, documents in sorted(rendered.items())}


def _inference_service(plan: Plan, deployment: dict[str, Any]) -> dict[str, Any]:
    template, scaling = deployment["spec"]["template"], plan.spec.scaling
    inside: dict[str, Any] = template["spec"]
    for container in inside["containers"]:
        if container["name"] == SERVER_CONTAINER:
            container["name"] = _CONTAINER
    # KServe sends clients to the first port of the first container.
    inside["containers"].sort(key=lambda container: container["name"] != _CONTAINER)
    for container in _tables(inside, "initContainers") + inside["containers"]:
        if any(variable.get("name") == _REFUSED_VARIABLE for variable in _tables(container, "env")):
            text = f"{plan.spec.file}: `{_REFUSED_VARIABLE}` of container `{container.get('name')}`: KServe refuses it"
            raise InputError(text, hint="install those modules into the image, or choose another `--format`")
    mode = _MODE | ({} if plan.autoscaled else {"serving.kserve.io/autoscalerClass": "none"})
    metadata = deployment["metadata"]
    labels = (metadata.get("labels") or {}) | (_HAS_ROUTE if plan.spec.kubernetes.route else {})
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata | {"annotations": (metadata.get("annotations") or {}) | mode, "labels": labels},
        "spec": {
            "predictor": {
                "minReplicas": scaling.min_replicas,
                "maxReplicas": plan.most_pods,
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"].get("annotations", {}),
                "deploymentStrategy": deployment["spec"].get("strategy", {}),
                **inside,
            }
        },
    }


def _renamed(plan: Plan, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects with their references changed to the Deployment, pods, Service and container that KServe makes."""
    predictor = f"{plan.name}-predictor"
    for document in documents:
        for target in _tables(document, "spec", "scaleTargetRef"):
            target["name"] = predictor
        for metric in _tables(document, "spec", "metrics", "containerResource"):
            metric["container"] = _CONTAINER
        for trigger in _tables(document, "spec", "triggers", "metadata"):
            if "containerName" in trigger:
                trigger["containerName"] = _CONTAINER
        for backend in _tables(document, "spec", "rules", "backendRefs"):
            if backend.get("name") == plan.name:
                backend |= {"name": predictor, "port": _PORT}
    text = json.dumps(documents)
    # In expressions, and with one more level of quoting on the dashboard, where the model is a variable.
    for model in (plan.name, "$model"):
        text = text.replace(f"{model}{POD_NAME}", f"{model}-predictor{POD_NAME}")
        for quote in (r"\"", r"\\\""):
            text = text.replace(f"deployment={quote}{model}{quote}", f"deployment={quote}{model}-predictor{quote}")
    for quote in (r"\"", r"\\\""):
        text = text.replace(f"container={quote}{SERVER_CONTAINER}{quote}", f"container={quote}{_CONTAINER}{quote}")
    renamed: list[dict[str, Any]] = json.loads(text)
    return renamed


def _tables(value: Any, *path: str) -> list[dict[str, Any]]:
    """The mappings at a path, in each item of the lists on the way. What a patch made something else is left out."""
    tables = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
    return [inner for table in tables for inner in _tables(table.get(path[0]), *path[1:])] if path else tables
