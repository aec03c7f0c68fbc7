"""The star: stages import `config` and nothing else of ours; starting the command line stays cheap."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"archiver", "config", "handlers", "k8s", "loadtest", "server"}
ALLOWED = {
    "archiver": {"config", "handlers"},
    "config": set(),
    "handlers": set(),
    "k8s": {"config"},
    "loadtest": {"config"},
    "server": {"config"},
}
WITHOUT_TORCH = OURS - {"archiver", "handlers"}


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            found.add(node.module.partition(".")[0])
    return found


def modules(package: str) -> list[Path]:
    return [file for file in sorted((ROOT / package).rglob("*.py")) if "examples" not in file.parts]


@pytest.mark.parametrize("package", sorted(name for name in OURS if (ROOT / name).is_dir()))
def test_a_stage_imports_only_what_the_star_allows(package: str) -> None:
    assert modules(package)
    for file in modules(package):
        strangers = (imported(file) & OURS) - ALLOWED[package] - {package}
        assert not strangers, f"{file.relative_to(ROOT)} imports {sorted(strangers)}"


@pytest.mark.parametrize("package", sorted(name for name in WITHOUT_TORCH if (ROOT / name).is_dir()))
def test_only_the_packager_and_the_handlers_import_torch(package: str) -> None:
    for file in modules(package):
        assert not imported(file) & {"torch", "torchvision"}, file


def top_imports(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    named = {f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return named | {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}


def test_the_command_line_imports_stages_only_when_their_verb_runs() -> None:
    waiting, seen = ["marina.command"], set()
    while waiting:
        module = waiting.pop()
        file = ROOT / f"{module.replace('.', '/')}.py"
        if module in seen or not file.is_file():
            continue
        seen.add(module)
        names = top_imports(file)
        assert not {name.partition(".")[0] for name in names} & (OURS - {"config"}), file
        waiting += [part for name in names for part in (name, name.rpartition(".")[0])]
    assert {"marina.packaging", "marina.measuring"} <= seen


def test_serving_never_imports_torchvision() -> None:
    for file in modules("handlers"):
        assert "torchvision" not in imported(file), file


def test_every_folder_with_modules_is_a_package_that_is_installed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.strip("*") for name in declared} == OURS | {"marina"}
    for name in OURS | {"marina"}:
        for file in modules(name):
            assert (file.parent / "__init__.py").is_file(), f"{file.parent.relative_to(ROOT)} has no __init__.py"


@pytest.mark.parametrize("arguments", [["--help"], ["check", "config/examples/digits/spec.yaml"]])
def test_the_command_line_starts_without_heavy_imports(arguments: list[str]) -> None:
    code = "import sys, marina\ntry:\n marina.main(sys.argv[1:])\nexcept SystemExit: pass\n" + (
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "torchvision", "numpy", "locust", "gevent", "kubernetes", "PIL"}
    if arguments == ["--help"]:
        assert not loaded & {"pydantic", "yaml"}
