"""The log shipper: a native sidecar (an init container with `restartPolicy: Always`), which starts before the server
and ends after it. It reads the log files that the server writes in addition to its output."""

from marina.config.quantity import canonical
from marina.k8s.manifests import pod
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.yaml_text import Manifest

_FOLDER = "/var/log/marina"
_SETTINGS = "/etc/shipper"


def log_volumes(plan: Plan) -> list[tuple[Manifest, Manifest]]:
    """The volume that the server writes its log to, with the mount. Empty without a log shipper."""
    if plan.spec.kubernetes.log_shipper is None:
        return []
    return [(pod.scratch("logs", plan.log_volume_bytes), pod.mount("logs", _FOLDER))]


def sidecars(plan: Plan) -> list[Manifest]:
    """The sidecar that ships the log. Empty without a log shipper."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None:
        return []
    mounts = [pod.mount("logs", _FOLDER)]
    if shipper.config_map:
        mounts.append(pod.mount("shipper", _SETTINGS, read_only=True))
    return [
        {
            "name": "log-shipper",
            "args": list(shipper.args) or None,
            "image": shipper.image,
            "imagePullPolicy": "IfNotPresent",
            "resources": pod.exactly({"cpu": canonical(shipper.cpu), "memory": canonical(shipper.memory)}),
            "restartPolicy": "Always",
            "securityContext": pod.container_security(),
            "volumeMounts": mounts,
        }
    ]


def settings(plan: Plan) -> list[Manifest]:
    """The volume with the shipper's settings, which only the shipper mounts."""
    shipper = plan.spec.kubernetes.log_shipper
    if shipper is None or shipper.config_map is None:
        return []
    return [{"name": "shipper", "configMap": {"name": shipper.config_map}}]


def log_arguments(plan: Plan) -> list[str]:
    """The server's arguments for also writing its log to a file. Empty without a log shipper."""
    return ["--log-file", f"{_FOLDER}/server.log"] if plan.spec.kubernetes.log_shipper else []
