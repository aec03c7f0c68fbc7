"""Rules about the pods: what their probes ask, how long they may take to start and to stop, and what was measured."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress

from marina.config.errors import listed
from marina.config.quantity import quantity
from marina.k8s.verify.objects import Objects, Place
from marina.k8s.verify.rule import Remark, Rules

RULES = Rules()
_DEFAULT_GRACE_S, _DEFAULT_PROGRESS_S = 30, 600
_MIB = 2**20
_SLEEP = re.compile(r"\bsleep\s+(\d{1,9})\b")
# The path of an address in a command: `curl -f http://localhost:8080/ping`.
_ADDRESS = re.compile(r"(?:https?://[\w.-]+(?::\d+)?|\b[\w.-]+:\d+)(/[^\s'\"|;&)]*)")
# Paths whose answer depends on the model, and those that say nothing about it.
_OF_MODEL = ("/describe", "/models", "/predictions", "/ready", "/v1/models", "/v2/health/ready", "/v2/models")
_OF_PROCESS = ("/live", "/ping", "/v2/health/live", "/v2/health/ready")


def _asking(probe: Place, roots: tuple[str, ...]) -> Iterator[Remark]:
    """Remarks about a probe that asks for one of these paths, by itself or with a command."""
    path, command = probe.at("httpGet", "path"), probe.at("exec", "command")
    asked = [(path, path.text), *((command, match[1]) for match in _ADDRESS.finditer(_line(command)))]
    for place, text in asked:
        if any(text == root or text.startswith((root + "/", root + "?")) for root in roots):
            yield Remark(place, f"got `{text}`")


def _line(command: Place) -> str:
    return " ".join(str(word.value) for word in command.items())


@RULES.rule(
    "liveness-of-model",
    "error",
    what="The liveness probe asks the model.",
    why="A full queue or a drain looks like a dead pod: under load, the kubelet kills one pod after another.",
    fix="ask whether the process answers at all: `/live` of the supervisor",
)
def _live_model(objects: Objects) -> Iterator[Remark]:
    yield from _asking(objects.server.at("livenessProbe"), _OF_MODEL)


@RULES.rule(
    "readiness-ping",
    "error",
    what="The readiness or startup probe asks something that does not depend on the model.",
    why="`/live` and TorchServe's `/ping` answer while models load, and for minutes after every worker has died.",
    fix="ask `/ready` of the supervisor",
)
def _ping(objects: Objects) -> Iterator[Remark]:
    for probe in ("startupProbe", "readinessProbe"):
        yield from _asking(objects.server.at(probe), _OF_PROCESS)


@RULES.rule(
    "startup-budget",
    "error",
    what="A server has less than twice its measured cold start to start, or a rollout gives up before the probes do.",
    why="A busy node doubles a cold start: a server that is almost ready is killed, or a rollout goes back needlessly.",
    fix="a larger `failureThreshold` in the startupProbe, and a `progressDeadlineSeconds` over what that allows",
)
def _startup(objects: Objects) -> Iterator[Remark]:
    probe, deadline = objects.server.at("startupProbe"), objects.deployment.at("spec", "progressDeadlineSeconds")
    # Without a startup probe, the liveness probe kills a server that is not ready in time.
    used = probe if probe.given else objects.server.at("livenessProbe")
    period, failures = used.at("periodSeconds").number or 10, used.at("failureThreshold").number or 3
    allowed = (used.at("initialDelaySeconds").number or 0) + period * failures
    cold = objects.plan.cold_start_s or 0
    if used.given and allowed < 2 * cold:
        text = f"allows {allowed} s, but the measured cold start is {cold:.1f} s"
        yield Remark(probe, text, f"failureThreshold: {math.ceil(2 * cold / period)}")
    patience = _DEFAULT_PROGRESS_S if deadline.number is None else deadline.number
    if used.given and patience < allowed:
        text = f"{_written(deadline, patience)}, but a start may take {allowed} s"
        yield Remark(deadline, text, f"progressDeadlineSeconds: {allowed + 300}")


def _written(field: Place, seconds: int) -> str:
    return f"got {seconds} s" if field.given else f"missing, so it is {seconds} s"


@RULES.rule(
    "grace-period",
    "error",
    what="The grace period is too short for a preStop hook and the server's drain.",
    why="The pod is killed before it has drained: every rollout, scale-down and node drain loses requests in flight.",
    fix="`terminationGracePeriodSeconds` over what preStop and the server's own drain take together",
)
def _grace(objects: Objects) -> Iterator[Remark]:
    serving, grace = objects.plan.spec.serving, objects.pod.at("terminationGracePeriodSeconds")
    allowed = _DEFAULT_GRACE_S if grace.number is None else grace.number
    taken = max(map(_asleep_s, objects.containers)) + serving.drain_propagation_s + serving.drain_timeout_s
    if allowed <= taken and (grace.number is not None or not grace.given):
        text = f"{_written(grace, allowed)}, but preStop and the drain take {taken:g} s"
        yield Remark(grace, text, f"terminationGracePeriodSeconds: {math.floor(taken) + 6}")


def _asleep_s(container: Place) -> int:
    """How long a preStop hook sleeps, by the kubelet's own `sleep` or by a command."""
    stop = container.at("lifecycle", "preStop")
    slept = [int(match[1]) for match in _SLEEP.finditer(_line(stop.at("exec", "command")))]
    return max(stop.at("sleep", "seconds").number or 0, *slept, 0)


@RULES.rule(
    "memory-peak",
    "error",
    what="The server's memory limit or request is below the measured peak.",
    why="The server is killed when it is busiest, or its node full; only the measurement shows that it has too little.",
    fix="`kubernetes.resources.memory: auto` in the spec, or a quarter more than the peak",
)
def _peak(objects: Objects) -> Iterator[Remark]:
    evidence = objects.plan.evidence
    peak = evidence.memory.total_bytes if evidence and evidence.memory else 0
    for kind in ("limits", "requests"):
        memory = objects.server.at("resources", kind, "memory")
        # What is no quantity is not judged here: the API server refuses it.
        with suppress(ValueError):
            if memory.given and quantity(str(memory.value)) < peak:
                yield Remark(memory, f"got `{memory.value}`, but the measured peak is {peak / _MIB:.0f}Mi")


@RULES.rule(
    "nowhere-to-write",
    "error",
    what="The server has a read-only root filesystem and no writable `/tmp`.",
    why="kube-linter asks for such a filesystem, but TorchServe unpacks the MAR in `/tmp`, and exits if it cannot.",
    fix="an emptyDir with a sizeLimit, mounted at `/tmp`",
)
def _writable(objects: Objects) -> Iterator[Remark]:
    server = objects.server
    mounts = [mount for mount in server.at("volumeMounts").items() if mount.at("readOnly").value is not True]
    writable = {mount.at("mountPath").text for mount in mounts}
    locked = server.at("securityContext", "readOnlyRootFilesystem").value is True
    if locked and "/tmp" not in writable:
        yield Remark(server.at("volumeMounts"), f"writable: {listed(writable) or 'nothing'}")
