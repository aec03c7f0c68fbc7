"""Rules about starting and stopping: what probes ask, when a pod is killed, and what happens to its last requests."""

import math
import re
from collections.abc import Iterator
from typing import Any

from marina.k8s.verify.application import Application, Workload, startup_budget_s
from marina.k8s.verify.located import Place
from marina.k8s.verify.rule import Level, Remark, Scope, Topic

TOPIC = Topic("Starting and stopping")

_DEFAULT_GRACE_S = 30
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
# The path of an address in a command: `curl -f http://localhost:8080/ping`.
_ADDRESS = re.compile(r"(?:https?://[\w.-]+(?::\d+)?|\b[\w.-]+:\d+)(/[^\s'\"|;&)]*)")
_SLEEP = re.compile(r"\bsleep\s+(\d{1,9})\b")
# Paths whose answer depends on the model: of TorchServe and of the open inference protocol.
_OF_MODEL = ("/describe", "/models", "/predictions", "/v1/models", "/v2/health/ready", "/v2/models")
# By default, Kubernetes restarts a container that fails three probes, 10 s apart.
_SAFE_START_S = 60


@TOPIC.rule(
    "readiness-is-liveness",
    "error",
    what="The liveness probe asks what the readiness probe asks, and does not wait longer.",
    why="Each probe is valid. A pod that is only busy, or draining, is killed instead of getting no requests for a "
    "while.",
    fix="two endpoints: readiness asks the model, liveness the process; or a higher `failureThreshold` for liveness",
)
def _same(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.long_lived:
            ready, live = container.at("readinessProbe"), container.at("livenessProbe")
            asked = [[_question(workload, probe.at(name)) for name in _HANDLERS] for probe in (ready, live)]
            # A liveness probe that waits longer gives a busy pod time to recover.
            if ready.given and live.given and asked[0] == asked[1] and _patience_s(live) <= _patience_s(ready):
                # Other servers than those of models may answer such a question however busy they are.
                level: Level | None = None if container in workload.torchserves else "warning"
                yield Remark(live, "asks what `readinessProbe` asks", level=level)


def _question(workload: Workload, handler: Place) -> dict[str, Any]:
    """What a probe asks, with a port that is named by its number."""
    return handler.table | {"port": workload.port_number(handler.at("port"))}


def _patience_s(probe: Place) -> int:
    """How long a probe may fail before Kubernetes acts on it."""
    return (probe.at("periodSeconds").number or 10) * (probe.at("failureThreshold").number or 3)


def _asked_paths(probe: Place) -> Iterator[tuple[Place, str]]:
    """The paths that a probe requests, by itself or with a command."""
    path, command = probe.at("httpGet", "path"), probe.at("exec", "command")
    if path.given:
        yield path, path.text
    for match in _ADDRESS.finditer(_line(command)):
        yield command, match[1]


def _line(command: Place) -> str:
    return " ".join(str(word.value) for word in command.items())


@TOPIC.rule(
    "liveness-of-model",
    "error",
    what="The liveness probe asks the model.",
    why="A full queue or a slow request looks like a dead pod: under load, the kubelet kills one pod after another.",
    fix="ask whether the process answers at all: `/live` of Marina's supervisor, `/ping` of a bare TorchServe",
)
def _live_model(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        for container in workload.long_lived:
            for place, path in _asked_paths(container.at("livenessProbe")):
                # `/ready` of other servers has nothing to do with a model.
                if _under(path, _OF_MODEL) or (container in workload.torchserves and _under(path, ("/ready",))):
                    # Other servers may list their models however busy they are.
                    level: Level | None = None if container in workload.torchserves else "warning"
                    yield Remark(place, f"got `{path}`", level=level)


def _under(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith((root + "/", root + "?")) for root in roots)


@TOPIC.rule(
    "readiness-ping",
    "error",
    what="The readiness or startup probe asks TorchServe's `/ping` or `/v2/health`.",
    why="It answers `Healthy` while models load, after loading failed, and for minutes after every worker has died.",
    fix="ask `/ready` of Marina's supervisor, or an exec probe that reads `GET :8081/models/NAME`",
)
def _ping(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.torchserves:
        for container in workload.torchserves:
            for probe in ("startupProbe", "readinessProbe"):
                for place, path in _asked_paths(container.at(probe)):
                    if _under(path, ("/ping", "/v2/health/ready", "/v2/health/live")):
                        yield Remark(place, f"got `{path}`")


@TOPIC.rule(
    "startup-missing",
    "warning",
    what="There is no startup probe, and the liveness probe kills a server that takes a minute to start.",
    why="Loading a model often takes longer than a liveness probe waits: on a slow node the pod never comes up.",
    fix="add a startupProbe with `failureThreshold` × `periodSeconds` over twice the cold start",
)
def _no_startup(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.exposed:
        for container in workload.containers:
            allowed = startup_budget_s(container)
            if not container.at("startupProbe").given and allowed is not None and allowed < _SAFE_START_S:
                yield Remark(container.at("startupProbe"), f"missing, so a start may only take {allowed} s")


@TOPIC.rule(
    "startup-budget",
    "error",
    what="A server has less than twice its measured cold start to start.",
    why="A cold page cache or a busy node doubles that time, and the kubelet kills a server that is almost ready.",
    fix="a larger `failureThreshold` or `periodSeconds` in the startupProbe",
)
def _startup(application: Application, scope: Scope) -> Iterator[Remark]:
    cold = scope.plan.cold_start_s if scope.plan else None
    for workload in application.made_by_marina:
        for container in workload.containers:
            allowed = startup_budget_s(container)
            if cold is not None and allowed is not None and allowed < 2 * cold:
                period = container.at("startupProbe", "periodSeconds").number or 10
                text = f"allows {allowed} s, but the measured cold start is {cold:.1f} s"
                yield Remark(container.at("startupProbe"), text, f"failureThreshold: {math.ceil(2 * cold / period)}")


@TOPIC.rule(
    "grace-period",
    "error",
    what="The grace period is too short for the preStop hook and the server's drain.",
    why="The pod is killed before it has drained: every rollout, scale-down and node drain loses requests in flight.",
    fix="`terminationGracePeriodSeconds` over what preStop and the server's own drain take together",
)
def _grace(application: Application, scope: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        grace = workload.pod.at("terminationGracePeriodSeconds")
        allowed = _DEFAULT_GRACE_S if grace.number is None else grace.number
        asleep = max(map(_asleep_s, workload.containers), default=0)
        drain = 0.0
        if scope.plan and workload.made_by_marina:
            serving = scope.plan.spec.serving
            drain = serving.drain_propagation_s + serving.drain_timeout_s
        needed = math.floor(asleep + drain) + 1
        if grace.given and grace.number is None:
            continue
        if (asleep or drain) and allowed < needed:
            allowance = f"got {allowed} s" if grace.given else f"missing, so it is {allowed} s"
            text = f"{allowance}, but preStop and the drain take {asleep + drain:g} s"
            yield Remark(grace, text, f"terminationGracePeriodSeconds: {needed + 5}")


def _asleep_s(container: Place) -> int:
    """How long a preStop hook sleeps, by the kubelet's own `sleep` or by a command."""
    stop = container.at("lifecycle", "preStop")
    by_command = [int(match[1]) for match in _SLEEP.finditer(_line(stop.at("exec", "command")))]
    return max(stop.at("sleep", "seconds").number or 0, *by_command, 0)


@TOPIC.rule(
    "drain-missing",
    "warning",
    what="TorchServe behind a Service has no preStop hook.",
    why="It gets SIGTERM while load balancers still send to it, and closes every connection in the middle of an "
    "answer; Marina's supervisor drains first.",
    fix="lifecycle: {preStop: {sleep: {seconds: 15}}}, or a server that drains",
)
def _drain(application: Application, _: Scope) -> Iterator[Remark]:
    for workload in application.workloads:
        if not workload.torchserves or workload.made_by_marina or not application.services_of(workload):
            continue
        if not any(container.at("lifecycle", "preStop").given for container in workload.containers):
            yield Remark(workload.pod.at("containers", 0, "lifecycle", "preStop"), "missing")
