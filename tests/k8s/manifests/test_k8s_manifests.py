import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from k8s_plans import EVIDENCE, FULL, GPU, IMAGE, OPTIONS, documents, planned, pod, the_only
from specs import DIGITS, ROOT

import marina
from marina.config.errors import InputError
from marina.config.load import parse_spec
from marina.config.render import render_model_config
from marina.k8s.manifests import LoadJob, load_objects
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.manifests.writing import replace_folder, write_manifests
from marina.k8s.manifests.yaml_text import to_yaml

CUSTOM = {
    "BackendTrafficPolicy",
    "HTTPRoute",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
    "SecurityPolicy",
    "ServiceMonitor",
}


def minor(version: str) -> int:
    return int(version.partition(".")[2])


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, GPU, FULL], ids=["defaults", "gpu", "everything"])
def test_an_independent_validator_accepts_the_manifests(changes: dict[str, Any]) -> None:
    for document in documents(planned(changes)):
        for version in SUPPORTED_VERSIONS if document["kind"] not in CUSTOM else []:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_kubernetes_does_not_have_is_refused() -> None:
    document = deepcopy(the_only(planned(), "Deployment"))
    document["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.37", strict=True)


@pytest.mark.parametrize("changes", OPTIONS)
def test_nothing_is_lost_between_the_typed_objects_and_the_text(changes: dict[str, Any]) -> None:
    plan = planned(changes)
    for documents_ in render_objects(plan).values():
        assert list(yaml.load_all(to_yaml(documents_), yaml.CSafeLoader)) == documents_


@pytest.mark.parametrize("form", ["files", "single"])
def test_two_renderings_are_equal_byte_for_byte(form: Any, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        write_manifests(planned(FULL, evidence=EVIDENCE), tmp_path, form)
        texts.append({file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()})
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("field", "value"), [("p99_ms", 70), ("error_rate", 0.01), ("throughput_rps", 90)])
def test_an_objective_changes_only_alerts_and_the_dashboard(field: str, value: float) -> None:
    before, after = (render_objects(planned(changes, evidence=EVIDENCE)) for changes in ({}, {f"slo.{field}": value}))
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"monitoring/rules.yaml", "monitoring/dashboard.yaml"}
    # Only the load test uses the rate that one pod must hold.
    assert bool(changed) == (field != "throughput_rps")


@pytest.mark.parametrize("changes", OPTIONS)
def test_every_object_except_the_namespace_has_the_services_name(changes: dict[str, Any]) -> None:
    plan = planned(changes)
    for document in documents(plan):
        if document["kind"] != "Namespace":
            assert re.fullmatch(rf"{plan.name}(-pages|-dashboard|-[0-9a-f]{{10}})?", document["metadata"]["name"])
            assert document["metadata"]["namespace"] == "marina"


def test_two_services_in_a_namespace_render_the_may_meet() -> None:
    assert the_only(planned(), "Namespace") == the_only(planned({"name": "letters", "version": "3"}), "Namespace")


@pytest.mark.parametrize("changes", OPTIONS)
def test_selectors_match_the_pods_and_are_the_same_for_every_version(changes: dict[str, Any]) -> None:
    plans = [planned(changes), planned(changes | {"version": "2.0"})]
    selectors = [list(selectors_in(plan)) for plan in plans]
    assert selectors[0] == selectors[1]
    labels = the_only(plans[0], "Deployment")["spec"]["template"]["metadata"]["labels"]
    for selector in selectors[0]:
        assert selector.items() <= labels.items()


def selectors_in(plan: Plan) -> Iterator[dict[str, str]]:
    for kind in ("Deployment", "PodDisruptionBudget"):
        yield the_only(plan, kind)["spec"]["selector"]["matchLabels"]
    yield the_only(plan, "Service", plan.name)["spec"]["selector"]
    for constraint in pod(plan)["topologySpreadConstraints"]:
        yield constraint["labelSelector"]["matchLabels"]


def test_with_an_autoscaler_the_deployment_sets_no_number_of_pods() -> None:
    assert "replicas" not in the_only(planned(), "Deployment")["spec"]
    assert "replicas" not in the_only(planned({"scaling.autoscaler": "keda"}), "Deployment")["spec"]
    alone = planned({"scaling.autoscaler": "none", "scaling.min_replicas": 3})
    assert the_only(alone, "Deployment")["spec"]["replicas"] == 3
    assert not [doc for doc in documents(alone) if doc["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]


def test_another_configuration_has_another_config_map_and_pod_template() -> None:
    plans = [planned(), planned({"serving.queue": 300})]
    names = {pod(plan)["volumes"][0]["configMap"]["name"] for plan in plans}
    assert len(names) == 2
    assert {
        the_only(plan, "ConfigMap", name)["immutable"]
        for plan, name in zip(plans, sorted(names), strict=True)
        if any(doc["metadata"]["name"] == name for doc in documents(plan))
    } <= {True}
    annotations = [the_only(plan, "Deployment")["spec"]["template"]["metadata"]["annotations"] for plan in plans]
    assert annotations[0]["marina/config"] != annotations[1]["marina/config"]


def test_fields_that_the_server_does_not_read_start_no_pods() -> None:
    template = the_only(planned(), "Deployment")["spec"]["template"]
    for field, value in (("scaling.max_replicas", 40), ("scaling.cpu_percent", 60), ("slo.p99_ms", 80)):
        assert the_only(planned({field: value}), "Deployment")["spec"]["template"] == template, field


def test_the_mounted_spec_starts_the_same_server() -> None:
    for changes in ({}, GPU, {"serving.queue": 300, "kubernetes.resources.cpu": 4}):
        plan = planned(changes)
        text = next(doc for doc in documents(plan) if doc["kind"] == "ConfigMap")["data"]["spec.yaml"]
        mounted = parse_spec(text, Path("/config/spec.yaml"), files=False)
        assert mounted.serving == plan.spec.serving
        assert (mounted.workers, mounted.threads) == (plan.spec.workers, plan.spec.threads)
        assert render_model_config(mounted) == render_model_config(plan.spec)


def test_the_hash_of_evidence_starts_no_pods() -> None:
    again = EVIDENCE | {"at": "2026-12-01T00:00:00Z"}
    first, second = (the_only(planned(evidence=evidence), "Deployment") for evidence in (EVIDENCE, again))
    assert first["metadata"]["annotations"] != second["metadata"]["annotations"]
    assert first["spec"] == second["spec"]


def test_no_object_names_torchserves_management_and_metrics_ports() -> None:
    files = render_objects(planned(FULL))
    text = "".join(to_yaml(documents) for name, documents in files.items() if not name.startswith("monitoring"))
    for port in (8081, 8082, 7070, 7071):
        assert not re.search(rf"\b{port}\b", text)
    assert [port["port"] for port in the_only(planned(FULL), "Service", "digits")["spec"]["ports"]] == [8080]


def test_every_container_is_restricted_and_has_limits() -> None:
    spec = pod(planned(FULL))
    for container in spec["containers"] + spec["initContainers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"] == container["resources"]["limits"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("store", "volume", "path"),
    [
        ({"url": "https://s/m.mar"}, "emptyDir", "/loaded/model.mar"),
        ({"claim": "models/digits/m.mar"}, "persistentVolumeClaim", "/loaded/digits/m.mar"),
        ({"image": "registry.local/models/digits:1"}, "image", "/loaded/model.mar"),
    ],
)
def test_a_mar_from_elsewhere_is_verified_before_it_is_served(store: dict[str, str], volume: str, path: str) -> None:
    plan = planned({"kubernetes.model": store})
    spec = pod(plan)
    loader, server = spec["initContainers"][0], spec["containers"][0]
    assert plan.package is not None
    assert loader["args"][:3] == [path, "--sha256", plan.package.sha256]
    assert ("--from" in loader["args"]) == ("url" in store)
    assert server["args"] == ["/config/spec.yaml", "--mar", path, "--host", "::"]
    assert next(mounted for mounted in spec["volumes"] if mounted["name"] == "model").keys() == {"name", volume}
    assert next(mount for mount in server["volumeMounts"] if mount["name"] == "model")["readOnly"] is True


def test_a_log_shipper_is_a_sidecar_by_a_patch_that_reads_the_servers_file() -> None:
    sidecar = {
        "name": "log-shipper",
        "image": f"registry.local/vector:1@sha256:{'b' * 64}",
        "restartPolicy": "Always",
        "resources": {kind: {"cpu": "50m", "memory": "64Mi"} for kind in ("requests", "limits")},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "logs", "mountPath": "/var/log/marina"}],
    }
    logs = {
        "env": {"MARINA_LOG_FILE": "/var/log/marina/server.log"},
        "volumes": {"logs": {"emptyDir": {"sizeLimit": "128Mi"}}},
        "mounts": {"/var/log/marina": "logs"},
    }
    patch = {"kind": "Deployment", "merge": {"spec": {"template": {"spec": {"initContainers": [sidecar]}}}}}
    plan = planned({"kubernetes.pod": logs, "kubernetes.patches": [patch]}, evidence=EVIDENCE, image=IMAGE)
    spec = pod(plan)
    assert [each["restartPolicy"] for each in spec["initContainers"]] == ["Always"]
    assert {"name": "MARINA_LOG_FILE", "value": "/var/log/marina/server.log"} in spec["containers"][0]["env"]
    kubernetes_validate.validate(the_only(plan, "Deployment"), SUPPORTED_VERSIONS[-1], strict=True)


def test_gpus_are_requested_tolerated_and_surged_one_by_one() -> None:
    plan = planned(GPU)
    spec = pod(plan)
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["tolerations"][0] == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert the_only(plan, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_objects_that_need_a_crd_are_in_folders() -> None:
    for changes in OPTIONS:
        for name, some in render_objects(planned(changes.values[0])).items():
            custom = {doc["kind"] for doc in some} & CUSTOM
            assert not custom or "/" in name


def test_the_kustomization_of_a_folder_lists_exactly_its_files(tmp_path: Path) -> None:
    write_manifests(planned(FULL), tmp_path)
    folders = [tmp_path / "manifests", *(path for path in (tmp_path / "manifests").iterdir() if path.is_dir())]
    assert len(folders) == 4
    for folder in folders:
        listed = yaml.safe_load((folder / "Kustomization").read_text(encoding="utf-8"))
        assert listed["kind"] == "Kustomization"
        assert sorted(listed["resources"]) == sorted(file.name for file in folder.glob("*.yaml"))


def test_files_that_are_no_longer_rendered_are_removed(tmp_path: Path) -> None:
    write_manifests(planned(FULL), tmp_path)
    assert (tmp_path / "manifests/keda/scaled-object.yaml").exists()
    write_manifests(planned(), tmp_path)
    assert not (tmp_path / "manifests/keda").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_single_format_has_the_same_objects(tmp_path: Path) -> None:
    plan = planned(FULL)
    written = write_manifests(plan, tmp_path, "single")
    assert sorted(written.files) == ["all.yaml", "gateway/all.yaml", "keda/all.yaml", "monitoring/all.yaml"]
    read = [doc for name in written.files for doc in yaml.safe_load_all((tmp_path / "manifests" / name).read_text())]
    assert sorted(map(str, read)) == sorted(map(str, documents(plan)))


def test_the_verb_writes_files_and_prints_notes_and_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["manifests", str(DIGITS), "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert f"kubectl apply --server-side --field-manager marina -f {tmp_path / 'digits/manifests'} " in out
    assert "nothing was measured: the autoscaler only looks at the CPU" in err
    assert f"marina calibrate {DIGITS}" in err
    assert (tmp_path / "digits/manifests/40-deployment.yaml").exists()
    assert (tmp_path / "digits/prometheus/adapter-values.yaml").exists()


def test_the_verb_as_json_has_files_notes_and_derived_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert marina.main(["manifests", str(DIGITS), "--out", str(tmp_path), "--json", "--format", "single"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "Deployment digits" in record["files"]["all.yaml"]
    assert record["image"] == "registry.local/marina/digits:1.0"
    assert {"file", "text", "hint"} == record["notes"][0].keys()
    assert any(number["name"] == "grace period of a pod" and number["value"] == "40 s" for number in record["derived"])


def test_the_docs_show_what_a_fresh_clone_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marina.main(["manifests", str(DIGITS), "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    printed = (
        (out + err)
        .replace(f" --out {tmp_path}", "")
        .replace(f"{tmp_path}/", "build/")
        .replace(f"{ROOT}/", "")
        .splitlines()
    )
    page = (ROOT / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    block = page.partition("$ marina manifests config/examples/digits/spec.yaml\n")[2].partition("```")[0]
    assert len(block.splitlines()) > 10
    assert [line for line in block.splitlines() if line.strip() != "…" and line not in printed] == []


def test_the_plan_of_a_load_is_as_large_as_its_bytes() -> None:
    job = LoadJob("digits-load", "registry.local/loadtest:1", "é" * 600_000, parts=1, seconds=1)
    with pytest.raises(InputError, match="a plan of 1,200,000 bytes, allowed in a ConfigMap: 1,000,000"):
        load_objects(planned(), job)


def test_two_that_write_the_same_folder_at_once_both_write_it_whole(tmp_path: Path) -> None:
    def write(text: str) -> None:
        for _ in range(25):
            replace_folder(tmp_path / "manifests", {"a.yaml": text, "b.yaml": text})

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, text) for text in "xyz"]:
            done.result()
    assert len({file.read_text() for file in (tmp_path / "manifests").iterdir()}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["manifests"]


@pytest.mark.parametrize("output_format", ["files", "kserve"])
def test_the_commands_to_type_next_are_for_these_files(
    output_format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "of mine"
    assert marina.main(["manifests", str(DIGITS), "--format", output_format, "--out", str(out)]) == 0
    commands = capsys.readouterr().out.partition("next\n")[2]
    if output_format == "files":
        assert f"marina verify {DIGITS} --out '{out}'" in commands
        assert f"marina deploy {DIGITS} --out '{out}'" in commands
        assert f"kubectl apply --server-side --field-manager marina -f '{out}/digits/manifests'" in commands
    else:
        # `marina verify` does not know the kinds of KServe.
        assert "marina verify" not in commands
        assert (
            f"kubectl apply --server-side --field-manager marina -f '{out}/digits/kserve' --dry-run=server" in commands
        )
