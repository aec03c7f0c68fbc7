"""Checks that the Python in an archive uses only what is known to be harmless, without running any of it.

Python can be written so that its source does not show what it does. What cannot be analysed is not known to be harmless
either: modules as values, names of attributes that are computed, functions that are called with arbitrary arguments."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marina.archiver.inspecting.bindings import Bindings, called_name, find_bindings
from marina.archiver.inspecting.known import CallRule, known
from marina.archiver.inspecting.plain_classes import DATACLASS, find_plain_dataclasses

_ATTRIBUTES_TEXT = (
    "__call__ __class__ __constants__ __doc__ __enter__ __exit__ __getitem__ __init__ __len__ __name__ __post_init__ "
    "__repr__ __str__ __version__"
)
_ATTRIBUTES = frozenset(_ATTRIBUTES_TEXT.split())
_NAMES = frozenset({"__class__", "__constants__", "__hash__", "__slots__"})
# For these classes, `case str(name):` binds the value itself; for others, it binds attributes that the class lists.
_BINDING_VALUE = frozenset({"bool", "bytes", "dict", "float", "int", "list", "set", "str", "tuple"})
_MOST_SHOWN = 5
# A tree may take a thousand times the size of its file.
_LONGEST_PYTHON, _MOST_PYTHON = 2**19, 2**24


@dataclass(frozen=True)
class PythonFile:
    """A Python file, by its name in the archive."""

    name: str
    data: bytes


@dataclass(frozen=True)
class _Archive:
    """The archive's modules, and the `attributes` and `outside` of all its files' Bindings."""

    modules: frozenset[str]
    attributes: frozenset[str]
    outside: frozenset[str]


def find_unknown_uses(sources: Sequence[PythonFile], importable: frozenset[str]) -> Iterator[str]:
    """A sentence for each use of something that is not known to be harmless, with its file and line; `importable` are
    the modules of the archive."""
    known_packages = {module.partition(".")[0] for module in known().modules}
    modules = frozenset(module for module in importable if module.partition(".")[0] not in known_packages)
    if sum(len(source.data) for source in sources) > _MOST_PYTHON:
        yield f"more than {_MOST_PYTHON:,} bytes of Python, which is too much to be analysed"
        return
    # Each file is parsed twice, because all trees together would fill the memory.
    bindings = {source.name: find_bindings(tree, modules) for source in sources if (tree := _parse(source.data))}
    attributes = frozenset(name for names in bindings.values() for name in names.attributes)
    archive = _Archive(modules, attributes, frozenset(name for names in bindings.values() for name in names.outside))
    for source in sources:
        tree = _parse(source.data)
        if tree is None:
            yield f"{source.name}: Python that cannot be parsed"
            continue
        finder = _UnknownUseFinder(bindings[source.name], archive, tree)
        try:
            finder.visit(tree)
        except RecursionError:
            yield f"{source.name}: Python that cannot be parsed"
        for line, text in sorted(set(finder.uses))[:_MOST_SHOWN]:
            yield f"{source.name}:{line}: {text} is not known to be harmless"


def _parse(data: bytes) -> ast.AST | None:
    """The file's tree; None if Python would not parse it either, or if its tree could fill the memory."""
    try:
        return ast.parse(data) if len(data) <= _LONGEST_PYTHON else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _UnknownUseFinder(ast.NodeVisitor):
    """Collects the uses of what is not known to be harmless: their line, and their text in backquotes."""

    def __init__(self, names: Bindings, archive: _Archive, tree: ast.AST) -> None:
        self.uses: list[tuple[int, str]] = []
        self._names, self._archive = names, archive
        self._dataclasses = set(find_plain_dataclasses(tree, self._paths))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not self._is_in_archive(alias.name) and alias.name not in known().modules:
                self._add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            path = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            if alias.name == "*":
                self._add(node, path)
            else:
                self._follow(node, path, as_value=False)

    def visit_Name(self, node: ast.Name) -> None:
        self._use(node, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(node, None)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            key = node.args[1] if len(node.args) > 1 else None
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._attribute(node, key.value, None)
            else:
                self._add(node, f"{node.func.id} with a name that is not written out")
        elif isinstance(node.func, ast.Name | ast.Attribute):
            self._use(node.func, node)
        else:
            self.visit(node.func)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            self._attribute(node, name, None)
        binds_value = isinstance(node.cls, ast.Name) and node.cls.id in _BINDING_VALUE and not self._is_own(node.cls.id)
        if node.patterns and not binds_value:
            self._add(node, f"{ast.unparse(node.cls)} with attributes that are not named")
        self.generic_visit(node)

    def _paths(self, name: str) -> set[str]:
        """The dotted paths outside the archive that a name, or a chain of attributes, stands for; empty if it may be
        something else."""
        root, _, rest = name.partition(".")
        paths = self._names.imports.get(root, set())
        if root in self._names.values or any(map(self._is_in_archive, paths)):
            return set()
        return {".".join(filter(None, (path, rest))) for path in paths}

    def _is_own(self, name: str) -> bool:
        return name in self._names.values or name in self._names.imports

    def _is_in_archive(self, path: str) -> bool:
        return path.startswith(".") or path.partition(".")[0] in self._archive.modules

    def _is_module(self, path: str) -> bool:
        """Whether a path is that of a module of the archive; for a relative path, only its last name is compared."""
        if path.startswith("."):
            return path.strip(".") in {module.rpartition(".")[2] for module in self._archive.modules}
        return path in self._archive.modules

    def _use(self, node: ast.Name | ast.Attribute, call: ast.Call | None) -> None:
        """Checks a name, or a chain of attributes, that is read, set or called."""
        chain: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            chain.insert(0, root.attr)
            root = root.value
        if isinstance(root, ast.Name):
            self._name(root)
            for path in self._names.imports.get(root.id, ()):
                self._follow(node, ".".join([path, *chain]), call=call)
            if root.id in self._names.imports and root.id not in self._names.values:
                return
        else:
            self.visit(root)
        for name in chain[:-1]:
            self._attribute(node, name, None)
        if chain:
            self._attribute(node, chain[-1], call)

    def _name(self, node: ast.Name) -> None:
        name, harmless = node.id, known().builtins | _NAMES
        is_hidden = name.startswith("__") and name.endswith("__")
        is_read = isinstance(node.ctx, ast.Load)
        if (is_hidden or (is_read and (hasattr(builtins, name) or not self._is_own(name)))) and name not in harmless:
            self._add(node, name)

    def _follow(self, node: ast.AST, path: str, call: ast.Call | None = None, *, as_value: bool = True) -> None:
        """Checks a dotted path that begins with an import. With `as_value`, what it names is used and not only
        imported."""
        if self._is_in_archive(path):
            names = path.strip(".").split(".")
            if as_value and self._is_module(path):
                self._add(node, f"the module {path} as a value")
            for name in names if as_value else names[-1:]:
                if name in self._archive.outside | known().acting or f".{name}" in known().calls:
                    self._add(node, path)
            return
        parts, modules = path.split("."), known().modules
        size = next((size for size in range(len(parts), 0, -1) if ".".join(parts[:size]) in modules), 0)
        module, rest = ".".join(parts[:size]), parts[size:]
        if not size:
            # For an unknown import, only its own line is reported, and not each use.
            if not as_value:
                self._add(node, path)
        elif not rest:
            if as_value:
                self._add(node, f"the module {path} as a value")
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if path not in known().stored:
                self._add(node, f"setting {path}")
        elif rest[0] not in modules[module] or (path == DATACLASS and as_value and node not in self._dataclasses):
            self._add(node, path)
        elif (rule := known().calls.get(f"{module}.{rest[0]}")) and (as_value or len(rest) > 1):
            if len(rest) > 1 or call is None or not self._fits(rule, call):
                self._add(node, path if call is None else ast.unparse(call))
        else:
            for name in rest[1:-1]:
                self._attribute(node, name, None)
            if rest[1:]:
                self._attribute(node, rest[-1], call)

    def _attribute(self, node: ast.AST, name: str, call: ast.Call | None) -> None:
        """Checks an attribute of something that is not a module."""
        is_hidden = name.startswith("__") and name.endswith("__")
        is_own = name in self._archive.attributes and name not in known().acting and not is_hidden
        rule = known().calls.get(f".{name}")
        if rule and call is not None:
            is_harmless = self._fits(rule, call)
        elif rule:
            is_harmless = is_own and rule.kind != "least"
        else:
            is_harmless = is_own or name in (_ATTRIBUTES if is_hidden else known().values)
        if not is_harmless:
            self._add(node, ast.unparse(call) if rule and call else f".{name}")

    def _fits(self, rule: CallRule, call: ast.Call) -> bool:
        """Whether a call is as the rule requires."""
        settings = {word.arg: word.value for word in call.keywords}
        is_explicit = None not in settings and not any(isinstance(value, ast.Starred) for value in call.args)
        if rule.kind in ("needs", "only"):
            is_set = all(
                ast.unparse(settings.get(word.partition("=")[0], call)) == word.partition("=")[2] for word in rule.words
            )
            return is_set or (rule.kind == "only" and not call.args and not settings)
        if rule.kind == "keywords":
            return is_explicit and not call.args and settings.keys() <= set(rule.words)
        if rule.kind == "without":
            return is_explicit and len(call.args) <= 1 and not settings.keys() & set(rule.words)
        if rule.kind == "least":
            has_enough = len(call.args) >= int(rule.words[0])
            return is_explicit and (has_enough or (not call.args and "target" not in settings))
        place, name = int(rule.words[0]), rule.words[1]
        buffer = call.args[place] if len(call.args) > place else settings.get(name)
        is_placed = not any(isinstance(value, ast.Starred) for value in call.args[: place + 1])
        return buffer is not None and is_placed and self._is_buffer(buffer)

    def _is_buffer(self, value: ast.expr) -> bool:
        """Whether a value is an `io.BytesIO()` of this file, whichever way the code goes."""
        if isinstance(value, ast.Name):
            called = self._names.values.get(value.id, [])
            return bool(called) and value.id not in self._names.imports and all(map(self._makes_buffer, called))
        return self._makes_buffer(called_name(value))

    def _makes_buffer(self, called: str) -> bool:
        return self._paths(called) == {"io.BytesIO"}

    def _add(self, node: ast.AST, text: str) -> None:
        self.uses.append((getattr(node, "lineno", 0), f"`{text}`"))
