"""Who may import whom inside our packages: rooms, their order, and the names that cross a door."""

import ast
import functools
from collections.abc import Iterator
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


def imports(file: Path) -> Iterator[Import]:
    """Every import of a file, wherever it stands; of a module imported whole, also what is used of it."""
    tree = parsed(file)
    whole = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            whole |= {alias.asname or alias.name for alias in node.names}
            yield from (Import(alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (Import(node.module, alias.name, node.lineno) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in whole:
            yield Import(node.value.id, node.attr, node.lineno)


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
        for each in imports(file)
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
