"""Reads YAML together with the line of every key, so that errors can name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from config.errors import InputError, Problem, SpecError

Location = tuple[str | int, ...]

_MERGE = "tag:yaml.org,2002:merge"
# Limits, because a few aliases of aliases turn a hundred bytes into billions of values.
_MOST_VALUES, _MOST_IN_DOCUMENT, _DEEPEST = 20_000, 500_000, 60
# Checked before parsing: PyYAML looks ahead again at every open bracket, so deep nesting would take it very long.
_BRACKETS = re.compile(r"(?:[\[{]\s*){100}")


def line_of(lines: Mapping[Location, int], location: Location) -> int:
    """The line of a location, or of the nearest section around it that is in the file."""
    while location not in lines:
        location = location[:-1]
    return lines[location]


class _Reader:
    """Builds plain data from YAML nodes, and records the line of each key and item."""

    def __init__(self, file: str, line: int = 1, most: int = _MOST_VALUES) -> None:
        self.file = file
        self.lines: dict[Location, int] = {(): line}
        self.problems: list[Problem] = []
        self._scalars = yaml.constructor.SafeConstructor()
        self._values, self._most = 0, most

    def build(self, node: yaml.Node, location: Location) -> Any:
        self._check_limits(node, location)
        if isinstance(node, yaml.MappingNode):
            return {name: self.build(value, (*location, name)) for name, value in self._entries(node, location)}
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.lines[(*location, index)] = item.start_mark.line + 1
            return [self.build(item, (*location, index)) for index, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as err:
            line, field = node.start_mark.line + 1, ".".join(map(str, location))
            self.problems.append(Problem(self.file, line, field, f"not readable as YAML: {err}".splitlines()[0]))
            return None

    def _check_limits(self, node: yaml.Node, location: Location) -> None:
        """Raises SpecError for more values, or deeper nesting, than any real file has."""
        self._values += 1
        text = None
        if len(location) > _DEEPEST:
            text = f"nested more than {_DEEPEST} deep, or an alias that contains itself"
        elif self._values > self._most:
            text = f"more than {self._most:,} values, where aliases count each time they are used"
        if text:
            where = ".".join(map(str, location[:3]))
            hint = "write the values out instead of aliases"
            raise SpecError([Problem(self.file, node.start_mark.line + 1, where, text, hint=hint)])

    def _entries(self, node: yaml.MappingNode, location: Location) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[str, int] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
                merged += [pair for source in sources if isinstance(source, yaml.MappingNode) for pair in source.value]
                continue
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                field = ".".join(map(str, (*location, name)))
                text = f"given twice, first on line {seen[name]}"
                self.problems.append(Problem(self.file, line, field, text, hint="delete one of the two lines"))
                continue
            seen[name] = line
            self.lines[(*location, name)] = line
            yield name, value
        for key, value in merged:
            if str(key.value) not in seen:
                seen[str(key.value)] = self.lines[(*location, str(key.value))] = key.start_mark.line + 1
                yield str(key.value), value


def read_yaml(text: str, file: str) -> tuple[dict[str, Any], dict[Location, int], list[Problem]]:
    """The data, the line of every location, and the problems in single values; SpecError if it is not a mapping."""
    with _yaml_errors(text, file):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        defect = "the file is empty" if node is None else "a mapping of fields is needed at the top"
        raise SpecError([Problem(file, 1, "", defect, hint="marina init mine")])
    reader = _Reader(file)
    data = reader.build(node, ())
    return data, reader.lines, reader.problems


@contextmanager
def _yaml_errors(text: str, file: str) -> Iterator[None]:
    """Turns the errors of PyYAML into SpecError with the line, or InputError if the line is not known."""
    too_deep = f"{file}: not readable as YAML: nested too deep"
    if _BRACKETS.search(text):
        raise InputError(too_deep)
    try:
        yield
    except RecursionError as err:
        raise InputError(too_deep) from err
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 1
        raise SpecError([Problem(file, line, "", f"not readable as YAML: {err.problem}")]) from err
    except yaml.YAMLError as err:
        raise InputError(f"{file}: not readable as YAML: {err}".splitlines()[0]) from err


class _AsJson(yaml.SafeLoader):
    """Reads dates and a bare `=` as text, as Kubernetes does, which converts YAML to JSON."""


_AsJson.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0].rpartition(":")[2] not in ("timestamp", "value")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(text: str, file: str) -> Iterator[tuple[Any, dict[Location, int], list[Problem]]]:
    """Like `read_yaml` for each document of a text, which need not be a mapping; empty documents are skipped."""
    with _yaml_errors(text, file):
        for node in yaml.compose_all(text, Loader=_AsJson):
            if node.tag == "tag:yaml.org,2002:null":
                continue
            reader = _Reader(file, node.start_mark.line + 1, _MOST_IN_DOCUMENT)
            yield reader.build(node, ()), reader.lines, reader.problems
