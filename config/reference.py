"""Renders `docs/reference/spec.md`: every field of the spec, from the docstrings under the fields."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from marina.config.sections import KINDS, Model
from marina.config.spec import Spec
from marina.config.validation_errors import section_in, types_in

_INTRODUCTION = """\
# The spec

One YAML file says what is served and how well; everything else is made from it. Unknown keys are errors. Relative paths
start at the spec's folder. `marina check SPEC` prints it with every default filled in, or every error in it at once.

`marina check --fields` prints this page. It is generated from `config/sections/`.
"""


def render_reference() -> str:
    """The whole page: one table for each section, in the order of the spec."""
    return _INTRODUCTION + "".join(_tables("", Spec))


def _tables(path: str, section: type[BaseModel]) -> Iterator[str]:
    title = f"`{path}`" if path else "Top level"
    kinds: dict[str, type[BaseModel]] = {**KINDS} if section in KINDS.values() else {"": section}
    described: list[type[BaseModel]] = [section] if len(kinds) == 1 else [Model, *kinds.values()]
    about = re.sub(r"\s+", " ", described[0].__doc__ or "").strip()
    yield f"\n## {title}\n\n{about}\n\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n"
    inner: list[tuple[str, type[BaseModel]]] = []
    for name in dict.fromkeys(name for kind in described for name in kind.model_fields):
        field = next(kind.model_fields[name] for kind in described if name in kind.model_fields)
        having = [words for words, kind in kinds.items() if name in kind.model_fields]
        only = "" if len(having) == len(kinds) else f"Only for {', '.join(having)}. "
        meaning = only + re.sub(r"\s+", " ", field.description or "").replace("|", "\\|")
        default = "" if only and field.is_required() else _default(field)
        yield f"| `{name}` | {_kind(field)} | {default} | {meaning} |\n"
        below = section_in(field.annotation)
        if below is not None:
            containers = {get_origin(part) for part in types_in(field.annotation)}
            many = ".NAME" if dict in containers else ".N" if tuple in containers else ""
            inner.append((f"{path}.{name}".lstrip(".") + many, below))
    for where, below in inner:
        yield from _tables(where, below)


def _kind(field: FieldInfo) -> str:
    words = dict.fromkeys(word for part in types_in(field.annotation) for word in _type_names(part))
    return " or ".join(words)


def _type_names(part: Any) -> Iterator[str]:
    plain = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
    if part in plain:
        yield plain[part]
    elif get_origin(part) is Literal:
        yield ", ".join(f"`{word}`" for word in get_args(part))
    elif get_origin(part) is dict and not section_in(part):
        inner, *others = types_in(get_args(part)[1])
        yield "mapping" if inner is Any else f"{'values' if others else _plural(inner)} by name"
    elif get_origin(part) is tuple:
        yield f"list of {_plural(next(types_in(get_args(part)[0])))}"
    elif part is not type(None):
        yield "section"


def _plural(part: Any) -> str:
    """The plural of a type's name, for lists and mappings."""
    word = next(_type_names(part), "section")
    return {"text": "texts", "list of texts": "lists of texts"}.get(word, f"{word}s")


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "**required**"
    if default is None or isinstance(default, BaseModel):
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`"
