"""What `marina drill` does to a cluster, and that it leaves nothing behind, with pods that do nothing."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drills import LABELS, NAME, SPACE, Deployed, deployed, put
from fake_apiserver_world import Fault
from fake_kubelet import Stub
from specs import ROOT
from waiting import eventually

from marina.config.errors import ClusterError, InputError
from marina.k8s.cluster import Cluster, connect
from marina.k8s.drilling import Breakage, DrillPlan, check_drill_permissions, cordoned, end_leftover_cordons, plan_drill
from marina.k8s.drilling.cordon import cordon

RELEASE = f"{SPACE}/{NAME}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.k8s.drilling.breakage.POLL_S", 0.03)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Deployed]:
    with deployed(tmp_path, replicas=4, begin=Stub) as made:
        eventually(lambda: made.ready() == 4)
        yield made


def cluster_of(service: Deployed) -> Cluster:
    return connect(None, service.fake.kubeconfig)


def planned(service: Deployed, kind: Any, on: str | None = None) -> DrillPlan:
    return plan_drill(cluster_of(service), SPACE, NAME, kind, on)


def broken(service: Deployed, plan: DrillPlan, within_s: float = 60) -> Breakage:
    """The drill, carried out to its end."""
    breakage = Breakage(cluster_of(service), plan, lambda _: None)
    breakage.begin.set()
    breakage.run(within_s)
    return breakage


def pods(service: Deployed) -> dict[str, str]:
    """The uid of each pod's node."""
    found = [service.fake.get("Pod", name, SPACE) for name in service.fake.names("Pod", SPACE)]
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in found if pod}


def test_an_eviction_replaces_one_pod(service: Deployed) -> None:
    before, plan = pods(service), planned(service, "evict")
    breakage = broken(service, plan)
    assert breakage.error == ""
    assert breakage.begun is not None
    assert breakage.enough is not None
    assert eventually(lambda: set(before) - set(pods(service))) == set(plan.pods)


def test_a_drained_node_has_none_of_its_pods_and_is_open_again(service: Deployed) -> None:
    plan, cluster, said = planned(service, "drain"), cluster_of(service), list[str]()
    (node,) = plan.nodes
    with cordoned(cluster, plan.nodes, plan.release, kubeconfig=service.fake.kubeconfig, say=said.append):
        assert service.node(node)["spec"]["unschedulable"] is True
        breakage = broken(service, plan)
        assert eventually(lambda: node not in pods(service).values())
    assert breakage.enough is not None
    assert len(plan.pods) == 2
    assert "unschedulable" not in service.node(node)["spec"]
    assert said == [f"  node {node}: cordoned", f"  node {node}: uncordoned"]


def test_a_drain_waits_for_the_budget_and_gives_up_if_that_allows_nothing(service: Deployed) -> None:
    put(service.fake, "PodDisruptionBudget", spec={"maxUnavailable": 0, "selector": {"matchLabels": LABELS}})
    before = pods(service)
    breakage = broken(service, planned(service, "evict"), within_s=1)
    assert breakage.enough is None
    assert "violate the pod's disruption budget" in breakage.refused
    assert pods(service) == before


def test_a_zone_is_all_of_its_nodes(service: Deployed) -> None:
    metadata = {"name": "far", "labels": {"topology.kubernetes.io/zone": "zone-north"}}
    service.fake.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
    plan = planned(service, "zone", "zone-north")
    assert plan.nodes == ("far", "north")
    assert set(plan.pods) == {name for name, node in pods(service).items() if node == "north"}


def test_a_rollout_replaces_every_pod_and_never_has_too_few(service: Deployed) -> None:
    before = set(pods(service))
    breakage = broken(service, planned(service, "rollout"))
    assert breakage.enough is not None
    assert eventually(lambda: not before & set(pods(service)))


@pytest.mark.parametrize(("closed", "text"), [(True, "is already cordoned"), (False, "allowed, as a node")])
def test_a_node_that_is_not_ours_to_close_is_refused(service: Deployed, closed: bool, text: str) -> None:
    if closed:
        service.fake.put(service.node("north") | {"spec": {"unschedulable": True}})
    with pytest.raises(InputError, match=text):
        planned(service, "drain", "north" if closed else "west")


def test_a_service_that_is_not_whole_is_not_drilled(service: Deployed) -> None:
    service.fake.scale(SPACE, NAME, 5)
    service.fake.controllers.stuck = True
    with pytest.raises(ClusterError, match="only 4 of 5 pods are ready"):
        planned(service, "evict")


def test_what_may_not_be_done_is_said_before_anything_is(service: Deployed) -> None:
    service.fake.denied = {("create", "pods/eviction"), ("patch", "nodes")}
    with pytest.raises(ClusterError, match="`create pods/eviction`, `patch nodes`"):
        check_drill_permissions(cluster_of(service), planned(service, "drain"))


def test_without_the_word_nothing_is_done_and_what_would_be_is_said(
    service: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pods(service)
    assert service.drill("drain") == 2
    said = capsys.readouterr().err
    assert "`--yes-break-it`: missing, so nothing was done" in said
    assert "will cordon node north, for all pods of the cluster, until the drill ends" in said
    assert "drain --yes-break-it" in said
    assert pods(service) == before
    assert not any(method != "GET" for method, _ in service.fake.requests)


def test_nodes_are_opened_after_a_drill_that_was_killed(service: Deployed) -> None:
    code = (
        "import sys, time; from pathlib import Path; from marina.k8s.cluster import connect\n"
        "from marina.k8s.drilling import cordoned\n"
        "config = Path(sys.argv[1])\n"
        f"with cordoned(connect(None, config), ['north'], {RELEASE!r}, kubeconfig=config, say=print): time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(service.fake.kubeconfig)]
    killed = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        eventually(lambda: service.node("north")["spec"].get("unschedulable"))
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    eventually(lambda: "unschedulable" not in service.node("north")["spec"])
    assert "marina/drill" not in service.node("north")["metadata"].get("annotations", {})


def test_the_next_drill_opens_what_neither_drill_nor_guard_could(
    service: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(service)
    cordon(cluster, "north", RELEASE)
    assert service.drill("evict") == 2
    assert "note: node north was still cordoned by a drill that was killed" in capsys.readouterr().err
    assert end_leftover_cordons(cluster, RELEASE) == []


def test_nodes_of_other_drills_stay_as_they_are(service: Deployed) -> None:
    with cordoned(cluster_of(service), ["north"], "other/one", kubeconfig=service.fake.kubeconfig, say=lambda _: None):
        assert end_leftover_cordons(cluster_of(service), RELEASE) == []
        assert service.node("north")["spec"]["unschedulable"] is True


def test_an_api_server_that_refuses_ends_the_drill_with_its_words(service: Deployed) -> None:
    service.fake.faults.append(Fault("POST", "/eviction", 422, times=9, reason="Invalid", message="not today"))
    breakage = broken(service, planned(service, "evict"))
    assert "not today" in breakage.error


def test_a_drill_that_is_stopped_reads_no_more(service: Deployed) -> None:
    breakage = Breakage(cluster_of(service), planned(service, "evict"), lambda _: None)
    thread = threading.Thread(target=breakage.run, args=(60,))
    thread.start()
    eventually(lambda: breakage.readings)
    breakage.stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert breakage.begun is None
