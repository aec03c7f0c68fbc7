import functools
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_apiserver import Fault
from fake_apiserver_controllers import KIND
from fake_apiserver_store import key
from k8s_rig import NAME, SHA256, SPACE, Rig, autoscaler, document, documents, rig

from marina.config.errors import ClusterError, Refused
from marina.k8s.cluster import Document
from marina.k8s.rollout.history import Revision
from marina.k8s.rollout.hold import held
from marina.k8s.rollout.inference import CanaryRequest
from marina.k8s.rollout.record import start_record
from marina.k8s.rollout.rollback import load_state
from marina.k8s.rollout.wait import shortfall

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, groups=("keda.sh",)) as made:
        yield made


def test_a_rollback_restores_the_revision_before_and_the_next_rollback_goes_further(cluster: Rig) -> None:
    for number in (1, 2, 3):
        cluster.deploy(*documents(f"good:{number}"))
    record = cluster.rollback()
    assert (record.result, record.revision, record.previous, record.running) == ("rolled back", 2, 3, 2)
    assert cluster.image == "good:2"
    assert cluster.rollback().revision == 1
    assert cluster.rollback(to=3).revision == 3
    assert cluster.image == "good:3"
    with pytest.raises(Refused, match="there is no revision 7 to go back to; kept: `1`, `2`, `3`"):
        cluster.rollback(to=7)
    cluster.fake.store.remove(key(KIND["ConfigMap"], SPACE, f"marina.{NAME}.r2"))
    with pytest.raises(Refused, match="there is no revision 2 to go back to; kept: `1`, `3`"):
        cluster.rollback(to=2)
    assert cluster.deploy(*documents("good:4")).revision == 4


def test_the_running_revision_is_kept_rather_than_those_that_a_rollback_left(cluster: Rig) -> None:
    for number in (1, 2, 3):
        cluster.deploy(*documents(f"good:{number}"))
    cluster.rollback(to=1)
    cluster.deploy(*documents("good:4"))
    assert sorted(cluster.state.good) == [1, 3, 4]
    assert cluster.rollback().revision == 1


def test_a_rollback_sends_the_sample_of_its_own_revision_and_expects_its_package(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.pod.sha256 = "cd" * 32
    newer = CanaryRequest(NAME, b"a bigger shell", "image/webp", "cd" * 32)
    assert cluster.deploy(*documents("good:2"), request=newer).result == "deployed"
    cluster.pod.asked.clear()
    cluster.pod.sha256 = SHA256
    assert cluster.rollback().result == "rolled back"
    assert cluster.pod.asked == [("/predictions/shells", b"a shell", "image/png")]


def test_a_revision_written_over_what_a_killed_deploy_left_has_nothing_of_it(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    theirs = CanaryRequest(NAME, b"of another package", "image/webp", "cd" * 32)
    left = Revision(2, documents("good:left"), {"version": "9", "patched": "all"}, theirs)
    cluster.placement.store.save_revision(left)
    cluster.deploy(*documents("good:2"), request=None)
    stored = cluster.placement.store.read_revision(2)
    assert stored
    assert (stored.request, "patched" in stored.facts) == (None, False)


def test_a_sample_too_large_to_store_is_reported_and_a_rollback_sends_none(cluster: Rig) -> None:
    large = CanaryRequest(NAME, b"x" * 1_000_000, "image/png", SHA256)
    cluster.deploy(*documents("good:1"), request=large)
    assert "note: the sample is too large to store, so a rollback to this revision sends no" in cluster.said.getvalue()
    cluster.deploy(*documents("good:2"))
    cluster.pod.asked.clear()
    assert cluster.rollback().result == "rolled back"
    assert cluster.pod.asked == []
    assert "note: no sample is stored with revision 1" in cluster.said.getvalue()


def test_the_hold_lasts_as_long_as_the_inference_does(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marina.k8s.rollout.hold.EXTEND_S", 0.05)
    until: list[str] = []

    def slowly() -> None:
        begun = cluster.state.until
        while cluster.state.until == begun and len(until) < 600:
            until.append(begun)
            time.sleep(0.05)
        until.append(cluster.state.until)

    cluster.pod.before_answer = slowly
    assert cluster.deploy(*documents()).result == "deployed"
    assert until[-1] > until[0]


def test_a_rollback_takes_nothing_over_from_others_unless_forced(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    cluster.fake.put(document("ConfigMap", data={"a": "theirs"}), manager="kubectl-edit")
    with pytest.raises(Refused, match=r"ConfigMap shells: `\.data\.a` belongs to `kubectl-edit`"):
        cluster.rollback()
    assert (cluster.image, cluster.state.phase) == ("good:2", "deployed")
    assert cluster.rollback(force=True).result == "rolled back"


def test_a_rollback_deletes_what_the_later_revision_added(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2", document("PodDisruptionBudget", spec={"maxUnavailable": 1})))
    assert cluster.rollback().pruned == [f"PodDisruptionBudget {NAME}"]


def test_there_is_nothing_before_the_first_revision(cluster: Rig) -> None:
    with pytest.raises(Refused, match="is not deployed in namespace `sea` of context `fake`"):
        cluster.rollback()
    cluster.deploy(*documents())
    with pytest.raises(Refused, match="there is no revision before this one"):
        cluster.rollback()


def test_a_delete_removes_what_was_applied_and_leaves_the_namespace_and_the_rest(cluster: Rig) -> None:
    cluster.deploy(*documents())
    cluster.fake.put(document("ConfigMap", "theirs", data={"a": "1"}))
    record = cluster.delete()
    assert (record.result, record.running) == ("deleted", 0)
    assert cluster.fake.names("ConfigMap", SPACE) == ["theirs"]
    assert cluster.fake.names("Deployment", SPACE) == cluster.fake.names("Service", SPACE) == []
    assert cluster.fake.get("Namespace", SPACE)
    with pytest.raises(Refused, match="is not deployed"):
        cluster.delete()


def test_the_status_shows_what_runs_and_what_its_autoscaler_wants(cluster: Rig) -> None:
    assert cluster.status().to_data()["phase"] == "absent"
    cluster.deploy(*documents("good:1", autoscaler("inference_requests_per_second")))
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    rate = {"metric": {"name": "inference_requests_per_second"}, "current": {"averageValue": "12300m"}}
    live["status"] = {"currentReplicas": 1, "desiredReplicas": 2, "currentMetrics": [{"type": "Pods", "pods": rate}]}
    cluster.fake.put(live, manager="kube-controller-manager")
    now = cluster.status()
    assert (now.exit_code, now.rollout) == (0, "2 of 2 pods available")
    assert (now.autoscaler, now.scaling_blocked) == ("2 to 9 pods, now 1, wants 2", "")
    assert [(pod.phase, pod.ready) for pod in now.pods] == [("Running", "1/1")] * 2
    assert now.facts["image"] == "good:1"


def test_the_status_says_in_numbers_what_a_rollout_lacks_and_on_which_nodes_its_pods_are(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", replicas=2))
    assert f"created Namespace {SPACE}" in cluster.said.getvalue()
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    live["status"] |= {"availableReplicas": 1, "replicas": 3}
    live["spec"]["minReadySeconds"] = 10
    cluster.fake.put(live, manager="kube-controller-manager")
    lacks = "2 wanted, 2 of this revision, 1 available; 1 of another revision not gone yet"
    assert shortfall(live) == f"{lacks}; a pod counts once it was ready for 10 s"
    pod = cluster.fake.get("Pod", cluster.status().pods[0].name, SPACE)
    assert pod
    pod["spec"]["nodeName"] = "node-a"
    cluster.fake.put(pod, manager="kube-scheduler")
    assert f"{pod['metadata']['name']}  Running on node-a, 1/1 ready" in cluster.status().to_text()


def test_the_status_shows_what_an_autoscaler_cannot_do_and_why(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", autoscaler("inference_requests_per_second")))
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    why = "the HPA was unable to compute the replica count: failed to get cpu utilization"
    inactive = {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric", "message": why}
    rate = {"metric": {"name": "inference_requests_per_second"}, "current": {"averageValue": "0"}}
    undecided = {"currentReplicas": 2, "desiredReplicas": 0, "conditions": [inactive]}
    live["status"] = undecided | {"currentMetrics": [{"type": "Pods", "pods": rate}]}
    cluster.fake.put(live, manager="kube-controller-manager")
    text = cluster.status().to_text()
    assert "autoscaler 2 to 9 pods, now 2, has not decided yet\n" in text
    assert f"\n    it removes no pods, and adds none by metrics that it cannot read: {why}" in text
    cluster.fake.denied = {("list", "horizontalpodautoscalers.autoscaling")}
    assert "autoscaler unknown: list of HorizontalPodAutoscaler: " in cluster.status().to_text()


def test_two_deploys_at_once_are_one_deploy_and_one_refusal_even_if_the_clock_of_one_is_an_hour_late(
    cluster: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.deploy(*documents("good:1"))
    monkeypatch.setattr("marina.k8s.rollout.history.HOLD_S", -3600)
    monkeypatch.setattr("marina.k8s.rollout.hold.EXTEND_S", 0.1)
    monkeypatch.setattr("marina.k8s.rollout.hold._POLL_S", 0.1)
    second: list[Refused] = []

    def meanwhile() -> None:
        with pytest.raises(Refused) as error:
            cluster.deploy(*documents("good:3"))
        second.append(error.value)

    other = threading.Thread(target=meanwhile)

    def begin() -> None:
        if not second:
            other.start()
            other.join()

    # While the first one waits for its pods, its hold is in the cluster.
    placement = cluster.placement
    with held(placement, load_state(placement), start_record("deploy", placement), cluster.progress):
        begin()
    assert second
    assert re.fullmatch(r"`shells` is being changed by \S+ \(\S+\)", second[0].message)
    assert second[0].hint == "marina status spec.yaml; then try again"


def test_the_loser_of_two_deploys_at_the_same_moment_is_told_who_won(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    placement, seen = cluster.placement, load_state(cluster.placement)
    with held(placement, seen, start_record("deploy", placement), cluster.progress) as hold:
        with pytest.raises(Refused) as lost, held(placement, seen, start_record("deploy", placement), cluster.progress):
            pass
        assert lost.value.message == f"`shells` was changed by {hold.state.holder} at the same time"


def test_the_status_shows_what_somebody_deleted(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    assert cluster.status().causes == ()
    cluster.fake.store.remove(key(KIND["Service"], SPACE, NAME))
    cluster.fake.denied = {("get", "namespaces")}
    status = cluster.status()
    assert [str(cause) for cause in status.causes] == ["Service shells: does not exist"]
    assert status.exit_code == 1


def test_a_state_that_cannot_be_read_is_an_error(cluster: Rig) -> None:
    cluster.deploy(*documents())
    sound = json.loads(cluster.state.to_text())
    edited = [sound | change for change in ({"last": None}, {"until": 5}, {"good": ["1"]}, {"good": 1})]
    for text in ("", "null", "5", "{}", *map(json.dumps, edited)):
        cluster.fake.put(document("ConfigMap", "marina.shells", data={"state.json": text}))
        with pytest.raises(ClusterError, match="holds no state that this marina can read") as error:
            cluster.status()
        assert error.value.hint == "kubectl -n sea get configmap marina.shells -o yaml"


def test_a_revision_that_cannot_be_read_is_named_and_can_be_deleted(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.deploy(*documents("good:2"))
    damaged = cluster.fake.get("ConfigMap", f"marina.{NAME}.r1", SPACE)
    assert damaged
    for text in ("{", "null", '{"items": [{}]}'):
        damaged["data"]["manifests.json"] = text
        cluster.fake.put(damaged)
        with pytest.raises(ClusterError, match=r"marina\.shells\.r1` in `sea` holds no revision") as error:
            cluster.rollback()
        assert error.value.hint == "kubectl -n sea delete configmap marina.shells.r1"


def test_an_object_whose_finalizers_never_end_is_not_called_deleted_and_nothing_is_applied_to_it(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    kept = cluster.fake.get("Service", NAME, SPACE)
    assert kept
    kept["metadata"]["finalizers"] = ["example.org/cleanup"]
    cluster.fake.put(kept, "balancer")
    cluster.delete()
    assert "Service shells: is being deleted\n" in cluster.said.getvalue()
    ending = "Service shells: is being deleted, and waits for example.org/cleanup; what is applied now would go with it"
    with pytest.raises(Refused, match=ending):
        cluster.deploy(*documents("good:2"))
    assert cluster.fake.names("Deployment", SPACE) == []


SCALE = "`kubectl -n sea scale deployment shells --replicas 1`"
PAUSE = "`kubectl -n sea annotate --overwrite scaledobject shells autoscaling.keda.sh/paused-replicas=1`"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((), f"is scaled to 0, so nothing serves: {SCALE}"),
        ((autoscaler(),), f"is scaled to 0, so nothing serves: {SCALE}"),
        ((document("ScaledObject", spec={}),), f"is scaled to 0 by KEDA, so nothing serves: {PAUSE}; once it is"),
    ],
    ids=["nothing", "hpa", "keda"],
)
def test_a_deployment_that_is_scaled_to_nothing_is_called_so_and_nothing_is_changed(
    cluster: Rig, more: tuple[Document, ...], text: str
) -> None:
    for number in (1, 2):
        cluster.deploy(*documents(f"good:{number}", *more))
    cluster.fake.scale(SPACE, NAME, 0, "kubectl")
    status, before = cluster.status(), cluster.fake.versions()
    assert status.exit_code == 1
    assert f"  Deployment shells: {text}" in status.to_text()
    for change in (functools.partial(cluster.deploy, *documents("good:3", *more)), cluster.rollback):
        with pytest.raises(Refused) as error:
            change()
        assert error.value.message.startswith(f"nothing was changed:\n  Deployment shells {text}")
    assert cluster.fake.versions() == before
    cluster.fake.scale(SPACE, NAME, 1, "kubectl")
    assert cluster.rollback().result == "rolled back"


def test_a_deployment_that_somebody_scales_to_nothing_during_the_wait_is_called_so(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    scale = functools.partial(cluster.fake.scale, SPACE, NAME, 0, "kubectl")
    cluster.fake.faults.append(Fault("GET", "/pods[?]", act=scale, passes=True))
    record = cluster.deploy(*documents("good:2"), go_back=False)
    assert record.error == f"Deployment shells is scaled to 0, so nothing serves: {SCALE}"


def test_a_deploy_that_is_interrupted_before_it_changes_anything_is_recorded(cluster: Rig) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    cluster.fake.faults.append(Fault("PATCH", "dryRun", act=interrupt, passes=True))
    with pytest.raises(KeyboardInterrupt):
        cluster.deploy(*documents("good:1"))
    assert cluster.record["result"] == "interrupted"
    assert cluster.record["error"].startswith("interrupted at ")


@pytest.mark.parametrize("denied", [{"get", "patch", "create"}, {"patch"}], ids=["not even read", "read"])
def test_a_user_without_rights_on_the_namespace_of_an_administrators_deploy_leaves_it_alone(
    cluster: Rig, denied: set[str]
) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.fake.denied = {(verb, "namespaces") for verb in denied}
    before = cluster.fake.get("Namespace", SPACE)
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert cluster.deploy(*documents("crashing:1")).running == 2
    assert cluster.rollback().result == "rolled back"
    assert cluster.fake.get("Namespace", SPACE) == before
