"""Reads single values of a request's body; one that is wrong is refused with what is allowed."""

from collections.abc import Mapping
from typing import Any

from marina.handlers.generation.refusals import RequestRefused, wrong_value


def read_flag(given: Mapping[str, Any], name: str, inside: str | None = None, *, default: bool = False) -> bool:
    value = given.get(name, default)
    if inside and value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_value(f"{inside}.{name}" if inside else name, value, "`true` or `false`", param=inside)
    return value


def read_number(given: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong_value(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def read_whole(given: Mapping[str, Any], name: str, default: Any, low: int, high: int) -> Any:
    value = given.get(name, default)
    if value is default:
        return default
    if type(value) is not int or not low <= value <= high:
        raise wrong_value(name, value, f"a whole number from {low} to {high}")
    return value


def check_unicode(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise RequestRefused("the text is not valid Unicode", param=where) from err
    return text


def check_keys(given: Mapping[str, object], allowed: set[str], where: str) -> None:
    if extra := sorted(given.keys() - allowed):
        raise RequestRefused(f"`{where}.{extra[0][:80]}` is not supported", param=where, code="unsupported_parameter")
