"""Rules about what a pod may use: cpu, memory, GPUs, disk."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.verify.application import Application, Workload, amount
from k8s.verify.located import Place
from k8s.verify.rule import Remark, Scope, Topic

TOPIC = Topic("Resources")

_MIB = 2**20


def _serving(application: Application) -> Iterator[tuple[Workload, Place]]:
    """The containers that run as long as pods that serve."""
    for workload in application.workloads:
        if workload.serves:
            for container in workload.long_lived:
                yield workload, container


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
