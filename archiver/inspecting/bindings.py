"""What a file of Python gives names to: what it imports, defines and sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

# A name that something other than a plain assignment sets.
OTHERWISE = ast.Constant(None)
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar


@dataclass
class Bindings:
    """`imports`: the dotted paths that a name stands for; `values`: what else it is set to; `attributes`: names that
    the file gives to attributes, by a definition or in a text, as `register_buffer("mean", ...)` does; `outside`: names
    of what is imported from other packages than those of the archive."""

    imports: dict[str, set[str]] = field(default_factory=dict)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)


def bindings(tree: ast.AST, beside: frozenset[str]) -> Bindings:
    """Those of the whole file, wherever they stand in it; `beside`: the modules of the archive."""
    made = Bindings()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _imported(made, node, beside)
            continue
        for name, value in _set(node):
            made.values.setdefault(name, []).append(value)
            made.attributes.add(name)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            made.attributes.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            made.attributes |= set(node.value.replace(",", " ").split())
    return made


def _imported(made: Bindings, node: ast.Import | ast.ImportFrom, beside: frozenset[str]) -> None:
    is_beside = isinstance(node, ast.ImportFrom) and node.level > 0
    for alias in node.names:
        if isinstance(node, ast.Import):
            path = alias.name if alias.asname else alias.name.partition(".")[0]
        else:
            path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
        name = alias.asname or alias.name.partition(".")[0]
        made.imports.setdefault(name, set()).add(path)
        if not is_beside and path.partition(".")[0] not in beside:
            made.outside.add(name)


def _set(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Each name with what it is set to."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
        yield node.optional_vars.id, node.context_expr
    elif isinstance(node, ast.arg):
        yield node.arg, OTHERWISE
    elif isinstance(node, _NAMED) and node.name:
        yield node.name, OTHERWISE
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest, OTHERWISE
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension | ast.NamedExpr | ast.AnnAssign | ast.AugAssign):
        yield from ((part.id, OTHERWISE) for part in ast.walk(node.target) if isinstance(part, ast.Name))
    elif isinstance(node, ast.Tuple | ast.List | ast.Starred) and isinstance(node.ctx, ast.Store):
        yield from ((part.id, OTHERWISE) for part in ast.walk(node) if isinstance(part, ast.Name))
