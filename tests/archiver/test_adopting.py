"""Archives that were made for TorchServe are packaged unchanged, or refused with what to do."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from archives import LENGTHS, make_archive, spec_text

from marina.archiver import rehearsal
from marina.archiver.adopting import failure_hint, read_foreign
from marina.archiver.package import package
from marina.config.errors import ArchiveError, SourceError, SpecError
from marina.config.load import load_spec
from marina.config.progress import Progress
from marina.config.record import Package

QUIET = Progress(quiet=True)
# As users have it, and not from a Python that is kept warm for tests.
IN_A_NEW_PYTHON = rehearsal._run_rehearsal


def packaged(folder: Path, archive: Path, body: bytes = b'{"a": 1}', out: str = "out", **model: Any) -> Package:
    (folder / "body.json").write_bytes(body)
    (folder / "spec.yaml").write_text(spec_text(archive, **model))
    return package(load_spec(folder / "spec.yaml"), folder / out, progress=QUIET)


@pytest.mark.parametrize("form", ["default", "tgz", "no-archive"])
def test_every_file_of_an_archive_is_packed_unchanged_in_the_same_bytes_each_time(form: str, tmp_path: Path) -> None:
    files = {"handler.py": LENGTHS, "words.txt": "a b", "deep/er/data.bin": b"\x00\xff"}
    archive = make_archive(tmp_path, files, form=form, config={"minWorkers": 2, "own": {"key": "value"}})
    first = packaged(tmp_path, archive, decode_requests=False)
    assert packaged(tmp_path, archive, out="again", decode_requests=False).sha256 == first.sha256
    expected = {f"archive/{name}": hashlib.sha256(_bytes(data)).hexdigest() for name, data in files.items()}
    assert expected.items() <= first.record.files.items()
    with zipfile.ZipFile(tmp_path / "out" / "model.mar") as mar:
        assert mar.read("archive/deep/er/data.bin") == b"\x00\xff"
        manifest = json.loads(mar.read("MAR-INF/MANIFEST.json"))
        assert json.loads(mar.read("archive/MAR-INF/MANIFEST.json"))["model"]["handler"] == "handler.py"
    assert (manifest["model"]["modelName"], manifest["model"]["modelVersion"]) == ("Old_Model", "v1")


def _bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


REFUSED = {
    "torchrun": ({"parallelType": "tp"}, {}, "parallelType"),
    "sequences": ({"sequenceBatching": True}, {}, "sequenceBatching"),
    "out of order": ({"asyncCommunication": True}, {}, "asyncCommunication"),
    "vLLM": ({}, {"engine.py": "from vllm import LLM\n"}, "vLLM"),
    "DALI": ({"dali": {"num_threads": 1}}, {}, "DALI"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_needs_another_server_is_refused_with_what_to_do(kind: str, tmp_path: Path) -> None:
    config, files, said = REFUSED[kind]
    archive = make_archive(tmp_path, {"handler.py": LENGTHS, **files}, config=config)
    with pytest.raises(ArchiveError, match=said) as refused:
        read_foreign(archive, "`--source`")
    assert refused.value.hint


def test_an_archive_needs_a_sample(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "name: a\nmodel: {source: ./a.mar, handler: archive}\nserving: {cache: {mb: 1}}\n"
    )
    with pytest.raises(SpecError) as refused:
        load_spec(tmp_path / "spec.yaml")
    assert {problem.field for problem in refused.value.problems} >= {"load.sample", "serving.cache"}


def test_a_handler_that_fails_at_the_sample_is_not_packaged(tmp_path: Path) -> None:
    archive = make_archive(
        tmp_path, {"handler.py": "def handle(data, context):\n    return data and [data[0]['no']]\n"}
    )
    with pytest.raises(SourceError, match=r"KeyError: 'no' at `handler\.py:2`$"):
        packaged(tmp_path, archive)
    assert not (tmp_path / "out" / "model.mar").exists()


def test_a_handler_that_never_answers_the_sample_is_ended_with_what_broke_in_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*given: Any) -> None:
        printed = b"Exception in thread Thread-1:\nTraceback (most recent call last):\nKeyError: 'no'\nwaiting\n"
        raise subprocess.TimeoutExpired(["python"], given[-1], stderr=printed)

    monkeypatch.setattr(rehearsal, "_run_rehearsal", run)
    with pytest.raises(SourceError, match=r"within \d+ s; before that: KeyError: 'no'"):
        packaged(tmp_path, make_archive(tmp_path, {"handler.py": LENGTHS}))
    assert "KeyError" in (tmp_path / "out" / "worker.log").read_text()


LINGERING = """
import threading

def handle(data, context):
    if data is None:
        threading.Thread(target=threading.Event().wait).start()
        return None
    return ["answer"]
"""


def test_a_handler_whose_threads_never_end_is_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_run_rehearsal", IN_A_NEW_PYTHON)
    assert packaged(tmp_path, make_archive(tmp_path, {"handler.py": LINGERING})).record.archive


def test_a_named_handler_says_which_library_a_pod_lacks(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, {"w.pt": b"weights"}, handler="image_classifier", serialized_file="w.pt")
    with pytest.raises(SourceError, match="No module named 'torchvision'") as refused:
        packaged(tmp_path, archive)
    assert "requirements: ./requirements.txt" in str(refused.value.hint)


WHOLE = """
import os, torch
import net

def handle(data, context):
    if data is None:
        handle.model = torch.load(os.path.join(context.system_properties["model_dir"], "whole.pt"))
        return None
    return [str(handle.model.scale) for _ in data]
"""
NET = "class Net:\n    scale = 3\n"


def test_a_pickled_module_is_unpickled_only_where_its_makers_are_trusted(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    save = "import torch, net; torch.save(net.Net(), 'whole.pt')"
    subprocess.run([sys.executable, "-c", save], cwd=tmp_path, check=True, env={"PYTHONPATH": "."})
    files = {"handler.py": WHOLE, "net.py": NET, "whole.pt": (tmp_path / "whole.pt").read_bytes()}
    archive = make_archive(tmp_path, files)
    with pytest.raises(SourceError) as refused:
        packaged(tmp_path, archive)
    assert "--trust-pickle" in str(refused.value.hint)
    assert packaged(tmp_path, archive, trust_pickle=True).record.trust_pickle


def test_a_torchscript_that_is_opened_as_weights_is_one_that_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(spec_text(make_archive(tmp_path, {"handler.py": LENGTHS}), "./spec.yaml"))
    said = "RuntimeError: Cannot use ``weights_only=True`` with TorchScript archives passed to ``torch.load``. In …"
    hint = failure_hint(load_spec(tmp_path / "spec.yaml"), said)
    assert hint
    assert hint.startswith("marina package --trust-pickle ")


def test_a_pickled_vocabulary_of_torchtext_is_refused_with_what_to_save_instead(tmp_path: Path) -> None:
    handler = "def handle(data, context):\n    import torchtext\n"
    archive = make_archive(tmp_path, {"handler.py": handler})
    with pytest.raises(SourceError) as refused:
        packaged(tmp_path, archive)
    assert "torch.save(dict(vocab.get_stoi()), 'source_vocab.pt')" in str(refused.value.hint)
