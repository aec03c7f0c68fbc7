"""`[NAME(argument=value, …), …]`, as in Python, and nothing else: Llama 4, and some of Llama 3.2."""

import ast
import json
from typing import Any

from marina.handlers.generation.dialects.reading import Events, Malformed, Reading, skip_space

MARKS = ()
_CONSTANTS = {"true": True, "false": False, "null": None}


def read(events: Events) -> Reading:
    letter = yield
    if letter != "[":
        raise Malformed
    letter = yield from skip_space()
    while letter != "]":
        call = yield from _call(letter)
        name, arguments = _parse(call)
        events.begin(name)
        events.argue(json.dumps(arguments, ensure_ascii=False))
        letter = yield from skip_space()
        if letter == ",":
            letter = yield from skip_space()
        elif letter != "]":
            raise Malformed
    if not events.count or (yield from skip_space()) is not None:
        raise Malformed


def _call(letter: str | None) -> Reading:
    """The text of a call, up to its last parenthesis."""
    text, depth, quote, escaped = "", 0, "", False
    while letter is not None:
        text += letter
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if not depth:
                return text
            if depth < 0:
                raise Malformed
        letter = yield
    raise Malformed


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise Malformed from err
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise Malformed
    return call.func.id, {keyword.arg or "": _value(keyword.value) for keyword in call.keywords}


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None):
            return node.value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {str(key.value): _value(value) for key, value in zip(keys, values, strict=True)}  # type: ignore[union-attr]
        case _:
            raise Malformed
