"""Reads OpenAI's `response_format`, and returns the JSON schema that it asks for."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from marina.handlers.generation.refusals import RequestRefused, quote_choice, wrong_value
from marina.handlers.generation.values import check_keys

OPTIONS: Any = {
    # The white space between the parts of an answer; without a limit a model may write spaces up to `max_tokens`.
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,12}",
    # Without `\\u`, by which a property could have the name of another one, and a text could be no Unicode.
    "json_allowed_escapes": 'nrbtf\\"',
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The largest schema, in bytes of JSON.
_MAX_BYTES = 64 * 1024
# The library reads numbers as floats, so it would write a larger whole number rounded.
_LARGEST_EXACT = 2**53
# The library leaves these characters out of a text, because JSON only has `\\u` for them.
_LOST = "a text in `const`, `enum` or a pattern has a control character, which JSON only writes by `\\u`"
_CONTROL = r"[\x00-\x07\x0b\x0e-\x1f]"
# In a pattern they are the first group. A set of characters before it has others that can be written.
_ESCAPED = r"\\(?:x|u00)(?:0[0-7bBeEfF]|1[0-9a-fA-F])|\\[av]"
_IN_PATTERN = re.compile(rf"\[(?:\\.|[^\]\\])*\]|({_CONTROL}|{_ESCAPED})|\\.")
_NAMED_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_KEYS = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}


def read_schema(wanted: object) -> str | None:
    """The schema as text, with its properties in the order in which they were sent; None if any text is allowed."""
    if wanted is None:
        return None
    allowed = ", ".join(f"`{name}`" for name in _KEYS)
    if not isinstance(wanted, Mapping):
        raise wrong_value("response_format", wanted, f"an object whose `type` is one of {allowed}")
    kind = wanted.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        text = f"`response_format.type`: got {quote_choice(kind)}, allowed: {allowed}"
        raise RequestRefused(text, param="response_format")
    check_keys(wanted, _KEYS[kind], "response_format")
    if kind == "text":
        return None
    return '{"type":"object"}' if kind == "json_object" else _schema(wanted.get("json_schema"))


def with_options(schema: str) -> str:
    """The schema with our options in it, for an engine that makes its own grammar with the same library."""
    if not schema.startswith("{"):
        return schema
    return orjson.dumps({"x-guidance": OPTIONS} | orjson.loads(schema)).decode()


def _schema(given: object) -> str:
    where = "response_format.json_schema"
    if not isinstance(given, Mapping):
        raise wrong_value(where, given, "an object with `name` and `schema`")
    check_keys(given, {"name", "description", "schema", "strict"}, where)
    name, schema, strict = given.get("name"), given.get("schema"), given.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong_value(f"{where}.name", name, "1 to 64 letters, digits, `_` and `-`")
    if not isinstance(description := given.get("description", ""), str | None):
        raise wrong_value(f"{where}.description", description, "a text")
    # The schema is enforced whether `strict` is set or not.
    if strict is not None and not isinstance(strict, bool):
        raise wrong_value(f"{where}.strict", strict, "`true` or `false`")
    if not isinstance(schema, Mapping):
        raise wrong_value(f"{where}.schema", schema, "an object, which is a JSON schema")
    return read_object_schema(schema, f"{where}.schema")


def read_object_schema(schema: Mapping[str, Any], where: str) -> str:
    """A schema that is an object, as text; raises RequestRefused if it would not be enforced."""
    if "x-guidance" in schema:
        raise RequestRefused(f"`{where}`: `x-guidance` is not supported", param=where)
    try:
        text = orjson.dumps(schema)
    except TypeError as err:
        raise RequestRefused(
            f"`{where}`: it is nested too deeply, or a text in it is not valid Unicode", param=where
        ) from err
    if len(text) > _MAX_BYTES:
        raise RequestRefused(f"`{where}`: got {len(text)} bytes, allowed: {_MAX_BYTES}", param=where)
    if reason := _not_enforced(schema):
        raise RequestRefused(f"`{where}`: {reason}", param=where)
    return text.decode()


def _not_enforced(part: object, *, is_value: bool = False) -> str:
    """What the library would take without enforcing it, in any part of a schema; empty if there is nothing. `is_value`:
    the part is a value to be written."""
    if is_value and isinstance(part, int | float) and abs(part) > _LARGEST_EXACT:
        return "a number in `const` or `enum` is over 2**53, so it would be rounded"
    if is_value and isinstance(part, str) and re.search(_CONTROL, part):
        return _LOST
    if isinstance(part, list):
        return next(filter(None, (_not_enforced(item, is_value=is_value) for item in part)), "")
    if not isinstance(part, Mapping):
        return ""
    if not is_value and _has_control_characters(part):
        return _LOST
    if not is_value and _may_repeat_names(part):
        return "`minProperties` asks for several properties without names, and an answer could repeat the same name"
    reasons = (
        # What has names of the user's choice here, such as `const`, is a schema under each of them.
        _not_enforced([*value.values()])
        if not is_value and name in _NAMED_SCHEMAS and isinstance(value, Mapping)
        else _not_enforced(value, is_value=is_value or name in ("const", "enum"))
        for name, value in part.items()
    )
    return next(filter(None, reasons), "")


def _has_control_characters(schema: Mapping[str, object]) -> bool:
    """Whether a pattern of this schema has one to be written."""
    named = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(named if isinstance(named, Mapping) else ())]
    return any(match[1] for text in patterns if isinstance(text, str) for match in _IN_PATTERN.finditer(text))


def _may_repeat_names(schema: Mapping[str, object]) -> bool:
    least, required = schema.get("minProperties"), schema.get("required")
    return isinstance(least, int) and least > 1 + (len(required) if isinstance(required, list) else 0)
