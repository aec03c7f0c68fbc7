"""Deletes that the cluster refuses: by a missing permission, by a webhook, or by a conflict."""

import pytest
from fake_apiserver_controllers import KIND
from fake_apiserver_world import Fault
from k8s_rig import NAME, SPACE, Rig, documents

from marina.config.errors import ClusterError

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


def test_a_delete_names_all_missing_permissions_before_it_deletes_anything(cluster: Rig) -> None:
    cluster.deploy(*documents())
    before = cluster.fake.versions()
    cluster.fake.denied = {("delete", "services")}
    with pytest.raises(ClusterError) as error:
        cluster.delete()
    assert error.value.message == "permission: you may not delete services in namespace `sea`"
    assert (cluster.fake.versions(), cluster.state.phase) == (before, "deployed")


def test_a_delete_needs_no_permission_that_only_a_deploy_needs(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.denied = {("patch", "deployments.apps"), ("create", "services"), ("get", "pods/log"), ("list", "pods")}
    cluster.fake.denied |= {("get", "pods/portforward"), ("delete", "namespaces")}
    assert cluster.delete().result == "deleted"


def test_an_object_that_stays_after_a_conflict_is_not_called_gone(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.faults.append(Fault("DELETE", f"/services/{NAME}", 409, reason="Conflict"))
    with pytest.raises(ClusterError, match=f"^Service {NAME}: on order of the test$"):
        cluster.delete()
    assert cluster.state.phase == "deleting"
    assert cluster.delete().result == "deleted"
    assert cluster.fake.names("Service", SPACE) == []


def test_a_delete_that_fails_is_called_partly_deleted_and_can_be_finished(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.faults.append(Fault("DELETE", f"/services/{NAME}", 500, times=5))
    with pytest.raises(ClusterError, match=f"^Service {NAME}: on order of the test$"):
        cluster.delete()
    next_step = "marina delete spec.yaml continues, marina rollback spec.yaml goes back to revision 1"
    assert f"the cluster keeps what was applied; {next_step}\n" in cluster.said.getvalue()
    # The Deployment is deleted before the Service.
    assert (cluster.record["running"], cluster.record["next"]) == (0, next_step)
    assert (
        cluster.status()
        .to_text()
        .startswith("shells in sea (context fake): partly deleted: marina delete spec.yaml finishes it")
    )
    assert cluster.delete().result == "deleted"


def test_a_delete_says_at_its_end_what_it_left_because_somebody_took_it_over(cluster: Rig) -> None:
    cluster.deploy(*documents())
    taken = cluster.fake.get("Deployment", NAME, SPACE)
    assert taken
    with cluster.fake.store.lock:
        taken["metadata"]["managedFields"] = []
        cluster.fake.store.put(KIND["Deployment"], taken)
    result = cluster.delete()
    assert result.to_text().endswith(f": 2 objects, but not Deployment {NAME}, which others manage now")
    assert cluster.record["left"] == [f"Deployment {NAME}"]
    assert cluster.fake.names("Deployment", SPACE) == [NAME]
