"""Rules about what a pod may use: memory and disk."""

from collections.abc import Iterator

from marina.k8s.verify.application import Application, Workload, amount
from marina.k8s.verify.located import Place
from marina.k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Resources")

_MIB = 2**20


def _serving(application: Application) -> Iterator[tuple[Workload, Place]]:
    """The long-lived containers of serving pods, each with its workload."""
    for workload in application.workloads:
        if workload.serves:
            for container in workload.long_lived:
                yield workload, container


@TOPIC.rule(
    "memory-overcommit",
    "warning",
    what="A container requests less memory than its limit.",
    why="Both values are valid, but on a full node the container is killed for using memory that its limit promised.",
    fix="the same amount in `requests` and `limits`",
)
def _overcommit(application: Application, _: Scope) -> Iterator[Remark]:
    for _workload, container in _serving(application):
        request = container.at("resources", "requests", "memory")
        limit = container.at("resources", "limits", "memory")
        low, high = amount(request), amount(limit)
        # A missing request equals the limit.
        if low is not None and high is not None and low < high:
            yield Remark(request, f"got `{request.value}`, the limit is `{limit.value}`")


@TOPIC.rule(
    "memory-peak",
    "error",
    what="The memory limit is below the measured peak.",
    why="The server is killed when it is busiest; only the measurement shows that the limit is too low.",
    fix="`kubernetes.resources.memory: auto` in the spec, or a quarter more than the peak",
)
def _peak(application: Application, scope: Scope) -> Iterator[Remark]:
    evidence = scope.plan.evidence if scope.plan else None
    if evidence is None or evidence.memory is None:
        return
    for workload, container in _serving(application):
        limit = container.at("resources", "limits", "memory")
        size, peak = amount(limit), evidence.memory.total_bytes
        if workload.made_by_marina and container in workload.containers and size is not None and size < peak:
            yield Remark(limit, f"got `{limit.value}`, but the measured peak is {peak / _MIB:.0f}Mi")


@TOPIC.rule(
    "scratch-size",
    "warning",
    what="An emptyDir, or a container's writable root filesystem, has no size limit.",
    why="When it fills the node's disk, the kubelet evicts pods, those of other services too.",
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
