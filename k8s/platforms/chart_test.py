"""The objects of `helm test`: a pod that sends the package's sample through the Service, as a client would."""

import base64
from pathlib import Path

from marina.config.mar import open_mar
from marina.k8s.manifests import (
    Manifest,
    Plan,
    container_security,
    exactly,
    mount,
    ordered,
    pod_security,
    pull_secrets,
    resource,
)

# The sample is in base64, an object in a cluster holds at most 1 MiB, and Helm keeps the whole chart in one Secret.
_LARGEST = 500_000
_HOOK = {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}
_SEND_SAMPLE = """\
import sys, urllib.request
url, kind = sys.argv[1:]
body = open("/sample/body", "rb").read()
request = urllib.request.Request(url, body, {"Content-Type": kind, "Cache-Control": "no-store"})
with urllib.request.urlopen(request, timeout=60) as answer:
    print(answer.status, answer.read(300))
"""


def test_objects(plan: Plan, mar: Path, port: int) -> dict[str, list[Manifest]]:
    """A ConfigMap with the sample, and the pod that sends it to this port of the Service. Empty if there is no package
    or its sample is too large for a ConfigMap."""
    if plan.package is None or not mar.is_file():
        return {}
    sample = plan.package.record.sample
    with open_mar(mar) as archive:
        body = archive.read(sample.file)
    if len(body) > _LARGEST:
        return {}
    name = f"{plan.name}-test"
    data = {"body": base64.b64encode(body).decode()}
    holder = resource("v1", "ConfigMap", _metadata(plan, name, weight="0"), binaryData=data)
    url = f"http://{plan.name}.{plan.namespace}.svc:{port}/predictions/{plan.name}"
    sender = {
        "name": "sender",
        "args": [url, sample.content_type],
        "command": ["python", "-c", _SEND_SAMPLE],
        "image": plan.image,
        "resources": exactly({"cpu": "100m", "memory": "64Mi"}),
        "securityContext": container_security(),
        "volumeMounts": [mount("sample", "/sample", read_only=True)],
    }
    spec = {
        "automountServiceAccountToken": False,
        "containers": [sender],
        "imagePullSecrets": pull_secrets(plan),
        "restartPolicy": "Never",
        "securityContext": pod_security(plan),
        "volumes": [{"name": "sample", "configMap": {"name": name}}],
    }
    pod = resource("v1", "Pod", _metadata(plan, name, weight="1"), spec=spec)
    return {"inference.yaml": ordered(holder, pod)}


def _metadata(plan: Plan, name: str, *, weight: str) -> Manifest:
    # None of these labels may match the Service's selector, or the Service would send requests to this pod.
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "marina"}
    annotations = _HOOK | {"helm.sh/hook-weight": weight}
    return {"name": name, "namespace": plan.namespace, "labels": labels, "annotations": annotations}
