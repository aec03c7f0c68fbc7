"""The rule about what a pod can do to its node: the Pod Security Standard `restricted`, as tables of its controls."""

from collections.abc import Iterator, Mapping

from marina.config.errors import listed
from marina.k8s.verify.application import Application, Workload
from marina.k8s.verify.located import Place
from marina.k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Pod security, profile `restricted`")

# Fields of a pod, and of the security context of the pod or a container, with what they may say.
_OF_PODS = {"hostIPC": ["false"], "hostNetwork": ["false"], "hostPID": ["false"]}
_OF_CONTEXTS = {
    "appArmorProfile.type": ["Localhost", "RuntimeDefault"],
    "privileged": ["false"],
    "procMount": ["Default"],
    "seLinuxOptions.role": [""],
    "seLinuxOptions.type": ["", "container_engine_t", "container_init_t", "container_kvm_t", "container_t"],
    "seLinuxOptions.user": [""],
    "windowsOptions.hostProcess": ["false"],
}
# Fields that each container needs, if the pod does not have them for all.
_NEEDED = {
    "allowPrivilegeEscalation": ["false"],
    "runAsNonRoot": ["true"],
    "seccompProfile.type": ["Localhost", "RuntimeDefault"],
}
_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}  # fmt: skip


@TOPIC.rule(
    "pod-restricted",
    "error",
    what="A pod breaks the Pod Security Standard `restricted`, which a Namespace in the folder enforces.",
    why="The API server accepts the workload, then refuses all its pods.",
    fix="write what is allowed, or use a Namespace that enforces less",
)
def _restricted(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        if application.enforces_restricted(workload.document):
            of_pod = workload.pod.at("securityContext")
            yield from _unless_allowed(workload.pod, _OF_PODS)
            yield from _in_context(of_pod)
            for container in workload.all_containers:
                yield from _in_context(container.at("securityContext"))
                yield from _in_container(container.at("securityContext"), of_pod)
            yield from _on_node(workload)


def _unless_allowed(place: Place, controls: Mapping[str, list[str]]) -> Iterator[Remark]:
    for path, allowed in controls.items():
        field = place.at(*path.split("."))
        if field.given and _written(field) not in allowed:
            yield _not_allowed(field, allowed)


def _written(field: Place) -> str:
    return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)


def _not_allowed(field: Place, allowed: list[str]) -> Remark:
    got = f"got `{_written(field)}`" if field.given else "missing here and on the pod"
    return Remark(field, f"{got}, allowed: {listed(filter(None, allowed)) or 'nothing'}")


def _in_context(context: Place) -> Iterator[Remark]:
    yield from _unless_allowed(context, _OF_CONTEXTS)
    if context.at("runAsUser").value == 0:
        yield Remark(context.at("runAsUser"), "got 0, which is root")


def _in_container(own: Place, of_pod: Place) -> Iterator[Remark]:
    for path, allowed in _NEEDED.items():
        field, for_all = own.at(*path.split(".")), of_pod.at(*path.split("."))
        used = for_all if for_all.given and not field.given else field
        if _written(used) not in allowed:
            yield _not_allowed(used, allowed)
    dropped, added = own.at("capabilities", "drop"), own.at("capabilities", "add")
    if "ALL" not in [capability.value for capability in dropped.items()]:
        yield Remark(dropped, f"got {dropped.value}, `ALL` is missing" if dropped.given else "missing, needed: `[ALL]`")
    if more := {capability.text for capability in added.items()} - {"NET_BIND_SERVICE"}:
        yield Remark(added, f"got {listed(more)}, allowed: `NET_BIND_SERVICE`")


def _on_node(workload: Workload) -> Iterator[Remark]:
    """What a pod takes from its node: folders, ports, and settings of the kernel."""
    for volume in workload.pod.at("volumes").items():
        for name in sorted(volume.table.keys() - _VOLUMES - {"name"}):
            yield Remark(volume.at(name), f"got `{name}`, allowed: {listed(_VOLUMES)}")
    for port in workload.ports():
        if port.at("hostPort").value not in (None, 0):
            yield Remark(port.at("hostPort"), f"got {port.at('hostPort').value}, allowed: no port of the node")
    for sysctl in workload.pod.all("securityContext.sysctls[].name"):
        if sysctl.text not in _SAFE_SYSCTLS:
            yield Remark(sysctl, f"got `{sysctl.text}`, allowed: {listed(_SAFE_SYSCTLS)}")
