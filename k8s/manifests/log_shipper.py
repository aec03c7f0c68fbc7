"""The log shipper: a native sidecar (an init container that is restarted), there before the server's first line, gone
after its last. It reads the files that the server keeps beside what it prints."""

from __future__ import annotations

from kubernetes.client import (
    V1ConfigMapVolumeSource,
    V1Container,
    V1ResourceRequirements,
    V1Volume,
    V1VolumeMount,
)

from config.quantity import canonical
from k8s.manifests import pod
from k8s.manifests.plan import LOG_BYTES, MIB, Plan

_FOLDER = "/var/log/marina"
_SETTINGS = "/etc/shipper"


def volumes(plan: Plan) -> list[tuple[V1Volume, V1VolumeMount]]:
    """What the server writes its log to."""
    if plan.spec.kubernetes.log_shipper is None:
        return []
    # Two files, and room for what the shipper remembers of them.
    return [(pod.scratch("logs", 2 * LOG_BYTES + 64 * MIB), V1VolumeMount(name="logs", mount_path=_FOLDER))]


def sidecars(plan: Plan) -> list[V1Container]:
    """The shipper."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None:
        return []
    amounts = {"cpu": canonical(shipper.cpu), "memory": canonical(shipper.memory)}
    mounts = [V1VolumeMount(name="logs", mount_path=_FOLDER)]
    if shipper.config_map:
        mounts.append(V1VolumeMount(name="shipper", mount_path=_SETTINGS, read_only=True))
    return [
        V1Container(
            name="log-shipper",
            image=shipper.image,
            image_pull_policy="IfNotPresent",
            restart_policy="Always",
            args=list(shipper.args) or None,
            resources=V1ResourceRequirements(requests=dict(amounts), limits=dict(amounts)),
            security_context=pod.container_security(),
            volume_mounts=mounts,
        )
    ]


def settings(plan: Plan) -> list[V1Volume]:
    """The volume that only the shipper mounts."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None or shipper.config_map is None:
        return []
    return [V1Volume(name="shipper", config_map=V1ConfigMapVolumeSource(name=shipper.config_map))]


def arguments(plan: Plan) -> list[str]:
    """Where the server keeps its log beside printing it."""
    return ["--log-file", f"{_FOLDER}/server.log"] if plan.spec.kubernetes.log_shipper else []
