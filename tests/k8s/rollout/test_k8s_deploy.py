import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from k8s_rig import NAME, SPACE, Rig, autoscaler, deployment, document, documents, rig

from marina.config.errors import Refused

# Each test starts a fake cluster and sends it dozens of requests.
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, groups=("keda.sh",)) as made:
        yield made


def writes(cluster: Rig) -> list[str]:
    """The requests that change something, as `METHOD path`."""
    requests = [
        f"{method} {path.partition('?')[0]}"
        for method, path in cluster.fake.requests
        if method in ("POST", "PUT", "PATCH", "DELETE") and "dryRun" not in path
    ]
    return [text for text in requests if not re.search("selfsubject", text)]


def test_a_first_deploy_applies_objects_after_those_they_need_and_infers_the_sample(cluster: Rig) -> None:
    record = cluster.deploy(*documents())
    assert (record.result, record.revision, record.exit_code) == ("deployed", 1, 0)
    applied = [write for write in writes(cluster) if write.startswith("PATCH")]
    assert [text.rpartition("/")[0].rpartition("/")[2] for text in applied] == [
        "namespaces",
        "namespaces",
        "configmaps",
        "services",
        "deployments",
    ]
    assert cluster.pod.asked == [("/predictions/shells", b"a shell", "image/png")]
    assert record.canary
    assert (record.canary.ok, record.canary.pod[:7], record.canary.package) == (True, "shells-", "ab" * 32)
    assert cluster.state.phase == "deployed"
    assert [line.split()[0] for line in record.to_text().splitlines()] == ["deployed", "inference:"]
    # Otherwise a server silently drops fields that it does not know.
    assert all("fieldValidation=Strict" in path for method, path in cluster.fake.requests if method == "PATCH")


@pytest.mark.parametrize(("status", "result"), [(201, "deployed"), (204, "deployed"), (302, "failed")])
def test_an_inference_has_succeeded_with_any_2xx(cluster: Rig, status: int, result: str) -> None:
    cluster.pod.status = status
    assert cluster.deploy(*documents()).result == result


def test_a_second_deploy_writes_nothing_and_says_so(cluster: Rig) -> None:
    cluster.deploy(*documents())
    before, cluster.fake.requests[:] = cluster.fake.versions(), []
    record = cluster.deploy(*documents())
    assert (record.result, record.revision, record.exit_code) == ("unchanged", 1, 0)
    assert writes(cluster) == []
    assert cluster.fake.versions() == before
    assert record.to_text().startswith(
        f"nothing to do: {NAME} revision 1 in {SPACE} (context fake) is already deployed"
    )
    assert len(cluster.pod.asked) == 2


def test_quantities_in_the_servers_own_spelling_are_no_change(cluster: Rig) -> None:
    cluster.deploy(*documents())
    stored = cluster.fake.get("Deployment", NAME, SPACE)
    assert stored
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    assert cluster.deploy(*documents()).result == "unchanged"


def test_a_change_becomes_a_revision_with_its_fields_named(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    record = cluster.deploy(*documents("good:2"))
    assert (record.revision, record.previous) == (2, 1)
    changed = [change for change in record.to_data()["objects"] if change["action"] == "change"]
    assert [change["object"] for change in changed] == [f"Deployment {NAME}"]
    lines = [line for line in changed[0]["diff"] if line.startswith(("+", "-"))]
    assert [line.partition("@")[0].split()[-1] for line in lines] == ["good:1", "good:2"]
    assert cluster.image == "good:2"


def test_three_revisions_are_kept_and_kubectl_could_apply_them(cluster: Rig) -> None:
    for number in range(1, 6):
        cluster.deploy(*documents(f"good:{number}"))
    kept = [name for name in cluster.fake.names("ConfigMap", SPACE) if ".r" in name]
    assert kept == ["marina.shells.r3", "marina.shells.r4", "marina.shells.r5"]
    revision = cluster.fake.get("ConfigMap", "marina.shells.r4", SPACE)
    assert revision
    stored = json.loads(revision["data"]["manifests.json"])
    assert (stored["apiVersion"], stored["kind"], stored["items"]) == ("v1", "List", list(documents("good:4")[1:]))
    assert cluster.state.good == (3, 4, 5)


def test_a_dry_run_shows_the_difference_and_changes_nothing(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    before, cluster.fake.requests[:] = cluster.fake.versions(), []
    wanted = [manifest for manifest in documents("good:2") if manifest["kind"] != "ConfigMap"]
    record = cluster.deploy(*wanted, document("ConfigMap", "other", data={"b": "2"}), dry_run=True)
    assert (record.result, record.exit_code) == ("dry-run", 0)
    assert writes(cluster) == []
    assert cluster.fake.versions() == before
    text = record.to_text()
    assert "\n+ ConfigMap other\n" in text
    assert f"\n~ Deployment {NAME}\n    @@ " in text
    assert "\n    -      - image: good:1@" in text
    assert "\n    +      - image: good:2@" in text


def test_a_dry_run_into_a_missing_namespace_says_what_would_be_created(cluster: Rig) -> None:
    record = cluster.deploy(*documents(), dry_run=True)
    assert [change.action for change in record.changes] == ["create"] * 4
    assert cluster.fake.get("Namespace", SPACE) is None


def test_what_is_no_longer_rendered_is_deleted_and_nothing_else(cluster: Rig) -> None:
    budget = document("PodDisruptionBudget", spec={"maxUnavailable": 1})
    cluster.deploy(*documents("good:1", budget))
    cluster.fake.put(document("Service", "theirs", spec={"ports": [{"port": 1}]}))
    record = cluster.deploy(*documents("good:1"))
    assert record.pruned == [f"PodDisruptionBudget {NAME}"]
    assert cluster.fake.names("PodDisruptionBudget", SPACE) == []
    assert cluster.fake.names("Service", SPACE) == ["shells", "theirs"]
    # The revision before is still stored, with what is gone.
    assert cluster.deploy(*documents("good:1")).result == "unchanged"
    cluster.fake.put(budget, manager="somebody")
    again = cluster.deploy(*documents("good:1"), dry_run=True)
    assert (again.revision, again.pruned) == (again.previous, [])


def test_an_object_that_somebody_took_over_is_not_deleted(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", document("ConfigMap", "shared", data={"a": "1"})))
    stored = cluster.fake.get("ConfigMap", "shared", SPACE)
    assert stored
    with cluster.fake.store.lock:
        stored["metadata"]["managedFields"] = []
        kind = next(served for served in cluster.fake.kinds if served.kind == "ConfigMap")
        cluster.fake.store.put(kind, stored)
    wanted = list(documents("good:1"))
    for number in range(2, 6):
        wanted[1] = document("ConfigMap", data={"a": str(number)})
        cluster.deploy(*wanted)
    assert "shared" in cluster.fake.names("ConfigMap", SPACE)
    assert "not deleted: marina no longer manages it" in cluster.said.getvalue()


def test_configuration_of_a_kept_revision_stays_until_that_revision_is_deleted(cluster: Rig) -> None:
    for number in range(1, 5):
        wanted = [manifest for manifest in documents(f"good:{number}") if manifest["kind"] != "ConfigMap"]
        cluster.deploy(*wanted, document("ConfigMap", f"config-{number}", data={"a": "1"}))
    configs = [name for name in cluster.fake.names("ConfigMap", SPACE) if name.startswith("config")]
    assert configs == ["config-2", "config-3", "config-4"]
    last = [manifest for manifest in documents("good:4") if manifest["kind"] != "ConfigMap"]
    assert cluster.deploy(*last, document("ConfigMap", "config-4", data={"a": "1"})).result == "unchanged"


def test_a_namespace_that_somebody_else_created_stays_as_it_is(cluster: Rig) -> None:
    before = cluster.fake.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": {"a": "b"}}}
    )
    cluster.deploy(*documents())
    assert cluster.fake.get("Namespace", SPACE) == before


def test_conflicts_are_shown_all_at_once_with_owner_field_and_what_to_type(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    cluster.fake.put(document("ConfigMap", data={"a": "theirs"}), manager="kubectl-edit")
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "hotfix"
    cluster.fake.put(live, manager="hotfix-bot")
    before = cluster.fake.versions()
    with pytest.raises(Refused) as error:
        cluster.deploy(*documents("good:2"))
    assert str(error.value) == (
        "nothing was changed:\n"
        "  ConfigMap shells: `.data.a` belongs to `kubectl-edit`\n"
        '  Deployment shells: `.spec.template.spec.containers[name="server"].image` belongs to `hotfix-bot`\n\n'
        "hint: `--force-conflicts` takes these fields over; or leave them to their owners, and out of the spec"
    )
    assert cluster.fake.versions() == before
    assert cluster.deploy(*documents("good:2"), force=True).result == "deployed"
    assert cluster.image == "good:2"


def test_a_field_that_is_no_longer_rendered_is_removed_and_what_others_added_stays(cluster: Rig) -> None:
    wanted = list(documents())
    wanted[3] = deployment("good:1", env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    cluster.deploy(*wanted)
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    live["spec"]["template"]["spec"]["containers"][0]["env"].append({"name": "THEIRS", "value": "3"})
    cluster.fake.put(live, manager="injector")
    wanted[3] = deployment("good:1", env=[{"name": "A", "value": "1"}])
    cluster.deploy(*wanted)
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    names = [container["name"] for container in live["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names == ["A", "THEIRS"]


def test_a_new_autoscaler_keeps_the_existing_pods(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", replicas=4))
    record = cluster.deploy(*documents("good:1", autoscaler()))
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    assert live["spec"]["replicas"] == 4
    assert record.result == "deployed"
    assert cluster.deploy(*documents("good:1", autoscaler())).result == "unchanged"


def test_a_first_deploy_starts_with_the_autoscalers_least_number_of_pods(cluster: Rig) -> None:
    record = cluster.deploy(*documents("good:1", autoscaler()))
    assert record.waited
    assert record.waited.summary == "2 of 2 pods available"
    assert cluster.deploy(*documents("good:1", autoscaler())).result == "unchanged"


def test_a_removed_autoscaler_leaves_no_conflict_over_its_replicas(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", autoscaler()))
    cluster.fake.scale(SPACE, NAME, 5)
    assert cluster.deploy(*documents("good:1", autoscaler())).result == "unchanged"
    cluster.deploy(*documents("good:1", replicas=2))
    live = cluster.fake.get("Deployment", NAME, SPACE)
    assert live
    assert live["spec"]["replicas"] == 2
    assert cluster.fake.names("HorizontalPodAutoscaler", SPACE) == []


def test_the_old_autoscaler_is_deleted_before_the_new_one_is_created(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1", autoscaler()))
    cluster.fake.requests.clear()
    cluster.deploy(*documents("good:1", document("ScaledObject", spec={"scaleTargetRef": {"name": NAME}})))
    scaling = [write for write in writes(cluster) if re.search("scal", write)]
    assert [text.partition(" ")[0] for text in scaling] == ["DELETE", "PATCH"]


def test_ready_pods_that_answer_with_an_error_fail_the_deploy_which_goes_back(cluster: Rig) -> None:
    cluster.deploy(*documents("good:1"))
    answers = iter([503, 200])

    def once() -> None:
        cluster.pod.status = next(answers)

    cluster.pod.before_answer = once
    record = cluster.deploy(*documents("good:2"))
    assert record.result == "failed"
    assert record.error == 'the pods are ready, but the inference of the sample failed: {"error": "no worker"}'
    assert record.back
    assert record.back.result == "rolled back"
    assert cluster.image == "good:1"


def test_an_answer_of_another_package_than_the_deployed_one_is_a_failure(cluster: Rig) -> None:
    cluster.pod.sha256 = "cd" * 32
    record = cluster.deploy(*documents())
    assert record.result == "failed"
    assert record.error.endswith("answered by package cdcdcdcdcdcd…, not by abababababab…")


FAILURES = [
    pytest.param("no-such-image", "image-pull", "cannot be pulled: ", id="image"),
    pytest.param("crashing", "crash", "container `server` ended with code 3, 3 restarts", id="crash"),
    pytest.param(
        "greedy", "out-of-memory", "container `server` was killed because it ran out of memory, 3 restarts", id="memory"
    ),
]


@pytest.mark.parametrize(("image", "kind", "words"), FAILURES)
def test_a_hopeless_revision_is_explained_and_the_one_before_is_restored(
    cluster: Rig, image: str, kind: str, words: str
) -> None:
    cluster.deploy(*documents("good:1"))
    record = cluster.deploy(*documents(f"{image}:2"))
    assert (record.result, record.exit_code, record.revision) == ("failed", 1, 2)
    assert record.waited
    assert [cause.kind for cause in record.waited.causes] == [kind]
    assert words in record.waited.causes[0].text
    assert record.back
    assert (record.back.result, record.running) == ("rolled back", 1)
    assert cluster.image == "good:1"
    assert cluster.state.phase == "deployed"
    assert cluster.state.message == f"revision 2 failed: {record.error}; {record.waited.causes[0].text}"
    assert cluster.record["rollback"]["result"] == "rolled back"


def test_a_crash_is_shown_with_the_last_log_lines_of_the_run_that_crashed(cluster: Rig) -> None:
    record = cluster.deploy(*documents("crashing:1"))
    assert record.waited
    assert record.waited.causes[0].lines[-1] == "line 99 of this run"
    assert "    | line 99 of this run" in record.to_text()


WAITING = [
    pytest.param(
        "nowhere", "unschedulable", "cannot be scheduled: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    ),
    pytest.param("unready", "probe", "Readiness probe failed: HTTP probe failed with statuscode: 503"),
]


@pytest.mark.parametrize(("image", "kind", "text"), WAITING)
def test_problems_that_may_pass_are_reported_during_the_wait(cluster: Rig, image: str, kind: str, text: str) -> None:
    record = cluster.deploy(*documents(f"{image}:1"), timeout_s=0.5)
    assert record.result == "failed"
    assert record.error == "0 of 1 new pods ready (1 created) after 0.5 s"
    assert record.waited
    assert [(cause.kind, cause.text) for cause in record.waited.causes] == [(kind, text)]
    assert text in cluster.said.getvalue()


def test_pods_that_admission_refuses_are_reported_with_its_message(cluster: Rig) -> None:
    cluster.fake.controllers.refused = 'violates PodSecurity "restricted:latest": runAsNonRoot != true'
    record = cluster.deploy(*documents())
    assert record.waited
    assert [cause.kind for cause in record.waited.causes] == ["not-admitted"]
    said = 'no pod was created: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    assert record.waited.causes[0].text == said
    assert record.error == "0 of 1 new pods ready (0 created), and waiting will not help"


def test_a_first_revision_that_fails_stays_for_inspection(cluster: Rig) -> None:
    record = cluster.deploy(*documents("crashing:1"))
    assert (record.result, record.back, record.running) == ("failed", None, 0)
    assert record.next == "marina deploy spec.yaml once it is fixed, or marina delete spec.yaml"
    assert cluster.state.phase == "failed"
    assert cluster.deploy(*documents("good:2")).result == "deployed"
    assert [name for name in cluster.fake.names("ConfigMap", SPACE) if ".r" in name] == ["marina.shells.r2"]
