"""What the verbs say after something went wrong half-way: what the cluster holds, and what to type next."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import urllib3
from fake_apiserver_controllers import KIND
from fake_apiserver_store import key
from fake_apiserver_world import Fault
from k8s_rig import NAME, SPACE, Rig, autoscaler, document, documents, rig

from marina.config.errors import ClusterError, Refused
from marina.k8s.cluster import Cluster
from marina.k8s.rollout.rollback import load_state

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


def test_a_dry_run_reads_each_object_once(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.requests.clear()
    cluster.deploy(*documents("good:2"), dry_run=True)
    read = [place.rpartition("/")[2] for method, place in cluster.fake.requests if method == "GET"]
    assert [read.count(name) for name in ("deployments", NAME)] == [0, 3]


def test_a_rollback_names_all_missing_permissions_before_it_changes_anything(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    cluster.fake.denied, before = {("delete", "services"), ("patch", "services")}, cluster.fake.versions()
    with pytest.raises(ClusterError, match="`jane` may not delete, patch services in namespace `sea`") as error:
        cluster.rollback()
    assert " --verb=delete,patch --resource=services\n" in str(error.value.hint)
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


@pytest.mark.parametrize("query", ["(?!.*watch)", ".*watch"])
def test_pods_that_cannot_be_followed_are_named(cluster: Rig, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.k8s.cluster.watch._PATIENCE_S", 0.0)
    cluster.fake.faults.append(Fault("GET", f"/pods[?]{query}", 400, times=99, message="etcdserver: too many requests"))
    record = cluster.deploy(*documents("slow:1"))
    what = "watch" if "?!" not in query else "list"
    assert (record.result, record.error) == ("failed", f"{what} of Pod: etcdserver: too many requests")


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


def test_a_state_that_somebody_deleted_is_found_again_among_the_revisions(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", document("ConfigMap", "first")))
    cluster.deploy(*documents("good:2"))
    forget(cluster, f"marina.{NAME}")
    told = "somebody deleted ConfigMap `marina.shells`, so it is unknown which revision runs"
    assert cluster.status().to_text().splitlines()[-2:] == ["  kept       1, 2", f"  message    {told}"]
    with pytest.raises(Refused, match="no revision before this one to go back to; kept: `1`, `2`") as error:
        cluster.rollback()
    assert error.value.hint == "marina rollback spec.yaml --to N"
    assert cluster.rollback(to=1).result == "rolled back"
    forget(cluster, f"marina.{NAME}")
    assert cluster.deploy(*documents("good:3")).revision == 3
    forget(cluster, f"marina.{NAME}")
    assert cluster.delete().result == "deleted"
    assert cluster.fake.names("ConfigMap", SPACE) == []


def test_if_the_revision_before_is_gone_a_failed_deploy_says_so_and_does_not_suggest_to_delete(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    forget(cluster, f"marina.{NAME}.r2")
    record = cluster.deploy(*documents("crashing:3"))
    assert record.next == "marina deploy spec.yaml once it is fixed, or marina rollback spec.yaml"
    assert "note: revision 2 is not stored any more, so nothing goes back to it" in cluster.said.getvalue()


def test_an_object_that_vanishes_during_the_dry_run_is_created(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    remove = functools.partial(cluster.fake.store.remove, key(KIND["Deployment"], SPACE, NAME))
    cluster.fake.faults.append(Fault("PATCH", f"/deployments/{NAME}.*dryRun", act=remove, passes=True))
    record = cluster.deploy(*documents("good:2"))
    assert [change.action for change in record.changes if change.ref.kind == "Deployment"] == ["create"]


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


@pytest.mark.parametrize(
    ("status", "body"), [(429, "{}"), (429, "Too many requests"), (502, "<html>bad gateway</html>")]
)
def test_what_answers_before_the_pod_does_not_fail_a_deploy(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch, status: int, body: str
) -> None:
    raw = Cluster.raw

    def busy(server: Cluster, method: str, path: str, *rest: Any, **more: Any) -> urllib3.BaseHTTPResponse:
        if method == "POST" and "/proxy/" in path:
            text = body.replace("{}", '{"kind": "Status", "message": "Too many requests"}').encode()
            return urllib3.HTTPResponse(text, status=status)
        return raw(server, method, path, *rest, **more)

    monkeypatch.setattr(Cluster, "raw", busy)
    record = cluster.deploy(*documents())
    assert record.canary
    assert (record.result, record.canary.via.partition(" to ")[0]) == ("deployed", "a port-forward")


@pytest.mark.parametrize("status", [429, 503])
def test_a_sample_that_a_busy_api_server_did_not_pass_on_is_sent_again(cluster: Rig, status: int) -> None:
    cluster.fake.denied = {("create", "pods/portforward"), ("get", "pods/portforward")}
    text = 'no endpoints available for service "shells"'
    cluster.fake.faults.append(Fault("POST", "/services/.*/proxy/", status, times=2, message=text))
    assert cluster.deploy(*documents()).result == "deployed"
    assert cluster.pod.asked == [("/predictions/shells", b"a shell", "image/png")]


def test_a_sample_that_reaches_no_pod_is_told_with_the_words_of_the_api_server(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marina.k8s.rollout.inference._SETTLED_S", 0.0)
    cluster.fake.denied, cluster.fake.proxies = {("create", "pods/portforward"), ("get", "pods/portforward")}, False
    error = cluster.deploy(*documents()).error
    assert "i/o timeout; port-forward to shells-" in error
    assert error.endswith(': pods is forbidden: User "jane" cannot get resource "pods/portforward" in API group "" in '
                          'the namespace "sea"')  # fmt: skip


def test_a_sample_that_may_not_reach_a_pod_by_any_way_is_sent_once(cluster: Rig) -> None:
    # An authorizer that looks at names may allow what it is asked before, and forbid the request.
    asked = Fault("POST", "/services/.*/proxy/", 403, times=2, reason="Forbidden", message="no proxies here")
    forward = Fault("GET", "/portforward", 403, times=99, reason="Forbidden", message="no port-forwards here")
    cluster.fake.faults += [asked, forward]
    error = cluster.deploy(*documents()).error
    assert error.partition("failed: ")[2].startswith("no proxies here; port-forward to shells-")
    assert error.endswith(": no port-forwards here")
    assert asked.times == 1


def test_a_dry_run_does_not_call_deployed_what_is_not(cluster: Rig) -> None:
    cluster.deploy(*documents("crashing:1"))
    where = "shells revision {} in sea (context fake)"
    again = cluster.deploy(*documents("crashing:1"), dry_run=True)
    assert again.to_text() == f"would deploy {where.format(2)}: 0 of 4 objects changed, 0 deleted"
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
    cluster.fake.faults.append(Fault("GET", "/pods[?].*watch", act=scale, passes=True))
    assert cluster.deploy(*documents("crashing:2", replicas=1)).running == 1


def test_a_removed_autoscaler_is_deleted_once_and_then_not_called_gone(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", autoscaler()))
    cluster.deploy(*documents("good:1", replicas=2))
    told = [line for line in cluster.said.getvalue().splitlines() if "HorizontalPodAutoscaler" in line]
    assert told == [f"  HorizontalPodAutoscaler {NAME}: {word}" for word in ("created", "deleted")]


def test_what_may_help_is_printed_after_why_pods_do_not_come_up(cluster: Rig) -> None:
    cluster.fake.controllers.refused = "exceeded quota: team, requested: cpu=2, used: cpu=3, limited: cpu=4"
    record = cluster.deploy(*documents(), timeout_s=0.5)
    told = f"admitted: {cluster.fake.controllers.refused}\n      hint: kubectl -n sea describe resourcequota\n"
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
