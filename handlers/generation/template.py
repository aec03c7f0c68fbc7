"""Chat templates: programs that come with a model, so they run in a sandbox, with limits on time and memory."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# The longest source of a template, in characters.
_MAX_SOURCE = 100_000
# The longest prompt made of messages, in characters.
_MAX_TEXT = 4_000_000
# How many lines of Python a template may run for one conversation, and functions it may call.
_MAX_STEPS = 1_000_000
# The name under which jinja compiles a template without a file.
_FILE = "<template>"
# How much processor time it may take, in seconds, because a single line can do much.
_MAX_S = 1.0
_DEVELOPER = "developer"
# How many characters each part of a list counts in addition to its own.
_PART = 16
# The largest number, in bits, and the longest indent and separator of JSON.
_MAX_BITS, _MAX_INDENT = 256, 100
# Methods of texts and numbers that pad to any width, or whose result has such methods.
_BARRED = ("center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill")
# Fields of formats with a width of three digits or more, or with another field as their width.
_WIDE, _WIDE_DATE = re.compile(r"\{[^{}]*(\{|\d{3})"), re.compile(r"\d{3}")


class TemplateRefused(Exception):
    """The template refuses these messages, or cannot be run."""


class ChatTemplate:
    """A chat template as `transformers` uses them."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        if len(source) > _MAX_SOURCE:
            raise TemplateRefused(f"the chat template has {len(source)} characters, allowed: {_MAX_SOURCE}")
        extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols", _Generation]
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self._special = dict(special)
        # Templates from before OpenAI's new name for `system` would leave out such a message, and say nothing.
        self._names_developer = _DEVELOPER in source
        try:
            self._template = environment.from_string(source)
        except (TemplateError, SyntaxError, RecursionError) as err:
            raise TemplateRefused(f"the chat template cannot be read: {err}") from err

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation, up to where the assistant's answer begins."""
        # Templates test `tools is not none`, so these must not be undefined.
        absent = {"tools": None, "documents": None}
        if not self._names_developer:
            names = {_DEVELOPER: "system"}
            messages = [{**message, "role": names.get(message["role"], message["role"])} for message in messages]
        before = sys.gettrace()
        sys.settrace(_Budget().trace)
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **absent, **self._special)
        except (TemplateError, SecurityError, OverflowError, MemoryError, RecursionError) as err:
            raise TemplateRefused(str(err) or type(err).__name__) from err
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError) as err:
            raise TemplateRefused("the chat template cannot render these messages") from err
        finally:
            sys.settrace(before)


class _Budget:
    """Counts the lines of a template that run and the functions that they call, with the time that all of it takes, and
    ends a template that takes too much."""

    def __init__(self) -> None:
        self._steps = 0
        self._until = time.thread_time() + _MAX_S

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        """Is called for each call of a function. To follow the lines of jinja's own, too, would take twice as long."""
        self._count(frame, "line", argument)
        return self._count if frame.f_code.co_filename == _FILE else None

    def _count(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self._steps += 1
            if self._steps > _MAX_STEPS or time.thread_time() > self._until:
                raise TemplateRefused("the chat template takes too long for these messages")
        return self._count


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for a training: it is written as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox without operations that take much memory or time at once: powers, repetition, formats, padding, texts
    and numbers that grow, and lists that contain each other, which are short until they are written out."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in ("batch", "center", "format", "round", "urlize", "wordwrap", "xmlattr"):
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters |= {"indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson}
        self.filters = {name: _bounding(function) for name, function in self.filters.items()} | {"bounded": _bounded}
        self.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins the parts of the prompt, and those of a macro's or a block's text."""
        return _join(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _FilterInserter().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"`{operator}` is not allowed in chat templates")
        if operator == "*" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise SecurityError("chat templates must not repeat texts or lists")
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        return _bounded(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_method(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_method(obj, argument)
        return super().getitem(obj, argument)

    def call(self, context: Any, function: Any, /, *values: Any, **named: Any) -> Any:
        text, method = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(text, str) and method == "replace" and len(values) >= 2:
            return _replace(text, *values)
        if isinstance(text, str) and method == "join" and values:
            return _join(values[0], text)
        return _bounded(super().call(context, function, *values, **named))


class _FilterInserter(NodeTransformer):
    """Makes filters of the operator `a ~ b` and of literals such as `[a, b]`, which cannot be intercepted otherwise."""

    def _bound(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "bounded", [], [], None, None, lineno=node.lineno)

    visit_List = visit_Dict = _bound  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._bound(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)


def _bounding(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks the size of its result."""

    @wraps(function)
    def filtered(*values: Any, **named: Any) -> Any:
        return _bounded(function(*values, **named))

    return filtered


def _bounded(value: Any) -> Any:
    """Returns the value, or raises if it would be too long when written out: a list may contain another one twice."""
    if isinstance(value, str):
        _check_size(len(value))
    if isinstance(value, int):
        _check_size(value.bit_length(), _MAX_BITS)
    if not isinstance(value, list | tuple | Mapping | Namespace):
        return value
    left, size = [value], 0
    while left:
        part = left.pop()
        size += _PART
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, list | tuple):
            size += len(part)
            left += part
        elif isinstance(part, Mapping):
            left += part.keys()
            left += part.values()
        elif isinstance(part, Namespace):
            left += object.__getattribute__(part, "_Namespace__attrs").values()
        if size > _MAX_TEXT:
            _check_size(size)
    return value


def _check_size(size: int, limit: int = _MAX_TEXT) -> None:
    if size > limit:
        raise SecurityError("a text, a list or a number becomes too long")


def _check_method(value: Any, method: Any) -> None:
    """Refuses methods that pad a text to a width, which may be any, and those that make bytes."""
    if isinstance(value, str | int) and method in _BARRED:
        raise SecurityError(f"`{method}` is not allowed in chat templates")
    if isinstance(value, str) and method in ("format", "format_map") and _WIDE.search(value):
        raise SecurityError("a format with a width is not allowed in chat templates")


def _join(values: Iterable[Any], between: str = "", attribute: str | int | None = None) -> str:
    """Jinja's filter `join`. With `attribute`, joins that attribute of each value."""
    texts = []
    length = 0
    for value in values:
        texts.append(str(value if attribute is None else value[attribute]))
        length += len(texts[-1]) + len(between)
        _check_size(length)
    return str(between).join(texts)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, old, new = str(text), str(old), str(new)
    times = whole.count(old) if count is None or count < 0 else min(count, whole.count(old))
    _check_size(len(whole) + times * max(0, len(new) - len(old)))
    return whole.replace(old, new, times)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    length = len(width) if isinstance(width, str) else width
    _check_size(len(text) + (1 + text.count("\n")) * length)
    return do_indent(text, width, first, blank)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    for text in (indent, *(separators or ())):
        _check_size(text if isinstance(text, int) else len(text or ""), _MAX_INDENT)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    if _WIDE_DATE.search(form):
        raise SecurityError("a date format with a width is not allowed in chat templates")
    return datetime.now().strftime(form)


def _raise(message: str) -> None:
    raise TemplateRefused(message)
