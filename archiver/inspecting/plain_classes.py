"""Finds the classes that `dataclass` may decorate. It makes functions out of a class's annotations by `exec`, so until
then nothing but their own lines may have changed these: no metaclass, no class of the archive, no object that hears of
the class."""

import ast
from collections.abc import Callable, Iterator

DATACLASS = "dataclasses.dataclass"
_OF_METHODS = {"classmethod", "property", "staticmethod"}
# In these, only what is written out has a value.
_WRITTEN_OUT = (ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.unaryop, ast.expr_context)

# The dotted paths that a name of the file, or a chain of attributes, stands for; empty if it may be something else.
Paths = Callable[[str], set[str]]


def find_plain_dataclasses(tree: ast.AST, paths: Paths) -> Iterator[ast.expr]:
    """Each name `dataclass` in the file that decorates such a class, before any other decorator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            first = node.decorator_list[-1]
            name = first.func if isinstance(first, ast.Call) else first
            if paths(ast.unparse(name)) == {DATACLASS} and _is_plain(node, paths):
                yield name


def _is_plain(node: ast.ClassDef, paths: Paths) -> bool:
    is_known = all(paths(ast.unparse(base)) for base in node.bases) and not node.keywords
    # `:=` in an annotation, or in a method's defaults, sets an attribute of the class.
    names_more = any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))
    return is_known and not names_more and all(_is_plain_line(line, paths) for line in node.body)


def _is_plain_line(line: ast.stmt, paths: Paths) -> bool:
    if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef):
        return all(isinstance(name, ast.Name) and name.id in _OF_METHODS for name in line.decorator_list)
    if isinstance(line, ast.AnnAssign):
        return isinstance(line.target, ast.Name) and (line.value is None or _is_plain_value(line.value, paths))
    return isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))


def _is_plain_value(value: ast.expr, paths: Paths) -> bool:
    if isinstance(value, ast.Call) and paths(ast.unparse(value.func)) == {"dataclasses.field"} and not value.args:
        return all(
            keyword.arg == "default_factory" or (keyword.arg is not None and _is_plain_value(keyword.value, paths))
            for keyword in value.keywords
        )
    return all(isinstance(part, _WRITTEN_OUT) for part in ast.walk(value))
