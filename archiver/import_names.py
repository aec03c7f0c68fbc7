"""What a Python file imports, found without running it."""

import ast
from collections.abc import Iterator


def needed_imports(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """The dotted names that a file imports, without those of which it does without."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from statement_names(node, package)
        elif isinstance(node, ast.Try) and node.handlers:
            waiting += [*node.orelse, *node.finalbody, *(each for each in node.body if not _is_import(each))]
        else:
            # `if find_spec(…)`, `if TYPE_CHECKING`: what is imported there may be missing.
            optional = isinstance(node, ast.If)
            waiting += [each for each in ast.iter_child_nodes(node) if not (optional and _is_import(each))]


def statement_names(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> Iterator[str]:
    """The dotted names that an import in a module of this package names; each `from` import may name a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parents = package[: len(package) - node.level + 1] if node.level else ()
    base = ".".join((*parents, *([node.module] if node.module else [])))
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)
