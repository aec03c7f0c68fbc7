import hashlib
import importlib.util
import json
import os
import py_compile
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from specs import ROOT


def script(name: str) -> ModuleType:
    """A script of `docker/`, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INSTALL = script("install")
# The order of a set in a compiled file follows the hash seed.
SETS = "def f(x):\n    return x in {'a', 'b', 'c', 'd', 'e', 'f', 'g'}\n"


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bill of materials of this Python's packages."""
    file = tmp_path_factory.mktemp("bill") / "bom.json"
    subprocess.run([sys.executable, ROOT / "docker/bom.py", file], check=True)
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def fill(folder: Path, files: list[str]) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")


def kept(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """The mode, time and content of every file and folder."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode & 0o7777,
            int(path.stat().st_mtime),
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


def test_an_image_gets_what_marina_needs_and_one_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    serving = INSTALL.requirements("serve", ROOT / "pyproject.toml")
    assert set(serving) == {*project["dependencies"], *project["optional-dependencies"]["serve"]}
    assert not [name for name in serving if name.startswith(("opentelemetry", "torchvision", "locust", "kubernetes"))]
    assert not [name for name in INSTALL.requirements("loadtest", ROOT / "pyproject.toml") if name.startswith("torch")]


def test_wheels_of_an_extra_and_of_vllm_are_downloaded_and_other_names_are_told_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(INSTALL, "_run", lambda *command: commands.append(command))
    INSTALL.download("loadtest", tmp_path)
    INSTALL.download("vllm", tmp_path)
    of_loadtest, of_vllm = commands
    assert any(word.startswith("locust") for word in of_loadtest)
    assert "--constraint" in of_loadtest
    # It pins a torch of its own.
    assert of_vllm[-2:] == (INSTALL.VLLM, "pip")
    assert "--constraint" not in of_vllm
    with pytest.raises(
        SystemExit, match="`EXTRA`: got `vlm`, allowed: deploy, dev, loadtest, package, serve, sign, tracing, vllm"
    ):
        INSTALL.download("vlm", tmp_path)


def test_pruning_keeps_what_is_imported(tmp_path: Path) -> None:
    wanted = [
        "torch/bin/torch_shm_manager",
        "torch/lib/libtorch_cpu.so",
        "numpy/testing/_private.py",
        "x.dist-info/METADATA",
    ]
    unwanted = [
        "torch/bin/protoc", "torch/include/a/b.h", "torch/test/cpp", "torch/lib/libtorchbind_test.so", "torch/lib/c.a",
        "sympy/core/tests/test_x.py", "setuptools/a.py", "setuptools-84.dist-info/METADATA", "wheel/b.py",
        "x.dist-info/RECORD", "x.dist-info/direct_url.json", "numpy/a.pyi",
    ]  # fmt: skip
    fill(tmp_path, wanted + unwanted)
    INSTALL.remove_pruned(tmp_path)
    assert kept(tmp_path) == set(wanted)


def test_settling_gives_the_same_bytes_modes_and_times(tmp_path: Path) -> None:
    for name, mode, time in (("one", 0o600, 1_000_000_000), ("two", 0o666, 1_700_000_000)):
        # At the same path as in the image, because compiled files contain it.
        folder = tmp_path / "app"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/module.py").write_text(SETS, encoding="utf-8")
        (folder / "deep/tool").write_text("", encoding="utf-8")
        (folder / "deep/tool").chmod(0o700)
        (folder / "deep/module.py").chmod(mode)
        os.utime(folder / "deep/module.py", (time, time))
        INSTALL.settle(folder)
        folder.rename(tmp_path / name)
    first, second = state(tmp_path / "one"), state(tmp_path / "two")
    assert first == second
    assert {entry[1] for entry in first.values()} == {INSTALL.EPOCH}
    assert first["deep/module.py"][0] == 0o644
    assert first["deep/tool"][0] == first["deep"][0] == 0o755
    assert any(name.endswith(".pyc") for name in first)


def test_compiled_files_do_not_depend_on_the_times_of_their_sources(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("VALUE = 1\n", encoding="utf-8")
    # Left from an earlier import; such a file would check the time of its source.
    py_compile.compile(str(tmp_path / "module.py"))
    INSTALL.settle(tmp_path)
    (tmp_path / "module.py").write_text("VALUE = 2\n", encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-c", "import module; print(module.VALUE)"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.stdout == "1\n"


@pytest.mark.slow
def test_the_bill_is_cyclonedx(bill: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(bill)) is None
    # The validator would refuse it.
    broken = bill | {"components": [{"type": "libary", "name": "x"}]}
    assert validator.validate_str(json.dumps(broken)) is not None


def test_the_bill_names_every_package_once(bill: dict[str, Any]) -> None:
    from importlib.metadata import distributions

    # Not all of `sys.path`, because setuptools adds its own bundled packages to it when it is imported.
    installed = distributions(path=[sysconfig.get_path("purelib")])
    names = {distribution.metadata["Name"].lower().replace("_", "-").replace(".", "-") for distribution in installed}
    listed = [part["name"] for part in bill["components"] if part.get("purl", "").startswith("pkg:pypi/")]
    assert sorted(listed) == sorted(names)


def test_the_bill_lists_the_parts_of_torchserves_jar(bill: dict[str, Any]) -> None:
    jar = next(component for component in bill["components"] if component["name"] == "model-server")
    parts = {part["name"]: part.get("version") for part in jar["components"]}
    # The parts that SECURITY.md mentions.
    assert parts["netty-all"] == "4.1.53.Final"
    assert parts["log4j-core"] == "2.17.1"
    assert parts["snakeyaml"] == "2.1"
    assert parts["groovy-all"] == "3.0.9"
    assert parts["protobuf-java"] is None
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = {"netty-all", "grpc-netty-shaded", "log4j-core", "snakeyaml", "groovy-all", "gson", "commons-compress"}
    assert [name for name in sorted(named) if f"| {name} {parts[name]} |" not in page] == []


def test_the_bill_has_the_java_that_runs(bill: dict[str, Any]) -> None:
    from marina.server.java.checks import find_java

    java = next(component for component in bill["components"] if component["bom-ref"] == "java")
    assert int(java["version"].partition(".")[0]) == find_java().version
