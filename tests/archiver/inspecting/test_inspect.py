import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting.inspect import inspect
from marina.archiver.inspecting.nested import ReadBudget, walk_nested
from marina.archiver.inspecting.pickles import find_pickles
from marina.config.errors import ArchiveError
from marina.config.record import RECORD


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this would have been run",)


def archive(file: Path, members: dict[str, bytes]) -> Path:
    manifest = json.dumps({"model": {"modelName": "m", "modelVersion": "1", "handler": "image_classifier"}}).encode()
    with zipfile.ZipFile(file, "w") as target:
        for name, data in ({MANIFEST: manifest} | members).items():
            target.writestr(name, data)
    return file


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_foreign_archive_is_described_without_a_record(tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "m.mar", {"h.py": b"pass"}))
    assert report.sound
    assert "Marina did not make this archive" in report.as_text()
    assert report.as_data()["record"] is None


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_code_is_found_and_not_run(
    protocol: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = inspect(archive(tmp_path / "m.mar", {"vocabulary.pkl": pickle.dumps(Bomb(), protocol)}))
    assert not report.sound
    assert "RUNS CODE" in report.as_text()
    assert "print" in report.pickles[0].imports[0]
    assert "this would have been run" not in capsys.readouterr().out


def test_a_whole_model_saved_by_torch_runs_code(tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "m.mar", {"model.pt": saved(torch.nn.Linear(1, 1))}))
    assert any("torch.nn.modules.linear Linear" in pickled.imports for pickled in report.pickles)
    assert not report.sound


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"weight": torch.ones(2)}, id="float"),
        pytest.param({"weight": torch.ones(2, dtype=torch.bfloat16)}, id="bfloat16"),
        pytest.param(torch.nn.Linear(1, 1).state_dict(), id="state dict"),
        pytest.param({"weight": torch.nn.Parameter(torch.ones(2)), "epoch": 3}, id="parameter"),
    ],
)
def test_saved_tensors_are_only_tensors(value: object, tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "m.mar", {"w.pt": saved(value)}))
    assert report.pickles
    assert report.sound


def test_a_pickle_in_an_archive_in_an_archive_is_found() -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as target:
        target.writestr("deep.bin", pickle.dumps(Bomb()))
    budget = ReadBudget.of(0)
    pickles = [
        pickle
        for file in walk_nested("outer.zip", inner.getvalue(), budget)
        for pickle in find_pickles(file.name, file.data)
    ]
    assert "outer.zip:deep.bin" in [pickle.file for pickle in pickles if pickle.runs_code]


def test_text_is_not_a_pickle() -> None:
    assert list(find_pickles("notes.txt", b"\x80\x04 is how a pickle begins")) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"no zip", "not a readable MAR", id="no zip"),
        pytest.param(b"", "not a readable MAR", id="empty"),
    ],
)
def test_a_file_that_is_not_an_archive_is_an_error(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.mar").write_bytes(data)
    with pytest.raises(ArchiveError, match=message):
        inspect(tmp_path / "m.mar")


def test_a_zip_without_a_manifest_is_not_a_mar(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as target:
        target.writestr("a", b"")
    with pytest.raises(ArchiveError, match="not a MAR"):
        inspect(tmp_path / "m.mar")


def test_a_path_out_of_the_folder_is_damage(tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "m.mar", {"../../etc/cron.d/x": b""}))
    assert report.damage == ("../../etc/cron.d/x: would be unpacked outside the model's folder",)


def test_a_record_of_another_form_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=RECORD):
        inspect(archive(tmp_path / "m.mar", {RECORD: b"{}"}))


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("source/json.py", b"", "source/json.py: would replace the module `json` in a worker"),
        ("model-config.yaml", b'{minWorkers: 1, "useVenv": yes}', "model-config.yaml: installs packages, by `useVenv`"),
        (".", b"x", ".: would overwrite a member of another name"),
    ],
)
def test_what_hides_from_a_first_look_is_found(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    report = inspect(archive(tmp_path / "m.mar", {name: data}))
    assert (*report.code, *report.damage) == (expected,)
