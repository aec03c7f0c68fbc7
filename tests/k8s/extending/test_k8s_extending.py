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
from marina.k8s.rollout.release import make_release

STORE = {"kubernetes.model": {"url": "https://store.local/digits.mar"}}


def the_only(changes: dict[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
    files = render_objects(planned(changes, evidence=EVIDENCE, image=IMAGE))
    documents = [each for some in files.values() for each in some if each["kind"] == kind]
    return next(each for each in documents if name in (None, each["metadata"]["name"]))


def pod(changes: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = the_only(changes, "Deployment")["spec"]["template"]["spec"]
    return spec


def test_variables_and_mounts_are_added_to_the_server_and_the_loader() -> None:
    settings = {
        "env": {"HTTPS_PROXY": "http://proxy:3128"},
        "env_from": ["secret/store", "configmap/tuning"],
        "volumes": {"ca": {"configMap": {"name": "company"}}},
        "mounts": {"/etc/ssl/company": "ca/pem:ro"},
    }
    inside = pod({"kubernetes.pod": settings, **STORE})
    assert {"name": "ca", "configMap": {"name": "company"}} in inside["volumes"]
    by_name = {each["name"]: each for each in inside["initContainers"] + inside["containers"]}
    for name in ("server", "model-loader"):
        assert by_name[name]["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
        assert by_name[name]["envFrom"] == [{"secretRef": {"name": "store"}}, {"configMapRef": {"name": "tuning"}}]
        mount = {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True, "subPath": "pem"}
        assert mount in by_name[name]["volumeMounts"]


def test_a_volume_has_the_name_under_which_it_is_written() -> None:
    volume = pod({"kubernetes.pod": {"volumes": {"scratch": {"name": "tmp", "emptyDir": {}}}}})["volumes"][-1]
    assert volume == {"name": "scratch", "emptyDir": {}}


# Fields that are refused when the spec is read, and fields that are refused when it is rendered.
REFUSED: list[Any] = [
    ({"env": {"A B": "x"}}, "`kubernetes.pod.env.A B`: got `A B` as a name, allowed: letters, digits, `_`, `.` and `-`"),
    ({"env_from": ["secret/a", "store"]},
     "`kubernetes.pod.env_from.1`: got `store`, allowed: `secret/NAME` or `configmap/NAME`"),
    ({"volumes": {"A": {}}}, "`kubernetes.pod.volumes.A`: got `A` as a name, allowed: lower-case letters, digits and `-`"),
    ({"mounts": {"/x": "ca", "etc": "ca"}},
     "`kubernetes.pod.mounts.etc`: got `etc` as a name, allowed: a path that begins with `/`, without `..`"),
    ({"mounts": {"/x": "ca", "/etc": "ca:rw"}},
     "`kubernetes.pod.mounts./etc`: got `ca:rw`, allowed: `VOLUME` or `VOLUME/FOLDER`, with or without `:ro`"),
    ({"labels": {"team": "vision"}}, "`kubernetes.pod.labels`: no longer a field, instead: a patch of the Deployment"),
    ({"volumes": {"tmp": {"emptyDir": {}}}}, "`kubernetes.pod.volumes`: `tmp` is already rendered by Marina"),
    ({"mounts": {"/tmp": "config"}}, "`kubernetes.pod.mounts`: `/tmp` is already rendered by Marina"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "text"), REFUSED, ids=lambda case: str(case)[:40])
def test_a_wrong_pod_field_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises((SpecError, InputError)) as caught:
        pod({"kubernetes.pod": fields})
    assert text in str(caught.value)


def patch(**fields: Any) -> dict[str, Any]:
    return {"kubernetes.patches": [fields]}


def in_pod(fields: dict[str, Any]) -> dict[str, Any]:
    return patch(kind="Deployment", merge={"spec": {"template": {"spec": fields}}})


def test_a_patch_changes_all_objects_of_a_kind_or_one_by_name() -> None:
    change = {"metadata": {"annotations": {"team": "vision"}}}

    def team(patched: dict[str, Any], kind: str, name: str) -> Any:
        return (the_only(patched, kind, name)["metadata"].get("annotations") or {}).get("team")

    every, one = patch(kind="ConfigMap", merge=change), patch(kind="Service", name="digits", merge=change)
    assert team(every, "ConfigMap", "digits-dashboard") == team(one, "Service", "digits") == "vision"
    assert team(one, "ConfigMap", "digits-dashboard") is None


def test_a_later_patch_applies_to_the_result_of_an_earlier_one() -> None:
    types = ({"type": "LoadBalancer", "loadBalancerClass": "x"}, {"type": "NodePort"})
    both = {"kubernetes.patches": [{"kind": "Service", "merge": {"spec": fields}} for fields in types]}
    spec = the_only(both, "Service")["spec"]
    assert (spec["type"], spec["loadBalancerClass"]) == ("NodePort", "x")


def test_an_affinity_of_your_own_leaves_what_the_package_needs_of_a_node() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    inside = pod({"model.cpu_target": "x86-64-v3"} | in_pod({"affinity": affinity}))
    assert inside["affinity"] == affinity
    needed = {f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in ("AVX2", "FMA3")}
    assert inside["nodeSelector"] == {"kubernetes.io/arch": "amd64"} | needed


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
    (in_pod({"containers": [{"name": "server", "$patch": "delete"}]}), "the container `server` must stay"),
    (in_pod({"containers": None}), "the container `server` must stay"),
    (in_pod({"$retainKeys": ["containers"]}), "`/spec/template/spec`: `$retainKeys`: unknown directive"),
    (patch(kind="Deployment", merge={"$patch": "delete"}), "the object itself cannot be deleted or replaced"),
    (patch(kind="ConfigMap", merge={"data": {"spec.yaml": "x"}}), "`/data`: must stay"),
    (patch(kind="PodMonitor", merge={"spec": None}), "`/spec`: got `None`, allowed: a mapping"),
    (patch(kind="Service", merge={"metadata": {"labels": ["a"]}}), "`/metadata/labels`: got `['a']`, allowed: a mapping"),
    (patch(kind="Deployment"), "`kubernetes.patches.0.merge`: missing"),
    (patch(kind="Deployment", file="patch.yaml"), "`kubernetes.patches.0.file`: no longer a field, instead: the same mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), FORBIDDEN, ids=lambda case: str(case)[:60])
def test_a_forbidden_patch_is_refused_with_its_place(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((InputError, SpecError)) as caught:
        render_objects(planned(changes))
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "path"),
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
def test_a_patch_of_a_field_that_marina_derives_is_noted(fields: dict[str, Any], path: str | None) -> None:
    plan = planned(in_pod(fields), evidence=EVIDENCE, image=IMAGE)
    patched = [note.text.split("`")[1] for note in notes(plan) if "a patch changes" in note.text]
    assert patched == ([path] if path else [])


def test_a_release_has_the_patched_objects_and_is_stopped_by_what_a_patch_breaks(tmp_path: Path) -> None:
    def release(changes: dict[str, Any]) -> Any:
        spec = load_spec(written(tmp_path, changes), files=False)
        fill(tmp_path, spec, evidence=EVIDENCE, image=IMAGE)
        return make_release(spec, tmp_path)

    sound = release(patch(kind="Service", merge={"spec": {"type": "NodePort"}}))
    assert [each["spec"]["type"] for each in sound.documents if each["kind"] == "Service"] == ["NodePort"]
    assert (sound.blockers, sound.facts["patched"]) == ((), "Service")
    wrong = release(patch(kind="Service", merge={"spec": {"ports": [{"port": "x"}]}}))
    assert any("port" in blocker.text and not blocker.acceptable for blocker in wrong.blockers)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  - {kind: Ingres, merge: {a: 1}}", "`kubernetes.patches.1`: no `Ingres` is rendered"),
        ("  - {kind: Service, merge: {spec: {ports: [{x: 1}]}}}", "`kubernetes.patches.1`: Service digits: "),
        ("  pod: {volumes: {tmp: {emptyDir: {}}}}", "`kubernetes.pod.volumes`: `tmp` is already rendered by Marina"),
        (
            "  pod: {mounts: {/x: nope/a:ro}}",
            "`kubernetes.pod.mounts./x`: no volume is called `nope`, allowed: `config`, `",
        ),
    ],
)
def test_a_patch_that_cannot_be_applied_is_named_by_its_line(line: str, text: str, tmp_path: Path) -> None:
    spec_text = DIGITS.read_text(encoding="utf-8")
    spec_text += "kubernetes:\n  patches:\n  - {kind: Service, merge: {spec: {sessionAffinity: None}}}\n" + line + "\n"
    spec = parse_spec(spec_text, tmp_path / "spec.yaml", files=False)
    with pytest.raises(InputError) as caught:
        render_objects(make_plan(spec, tmp_path))
    assert caught.value.message.startswith(f"{tmp_path}/spec.yaml:{spec_text.count(chr(10))}: {text}")
