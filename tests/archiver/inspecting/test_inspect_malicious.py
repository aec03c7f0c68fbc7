"""No archive of the corpus is called sound, and none of them runs anything while it is inspected."""

import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import malicious
import malicious_programs
import pytest

import marina
from marina.archiver.inspecting.inspect import inspect
from marina.config.errors import ArchiveError

# The file that an archive of the corpus would create if its code ran.
MARK = Path(tempfile.gettempdir(), f"marina-corpus-{os.getpid()}")


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_run() -> Iterator[None]:
    yield
    assert not MARK.exists()


def is_called_sound(mar: Path) -> bool:
    try:
        return inspect(mar).sound
    except ArchiveError:
        return False


@pytest.mark.parametrize("technique", malicious.pickles(MARK))
@pytest.mark.parametrize("name", ["weights_0", "model.pt"])
def test_a_pickle_that_does_more_than_create_tensors_is_not_sound(technique: str, name: str, tmp_path: Path) -> None:
    data = malicious.pickles(MARK)[technique]
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {name: data, "helper.py": b"x = 1\n"}))
    assert not MARK.exists()


@pytest.mark.slow
@pytest.mark.parametrize("technique", malicious.members(MARK))
def test_a_member_that_runs_code_or_leads_outside_is_not_sound(technique: str, tmp_path: Path) -> None:
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", malicious.members(MARK)[technique]))
    assert not MARK.exists()


@pytest.mark.slow
def test_an_exported_program_that_torch_would_run_as_python_is_not_sound(tmp_path: Path) -> None:
    for technique, data in malicious_programs.programs(MARK).items():
        assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {"program.pt2": data})), technique
    assert not MARK.exists()


@pytest.mark.slow
def test_an_exported_program_that_computes_its_sizes_is_sound(tmp_path: Path) -> None:
    guard = "L['x'].size()[0] <= 2 * L['x'].size()[1]"
    guarded = malicious_programs.exported(lambda text: text.replace('"guards_code": []', f'"guards_code": ["{guard}"]'))
    assert guard.encode() in guarded
    members = {
        "program.pt2": malicious_programs.exported(),
        "guarded.pt2": guarded,
        "settings.json": b'{"target": "x y"}',
    }
    assert inspect(malicious.archive(tmp_path / "m.mar", members)).sound


@pytest.mark.parametrize("field", malicious.manifests())
def test_a_manifest_that_reaches_out_of_the_archive_is_not_sound(field: str, tmp_path: Path) -> None:
    assert not is_called_sound(malicious.archive(tmp_path / "m.mar", {}, malicious.manifests()[field]))


@pytest.mark.parametrize("change", malicious.LAYOUTS)
def test_an_archive_that_contradicts_its_directory_is_not_sound(change: str, tmp_path: Path) -> None:
    mar = malicious.archive(tmp_path / "m.mar", {"a.txt": b"text"})
    assert inspect(mar).sound
    malicious.LAYOUTS[change](mar)
    assert not is_called_sound(mar)


def test_the_corpus_has_more_than_a_hundred_archives() -> None:
    assert len(malicious.pickles(MARK)) + len(malicious.members(MARK)) + len(malicious.LAYOUTS) > 100


def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = {"\x1b]0;title\x07a\x1b[31m\nsound": b""}
    mar = malicious.archive(tmp_path / "m.mar", named, {"modelName": "\x1b[2J\x9b1m"})
    assert marina.main(["inspect", str(mar)]) == 1
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
    assert shown.splitlines()[-1] == "NOT SOUND"
    assert "sound" not in shown.splitlines()


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        pytest.param(b"[]", "no object with a `model` in it", id="list"),
        pytest.param(b'{"model": null}', "no object with a `model` in it", id="null"),
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b"[" * 100_000, "not JSON", id="nested"),
        pytest.param(b"\xff", "not JSON", id="no text"),
    ],
)
def test_a_malformed_manifest_is_one_error(manifest: bytes, text: str, tmp_path: Path) -> None:
    mar = tmp_path / "m.mar"
    with zipfile.ZipFile(mar, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", manifest)
    with pytest.raises(ArchiveError, match=text):
        inspect(mar)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"cat\ndog\nbird\n", id="words"),
        pytest.param(b"cast\niron\nRust\n", id="a word that a module is called"),
        pytest.param(b"import os\nimport re\n", id="text of Python"),
        pytest.param(b"Paris\nIstanbul\n", id="names"),
        pytest.param(bytes(range(256)) * 64, id="all bytes"),
        pytest.param(b"\x80\x04 is how a pickle begins", id="a beginning"),
        pytest.param(b"x\x9c and so on", id="no zlib"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_a_file_that_is_not_a_pickle_is_sound(data: bytes, tmp_path: Path) -> None:
    assert inspect(malicious.archive(tmp_path / "m.mar", {"notes.txt": data})).sound


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "data.npy", "old.pt"])
def test_a_file_that_contains_only_numbers_is_sound(name: str, tmp_path: Path) -> None:
    import io

    import numpy as np
    import torch

    buffer = io.BytesIO()
    if name.endswith(".npy"):
        np.save(buffer, np.ones(3))
    else:
        state = {"w": torch.ones(2), "n": torch.nn.Parameter(torch.zeros(1))}
        torch.save(state, buffer, _use_new_zipfile_serialization=name != "old.pt")
    assert inspect(malicious.archive(tmp_path / "m.mar", {name: buffer.getvalue()})).sound
