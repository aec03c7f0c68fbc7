"""The objects of `helm test`: a pod that sends the package's sample through the Service, as a client would."""

import base64
from pathlib import Path
from typing import Any

from kubernetes import client

from config.mar import open_mar
from k8s.manifests import Plan, container_security, plain, pod_security, pull_secrets

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


def test_objects(plan: Plan, mar: Path) -> dict[str, list[dict[str, Any]]]:
    """A ConfigMap with the sample, and the pod that sends it. Empty if there is no package or its sample is too large
    for a ConfigMap."""
    if plan.package is None or not mar.is_file():
        return {}
    sample = plan.package.record.sample
    with open_mar(mar) as archive:
        body = archive.read(sample.file)
    if len(body) > _LARGEST:
        return {}
    name, small = f"{plan.name}-test", {"cpu": "100m", "memory": "64Mi"}
    holder = client.V1ConfigMap(
        api_version="v1",
        kind="ConfigMap",
        metadata=_metadata(plan, name, weight="0"),
        binary_data={"body": base64.b64encode(body).decode()},
    )
    url = f"http://{plan.name}.{plan.namespace}.svc:{plan.ports.inference}/predictions/{plan.name}"
    sender = client.V1Container(
        name="sender",
        image=plan.image,
        command=["python", "-c", _SEND_SAMPLE],
        args=[url, sample.content_type],
        resources=client.V1ResourceRequirements(requests=dict(small), limits=dict(small)),
        security_context=container_security(),
        volume_mounts=[client.V1VolumeMount(name="sample", mount_path="/sample", read_only=True)],
    )
    pod = client.V1Pod(
        api_version="v1",
        kind="Pod",
        metadata=_metadata(plan, name, weight="1"),
        spec=client.V1PodSpec(
            restart_policy="Never",
            automount_service_account_token=False,
            security_context=pod_security(plan),
            image_pull_secrets=pull_secrets(plan),
            containers=[sender],
            volumes=[client.V1Volume(name="sample", config_map=client.V1ConfigMapVolumeSource(name=name))],
        ),
    )
    return {"inference.yaml": plain(holder, pod)}


def _metadata(plan: Plan, name: str, *, weight: str) -> client.V1ObjectMeta:
    # None of these labels may match the Service's selector, or the Service would send requests to this pod.
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "marina"}
    annotations = _HOOK | {"helm.sh/hook-weight": weight}
    return client.V1ObjectMeta(name=name, namespace=plan.namespace, labels=labels, annotations=annotations)
