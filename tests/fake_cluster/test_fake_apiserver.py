"""The fake API server behaves as Kubernetes documents server-side apply; a wrong fake would prove nothing."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_apiserver import FakeCluster
from fake_apiserver_fields import decode, encode
from fake_apiserver_kinds import canonical
from k8s_rig import SPACE, deployment, document

from marina.k8s.cluster import ApiError, Cluster, Ref, connect


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path) as made:
        made.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        made.controllers.stuck = True
        yield made


@pytest.fixture
def cluster(fake: FakeCluster) -> Cluster:
    return connect(None, fake.kubeconfig)


def owners(fake: FakeCluster, kind: str, name: str) -> dict[str, Any]:
    stored = fake.get(kind, name, SPACE)
    assert stored
    return {entry["manager"]: entry["fieldsV1"] for entry in stored["metadata"]["managedFields"]}


def test_an_apply_owns_the_fields_it_names_and_no_defaults(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.apply(deployment("good:1"))
    fields = owners(fake, "Deployment", "shells")["marina"]
    container = fields["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"server"}']
    assert container["."] == {}
    assert container["f:ports"] == {'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}
    assert "f:replicas" not in fields["f:spec"]
    assert fields["f:metadata"] == {"f:labels": {"f:app.kubernetes.io/instance": {}}}


def test_a_conflict_has_the_message_and_causes_of_a_real_one(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.apply(document("ConfigMap", "one", data={"a": "1"}))
    fake.put(document("ConfigMap", "one", data={"a": "2"}), manager="kubectl-edit")
    with pytest.raises(ApiError) as error:
        cluster.apply(document("ConfigMap", "one", data={"a": "3"}))
    assert error.value.status == 409
    said = 'Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: .data.a'
    assert error.value.message == f"ConfigMap one: {said}"
    assert error.value.causes == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl-edit" using v1', "field": ".data.a"}
    ]


def test_a_shared_value_is_removed_when_its_last_owner_drops_it(fake: FakeCluster, cluster: Cluster) -> None:
    configmap = document("ConfigMap", "one", data={"a": "1"})
    cluster.apply(configmap)
    cluster.apply(configmap, manager="other")
    cluster.apply(document("ConfigMap", "one"), manager="marina")
    stored = fake.get("ConfigMap", "one", SPACE)
    assert stored
    assert stored["data"] == {"a": "1"}
    cluster.apply(document("ConfigMap", "one"), manager="other")
    stored = fake.get("ConfigMap", "one", SPACE)
    assert stored
    assert not stored.get("data")


def test_a_quantity_in_another_spelling_is_a_conflict_for_a_second_manager_as_on_a_real_server(
    cluster: Cluster,
) -> None:
    cluster.apply(deployment("good:1"))
    with pytest.raises(ApiError) as error:
        cluster.apply(deployment("good:1"), manager="kubectl")
    assert [conflict.field.rpartition("]")[2] for conflict in error.value.conflicts] == [
        ".resources.limits.cpu",
        ".resources.limits.memory",
    ]
    canonical_form = {"resources": {"limits": {"cpu": "2", "memory": "2Gi"}}}
    cluster.apply(deployment("good:1", **canonical_form), manager="kubectl")


def test_applying_the_same_again_writes_nothing(cluster: Cluster) -> None:
    first = cluster.apply(deployment("good:1")).document["metadata"]
    again = cluster.apply(deployment("good:1")).document["metadata"]
    assert first == again


def test_a_dry_run_shows_the_result_and_stores_nothing(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.apply(deployment("good:1"))
    before = fake.versions()
    tried = cluster.apply(deployment("good:2"), dry_run=True).document
    assert tried["spec"]["template"]["spec"]["containers"][0]["image"].startswith("good:2")
    assert fake.versions() == before


def test_a_change_through_scale_is_a_conflict_that_names_the_subresource(fake: FakeCluster, cluster: Cluster) -> None:
    cluster.apply(deployment("good:1", replicas=2))
    fake.scale(SPACE, "shells", 5)
    with pytest.raises(ApiError) as error:
        cluster.apply(deployment("good:1", replicas=3))
    said = 'conflict with "kube-controller-manager" with subresource "scale" using apps/v1'
    assert [cause["message"] for cause in error.value.causes] == [said]


def test_a_write_over_an_old_version_is_refused(cluster: Cluster) -> None:
    made = cluster.create(document("ConfigMap", "one", data={"a": "1"}))
    cluster.replace(made | {"data": {"a": "2"}})
    with pytest.raises(ApiError, match="the object has been modified") as error:
        cluster.replace(made | {"data": {"a": "3"}})
    assert error.value.lost_race


def test_owned_objects_are_deleted_with_their_owner(fake: FakeCluster, cluster: Cluster) -> None:
    owner = cluster.create(document("ConfigMap", "one"))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": owner["uid"]}
    owned = document("ConfigMap", "two")
    owned["metadata"]["ownerReferences"] = [reference]
    cluster.create(owned)
    assert cluster.delete(Ref("v1", "ConfigMap", SPACE, "one"), uid=owner["uid"])
    assert fake.names("ConfigMap", SPACE) == []


def test_fields_survive_their_encoding() -> None:
    tree = {"f:spec": {"f:ports": {'k:{"port":1}': {".": {}, "f:port": {}}}, "f:type": {}}}
    assert encode(decode(tree)) == tree


@pytest.mark.parametrize(
    ("given", "stored"),
    [("1000m", "1"), ("0.5", "500m"), ("2048Mi", "2Gi"), ("2304Mi", "2304Mi"), ("1500M", "1500M"), ("1000M", "1G"),
     ("12.5", "12500m"), ("864", "864"), ("1000", "1k"), ("0", "0")],
)  # fmt: skip
def test_quantities_are_spelt_as_the_api_spells_them(given: str, stored: str) -> None:
    assert canonical(given) == stored


@pytest.mark.slow
def test_kubectl_understands_the_fake(fake: FakeCluster, cluster: Cluster) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("`kubectl` is not installed")

    def run(*arguments: str, given: Any = None) -> str:
        command = [kubectl, "--kubeconfig", str(fake.kubeconfig), "-n", SPACE, *arguments]
        text = None if given is None else json.dumps(given)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    cluster.apply(document("ConfigMap", "one", data={"a": "1"}))
    assert "configmap/one" in run("get", "configmap", "one", "-o", "name")
    theirs = document("ConfigMap", "one", data={"a": "2"})
    apply = ("apply", "--server-side", "--validate=false", "-f", "-")
    assert 'Apply failed with 1 conflict: conflict with "marina": .data.a' in run(*apply, given=theirs)
    assert "serverside-applied" in run(*apply, "--force-conflicts", given=theirs)
