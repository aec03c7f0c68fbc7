"""A KServe InferenceService of a plan: the pod as it is, in KServe's Standard mode (once RawDeployment), where KServe
makes the Deployment and the Service, and the autoscaler, the budget and the network rules stay Marina's."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from k8s.manifests import Files, Plan, render
from k8s.monitoring import SERVER_CONTAINER

# By this name KServe finds the container that serves.
_CONTAINER = "kserve-container"
_MODE = {"serving.kserve.io/deploymentMode": "Standard", "serving.kserve.io/autoscalerClass": "external"}
_FILE, _SERVICE = "40-inference-service.yaml", "50-service.yaml"


def kserve_files(plan: Plan) -> Files:
    """Every object by its file; what KServe makes itself is not among them."""
    files = deepcopy(render(plan))
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
    # KServe sends clients to the first port.
    mode = _MODE | ({} if plan.autoscaled else {"serving.kserve.io/autoscalerClass": "none"})
    metadata = deployment["metadata"]
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata | {"annotations": metadata.get("annotations", {}) | mode},
        "spec": {
            "predictor": {
                "minReplicas": scaling.min_replicas,
                "maxReplicas": scaling.max_replicas if plan.autoscaled else scaling.min_replicas,
                "labels": template["metadata"]["labels"],
                "annotations": template["metadata"]["annotations"],
                "deploymentStrategy": deployment["spec"]["strategy"],
                **inside,
            }
        },
    }


def _renamed(plan: Plan, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects as they name what KServe makes: its Deployment, and the container."""
    for document in documents:
        target = document.get("spec", {}).get("scaleTargetRef")
        if target:
            target["name"] = f"{plan.name}-predictor"
        for metric in document.get("spec", {}).get("metrics", []) if target else []:
            if "containerResource" in metric:
                metric["containerResource"]["container"] = _CONTAINER
        for trigger in document.get("spec", {}).get("triggers", []) if target else []:
            if "containerName" in trigger["metadata"]:
                trigger["metadata"]["containerName"] = _CONTAINER
    text = json.dumps(documents)
    # In expressions, and once more quoted on the dashboard.
    for quotes in (r"\"", r"\\\""):
        text = text.replace(f"container={quotes}{SERVER_CONTAINER}{quotes}", f"container={quotes}{_CONTAINER}{quotes}")
    renamed: list[dict[str, Any]] = json.loads(text)
    return renamed
