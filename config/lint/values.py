"""The rules about single values of config.properties: does TorchServe read what is written there?"""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from marina.config.errors import listed
from marina.config.lint.finding import Finding
from marina.config.lint.java_properties import Property
from marina.config.lint.torchserve_keys import Key

_BITS = {"int": 31, "long": 63}
_NO = frozenset(("", "0", "disable", "disabled", "f", "n", "no", "off"))
# URLs that only a pattern without any restriction matches.
_FOREIGN_URLS = ("http://host.invalid/any.mar", "https://host.invalid/any.mar", "file:///any.mar")


def check_value(key: Key, entry: Property) -> Iterator[Finding]:
    """Mistakes in a value: a wrong type, range or spelling, and trailing spaces."""
    value = entry.value.strip()
    if entry.value != entry.value.rstrip() and _keeps_spaces(key, value):
        reads = "reads as `false`, because the space" if key.kind == "bool" else "the space"
        text = f"{reads} at the end is part of the value"
        yield Finding(key.name, "error", "trailing-space", text, f"{key.name}={value}")
    elif key.kind == "text" and re.fullmatch(r"([\"']).*\1", value):
        yield Finding(key.name, "error", "quotes", "the quotes are part of the value", f"{key.name}={value[1:-1]}")
    elif key.kind == "bool":
        yield from _check_bool(key, value)
    elif key.kind in _BITS:
        yield from _check_int(key, value)
    elif key.kind == "float":
        yield from _check_float(key, value)
    elif key.kind == "regex":
        yield from _check_regex(key, value)
    elif key.kind == "list":
        yield from _check_urls(key, value)
    elif key.allowed:
        yield from _check_allowed(key, value)


def _keeps_spaces(key: Key, value: str) -> bool:
    """Whether a space at the end of the value makes a difference."""
    # Double.valueOf, Gson, the launcher and the reader of metrics_mode strip spaces themselves.
    if key.kind in ("float", "json") or key.name in ("metrics_mode", "plugins_path", "vmargs"):
        return False
    return key.kind != "bool" or value.lower() == "true"


def _check_bool(key: Key, value: str) -> Iterator[Finding]:
    if value.lower() in ("true", "false"):
        return
    if key.name == "ts_open_inference_protocol" and value == "oip":
        text = "`oip` is only for the environment variable, in the file it reads as `false`"
        yield Finding(key.name, "error", "oip-flag", text, f"{key.name}=true")
        return
    text = f"got `{value}`, allowed: `false`, `true`; TorchServe reads everything but `true` as `false`"
    meant_no = value.lower() in _NO
    hint = f"{key.name}={'false' if meant_no else 'true'}"
    yield Finding(key.name, "warning" if meant_no else "error", "bool-spelling", text, hint)


def _check_int(key: Key, value: str) -> Iterator[Finding]:
    limit = 2 ** _BITS[key.kind]
    if not re.fullmatch(r"[+-]?0*\d{1,19}", value, re.ASCII) or not -limit <= int(value) < limit:
        text = f"got `{value}`, allowed: a whole number ({key.note}) below {limit}; TorchServe fails when it reads it"
        yield Finding(key.name, "error", "int-format", text, f"{key.name}={key.default or 1}")
        return
    low, high = key.low, key.high
    if (low is not None and int(value) < low) or (high is not None and int(value) > high):
        wanted = f"{low} to {high}" if high is not None else f"{low} or more"
        text = f"got `{value}`, allowed: {wanted} ({key.note})"
        yield Finding(key.name, "error", "int-range", text, f"{key.name}={key.default or low}")


def _check_float(key: Key, value: str) -> Iterator[Finding]:
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?", value):
        text = f"got `{value}`, allowed: a number ({key.note}); TorchServe takes {key.default}"
        yield Finding(key.name, "error", "float-format", text, f"{key.name}={key.default}")


def _check_regex(key: Key, value: str) -> Iterator[Finding]:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as err:
        if not re.search(r"\\[pPhHvVQ]|&&", value):  # Java has these, Python does not
            text = f"got `{value}`, which is not a regular expression ({err}); TorchServe stops at its start"
            yield Finding(key.name, "error", "regex-format", text, f"{key.name}=(AWS_.*|.*SECRET.*)")


def _check_urls(key: Key, value: str) -> Iterator[Finding]:
    patterns = value.split(",")
    for pattern in patterns:
        if pattern != pattern.strip():
            text = f"got `{pattern}` after a comma: the space is part of the expression, which then matches nothing"
            yield Finding(key.name, "error", "allowed-urls", text, f"{key.name}={','.join(map(str.strip, patterns))}")
    open_to = [url for url in _FOREIGN_URLS if any(_matches(pattern, url) for pattern in patterns)]
    if open_to:
        text = f"lets models be loaded from anywhere: {listed(open_to)}"
        yield Finding(key.name, "warning", "allowed-urls", text, f"{key.name}=file:///home/model-server/model-store/.*")


def _matches(pattern: str, url: str) -> bool:
    # Not with `re`, which a pattern such as `((a|.)*)*b` would keep busy for years.
    try:
        TypeAdapter(Annotated[str, StringConstraints(pattern=f"(?i)^(?:{pattern})$")]).validate_python(url)
    except (ValidationError, SchemaError):
        return False
    return True


def _check_allowed(key: Key, value: str) -> Iterator[Finding]:
    if key.name == "metrics_mode":
        if re.sub(r"\s", "", value).lower() not in key.allowed:
            text = f"got `{value}`, allowed: {listed(key.allowed)}; TorchServe logs an error and takes `{key.default}`"
            yield Finding(key.name, "error", "metrics-mode", text, f"{key.name}=prometheus")
    elif value not in key.allowed:
        text = f"got `{value}`, allowed: {listed(key.allowed)}; no worker will start"
        yield Finding(key.name, "error", "allowed-value", text, f"{key.name}={key.allowed[0]}, or delete the line")
