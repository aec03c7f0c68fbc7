"""The log shipper: a native sidecar (an init container with `restartPolicy: Always`), which starts before the server
and ends after it. It reads the log files that the server writes in addition to its output."""

from kubernetes import client

from config.quantity import canonical
from k8s.manifests import pod
from k8s.manifests.plan import Plan

_FOLDER = "/var/log/marina"
_SETTINGS = "/etc/shipper"


def log_volumes(plan: Plan) -> list[tuple[client.V1Volume, client.V1VolumeMount]]:
    """The volume that the server writes its log to, with the mount. Empty without a log shipper."""
    if plan.spec.kubernetes.log_shipper is None:
        return []
    return [(pod.scratch("logs", plan.log_volume_bytes), client.V1VolumeMount(name="logs", mount_path=_FOLDER))]


def sidecars(plan: Plan) -> list[client.V1Container]:
    """The sidecar that ships the log. Empty without a log shipper."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None:
        return []
    amounts = {"cpu": canonical(shipper.cpu), "memory": canonical(shipper.memory)}
    mounts = [client.V1VolumeMount(name="logs", mount_path=_FOLDER)]
    if shipper.config_map:
        mounts.append(client.V1VolumeMount(name="shipper", mount_path=_SETTINGS, read_only=True))
    return [
        client.V1Container(
            name="log-shipper",
            image=shipper.image,
            image_pull_policy="IfNotPresent",
            restart_policy="Always",
            args=list(shipper.args) or None,
            resources=client.V1ResourceRequirements(requests=dict(amounts), limits=dict(amounts)),
            security_context=pod.container_security(),
            volume_mounts=mounts,
        )
    ]


def settings(plan: Plan) -> list[client.V1Volume]:
    """The volume with the shipper's settings, which only the shipper mounts."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None or shipper.config_map is None:
        return []
    return [client.V1Volume(name="shipper", config_map=client.V1ConfigMapVolumeSource(name=shipper.config_map))]


def log_arguments(plan: Plan) -> list[str]:
    """The server's arguments for also writing its log to a file. Empty without a log shipper."""
    return ["--log-file", f"{_FOLDER}/server.log"] if plan.spec.kubernetes.log_shipper else []
