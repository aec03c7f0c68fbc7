"""`kubernetes.pod` and `kubernetes.patches`: what a spec adds to the rendered objects."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from k8s_plans import EVIDENCE, IMAGE, fill, planned
from specs import DIGITS, changed

from marina.config.errors import InputError, SpecError
from marina.config.load import load_spec, parse_spec
from marina.k8s.manifests.notes import notes
from marina.k8s.manifests.objects import render_objects
from marina.k8s.manifests.plan import make_plan
from marina.k8s.manifests.versions import SUPPORTED_VERSIONS
from marina.k8s.rollout.release import make_release
from marina.k8s.verify.check import verify
from marina.k8s.verify.located import locate_rendered
from marina.k8s.verify.rule import Scope

STORE = {"kubernetes.model": {"url": "https://store.local/digits.mar"}}


def the_only(changes: dict[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
    files = render_objects(planned(changes, evidence=EVIDENCE, image=IMAGE))
    documents = [each for some in files.values() for each in some if each["kind"] == kind]
    return next(each for each in documents if name in (None, each["metadata"]["name"]))


def pod(changes: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = the_only(changes, "Deployment")["spec"]["template"]["spec"]
    return spec


# Fields of `kubernetes.pod`, and their effect on the pod.
FIELDS: list[Any] = [
    (
        {"volumes": {"ca": {"configMap": {"name": "company"}}}},
        "volumes",
        {"name": "ca", "configMap": {"name": "company"}},
    ),
    ({"host_aliases": {"10.0.0.5": ["store.local"]}}, "hostAliases", {"ip": "10.0.0.5", "hostnames": ["store.local"]}),
    ({"affinity": {"nodeAffinity": {}}}, "affinity", "nodeAffinity"),
    ({"dns": {"policy": "Default"}}, "dnsPolicy", "Default"),
    ({"dns": {"options": {"ndots": "1"}}}, "dnsConfig", "options"),
]


@pytest.mark.parametrize(("fields", "key", "item"), FIELDS, ids=lambda case: str(case)[:30])
def test_a_pod_field_is_added_to_the_template(fields: dict[str, Any], key: str, item: Any) -> None:
    assert item in pod({"kubernetes.pod": fields})[key]
    assert item not in pod({}).get(key, ())


def test_variables_and_mounts_are_added_to_the_server_and_the_loader() -> None:
    settings = {
        "env": {"HTTPS_PROXY": "http://proxy:3128"},
        "env_from": ["secret/store", "configmap/tuning"],
        "volumes": {"ca": {"configMap": {"name": "company"}}},
        "mounts": {"/etc/ssl/company": "ca/pem:ro"},
    }
    inside = pod({"kubernetes.pod": settings, **STORE})
    by_name = {each["name"]: each for each in inside["initContainers"] + inside["containers"]}
    for name in ("server", "model-loader"):
        assert by_name[name]["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
        assert by_name[name]["envFrom"] == [{"secretRef": {"name": "store"}}, {"configMapRef": {"name": "tuning"}}]
        mount = {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True, "subPath": "pem"}
        assert mount in by_name[name]["volumeMounts"]


def test_pods_get_annotations_and_labels_and_the_service_account_gets_its_own() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/digits"}
    fields = {"annotations": {"team": "vision"}, "labels": {"cost": "7"}, "service_account_annotations": role}
    metadata = the_only({"kubernetes.pod": fields}, "Deployment")["spec"]["template"]["metadata"]
    assert metadata["annotations"]["team"] == "vision"
    assert metadata["labels"]["cost"] == "7"
    assert metadata["labels"]["app.kubernetes.io/name"] == "digits"
    assert the_only({"kubernetes.pod": fields}, "ServiceAccount")["metadata"]["annotations"] == role


# Fields that are refused when the spec is read, and fields that are refused when it is rendered.
REFUSED: list[Any] = [
    (
        {"labels": {"app.kubernetes.io/name": "x"}},
        "`kubernetes.pod.labels.app.kubernetes.io/name`: got `app.kubernetes.io/name` as a name, allowed: others than `app.kubernetes.io/…`, which are Marina's own",
    ),
    (
        {"labels": {"team": "a b"}},
        "`kubernetes.pod.labels.team`: got `a b`, allowed: letters, digits, `-`, `_` and `.`",
    ),
    (
        {"labels": {"a": "b", "my team": "x"}},
        "`kubernetes.pod.labels.my team`: got `my team` as a name, allowed: letters",
    ),
    ({"annotations": {"marina/package": "x"}}, "allowed: others than `marina/…`, which are Marina's own"),
    ({"annotations": {"a b": "x"}}, "got `a b` as a name, allowed: letters, digits, `-`, `_` and `.`"),
    (
        {"env": {"A B": "x"}},
        "`kubernetes.pod.env.A B`: got `A B` as a name, allowed: letters, digits, `_`, `.` and `-`",
    ),
    (
        {"env_from": ["secret/a", "store"]},
        "`kubernetes.pod.env_from.1`: got `store`, allowed: `secret/NAME` or `configmap/NAME`",
    ),
    (
        {"volumes": {"A": {}}},
        "`kubernetes.pod.volumes.A`: got `A` as a name, allowed: lower-case letters, digits and `-`",
    ),
    (
        {"mounts": {"/x": "ca", "etc": "ca"}},
        "`kubernetes.pod.mounts.etc`: got `etc` as a name, allowed: a path that begins with `/`, without `..`",
    ),
    (
        {"mounts": {"/x": "ca", "/etc": "ca:rw"}},
        "`kubernetes.pod.mounts./etc`: got `ca:rw`, allowed: `VOLUME` or `VOLUME/FOLDER`, with or without `:ro`",
    ),
    (
        {"host_aliases": {"store": ["a"]}},
        "`kubernetes.pod.host_aliases.store`: got `store` as a name, allowed: an address such as `10.0.0.10`",
    ),
    ({"dns": {"policy": "None"}}, "allowed: `nameservers` with `policy: None`, because no other server is used"),
    (
        {"dns": {"nameservers": ["10.0.0.10", "ns"]}},
        "`kubernetes.pod.dns.nameservers.1`: got `ns`, allowed: an address such as `10.0.0.10`",
    ),
    ({"volumes": {"tmp": {"emptyDir": {}}}}, "`kubernetes.pod.volumes`: `tmp` is already rendered by Marina"),
    ({"mounts": {"/tmp": "ca"}}, "`kubernetes.pod.mounts`: `/tmp` is already rendered by Marina"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_wrong_pod_field_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises((SpecError, InputError)) as caught:
        pod({"kubernetes.pod": fields})
    assert text in str(caught.value)


def patch(**fields: Any) -> dict[str, Any]:
    return {"kubernetes.patches": [fields]}


def test_a_patch_changes_all_objects_of_a_kind_or_one_by_name() -> None:
    change = {"metadata": {"annotations": {"team": "vision"}}}
    for name, others in ((None, "vision"), ("digits", None)):
        named = (
            patch(kind="ConfigMap", merge=change) if name is None else patch(kind="Service", name=name, merge=change)
        )
        kind = "ConfigMap" if name is None else "Service"
        assert the_only(named, kind)["metadata"]["annotations"]["team"] == "vision"
        assert (the_only(named, "ConfigMap", "digits-dashboard")["metadata"].get("annotations") or {}).get(
            "team"
        ) == others


def test_a_later_patch_applies_to_the_result_of_an_earlier_one() -> None:
    both = [
        {"kind": "Service", "merge": {"spec": {"type": "LoadBalancer"}}},
        {
            "kind": "Service",
            "operations": [
                {"op": "test", "path": "/spec/type", "value": "LoadBalancer"},
                {"op": "add", "path": "/spec/loadBalancerClass", "value": "x"},
            ],
        },
    ]
    assert the_only({"kubernetes.patches": both}, "Service")["spec"]["loadBalancerClass"] == "x"


def test_a_patch_may_be_a_file_in_the_specs_folder(tmp_path: Path) -> None:
    texts = {
        "merge.yaml": "spec: {type: NodePort}",
        "json.json": '[{"op": "add", "path": "/spec/type", "value": "NodePort"}]',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        spec = written(tmp_path, patch(kind="Service", file=name))
        service = render_objects(make_plan(load_spec(spec, files=False), tmp_path))["50-service.yaml"][0]
        assert service["spec"]["type"] == "NodePort"


@pytest.mark.parametrize(("name", "text"), [("on", "2024-01-01"), ("1", "12:30:45")])
def test_a_file_of_a_patch_has_the_texts_that_are_written_there(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text(f"metadata: {{annotations: {{{name}: {text}}}}}", encoding="utf-8")
    spec = load_spec(written(tmp_path, patch(kind="Service", file="patch.yaml")), files=False)
    service = render_objects(make_plan(spec, tmp_path))["50-service.yaml"][0]
    assert service["metadata"]["annotations"] == {name: text}


def test_a_json_file_of_a_patch_may_have_tabs(tmp_path: Path) -> None:
    (tmp_path / "patch.json").write_text('{\n\t"spec": {\n\t\t"type": "NodePort"\n\t}\n}', encoding="utf-8")
    spec = load_spec(written(tmp_path, patch(kind="Service", file="patch.json")), files=False)
    assert render_objects(make_plan(spec, tmp_path))["50-service.yaml"][0]["spec"]["type"] == "NodePort"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spec: {a: 1}\nspec: {b: 2}", "patch.yaml:2: `spec`: given twice, first on line 1"),
        ("a: 1\n---\nb: 2", "`kubernetes.patches.0.file`: got 2 documents in "),
        ("[" * 3000, "patch.yaml:1: not readable as YAML: nested too deep"),
    ],
)
def test_a_file_of_a_patch_that_is_not_one_document_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text(text, encoding="utf-8")
    spec = load_spec(written(tmp_path, patch(kind="Service", file="patch.yaml")), files=False)
    with pytest.raises(InputError, match=reason):
        render_objects(make_plan(spec, tmp_path))


def test_a_volume_has_the_name_under_which_it_is_written() -> None:
    volume = pod({"kubernetes.pod": {"volumes": {"scratch": {"name": "tmp", "emptyDir": {}}}}})["volumes"][-1]
    assert volume == {"name": "scratch", "emptyDir": {}}


def written(folder: Path, changes: dict[str, Any]) -> Path:
    data = changed(changes, yaml.safe_load(DIGITS.read_text(encoding="utf-8")))
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file


# A forbidden patch, and a part of the message.
FORBIDDEN: list[Any] = [
    (patch(kind="Service", name="digit", merge={"a": 1}), "`kubernetes.patches.0`: no Service is called `digit`, allowed: "
     "`digits`"),
    (patch(kind="Ingress", merge={"a": 1}), "`kubernetes.patches.0`: no `Ingress` is rendered, allowed: `ConfigMap`, "),
    (patch(kind="Service", merge={"metadata": {"name": "x"}}), "Service digits: `/metadata/name`: must stay as rendered: "
     "other objects find the Service by it"),
    (patch(kind="Service", merge={"spec": {"selector": {"a": "b"}}}), "`/spec/selector`: must stay"),
    (patch(kind="Deployment", merge={"spec": {"template": {"metadata": {"labels": None}}}}),
     "`/spec/template/metadata/labels`: must stay"),
    (patch(kind="Deployment", operations=[{"op": "remove", "path": "/spec/template/spec/containers/0"}]),
     "`/spec/template/spec/containers`: the container `server` must stay"),
    (patch(kind="Deployment", operations=[{"op": "replace", "path": "/spec/template/spec/containers", "value": 3}]),
     "`/spec/template/spec/containers`: the container `server` must stay"),
    (patch(kind="Deployment", operations=[{"op": "add", "path": "/spec/template/spec/containers/0", "value": {"image": "x"}}]),
     "`/spec/template/spec/containers/0`: a container needs a `name`"),
    (patch(kind="Deployment", operations=[{"op": ["add"], "path": "/spec/replicas"}]), "`op`: got `['add']`, allowed: `add`"),
    (patch(kind="Deployment", merge={"spec": {"$deleteFromPrimitiveList/strategy": ["type"]}}),
     "allowed: a list to delete from"),
    (patch(kind="Deployment", merge={"$patch": "delete"}), "the object itself cannot be deleted or replaced"),
    (patch(kind="ConfigMap", merge={"data": {"spec.yaml": "x"}}), "`/data`: must stay"),
    (patch(kind="Deployment", operations=[{"op": "test", "path": "/spec/minReadySeconds", "value": 0}]), "the test failed"),
    (patch(kind="PodMonitor", operations=[{"op": "replace", "path": "/spec", "value": 7}]), "`/spec`: got `7`, allowed: a "
     "mapping"),
    (patch(kind="Service", operations=[{"op": "replace", "path": "/metadata/labels", "value": ["a"]}]),
     "`/metadata/labels`: got `['a']`, allowed: a mapping"),
    (patch(kind="Deployment", operations=[{"op": "remove", "path": f"/spec/template/spec/containers/{'9' * 5000}"}]),
     "in a list of 1, allowed: 0 to 0"),
    (patch(kind="Deployment", merge={"spec": {"template": {"spec": {"volumes": [{"name": ["a"]}]}}}}),
     "`/spec/template/spec/volumes/0/name`: got `['a']`, allowed: the merge key"),
    (patch(kind="Deployment", file="nowhere.yaml"), "`kubernetes.patches.0.file`: no such file: `"),
    (patch(kind="Deployment", file="spec.yaml", merge={}), "allowed: exactly one of `file`, `merge`, `operations`"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), FORBIDDEN, ids=lambda case: str(case)[:60])
def test_a_forbidden_patch_is_refused_with_its_place(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((InputError, SpecError)) as caught:
        render_objects(planned(changes))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
        (
            {"containers": [{"name": "server", "readinessProbe": {"periodSeconds": 60}}]},
            "containers[server].readinessProbe",
        ),
        ({"containers": [{"name": "server", "image": "elsewhere/digits:1"}]}, "containers[server].image"),
        ({"containers": [{"name": "server", "resources": {"limits": {"cpu": "4"}}}]}, "containers[server].resources"),
        ({"hostUsers": False, "containers": [{"name": "helper", "image": "a"}]}, None),
    ],
)
def test_a_patch_of_a_field_that_marina_derives_is_noted(pod: dict[str, Any], path: str | None) -> None:
    plan = planned(
        patch(kind="Deployment", merge={"spec": {"template": {"spec": pod}}}), evidence=EVIDENCE, image=IMAGE
    )
    patched = [note.text.split("`")[1] for note in notes(plan) if "a patch changes" in note.text]
    assert patched == ([path] if path else [])


@pytest.mark.slow
def test_verify_finds_what_a_patch_breaks_and_a_deploy_stops(tmp_path: Path) -> None:
    asks = {"name": "server", "readinessProbe": {"httpGet": {"path": "/ping"}}}
    changes = patch(kind="Deployment", merge={"spec": {"template": {"spec": {"containers": [asks]}}}})
    plan = planned(changes, evidence=EVIDENCE, image=IMAGE)
    version = verify(locate_rendered(render_objects(plan)), Scope((SUPPORTED_VERSIONS[-1],), plan))
    assert any("readinessProbe" in str(finding) for finding in version)
    wrong = patch(kind="Service", merge={"spec": {"ports": [{"port": "x"}]}})
    fill(tmp_path, load_spec(written(tmp_path, wrong), files=False), evidence=EVIDENCE, image=IMAGE)
    blockers = make_release(load_spec(tmp_path / "spec.yaml", files=False), tmp_path).blockers
    assert any("port" in blocker.text for blocker in blockers)


def test_a_release_stores_the_patched_objects_and_a_rollback_applies_them(tmp_path: Path) -> None:
    spec = load_spec(written(tmp_path, patch(kind="Service", merge={"spec": {"type": "NodePort"}})), files=False)
    documents = make_release(spec, tmp_path).documents
    assert [each["spec"]["type"] for each in documents if each["kind"] == "Service"] == ["NodePort"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  - {kind: Ingres, merge: {a: 1}}", "`kubernetes.patches.1`: no `Ingres` is rendered"),
        ("  - {kind: Service, operations: [{op: remove, path: /spec/x}]}", "`kubernetes.patches.1`: Service digits: "),
        ("  - {kind: Service, file: nowhere.yaml}", "`kubernetes.patches.1.file`: no such file"),
        ("  pod: {volumes: {tmp: {emptyDir: {}}}}", "`kubernetes.pod.volumes`: `tmp` is already rendered by Marina"),
        (
            "  pod: {mounts: {/x: nope/a:ro}}",
            "`kubernetes.pod.mounts./x`: no volume is called `nope`, allowed: `config`, `",
        ),
        ("  pod: {affinity: {nodeAffinity: 3}}", "`kubernetes.pod.affinity.nodeAffinity`: got `3`"),
    ],
)
def test_a_patch_that_cannot_be_applied_is_named_by_its_line(line: str, text: str, tmp_path: Path) -> None:
    written = DIGITS.read_text(encoding="utf-8")
    written += "kubernetes:\n  patches:\n  - {kind: Service, merge: {spec: {sessionAffinity: None}}}\n" + line + "\n"
    spec = parse_spec(written, tmp_path / "spec.yaml", files=False)
    with pytest.raises(InputError) as caught:
        render_objects(make_plan(spec, tmp_path))
    assert caught.value.message.startswith(f"{tmp_path}/spec.yaml:{written.count(chr(10))}: {text}")
