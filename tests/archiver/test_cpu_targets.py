"""Artifacts compiled for other CPUs run on them, as far as this CPU can imitate them."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from specs import ROOT, Packaged, digits_spec
from tools import needs

from marina.archiver.cpu_target import check_cpu_target, targeting
from marina.config.cpu_targets import FLAGS, node_labels
from marina.config.errors import SourceError
from marina.handlers.machine import cpu_flags, machine_mismatches

CPU = torch.device("cpu")
# Registers that exist only with AVX-512.
AVX512 = re.compile(rb"%zmm|%k[1-7]|%[xy]mm(?:1[6-9]|2\d|3[01])")
ANSWERS = """
import sys, numpy, torch
from pathlib import Path
from marina.handlers.artifact import load_artifact
from marina.handlers.record import load_record
folder, rows = map(Path, sys.argv[1:])
artifact = load_artifact(load_record(folder), folder, torch.device("cpu"))
images = torch.from_numpy(numpy.load(rows)[:64]).reshape(64, 8, 8, 1)
batches = [artifact.run([images[at:at + 8].contiguous()])[1] for at in range(0, 64, 8)]
print(torch.backends.cpu.get_cpu_capability())
print(*torch.cat(batches)[:, 0].tolist())
"""


def cpuinfo(folder: Path, flags: tuple[str, ...]) -> Path:
    file = folder / "cpuinfo"
    file.write_text(f"flags\t: fpu {' '.join(flags)}\n", encoding="utf-8")
    return file


def unpacked(mar: Path, folder: Path) -> Path:
    with zipfile.ZipFile(mar) as archive:
        archive.extractall(folder)
    return folder


def answers(package: Path, **ceiling: str) -> tuple[str, list[int]]:
    rows = ROOT / "config/examples/digits/calibration/train.npy"
    command = [sys.executable, "-c", ANSWERS, str(package), str(rows)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ceiling}, capture_output=True, text=True, check=True)
    capability, classes = done.stdout.splitlines()
    return capability, [int(word) for word in classes.split()]


def libraries(package: Path) -> list[bytes]:
    code = []
    for file in package.glob("model-b*.pt2"):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.endswith(".so"):
                    library = package / f"{file.stem}.so"
                    library.write_bytes(archive.read(name))
                    needs("objdump", package="binutils")
                    code.append(subprocess.run(["objdump", "-d", library], capture_output=True, check=True).stdout)
    return code


@pytest.mark.slow
def test_a_package_for_v3_contains_and_needs_no_avx512(packaged: Packaged, tmp_path: Path) -> None:
    folder, package = packaged("v3")
    record = package.record
    assert (record.key.target, record.key.isa) == ("x86-64-v3", FLAGS["x86-64-v3"])
    assert record.agreement.agreement >= 0.99
    files = unpacked(folder / package.mar, tmp_path / "mar")
    code = libraries(files)
    assert len(code) == len(record.batch_sizes)
    assert [AVX512.search(assembly) for assembly in code] == [None] * len(code)
    key = json.loads((files / "marina.json").read_text(encoding="utf-8"))["key"]
    assert machine_mismatches(key, CPU, cpuinfo(tmp_path, FLAGS["x86-64-v3"])) == []
    missing = tuple(flag for flag in FLAGS["x86-64-v3"] if flag != "fma")
    assert machine_mismatches(key, CPU, cpuinfo(tmp_path, missing)) == ["`isa`: this CPU lacks `fma`"]


@pytest.mark.slow
def test_a_package_for_v3_gives_the_same_answers_on_a_cpu_with_avx2_only(packaged: Packaged, tmp_path: Path) -> None:
    folder, package = packaged("v3")
    files = unpacked(folder / package.mar, tmp_path)
    _, here = answers(files)
    capability, there = answers(files, ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
    assert capability == "AVX2"
    assert sum(label == other for label, other in zip(here, there, strict=True)) >= 63


def test_a_target_that_this_machine_cannot_run_is_refused(tmp_path: Path) -> None:
    spec = digits_spec({"model.cpu_target": "amx"})
    with pytest.raises(SourceError, match=r"got `amx`, but this machine .* lacks `amx_bf16`, `amx_int8`, `amx_tile`"):
        check_cpu_target(spec, cpuinfo(tmp_path, tuple(set(FLAGS["amx"]) - {"amx_bf16", "amx_int8", "amx_tile"})))
    check_cpu_target(spec, cpuinfo(tmp_path, FLAGS["amx"]))
    check_cpu_target(digits_spec(), cpuinfo(tmp_path, ()))


def test_the_limits_of_a_target_end_with_its_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    for target, flag in (("x86-64-v3", "-mavx2"), ("x86-64-v4", "-mavx512f"), ("amx", "-mamx-int8")):
        with targeting(target):
            assert flag in pick_vec_isa().build_arch_flags()
            assert os.environ["ONEDNN_MAX_CPU_ISA"] != "DEFAULT"
    with targeting("x86-64-v4"):
        assert "bf16" not in pick_vec_isa().build_arch_flags()
        assert "vnni" not in pick_vec_isa().build_arch_flags()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "DEFAULT"


def test_a_target_includes_those_below_it_and_native_has_no_labels() -> None:
    assert set(FLAGS["x86-64-v3"]) < set(FLAGS["x86-64-v4"]) < set(FLAGS["amx"])
    assert node_labels("native") == {}
    assert node_labels("x86-64-v3").items() <= node_labels("x86-64-v4").items() <= node_labels("amx").items()


def test_flags_have_the_names_that_linux_uses() -> None:
    known = cpu_flags()
    assert "fpu" in known or "fp" in known
