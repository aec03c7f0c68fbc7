"""The rules about config.properties: unknown keys, values that TorchServe misreads, and settings that do harm."""

import json
import re
from collections.abc import Iterator

from marina.config.errors import nearest
from marina.config.lint.addresses import check_addresses
from marina.config.lint.finding import Finding, Level, on_line
from marina.config.lint.java_properties import Property, read_as_launcher, read_properties
from marina.config.lint.models_json import check_models_json
from marina.config.lint.torchserve_keys import (
    INVENTED_PROPERTIES,
    LAUNCHER_KEYS,
    MODEL_CONFIG,
    MODEL_FILE,
    PROPERTIES,
    environment_names,
)
from marina.config.lint.torchserve_traps import TRAPS
from marina.config.lint.values import check_value

_BOM = "\u00ef\u00bb\u00bf"  # a UTF-8 byte order mark, as Latin-1 reads it
_REPLACED = re.compile(r"\$\$([^$]+[^$])\$\$")
_SHELL_VARIABLE = re.compile(r"\$\{\w+\}|\$\$?[A-Za-z_]\w*\$?\$?")
_IGNORED = "unknown key, TorchServe silently ignores it"


Entries = dict[str, Property]
"""The properties of a file by key; of a key that is given twice, the last one, as in Java."""


def lint_properties(data: bytes, _file: str) -> Iterator[Finding]:
    """Every finding in the bytes of a config.properties."""
    text = data.decode("latin-1")  # as java.util.Properties does
    every = read_properties(text.removeprefix(_BOM))
    entries = {entry.key: entry for entry in every}
    yield from _check_encoding(data)
    yield from _check_duplicates(every)
    yield from _check_launcher(entries, read_as_launcher(text))
    for entry in entries.values():
        yield from on_line(entry.line, _check_entry(entries, entry))
    for finding in check_addresses({key: entry.value.strip() for key, entry in entries.items()}):
        yield from on_line(entries[finding.key].line, [finding])
    for key in PROPERTIES.keys() - entries.keys():
        yield from _check_traps(entries, key)


def _check_encoding(data: bytes) -> Iterator[Finding]:
    if data.startswith(b"\xef\xbb\xbf"):
        text = "starts with a byte order mark, which Java reads as part of the first key"
        yield Finding("", "error", "encoding", text, "save the file as UTF-8 without a byte order mark")
    for number, line in enumerate(data.splitlines(), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            text = "not UTF-8, the torchserve launcher stops with an error"
            yield Finding("", "error", "encoding", text, "save the file as UTF-8", number)


def _check_duplicates(entries: list[Property]) -> Iterator[Finding]:
    first: dict[str, Property] = {}
    for entry in entries:
        earlier = first.setdefault(entry.key, entry)
        if earlier is not entry:
            level: Level = "warning" if earlier.value == entry.value else "error"
            text = f"given twice, first on line {earlier.line}; the last one wins"
            yield Finding(entry.key, level, "duplicate-key", text, "delete one of the two lines", entry.line)


def _check_launcher(entries: Entries, seen: dict[str, str]) -> Iterator[Finding]:
    for key in LAUNCHER_KEYS:
        entry = entries.get(key)
        if entry is None:
            continue
        if seen.get(key) != entry.value.strip():
            got = f"`{seen[key]}`" if key in seen else "nothing"
            text = f"the torchserve launcher reads {got}: it knows `=` only, no continuation lines and no escapes"
            hint = f"write it on one line: {key}={entry.value.strip()}"
            if key != "vmargs" and "\\" in seen.get(key, "").rstrip("\\"):
                hint = f"write `/` for each backslash: {key}=" + re.sub(r"\\+", "/", seen[key])
            yield Finding(key, "error", "launcher-line", text, hint, entry.line)
        if _REPLACED.search(entry.value):
            text = "the torchserve launcher does not replace `$$NAME$$`"
            yield Finding(
                key, "error", "dollar-substitution", text, f"write the value itself: {key}=<value>", entry.line
            )


def _check_entry(entries: Entries, entry: Property) -> Iterator[Finding]:
    if entry.malformed:
        text = "`\\u` without four hexadecimal digits, TorchServe stops at its start"
        yield Finding(entry.key, "error", "escape", text, "write `\\\\` for a backslash")
        return
    yield from _check_characters(entry)
    if entry.key not in PROPERTIES:
        yield _unknown(entry, has_plugins="plugins_path" in entries)
        return
    key = PROPERTIES[entry.key]
    findings = check_models_json(entry.value) if key.kind == "json" else check_value(key, entry)
    # Of `$$NAME$$`, TorchServe reads the value of the environment variable.
    wrong = [] if _REPLACED.search(entry.value) else list(findings)
    yield from wrong or _check_traps(entries, entry.key)


def _check_characters(entry: Property) -> Iterator[Finding]:
    given = entry.raw.encode("latin-1").decode("utf-8", "replace")
    if not entry.raw.isascii() and "\ufffd" not in given:
        escaped = re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], given)
        text = f"Java reads the file as Latin-1, and so `{given}` as `{entry.raw}`"
        yield Finding(entry.key, "error", "encoding", text, escaped)
    if entry.lost:
        text = f"Java drops the backslash before {', '.join(f'`{char}`' for char in sorted(entry.lost))}"
        yield Finding(entry.key, "error", "lost-backslash", text, "write each backslash twice")
    if entry.key in ("allowed_urls", "blacklist_env_vars", "models"):  # a dollar has another meaning here
        return
    left = _SHELL_VARIABLE.search(_REPLACED.sub("", entry.value))
    if left and entry.key in LAUNCHER_KEYS:
        hint = f"write the value itself: {entry.key}=<value>"
        yield Finding(entry.key, "error", "dollar-substitution", f"`{left[0]}` is not replaced", hint)
    elif left:
        name = re.sub(r"\W", "", left[0])
        text = f"`{left[0]}` is not replaced, TorchServe replaces only `$$NAME$$` with a name of two or more characters"
        hint = f"write `$${name if len(name) > 1 else 'NAME'}$$`"
        yield Finding(entry.key, "error", "dollar-substitution", text, hint)


def _unknown(entry: Property, *, has_plugins: bool) -> Finding:
    invented = INVENTED_PROPERTIES.get(entry.key)
    variable = environment_names().get(entry.key)
    if variable:
        text = f"{_IGNORED}; `{entry.key}` is the environment variable of `{variable}`"
        hint = f"{variable}={entry.value}, or enable_envvars_config=true here and {entry.key} in the environment"
        return Finding(entry.key, "error", "env-switch", text, hint)
    if invented and not invented.real:
        return Finding(entry.key, "error", "unknown-key", f"{_IGNORED} and has nothing like it", "delete the line")
    if invented:
        where = f" in {invented.file}" if invented.file == MODEL_FILE else ""
        text, hint = f"{_IGNORED}; did you mean `{invented.real}`{where}?", invented.write.format(value=entry.value)
        return Finding(entry.key, "error", "unknown-key", text, f"write `{hint}`{where} and delete this line")
    if entry.key in MODEL_CONFIG:
        text, hint = f"{_IGNORED}; it is a key of {MODEL_FILE}", f"write `{entry.key}: {entry.value}` in {MODEL_FILE}"
        return Finding(entry.key, "error", "unknown-key", text, hint)
    if re.match(r"[\"{}\[\],]|$", entry.key):
        text = f"{_IGNORED}; it looks like the rest of the previous line"
        return Finding(entry.key, "error", "unknown-key", text, "end each line but the last with a backslash")
    meant = nearest(re.sub(r"[-.\s]", "_", entry.key).lower(), PROPERTIES)
    if meant:
        text = f"{_IGNORED}; did you mean `{meant}`?"
        return Finding(entry.key, "error", "unknown-key", text, f"{meant}={entry.value}")
    level: Level = "warning" if has_plugins else "error"  # a plugin may read keys of its own
    return Finding(entry.key, level, "unknown-key", _IGNORED, "delete the line")


def _check_traps(entries: Entries, key: str) -> Iterator[Finding]:
    entry = entries.get(key)
    for trap in TRAPS:
        is_caught = entry is None if trap.when is None else _matches(entries, key, trap.when)
        if trap.key == key and is_caught and not _matches(entries, trap.unless_key, trap.unless):
            hint = trap.hint.replace("{value}", entry.value if entry else "")
            yield Finding(key, trap.level, trap.rule, trap.text, hint)


def _matches(entries: Entries, key: str, pattern: str) -> bool:
    entry = entries.get(key)
    return entry is not None and re.fullmatch(pattern, entry.value.strip(), re.IGNORECASE) is not None
