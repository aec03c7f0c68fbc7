"""Packaging for real: compiled artifacts, their answers, and what must never be written."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compiler
import numpy as np
import pytest
import torch
import yaml
from packages import cache_of_nothing_compiled
from specs import ROOT, Packaged, digits_spec
from tools import needs
from waiting import held_out_images

import marina
from marina.archiver import package as packaging
from marina.archiver import quantize
from marina.archiver.inspecting.inspect import inspect
from marina.config.errors import AgreementError, SourceError
from marina.config.progress import Progress
from marina.config.record import RECORD, Package, file_sha256, read_package, read_record

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# What train.py prints; every precision has to keep it within one image of 450.
TRAINED_ACCURACY = 0.9956
ONE_IMAGE = 1 / 450


def unpacked(packaged: Packaged, variant: str, folder: Path) -> Path:
    out, package = packaged(variant)
    with zipfile.ZipFile(out / package.mar) as archive:
        archive.extractall(folder)
    return folder


def run(folder: Path, code: str, **environment: str) -> Any:
    """What code in a fresh process, which knows nothing of this repository, prints as JSON in its last line."""
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    # Kernels are compiled for a number of threads, and a worker has as many as its package says.
    threads = {"OMP_NUM_THREADS": str(json.loads((folder / RECORD).read_text(encoding="utf-8"))["threads"])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | threads | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


ANSWER_TEST_SET = """
import json, numpy as np, torch
from pathlib import Path
from marina.handlers.artifact import load_artifact, pick_device
from marina.handlers.record import load_record
here = Path(sys.path[0])
record = load_record(here)
artifact = load_artifact(record, here, pick_device(record, None))
images = np.load(here / "test.npy")
answers = []
for batch in record.batch_sizes:
    found = []
    for begin in range(0, len(images), batch):
        rows = images[begin:begin + batch]
        padded = np.concatenate([rows, np.zeros((batch - len(rows), 8, 8, 1), np.uint8)])
        with torch.no_grad():
            found += artifact.run([torch.from_numpy(padded)])[1][:len(rows), 0].tolist()
    answers.append(found)
print(json.dumps({"kind": artifact.kind, "answers": answers, "inductor": "torch._inductor.compile_fx" in sys.modules}))
"""


IMPORT_AND_COUNT = """
import gc, json
collections = []
gc.callbacks.append(lambda phase, _: collections.append(phase))
import marina_entry
print(json.dumps([len(collections), gc.get_freeze_count(), gc.isenabled()]))
"""


@pytest.mark.parametrize("variant", ["fp32", "bf16", "int8", "jit", "export", "eager"])
def test_a_package_keeps_the_accuracy_in_a_process_of_its_own(variant: str, packaged: Packaged, tmp_path: Path) -> None:
    images, digits = held_out_images()
    folder = unpacked(packaged, variant, tmp_path)
    np.save(folder / "test.npy", images)
    result = run(folder, ANSWER_TEST_SET)
    for answers in result["answers"]:
        assert (np.array(answers) == digits).mean() >= TRAINED_ACCURACY - ONE_IMAGE - 1e-4
    assert result["kind"] == {name: name for name in ("jit", "export", "eager")}.get(variant, "aot")


def test_an_aot_package_loads_without_compiler_and_model_source(packaged: Packaged, tmp_path: Path) -> None:
    folder = unpacked(packaged, "int8", tmp_path)
    np.save(folder / "test.npy", held_out_images()[0][:8])
    without_compiler = "import os; os.environ['PATH'] = '/nowhere'; os.environ['CXX'] = '/nowhere/g++'\n"
    result = run(folder, without_compiler + ANSWER_TEST_SET)
    assert not result["inductor"]
    names = {path.name for path in folder.rglob("*")}
    assert not names & {"model.py", "digits.safetensors", "program.pt2"}


def test_a_worker_looks_for_no_garbage_among_what_it_imports(packaged: Packaged, tmp_path: Path) -> None:
    collections, kept, enabled = run(unpacked(packaged, "fp32", tmp_path), IMPORT_AND_COUNT)
    assert enabled
    assert collections < 20
    assert kept > 100_000


def test_a_jit_package_starts_without_compiling(packaged: Packaged, tmp_path: Path) -> None:
    """torch asks the compiler what it is, and then finds every kernel in the package."""
    folder = unpacked(packaged, "jit", tmp_path / "model")
    np.save(folder / "test.npy", held_out_images()[0][:8])
    real = shutil.which("g++")
    assert real is not None
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    asked = tmp_path / "asked"
    # Under the same name, because torch looks kernels up by what it prints.
    answers = f'[ $# -eq 1 ] && PATH={Path(real).parent}:$PATH exec g++ "$@"'
    compiler.write_text(f'#!/bin/sh\necho "$*" >>{asked}\n{answers}\nexit 1\n', encoding="utf-8")
    compiler.chmod(0o755)
    result = run(folder, ANSWER_TEST_SET, PATH=f"{compiler.parent}:{os.environ['PATH']}")
    assert result["kind"] == "jit"
    assert set(asked.read_text(encoding="utf-8").splitlines()) == {"--version", "-v"}


@pytest.mark.parametrize("variant", ["int8", "jit"])
def test_two_builds_are_the_same_to_the_byte(variant: str, packaged: Packaged, tmp_path: Path) -> None:
    """The second one in another process, from a copy of the example in another folder, into another folder."""
    example = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "config/examples/digits", example)
    out, first = packaged(variant)
    text = (example / "spec.yaml").read_text(encoding="utf-8").replace("precision: fp32", "precision: int8")
    text = text.replace("batch_sizes: [1, 8]", "batch_sizes: [8]")
    if variant == "jit":
        text = text.replace("compile: aot", "compile: jit")
    (example / "spec.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "marina", "package", str(example / "spec.yaml"), "--out", str(tmp_path / "build")]
    empty = {"MARINA_CACHE": str(cache_of_nothing_compiled(tmp_path / "cache"))}
    # That g++ itself makes the same twice is shown once.
    empty |= {compiler.ANEW: "yes"} if variant == "jit" else {}
    subprocess.run([*command, "--quiet"], check=True, cwd=ROOT, env=os.environ | empty)
    second = read_package(tmp_path / "build/digits")
    differing = {name for name, sha in first.record.files.items() if second.record.files.get(name) != sha}
    assert differing == set()
    assert file_sha256(tmp_path / "build/digits/model.mar") == file_sha256(out / "model.mar")


@pytest.mark.parametrize("variant", ["fp32", "int8", "jit", "export", "eager"])
def test_there_is_no_pickle_in_a_package(variant: str, packaged: Packaged) -> None:
    out, package = packaged(variant)
    report = inspect(out / package.mar)
    assert report.pickles == ()
    assert report.damage == ()


def test_no_path_of_the_packaging_machine_is_in_a_package(packaged: Packaged) -> None:
    for variant in ("int8", "jit"):
        out, package = packaged(variant)
        with zipfile.ZipFile(out / package.mar) as archive:
            for name in archive.namelist():
                data = archive.read(name)
                assert str(ROOT).encode() not in data, name
                assert b"marina-package-" not in data, name
                assert b"marina-compile-" not in data, name


def test_inspect_verifies_every_file(packaged: Packaged, tmp_path: Path) -> None:
    out, package = packaged("fp32")
    with zipfile.ZipFile(out / package.mar) as source, zipfile.ZipFile(tmp_path / "bad.mar", "w") as target:
        for name in source.namelist():
            if name == "labels.txt":
                continue
            data = source.read(name)
            target.writestr(name, data + b"#" if name == "marina/handlers/base.py" else data)
        target.writestr("extra.py", b"")
    report = inspect(tmp_path / "bad.mar")
    assert set(report.damage) == {
        "marina/handlers/base.py: not the recorded content",
        "extra.py: not in the record",
        "labels.txt: recorded, but missing",
    }
    assert marina.main(["inspect", str(tmp_path / "bad.mar")]) == 1


def test_the_record_says_what_is_inside(packaged: Packaged) -> None:
    out, package = packaged("int8")
    assert read_package(out) == package
    assert read_record(out / package.mar) == package.record
    record = package.record
    assert (record.name, record.precision, record.compile, record.handler) == ("digits", "int8", "aot", "image")
    assert [artifact.batch for artifact in record.artifacts] == [8]
    assert [artifact.batch for artifact in packaged("fp32")[1].record.artifacts] == [1, 8]
    assert record.agreement.count == 256
    with zipfile.ZipFile(out / package.mar) as archive:
        assert set(archive.namelist()) == set(record.files) | {RECORD}
        assert yaml.safe_load(archive.read("model-config.yaml"))["batchSize"] == 8


def spoiled(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """A quantiser that loses the sign of one layer's weights."""

    def quantised(*arguments: Any, **options: Any) -> torch.nn.Module:
        module = original(*arguments, **options)
        frozen = next(buffer for name, buffer in module.named_buffers() if buffer.dtype == torch.int8)
        frozen.abs_()
        return module

    return quantised


def test_a_defect_in_the_quantised_model_is_refused_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(packaging, "quantize", spoiled(quantize.quantize))
    spec = digits_spec({"model.precision": "int8", "model.compile": "export"})
    (tmp_path / "model.mar").write_bytes(b"the package before")
    with pytest.raises(AgreementError, match="no MAR was written") as raised:
        packaging.package(spec, tmp_path, progress=Progress(quiet=True))
    assert raised.value.exit_code == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("model.mar", b"the package before")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"model.image.height": 9}, "allowed: uint8 .9, 8, 1. or rows of it", id="other calibration"),
        pytest.param(
            {"model.image.height": 1, "model.image.width": 1, "model.calibration": None},
            "the model fails on inputs",
            id="an image the model cannot take",
        ),
        pytest.param({"model.labels": "imagenet"}, "has 1000 labels, but the model has 10 classes", id="labels"),
        pytest.param({"load.sample": "sample.json"}, "was answered with 422", id="a sample the model refuses"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_compiled(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "sample.json").write_text('{"picture": "3.png"}', encoding="utf-8")
    if changes.get("load.sample"):
        changes = {"load.sample": str(tmp_path / "sample.json")}
    spec = digits_spec({"model.compile": "export"} | changes)
    with pytest.raises(SourceError, match=message):
        packaging.package(spec, tmp_path / "out", progress=Progress(quiet=True))
    assert {file.name for file in (tmp_path / "out").glob("*")} <= {"worker.log"}


def test_an_own_handler_and_a_tensor_model_are_packaged(tmp_path: Path) -> None:
    needs("g++", package="g++")
    spec = ROOT / "config/examples/custom/spec.yaml"
    assert marina.main(["package", str(spec), "--out", str(tmp_path), "--quiet", "--json"]) == 0
    record = read_record(tmp_path / "iris/model.mar")
    assert record.handler == "iris_handler:IrisHandler"
    assert record.agreement.measure == "tolerance"
    assert "iris_handler.py" in record.files


def test_the_package_record_is_what_json_prints(packaged: Packaged, capsys: pytest.CaptureFixture[str]) -> None:
    out, package = packaged("fp32")
    assert Package.model_validate_json((out / "package.json").read_text(encoding="utf-8")) == package
    assert marina.main(["inspect", str(out / package.mar), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"] == package.record.model_dump(mode="json", by_alias=True)
