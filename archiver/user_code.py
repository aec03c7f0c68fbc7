"""A user's Python files: imports them, finds the modules beside them that they import, and copies all for a worker."""

import ast
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from marina.archiver.archive import RESERVED_MODULES
from marina.archiver.import_names import statement_names
from marina.archiver.requirements import hint_for_library, hint_for_missing
from marina.config.errors import SourceError
from marina.config.requirements import IMAGE_PYTHON
from marina.config.spec import Spec
from marina.handlers.networks import MODULE_PREFIX, import_folders, import_source, top_folder
from marina.handlers.torchvision_import import install

# The package `marina` and those in it, which in a clone lie beside it.
_OURS = Path(__file__).parents[1]
_OUR_FOLDERS = {_OURS.resolve(), *(entry.resolve() for entry in _OURS.iterdir() if entry.is_dir())}
# What was imported before the last user's file, and the folders that were put on the path for it.
_before: set[str] = set()
_folders: list[str] = []


def import_file(spec: Spec, file: Path, field: str) -> ModuleType:
    """Imports a user's Python file, which can itself import the files beside it, also later, when it is called."""
    where = f"{spec.file}: `{field}`"
    if not file.is_file() or file.suffix != ".py":
        raise SourceError(f"{where}: no such file: `{file}`")
    with running_user_code(f"{where}: `{file}`", spec):
        _check_names(where, local_modules(file))
        _put_on_path([str(folder) for folder in import_folders(file)])
        install()
        return import_source(file)


def import_beside(file: Path) -> ModuleType | None:
    """Lets the files beside a file be imported, and imports it itself if it is one of Python."""
    _put_on_path([str(file.parent)])
    install()
    return import_source(file) if file.suffix == ".py" else None


def _check_names(where: str, modules: dict[str, Path]) -> None:
    """Refuses names that Marina has taken, and those that its packages had before."""
    taken = {Path(relative).parts[0].removesuffix(".py"): path for relative, path in modules.items()}
    if "marina" in taken:
        text = f"{where}: `{taken['marina']}` has the name of Marina's own package, so nothing can import it"
        raise SourceError(text, hint="rename the file")
    for relative, path in modules.items():
        root = path.parents[len(Path(relative).parts) - 1]
        old = [name for name in imported_names(path, root) if name.partition(".")[0] == "handlers"]
        if old and "handlers" not in taken:
            first = min(old)
            text = f"{where}: `{path}` imports from `{first}`, which is called `marina.{first}`"
            raise SourceError(text, hint=f"in {path.name}: from marina.{first} import …")


def _put_on_path(folders: list[str]) -> None:
    """Puts folders first on the path, and leaves them there. What an earlier file had put there goes, with the modules
    that it imported from there, because another model may have a `layers.py`, too."""
    if folders == _folders and sys.path[: len(folders)] == folders:
        return
    for folder in _folders:
        with suppress(ValueError):  # the user's code may have taken it off the path
            sys.path.remove(folder)
    # The files that were named themselves stay: torch looks up the module of a network's class.
    new = {name for name in set(sys.modules) - _before if not name.startswith(MODULE_PREFIX)}
    theirs = {name for name in new if "." not in name and _lies_in(sys.modules[name], _folders)}
    for name in new:
        if name.partition(".")[0] in theirs:
            del sys.modules[name]
    _before.clear()
    _before.update(sys.modules)
    _folders[:] = folders
    sys.path[:0] = folders


def _lies_in(module: ModuleType, folders: list[str]) -> bool:
    origin = Path(getattr(module, "__file__", None) or "/")
    return str(origin.parent.parent if origin.name == "__init__.py" else origin.parent) in folders


@contextmanager
def running_user_code(what: str, spec: Spec | None = None) -> Iterator[None]:
    """Runs a user's code: its errors become a SourceError, and it may change the current folder only for itself."""
    folder = Path.cwd()
    try:
        yield
    except SourceError:
        raise
    except Exception as err:
        where = _line_of(err)
        missing = err.name if isinstance(err, ModuleNotFoundError) else None
        hint = hint_for_missing(spec, missing) if spec and missing else hint_for_library(str(err))
        raise SourceError(f"{what} failed{where}: {type(err).__name__}: {err}", hint=hint) from err
    except SystemExit as err:
        hint = 'put what a training does under `if __name__ == "__main__":`'
        raise SourceError(f"{what} ended the program, with exit code {err.code}", hint=hint) from err
    finally:
        os.chdir(folder)


def _line_of(err: Exception) -> str:
    """Where in the user's code an import failed: " at `file.py:3`"; empty for any other error."""
    if not isinstance(err, ImportError):
        return ""
    frames = [frame for frame in traceback.extract_tb(err.__traceback__) if Path(frame.filename).is_file()]
    theirs = [frame for frame in frames if not frame.filename.startswith((sys.prefix, sys.base_prefix, str(_OURS)))]
    return f" at `{theirs[-1].filename}:{theirs[-1].lineno}`" if theirs else ""


def stage_modules(spec: Spec, file: Path, field: str, folder: Path) -> str:
    """Copies a user's file and the modules beside it that it imports to a folder from which a worker imports; returns
    the file's place in there."""
    for relative, path in local_modules(file).items():
        if (top := Path(relative).parts[0].removesuffix(".py")) in RESERVED_MODULES:
            raise SourceError(
                f"{spec.file}: `{field}`: `{path}` would hide the module `{top}` in the worker",
                hint="rename the file",
            )
        check_syntax(spec, path, field)
        target = folder / relative
        if target.exists():
            raise SourceError(
                f"{spec.file}: `{field}`: `{path}` has the name of a file of the package", hint="rename it"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return file.relative_to(top_folder(file)).as_posix()


def check_syntax(spec: Spec, file: Path, field: str) -> None:
    """Raises SourceError if a file that a worker runs has syntax that the Python of an image does not know."""
    try:
        ast.parse(file.read_bytes(), feature_version=IMAGE_PYTHON)
    except SyntaxError as err:
        python = ".".join(map(str, IMAGE_PYTHON))
        text = f"{spec.file}: `{field}`: `{file}:{err.lineno}`: {err.msg}, allowed: Python {python}, which images have"
        raise SourceError(text) from err


def local_modules(file: Path) -> dict[str, Path]:
    """A Python file and every module beside it that it imports, directly or through another, by relative path.

    Marina's own are none of these, also where the file lies in a clone of it. Imports inside functions count; imports
    by `importlib` do if the name is written there, and not if it is computed."""
    root = top_folder(file)
    folders = [root, *import_folders(file)]
    modules: dict[str, Path] = {}
    waiting = [
        (root, path) for path in [file, *_files_of(root, ".".join(file.relative_to(root).with_suffix("").parts))]
    ]
    while waiting:
        folder, path = waiting.pop()
        relative = path.relative_to(folder).as_posix()
        if relative in modules or (folder / relative.partition("/")[0]).resolve() in _OUR_FOLDERS:
            continue
        modules[relative] = path
        for name in imported_names(path, folder):
            for place in folders:
                waiting += ((place, path) for path in _files_of(place, name))
    return dict(sorted(modules.items()))


def imported_names(path: Path, root: Path) -> Iterator[str]:
    """The dotted names that a file imports, relative to the folder; each `from` import may name a module itself."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.lstrip(".") for name in statement_names(node, package))
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            bare = name.lstrip(".")
            parents = package[: len(package) - (len(name) - len(bare)) + 1] if bare != name else ()
            yield ".".join((*parents, bare))


def _imported_by_call(node: ast.Call) -> str | None:
    """The name in `importlib.import_module("name")` or `__import__("name")`; None for any other call."""
    first = node.args[0] if node.args else None
    if not ast.unparse(node.func).endswith(("import_module", "__import__")) or not isinstance(first, ast.Constant):
        return None
    return first.value if isinstance(first.value, str) else None


def _files_of(root: Path, name: str) -> list[Path]:
    """The files in the folder that importing a dotted name would run."""
    parts = [part for part in name.split(".") if part]
    files = [root.joinpath(*parts[: end + 1]) / "__init__.py" for end in range(len(parts))]
    if parts:
        files.append(root.joinpath(*parts[:-1], f"{parts[-1]}.py"))
    return [file for file in files if file.is_file()]
