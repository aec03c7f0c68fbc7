"""Deletes that the cluster refuses: by a missing permission, by a webhook, or by a conflict."""

import functools
from typing import Any

import pytest
from fake_apiserver_controllers import KIND
from fake_apiserver_world import Fault
from k8s_rig import NAME, SPACE, Rig, document, documents

from marina.config.errors import ClusterError, Refused

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow

DENIED = "admission webhook denied the request: shells are protected"


@pytest.mark.parametrize(
    ("with_namespace", "missing"),
    [(False, "delete services"), (True, "delete namespaces; delete services")],
    ids=["objects", "namespace too"],
)
def test_a_delete_names_all_missing_permissions_before_it_deletes_anything(
    cluster: Rig, with_namespace: bool, missing: str
) -> None:
    cluster.deploy(*documents())
    before = cluster.fake.versions()
    cluster.fake.denied = {("delete", "services"), ("delete", "namespaces")}
    with pytest.raises(ClusterError) as error:
        cluster.delete(with_namespace=with_namespace)
    assert error.value.message == f"permission: `jane` may not {missing} in namespace `sea`"
    assert "services\n      kubectl -n sea create rolebinding marina-deployer-" in str(error.value.hint)
    assert (cluster.fake.versions(), cluster.state.phase) == (before, "deployed")


def test_a_delete_needs_no_permission_that_only_a_deploy_needs(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.denied = {("patch", "deployments.apps"), ("create", "services"), ("get", "pods/log"), ("list", "pods")}
    cluster.fake.denied |= {("create", "services/proxy"), ("get", "pods/portforward"), ("delete", "namespaces")}
    assert cluster.delete().result == "deleted"


def test_a_deletion_that_a_webhook_refuses_is_refused_before_anything_is_changed(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", document("PodDisruptionBudget", spec={"maxUnavailable": 1})))
    before = cluster.fake.versions()
    denied = Fault("DELETE", "/poddisruptionbudgets/", 403, times=2, reason="Forbidden", message=DENIED)
    cluster.fake.faults.append(denied)
    for change in (cluster.delete, functools.partial(cluster.deploy, *documents("good:2"))):
        with pytest.raises(Refused, match=f"^nothing was changed:\n  PodDisruptionBudget {NAME}: {DENIED}$"):
            change()
    assert (cluster.fake.versions(), denied.times) == (before, 0)


def test_a_webhook_that_knows_no_dry_run_does_not_prevent_a_delete(cluster: Rig) -> None:
    cluster.deploy(*documents())
    text = 'admission webhook "guard.example.org" does not support dry run'
    cluster.fake.faults.append(Fault("DELETE", f"/services/{NAME}", 400, message=text))
    assert cluster.delete().result == "deleted"


def test_an_object_that_stays_after_a_conflict_is_not_called_gone(cluster: Rig) -> None:
    cluster.deploy(*documents())
    refuse_deletion(cluster, f"/services/{NAME}", 409, reason="Conflict")
    with pytest.raises(ClusterError, match=f"^Service {NAME}: on order of the test$"):
        cluster.delete()
    assert cluster.state.phase == "deleting"
    assert cluster.delete().result == "deleted"
    assert cluster.fake.names("Service", SPACE) == []


def refuse_deletion(cluster: Rig, path: str, *fault: Any, **more: Any) -> None:
    """Gives the deletion of an object a fault, but not its dry run."""
    cluster.fake.faults += [Fault("DELETE", path, passes=True), Fault("DELETE", path, *fault, **more)]


def test_a_delete_that_fails_is_called_partly_deleted_and_can_be_finished(cluster: Rig) -> None:
    cluster.deploy(*documents())
    refuse_deletion(cluster, f"/services/{NAME}", 500, times=5)
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


def test_a_delete_that_may_not_delete_the_namespace_can_be_finished_or_undone(cluster: Rig) -> None:
    cluster.deploy(*documents())
    refuse_deletion(cluster, f"/namespaces/{SPACE}$", 403)
    with pytest.raises(ClusterError, match=f"^Namespace {SPACE}: on order of the test$"):
        cluster.delete(with_namespace=True)
    next_step = "marina delete spec.yaml --with-namespace continues, marina rollback spec.yaml goes back to revision 1"
    assert cluster.record["next"] == next_step
    assert cluster.rollback().result == "rolled back"
    assert cluster.delete().result == "deleted"


def test_a_delete_that_loses_its_permissions_with_the_namespace_is_finished(cluster: Rig) -> None:
    cluster.deploy(*documents())

    def lose() -> None:
        cluster.fake.denied = {("list", "configmaps"), ("get", "configmaps"), ("delete", "configmaps")}

    refuse_deletion(cluster, f"/namespaces/{SPACE}$", act=lose, passes=True)
    assert cluster.delete(with_namespace=True).result == "deleted"
    assert cluster.fake.names("Namespace", "") == ["default"]


def test_an_object_that_somebody_else_is_deleting_is_not_called_gone(cluster: Rig) -> None:
    cluster.deploy(*documents())
    ending = cluster.fake.get("Service", NAME, SPACE)
    assert ending
    ending["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.org/cleanup"]}
    cluster.fake.put(ending, "balancer")
    # So a server answers for a Namespace whose content is being deleted.
    cluster.fake.faults.append(Fault("DELETE", f"/services/{NAME}", 409, times=2, reason="Conflict"))
    cluster.delete()
    assert f"Service {NAME}: is being deleted, and waits for example.org/cleanup\n" in cluster.said.getvalue()


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
