"""What the verbs say after something went wrong half-way: what the cluster holds, and what to type next."""

import dataclasses
import functools
from pathlib import Path

import pytest
from fake_apiserver_controllers import KIND
from fake_apiserver_store import key
from fake_apiserver_world import Fault
from k8s_rig import NAME, SPACE, Rig, document, documents, rig

from marina.config.errors import ClusterError, Refused
from marina.k8s.rollout.rollback import load_state

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


def test_a_rollback_names_all_missing_permissions_before_it_changes_anything(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    cluster.fake.denied, before = {("delete", "services"), ("patch", "services")}, cluster.fake.versions()
    with pytest.raises(ClusterError, match="you may not delete, patch services in namespace `sea`"):
        cluster.rollback()
    assert cluster.fake.versions() == before


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/version$", "GET /version"),
        ("/apis/apps/v1$", "Deployment of apps/v1"),
        (f"/configmaps/marina.{NAME}$", f"ConfigMap marina.{NAME}"),
    ],
)
def test_an_answer_that_does_not_name_what_was_asked_gets_its_name(cluster: Rig, path: str, named: str) -> None:
    cluster.fake.faults.append(Fault("GET", path, 400, message="etcdserver: request timed out"))
    with pytest.raises(ClusterError, match=f"^{named}: etcdserver: request timed out$"):
        cluster.deploy(*documents())


def test_pods_that_cannot_be_followed_are_named(cluster: Rig) -> None:
    cluster.fake.faults.append(Fault("GET", "/pods[?]", 400, message="etcdserver: too many requests"))
    record = cluster.deploy(*documents("slow:1"))
    assert (record.result, record.error) == ("failed", "list of Pod: etcdserver: too many requests")


def test_a_state_that_somebody_deletes_during_a_deploy_is_named_and_the_next_one_writes_it_again(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    state = key(KIND["ConfigMap"], SPACE, f"marina.{NAME}")
    cluster.pod.before_answer = functools.partial(cluster.fake.store.remove, state)
    with pytest.raises(Refused, match=r"ConfigMap `marina\.shells`, which holds the state of `shells`, was deleted"):
        cluster.deploy(*documents("good:2"))
    cluster.pod.before_answer = None
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert (cluster.state.current, cluster.state.rollback_target()) == (3, 0)


def forget(cluster: Rig, name: str) -> None:
    """Deletes a ConfigMap in the name of somebody else."""
    with cluster.fake.store.lock:
        cluster.fake.store.remove(key(KIND["ConfigMap"], SPACE, name))


def test_if_the_revision_before_is_gone_a_failed_deploy_says_so_and_does_not_suggest_to_delete(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    forget(cluster, f"marina.{NAME}.r2")
    record = cluster.deploy(*documents("crashing:3"))
    assert record.next == "marina deploy spec.yaml once it is fixed, or marina rollback spec.yaml"
    assert "note: revision 2 is not stored any more, so nothing goes back to it" in cluster.said.getvalue()


def test_a_rollback_that_an_api_server_ends_half_way_says_that_nothing_serves_for_sure(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    cluster.fake.faults.append(
        Fault("PATCH", f"deployments/{NAME}[?](?!.*dryRun)", 500, times=5, message="etcdserver: request timed out")
    )
    record = cluster.rollback()
    assert (record.result, record.running) == ("failed", 0)
    assert record.error == "Deployment shells: etcdserver: request timed out"
    assert record.next.endswith("marina rollback spec.yaml --to 1 once it is fixed")
    assert cluster.rollback(to=1).result == "rolled back"


def test_a_deployment_that_somebody_deleted_is_missing_in_the_status(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.store.remove(key(KIND["Deployment"], SPACE, NAME))
    status = cluster.status()
    assert status.exit_code == 1
    assert status.to_text().endswith("\n  Deployment shells: does not exist")


def test_without_a_rollback_the_next_step_keeps_the_revision_that_served(cluster: Rig) -> None:
    first = cluster.deploy(*documents("no-such-image:1"))
    assert first.next == "marina deploy spec.yaml once it is fixed, or marina delete spec.yaml"
    cluster.deploy(*documents("good:1"))
    second = cluster.deploy(*documents("no-such-image:1"), go_back=False)
    assert second.next == "marina deploy spec.yaml once it is fixed, or marina rollback spec.yaml"
    assert cluster.rollback().result == "rolled back"


def test_credentials_that_expire_during_a_deploy_leave_words_about_what_was_applied(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))

    def expire() -> None:
        cluster.fake.faults += [Fault(method, ".", 401, times=1000) for method in ("GET", "PATCH", "PUT", "POST")]

    cluster.fake.faults.append(Fault("PATCH", f"deployments/{NAME}?(?!.*dryRun)", act=expire, passes=True))
    with pytest.raises(ClusterError) as ended:
        cluster.deploy(*documents("good:2"))
    assert str(ended.value.hint).startswith("log in again")
    told = "marina deploy spec.yaml continues, marina rollback spec.yaml goes back to revision 1"
    assert cluster.said.getvalue().endswith(f"the cluster keeps what was applied; {told}\n")
    assert cluster.record["next"] == told


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_state_whose_answer_was_lost_is_not_taken_for_somebody_elses(cluster: Rig, before: int) -> None:
    cluster.deploy(*documents("good:1"))
    written = f"/configmaps/marina.{NAME}"
    cluster.fake.faults += [Fault("PUT", written, passes=True, times=before), Fault("PUT", written, -2)]
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert (cluster.state.current, cluster.state.holder) == (2, "")
    assert [fault.times for fault in cluster.fake.faults] == [0, 0]


def test_a_sample_that_a_busy_api_server_did_not_pass_on_is_sent_again(cluster: Rig) -> None:
    cluster.fake.faults.append(Fault("GET", "/portforward", 503, times=2, message="busy"))
    assert cluster.deploy(*documents()).result == "deployed"
    assert cluster.pod.asked == [("/predictions/shells", b"a shell", "image/png")]


@pytest.mark.parametrize(("status", "most"), [(503, 0.0), (403, 99.0)])
def test_a_sample_that_reaches_no_pod_is_told_with_the_words_of_the_api_server(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, status: int, most: float
) -> None:
    monkeypatch.setattr("marina.k8s.rollout.inference._SETTLED_S", most)
    cluster.fake.faults.append(Fault("GET", "/portforward", status, times=9, message="no port-forwards here"))
    error = cluster.deploy(*documents()).error
    assert error.partition("failed: ")[2].startswith("port-forward to shells-")
    assert error.endswith(": no port-forwards here")


def test_a_dry_run_does_not_call_deployed_what_is_not(cluster: Rig) -> None:
    cluster.deploy(*documents("crashing:1"))
    where = "shells revision {} in sea (context fake)"
    again = cluster.deploy(*documents("crashing:1"), dry_run=True)
    assert again.to_text() == f"would deploy {where.format(2)}: 0 of 3 objects changed, 0 deleted"
    cluster.deploy(*documents("good:2"))
    same = cluster.deploy(*documents("good:2"), dry_run=True)
    assert same.to_text() == f"nothing to do: {where.format(2)} is already deployed"


def test_a_number_of_pods_that_somebody_scaled_to_belongs_to_them(cluster: Rig) -> None:
    cluster.deploy(*documents(replicas=2))
    cluster.fake.scale(SPACE, NAME, 6, "kubectl")
    for dry_run in (True, False):
        with pytest.raises(Refused, match=r"Deployment shells: `.spec.replicas` belongs to `kubectl` through `scale`"):
            cluster.deploy(*documents("good:2", replicas=2), dry_run=dry_run)
    assert cluster.image == "good:1"
    assert cluster.deploy(*documents("good:2", replicas=2), force=True).result == "deployed"


def test_a_number_of_pods_that_somebody_scaled_to_meanwhile_does_not_stop_the_way_back(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", replicas=1))
    scale = functools.partial(cluster.fake.scale, SPACE, NAME, 2, "kubectl")
    cluster.fake.faults.append(Fault("GET", "/pods[?]", act=scale, passes=True))
    assert cluster.deploy(*documents("crashing:2", replicas=1)).running == 1


def test_what_may_help_is_printed_after_why_pods_do_not_come_up(cluster: Rig) -> None:
    cluster.fake.controllers.refused = "exceeded quota: team, requested: cpu=2, used: cpu=3, limited: cpu=4"
    record = cluster.deploy(*documents(), timeout_s=0.5)
    told = (
        f"created: {cluster.fake.controllers.refused}\n      hint: kubectl -n sea describe resourcequota,limitrange\n"
    )
    assert told in record.to_text()
    assert told.replace("      ", "    ").strip() in cluster.status().to_text()


def test_a_deploy_that_was_killed_before_it_wrote_what_it_does_is_finished(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.deploy(*documents())
    cluster.placement.store.save(dataclasses.replace(load_state(cluster.placement), holder="jane@pc (1-a)"))
    monkeypatch.setattr("marina.k8s.rollout.hold.HOLD_S", 0.1)
    monkeypatch.setattr("marina.k8s.rollout.hold._POLL_S", 0.1)
    assert "is being changed by jane@pc" in cluster.status().to_text()
    assert cluster.deploy(*documents()).result == "deployed"
    assert cluster.state.holder == ""


def test_a_rollback_leaves_out_monitoring_that_the_cluster_no_longer_knows(tmp_path: Path) -> None:
    with rig(tmp_path, groups=("monitoring.coreos.com",)) as cluster:
        cluster.deploy(*documents("good:1", document("PodMonitor", spec={})))
        cluster.deploy(*documents("good:2", document("PodMonitor", spec={})))
        cluster.fake.kinds[:] = [kind for kind in cluster.fake.kinds if kind.group != "monitoring.coreos.com"]
        assert cluster.rollback().result == "rolled back"
        assert "note: the cluster does not know `PodMonitor`; left out: shells" in cluster.said.getvalue()
        assert cluster.status().exit_code == 0
        assert cluster.image == "good:1"
