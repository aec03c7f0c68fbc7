"""What `inspect` says about archives that were made in good faith."""

import io
import json
import pickle
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import malicious
import numpy as np
import pytest
import torch
import torch._weights_only_unpickler
from model_archiver import ModelArchiver
from model_archiver.model_archiver_config import ModelArchiverConfig

from marina import handlers
from marina.archiver.archive import MANIFEST
from marina.archiver.inspecting import inspect, open_archive
from marina.archiver.inspecting.pickles import _HARMLESS, find_pickle
from marina.config.errors import ArchiveError
from marina.config.record import RECORD, file_sha256

HANDLER = "from ts.torch_handler.image_classifier import ImageClassifier\nclass Mine(ImageClassifier):\n    pass\n"
LAYER = dict(torch.nn.Linear(8, 8).state_dict())
SAVED = [
    *(torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2).to(torch.float8_e4m3fn), torch.float16, LAYER),
    *(torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse(), torch.device("cpu"), 3),
]


def archived(folder: Path, form: str = "default", *, requirements: bool = False) -> Path:
    """The archive that torch-model-archiver makes of a model file, its weights and an example's other files."""
    for name, text in {
        "model.py": "class Net:\n    pass\n",
        "index_to_name.json": '{"0": ["n01440764", "tench"]}',
        "handler.py": HANDLER,
        "requirements.txt": "captum\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    torch.save(LAYER, folder / "model.pth")
    ModelArchiver.generate_model_archive(
        ModelArchiverConfig(
            model_name="packed", version="1.0", handler=str(folder / "handler.py"), runtime="python",
            model_file=str(folder / "model.py"), serialized_file=str(folder / "model.pth"), config_file=None,
            extra_files=str(folder / "index_to_name.json"), export_path=str(folder), archive_format=form, force=True,
            requirements_file=str(folder / "requirements.txt") if requirements else None,
        )
    )  # fmt: skip
    return folder / {"tgz": "packed.tar.gz", "no-archive": "packed"}.get(form, "packed.mar")


@pytest.mark.parametrize("form", ["default", "zip-store", "tgz", "no-archive"])
def test_an_archive_of_torch_model_archiver_is_read_in_each_of_its_forms(form: str, tmp_path: Path) -> None:
    path = archived(tmp_path, form)
    report = inspect(path)
    assert report.sound, report.as_text()
    assert set(report.runs) == {"handler.py: Python", "model.py: Python"}
    with open_archive(path) as archive:
        assert archive.manifest["model"]["handler"] == "handler.py"
        assert archive.sizes.keys() == {MANIFEST, "handler.py", "index_to_name.json", "model.pth", "model.py"}
        assert archive.read("handler.py").decode() == HANDLER
        with pytest.raises(ArchiveError, match="it has no `absent`"):
            archive.read("absent")
    assert report.files["model.pth"].sha256 == file_sha256(tmp_path / "model.pth")
    formats = {name: file.format for name, file in report.files.items()}
    assert formats == {
        MANIFEST: "JSON",
        "handler.py": "Python",
        "index_to_name.json": "JSON",
        "model.pth": "torch checkpoint",
        "model.py": "Python",
    }


def test_the_report_lists_what_runs_and_says_that_nobody_judged_it(tmp_path: Path) -> None:
    text = inspect(archived(tmp_path, requirements=True)).as_text()
    assert "Marina did not make this archive" in text
    assert "RUNS       requirements.txt: pip installs what it lists, with `install_py_dep_per_model=true`" in text
    assert "pickle     model.pth:model/data.pkl: only data, imports collections OrderedDict" in text
    assert text.splitlines()[-2:] == ["what RUNS when it is loaded is listed and not judged: read it first", "sound"]


@pytest.mark.parametrize(
    ("name", "data", "kind", "runs"),
    [
        ("fast.so", b"\x7fELF\x02", "machine code", "machine code"),
        ("weights.bin", b"\x7fELF\x02", "machine code", "machine code"),
        ("weights.bin", b"MZ\x90\0", "machine code", "machine code"),
        ("handler.pyc", b"\0" * 16, "compiled Python", "compiled Python, which cannot be read"),
        ("setup", b"#!/bin/sh\ntrue\n", "script", "a script"),
        ("a.bin", b"\xac\xed\x00\x05sr", "serialised Java objects",
         "serialised Java objects, which run code when they are read"),
        ("model.ptl", b"\x20\0\0\0PTMF", "TorchScript", "TorchScript: a program of tensors that torch runs"),
        ("model.pt", malicious._torchscript(), "TorchScript", "TorchScript: a program of tensors that torch runs"),
        ("w.safetensors", b"\x02\0\0\0\0\0\0\0{\"a\"}", "safetensors", None),
        ("a.npy", b"\x93NUMPY\x01\0\x00\0", "numpy array", None),
        ("labels.txt", b"cat\ndog\n", "text", None),
        ("w.bin", b"\0\1\2", "data", None),
    ],
)  # fmt: skip
def test_a_file_is_known_by_its_bytes_or_else_by_its_name(
    name: str, data: bytes, kind: str, runs: str | None, tmp_path: Path
) -> None:
    report = inspect(malicious.archive(tmp_path / "m.mar", {name: data}))
    assert report.sound, report.as_text()
    assert report.files[name].format == kind
    assert report.runs == ((f"{name}: {runs}",) if runs else ())


def test_an_exported_program_is_listed_as_what_torch_evaluates(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), buffer)
    report = inspect(malicious.archive(tmp_path / "m.mar", {"program.pt2": buffer.getvalue()}))
    assert report.sound, report.as_text()
    assert report.runs == ("program.pt2: a torch.export program: torch evaluates the sizes and guards in it as Python",)


def test_code_in_an_archive_in_the_archive_is_listed(tmp_path: Path) -> None:
    inner = malicious.zipped({"a/__init__.py": b"import os\n"})
    report = inspect(malicious.archive(tmp_path / "m.mar", {"a.whl": inner}))
    assert report.runs == ("a.whl:a/__init__.py: Python",)


@pytest.mark.parametrize("folder", ["marina/handlers/", "handlers/"])
def test_this_versions_handlers_are_told_from_others(folder: str, tmp_path: Path) -> None:
    base = Path(str(handlers.__file__)).parent / "base.py"
    members = {f"{folder}base.py": base.read_bytes(), f"{folder}errors.py": b"x = 1\n", "base.py": base.read_bytes()}
    report = inspect(malicious.archive(tmp_path / "m.mar", members))
    assert report.own_handlers == 1
    assert report.runs == (f"{folder}errors.py: Python", "base.py: Python")
    assert "own code   1 files are this version's own handlers" in report.as_text()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((f"{index}-{as_zip}.pt", malicious.saved({"w": value}, as_zip=as_zip))
          for as_zip in (True, False) for index, value in enumerate(SAVED)),
        ("vocabulary.pkl", pickle.dumps({"a": 1})),
        ("counts.pkl", pickle.dumps(Counter("ab"))),
        ("array.pkl", pickle.dumps(np.ones(3))),
        ("bytes.pkl", pickle.dumps(b"ab", 2)),
    ],
)  # fmt: skip
def test_saved_tensors_and_plain_data_are_only_data(name: str, data: bytes, tmp_path: Path) -> None:
    report = inspect(malicious.archive(tmp_path / "m.mar", {name: data}))
    assert report.pickles
    assert report.sound, report.as_text()


def test_what_is_called_harmless_torchs_own_unpickler_allows() -> None:
    allowed = set(torch._weights_only_unpickler._get_allowed_globals())
    for module in (
        "torch",
        "torch.storage",
        "torch._utils",
        "torch.serialization",
        "collections",
        "_codecs",
        "builtins",
    ):
        for name in dir(__import__(module, fromlist=["_"])):
            assert not _HARMLESS.fullmatch(f"{module} {name}") or f"{module}.{name}" in allowed, f"{module}.{name}"


@pytest.mark.parametrize(
    "text",
    [
        "the\ncall\nwikipedia\ncoords\nnow\nbecause\n",
        "cat\ndog\nhorse\n",
        "it was printed later (in\n    Russian), and never again\n",
        "\x80\x04 is how a pickle begins",
    ],
)
def test_a_text_is_not_taken_for_a_pickle(text: str) -> None:
    assert find_pickle("words.txt", text.encode("latin-1"), "text") is None


def test_numbers_that_begin_like_a_pickle_are_not_pickles(tmp_path: Path) -> None:
    """Tries each byte at the beginning of a storage, before numbers of any type."""
    chance = torch.Generator().manual_seed(3)
    tails = [torch.randint(0, 256, (15,), dtype=torch.uint8, generator=chance) for _ in range(256)]
    weights = {
        f"w{first}": torch.cat([torch.tensor([first], dtype=torch.uint8), tail]) for first, tail in enumerate(tails)
    }
    report = inspect(malicious.archive(tmp_path / "m.mar", {"model.pt": malicious.saved(weights)}))
    assert report.sound, report.as_text()


def test_a_record_of_another_form_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=RECORD):
        inspect(malicious.archive(tmp_path / "m.mar", {RECORD: b"{}"}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "not a readable MAR"),
        (b"", "not a readable MAR"),
        (malicious.zipped({"a": b""}), "not a MAR: it has no"),
    ],
)
def test_a_file_that_is_no_packed_model_is_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    for name in ("m.mar", "m.tar.gz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArchiveError, match=message if name == "m.mar" else "not a readable MAR"):
            inspect(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArchiveError, match="not a MAR: it has no"):
        inspect(tmp_path / "folder")


def test_links_in_a_tar_and_in_a_folder_are_damage(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps({"model": malicious.MODEL}))
    (folder / "link").symlink_to("/etc/passwd")
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=".")
    assert inspect(folder).damage == ("link: a symbolic link",)
    assert inspect(tmp_path / "m.tar.gz").damage == ("link: neither a file nor a folder",)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (b"[]", "no object with a `model` in it"),
        (b'{"model": null}', "no object with a `model` in it"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_a_malformed_manifest_is_one_error(manifest: bytes, text: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        archive.writestr(MANIFEST, manifest)
    with pytest.raises(ArchiveError, match=text):
        inspect(tmp_path / "m.mar")
