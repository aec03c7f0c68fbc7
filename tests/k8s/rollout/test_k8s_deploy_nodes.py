"""Pods that select nodes by label, and nodes that have these labels or lack them."""

from typing import Any

import pytest
from k8s_rig import Rig, deployment, documents

from marina.config.errors import ClusterError
from marina.k8s.cluster import fitting_nodes, missing_room

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow

AVX2 = "feature.node.kubernetes.io/cpu-cpuid.AVX2"


def wanting(**fields: Any) -> tuple[dict[str, Any], ...]:
    wanted = deployment("good:1")
    wanted["spec"]["template"]["spec"] |= fields
    return (*documents()[:-1], wanted)


def needing(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def put_nodes(cluster: Rig, **labels: dict[str, str]) -> None:
    for name, some in labels.items():
        metadata = {"name": name, "labels": {"kubernetes.io/arch": "amd64"} | some}
        cluster.fake.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})


def test_nodes_that_pods_cannot_run_on_are_named_before_any_change(cluster: Rig) -> None:
    put_nodes(cluster, new={AVX2: "true"}, old={})
    record = cluster.deploy(*wanting(nodeSelector={AVX2: "true", "kubernetes.io/arch": "amd64"}))
    assert record.result == "deployed"
    assert f"no pod can run on node `old`, which lacks {AVX2}=true" in record.site["notes"]


def test_pods_that_fit_no_node_are_not_deployed_unless_accepted(cluster: Rig) -> None:
    put_nodes(cluster, old={})
    wanted = wanting(nodeSelector={AVX2: "true"})
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*wanted)
    assert f"nodes: no node matches the pods' selectors: `old`, which lacks {AVX2}=true" in str(error.value)
    assert "`--accept nodes` deploys anyway" in str(error.value.hint)
    assert cluster.deploy(*wanted, accepted=["nodes"]).result == "deployed"


def put_pod(cluster: Rig, node: str, phase: str = "Running", **requests: str) -> None:
    container = {"name": "a", "image": "a", "resources": {"requests": requests}}
    metadata, spec = {"name": f"on-{node}-{phase.lower()}", "namespace": "default"}, {"containers": [container]}
    status = {"phase": phase}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec | {"nodeName": node}}
    cluster.fake.put(pod | {"status": status})


def test_a_note_says_before_any_change_that_no_node_has_room_for_one_more_pod(cluster: Rig) -> None:
    for name, cpu, memory in (("big", "8", "16Gi"), ("small", "4000m", "8Gi")):
        offer = {"allocatable": {"cpu": cpu, "memory": memory}}
        cluster.fake.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": offer})
    put_pod(cluster, "big", cpu="6500m")
    put_pod(cluster, "big", "Pending", cpu="a lot")
    put_pod(cluster, "small", "Succeeded", cpu="4")
    assert not any("room" in note for note in cluster.deploy(*wanting(), dry_run=True).site["notes"])
    put_pod(cluster, "small", cpu="1", memory="7Gi")
    full = "no node has room for one more pod, which requests cpu 2, memory 2Gi: `big` lacks cpu; `small` lacks memory"
    assert full in cluster.deploy(*wanting(), dry_run=True).site["notes"]
    limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}
    gpus = wanting(containers=[{"name": "server", "image": f"a@sha256:{'0' * 64}", "resources": {"limits": limits}}])
    (note,) = (note for note in cluster.deploy(*gpus, dry_run=True).site["notes"] if "room" in note)
    assert note.endswith("`big` lacks nvidia.com/gpu; `small` lacks nvidia.com/gpu")
    cluster.fake.denied = {("list", "pods")}
    assert missing_room(cluster.placement.cluster, wanting()[-1]["spec"]["template"]["spec"]) == ""


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


# Terms of the pods, and what each of two nodes lacks: `new` has AVX2 and 64 cores, `old` neither.
TERMS: list[Any] = [
    ([{"matchExpressions": [expression(AVX2, "In", "true")]}], (), (f"{AVX2}=true",)),
    ([{"matchExpressions": [expression(AVX2, "Exists"), expression("cores", "Gt", "32")]}],
     (), (f"{AVX2} Exists", "cores Gt 32")),
    ([{"matchExpressions": [expression(AVX2, "DoesNotExist")]}], (f"{AVX2} DoesNotExist",), ()),
    ([{"matchExpressions": [expression("cores", "NotIn", "64", "96")]}], ("cores NotIn 64 96",), ()),
    ([{"matchExpressions": [expression("cores", "Lt", "64")]}], ("cores Lt 64",), ("cores Lt 64",)),
    ([{"matchFields": [expression("metadata.name", "In", "old")]}], ("metadata.name=old",), ()),
    # One matching term is enough; what the nearest term lacks is reported.
    ([{"matchExpressions": [expression(AVX2, "Exists"), expression("cores", "Gt", "32")]},
      {"matchExpressions": [expression("pool", "In", "fast", "slow")]}], (), ("pool In fast slow",)),
    ([{}], ("a match for an empty term, which no node has",), ("a match for an empty term, which no node has",)),
]  # fmt: skip


@pytest.mark.parametrize(("terms", "new", "old"), TERMS, ids=lambda case: str(case)[:60])
def test_required_terms_are_read_as_the_scheduler_reads_them(
    terms: list[dict[str, Any]], new: tuple[str, ...], old: tuple[str, ...], cluster: Rig
) -> None:
    put_nodes(cluster, new={AVX2: "true", "cores": "64"}, old={"cores": "many"} if "Lt" in str(terms) else {})
    seen = fitting_nodes(cluster.placement.cluster, needing(*terms))
    assert seen
    lacks = {name: missing for name, missing in (("new", new), ("old", old)) if missing}
    assert seen.others == lacks
    assert set(seen.nodes) == {"new", "old"} - set(lacks)


def test_an_affinity_that_no_node_satisfies_is_refused_like_a_selector(cluster: Rig) -> None:
    put_nodes(cluster, old={})
    with pytest.raises(ClusterError, match="`old`, which lacks pool=fast"):
        cluster.deploy(*wanting(**needing({"matchExpressions": [expression("pool", "In", "fast")]})))
    assert cluster.deploy(*wanting()).result == "deployed"
