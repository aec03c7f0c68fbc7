"""A clone that is not set up: every command says what to type."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from specs import ROOT

pytestmark = pytest.mark.slow

SPEC = "config/examples/digits/spec.yaml"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This clone without what an installation left in it."""
    folder = tmp_path_factory.mktemp("clone")
    for entry in ROOT.iterdir():
        if entry.suffix != ".egg-info":
            (folder / entry.name).symlink_to(entry)
    return folder


def typed(clone: Path, python: Path, *words: str, path: str = "") -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), "-m", "marina", *words]
    environment |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=clone, env=environment, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [("package", SPEC), ("check", SPEC), ("init", "x"), ("serve", SPEC), ("doctor",), ("--version",)]
)
def test_without_packages_a_command_says_what_to_type(clone: Path, bare: Path, words: tuple[str, ...]) -> None:
    code, said = typed(clone, bare, *words)
    assert code == 2
    assert said.startswith("error: ")
    assert said.endswith("\n\nhint: make setup\n")


def test_without_packages_the_help_is_there(clone: Path, bare: Path) -> None:
    assert typed(clone, bare, "--help") == (0, "")


def test_with_the_packages_but_without_marinas_own_record(clone: Path, bare: Path, tmp_path: Path) -> None:
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "marina" not in entry.name:
            (tmp_path / entry.name).symlink_to(entry)
    assert typed(clone, bare, "check", SPEC, path=str(tmp_path)) == (0, "")
    code, said = typed(clone, bare, "--version", path=str(tmp_path))
    assert (code, said) == (2, "error: Marina is not installed here, so it has no version\n\nhint: make setup\n")
