"""The Helm chart: its defaults give the manifests, its schema protects the measurements, Helm's linter accepts it."""

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from k8s_plans import EVIDENCE, FULL, IMAGE, planned

from marina.config.progress import Progress
from marina.k8s.manifests import next_steps
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import Plan
from marina.k8s.platforms import write_format

QUIET = Progress(quiet=True)
NAME = "digits"


def chart(plan: Plan, folder: Path) -> Path:
    return write_format(plan, folder, "helm", QUIET).folder


def helm() -> ModuleType:
    """Helm's own code. It is written in Go, which a process that is forked after it was loaded cannot use."""
    import helm_python

    return helm_python


def installed(folder: Path, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The objects that Helm renders from a chart. Raises HelmError for values that it refuses."""
    with helm().Chart.load(folder) as loaded:
        loaded.validate_schema(values)
        texts = loaded.render(values, name=NAME, namespace="marina")
    documents = [
        document
        for file in sorted(texts)
        if not file.endswith(".txt")
        for document in yaml.load_all(texts[file], yaml.CSafeLoader)
    ]
    return [document for document in documents if document]


def by_name(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def server_resources(resources: Any) -> dict[str, Any]:
    containers = [{"name": "server", "resources": resources}]
    return {"kind": "Deployment", "merge": {"spec": {"template": {"spec": {"containers": containers}}}}}


PLANS = [
    pytest.param({}, {"evidence": EVIDENCE, "image": IMAGE}, id="defaults"),
    pytest.param({}, {}, id="nothing measured"),
    pytest.param(FULL, {"evidence": EVIDENCE, "image": IMAGE}, id="everything"),
    pytest.param({"scaling.autoscaler": "none"}, {"evidence": EVIDENCE}, id="no autoscaler"),
    pytest.param({"kubernetes.resources.memory": "3G"}, {}, id="memory in another unit"),
    pytest.param({"kubernetes.create_namespace": False, "kubernetes.route": {"gateway": "a/b"}}, {}, id="no namespace"),
    pytest.param({"kubernetes.namespace": "on"}, {}, id="a namespace that YAML takes for a boolean"),
    pytest.param({"version": "2026.01.007"}, {"image": IMAGE}, id="a version with zeros in front"),
    pytest.param({"version": "99999999999999999999999"}, {}, id="a very large version"),
    pytest.param(
        {
            "kubernetes.route": {"gateway": "a/b", "hostnames": ["a.example"]},
            "kubernetes.patches": [
                {"kind": "HorizontalPodAutoscaler", "merge": {"spec": {"maxReplicas": 20}}},
                {"kind": "HTTPRoute", "merge": {"spec": {"hostnames": ["b.example"]}}},
                server_resources({"limits": {"memory": "8Gi"}, "claims": [{"name": "gpu"}]}),
            ],
        },
        {"evidence": EVIDENCE},
        id="patches of what the values fill in",
    ),
    pytest.param({"kubernetes.patches": [server_resources(None)]}, {}, id="no resources"),
    pytest.param({"kubernetes.patches": [server_resources("x")]}, {}, id="resources that are none"),
    pytest.param(
        {
            "kubernetes.patches": [
                {
                    "kind": "Deployment",
                    "merge": {"metadata": {"name": NAME, "namespace": "marina"}, "spec": {"paused": False}},
                }
            ]
        },
        {},
        id="a patch that names the namespace of its object",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "records"), PLANS)
def test_with_its_defaults_a_chart_gives_the_manifests(
    changes: dict[str, Any], records: dict[str, Any], tmp_path: Path
) -> None:
    plan = planned(changes, **records)
    wanted = by_name([document for documents in render_objects(plan).values() for document in documents])
    assert by_name(installed(chart(plan, tmp_path))) == wanted


def test_a_chart_without_a_namespace_takes_the_value_that_leaves_it_out(tmp_path: Path) -> None:
    folder = chart(planned({"kubernetes.create_namespace": False}), tmp_path)
    assert "Namespace" not in {document["kind"] for document in installed(folder, {"createNamespace": False})}
    with pytest.raises(helm().HelmError, match="createNamespace"):
        installed(folder, {"createNamespace": True})


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "records"), PLANS)
def test_a_chart_passes_helms_linter(changes: dict[str, Any], records: dict[str, Any], tmp_path: Path) -> None:
    report = helm().lint(chart(planned(changes, **records), tmp_path), strict=True)
    assert [document for document in report["messages"] if document["severity"] >= 2] == []
    assert report["errors"] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chart(planned(FULL, evidence=EVIDENCE, image=IMAGE), tmp_path_factory.mktemp("chart"))


@pytest.mark.slow
def test_a_value_replaces_every_occurrence_and_nothing_else(folder: Path) -> None:
    values = {
        "namespace": "shop",
        "registry": "mirror.local/m",
        "replicas": {"min": 3, "max": 30},
        "memoryMi": 3072,
        "hosts": ["a.example.org", "b.example.org"],
    }
    objects = by_name(installed(folder, values))
    text = json.dumps(list(objects.values()))
    assert "marina-chart" not in text
    # Also in the queries of the autoscaler and the dashboard.
    assert 'namespace=\\"marina\\"' not in text
    assert {document["metadata"].get("namespace", "shop") for document in objects.values()} == {"shop"}
    inside = objects["Deployment", NAME]["spec"]["template"]["spec"]
    server = next(item for item in inside["containers"] if item["name"] == "server")
    assert server["image"] == f"mirror.local/m/digits:1.0@sha256:{'a' * 64}"
    assert (server["resources"]["limits"]["memory"], server["resources"]["requests"]["memory"]) == ("3Gi", "3Gi")
    scaler = objects["ScaledObject", NAME]["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"], scaler["fallback"]["replicas"]) == (3, 30, 3)
    assert objects["HTTPRoute", NAME]["spec"]["hostnames"] == ["a.example.org", "b.example.org"]
    assert "hostnames" not in by_name(installed(folder, {"hosts": []}))["HTTPRoute", NAME]["spec"]


@pytest.mark.parametrize("namespace", ["on", "123", "1e3", "null"])
def test_a_namespace_that_looks_like_another_type_stays_text(namespace: str, folder: Path) -> None:
    objects = installed(folder, {"namespace": namespace})
    assert {document["metadata"].get("namespace", namespace) for document in objects} == {namespace}


def test_without_an_autoscaler_a_chart_has_one_number_of_pods(tmp_path: Path) -> None:
    fixed = chart(planned({"scaling.autoscaler": "none"}), tmp_path)
    objects = by_name(installed(fixed, {"replicas": {"min": 12}}))
    assert objects["Deployment", NAME]["spec"]["replicas"] == 12
    with pytest.raises(helm().HelmError, match="max"):
        installed(fixed, {"replicas": {"max": 12}})


def test_memory_of_no_whole_gibibyte_is_written_as_the_api_server_stores_it(folder: Path) -> None:
    server = by_name(installed(folder, {"memoryMi": 1100}))["Deployment", NAME]["spec"]["template"]["spec"][
        "containers"
    ]
    assert server[0]["resources"]["limits"]["memory"] == "1100Mi"


def test_a_registry_is_refused_that_the_spec_would_refuse(folder: Path) -> None:
    with pytest.raises(helm().HelmError, match="registry"):
        installed(folder, {"registry": "http://mirror.local/m"})


@pytest.mark.parametrize("addon", ["monitoring", "keda", "gateway"])
def test_objects_that_need_an_operator_can_be_left_out(addon: str, folder: Path) -> None:
    groups = {"monitoring": "monitoring.coreos.com", "keda": "keda.sh", "gateway": "gateway.networking.k8s.io"}
    assert any(document["apiVersion"].startswith(groups[addon]) for document in installed(folder))
    assert not any(document["apiVersion"].startswith(groups[addon]) for document in installed(folder, {addon: False}))


# The peak was measured as 778 MiB.
REFUSED: list[Any] = [
    ({"memoryMi": 777}, "memoryMi"),
    ({"memoryMi": "2Gi"}, "memoryMi"),
    ({"replicas": {"min": 0, "max": 2}}, "min"),
    ({"replicas": {"min": 3, "max": 2}}, "replicas.min: got 3, but replicas.max is 2"),
    ({"measured": {"kneeRps": 5000}}, "measured"),
    ({"cpu": 8}, "cpu"),
    ({"enabled": False}, "enabled"),
    ({"namespace": "Shop"}, "namespace"),
    ({"hosts": ["a b"]}, "hosts"),
]


@pytest.mark.parametrize(("values", "text"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_value_that_the_measurement_does_not_cover_is_refused(
    values: dict[str, Any], text: str, folder: Path
) -> None:
    with pytest.raises(helm().HelmError) as caught:
        installed(folder, values)
    assert text in str(caught.value)


@pytest.mark.parametrize("creates", [True, False])
def test_the_commands_for_a_chart_name_its_folder_and_make_the_namespace_only_if_the_spec_does(
    creates: bool, tmp_path: Path
) -> None:
    plan = planned({"kubernetes.create_namespace": creates}, evidence=EVIDENCE, image=IMAGE)
    written = write_format(plan, tmp_path / "a b", "helm", QUIET)
    make = " --create-namespace --set createNamespace=false" if creates else ""
    assert [command for command, _ in next_steps(written, plan.spec, "helm")] == [
        f"helm upgrade --install digits '{tmp_path}/a b/chart' -n marina{make}"
    ]


@pytest.mark.parametrize(("enabled", "rendered"), [(True, True), (False, False)])
def test_a_chart_inside_another_one_is_included_by_a_condition(
    enabled: bool, rendered: bool, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "charts/digits")
    dependency = {"name": "digits", "version": "1.0.0", "condition": "digits.enabled"}
    outer = {"apiVersion": "v2", "name": "shop", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(outer), encoding="utf-8")
    values = {"digits": {"enabled": enabled, "namespace": "shop"}, "global": {"zone": "a"}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    kinds = {document["kind"] for document in installed(tmp_path)}
    assert ("Deployment" in kinds) is rendered


def test_the_measured_peak_itself_is_allowed(folder: Path) -> None:
    with helm().Chart.load(folder) as loaded:
        loaded.validate_schema({"memoryMi": 778})


def test_the_notes_of_a_chart_name_the_port_that_a_patch_chose(tmp_path: Path) -> None:
    patch = {"kind": "Service", "merge": {"spec": {"ports": [{"port": 80, "targetPort": "inference"}]}}}
    with helm().Chart.load(chart(planned({"kubernetes.patches": [patch]}), tmp_path)) as loaded:
        texts = loaded.render({"namespace": "shop"}, name=NAME, namespace="shop")
    (notes,) = (text for file, text in texts.items() if file.endswith("NOTES.txt"))
    assert "http://digits.shop.svc:80/predictions/digits" in notes
