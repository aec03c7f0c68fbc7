"""`init` writes the spec of an archive from what TorchServe was told, and asks for what nothing says."""

import json
import zipfile
from pathlib import Path

import pytest
import yaml
from archives import LENGTHS, make_archive

from marina.command import main
from marina.config.load import load_spec


def init(*arguments: object) -> int:
    return main(["init", *map(str, arguments)])


def test_settings_come_from_the_archive_and_then_from_the_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = make_archive(tmp_path, {"handler.py": LENGTHS}, name="BERT_Seq", config={"batchSize": 8})
    (tmp_path / "body.json").write_text("{}")
    (tmp_path / "config.properties").write_text(
        "default_response_timeout=33\ndecode_input_request=false\nservice_envelope=json\ncors_allowed_origin=*\n"
        "blacklist_env_vars=AWS_.*\n"
        "max_request_size=200000000\nmodels={'BERT_Seq': {'v1': {'minWorkers': 2, 'maxWorkers': 2, 'batchSize': 2}}}\n"
    )
    assert init("new", "--source", archive, "--properties", "config.properties", "--sample", "body.json") == 0
    assert "`cors_allowed_origin` of config.properties is not taken over" in capsys.readouterr().out
    spec = load_spec(tmp_path / "new" / "spec.yaml")
    assert (spec.url_name, spec.url_version) == ("BERT_Seq", "v1")
    assert (spec.workers, spec.max_batch, spec.serving.max_batch_delay_ms) == (2, 8, 100)
    # Any model-config.yaml sets it, whatever the properties say.
    assert spec.serving.response_timeout_s == 120
    assert (spec.model.decode_requests, spec.model.envelope) == (False, "json")
    assert spec.model.hidden_env == "AWS_.*"
    assert spec.serving.max_request_mb == 200


def test_what_was_said_at_registration_only_is_asked_for_and_missing_libraries_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    handler = "import cv2, words\nfrom ts.torch_handler.image_classifier import ImageClassifier\n" + LENGTHS
    optional = "try:\n    import not_needed\nexcept ImportError:\n    pass\n"
    archive = make_archive(tmp_path, {"handler.py": handler, "words.py": optional})
    assert init("new", "--source", archive) == 0
    said = capsys.readouterr().out
    assert "write `workers: NUMBER`" in said
    assert "write `max_batch: SIZE`" in said
    assert "its modules import `captum`, `cv2`, `torchvision`, which a pod lacks: write `requirements: " in said
    assert "put the body of a request at new/samples/request.json" in said


def test_a_model_store_becomes_a_spec_for_each_model_that_a_route_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    store.mkdir()
    for name in ("One_Model", "other"):
        make_archive(store, {"handler.py": LENGTHS}, name=name)
    assert init("shop", "--source", store) == 0
    assert "kubernetes: {route: {gateway: NAMESPACE/NAME" in capsys.readouterr().out
    names = {file.parent.name: yaml.safe_load(file.read_text()) for file in (tmp_path / "shop").rglob("spec.yaml")}
    assert {name: spec["model"].get("name") for name, spec in names.items()} == {
        "one-model": "One_Model",
        "other": None,
    }


def test_a_handler_that_only_a_property_named_is_asked_for_and_a_workflow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    manifests = {"none.mar": {"model": {"modelName": "none"}}, "flow.war": {"workflow": {"workflowName": "flow"}}}
    for name, manifest in manifests.items():
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    assert init("asked", "--source", "none.mar") == 0
    assert "the archive names no handler: write the `default_service_handler`" in capsys.readouterr().out
    (tmp_path / "config.properties").write_text("default_service_handler=image_classifier\n")
    assert init("told", "--source", "none.mar", "--properties", "config.properties") == 0
    assert "default_handler: image_classifier " in (tmp_path / "told" / "spec.yaml").read_text()
    assert init("flow", "--source", "flow.war") == 2
    assert "is a workflow, allowed: an archive with one model" in capsys.readouterr().err
