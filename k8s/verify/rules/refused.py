"""Rules about what an API server refuses although the schemas take it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.errors import listed
from k8s.verify.application import Application, amount
from k8s.verify.located import Place
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("What an API server refuses, although schemas take it")

_PROTOCOL, _PULL = {"SCTP", "TCP", "UDP"}, {"Always", "IfNotPresent", "Never"}
_OF_CONTAINERS = {
    "imagePullPolicy": _PULL,
    "ports[].protocol": _PROTOCOL,
    "readinessProbe.httpGet.scheme": {"HTTP", "HTTPS"},
    "securityContext.seccompProfile.type": {"Localhost", "RuntimeDefault", "Unconfined"},
    "terminationMessagePolicy": {"FallbackToLogsOnError", "File"},
}
_OF_PODS = {
    **{f"containers[].{path}": words for path, words in _OF_CONTAINERS.items()},
    **{f"initContainers[].{path}": words for path, words in _OF_CONTAINERS.items()},
    "dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
    "restartPolicy": {"Always", "Never", "OnFailure"},
    "securityContext.fsGroupChangePolicy": {"Always", "OnRootMismatch"},
    "securityContext.seccompProfile.type": {"Localhost", "RuntimeDefault", "Unconfined"},
    "tolerations[].effect": {"NoExecute", "NoSchedule", "PreferNoSchedule"},
    "tolerations[].operator": {"Equal", "Exists", "Gt", "Lt"},
    "topologySpreadConstraints[].whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
    "volumes[].hostPath.type": {"BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate",
                                "Socket", ""},
}  # fmt: skip
_WORDS: dict[str, dict[str, set[str]]] = {
    "DaemonSet": {"spec.updateStrategy.type": {"OnDelete", "RollingUpdate"}},
    "Deployment": {
        "spec.strategy.type": {"Recreate", "RollingUpdate"},
        "spec.template.spec.restartPolicy": {"Always"},
    },
    "HorizontalPodAutoscaler": {
        "spec.metrics[].type": {"ContainerResource", "External", "Object", "Pods", "Resource"},
        **{
            f"spec.behavior.{direction}.{path}": words
            for direction in ("scaleDown", "scaleUp")
            for path, words in {
                "policies[].type": {"Percent", "Pods"},
                "selectPolicy": {"Disabled", "Max", "Min"},
            }.items()
        },
    },
    "NetworkPolicy": {
        "spec.policyTypes[]": {"Egress", "Ingress"},
        "spec.ingress[].ports[].protocol": _PROTOCOL,
        "spec.egress[].ports[].protocol": _PROTOCOL,
    },
    "PersistentVolumeClaim": {
        "spec.accessModes[]": {"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"},
        "spec.volumeMode": {"Block", "Filesystem"},
    },
    "PodDisruptionBudget": {"spec.unhealthyPodEvictionPolicy": {"AlwaysAllow", "IfHealthyBudget"}},
    "Service": {
        "spec.type": {"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"},
        "spec.ports[].protocol": _PROTOCOL,
        "spec.sessionAffinity": {"ClientIP", "None"},
        "spec.externalTrafficPolicy": {"Cluster", "Local"},
        "spec.internalTrafficPolicy": {"Cluster", "Local"},
    },
    "StatefulSet": {"spec.updateStrategy.type": {"OnDelete", "RollingUpdate"}},
}
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")


@TOPIC.rule(
    "value-refused",
    "error",
    what="A field has a word that is none of those it may have.",
    why="Schemas say `string`; the API server knows the words, and refuses the object.",
    fix="one of the words that the finding lists, spelt like that",
)
def _values(application: Application, _: Scope) -> Iterator[Remark]:
    places = [
        (document.root, path, words)
        for document in application.documents
        for path, words in _WORDS.get(document.kind, {}).items()
    ]
    places += [(workload.pod, path, words) for workload in application.workloads for path, words in _OF_PODS.items()]
    for root, path, words in places:
        for node in root.all(path):
            if isinstance(node.value, str) and node.value not in words:
                yield Remark(node, f"got `{node.value}`, allowed: {listed(words - {''})}")


@TOPIC.rule(
    "one-of",
    "error",
    what="Exactly one of several fields must be given, and none or more than one is.",
    why="A probe asks in one way, a volume comes from one place, a budget counts one thing.",
    fix="keep one of the fields that the finding names",
)
def _one_of(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.all_containers:
            asked = [container.at(probe) for probe in _PROBES]
            hooks = [container.at("lifecycle", hook) for hook in ("postStart", "preStop")]
            yield from _exactly_one(asked, _HANDLERS)
            yield from _exactly_one(hooks, ("exec", "httpGet", "sleep", "tcpSocket"))
            for variable in container.at("env").items():
                if variable.at("value").text and variable.at("valueFrom").given:
                    yield Remark(variable, "got `value` and `valueFrom`, allowed: one of them")
        for volume in workload.pod.at("volumes").items():
            sources = sorted(volume.table.keys() - {"name"})
            # Without any it is an emptyDir, as it always was.
            if len(sources) > 1:
                yield Remark(volume, f"got {listed(sources)}, allowed: one of them")
    for budget in application.of("PodDisruptionBudget"):
        yield from _exactly_one([budget.root.at("spec")], ("maxUnavailable", "minAvailable"))


def _exactly_one(places: list[Place], names: tuple[str, ...]) -> Iterator[Remark]:
    for place in places:
        given = [name for name in names if place.at(name).given]
        if place.given and len(given) != 1:
            got = listed(given) if given else "none"
            yield Remark(place, f"got {got}, allowed: one of {listed(names)}")


@TOPIC.rule(
    "port-invalid",
    "error",
    what="A port has no number from 1 to 65535, a name that is none, or the name of another.",
    why="The API server refuses it, or a Service finds only one of the two.",
    fix="names have at most 15 lower-case letters, digits and `-`, with a letter; each is used once",
)
def _ports(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        yield from _port_list(list(workload.ports()), "containerPort")
    for service in application.of("Service"):
        ports = service.root.at("spec", "ports").items()
        yield from _port_list(ports, "port")
        for port in ports:
            if len(ports) > 1 and not port.at("name").given:
                yield Remark(port.at("name"), "missing; each of several ports has a name")
            target = port.at("targetPort")
            if target.number is not None and not 0 < target.number < 65536:
                yield Remark(target, f"got {target.number}, allowed: 1 to 65535")


def _port_list(ports: list[Place], number: str) -> Iterator[Remark]:
    names: set[str] = set()
    for port in ports:
        value, name = port.at(number), port.at("name")
        if value.number is not None and not 0 < value.number < 65536:
            yield Remark(value, f"got {value.number}, allowed: 1 to 65535")
        if name.text and not _PORT_NAME.fullmatch(name.text):
            yield Remark(
                name, f"got `{name.text}`, allowed: at most 15 lower-case letters, digits and `-`, with a letter"
            )
        if name.text and name.text in names:
            yield Remark(name, f"`{name.text}` is the name of another port")
        names.add(name.text)


@TOPIC.rule(
    "duplicate-name",
    "error",
    what="Two containers, volumes or mounts of a pod have the same name or path.",
    why="The API server refuses the pods; their Deployment stands and makes none.",
    fix="give each its own",
)
def _duplicate_names(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        yield from _repeated(workload.all_containers, "name")
        yield from _repeated(workload.pod.at("volumes").items(), "name")
        for container in workload.all_containers:
            yield from _repeated(container.at("volumeMounts").items(), "mountPath")


def _repeated(places: list[Place], key: str) -> Iterator[Remark]:
    seen: set[str] = set()
    for place in places:
        name = place.at(key)
        if name.text and name.text in seen:
            yield Remark(name, f"`{name.text}` is given twice")
        seen.add(name.text)


@TOPIC.rule(
    "mount-without-volume",
    "error",
    what="A container mounts a volume that its pod does not have.",
    why="The API server refuses the pod.",
    fix="add the volume to `volumes`, or correct the name of the mount",
)
def _mounts(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        names = {volume.at("name").text for volume in workload.pod.at("volumes").items()}
        names |= {
            claim.at("metadata", "name").text for claim in workload.document.root.all("spec.volumeClaimTemplates[]")
        }
        for container in workload.all_containers:
            for mount in container.at("volumeMounts").items():
                if mount.at("name").text and mount.at("name").text not in names:
                    there = listed(names) or "no volume"
                    yield Remark(mount.at("name"), f"got `{mount.at('name').text}`, the pod has {there}")


@TOPIC.rule(
    "quantity-invalid",
    "error",
    what="An amount of cpu, memory or storage is none, or a request is over its limit.",
    why="The API server refuses the pods.",
    fix="write `500m`, `2`, `512Mi` or the like; a request is at most its limit",
)
def _amounts(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.all_containers:
            resources = container.at("resources")
            for part in ("limits", "requests"):
                for _name, node in resources.at(part).entries():
                    size = amount(node)
                    if node.given and (size is None or size < 0):
                        yield Remark(node, f"got `{node.value}`, allowed: an amount such as `500m`, `2` or `512Mi`")
            for name, node in resources.at("requests").entries():
                limit = resources.at("limits", name)
                low, high = amount(node), amount(limit)
                if low is not None and high is not None and low > high:
                    yield Remark(node, f"got `{node.value}`, over the limit of `{limit.value}`")


@TOPIC.rule(
    "probe-refused",
    "error",
    what="A probe has a number that it must not have.",
    why="The API server refuses the pods.",
    fix="`successThreshold: 1` for startup and liveness; no period, timeout or threshold below 1",
)
def _probe_numbers(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.long_lived:
            for probe in map(container.at, _PROBES):
                wins = probe.at("successThreshold")
                if probe.path[-1] != "readinessProbe" and wins.number not in (None, 0, 1):
                    yield Remark(wins, f"got {wins.number}, allowed: 1")
                for name in ("periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"):
                    low = probe.at(name).number
                    if low is not None and low < 0:
                        yield Remark(probe.at(name), f"got {low}, allowed: 1 or more")
