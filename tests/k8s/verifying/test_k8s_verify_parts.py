"""Folders that hold a part of an application, or that kustomize would change: `marina verify --dir` says so."""

from pathlib import Path

import pytest
from k8s_plans import OBJECT, written

from config.errors import SpecError
from k8s.verify.run import verify_folder


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
