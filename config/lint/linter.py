"""Checks a `config.properties` or `model-config.yaml`, by the name of the file: unknown keys, wrong types, and the
settings that do most harm. TorchServe silently ignores what it does not know."""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from marina.config.errors import InputError, listed, printable
from marina.config.lint.keys import HANDLER_SECTIONS, LAUNCHER_KEYS, MODEL_CONFIG, MODEL_FILE, PROPERTIES, Key
from marina.config.lint.readers import (
    Property,
    read_as_launcher,
    read_bytes,
    read_model_config,
    read_properties,
)

# ConfigManager.ADDRESS_PATTERN of the jar: no IPv6, no path, no spaces.
_ADDRESS = re.compile(r"https?://(?P<host>[^:^/]+)(:[0-9]{1,5})?|unix:/.*", re.IGNORECASE)
_LOCAL = re.compile(r"localhost|127(\.\d+){3}", re.IGNORECASE)
_REPLACED = re.compile(r"\$\$([^$]+[^$])\$\$")
_SHELL_VARIABLE = re.compile(r"\$\{\w+\}|\$[A-Za-z_]\w*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?")
_BITS = {"int": 31, "long": 63}
_NO = frozenset(("", "0", "disable", "disabled", "f", "n", "no", "off"))
_ANY_URL = r"(.*,)?(\.\*|(file|https?|http\(s\)\?|https\?):(//)?\.\*.*)"

_METRICS, _URLS = "metrics_mode=prometheus", "allowed_urls=file:///home/model-server/model-store/.*"
_NO_TOKENS = "disable_token_authorization=true, and let the gateway and a NetworkPolicy guard the ports"
_TOKENS = "every call needs a token, even `/ping`, so probes get 400, and each replica has tokens of its own"
_PIP = "runs pip for each model at registration: it needs the internet, may replace torch and runs setup code"
_RESET = "any model-config.yaml resets it to 120 seconds, unless it sets `{0}` itself"
# A key of config.properties, the values that are a trap (None: it is not set), the rule, what happens, what to type.
_TRAPS: tuple[tuple[str, str | None, str, str, str], ...] = (
    ("metrics_mode", "log", "metrics-mode", "`/metrics` answers with an empty page, the numbers go to logs", _METRICS),
    ("metrics_mode", None, "metrics-mode", "not set, so it is `log`: `/metrics` answers with an empty page", _METRICS),
    ("disable_token_authorization", "false", "token-auth", _TOKENS, _NO_TOKENS),
    ("disable_token_authorization", None, "token-auth", f"not set, so {_TOKENS}", _NO_TOKENS),
    ("allowed_urls", _ANY_URL, "allowed-urls", "lets models be loaded from anywhere", _URLS),
    ("allowed_urls", None, "allowed-urls", "not set, so models may be loaded from any URL", _URLS),
    ("model_store", None, "model-store", "not set, so TorchServe stops at its start unless the command line names it",
     "model_store=<folder>"),
    ("install_py_dep_per_model", "true", "install-deps", _PIP,
     "install_py_dep_per_model=false, and install the packages in the image"),
    ("enable_model_api", "true", "model-api",
     "anyone who can reach the management port may load a model, which is code", "enable_model_api=false"),
    ("default_response_timeout", ".+", "yaml-resets", _RESET.format("responseTimeout"),
     "responseTimeout: {value} in each model-config.yaml"),
    ("default_startup_timeout", ".+", "yaml-resets", _RESET.format("startupTimeout"),
     "startupTimeout: {value} in each model-config.yaml"),
)  # fmt: skip

_TYPES: dict[str, tuple[str, type]] = {
    "bool": ("`false`, `true`", bool),
    "int": ("a whole number", int),
    "list": ("a list of whole numbers from 0", list),
    "map": ("a mapping", dict),
    "text": ("a text", str),
}
_DEFAULT_WORKERS = "TorchServe starts the default number: one for each GPU, or for each processor if there is none"

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One problem in a file. `error`: TorchServe will not do what is written; `warning`: it will, but that is a known
    trap."""

    key: str
    level: Level
    rule: str
    """A short id that stays the same in all releases."""
    text: str
    hint: str | None = None
    """What to type."""
    line: int = 1
    """A finding about a key that is not in the file is on line 1."""
    file: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: "
        return f"{place}`{self.key}`: {self.text}" if self.key else place + self.text


def lint_file(path: Path) -> list[Finding]:
    """Every finding in a file, sorted by line; InputError if the file cannot be read or is of another kind."""
    data = read_bytes(path)
    kinds: dict[str, Callable[[bytes, str], Iterator[Finding]]] = {
        ".properties": _lint_properties,
        ".yaml": _lint_model_config,
        ".yml": _lint_model_config,
    }
    if (lint := kinds.get(path.suffix.lower())) is None:
        hint = "marina check --properties config.properties"
        raise InputError(f"{path}: its name must end in one of {listed(kinds)}", hint=hint)
    findings = [
        replace(
            finding,
            file=str(path),
            # Text from the file must not control the terminal.
            key=printable(finding.key),
            text=printable(finding.text),
            hint=finding.hint and printable(finding.hint),
        )
        for finding in lint(data, str(path))
    ]
    return sorted(findings, key=lambda finding: (finding.line, finding.key, finding.rule, finding.text))


def _meant(key: str, own: Mapping[str, Key]) -> tuple[str, bool] | None:
    """The key that a wrong one was most likely meant to be, however it is spelt, and whether that is one of
    model-config.yaml; None if none is close. Of keys that both files have, that of its own file is meant."""
    both = {_plain(name): (name, name in MODEL_CONFIG) for name in (*PROPERTIES, *MODEL_CONFIG, *own)}
    return both.get(next(iter(difflib.get_close_matches(_plain(key), both, n=1, cutoff=0.75)), ""))


def _plain(key: str) -> str:
    return "".join(char for char in key.lower() if char.isalnum())


def _lint_properties(data: bytes, _file: str) -> Iterator[Finding]:
    entries: dict[str, Property] = {}
    for entry in read_properties(data):
        if earlier := entries.get(entry.key):
            level: Level = "warning" if earlier.value == entry.value else "error"
            text = f"given twice, first on line {earlier.line}; the last one wins"
            yield Finding(entry.key, level, "duplicate-key", text, "delete one of the two lines", entry.line)
        entries[entry.key] = entry
    launcher = read_as_launcher(data)
    for entry in entries.values():
        if finding := _check_property(entry, launcher):
            yield replace(finding, line=entry.line)
    for finding in _check_traps({key: entry.value.strip() for key, entry in entries.items()}):
        yield replace(finding, line=entries[finding.key].line if finding.key in entries else 1)


def _check_property(entry: Property, launcher: Mapping[str, str]) -> Finding | None:
    name, value = entry.key, entry.value.strip()
    if entry.malformed:
        text = "`\\u` without four hexadecimal digits, TorchServe stops at its start"
        return Finding(name, "error", "escape", text, "write `\\\\` for a backslash")
    if name not in PROPERTIES:
        return _unknown_property(entry)
    if entry.lost:
        text = f"Java drops the backslash before {listed(entry.lost)}"
        return Finding(name, "error", "lost-backslash", text, "write each backslash twice")
    if name in LAUNCHER_KEYS and launcher.get(name) != value:
        got = f"`{launcher[name]}`" if name in launcher else "nothing"
        text = f"the torchserve launcher reads {got}: it knows `=` only, no continuation lines and no escapes"
        return Finding(name, "error", "launcher-line", text, f"write it on one line: {name}={value}")
    left = _SHELL_VARIABLE.search(_REPLACED.sub("", value))
    if left and name not in ("allowed_urls", "blacklist_env_vars", "models"):
        text = f"`{left[0]}` is not replaced, TorchServe replaces only `$$NAME$$` with a name of two or more characters"
        return Finding(name, "error", "dollar-substitution", text, f"write `$${left[0].strip('${}')}$$`, or the value")
    # Of `$$NAME$$`, TorchServe reads the value of the environment variable.
    return None if _REPLACED.search(value) else _check_property_value(PROPERTIES[name], entry.value)


def _unknown_property(entry: Property) -> Finding:
    text, hint = "unknown key, TorchServe silently ignores it", "delete the line"
    if found := _meant(entry.key, PROPERTIES):
        name, in_model_file = found
        place = f" in {MODEL_FILE}" if in_model_file else ""
        text = f"{text}; did you mean `{name}`{place}?"
        hint = f"write `{name}: {entry.value}`{place} and delete this line" if place else f"{name}={entry.value}"
    return Finding(entry.key, "error", "unknown-key", text, hint)


def _check_property_value(key: Key, written: str) -> Finding | None:
    value, hint = written.strip(), f"{key.name}={key.default or ''.join(key.allowed[:1])}"
    level: Level = "error"
    text, ending = "", ""
    if key.kind == "bool" and value.lower() not in ("true", "false"):
        text, ending = "`false`, `true`", "; TorchServe reads everything but `true` as `false`"
        level, hint = ("warning", f"{key.name}=false") if value.lower() in _NO else ("error", f"{key.name}=true")
    elif key.kind == "bool" and value.lower() == "true" and written != written.rstrip():
        text, hint = "the word alone: with a space at the end it reads as `false`", f"{key.name}={value}"
    elif key.kind in _BITS:
        high = 2 ** _BITS[key.kind] - 1 if key.high is None else key.high
        if not re.fullmatch(r"[+-]?0*\d{1,19}", written, re.ASCII) or not key.low <= int(value) <= high:
            text = f"a whole number from {key.low} to {high} ({key.note}), without spaces around it"
    elif key.kind == "float" and not _NUMBER.fullmatch(value):
        text, ending = f"a number ({key.note})", f"; TorchServe takes {key.default}"
    elif key.kind == "address" and not _ADDRESS.fullmatch(written):
        text, ending = "`http://HOST:PORT`, `https://HOST:PORT`, `unix:/PATH`", "; TorchServe stops at its start"
    elif key.kind == "json" and not _is_json(value):
        text, ending = "JSON on one line, or with a backslash at the end of each line but the last", ""
        hint = 'models={"resnet50":{"1.0":{"minWorkers":2,"maxWorkers":2,"batchSize":8}}}'
    elif key.allowed and value.lower() not in key.allowed:
        text = listed(key.allowed)
    got = f"got `{written[:200]}`, allowed: {text}{ending}"
    return Finding(key.name, level, "wrong-type", got, hint) if text else None


def _is_json(value: str) -> bool:
    try:
        # Gson, which TorchServe uses, takes single quotes for double ones.
        return isinstance(json.loads(value if '"' in value else value.replace("'", '"')), dict)
    except (ValueError, RecursionError):
        return False


def _check_traps(values: Mapping[str, str]) -> Iterator[Finding]:
    for key, when, rule, text, hint in _TRAPS:
        value = values.get(key)
        is_caught = value is None if when is None else re.fullmatch(when, value or "", re.IGNORECASE) is not None
        if is_caught and not (rule == "metrics-mode" and values.get("enable_metrics_api", "").lower() == "false"):
            yield Finding(key, "warning", rule, text, hint.replace("{value}", value or ""))
    for key in ("management_address", "metrics_address"):
        match = _ADDRESS.fullmatch(values.get(key, ""))
        if match and match["host"] and "$$" not in values[key] and not _LOCAL.fullmatch(match["host"]):
            risk = "anyone who can reach it may scale models and register workflows"
            text = f"`{match['host']}` is not loopback: {risk if 'management' in key else 'it is open to the network'}"
            yield Finding(key, "warning", "open-address", text, f"{key}={PROPERTIES[key].default}")


def _lint_model_config(data: bytes, file: str) -> Iterator[Finding]:
    values, lines, problems = read_model_config(data, file)
    if "name" in values and "model" in values:
        text = f"{file}: this is a spec of Marina, allowed: a `config.properties` or `{MODEL_FILE}` of TorchServe"
        raise InputError(text, hint=f"marina check {quote(file)}")
    for problem in problems:
        hint = problem.hint if values else None
        yield Finding(problem.field, "error", "not-readable", problem.text, hint, problem.line)
    wrong = {problem.field for problem in problems}
    for name, value in values.items():
        if name not in wrong and (finding := _check_setting(name, value)):
            wrong |= {name} if finding.level == "error" else set()
            yield replace(finding, line=lines[name])
    if values:
        for finding in _check_combinations({name: values[name] for name in values.keys() - wrong}, values):
            yield replace(finding, line=lines.get(finding.key, 1))


def _check_setting(name: str, value: Any) -> Finding | None:
    key = MODEL_CONFIG.get(name)
    if key is None:
        return None if name in HANDLER_SECTIONS else _unknown_setting(name, value)
    got, hint, ending = f"got `{_written(value)}`, allowed:", f"{name}: {key.default}", "TorchServe ignores it"
    if not _fits(value, key):
        return Finding(name, "error", "wrong-type", f"{got} {_TYPES[key.kind][0]}; {ending}", hint)
    if key.kind == "int" and not key.low <= value < 2**31:
        return Finding(name, "error", "wrong-type", f"{got} {key.low} or more ({key.note}), below {2**31}", hint)
    if key.allowed and value.lower() not in key.allowed:
        hint = "deviceType: gpu" if value.lower().startswith("cuda") else hint
        return Finding(name, "error", "wrong-type", f"{got} {listed(key.allowed)}; {ending}", hint)
    return None


def _fits(value: Any, key: Key) -> bool:
    if key.kind == "list":
        return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return isinstance(value, _TYPES[key.kind][1]) and (key.kind == "bool" or not isinstance(value, bool))


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:80]


def _unknown_setting(name: str, value: Any) -> Finding:
    if found := _meant(name, MODEL_CONFIG):
        real, in_model_file = found
        place, write = ("", ": ") if in_model_file else (" in config.properties", "=")
        text = f"unknown key, TorchServe silently ignores it; did you mean `{real}`{place}?"
        return Finding(name, "error", "unknown-key", text, f"{real}{write}{_written(value)}{place}")
    text = "TorchServe does not know it and passes it to the handler"
    hint = f"delete it, unless the handler reads model_yaml_config['{name}']"
    return Finding(name, "warning", "unknown-key", text, hint)


def _check_combinations(values: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """The worst of what is right by itself; `values` are those of `given` without errors."""
    yield from _check_workers(values, given)
    yield from _check_timeouts(values, given)
    size, alone = values.get("batchSize", 1), [key for key in ("asyncCommunication", "useJobTicket") if values.get(key)]
    if "batchSize" not in given and not alone:
        yield Finding("batchSize", "warning", "batch-size", "not set, so it is 1: nothing is batched", "batchSize: 8")
    for key in alone if size > 1 else ():
        yield Finding(key, "error", "one-by-one", f"does not work with `batchSize` {size}", "batchSize: 1")
    if values.get("maxBatchDelay") == 0:
        text = "0 does not mean no delay, it means the default of 100 ms"
        yield Finding("maxBatchDelay", "error", "batch-delay", text, "maxBatchDelay: 1")


def _check_workers(values: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    low, high = values.get("minWorkers"), values.get("maxWorkers")
    missing = [key for key in ("minWorkers", "maxWorkers") if key not in given]
    if len(missing) == 2:
        text = f"neither it nor `maxWorkers` is set: {_DEFAULT_WORKERS}"
        yield Finding("minWorkers", "warning", "workers", text, "minWorkers: 1 and maxWorkers: 1")
    elif missing:
        other = "minWorkers" if missing[0] == "maxWorkers" else "maxWorkers"
        text = f"`{missing[0]}` is not set, and without it `{other}` is ignored: {_DEFAULT_WORKERS}"
        yield Finding(other, "error", "workers", text, f"{missing[0]}: {values.get(other) or 1}")
    elif low is not None and high is not None and high < low:
        text = f"got `{high}`, which is under `minWorkers` {low}, so both are ignored: {_DEFAULT_WORKERS}"
        yield Finding("maxWorkers", "error", "workers", text, f"maxWorkers: {low}")
    elif low is not None and high is not None and high > low:
        text = f"got `{high}`, but TorchServe never scales from `minWorkers` {low} up to it: {low} will run"
        yield Finding("maxWorkers", "warning", "workers-differ", text, f"minWorkers: {high}, or maxWorkers: {low}")


def _check_timeouts(values: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    for key in ("responseTimeout", "startupTimeout"):
        if key not in given:
            text = "not set, so it is 120 seconds, whatever config.properties and the register call say"
            yield Finding(key, "warning", "timeout-reset", text, f"{key}: 120")
    window, startup = values.get("maxRetryTimeoutInSec", 300), values.get("startupTimeout", 120)
    if window < startup + 60:
        text = f"{window} seconds, less than `startupTimeout` {startup} + 60: a worker may be given up while it loads"
        yield Finding("maxRetryTimeoutInSec", "warning", "retry-window", text, f"maxRetryTimeoutInSec: {startup + 60}")
    if values.get("clientTimeoutInMills", 0) > 0:
        text = "a request that waits longer is dropped without an answer, and its client hangs"
        yield Finding("clientTimeoutInMills", "error", "client-timeout", text, "delete the line, set responseTimeout")
