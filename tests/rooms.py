"""Who may import whom inside our packages: rooms, their order, and the names that cross a door."""

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

Rooms = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Import:
    """One name, or with an empty one a whole module, that a file imports."""

    module: str
    name: str
    line: int


@functools.cache
def parsed(file: Path) -> ast.Module:
    """A file's code, read once."""
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports(root: Path, file: Path) -> list[Import]:
    """Every import of a file, wherever it stands; of a module imported whole, also what is used of it."""
    package = file.relative_to(root).parts[:-1]
    statements, modules = list[Import](), dict[str, str]()  # and the names in this file that are modules
    for node in ast.walk(parsed(file)):
        match node:
            case ast.Import(names):
                for alias in names:
                    statements.append(Import(alias.name, "", node.lineno))
                    top = alias.name.partition(".")[0]
                    modules[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(name, names, level):
                above = package[: len(package) + 1 - level] if level else ()
                module = ".".join([*above, *([name] if name else [])])
                for alias in names:
                    statements.append(Import(module, alias.name, node.lineno))
                    if _is_package(root, whole := f"{module}.{alias.name}"):
                        modules[alias.asname or alias.name] = whole
            case ast.Call(ast.Name("__import__" | "import_module"), [ast.Constant(str(name)), *_]):
                statements.append(Import(name, "", node.lineno))
            case ast.Call(ast.Attribute(_, "import_module"), [ast.Constant(str(name)), *_]):
                statements.append(Import(name, "", node.lineno))
    used = [node for node in ast.walk(parsed(file)) if isinstance(node, ast.Attribute)]
    return statements + [
        Import(module, node.attr, node.lineno)
        for node in used
        if (module := _module(root, node.value, modules)) and not _is_package(root, f"{module}.{node.attr}")
    ]


def _module(root: Path, node: ast.expr, modules: dict[str, str]) -> str:
    """The module that an expression is, such as `house.cellar`; empty if it is none."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute) and (parent := _module(root, node.value, modules)):
        return whole if _is_package(root, whole := f"{parent}.{node.attr}") else ""
    return ""


@functools.cache
def _is_package(root: Path, module: str) -> bool:
    return root.joinpath(*module.split("."), "__init__.py").is_file()


def face(folder: Path) -> set[str]:
    """The names in `__all__` of a package."""
    for node in parsed(folder / "__init__.py").body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def trespasses(root: Path, rooms: Rooms, packages: list[str], annexes: Rooms | None = None) -> list[str]:
    """Every import in the packages that goes against the order of rooms, or past a face.

    `annexes` are the rooms of packages whose modules anybody may import: only those rooms have doors.
    """
    return [
        f"{file.relative_to(root)}:{each.line}: {reason}"
        for package in packages
        for file in sorted((root / package).rglob("*.py"))
        if "examples" not in file.parts
        for each in imports(root, file)
        if (reason := _reason(root, rooms, annexes or {}, file.relative_to(root).parts, each))
    ]


def _reason(root: Path, rooms: Rooms, annexes: Rooms, importer: tuple[str, ...], imported: Import) -> str:
    package, *below = imported.module.split(".")
    within = importer[1] if importer[0] == package else ""
    if package in annexes:
        room = below[0] if below else ""
        return _past_the_face(root, imported) if room in annexes[package] and room != within else ""
    if package not in rooms:
        return ""
    if importer[0] != package and below:
        return f"imports `{imported.module}`, and only the face of `{package}` may be entered from outside"
    own = within if within in rooms[package] else ""
    target = below[0] if below and below[0] in rooms[package] else ""
    if importer[0] == package and not target:
        # Modules beside the rooms are of no room; a room that imports one, or the package's face, goes round its order.
        return f"`{own}` imports `{imported.module}`, which stands above the rooms" if own else ""
    if target and target == own:
        return ""
    if own and rooms[package].index(target) > rooms[package].index(own):
        return f"`{own}` imports `{target}`, which comes after it"
    return _past_the_face(root, imported)


def _past_the_face(root: Path, imported: Import) -> str:
    package, *below = imported.module.split(".")
    if len(below) > 1:
        return f"imports `{imported.module}`, past the face of `{package}.{below[0]}`"
    if imported.name and imported.name not in face(root.joinpath(package, *below)):
        return f"imports `{imported.name}`, which is not in the face of `{imported.module}`"
    return ""
