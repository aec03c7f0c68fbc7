"""Reads YAML together with the line of every key, so that errors can name the line."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from marina.config.errors import Problem, SpecError, printable

Location = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
# Limits, because a few aliases of aliases turn a hundred bytes into billions of values.
_MOST_VALUES, _MOST_IN_DOCUMENT, _DEEPEST = 20_000, 500_000, 60
# Checked before parsing: PyYAML looks ahead again at every open bracket, so deep nesting would take it very long.
_BRACKETS = re.compile(r"(?:[\[{]\s*){100}")
# What PyYAML raises for values that are not what their tag says, such as `!!bool x`.
WRONG_VALUE = (yaml.YAMLError, ValueError, LookupError, AttributeError)


_OCTAL = re.compile(r"[-+]?0[0-7]+")
# Where a spec holds parts of Kubernetes' objects, whose modes of files are octal: `defaultMode: 0440`.
_KUBERNETES = (("kubernetes", "patches"), ("kubernetes", "pod"))


class _Loader(yaml.SafeLoader):
    """Takes dates and times such as `12:30` for text."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        as_text = tag.endswith((":timestamp", ":value")) or (tag.endswith((":int", ":float")) and ":" in value)
        return f"{_TAG}str" if as_text else tag


class _Values(yaml.constructor.SafeConstructor):
    """Builds the values that Kubernetes, which converts YAML to JSON, can have."""

    def binary(self, node: yaml.ScalarNode) -> str:
        return self.construct_yaml_binary(node).decode()

    yaml_constructors = yaml.constructor.SafeConstructor.yaml_constructors | {
        f"{_TAG}binary": binary,
        f"{_TAG}timestamp": yaml.constructor.SafeConstructor.construct_yaml_str,
    }


def line_of(lines: Mapping[Location, int], location: Location) -> int:
    """The line of a location, or of the nearest section around it that is in the file."""
    while location not in lines:
        location = location[:-1]
    return lines[location]


class _Reader:
    """Builds plain data from YAML nodes, and records the line of each key and item."""

    def __init__(self, file: str, line: int = 1, *, octal: bool) -> None:
        self.file, self._octal = file, octal
        self.lines: dict[Location, int] = {(): line}
        self.problems: list[Problem] = []
        self._scalars = _Values()

    def build(self, node: yaml.Node, location: Location) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, location)
        if node.tag not in self._scalars.yaml_constructors:
            self._report(node, location, f"not readable as YAML: unknown tag `{_short(node.tag)}`")
            return None
        if isinstance(node, yaml.MappingNode):
            return {name: self.build(value, (*location, name)) for name, value in self._entries(node, location)}
        for index, item in enumerate(node.value):
            self.lines[(*location, index)] = item.start_mark.line + 1
        return [self.build(item, (*location, index)) for index, item in enumerate(node.value)]

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> Any:
        try:
            value = _writable(self._scalars.construct_object(node))
        except WRONG_VALUE:
            text = f"not readable as YAML: `{printable(node.value[:60])}` is not a valid `{_short(node.tag)}`"
            self._report(node, location, text)
            return None
        written = node.value.replace("_", "")
        if self._octal or type(value) is not int or not _OCTAL.fullmatch(written) or location[:2] in _KUBERNETES:
            return value
        # Up to 07, both readings are the same.
        if len(digits := written.lstrip("+-0")) > 1:
            text = f"got `{written[:60]}`, which YAML reads as octal, allowed: a number without leading zeros"
            self._report(node, location, text, f"{'-' * (value < 0)}{digits[:60]}, or in quotes if it is text")
        return value

    def _report(self, node: yaml.Node, location: Location, text: str, hint: str | None = None) -> None:
        field = ".".join(map(str, location))
        self.problems.append(Problem(self.file, node.start_mark.line + 1, field, text, hint=hint))

    def _entries(self, node: yaml.MappingNode, location: Location) -> Iterator[tuple[str, yaml.Node]]:
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                text = "got a list or a mapping as a name, allowed: text"
                self._report(key, location, text, "put a text that begins with `{{` in quotes")
                continue
            name, line = _name(key), key.start_mark.line + 1
            if name in seen:
                text = f"given twice, first on line {seen[name]}"
                self._report(key, (*location, name), text, "delete one of the two lines")
                continue
            seen[name] = self.lines[(*location, name)] = line
            yield name, value
        for key, value in self._merged(node, location):
            if (name := _name(key)) not in seen:
                seen[name] = self.lines[(*location, name)] = key.start_mark.line + 1
                yield name, value

    def _merged(self, node: yaml.MappingNode, location: Location) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """What `<<` adds to a mapping; of entries with the same name, the first counts."""
        for sources in (value for key, value in node.value if key.tag == _MERGE):
            for source in sources.value if isinstance(sources, yaml.SequenceNode) else [sources]:
                if isinstance(source, yaml.MappingNode):
                    yield from (entry for entry in source.value if entry[0].tag != _MERGE)
                    yield from self._merged(source, location)
                else:
                    self._report(source, (*location, "<<"), "allowed: a mapping, or a list of mappings")


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _name(key: yaml.Node) -> str:
    return str(key.value).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _writable(value: Any) -> Any:
    """The value, if it can be written again; ValueError for a number of thousands of digits, and for half a character.

    In JSON, `\\ud83d\\ude00` is one character; PyYAML reads two halves."""
    if isinstance(value, int):
        str(value)
    return value.encode("utf-16", "surrogatepass").decode("utf-16") if isinstance(value, str) else value


def compose(text: str, file: str) -> yaml.Node | None:
    """The nodes of the one document in a text, None for an empty one; SpecError if it is not readable as YAML."""
    with _yaml_errors(text, file):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is not None:
        _check_limits(node, file, _MOST_VALUES)
    return node


def read_yaml(text: str, file: str) -> tuple[dict[str, Any], dict[Location, int], list[Problem]]:
    """The data, the line of every location, and the problems in single values; SpecError if it is not a mapping."""
    with _yaml_errors(text, file):
        node = yaml.compose(text, Loader=_Loader)
    if not isinstance(node, yaml.MappingNode):
        defect = "the file is empty" if node is None else "a mapping of fields is needed at the top"
        raise SpecError([Problem(file, 1, "", defect, hint="marina init mine")])
    _check_limits(node, file, _MOST_VALUES)
    reader = _Reader(file, octal=False)
    data = reader.build(node, ())
    return data, reader.lines, reader.problems


def _check_limits(top: yaml.Node, file: str, most: int) -> None:
    """Raises SpecError for more values, or deeper nesting, than any real file has; aliases count each time."""
    values = 0

    def visit(node: yaml.Node, location: Location) -> None:
        nonlocal values
        values += 1
        text = None
        if len(location) > _DEEPEST:
            text = f"nested more than {_DEEPEST} deep, or an alias that contains itself"
        elif values > most:
            text = f"more than {most:,} values, where aliases count each time they are used"
        if text:
            where = ".".join(map(str, location[:3]))
            hint = "write the values out instead of aliases"
            raise SpecError([Problem(file, node.start_mark.line + 1, where, text, hint=hint)])
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    visit(key, (*location, "?"))
                visit(value, (*location, _name(key) if isinstance(key, yaml.ScalarNode) else "?"))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                visit(item, (*location, index))

    visit(top, ())


@contextmanager
def _yaml_errors(text: str, file: str) -> Iterator[None]:
    """Turns the errors of PyYAML into SpecError with the line."""

    def problem(line: int, defect: object) -> SpecError:
        return SpecError([Problem(file, line, "", f"not readable as YAML: {defect}")])

    if brackets := _BRACKETS.search(text):
        raise problem(text.count("\n", 0, brackets.start()) + 1, "nested too deep")
    try:
        yield
    except RecursionError as err:
        raise problem(1, "nested too deep") from err
    except yaml.MarkedYAMLError as err:
        defect, line = str(err.problem), err.problem_mark.line + 1 if err.problem_mark else 1
        if defect.startswith("but "):
            defect = f"{err.context}, {defect}"
        elif err.context_mark and err.context_mark.line + 1 != line:
            defect += f", {err.context} that begins on line {err.context_mark.line + 1}"
        raise problem(line, defect) from err
    except yaml.reader.ReaderError as err:
        raise problem(text.count("\n", 0, err.position) + 1, str(err).splitlines()[0]) from err


def read_documents(text: str, file: str) -> Iterator[tuple[Any, dict[Location, int], list[Problem]]]:
    """Like `read_yaml` for each document of a text, which need not be a mapping; empty documents are skipped."""
    with _yaml_errors(text, file):
        for node in yaml.compose_all(text, Loader=_Loader):
            if node.tag == f"{_TAG}null":
                continue
            _check_limits(node, file, _MOST_IN_DOCUMENT)
            reader = _Reader(file, node.start_mark.line + 1, octal=True)
            yield reader.build(node, ()), reader.lines, reader.problems
