"""The rules about model-config.yaml: keys and types that TorchServe ignores, and combinations that do harm."""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import yaml

from marina.config.errors import InputError, SpecError, listed, nearest
from marina.config.lint.combinations import check_combinations
from marina.config.lint.finding import Finding, on_line
from marina.config.lint.torchserve_keys import (
    HANDLER_SECTIONS,
    INVENTED_MODEL_CONFIG,
    MODEL_CONFIG,
    MODEL_FILE,
    TORCHRUN,
    Key,
)
from marina.config.yaml_lines import WRONG_VALUE, compose

_IGNORED = "unknown key, TorchServe silently ignores it"
_START = "minWorkers: 1"
_TEXT = "tag:yaml.org,2002:str"
_TYPES: dict[str, tuple[str, type]] = {
    "bool": ("`false`, `true`", bool),
    "int": ("a whole number", int),
    "list": ("a list", list),
    "map": ("a mapping", dict),
    "text": ("a text", str),
}


@dataclass(frozen=True)
class _Setting:
    """One key of a mapping, with its value as TorchServe's YAML reader reads it."""

    name: str
    line: int
    node: yaml.Node
    value: Any

    @property
    def written(self) -> str:
        """The value as it is written in the file, including quotes."""
        if not isinstance(self.node, yaml.ScalarNode):
            return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"
        quote = self.node.style if self.node.style in ("'", '"') else ""
        return f"`{quote}{self.node.value}{quote}`" if self.node.value or quote else "nothing"


def lint_model_config(data: bytes, file: str) -> Iterable[Finding]:
    """Every finding in the bytes of a model-config.yaml called `file`."""
    try:
        node = compose(data.decode("utf-8-sig"), file)
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        text = "not UTF-8, so the Python worker dies at its start, again and again"
        return [Finding("", "error", "encoding", text, "save the file as UTF-8", line)]
    except SpecError as err:
        (problem,) = err.problems
        if not problem.text.startswith("not readable"):  # too large for this linter
            raise
        text = f"{problem.text}; TorchServe takes defaults for everything"
        return [Finding("", "error", "yaml-syntax", text, line=problem.line)]
    if node is None:
        text = "the file is empty, TorchServe stops at its start with a NullPointerException"
        return [Finding("", "error", "empty-file", text, _START)]
    if not isinstance(node, yaml.MappingNode):
        text = "not a mapping of keys to values, TorchServe stops at its start with a ClassCastException"
        return [Finding("", "error", "not-a-mapping", text, _START, node.start_mark.line + 1)]
    keys = [key.value for key, _ in node.value]
    if "name" in keys and "model" in keys:
        text = f"{file}: this is a spec of Marina, allowed: a `config.properties` or `{MODEL_FILE}` of TorchServe"
        raise InputError(text, hint=f"marina check {quote(file)}")
    return [*_check_keys(node), *_check_settings(_settings(node))]


def _check_keys(node: yaml.MappingNode) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value) if isinstance(key, yaml.ScalarNode) else "", key.start_mark.line + 1
        if key.tag not in (_TEXT, "tag:yaml.org,2002:merge"):
            text = "YAML does not read it as text, so TorchServe stops at its start with a ClassCastException"
            yield Finding(name, "error", "key-type", text, f'write "{name}" in quotes' if name else None, line)
        if name in seen and name:
            text = f"given twice, first on line {seen[name]}; the last one wins"
            yield Finding(name, "error", "duplicate-key", text, "delete one of the two lines", line)
        seen[name] = line


def _settings(node: yaml.MappingNode) -> dict[str, _Setting]:
    scalars = yaml.constructor.SafeConstructor()
    settings = {}
    try:
        scalars.flatten_mapping(node)  # `<<: *anchor`
    except yaml.MarkedYAMLError as err:
        line = (err.problem_mark or node.start_mark).line + 1
        settings["<<"] = _Setting("<<", line, node, err)
    for key, value in node.value:
        if key.tag != _TEXT:
            continue
        try:
            read = scalars.construct_object(value, deep=True)
        except WRONG_VALUE as err:  # a tag of Python or Java, an invalid date
            read = err if isinstance(err, (yaml.YAMLError, ValueError)) else ValueError("not what its tag says")
        settings[str(key.value)] = _Setting(str(key.value), key.start_mark.line + 1, value, read)
    return settings


def _check_settings(settings: dict[str, _Setting]) -> Iterator[Finding]:
    good: dict[str, Any] = {}
    for setting in settings.values():
        findings = list(on_line(setting.line, _check_setting(setting)))
        yield from findings
        if not any(finding.level == "error" for finding in findings):
            good[setting.name] = setting.value
    for finding in check_combinations(good, frozenset(settings)):
        yield from on_line(settings[finding.key].line if finding.key in settings else 1, [finding])


def _check_setting(setting: _Setting) -> Iterator[Finding]:
    key = MODEL_CONFIG.get(setting.name)
    if isinstance(setting.value, Exception):
        problem = getattr(setting.value, "problem", None) or setting.value
        text = f"not readable as YAML: {problem}; TorchServe takes defaults for everything"
        yield Finding(setting.name, "error", "yaml-syntax", text, "write a plain value")
    elif key is None:
        if setting.name not in HANDLER_SECTIONS:
            yield _unknown(setting)
    elif key.kind == "map":
        yield from _check_torchrun(setting)
    else:
        yield from _check_value(setting, key)


def _unknown(setting: _Setting) -> Finding:
    invented = INVENTED_MODEL_CONFIG.get(setting.name)
    value = setting.written.strip("`")
    if invented:
        where = "" if invented.file == MODEL_FILE else f" of {invented.file}"
        text = f"{_IGNORED}; did you mean `{invented.real}`{where}?"
        return Finding(setting.name, "error", "unknown-key", text, invented.write.format(value=value))
    plain = {name.lower(): name for name in MODEL_CONFIG}
    close = difflib.get_close_matches(setting.name.replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.85)
    if close:
        meant = plain[close[0]]
        text = f"{_IGNORED}; did you mean `{meant}`?"
        return Finding(setting.name, "error", "unknown-key", text, f"{meant}: {value}")
    text = "TorchServe does not know it and passes it to the handler"
    hint = f"delete it, unless the handler reads model_yaml_config['{setting.name}']"
    return Finding(setting.name, "warning", "unknown-key", text, hint)


def _check_torchrun(setting: _Setting) -> Iterator[Finding]:
    if not isinstance(setting.node, yaml.MappingNode):
        yield _wrong_type(setting, MODEL_CONFIG["torchrun"])
        return
    yield from _check_keys(setting.node)
    for option in _settings(setting.node).values():
        key = TORCHRUN.get(option.name)
        if key is None:
            close = nearest(option.name.replace("_", "-"), TORCHRUN)
            ending = f"did you mean `{close}`?" if close else f"allowed: {listed(TORCHRUN)}"
            text = f"unknown option of `torchrun`, TorchServe ignores it with one line in the log; {ending}"
            hint = f"{close}: {option.written.strip('`')}" if close else "delete the line"
            yield Finding(option.name, "error", "unknown-key", text, hint, option.line)
        else:
            yield from on_line(option.line, _check_value(option, key))


def _check_value(setting: _Setting, key: Key) -> Iterator[Finding]:
    value: Any = setting.value
    if not isinstance(value, _TYPES[key.kind][1]) or (isinstance(value, bool) and key.kind != "bool"):
        yield _wrong_type(setting, key)
    elif key.kind == "int":
        yield from _check_int(setting, key)
    elif key.kind == "list":
        yield from _check_list(setting, key)
    elif key.allowed and str(value).lower() not in key.allowed:
        text = f"got {setting.written}, allowed: {listed(key.allowed)}; TorchServe ignores it with one line in the log"
        hint = f"{key.name}: {'gpu' if str(value).lower().startswith('cuda') else key.allowed[0]}"
        rule = "device-type" if key.name == "deviceType" else "parallel-type"
        yield Finding(key.name, "error", rule, text, hint)


def _check_list(setting: _Setting, key: Key) -> Iterator[Finding]:
    for item, node in zip(setting.value, setting.node.value, strict=True):
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            written = replace(setting, node=node).written
            text = f"got {written} in the list, allowed: whole numbers from 0; TorchServe ignores the list"
            yield Finding(key.name, "error", "device-ids", text, f"{key.name}: [0]")
            return


def _check_int(setting: _Setting, key: Key) -> Iterator[Finding]:
    value, written = setting.value, setting.written.strip("`").lstrip("+-")
    if not -(2**31) <= value < 2**31:
        text = f"got `{written[:60]}`, allowed: below {2**31}; TorchServe ignores it with one line in the log"
        yield Finding(key.name, "error", "int-range", text, f"{key.name}: {key.default}")
    elif ":" in written or (len(written) > 1 and written[0] == "0" and written.isdecimal()):
        how = "in base 60" if ":" in written else "as octal"
        text = f"got `{written}`, which YAML reads {how}: {value}"
        yield Finding(key.name, "error", "yaml-number", text, f"{key.name}: {value}")
    elif key.low is not None and value < key.low:
        text = f"got `{value}`, allowed: {key.low} or more ({key.note}); TorchServe takes {key.below}"
        yield Finding(key.name, "error", "int-range", text, f"{key.name}: {max(key.low, 1)}")


def _wrong_type(setting: _Setting, key: Key) -> Finding:
    text = f"got {setting.written}, allowed: {_TYPES[key.kind][0]}; TorchServe ignores it with one line in the log"
    return Finding(key.name, "error", "wrong-type", text, f"{key.name}: {_meant(setting, key)}")


def _meant(setting: _Setting, key: Key) -> str:
    """What to write instead of a value of the wrong type: the number in it, or else a value that works."""
    number = re.fullmatch(r"(\d+)(\.0*)?", str(setting.node.value))
    if key.kind == "int" and number:
        return str(int(number[1]))
    if key.kind == "int":
        return str(max(int(key.default), 1))
    if key.kind == "bool" and str(setting.node.value).lower() in ("1", "true", "y", "yes", "on"):
        return "true"
    if key.kind == "text" and not key.allowed:
        return f'"{setting.node.value}"'
    return key.default or {"list": "[0]", "map": "{nproc-per-node: 2}"}.get(key.kind) or key.allowed[0]
