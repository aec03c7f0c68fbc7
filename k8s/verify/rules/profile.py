"""Rules about what a pod can do to its node: the Pod Security Standard `restricted`, control by control."""

from collections.abc import Callable, Iterator

from config.errors import listed
from k8s.verify.application import Application, Workload
from k8s.verify.located import Place
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Pod security, profile `restricted`")

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
_SELINUX = {"", "container_engine_t", "container_init_t", "container_kvm_t", "container_t"}

Control = Callable[[Workload], Iterator[tuple[Place, str]]]


def _control(name: str, *, what: str, fix: str) -> Callable[[Control], Control]:
    """Makes a rule of one control; it applies where a Namespace among the objects enforces the profile."""

    def add(check: Control) -> Control:
        def check_enforced(application: Application, _: Scope) -> Iterator[Remark]:
            for workload in application.workloads:
                if application.enforces_restricted(workload.document):
                    for node, text in check(workload):
                        yield Remark(node, text)

        why = "A Namespace in the folder enforces it: the API server accepts the workload, then refuses all its pods."
        TOPIC.rule(name, "error", what=what, why=why, fix=fix)(check_enforced)
        return check

    return add


@_control(
    "pod-non-root",
    what="A container may run as root.",
    fix="securityContext: {runAsNonRoot: true, runAsUser: 10001} for the pod",
)
def _non_root(workload: Workload) -> Iterator[tuple[Place, str]]:
    of_pod = workload.pod.at("securityContext")
    if of_pod.at("runAsUser").value == 0:
        yield of_pod.at("runAsUser"), "got 0, which is root"
    for container in workload.all_containers:
        own = container.at("securityContext")
        if own.at("runAsUser").value == 0:
            yield own.at("runAsUser"), "got 0, which is root"
        non_root = own.at("runAsNonRoot") if own.at("runAsNonRoot").given else of_pod.at("runAsNonRoot")
        if non_root.value is not True:
            place = non_root if non_root.given else own.at("runAsNonRoot")
            yield place, "got `false`" if non_root.given else "missing here and on the pod"


@_control(
    "pod-escalation",
    what="A process can gain more privileges than its parent has.",
    fix="securityContext: {allowPrivilegeEscalation: false} for each container",
)
def _escalation(workload: Workload) -> Iterator[tuple[Place, str]]:
    for container in workload.all_containers:
        node = container.at("securityContext", "allowPrivilegeEscalation")
        if node.value is not False:
            yield node, "got `true`" if node.given else "missing"


@_control(
    "pod-capabilities",
    what="A container does not drop all capabilities, or adds one other than NET_BIND_SERVICE.",
    fix="securityContext: {capabilities: {drop: [ALL]}} for each container",
)
def _capabilities(workload: Workload) -> Iterator[tuple[Place, str]]:
    for container in workload.all_containers:
        own = container.at("securityContext", "capabilities")
        if "ALL" not in [capability.value for capability in own.at("drop").items()]:
            yield own.at("drop"), f"got {own.at('drop').value}, `ALL` is missing" if own.at("drop").given else "missing"
        added = {capability.text for capability in own.at("add").items()} - {"NET_BIND_SERVICE"}
        if added:
            yield own.at("add"), f"got {listed(added)}, allowed: `NET_BIND_SERVICE`"


@_control(
    "pod-seccomp",
    what="A container may make every system call.",
    fix="securityContext: {seccompProfile: {type: RuntimeDefault}} for the pod",
)
def _seccomp(workload: Workload) -> Iterator[tuple[Place, str]]:
    of_pod = workload.pod.at("securityContext", "seccompProfile", "type")
    for container in workload.all_containers:
        own = container.at("securityContext", "seccompProfile", "type")
        used = own if own.given else of_pod
        if used.value not in ("Localhost", "RuntimeDefault"):
            yield (used, f"got `{used.value}`") if used.given else (own, "missing here and on the pod")


@_control(
    "pod-volumes",
    what="A volume is of a type that the profile does not allow, such as hostPath.",
    fix="use emptyDir, configMap, secret, persistentVolumeClaim, projected, csi, ephemeral or image",
)
def _volumes(workload: Workload) -> Iterator[tuple[Place, str]]:
    for volume in workload.pod.at("volumes").items():
        for name in sorted(volume.table.keys() - _VOLUMES - {"name"}):
            yield volume.at(name), f"got `{name}`, allowed: {listed(_VOLUMES)}"


@_control(
    "pod-host-namespaces",
    what="A pod shares the node's network, process or IPC namespace.",
    fix="delete hostNetwork, hostPID and hostIPC",
)
def _host(workload: Workload) -> Iterator[tuple[Place, str]]:
    for name in ("hostIPC", "hostNetwork", "hostPID"):
        if workload.pod.at(name).value is True:
            yield workload.pod.at(name), "got `true`"


@_control(
    "pod-host-ports",
    what="A container uses a port of its node.",
    fix="delete `hostPort`; a Service reaches the pod",
)
def _host_ports(workload: Workload) -> Iterator[tuple[Place, str]]:
    for port in workload.ports():
        if port.at("hostPort").value not in (None, 0):
            yield port.at("hostPort"), f"got {port.at('hostPort').value}"


@_control(
    "pod-privileged",
    what="A container is privileged, unmasks `/proc`, or changes its SELinux, AppArmor or Windows isolation.",
    fix="delete `privileged: true`, `procMount`, and the SELinux, AppArmor or Windows option",
)
def _privileged(workload: Workload) -> Iterator[tuple[Place, str]]:
    contexts = [
        workload.pod.at("securityContext"),
        *(container.at("securityContext") for container in workload.all_containers),
    ]
    for context in contexts:
        if context.at("privileged").value is True:
            yield context.at("privileged"), "got `true`"
        if context.at("procMount").value not in (None, "Default"):
            yield context.at("procMount"), f"got `{context.at('procMount').value}`, allowed: `Default`"
        if context.at("appArmorProfile", "type").value == "Unconfined":
            yield context.at("appArmorProfile", "type"), "got `Unconfined`"
        if context.at("seLinuxOptions", "type").text not in _SELINUX:
            yield context.at("seLinuxOptions", "type"), f"got `{context.at('seLinuxOptions', 'type').text}`"
        for name in ("role", "user"):
            if context.at("seLinuxOptions", name).text:
                yield context.at("seLinuxOptions", name), f"got `{context.at('seLinuxOptions', name).text}`"
        if context.at("windowsOptions", "hostProcess").value is True:
            yield context.at("windowsOptions", "hostProcess"), "got `true`"


@_control(
    "pod-sysctls",
    what="A pod changes a setting of the kernel that others on the node share.",
    fix="delete it, or ask the cluster's owner to set it on the nodes",
)
def _sysctls(workload: Workload) -> Iterator[tuple[Place, str]]:
    for sysctl in workload.pod.all("securityContext.sysctls[].name"):
        if sysctl.text not in _SAFE_SYSCTLS:
            yield sysctl, f"got `{sysctl.text}`"
