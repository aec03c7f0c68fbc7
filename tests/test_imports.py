"""What is installed, and what starting the command line imports. Who may import whom stands in pyproject.toml, and
`lint-imports` holds it."""

import ast
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIGITS = "config/examples/digits/spec.yaml"
FOLDERS = ("archiver", "config", "handlers", "k8s", "loadtest", "server")
LIST = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
# What the jar is compiled from.
SOURCES_OF_THE_JAR = ("server/java/marina/", "server/java/torchserve/")


def tracked() -> set[str]:
    """Every file of ours, as a part of the package `marina`."""
    listed = subprocess.run([*LIST, "marina", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        name for name in listed.splitlines() if (ROOT / name).is_file() and not name.startswith(SOURCES_OF_THE_JAR)
    ]
    return {name if name.startswith("marina/") else f"marina/{name}" for name in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built of a copy, because setuptools leaves files where it builds."""
    out = tmp_path_factory.mktemp("dist")
    (tree := out / "tree").mkdir()
    listed = subprocess.run([*LIST, "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    pack = ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read", "--file", str(out / "tree.tar")]
    subprocess.run(pack, cwd=ROOT, input=listed, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["tar", "--extract", "--file", str(out / "tree.tar")], cwd=tree, check=True)
    for hook in ("build_sdist", "build_wheel"):
        code = f"import setuptools.build_meta as backend; backend.{hook}({str(out)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, check=True)
    return out


def test_the_wheel_holds_every_file_and_only_marina(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("marina_torchserve-*.whl"))) as wheel:
        names = set(wheel.namelist())
        info = next(name for name in names if name.endswith(".dist-info/top_level.txt"))
        assert wheel.read(info).decode().split() == ["marina"]
    assert {name for name in names if name.startswith("marina/")} == tracked()
    assert {name.split("/")[0] for name in names} == {
        "marina",
        info.split("/")[0],
        info.replace("dist-info", "data").split("/")[0],
    }


def test_the_sdist_holds_every_module(built: Path) -> None:
    with tarfile.open(next(built.glob("marina_torchserve-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # Through the links or beside them: a wheel can be built of it.
    missing = {name for name in tracked() if name not in names and name.removeprefix("marina/") not in names}
    assert missing == set()


def top_imports(file: Path) -> set[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    named = {f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return named | {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}


def test_the_command_line_imports_stages_only_when_their_verb_runs() -> None:
    stages = {f"marina.{folder}" for folder in FOLDERS if folder != "config"}
    waiting, seen = ["marina.command"], set()
    while waiting:
        module = waiting.pop()
        file = ROOT / f"{module.replace('.', '/')}.py"
        if module in seen or not file.is_file():
            continue
        seen.add(module)
        names = top_imports(file)
        assert not {".".join(name.split(".")[:2]) for name in names} & stages, file
        waiting += [part for name in names for part in (name, name.rpartition(".")[0])]
    assert {"marina.packaging", "marina.measuring"} <= seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--help"], ["check", DIGITS], ["verify", DIGITS, "--kubernetes", "1.34", "--out", "none"]]
)
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
