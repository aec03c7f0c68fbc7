"""The verbs on the command line, with the manifests of the digits example."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_plans import EVIDENCE, FULL, IMAGE, PACKAGE, RECORD, SHA256, planned
from k8s_rig import Rig, documents, rig
from specs import DIGITS, changed, digits_spec

import marina
from marina.config.errors import ClusterError
from marina.config.render import render_model_config
from marina.k8s.cluster import connect
from marina.k8s.manifests.objects import render_objects
from marina.k8s.rollout.apply import in_apply_order
from marina.k8s.rollout.release import verify_blockers

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow
SPACE, NAME = "marina", "digits"
# Without settings that refer to other objects of a cluster: the package has no CPU target, the model is in the image.
WHOLE = {key: value for key, value in FULL.items() if key not in ("kubernetes.model", "model.cpu_target")}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, groups=("monitoring.coreos.com", "keda.sh", "gateway.networking.k8s.io")) as made:
        made.pod.sha256 = SHA256
        yield made


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """The digits spec as if it had been packaged, measured and built."""
    folder = tmp_path / "out" / NAME
    folder.mkdir(parents=True)
    records: dict[str, dict[str, Any]] = {"evidence": EVIDENCE, "image": IMAGE, "package": PACKAGE | {"record": RECORD}}
    for name, data in records.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    with zipfile.ZipFile(folder / "model.mar", "w") as archive:
        archive.writestr("sample.png", b"an image")
        archive.writestr("model-config.yaml", render_model_config(digits_spec()))
    return write_spec(tmp_path, {})


def write_spec(folder: Path, changes: dict[str, Any]) -> Path:
    file = folder / "spec.yaml"
    data = changed(changes, yaml.safe_load(DIGITS.read_text(encoding="utf-8")))
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file


def _quiet(verb: str) -> list[str]:
    return [] if verb == "status" else ["--quiet"]


def run(verb: str, spec: Path, cluster: Rig, *options: str) -> int:
    where = ["--kubeconfig", str(cluster.fake.kubeconfig), "--out", str(spec.parent / "out"), *_quiet(verb)]
    return marina.main([verb, str(spec), *where, *options])


@pytest.mark.parametrize("changes", [{}, WHOLE], ids=["defaults", "everything"])
def test_what_is_rendered_is_deployed_and_a_second_deploy_changes_nothing(
    cluster: Rig, spec: Path, changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_spec(spec.parent, changes)
    assert run("deploy", spec, cluster) == 0
    assert capsys.readouterr().out.startswith("deployed digits revision 1 in marina (context fake): ")
    before = cluster.fake.versions()
    assert run("deploy", spec, cluster) == 0
    assert capsys.readouterr().out.startswith(
        "nothing to do: digits revision 1 in marina (context fake) is already deployed"
    )
    assert cluster.fake.versions() == before
    assert cluster.pod.asked == [("/predictions/digits", b"an image", "image/png")] * 2
    made_by_controllers = ("Event", "Pod", "ReplicaSet")
    ours = [
        document["metadata"]
        for document in cluster.fake.store.objects.values()
        if document["kind"] not in made_by_controllers
    ]
    assert {made.get("namespace", SPACE) for made in ours} == {SPACE}
    marks = {made.get("labels", {}).get("app.kubernetes.io/managed-by") for made in ours if made["name"] != "default"}
    assert marks == {"marina"}


@pytest.mark.parametrize(
    "changes",
    [{}, WHOLE, {"kubernetes.resources": {"memory": "2048Mi", "cpu": "2000m"}}],
    ids=["defaults", "everything", "amounts in another spelling"],
)
@pytest.mark.parametrize("kubectl_first", [False, True], ids=["marina first", "kubectl first"])
def test_marina_and_kubectl_apply_the_same_manifests_without_a_conflict(
    cluster: Rig, spec: Path, changes: dict[str, Any], kubectl_first: bool
) -> None:
    write_spec(spec.parent, changes)
    out = spec.parent / "out"
    assert marina.main(["manifests", str(spec), "--out", str(out), "--quiet"]) == 0
    server = connect(None, cluster.fake.kubeconfig)

    def kubectl() -> None:
        files = sorted((out / NAME / "manifests").rglob("*.yaml"))
        loaded = [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
        for document in in_apply_order(loaded):
            server.apply(document, manager="kubectl")

    if kubectl_first:
        kubectl()
    assert run("deploy", spec, cluster) == 0
    kubectl()
    assert run("deploy", spec, cluster) == 0


def test_the_verbs_print_records_with_their_results(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(verb: str, *options: str) -> dict[str, Any]:
        codes.append(run(verb, spec, cluster, "--json", *options))
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        return data

    codes: list[int] = []
    assert record("status")["phase"] == "absent"
    assert record("deploy", "--dry-run")["result"] == "dry-run"
    assert record("deploy")["result"] == "deployed"
    write_spec(spec.parent, {"scaling.max_replicas": 4})
    assert record("deploy")["revision"] == 2
    status = record("status")
    assert (status["revision"], status["complete"], status["facts"]["package"]) == (2, True, SHA256)
    rolled = record("rollback")
    assert (rolled["schema"], rolled["result"], rolled["running"]) == ("marina.rollout/2", "rolled back", 1)
    assert json.loads((spec.parent / "out" / NAME / "rollout.json").read_text()) == rolled
    live = cluster.fake.get("HorizontalPodAutoscaler", NAME, SPACE)
    assert live
    assert live["spec"]["maxReplicas"] == 10
    assert record("delete")["result"] == "deleted"
    assert codes == [1, 0, 0, 0, 0, 0, 0]


def test_a_patched_revision_is_deployed_shown_by_status_and_restored_with_its_patches(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(verb: str, *options: str) -> str:
        assert run(verb, spec, cluster, *options) == 0
        return capsys.readouterr().out

    def label() -> Any:
        service = cluster.fake.get("Service", NAME, SPACE)
        return service and service["metadata"]["labels"].get("team")

    def label_with(team: str) -> None:
        merge = {"metadata": {"labels": {"team": team}}}
        write_spec(spec.parent, {"kubernetes.patches": [{"kind": "Service", "merge": merge}]})

    label_with("vision")
    ran("deploy")
    assert label() == "vision"
    assert "\n  patched    Service\n" in ran("status")
    assert "nothing to do" in ran("deploy")
    label_with("sound")
    ran("deploy")
    assert label() == "sound"
    ran("rollback")
    assert (label(), json.loads(ran("status", "--json"))["facts"]["patched"]) == ("vision", "Service")
    write_spec(spec.parent, {})
    ran("deploy")
    assert label() is None
    assert "patched" not in ran("status")


def test_a_patch_of_what_marina_derives_is_named_before_it_is_applied(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = {
        "terminationGracePeriodSeconds": 300,
        "containers": [{"name": "server", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}],
    }
    merge = {"spec": {"template": {"spec": inside}}}
    write_spec(spec.parent, {"kubernetes.patches": [{"kind": "Deployment", "merge": merge}]})
    where = ["--kubeconfig", str(cluster.fake.kubeconfig), "--out", str(spec.parent / "out")]
    assert marina.main(["deploy", str(spec), *where]) == 0
    said = capsys.readouterr().err
    assert "note: a patch changes `terminationGracePeriodSeconds`: it covers the drain" in said
    assert "note: a patch changes `containers[server].lifecycle`" in said


def test_a_revision_that_fails_ends_with_1_and_says_why(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("deploy", spec, cluster) == 0
    cluster.fake.controllers.scripts["registry"] = cluster.fake.controllers.scripts["crashing"]
    write_spec(spec.parent, {"kubernetes.resources.memory": "3Gi"})
    assert run("deploy", spec, cluster, "--no-rollback") == 1
    text = capsys.readouterr().out
    assert "deploy of digits revision 2 in marina (context fake) failed: " in text
    assert "ended with code 3, 3 restarts" in text
    assert run("status", spec, cluster) == 1
    assert "revision 2 failed; the last one that became ready is 1" in capsys.readouterr().out


def test_errors_of_verify_are_reported_before_any_change(cluster: Rig) -> None:
    plan = planned(evidence=EVIDENCE, image=IMAGE)
    files = render_objects(plan)
    assert verify_blockers(files, plan) == ()
    files["40-deployment.yaml"][0]["spec"]["progressDeadlineSeconds"] = 1
    findings = verify_blockers(files, plan)
    assert "(startup-budget)" in "\n".join(finding.text for finding in findings)
    with pytest.raises(ClusterError, match=r"verify: 40-deployment.yaml: Deployment/digits"):
        cluster.deploy(*documents(), blockers=findings)
    assert not [request for request in cluster.fake.requests if request[0] == "PATCH"]


def test_a_field_to_which_a_patch_gave_another_type_is_reported_by_deploy_too(cluster: Rig) -> None:
    plan = planned(evidence=EVIDENCE, image=IMAGE)
    files = render_objects(plan)
    files["40-deployment.yaml"][0]["spec"]["template"]["spec"]["affinity"] = "x"
    wanted = [document for written in files.values() for document in written]
    # No cluster takes it, so nobody can accept it.
    for accepted in ((), ("verify",)):
        with pytest.raises(ClusterError, match=r"spec\.affinity`: got `\"x\"`, allowed: a mapping") as refused:
            cluster.deploy(*wanted, blockers=verify_blockers(files, plan), accepted=accepted)
        assert "--accept" not in str(refused.value)


def test_a_field_that_only_newer_versions_know_can_be_accepted() -> None:
    plan = planned(evidence=EVIDENCE, image=IMAGE)
    files = render_objects(plan)
    files["40-deployment.yaml"][0]["spec"]["template"]["spec"]["hostnameOverride"] = "a"
    files["monitoring/monitor.yaml"][0]["spec"]["newer"] = 1
    blockers = verify_blockers(files, plan)
    assert ["unknown field" in blocker.text for blocker in blockers] == [True, True]
    assert all(blocker.acceptable for blocker in blockers)


def test_an_image_without_a_digest_is_refused_unless_accepted(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec.parent / "out" / NAME / "image.json").unlink()
    assert run("deploy", spec, cluster) == 2
    assert "has no digest, so the image behind the tag can change" in capsys.readouterr().err
    assert run("deploy", spec, cluster, "--accept", "image") == 0


def test_without_a_package_no_inference_is_sent_and_a_note_says_so(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (spec.parent / "out" / NAME / "model.mar").unlink()
    where = ["--kubeconfig", str(cluster.fake.kubeconfig), "--out", str(spec.parent / "out")]
    assert marina.main(["deploy", str(spec), *where]) == 0
    assert "note: no sample is available, so no inference is sent" in capsys.readouterr().err
    assert cluster.pod.asked == []


def named(verb: str, cluster: Rig, *options: str) -> int:
    where = ["-n", SPACE, "--kubeconfig", str(cluster.fake.kubeconfig), *_quiet(verb)]
    return marina.main([verb, NAME, *where, *options])


def test_a_name_and_a_namespace_are_enough_for_status_rollback_and_delete(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("deploy", spec, cluster) == 0
    write_spec(spec.parent, {"scaling.max_replicas": 4})
    assert run("deploy", spec, cluster) == 0
    elsewhere = spec.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert named("status", cluster) == 0
    assert capsys.readouterr().out.startswith("digits in marina (context fake): revision 2\n")
    cluster.pod.asked.clear()
    assert named("rollback", cluster) == 0
    assert capsys.readouterr().out.startswith("rolled back to digits revision 1 in marina (context fake): ")
    assert cluster.pod.asked == [("/predictions/digits", b"an image", "image/png")]
    assert named("delete", cluster) == 0
    assert named("status", cluster) == 1
    assert list(elsewhere.iterdir()) == []


def test_an_error_elsewhere_in_the_spec_and_stale_evidence_do_not_prevent_a_rollback(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("deploy", spec, cluster) == 0
    write_spec(spec.parent, {"scaling.max_replicas": 4})
    assert run("deploy", spec, cluster) == 0
    write_spec(spec.parent, {"scaling.max_replica": 4, "serving.workers": "many"})
    stale = EVIDENCE | {"package": "0" * 64}
    (spec.parent / "out" / NAME / "evidence.json").write_text(json.dumps(stale), encoding="utf-8")
    assert run("deploy", spec, cluster) == 2
    assert "`scaling.max_replica`: unknown field" in capsys.readouterr().err
    assert run("rollback", spec, cluster) == 0
    assert run("status", spec, cluster) == 0
    assert run("delete", spec, cluster) == 0


def test_a_name_is_not_printed_where_only_a_spec_works(cluster: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert named("rollback", cluster) == 1
    assert f"hint: marina deploy SPEC --kubeconfig {cluster.fake.kubeconfig}, or" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["shop/spce.yaml", "a" * 300], ids=["a path", "too long for a path"])
def test_what_cannot_be_a_name_is_taken_for_a_spec(
    cluster: Rig, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["delete", typed, "-n", SPACE, "--kubeconfig", str(cluster.fake.kubeconfig)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {typed}: ")
    assert "hint: a deployment can be named without a spec: NAME -n NAMESPACE" in said


def test_a_spec_whose_namespace_cannot_be_read_is_an_error(
    cluster: Rig, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_spec(spec.parent, {"kubernetes.namespace": "No Such"})
    assert run("rollback", spec, cluster) == 2
    assert "`kubernetes.namespace`: got `No Such`" in capsys.readouterr().err
