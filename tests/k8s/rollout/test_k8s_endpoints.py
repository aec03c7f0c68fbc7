"""The ready pods behind a Service, and the address of each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_apiserver_world import Fault
from k8s_plans import planned
from k8s_rig import SHA256, SPACE, Rig, rig

from marina.config.errors import ClusterError
from marina.in_cluster import InCluster
from marina.k8s.cluster import PodFacts, read_endpoints, read_pod_facts
from marina.k8s.manifests import LoadJob
from marina.k8s.rollout import pod_metrics, run_load, served_packages

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow

LABELS = {"app": "shells"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as ready:
        yield ready


def put_pod(cluster: Rig, name: str, *, ready: bool = True, ip: str | None = "10.0.0.1", port: int = 8080) -> None:
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": str(ready)}]} | ({"podIP": ip} if ip else {})
    container = {"name": "server", "image": "i", "ports": [{"name": "inference", "containerPort": port}]}
    metadata = {"name": name, "namespace": SPACE, "labels": LABELS}
    spec = {"containers": [container]}
    cluster.fake.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})


def put_service(cluster: Rig, port: dict[str, Any], selector: dict[str, str] | None = LABELS) -> None:
    spec = {"ports": [port]} | ({"selector": selector} if selector else {})
    metadata = {"name": "shells", "namespace": SPACE}
    cluster.fake.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


def test_ready_pods_with_an_address_are_found_with_their_own_port(cluster: Rig) -> None:
    put_service(cluster, {"port": 80, "targetPort": "inference"})
    put_pod(cluster, "b", ip="fd00::2", port=9000)
    put_pod(cluster, "a")
    put_pod(cluster, "starting", ready=False)
    put_pod(cluster, "nowhere", ip=None)
    behind = read_endpoints(cluster.placement.cluster, SPACE, "shells")
    assert [(each.name, each.url) for each in behind.ready] == [
        ("a", "http://10.0.0.1:8080"),
        ("b", "http://[fd00::2]:9000"),
    ]
    assert (behind.port, behind.selector) == (80, LABELS)


@pytest.mark.parametrize(("port", "expected"), [({"port": 80, "targetPort": 7000}, 7000), ({"port": 80}, 80)])
def test_a_port_is_a_number_or_the_services_own(cluster: Rig, port: dict[str, Any], expected: int) -> None:
    put_service(cluster, port)
    put_pod(cluster, "a")
    assert read_endpoints(cluster.placement.cluster, SPACE, "shells").ready[0].port == expected


def test_the_cold_start_and_the_limits_of_a_pod_are_read(cluster: Rig) -> None:
    put_service(cluster, {"port": 80, "targetPort": "inference"})
    put_pod(cluster, "a")
    pod = cluster.fake.get("Pod", "a", SPACE)
    assert pod
    pod["spec"]["nodeName"] = "n1"
    pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "p"})
    pod["spec"]["containers"][1]["resources"] = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    running = {"name": "server", "restartCount": 0, "state": {"running": {"startedAt": "2026-03-02T08:00:00Z"}}}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-02T08:00:07Z"}
    pod["status"] |= {"containerStatuses": [running], "conditions": [ready]}
    cluster.fake.put(pod)
    info = {"nodeInfo": {"architecture": "arm64", "osImage": "Debian"}, "capacity": {"cpu": "8", "memory": "16Gi"}}
    cluster.fake.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": info})
    facts = read_pod_facts(
        cluster.placement.cluster, read_endpoints(cluster.placement.cluster, SPACE, "shells").ready[0]
    )
    assert facts == PodFacts(7.0, 1.5, 2**30, "arm64", 8, 16 * 2**30, "Debian")
    running["restartCount"] = 1
    cluster.fake.put(pod)
    behind = read_endpoints(cluster.placement.cluster, SPACE, "shells").ready[0]
    assert read_pod_facts(cluster.placement.cluster, behind).cold_start_s is None


def test_the_memory_of_one_pod_is_the_most_that_each_of_its_processes_was_seen_with(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_service(cluster, {"port": 80})
    put_pod(cluster, "a")
    pod = cluster.fake.get("Pod", "a", SPACE)
    assert pod
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    cluster.fake.put(pod)
    plan = planned({"name": "shells", "kubernetes.namespace": SPACE})
    load = InCluster(plan, "i", cluster.placement.cluster, cluster.progress, service=None, one_pod=True)
    assert load.memory() is None
    page = (
        'marina_resident_memory_bytes{process="torchserve"} %d\nmarina_resident_memory_bytes{process="supervisor"} 2\n'
        'marina_worker_resident_memory_bytes{model="m",worker="0"} %d\n'
    )
    for sizes in ((500, 70), (400, 90)):
        monkeypatch.setattr("marina.in_cluster.pod_metrics", lambda *_, sizes=sizes: page % sizes)
        load.read_memory()
    memory = load.memory()
    assert memory
    assert (memory.java_bytes, memory.workers_bytes, memory.supervisor_bytes) == (500, (90,), 2)


def test_the_processor_of_a_pod_is_the_one_that_its_page_names(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    put_service(cluster, {"port": 80})
    put_pod(cluster, "a")
    pod = cluster.fake.get("Pod", "a", SPACE)
    assert pod
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    cluster.fake.put(pod)
    plan = planned({"name": "shells", "kubernetes.namespace": SPACE})
    page = 'marina_ready{model="m"} 1\nmarina_machine_info{processor="AMD EPYC 9R14"} 1\n'
    monkeypatch.setattr("marina.in_cluster.pod_metrics", lambda *_: page)
    load = InCluster(plan, "i", cluster.placement.cluster, cluster.progress, service=None, one_pod=True)
    assert load.confined
    assert load.confined.machine.processor == "AMD EPYC 9R14"


def test_a_service_without_ready_pods_is_an_error_that_says_why(cluster: Rig) -> None:
    def refusal() -> str:
        with pytest.raises(ClusterError) as error:
            read_endpoints(cluster.placement.cluster, SPACE, "shells")
        return error.value.message

    assert refusal() == f"there is no Service `shells` in namespace `{SPACE}`"
    put_service(cluster, {"port": 80}, None)
    assert refusal() == "Service `shells` has no selector, so its pods are unknown"
    put_service(cluster, {"port": 80})
    put_pod(cluster, "a", ready=False)
    assert refusal() == f"no pod of Service `shells` is ready in namespace `{SPACE}`"


def test_a_load_goes_to_each_pod_to_one_or_through_a_service(cluster: Rig) -> None:
    put_service(cluster, {"port": 80, "targetPort": "inference"})
    for name in ("a", "b"):
        put_pod(cluster, name)
    plan = planned({"name": "shells", "kubernetes.namespace": SPACE})

    def load(service: str | None = None, *, one_pod: bool = False) -> InCluster:
        return InCluster(plan, "i", cluster.placement.cluster, cluster.progress, service=service, one_pod=one_pod)

    assert ([server.name for server in load().servers], load().pods) == (["a", "b"], 2)
    alone = load(one_pod=True)
    assert ([server.name for server in alone.servers], alone.pods, alone.url) == (["a"], 1, "http://10.0.0.1:8080")
    through = load("shells")
    assert (through.servers, through.pods, through.url) == ((), 2, f"http://shells.{SPACE}.svc:80")


def test_a_load_asks_each_pod_for_its_package(cluster: Rig) -> None:
    for name in ("a", "b"):
        put_pod(cluster, name)
    plan, server = planned({"name": "shells", "kubernetes.namespace": SPACE}), cluster.placement.cluster
    assert served_packages(server, plan, ["a", "b"]) == [SHA256, SHA256]
    assert SHA256 in pod_metrics(server, plan, "a")
    cluster.fake.backends.clear()
    with pytest.raises(ClusterError, match="cannot read by a port-forward to b which package it serves"):
        served_packages(server, plan, ["b"])
    assert pod_metrics(server, plan, "b") == ""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "violates PodSecurity: privileged",
            "the load cannot run: Job load: no pod was created: violates Pod",
        ),
        ("exceeded quota: q, used: 4", "the load did not end within 0 s: load no pod was created: exceeded quota: q"),
    ],
)
def test_a_load_whose_pods_are_refused_says_why(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, message: str, said: str
) -> None:
    monkeypatch.setattr("marina.k8s.rollout.load_run._STARTUP_S", 0)
    plan = planned({"name": "shells", "kubernetes.namespace": SPACE})
    cluster.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a", "namespace": SPACE}, "type": "Warning"}
    event |= {"reason": "FailedCreate", "message": f'Error creating: pods "load-0" is forbidden: {message}'}
    cluster.fake.put(event | {"involvedObject": {"kind": "Job", "name": "load"}})
    job = LoadJob(name="load", image="i", text="{}", parts=1, seconds=0)
    with pytest.raises(ClusterError) as ended:
        run_load(cluster.placement.cluster, plan, job, on_line=print, progress=cluster.progress)
    assert str(ended.value).startswith(said)
    assert cluster.fake.get("Job", "load", SPACE) is None


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("GET", "/pods/load-0/log", 503, times=1), id="log"),
        pytest.param(Fault("GET", "/pods[?]", 0, times=2), id="pods"),
        pytest.param(Fault("DELETE", "/jobs/load", 403), id="delete"),
    ],
)
def test_what_a_load_measured_is_not_lost_by_an_api_server_that_restarts_or_refuses(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("marina.k8s.cluster.client._TRIES", 2 if "log" in fault.path else 1)
    plan = planned({"name": "shells", "kubernetes.namespace": SPACE})
    cluster.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    sender = {"name": "load-0", "namespace": SPACE, "labels": {"marina/run": "load"}}
    sender["annotations"] = {"batch.kubernetes.io/job-completion-index": "0"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": sender, "spec": {"containers": []}}
    cluster.fake.put(pod | {"status": {"phase": "Succeeded"}})
    cluster.fake.logs["load-0"] = "measured"
    cluster.fake.faults.append(Fault(**vars(fault)))
    job = LoadJob(name="load", image="i", text="{}", parts=1, seconds=60)
    assert run_load(cluster.placement.cluster, plan, job, on_line=print, progress=cluster.progress) == ["measured"]
    assert ("note: Job load is not deleted yet: Job load: on order" in cluster.said.getvalue()) == (
        fault.method == "DELETE"
    )
