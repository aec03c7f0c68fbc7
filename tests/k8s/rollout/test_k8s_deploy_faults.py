"""Errors, broken connections and missing permissions of an API server, and what its webhooks change or refuse."""

import itertools
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from fake_apiserver import Fault
from k8s_rig import NAME, SPACE, Rig, autoscaler, document, documents, put_prometheus, rig

from marina.config.errors import ClusterError, InputError, Refused
from marina.k8s.cluster import Cluster, Document, Ref, connect

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before retries, in seconds; they are recorded instead of waited."""
    waited: list[float] = []
    before = Cluster.__init__

    def patient(self: Cluster, *arguments: Any, **_: object) -> None:
        before(self, *arguments, pause=waited.append)

    monkeypatch.setattr(Cluster, "__init__", patient)
    return waited


PASSING = [
    pytest.param(
        Fault("PATCH", "/configmaps/shells", 429, reason="TooManyRequests", headers={"Retry-After": "3"}), [3.0]
    ),
    pytest.param(Fault("PATCH", "/configmaps/shells", 500, reason="InternalError", times=2), [0.2, 0.4]),
    pytest.param(Fault("GET", "/apis/apps/v1$", 503, reason="ServiceUnavailable"), [0.2]),
    pytest.param(Fault("GET", "/version", 0), [0.2]),
    pytest.param(Fault("PATCH", "/deployments/shells", 0), [0.2]),
    pytest.param(Fault("PATCH", "/deployments/shells", 0, times=9), [0.2, 0.4, 0.8, 1.6, 2, 2, 2, 2, 2]),
    pytest.param(Fault("PATCH", "/deployments/shells", 409, reason="Conflict"), [0.2]),
]


@pytest.mark.parametrize(("fault", "waited"), PASSING, ids=lambda value: getattr(value, "path", None))
def test_transient_errors_are_retried(cluster: Rig, pauses: list[float], fault: Fault, waited: list[float]) -> None:
    fault.times = max(fault.times, 1)
    cluster.fake.faults.append(Fault(**vars(fault)))
    assert cluster.deploy(*documents()).result == "deployed"
    if fault.path != "/apis/apps/v1$":
        assert pauses == pytest.approx(waited)


def test_lasting_errors_end_the_deploy_and_the_revision_before_is_restored(cluster: Rig, pauses: list[float]) -> None:
    cluster.deploy(*documents("good:1"))
    fault = Fault(
        "PATCH", "/services/shells[?](?!.*dryRun)", 500, times=5, reason="InternalError", message="etcd is full"
    )
    cluster.fake.faults.append(fault)
    record = cluster.deploy(*documents("good:2"))
    assert (record.result, record.error) == ("failed", "Service shells: etcd is full")
    assert len(pauses) == 4
    assert record.back
    assert record.back.result == "rolled back"


@pytest.mark.usefixtures("pauses")
def test_an_error_while_going_back_does_not_hide_why_the_deploy_failed(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    unread = Fault("GET", f"/configmaps/marina.{NAME}.r1$", 500, times=5, message="no etcd")
    cluster.pod.before_answer = lambda: cluster.fake.faults.append(unread)
    cluster.pod.status = 500
    with pytest.raises(ClusterError, match=r"revision 2 failed: .* inference .*; going back failed: .*: no etcd"):
        cluster.deploy(*documents("good:2"))
    assert "inference of the sample failed" in cluster.state.message
    assert cluster.record["error"].endswith("going back failed: ConfigMap marina.shells.r1: no etcd")


def test_old_revisions_that_cannot_be_listed_do_not_make_a_deploy_fail_that_serves(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    listed = "configmaps[?]labelSelector"
    cluster.fake.faults += [Fault("GET", listed, passes=True, times=3), Fault("GET", listed, 403, reason="Forbidden")]
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert "note: revisions that are not kept stay until the next deploy" in cluster.said.getvalue()


def test_a_refusal_of_the_schema_is_not_retried_and_nothing_is_changed(cluster: Rig, pauses: list[float]) -> None:
    wanted = (*documents(), document("ConfigMap", "odd", spel="1"))
    cluster.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    with pytest.raises(Exception, match=r"ConfigMap odd: failed to create typed patch object .* field not declared"):
        cluster.deploy(*wanted)
    assert pauses == []
    assert cluster.fake.names("Deployment", SPACE) == []


def test_missing_permissions_are_reported_before_any_change_with_a_command_that_grants_them(cluster: Rig) -> None:
    cluster.fake.denied = {("patch", "deployments.apps"), ("create", "deployments.apps"), ("get", "pods/log")}
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*documents())
    told = "permission: you may not create, patch deployments.apps; get pods/log in namespace `sea`"
    assert error.value.message == told
    grant = "kubectl --context ADMIN -n sea create rolebinding marina --clusterrole=edit --user=USER"
    assert f"`{grant}`, which grants most" in (error.value.hint or "")
    assert not [request for request in cluster.fake.requests if request[0] == "PATCH"]


def test_everything_that_is_missing_is_reported_at_once(cluster: Rig) -> None:
    cluster.fake.metrics_groups = []
    cluster.fake.denied = {("list", "events")}
    rolling = list(
        documents("good:1", autoscaler("rate"), document("ScaledObject", spec={}), document("PodMonitor", spec={}))
    )
    rolling[3]["spec"]["template"]["spec"]["containers"][0]["image"] = "good:latest"
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*rolling)
    assert error.value.message.splitlines() == [
        "kind: the cluster does not know `ScaledObject` of `keda.sh/v1alpha1`",
        "image: container `server`: `good:latest` has no digest, so the image behind the tag can change",
        "custom-metrics: the autoscaler cannot read the request rate: the cluster has no `custom.metrics.k8s.io`",
        "resource-metrics: the autoscaler cannot read the cpu usage: the cluster has no `metrics.k8s.io`",
        "permission: you may not list events in namespace `sea`",
    ]
    assert "`--accept custom-metrics` deploys anyway" in str(error.value.hint)
    assert "PodMonitor" in cluster.said.getvalue()


def test_an_accepted_blocker_is_reported_and_ignored(cluster: Rig) -> None:
    cluster.fake.metrics_groups = ["metrics.k8s.io"]
    record = cluster.deploy(*documents("good:1", autoscaler("rate")), accepted=["custom-metrics"])
    assert record.result == "deployed"
    assert "accepted: the autoscaler cannot read the request rate" in cluster.said.getvalue()


def test_monitoring_kinds_that_the_cluster_does_not_know_are_left_out_with_a_note(cluster: Rig) -> None:
    record = cluster.deploy(*documents("good:1", document("PodMonitor", spec={})))
    assert record.result == "deployed"
    assert record.site["skipped"] == [f"PodMonitor {NAME}"]
    said = "note: the cluster does not know `PodMonitor`; left out: shells; no metrics are collected"
    assert said in cluster.said.getvalue()


def test_labels_that_no_prometheus_selects_are_reported_before_any_change(tmp_path: Path) -> None:
    with rig(tmp_path, groups=("monitoring.coreos.com",)) as watched:
        put_prometheus(watched.fake)
        monitor = document("PodMonitor", spec={})
        told = "no Prometheus selects PodMonitor shells: `monitoring/k8s` selects `release=stack`; "
        noted = [told + "see `kubernetes.monitoring.labels`"]
        assert watched.deploy(*documents("good:1", monitor)).site["notes"] == noted
        monitor["metadata"]["labels"] = {**monitor["metadata"]["labels"], "release": "stack"}
        assert watched.deploy(*documents("good:1", monitor)).site["notes"] == []


def test_a_namespace_that_is_being_deleted_or_missing_is_reported(cluster: Rig) -> None:
    without = [manifest for manifest in documents() if manifest["kind"] != "Namespace"]
    with pytest.raises(ClusterError, match="namespace: `sea` does not exist, and the spec does not create it"):
        cluster.deploy(*without)
    going = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}, "status": {"phase": "Terminating"}}
    cluster.fake.put(going)
    with pytest.raises(ClusterError, match="namespace: `sea` is being deleted"):
        cluster.deploy(*without)


def test_a_missing_namespace_that_the_caller_may_not_read_is_named_with_what_an_administrator_types(
    cluster: Rig,
) -> None:
    cluster.fake.denied = {("get", "namespaces"), ("create", "namespaces")}
    cluster.fake.faults.append(
        Fault("PATCH", f"/namespaces/{SPACE}/", 404, reason="NotFound", message=f'namespaces "{SPACE}" not found')
    )
    with pytest.raises(Refused) as error:
        cluster.deploy(*(manifest for manifest in documents() if manifest["kind"] != "Namespace"), dry_run=True)
    assert f'namespaces "{SPACE}" not found' in error.value.message
    assert f"`kubectl --context ADMIN create namespace {SPACE}`" in (error.value.hint or "")


@pytest.mark.usefixtures("pauses")
def test_a_cluster_that_does_not_answer_is_named_with_its_context(cluster: Rig) -> None:
    cluster.fake.kubeconfig.write_text(cluster.fake.kubeconfig.read_text().replace(f":{cluster.fake.port}", ":9"))
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*documents())
    assert error.value.message == "https://127.0.0.1:9 (context `fake`): it refuses the connection"


def test_refused_credentials_and_unknown_contexts_are_reported(cluster: Rig) -> None:
    with pytest.raises(InputError, match="`--context`: got `prod`, allowed: `fake`, `other`"):
        connect("prod", cluster.fake.kubeconfig)
    cluster.fake.kubeconfig.write_text(cluster.fake.kubeconfig.read_text().replace("a-token-for-tests", "an-old-token"))
    with pytest.raises(ClusterError, match="Unauthorized") as error:
        cluster.deploy(*documents())
    assert (
        error.value.hint
        == "log in again: the cluster does not accept this context's credentials; they may have expired"
    )


def test_a_wrong_certificate_is_reported_and_not_retried(cluster: Rig, pauses: list[float]) -> None:
    text = re.sub(r"certificate-authority-data: \S+", "", cluster.fake.kubeconfig.read_text())
    cluster.fake.kubeconfig.write_text(text)
    with pytest.raises(ClusterError, match="its certificate is not accepted"):
        cluster.deploy(*documents())
    assert pauses == []


def test_a_kubeconfig_without_certificate_checks_gets_one_warning(
    cluster: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(
        r"certificate-authority-data: \S+", "insecure-skip-tls-verify: true", cluster.fake.kubeconfig.read_text()
    )
    cluster.fake.kubeconfig.write_text(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cluster.deploy(*documents()).result == "deployed"
    assert not [each for each in caught if issubclass(each.category, urllib3.exceptions.InsecureRequestWarning)]
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("warning:")] == [
        "warning: context `fake` does not check the server's certificate, so anybody on the network path can read and "
        "change everything; set `certificate-authority-data` instead of `insecure-skip-tls-verify`"
    ]


def test_warnings_of_the_server_are_shown(cluster: Rig) -> None:
    cluster.fake.warnings["deployments"] = 'would violate PodSecurity \\"restricted:latest\\"'
    record = cluster.deploy(*documents())
    assert [change.warnings for change in record.changes if change.ref.kind == "Deployment"] == [
        ('would violate PodSecurity "restricted:latest"',)
    ]


def test_an_object_is_deleted_only_if_it_is_still_the_same_one(cluster: Rig) -> None:
    cluster.deploy(*documents())
    connected = connect(None, cluster.fake.kubeconfig)
    assert not connected.delete(Ref("v1", "ConfigMap", SPACE, NAME), uid="another")
    assert NAME in cluster.fake.names("ConfigMap", SPACE)


def test_a_missing_controller_is_not_mistaken_for_progress(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.deploy(*documents("good:1"))
    monkeypatch.setattr("marina.k8s.rollout.wait._NOTICED_S", 0.2)
    cluster.fake.controllers.stuck = True
    begun = time.monotonic()
    record = cluster.deploy(*documents("good:2"), go_back=False)
    assert record.error == "no controller noticed the change within 0.2 s: is one running?"
    assert time.monotonic() - begun < 30


def stamp(numbers: Iterator[int]) -> Any:
    """A webhook that writes a new annotation at each request, also into the template of pods."""

    def admit(document: Document) -> None:
        if document["kind"] != "Namespace":
            document["metadata"].setdefault("annotations", {})["stamp"] = str(next(numbers))
        if document["kind"] == "Deployment":
            annotations = document["spec"]["template"]["metadata"].setdefault("annotations", {})
            annotations["stamp"] = str(next(numbers))

    return admit


def test_a_webhook_that_writes_something_new_at_each_request_makes_no_new_revision(cluster: Rig) -> None:
    cluster.fake.admit = stamp(itertools.count())
    cluster.deploy(*documents("good:1", autoscaler("rate")))
    before = cluster.fake.versions()
    assert cluster.deploy(*documents("good:1", autoscaler("rate")), dry_run=True).revision == 1
    assert cluster.deploy(*documents("good:1", autoscaler("rate"))).result == "unchanged"
    assert cluster.fake.versions() == before
    changed = cluster.deploy(*documents("good:2", autoscaler("rate")))
    assert (changed.result, changed.revision, cluster.image) == ("deployed", 2, "good:2")


def test_an_image_whose_registry_a_webhook_replaces_is_not_called_changed(cluster: Rig) -> None:
    def mirrored(document: Document) -> None:
        for container in document["spec"]["template"]["spec"]["containers"] if document["kind"] == "Deployment" else []:
            container["image"] = "mirror.local/" + container["image"].removeprefix("mirror.local/")

    cluster.fake.admit = mirrored
    cluster.deploy(*documents("good:1"))
    assert (cluster.image, cluster.status().causes) == ("mirror.local/good:1", ())
    assert cluster.deploy(*documents("good:1")).result == "unchanged"


def test_a_revision_that_a_quota_or_a_webhook_refuses_to_store_changes_nothing(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    quota = "exceeded quota: team, requested: count/configmaps=1, used: 4, limited: 4"
    cluster.fake.faults.append(Fault("POST", "/configmaps", 403, reason="Forbidden", message=quota))
    with pytest.raises(ClusterError, match=f"^ConfigMap marina.shells.r2: {quota}$"):
        cluster.deploy(*documents("good:2"))
    assert (cluster.status().exit_code, cluster.state.current, cluster.image) == (0, 1, "good:1")
    assert (cluster.record["running"], cluster.record["next"]) == (1, "")
    assert cluster.deploy(*documents("good:2")).revision == 2


def test_a_first_revision_that_could_not_be_stored_has_no_number(cluster: Rig) -> None:
    # The first ConfigMap is the state, the second the revision.
    quota = Fault("POST", "/configmaps", 403, reason="Forbidden", message="exceeded quota: team")
    cluster.fake.faults += [Fault("POST", "/configmaps", passes=True), quota]
    with pytest.raises(ClusterError, match="exceeded quota"):
        cluster.deploy(*documents("good:1"))
    assert ": the first revision failed\n" in cluster.status().to_text()


def test_a_field_that_marina_applies_no_longer_is_a_change(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    without = [*documents("good:1")]
    del without[3]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert cluster.deploy(*without).revision == 2
