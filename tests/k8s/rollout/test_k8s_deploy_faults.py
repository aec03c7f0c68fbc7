"""Errors, broken connections and missing permissions of an API server, and changes by others at the same time."""

import re
import shlex
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3
from fake_apiserver import Fault
from k8s_rig import NAME, SPACE, Rig, autoscaler, document, documents, put_surroundings, rig

import marina.k8s.cluster.watch
from marina.config.errors import ClusterError, InputError
from marina.k8s.cluster import Mirror, Ref, connect, grant_commands
from marina.k8s.cluster.transport import Transport

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before retries, in seconds; they are recorded instead of waited."""
    waited: list[float] = []
    before = Transport.__init__

    def patient(self: Transport, *arguments: object, **_: object) -> None:
        before(self, *arguments, pause=waited.append)  # type: ignore[arg-type]

    monkeypatch.setattr(Transport, "__init__", patient)
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
def test_pods_that_serve_are_not_rolled_back_because_the_last_report_cannot_be_read(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    events = "/events[?](?!.*watch)"
    cluster.fake.faults += [Fault("GET", events, passes=True), Fault("GET", events, 500, times=5)]
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert [fault.times for fault in cluster.fake.faults] == [0, 0]


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


def test_a_stream_that_a_proxy_garbles_does_not_end_the_watch(cluster: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, garbled = marina.k8s.cluster.watch._lines, [{"type": "ERROR", "object": "bad gateway"}]

    def garbling(response: urllib3.BaseHTTPResponse) -> Iterator[Mapping[str, Any]]:
        while garbled:
            yield garbled.pop()
        yield from lines(response)

    monkeypatch.setattr("marina.k8s.cluster.watch._lines", garbling)
    fake, changed = cluster.fake, threading.Event()
    with Mirror(connect(None, fake.kubeconfig), "v1", "ConfigMap", "default", changed) as mirror:
        while garbled:
            changed.wait(0.01)
        fake.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}})
        while not mirror.objects:
            changed.clear()
            assert mirror.objects or changed.wait(10)


def test_old_revisions_that_cannot_be_listed_do_not_make_a_deploy_fail_that_serves(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.fake.faults.append(Fault("GET", "configmaps[?]labelSelector", 403, reason="Forbidden"))
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert "note: revisions that are not kept stay until the next deploy" in cluster.said.getvalue()


def test_a_refusal_of_the_schema_is_not_retried_and_nothing_is_changed(cluster: Rig, pauses: list[float]) -> None:
    wanted = (*documents(), document("ConfigMap", "odd", spel="1"))
    cluster.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    with pytest.raises(Exception, match=r"ConfigMap odd: failed to create typed patch object .* field not declared"):
        cluster.deploy(*wanted)
    assert pauses == []
    assert cluster.fake.names("Deployment", SPACE) == []


def test_a_watch_whose_version_expired_is_restarted(cluster: Rig) -> None:
    fake, changed = cluster.fake, threading.Event()

    def missed() -> None:
        fake.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}})
        fake.store.compact()

    # The connection breaks, an object changes meanwhile, and the history with that change expires.
    fake.faults.append(Fault("GET", "/configmaps.*watch=true", act=missed))
    with Mirror(connect(None, fake.kubeconfig), "v1", "ConfigMap", "default", changed) as mirror:
        assert mirror.objects == []
        while not mirror.objects:
            changed.clear()
            assert mirror.objects or changed.wait(10)
        assert [mirrored["metadata"]["name"] for mirrored in mirror.objects] == ["late"]
    lists = [path for method, path in fake.requests if method == "GET" and re.search("/configmaps(?!.*watch)", path)]
    assert len(lists) == 2


@pytest.mark.parametrize("status", [0, 410, 500])
def test_a_broken_watch_is_restarted(cluster: Rig, status: int) -> None:
    cluster.fake.faults.append(Fault("GET", "watch=true", status, times=4, reason="Expired"))
    assert cluster.deploy(*documents("slow:1")).result == "deployed"


def test_missing_permissions_are_reported_before_any_change_with_the_commands_that_grant_them(cluster: Rig) -> None:
    cluster.fake.denied = {("patch", "deployments.apps"), ("create", "deployments.apps"), ("get", "pods/log")}
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*documents())
    told = "permission: `jane` may not create, patch deployments.apps; get pods/log in namespace `sea`"
    assert error.value.message == told
    _, *commands = (error.value.hint or "").splitlines()
    roles = [command.split()[5] for command in commands[::2]]
    granted = ("create,patch --resource=deployments.apps", "get --resource=pods/log")
    assert commands[::2] == [f"      kubectl -n sea create role {name} --verb={verbs}"
                             for name, verbs in zip(roles, granted, strict=True)]  # fmt: skip
    bind = "      kubectl -n sea create rolebinding {0} --role={0} --user=jane"
    assert commands[1::2] == list(map(bind.format, roles))
    # kubectl creates no role twice, so what was granted before has other names.
    role, binding = map(shlex.split, grant_commands("jane d'arc", {("pods/log", "get")}, "sea").splitlines()[1:])
    assert binding[5:] == [role[5], f"--role={role[5]}", "--user=jane d'arc"]
    assert len({*roles, role[5], "marina-deployer"}) == 4
    assert not [request for request in cluster.fake.requests if request[0] == "PATCH"]


def test_one_of_two_ways_to_send_the_inference_is_enough(cluster: Rig) -> None:
    cluster.fake.denied = {("create", "services/proxy"), ("get", "pods/proxy")}
    record = cluster.deploy(*documents())
    assert record.canary
    assert record.canary.via.startswith("a port-forward")


def test_everything_that_is_missing_is_reported_at_once(cluster: Rig) -> None:
    cluster.fake.metrics_groups = []
    cluster.fake.minor = "29+"
    cluster.fake.denied = {("list", "events")}
    rolling = list(
        documents("good:1", autoscaler("rate"), document("ScaledObject", spec={}), document("PodMonitor", spec={}))
    )
    rolling[3]["spec"]["template"]["spec"]["containers"][0]["image"] = "good:latest"
    with pytest.raises(ClusterError) as error:
        cluster.deploy(*rolling)
    assert error.value.message.splitlines() == [
        "kind: the cluster does not know `ScaledObject` of `keda.sh/v1alpha1`",
        "version: the cluster runs Kubernetes v1.29.2, supported: 1.30 to 1.37",
        "image: container `server`: `good:latest` has no digest, so the image behind the tag can change",
        "custom-metrics: the autoscaler cannot read the request rate: the cluster has no `custom.metrics.k8s.io`",
        "resource-metrics: the autoscaler cannot read the cpu usage: the cluster has no `metrics.k8s.io`",
        "permission: `jane` may not list events in namespace `sea`",
    ]
    assert "`--accept custom-metrics` deploys anyway" in str(error.value.hint)
    assert "PodMonitor" in cluster.said.getvalue()


def test_an_accepted_blocker_is_reported_and_ignored(cluster: Rig) -> None:
    cluster.fake.metrics_groups = ["metrics.k8s.io"]
    record = cluster.deploy(*documents("good:1", autoscaler("rate")), accepted=["custom-metrics"])
    assert record.result == "deployed"
    assert "accepted: the autoscaler cannot read the request rate" in cluster.said.getvalue()


def test_an_autoscaler_gets_no_forecast_if_its_missing_api_is_accepted(cluster: Rig) -> None:
    scaler = autoscaler("rate")
    expected = {"metric": {"name": "expected"}, "target": {"type": "AverageValue", "averageValue": "41"}}
    scaler["spec"]["metrics"].append({"type": "External", "external": expected})
    with pytest.raises(ClusterError, match="external-metrics: the autoscaler cannot read the forecast"):
        cluster.deploy(*documents("good:1", scaler))
    assert cluster.deploy(*documents("good:1", scaler), accepted=["external-metrics"]).result == "deployed"
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    assert [metric["type"] for metric in live["spec"]["metrics"]] == ["Resource", "Pods"]
    cluster.fake.metrics_groups.append("external.metrics.k8s.io")
    assert cluster.deploy(*documents("good:1", scaler)).result == "deployed"


def test_an_autoscaler_gets_no_cpu_metric_if_its_missing_api_is_accepted(cluster: Rig) -> None:
    cluster.fake.metrics_groups = ["custom.metrics.k8s.io"]
    wanted = documents("good:1", autoscaler("rate"))
    assert cluster.deploy(*wanted, accepted=["resource-metrics"]).result == "deployed"
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    assert [metric["type"] for metric in live["spec"]["metrics"]] == ["Pods"]
    # Once somebody installs the API, the next deploy adds the metric.
    cluster.fake.metrics_groups.append("metrics.k8s.io")
    assert cluster.deploy(*wanted).result == "deployed"
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    assert [metric["type"] for metric in live["spec"]["metrics"]] == ["Resource", "Pods"]


def test_monitoring_kinds_that_the_cluster_does_not_know_are_left_out_with_a_note(cluster: Rig) -> None:
    record = cluster.deploy(*documents("good:1", document("PodMonitor", spec={})))
    assert record.result == "deployed"
    assert record.site["skipped"] == [f"PodMonitor {NAME}"]
    said = "note: the cluster does not know `PodMonitor`; left out: shells; no metrics are collected"
    assert said in cluster.said.getvalue()


def test_capacity_limits_and_prometheus_selectors_are_reported_before_any_change(tmp_path: Path) -> None:
    with rig(tmp_path, groups=("monitoring.coreos.com",)) as watched:
        watched.fake.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        put_surroundings(watched.fake, SPACE)
        monitor = document("PodMonitor", spec={})
        notes = watched.deploy(*documents("good:1", monitor)).site["notes"]
        assert notes == [
            "2 nodes offer 12 cpu, 24 GiB, 1 nvidia.com/gpu; the largest has 8 cpu, 16 GiB",
            "quota `team` in use: requests.cpu 3 of 4",
            "LimitRange `team`, per Container: max memory 1Gi",
            "no Prometheus selects PodMonitor shells: `monitoring/k8s` selects `release=stack`; "
            "see `kubernetes.monitoring.labels`",
        ]
        monitor["metadata"]["labels"] = {**monitor["metadata"]["labels"], "release": "stack"}
        assert len(watched.deploy(*documents("good:1", monitor)).site["notes"]) == 3
        watched.fake.denied = {("list", "nodes"), ("list", "prometheuses.monitoring.coreos.com")}
        assert len(watched.deploy(*documents("good:1")).site["notes"]) == 2


def test_a_namespace_that_is_being_deleted_or_missing_is_reported(cluster: Rig) -> None:
    without = [manifest for manifest in documents() if manifest["kind"] != "Namespace"]
    with pytest.raises(ClusterError, match="namespace: `sea` does not exist, and the spec does not create it"):
        cluster.deploy(*without)
    going = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}, "status": {"phase": "Terminating"}}
    cluster.fake.put(going)
    with pytest.raises(ClusterError, match="namespace: `sea` is being deleted"):
        cluster.deploy(*without)


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
