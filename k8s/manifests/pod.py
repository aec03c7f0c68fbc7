"""The security settings and volumes of Marina's containers, within the limits of the `restricted` profile."""

from kubernetes import client

from k8s.manifests.config_map import CONFIG_FILE, config_name
from k8s.manifests.plan import Plan, in_mib


def pod_security(plan: Plan) -> client.V1PodSecurityContext:
    """The security settings of a pod. `fsGroup` lets the user read its volumes. Without a user in the spec, the
    namespace chooses user, group and `fsGroup`."""
    user = plan.spec.kubernetes.run_as_user
    return client.V1PodSecurityContext(
        run_as_non_root=True,
        run_as_user=user,
        run_as_group=user,
        fs_group=user,
        fs_group_change_policy="OnRootMismatch" if user else None,
        seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
    )


def pull_secrets(plan: Plan) -> list[client.V1LocalObjectReference] | None:
    """The Secrets with the credentials of the registry; None without any."""
    return [client.V1LocalObjectReference(name=name) for name in plan.spec.kubernetes.pull_secrets] or None


def container_security() -> client.V1SecurityContext:
    return client.V1SecurityContext(
        allow_privilege_escalation=False,
        capabilities=client.V1Capabilities(drop=["ALL"]),
        read_only_root_filesystem=True,
    )


def base_volumes(plan: Plan) -> list[tuple[client.V1Volume, client.V1VolumeMount]]:
    """The volumes that every server has, with their mounts: its configuration, and `/tmp`, the only place where it may
    write. With vLLM also `/dev/shm`, by which its processes communicate and which otherwise has only 64 MiB."""
    shared = (_shared(plan.shared_bytes), client.V1VolumeMount(name="shm", mount_path="/dev/shm"))
    config = client.V1ConfigMapVolumeSource(
        name=config_name(plan), items=[client.V1KeyToPath(key=CONFIG_FILE, path=CONFIG_FILE)]
    )
    return [
        (
            client.V1Volume(name="config", config_map=config),
            client.V1VolumeMount(name="config", mount_path="/config", read_only=True),
        ),
        (scratch("tmp", plan.temporary_bytes), client.V1VolumeMount(name="tmp", mount_path="/tmp")),
        *([shared] if plan.shared_bytes else []),
    ]


def _shared(size: int) -> client.V1Volume:
    """A volume of memory that the pod's processes share; it counts towards the pod's memory."""
    return client.V1Volume(
        name="shm", empty_dir=client.V1EmptyDirVolumeSource(medium="Memory", size_limit=in_mib(size))
    )


def scratch(name: str, size: int) -> client.V1Volume:
    """An empty folder that lives as long as its pod and may not grow beyond `size` bytes."""
    return client.V1Volume(name=name, empty_dir=client.V1EmptyDirVolumeSource(size_limit=in_mib(size)))
