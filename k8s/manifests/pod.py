"""What a container of ours may do, and where it may write: nothing that the `restricted` profile forbids."""

from __future__ import annotations

from kubernetes.client import (
    V1Capabilities,
    V1ConfigMapVolumeSource,
    V1EmptyDirVolumeSource,
    V1KeyToPath,
    V1PodSecurityContext,
    V1SeccompProfile,
    V1SecurityContext,
    V1Volume,
    V1VolumeMount,
)

from k8s.manifests.config_map import CONFIG_FILE, config_name
from k8s.manifests.plan import Plan, in_mib


def pod_security(plan: Plan) -> V1PodSecurityContext:
    """For all containers of a pod; `fsGroup` lets the user read what volumes hold. Without a user in the spec the
    namespace chooses all three."""
    user = plan.spec.kubernetes.run_as_user
    return V1PodSecurityContext(
        run_as_non_root=True,
        run_as_user=user,
        run_as_group=user,
        fs_group=user,
        fs_group_change_policy="OnRootMismatch" if user else None,
        seccomp_profile=V1SeccompProfile(type="RuntimeDefault"),
    )


def container_security() -> V1SecurityContext:
    """For one container."""
    return V1SecurityContext(
        allow_privilege_escalation=False,
        capabilities=V1Capabilities(drop=["ALL"]),
        read_only_root_filesystem=True,
    )


def volumes(plan: Plan) -> list[tuple[V1Volume, V1VolumeMount]]:
    """What the server always has: its configuration, and the one place where it may write; for vLLM's processes the
    memory by which they speak with each other, of which a container has 64 MiB otherwise."""
    shared = (_shared(plan.shared_bytes), V1VolumeMount(name="shm", mount_path="/dev/shm"))
    config = V1ConfigMapVolumeSource(name=config_name(plan), items=[V1KeyToPath(key=CONFIG_FILE, path=CONFIG_FILE)])
    return [
        (
            V1Volume(name="config", config_map=config),
            V1VolumeMount(name="config", mount_path="/config", read_only=True),
        ),
        (scratch("tmp", plan.temporary_bytes), V1VolumeMount(name="tmp", mount_path="/tmp")),
        *([shared] if plan.shared_bytes else []),
    ]


def _shared(size: int) -> V1Volume:
    """Memory that processes of a pod share, which counts as the pod's."""
    return V1Volume(name="shm", empty_dir=V1EmptyDirVolumeSource(medium="Memory", size_limit=in_mib(size)))


def scratch(name: str, size: int) -> V1Volume:
    """A folder that lives as long as its pod and may not grow beyond its size."""
    return V1Volume(name=name, empty_dir=V1EmptyDirVolumeSource(size_limit=in_mib(size)))
