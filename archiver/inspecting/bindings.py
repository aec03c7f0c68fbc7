"""The names that a Python file binds: by imports, definitions and assignments."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


@dataclass
class Bindings:
    """The names that a file binds, in any scope."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    """The dotted paths that each imported name stands for."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """What each name is set to other than by an import: the function that a plain assignment calls, or else ""."""
    attributes: set[str] = field(default_factory=set)
    """Names that may be attributes: defined, set, or in a string, as in `register_buffer("mean", ...)`."""
    outside: set[str] = field(default_factory=set)
    """Names that are imported from packages outside the archive."""


def find_bindings(tree: ast.AST, own_modules: frozenset[str]) -> Bindings:
    """The bindings of a file; `own_modules` are the modules of the archive."""
    bindings = Bindings()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _add_import(bindings, node, own_modules)
            continue
        for name, value in _assignments(node):
            bindings.values.setdefault(name, []).append(called_name(value))
            bindings.attributes.add(name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            bindings.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            bindings.attributes |= set(node.value.replace(",", " ").split())
    return bindings


def _add_import(bindings: Bindings, node: ast.Import | ast.ImportFrom, own_modules: frozenset[str]) -> None:
    is_relative = isinstance(node, ast.ImportFrom) and node.level > 0
    for alias in node.names:
        if isinstance(node, ast.Import):
            path = alias.name if alias.asname else alias.name.partition(".")[0]
        else:
            path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
        name = alias.asname or alias.name.partition(".")[0]
        bindings.imports.setdefault(name, set()).add(path)
        if not is_relative and path.partition(".")[0] not in own_modules:
            bindings.outside.add(name)


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Each name that the node binds, with its value if that is a plain assignment's."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, node.context_expr
    elif isinstance(node, ast.arg):
        yield node.arg, None
    elif isinstance(node, _NAMED) and node.name:
        yield node.name, None
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest, None
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr | ast.AnnAssign | ast.AugAssign):
        yield from ((part.id, None) for part in ast.walk(node.target) if isinstance(part, ast.Name))
    elif isinstance(node, ast.Tuple | ast.List | ast.Starred) and isinstance(node.ctx, ast.Store):
        yield from ((part.id, None) for part in ast.walk(node) if isinstance(part, ast.Name))


def called_name(value: ast.expr | None) -> str:
    """The function that a value is the result of, as `name` or `module.name`; "" for anything else."""
    function = value.func if isinstance(value, ast.Call) else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""
