"""Folders that hold a part of an application, or that kustomize would change: `marina verify --dir` says so."""

from pathlib import Path

import pytest
from k8s_plans import OBJECT, written

from marina.config.errors import SpecError
from marina.k8s.verify.verification import verify_folder


def test_patches_and_contents_that_a_kustomization_names_are_no_objects(tmp_path: Path) -> None:
    written(
        tmp_path,
        a_yaml=OBJECT,
        patch_yaml="apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n",
        steps_yaml="[{op: remove, path: /data}]",
        settings_yaml="colour: red\n",
        Kustomization="resources: [a.yaml]\npatches: [{path: patch.yaml}, {path: ./steps.yaml, target: {kind: A}}]\n"
        "configMapGenerator: [{name: b, files: [settings.yaml, key=settings.yaml]}]\n",
    )
    verified = verify_folder(tmp_path)
    assert (verified.objects, verified.errors) == (1, 0)
    assert verified.notes == [
        f"kustomizations are not applied, so a cluster gets other objects than these: {tmp_path}/Kustomization "
        "(`configMapGenerator`, `patches`); check what `kubectl kustomize` prints of the folder of each"
    ]


def test_a_kustomization_that_would_change_objects_or_names_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "prod").mkdir()
    written(tmp_path / "base", a_yaml=OBJECT, kustomization_yaml="kind: Kustomization\nresources: [a.yaml]\n")
    written(
        tmp_path / "prod",
        b_yaml=OBJECT.replace("a}", "b}"),
        kustomization_yaml="namePrefix: prod-\nresources: [../base, b.yaml, 'https://example.org/c?ref=1']\n",
    )
    unapplied = "kustomizations are not applied, so a cluster gets other objects than these:"
    how = "; check what `kubectl kustomize` prints of the folder of each"
    named = f"{unapplied} {tmp_path}/prod/kustomization.yaml"
    assert verify_folder(tmp_path / "base").notes == []
    assert verify_folder(tmp_path).notes == [f"{named} (`namePrefix`; not read: `https://example.org/c?ref=1`){how}"]
    assert verify_folder(tmp_path / "prod").notes == [
        f"{named} (`namePrefix`; not read: `../base`, `https://example.org/c?ref=1`){how}"
    ]


def test_a_kustomization_that_is_not_yaml_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"kustomization\.yaml:1: not readable as YAML"):
        verify_folder(written(tmp_path, a_yaml=OBJECT, kustomization_yaml="resources: ["))


def test_services_whose_pods_are_in_another_folder_are_named(tmp_path: Path) -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}], selector: {app: a}}\n"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {app: a}}\nspec: {containers: []}\n"
    written(tmp_path, a_yaml=service, b_yaml=service.replace("selector: {app: a}", "externalName: b"))
    note = "no pods here for Service/a: if another folder has them, check both as one"
    assert verify_folder(tmp_path).notes == [note]
    assert verify_folder(written(tmp_path, c_yaml=pod)).notes == []


def test_services_whose_pods_an_operator_may_make_are_not_named(tmp_path: Path) -> None:
    made = "apiVersion: example.org/v1\nkind: Database\nmetadata: {name: a}\n"
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}], selector: {app: a}}\n"
    assert verify_folder(written(tmp_path, a_yaml=service, b_yaml=made)).notes == []


SCALER = """apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: NAME}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}, minReplicas: 1, maxReplicas: 3}
"""


def test_objects_of_two_overlays_are_not_taken_for_objects_of_one_cluster(tmp_path: Path) -> None:
    for overlay in ("dev", "prod"):
        (tmp_path / overlay).mkdir()
        written(
            tmp_path / overlay,
            settings_yaml=f"{OBJECT}data: {{stage: {overlay}}}\n",
            scaler_yaml=SCALER.replace("NAME", overlay),
            kustomization_yaml=f"namespace: {overlay}\nresources: [settings.yaml, scaler.yaml]\n",
        )
    assert verify_folder(tmp_path).errors == 0
    written(tmp_path / "prod", more_yaml=f"{OBJECT}data: {{stage: other}}\n---\n{SCALER.replace('NAME', 'more')}")
    errors = {finding.rule for finding in verify_folder(tmp_path).findings if finding.level == "error"}
    assert errors == {"duplicate-object", "scaler-twice"}


def test_an_overlay_is_checked_together_with_its_base(tmp_path: Path) -> None:
    for name, base in (("base", ""), ("prod", "../base, ")):
        (tmp_path / name).mkdir()
        scaler, resources = SCALER.replace("NAME", name), f"resources: [{base}scaler.yaml]\n"
        written(tmp_path / name, scaler_yaml=scaler, kustomization_yaml=resources)
    assert [finding.rule for finding in verify_folder(tmp_path).findings if finding.level == "error"] == [
        "scaler-twice"
    ]


PARTS = {
    "apps/all.yaml": """apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {containers: [{name: a, image: a, resources: {requests: {cpu: 1}}}]}
""",
    "budgets/all.yaml": """apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: a}}}
""",
    "scalers/all.yaml": SCALER.replace("NAME", "a"),
}


def test_an_application_may_be_in_several_kustomizations(tmp_path: Path) -> None:
    for name, text in PARTS.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        written((tmp_path / name).parent, kustomization_yaml="resources: [all.yaml]\n")
    assert [str(finding) for finding in verify_folder(tmp_path).findings if finding.level == "error"] == []
    # What one of them sets in another is an error, too.
    (tmp_path / "apps/all.yaml").write_text(PARTS["apps/all.yaml"].replace("spec:", "spec:\n  replicas: 2", 1))
    assert {finding.rule for finding in verify_folder(tmp_path).findings if finding.level == "error"} == {
        "replicas-owned"
    }


@pytest.mark.parametrize(("kind", "rules"), [("Deployment", ["pdb-blocks-drain"]), ("DaemonSet", [])])
def test_two_budgets_matter_for_pods_that_a_drain_evicts(kind: str, rules: list[str], tmp_path: Path) -> None:
    budget = PARTS["budgets/all.yaml"]
    pods = PARTS["apps/all.yaml"].replace("Deployment", kind)
    written(tmp_path, a_yaml=pods, b_yaml=f"{budget}---\n{budget.replace('name: a', 'name: b')}")
    assert [finding.rule for finding in verify_folder(tmp_path).findings if finding.level == "error"] == rules


def test_what_another_kustomization_has_may_be_for_another_cluster(tmp_path: Path) -> None:
    source = "{configMapKeyRef: {name: a, key: level}}"
    used = PARTS["apps/all.yaml"].replace("image: a,", f"image: a, env: [{{name: LEVEL, valueFrom: {source}}}],")
    for place, text in (("dev", used), ("prod", f"{OBJECT}data: {{stage: prod}}\n")):
        (tmp_path / place).mkdir()
        written(tmp_path / place, all_yaml=text, kustomization_yaml="resources: [all.yaml]\n")
    levels = {finding.rule: finding.level for finding in verify_folder(tmp_path).findings}
    assert levels["key-missing"] == "warning"
    written(tmp_path / "prod", kustomization_yaml="resources: [all.yaml, ../dev]\n")
    levels = {finding.rule: finding.level for finding in verify_folder(tmp_path).findings}
    assert levels["key-missing"] == "error"


def test_bases_of_different_overlays_are_not_compared(tmp_path: Path) -> None:
    for place, base in (("v1", ""), ("v2", ""), ("old", "../v1, "), ("new", "../v2, ")):
        (tmp_path / place).mkdir()
        text = f"{OBJECT}data: {{stage: {place}}}\n".replace("name: a", f"name: {'a' if not base else 'b'}")
        resources = f"resources: [{base}all.yaml]\n"
        written(tmp_path / place, all_yaml=text, kustomization_yaml=resources)
    assert verify_folder(tmp_path).errors == 0
    # A kustomization that names both is told.
    written(tmp_path / "new", kustomization_yaml="resources: [../v1, ../v2, all.yaml]\n")
    assert [finding.rule for finding in verify_folder(tmp_path).findings if finding.level == "error"] == [
        "duplicate-object"
    ]


def test_objects_of_two_folders_side_by_side_may_be_for_two_clusters(tmp_path: Path) -> None:
    for cluster in ("production", "staging"):
        (tmp_path / cluster).mkdir()
        text = f"{OBJECT}data: {{cluster: {cluster}}}\n---\n{SCALER.replace('NAME', cluster)}"
        written(tmp_path / cluster, all_yaml=text)
    levels = {finding.rule: finding.level for finding in verify_folder(tmp_path).findings}
    assert (levels["duplicate-object"], levels["scaler-twice"]) == ("warning", "warning")
    written(tmp_path, all_yaml=f"{OBJECT}data: {{cluster: both}}\n---\n{SCALER.replace('NAME', 'both')}")
    levels = {finding.rule: finding.level for finding in verify_folder(tmp_path).findings if finding.level == "error"}
    assert levels.keys() == {"duplicate-object", "scaler-twice"}


def test_selectors_that_a_kustomization_adds_are_not_called_missing(tmp_path: Path) -> None:
    budget = (
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: a}\n"
        "spec: {maxUnavailable: 1, selector: {matchLabels: {app: a}}}\n"
    )
    deployment = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n"
        "spec: {template: {spec: {containers: [{name: a, image: a}]}}}\n"
    )
    for labels, level in (("", "error"), ("commonLabels: {app: a}\n", "warning")):
        resources = f"resources: [a.yaml, b.yaml]\n{labels}"
        written(tmp_path, a_yaml=budget, b_yaml=deployment, kustomization_yaml=resources)
        levels = {finding.rule: finding.level for finding in verify_folder(tmp_path).findings}
        assert (levels["schema"], levels["pdb-selects-nothing"]) == (level, level)


def test_a_policy_of_another_namespace_than_an_object_that_names_none_may_not_be_about_it(tmp_path: Path) -> None:
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {app: a}}\n"
        "spec: {containers: [{name: a, image: a, ports: [{containerPort: 80}]}]}\n"
    )
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}], selector: {app: a}}\n"
    policy = (
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: far}\n"
        "spec: {podSelector: {}, policyTypes: [Ingress]}\n"
    )
    for namespace, level in ((", namespace: far", "warning"), ("", "error")):
        text = policy.replace(", namespace: far", namespace)
        findings = verify_folder(written(tmp_path, a_yaml=pod, b_yaml=service, c_yaml=text)).findings
        assert [finding.level for finding in findings if finding.rule == "policy-blocks-port"] == [level]


def test_tabs_at_the_ends_of_lines_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    tabs = OBJECT.replace("\n", "\t\t\n").replace("\t\n", "\t\r\n", 1)
    assert verify_folder(written(tmp_path, a_yaml=tabs)).objects == 1
