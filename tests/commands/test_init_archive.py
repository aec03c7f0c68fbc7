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
    handler = "import cv2, our_rules, words\nfrom ts.torch_handler.image_classifier import ImageClassifier\n" + LENGTHS
    optional = "try:\n    import not_needed\nexcept ImportError:\n    pass\n"
    archive = make_archive(tmp_path, {"handler.py": handler, "words.py": optional})
    assert init("new", "--source", archive) == 0
    said = capsys.readouterr().out
    assert "correct `workers` under `serving`" in said
    assert "correct `max_batch` under `serving`" in said
    assert "its modules import `captum`, `cv2`, `our_rules`, `torchvision`, which a pod lacks: new/req" in said
    assert "add the libraries that have `our_rules` to new/requirements.txt" in said
    assert (tmp_path / "new/requirements.txt").read_text() == "captum\nopencv-python-headless\ntorchvision\n"
    assert load_spec(tmp_path / "new/spec.yaml", files=False).model.requirements == "./requirements.txt"
    assert "put the body of a request at new/samples/request.json" in said


def test_a_picture_handler_of_torchserves_own_is_packaged_from_the_archive_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = make_archive(tmp_path, {"w.pt": b"weights"}, handler="image_classifier", serialized_file="w.pt")
    assert init("new", "--source", archive) == 0
    assert load_spec(tmp_path / "new" / "spec.yaml").load.sample == "./samples/sample.png"


def test_what_cannot_be_taken_of_a_store_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, names in {"store": ("one", "two"), "others": ("three", "four")}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            config = None if name == "one" else {"continuousBatching": True}
            make_archive(tmp_path / folder, {"handler.py": LENGTHS}, name=name, config=config)
    assert init("shop", "--source", "store") == 0
    assert "left out: `two.mar` has `continuousBatching`" in capsys.readouterr().out
    assert load_spec(tmp_path / "shop" / "spec.yaml", files=False).model.source.endswith("one.mar")
    assert init("none", "--source", "others") == 2
    assert "none of `others` can be taken: left out: `four.mar` has" in capsys.readouterr().err


def test_a_model_store_becomes_a_spec_for_each_model_that_a_route_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    store.mkdir()
    for name in ("One_Model", "other"):
        make_archive(store, {"handler.py": LENGTHS}, name=name)
    assert init("shop", "--source", store) == 0
    assert "kubernetes: {route: {gateway: infra/web" in capsys.readouterr().out
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
