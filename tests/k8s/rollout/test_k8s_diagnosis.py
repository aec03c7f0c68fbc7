"""The states of pods in a cluster, and the sentences that explain them."""

from typing import Any

import pytest

from marina.k8s.rollout.diagnosis import DeploymentView, find_causes, find_problem, is_hopeless

SIGKILL, SIGTERM = {"exitCode": 137}, {"exitCode": 143}
REVISION = {"deployment.kubernetes.io/revision": "2"}


def pod(name: str = "a", **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "ownerReferences": [{"uid": "new"}]}, "status": status}


def container(state: dict[str, Any], *, restarts: int = 0, last: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {"name": "server", "image": "i:1", "ready": False, "restartCount": restarts, "state": state}
    return status | {"lastState": {"terminated": last} if last else {}}


def event(reason: str, text: str, about: str = "a") -> dict[str, Any]:
    return {"reason": reason, "message": text, "involvedObject": {"uid": about}}


def view(
    *pods: dict[str, Any], events: tuple[dict[str, Any], ...] = (), paused: bool = False, **status: Any
) -> DeploymentView:
    metadata = {"name": "d", "namespace": "n", "uid": "d", "annotations": REVISION}
    deployment = {"metadata": metadata, "spec": {"paused": paused}, "status": status}
    owner = {"ownerReferences": [{"uid": "d"}]}
    old = {"metadata": {"uid": "old", "annotations": {"deployment.kubernetes.io/revision": "1"}, **owner}}
    new = {"metadata": {"uid": "new", "annotations": REVISION, **owner}}
    return DeploymentView(deployment, (old, new), pods, events)


def waiting(reason: str, text: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": text}}


def in_container(
    state: dict[str, Any], *events: dict[str, Any], restarts: int = 0, last: dict[str, Any] | None = None
) -> DeploymentView:
    """A pod whose only container is in this state."""
    return view(pod(containerStatuses=[container(state, restarts=restarts, last=last)]), events=events)


def refused(text: str) -> DeploymentView:
    """No pod, because admission says this."""
    told = f'(combined from similar events): Error creating: pods "d-1" is forbidden: {text}'
    return view(events=(event("FailedCreate", told, "new"),))


LATER = {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": "gate"}
NO_MORE = 'pods "d-1" is forbidden: exceeded quota: q, used: 4'
HOOK = 'admission webhook "w" denied the request: no'
# What is seen, and the kind, the text and whether waiting is in vain.
ROWS: dict[str, Any] = {
    "an image that nobody has": (in_container(waiting("ErrImagePull", "rpc error: i:1: not found")),
        "image-pull", "image `i:1` cannot be pulled: rpc error: i:1: not found", True),
    "a back-off, told by the event before it": (
        in_container(waiting("ImagePullBackOff", 'Back-off pulling image "i:1"'), event("Failed", "401 Unauthorized")),
        "image-pull", "image `i:1` cannot be pulled: 401 Unauthorized", True),
    "a back-off that says why itself": (
        in_container(waiting("ImagePullBackOff", 'Back-off pulling image "i:1": ErrImagePull: i:1: not found')),
        "image-pull", "image `i:1` cannot be pulled: ErrImagePull: i:1: not found", True),
    "a registry that is down": (in_container(waiting("ErrImagePull", "dial tcp: i/o timeout")),
        "image-pull", "image `i:1` cannot be pulled: dial tcp: i/o timeout", False),
    "an image without a signature": (in_container(waiting("SignatureValidationFailed", "a signature was required")),
        "image-pull", "image `i:1` cannot be pulled: a signature was required", False),
    "a configuration that is not there": (in_container(waiting("CreateContainerConfigError", "no configmap")),
        "config", "container `server` cannot start: no configmap", False),
    "a command that does not exist": (in_container(waiting("RunContainerError", "no such file"), restarts=3),
        "config", "container `server` cannot start: no such file", True),
    "a crash": (in_container({"terminated": {"exitCode": 2}}),
        "crash", "container `server` ended with code 2, 0 restarts", False),
    "a crash for the third time, by a signal": (
        in_container(waiting("CrashLoopBackOff"), restarts=3, last={"exitCode": 139}),
        "crash", "container `server` ended with signal 11, 3 restarts", True),
    "an exit code that is no signal": (in_container({"terminated": {"exitCode": 255}}),
        "crash", "container `server` ended with code 255, 0 restarts", False),
    "a server that ends with 0 again and again": (
        in_container(waiting("CrashLoopBackOff"), restarts=4, last={"exitCode": 0}),
        "crash", "container `server` ended with code 0, 4 restarts", True),
    "a server that has ended with 0 and waits for its restart": (
        in_container({"terminated": {"exitCode": 0}}, restarts=4),
        "crash", "container `server` ended with code 0, 4 restarts", True),
    "many restarts, of which the last may be the one that works": (
        in_container({"running": {}}, restarts=5, last={"exitCode": 1}),
        "crash", "container `server` ended with code 1, 5 restarts", False),
    "a crash before the port was open": (
        in_container(waiting("CrashLoopBackOff"), event("Unhealthy", "Startup probe failed: connection refused"),
                     restarts=3, last={"exitCode": 1}),
        "crash", "container `server` ended with code 1, 3 restarts", True),
    "too little memory": (in_container({"running": {}}, restarts=1, last={"exitCode": 137, "reason": "OOMKilled"}),
        "out-of-memory", "container `server` was killed because it ran out of memory, 1 restart", False),
    "a startup probe that gave up": (
        in_container({"running": {}}, event("Unhealthy", "Startup probe failed: 503"), restarts=1, last=SIGTERM),
        "probe", "container `server` was restarted, 1 restart: Startup probe failed: 503", False),
    "a pod that is not ready": (in_container({"running": {}}, event("Unhealthy", "Readiness probe failed: 503")),
        "probe", "Readiness probe failed: 503", False),
    "a pause": (view(pod(), paused=True),
        "paused", "is paused, so its pods stay as they are: `kubectl -n n rollout resume deployment d`", True),
    "no node": (view(pod(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: taints"}])),
        "unschedulable", "cannot be scheduled: 0/3 nodes: taints", False),
    "a volume": (view(pod(), events=(event("FailedMount", 'MountVolume.SetUp failed: configmap "c" not found'),)),
        "event", 'MountVolume.SetUp failed: configmap "c" not found', False),
    "an eviction": (view(pod(reason="Evicted", message="low on ephemeral-storage")),
        "node", "Evicted: low on ephemeral-storage", False),
    "a node that shuts down": (
        view(pod(reason="Terminated", message="node shutdown", containerStatuses=[container({"terminated": SIGKILL})])),
        "node", "Terminated: node shutdown", False),
    "a load balancer that does not know the pod yet": (
        view(pod(containerStatuses=[container({"running": {}}) | {"ready": True}], conditions=[LATER])),
        "readiness-gate", "its containers are ready, but it is not: gate", False),
    "a quota that is used up after the first pod": (
        view(pod(conditions=[{"type": "Ready", "status": "True"}]),
             conditions=[{"type": "ReplicaFailure", "status": "True", "message": NO_MORE}]),
        "not-admitted", "no more pods are created: exceeded quota: q, used: 4", False),
    "a quota": (refused("exceeded quota: q, used: 4"),
        "not-admitted", "no pod was created: exceeded quota: q, used: 4", False),
    "a quota of an amount that the pods do not name": (refused("failed quota: q: must specify limits.cpu"),
        "not-admitted", "no pod was created: failed quota: q: must specify limits.cpu", True),
    "a LimitRange, in many attempts": (refused("maximum memory usage per Container is 1Gi"),
        "not-admitted", "no pod was created: maximum memory usage per Container is 1Gi", True),
    "a service account that is not there": (refused("no serviceaccount"),
        "not-admitted", "no pod was created: no serviceaccount", False),
    "a webhook": (view(conditions=[{"type": "ReplicaFailure", "status": "True", "message": HOOK}]),
        "not-admitted", f"no pod was created: {HOOK}", True),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "kind", "text", "final"), ROWS.values(), ids=ROWS)
def test_the_state_of_a_cluster_is_explained(seen: DeploymentView, kind: str, text: str, final: bool) -> None:
    assert [(cause.kind, cause.text, cause.final) for cause in find_causes(seen)] == [(kind, text, final)]
    assert is_hopeless(seen) is final


def test_the_same_cause_of_many_pods_is_reported_once_with_their_number() -> None:
    lost = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU"}]}
    lines = find_causes(view(pod("a", **lost), pod("b", **lost), pod("c", **lost)))
    assert [str(cause) for cause in lines] == ["a (and 2 more): cannot be scheduled: no GPU"]


@pytest.mark.parametrize(
    ("state", "previous"),
    [
        (waiting("CrashLoopBackOff"), False),
        ({"terminated": {"exitCode": 1}}, False),
        ({"running": {}}, True),
    ],
    ids=["it waits", "it has just ended", "it runs again"],
)
def test_the_log_of_the_run_that_crashed_is_shown(state: dict[str, Any], previous: bool) -> None:
    asked = []

    def logs(pod_name: str, name: str, of_previous_run: bool) -> str:
        asked.append((pod_name, name, of_previous_run))
        return "first\nlast"

    crashed = view(pod(containerStatuses=[container(state, restarts=1, last={"exitCode": 1})]))
    assert find_causes(crashed, logs)[0].lines == ("first", "last")
    # The kubelet deletes the log of the run before the last soon after the last one ends.
    assert asked == [("a", "server", previous)]


def test_the_log_of_an_init_container_that_crashed_is_shown() -> None:
    loader = container({"terminated": {"exitCode": 1}}, restarts=0) | {"name": "loader"}
    before = container({"terminated": {"exitCode": 0}}) | {"name": "before", "ready": True}
    server = container(waiting("PodInitializing"))
    seen = view(pod(initContainerStatuses=[before, loader], containerStatuses=[server]))
    (cause,) = find_causes(seen, lambda _pod, name, _previous: f"of {name}")
    assert (cause.text, cause.lines) == ("container `loader` ended with code 1, 0 restarts", ("of loader",))


def test_a_pod_that_ends_because_it_is_deleted_has_no_cause() -> None:
    ended = pod(containerStatuses=[container({"terminated": {"exitCode": 0}})])
    ended["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert find_causes(view(ended)) == []


def test_a_pod_of_a_job_that_is_done_has_no_cause() -> None:
    done = pod(containerStatuses=[container({"terminated": {"exitCode": 0}})], phase="Succeeded")
    assert find_problem(done | {"spec": {"restartPolicy": "Never"}}, view()) is None
    assert find_problem(done | {"spec": {"restartPolicy": "Always"}}, view())


def test_pods_of_an_older_template_and_ready_pods_have_no_cause() -> None:
    old = pod("old", containerStatuses=[container(waiting("CrashLoopBackOff"), restarts=9, last={"exitCode": 1})])
    old["metadata"]["ownerReferences"] = [{"uid": "old"}]
    fine = container({"running": {}}, restarts=1, last={"exitCode": 1}) | {"ready": True}
    ready = pod("ready", conditions=[{"type": "Ready", "status": "True"}], containerStatuses=[fine])
    seen = view(old, ready, events=(event("Unhealthy", "Readiness probe failed", "ready"),))
    assert find_causes(seen) == []
    assert find_problem(ready, seen) is None


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
        {"initContainerStatuses": [container({"terminated": {"exitCode": 0}}) | {"ready": True}]},
        {"containerStatuses": [container({"running": {}}) | {"ready": True}]},
    ],
    ids=["the kubelet says so", "an init container has run", "it runs"],
)
def test_a_node_that_could_not_start_a_pod_at_first_is_no_cause_once_it_has(status: dict[str, Any]) -> None:
    events = (event("FailedMount", "configmap not found"), event("FailedCreatePodSandBox", "runc create failed"))
    assert find_problem(pod(**status), view(events=events)) is None
