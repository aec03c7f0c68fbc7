"""Rules about what a pod may use: cpu, memory, GPUs, disk."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.verify.application import Application, Workload, amount
from k8s.verify.located import Place
from k8s.verify.rule import Remark, Scope, Topic
from k8s.verify.rules.scaling import utilised

TOPIC = Topic("Resources")

_MIB = 2**20


def _serving(application: Application) -> Iterator[tuple[Workload, Place]]:
    """The containers that run as long as pods that serve."""
    for workload in application.workloads:
        if workload.serves:
            for container in workload.long_lived:
                yield workload, container


def _extended(name: str) -> bool:
    """Whether a resource is a device: its name has a domain, and not one of Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")


@TOPIC.rule(
    "cpu-request",
    "warning",
    what="A container requests no cpu.",
    why="The scheduler packs it onto a full node, where it gets what others leave.",
    fix="resources: {requests: {cpu: …}}",
)
def _cpu(application: Application, _: Scope) -> Iterator[Remark]:
    for workload, container in _serving(application):
        resources, scaler = container.at("resources"), application.scaler_of(workload)
        # Which is worse, and has a rule of its own.
        if scaler and {("cpu", ""), ("cpu", container.at("name").text)} & {*utilised(scaler)}:
            continue
        if not resources.at("requests", "cpu").given and not resources.at("limits", "cpu").given:
            yield Remark(resources.at("requests", "cpu"), "missing")


@TOPIC.rule(
    "memory-limit",
    "warning",
    what="A container has no limit of memory.",
    why="A leak takes the node's memory, and with it pods of others.",
    fix="resources: {limits: {memory: …}, requests: {memory: …}}, both the same",
)
def _memory(application: Application, _: Scope) -> Iterator[Remark]:
    for _workload, container in _serving(application):
        if not container.at("resources", "limits", "memory").given:
            yield Remark(container.at("resources", "limits", "memory"), "missing")


@TOPIC.rule(
    "memory-overcommit",
    "warning",
    what="A container requests less memory than its limit.",
    why="On a full node it is killed for memory that its limit promised.",
    fix="the same amount in `requests` and `limits`",
)
def _overcommit(application: Application, _: Scope) -> Iterator[Remark]:
    for _workload, container in _serving(application):
        request = container.at("resources", "requests", "memory")
        limit = container.at("resources", "limits", "memory")
        low, high = amount(request), amount(limit)
        # A request that is missing is the limit.
        if low is not None and high is not None and low < high:
            yield Remark(request, f"got `{request.value}`, the limit is `{limit.value}`")


@TOPIC.rule(
    "memory-peak",
    "error",
    what="The memory limit is under the measured peak.",
    why="The server is killed when it is busiest.",
    fix="`kubernetes.resources.memory: auto` in the spec, or a quarter over the peak",
)
def _peak(application: Application, scope: Scope) -> Iterator[Remark]:
    evidence = scope.plan.evidence if scope.plan else None
    if evidence is None or evidence.memory is None:
        return
    for workload, container in _serving(application):
        limit = container.at("resources", "limits", "memory")
        size, peak = amount(limit), evidence.memory.total_bytes
        if workload.ours and container in workload.containers and size is not None and size < peak:
            yield Remark(limit, f"got `{limit.value}`, and at its peak the server took {peak / _MIB:.0f}Mi")


@TOPIC.rule(
    "gpu-limits",
    "error",
    what="A GPU is requested without a limit, in fractions, or with another number than its limit.",
    why="The API server refuses the pods: devices are neither shared nor overcommitted.",
    fix="resources: {limits: {nvidia.com/gpu: 1}}, a whole number",
)
def _gpu(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.all_containers:
            limits, requests = container.at("resources", "limits"), container.at("resources", "requests")
            for name, node in limits.entries():
                size = amount(node)
                if _extended(name) and size is not None and size != int(size):
                    yield Remark(node, f"got `{node.value}`, allowed: a whole number")
            for name, node in requests.entries():
                if _extended(name) and not limits.at(name).given:
                    yield Remark(node, "requested, and no limit given", f"limits: {{{name}: {node.value}}}")
                elif _extended(name) and amount(node) != amount(limits.at(name)):
                    yield Remark(node, f"got `{node.value}`, the limit is `{limits.at(name).value}`")


@TOPIC.rule(
    "scratch-size",
    "warning",
    what="An emptyDir, or the container's own disk, may grow without limit.",
    why="A full disk evicts every pod of the node.",
    fix="emptyDir: {sizeLimit: 1Gi}, and resources: {limits: {ephemeral-storage: …}}",
)
def _scratch(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.serving:
        for volume in workload.pod.at("volumes").items():
            scratch = volume.at("emptyDir")
            if scratch.given and not scratch.at("sizeLimit").given:
                yield Remark(scratch.at("sizeLimit"), "missing")
        for container in workload.containers:
            limit = container.at("resources", "limits", "ephemeral-storage")
            read_only = container.at("securityContext", "readOnlyRootFilesystem").value is True
            if not limit.given and not read_only:
                yield Remark(limit, "missing, and the root filesystem is writable")
