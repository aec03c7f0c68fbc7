"""The star: stages import `config` and nothing else of ours; rooms in their order; the command line starts cheaply."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rooms import Rooms, face, imports, parsed, trespasses

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
    return {each.module.partition(".")[0] for each in imports(ROOT, file)}


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
    body = parsed(file).body
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


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["check"], ["verify", "--kubernetes", "1.34", "--out", "none"]])
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


# Each room may import those before it. Only names in `__all__` cross a room's door, and from outside a package only its
# own face is entered.
ROOMS: Rooms = {
    "k8s": ("monitoring", "extending", "manifests", "platforms", "simulating", "verify", "cluster", "rollout"),
    "loadtest": ("measuring", "scheduling", "sending", "judging", "reporting", "running", "calibrating", "comparing"),
    "server": ("system", "java", "watching", "pages"),
}
# Of these packages any module may be imported, and only their rooms have doors.
ANNEXES: Rooms = {
    "archiver": ("compiling", "containers", "inferring", "inspecting", "rows", "weights", "own_handler"),
    "config": ("combinations", "lint", "pages", "sections"),
    "handlers": ("caching", "pictures", "protocols"),
    "marina": ("starting",),
}


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_every_room_is_in_the_order_and_has_a_face(package: str) -> None:
    folders = {file.parent.name for file in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(ROOMS[package])
    for room in ("", *ROOMS[package]):
        assert face(ROOT / package / room), f"{package}/{room} names nothing in __all__"


@pytest.mark.parametrize("package", sorted({*OURS, "marina"}))
def test_every_name_of_a_face_is_imported_or_defined_there(package: str) -> None:
    for file in sorted((ROOT / package).rglob("__init__.py")):
        if "examples" not in file.parts:
            nodes = [node for node in ast.walk(parsed(file)) if isinstance(node, ast.ImportFrom)]
            known = {alias.asname or alias.name for node in nodes for alias in node.names}
            defined = {node.name for node in parsed(file).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
            assert face(file.parent) <= known | defined, file


@pytest.mark.parametrize(("package", "room"), [(package, room) for package in ANNEXES for room in ANNEXES[package]])
def test_every_annex_has_a_face(package: str, room: str) -> None:
    assert face(ROOT / package / room)


def test_rooms_are_entered_in_their_order_and_by_their_faces() -> None:
    assert trespasses(ROOT, ROOMS, sorted(OURS | {"marina"}), ANNEXES) == []


IMPORTS = {
    "a name in the face": ("house/attic/a.py", "from house.cellar import bottle", ""),
    "a name in the package's face": ("street/a.py", "import house\nhouse.door", ""),
    "inside a room": ("house/attic/a.py", "from house.attic.b import c", ""),
    "against the order": (
        "house/cellar/a.py",
        "from house.attic import trunk",
        "house/cellar/a.py:1: `cellar` imports `attic`, which comes after it",
    ),
    "against the order, when a function runs": (
        "house/cellar/a.py",
        "def f():\n    import house.attic",
        "house/cellar/a.py:2: `cellar` imports `attic`, which comes after it",
    ),
    "a name that is not in the face": (
        "house/attic/a.py",
        "from house.cellar import rat",
        "house/attic/a.py:1: imports `rat`, which is not in the face of `house.cellar`",
    ),
    "a name that is not in the face, by another name of the room": (
        "house/attic/a.py",
        "import house.cellar as below\nbelow.rat",
        "house/attic/a.py:2: imports `rat`, which is not in the face of `house.cellar`",
    ),
    "a name that is not in the face, by its full name": (
        "house/attic/a.py",
        "import house.cellar\nhouse.cellar.rat(house.cellar.bottle)",
        "house/attic/a.py:2: imports `rat`, which is not in the face of `house.cellar`",
    ),
    "against the order, with dots": (
        "house/cellar/a.py",
        "from ..attic import trunk",
        "house/cellar/a.py:1: `cellar` imports `attic`, which comes after it",
    ),
    "against the order, when the program runs": (
        "house/cellar/a.py",
        "from importlib import import_module\nimport_module('house.attic')",
        "house/cellar/a.py:2: `cellar` imports `attic`, which comes after it",
    ),
    "past the face": (
        "house/attic/a.py",
        "from house.cellar.rack import bottle",
        "house/attic/a.py:1: imports `house.cellar.rack`, past the face of `house.cellar`",
    ),
    "round the order": (
        "house/cellar/a.py",
        "from house import door",
        "house/cellar/a.py:1: `cellar` imports `house`, which stands above the rooms",
    ),
    "a room from outside": (
        "street/a.py",
        "from house.cellar import bottle",
        "street/a.py:1: imports `house.cellar`, and only the face of `house` may be entered from outside",
    ),
    "a name that is not in the package's face": (
        "street/a.py",
        "import house\nhouse.window",
        "street/a.py:2: imports `window`, which is not in the face of `house`",
    ),
    "a module of a package that is open": ("street/a.py", "from market.stall import apple", ""),
    "a name in the face of an annex": ("street/a.py", "from market.hall import cheese", ""),
    "inside an annex": ("market/hall/a.py", "from market.hall.cupboard import mouse", ""),
    "past the face of an annex": (
        "market/a.py",
        "from market.hall.cupboard import mouse",
        "market/a.py:1: imports `market.hall.cupboard`, past the face of `market.hall`",
    ),
    "a name that is not in the face of an annex, by the annex": (
        "market/a.py",
        "from market import hall\nhall.mouse",
        "market/a.py:2: imports `mouse`, which is not in the face of `market.hall`",
    ),
    "a name that is not in the face of an annex": (
        "street/a.py",
        "from market.hall import mouse",
        "street/a.py:1: imports `mouse`, which is not in the face of `market.hall`",
    ),
}


@pytest.mark.parametrize(("file", "text", "complaint"), IMPORTS.values(), ids=IMPORTS)
def test_the_check_of_rooms_sees_what_is_forbidden(tmp_path: Path, file: str, text: str, complaint: str) -> None:
    made = {"house": '__all__ = ["door"]', "house/cellar": '__all__ = ["bottle"]', "house/attic": '__all__ = ["trunk"]'}
    made |= {"market": "", "market/hall": '__all__ = ["cheese"]'}
    for folder, names in made.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(names, encoding="utf-8")
    (tmp_path / "street").mkdir()
    (tmp_path / file).write_text(text, encoding="utf-8")
    rooms, annexes = {"house": ("cellar", "attic")}, {"market": ("hall",)}
    assert trespasses(tmp_path, rooms, ["house", "market", "street"], annexes) == ([complaint] if complaint else [])
