"""The security settings and volumes of Marina's containers, within the limits of the `restricted` profile."""

from marina.k8s.manifests.config_map import CONFIG, CONFIG_FOLDER, config_volume
from marina.k8s.manifests.plan import Plan, in_mib
from marina.k8s.manifests.yaml_text import Manifest


def pod_security(plan: Plan) -> Manifest:
    """The security settings of a pod. `fsGroup` lets the user read its volumes. Without a user in the spec, the
    namespace chooses user, group and `fsGroup`."""
    user = plan.spec.kubernetes.run_as_user
    return {
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch" if user else None,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pull_secrets(plan: Plan) -> list[Manifest] | None:
    """The Secrets with the credentials of the registry; None without any."""
    return [{"name": name} for name in plan.spec.kubernetes.pull_secrets] or None


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def exactly(amounts: dict[str, str]) -> Manifest:
    """Requests equal limits, so that even on a full node a container gets what was measured."""
    return {"limits": amounts, "requests": amounts}


def mount(name: str, path: str, *, read_only: bool = False) -> Manifest:
    """The mount of a volume in a container."""
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})


def base_volumes(plan: Plan) -> list[tuple[Manifest, Manifest]]:
    """The volumes that every server has, with their mounts: its configuration, and `/tmp`, the only place where it may
    write. With vLLM also `/dev/shm`, by which its processes communicate and which otherwise has only 64 MiB."""
    config = config_volume(plan), mount(CONFIG, CONFIG_FOLDER, read_only=True)
    # Memory that the processes share counts towards the pod's memory.
    memory = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": in_mib(plan.shared_bytes)}}
    shared = [(memory, mount("shm", "/dev/shm"))] if plan.shared_bytes else []
    return [config, (scratch("tmp", plan.temporary_bytes), mount("tmp", "/tmp")), *shared]


def scratch(name: str, size: int) -> Manifest:
    """An empty folder that lives as long as its pod and may not grow beyond `size` bytes."""
    return {"name": name, "emptyDir": {"sizeLimit": in_mib(size)}}
