"""Pods that select nodes by label, and clusters with nodes that have these labels or lack them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from k8s_rig import Rig, deployment, documents, rig

from config.errors import ClusterError

AVX2 = "feature.node.kubernetes.io/cpu-cpuid.AVX2"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path) as ready:
        yield ready


def selecting(**labels: str) -> tuple[dict[str, Any], ...]:
    wanted = deployment("good:1")
    wanted["spec"]["template"]["spec"]["nodeSelector"] = labels
    return (*documents()[:-1], wanted)


def put_nodes(cluster: Rig, **labels: dict[str, str]) -> None:
    for name, some in labels.items():
        metadata = {"name": name, "labels": {"kubernetes.io/arch": "amd64"} | some}
        cluster.fake.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata})


def test_nodes_that_pods_cannot_come_to_are_named_before_anything_changes(cluster: Rig) -> None:
    put_nodes(cluster, new={AVX2: "true"}, old={})
    record = cluster.deploy(*selecting(**{AVX2: "true", "kubernetes.io/arch": "amd64"}))
    assert record.result == "deployed"
    assert f"no pod comes to node `old`, which lacks {AVX2}=true" in record.site["notes"]


def test_pods_that_no_node_can_take_are_not_deployed_unless_that_is_accepted(cluster: Rig) -> None:
    put_nodes(cluster, old={})
    wanted = selecting(**{AVX2: "true"})
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*wanted)
    assert f"nodes: no node has the labels that the pods select: `old`, which lacks {AVX2}=true" in str(error.value)
    assert "`--accept nodes` deploys all the same" in str(error.value.hint)
    assert cluster.deploy(*wanted, accepted=["nodes"]).result == "deployed"
