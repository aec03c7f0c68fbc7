"""Writes settings into the text of a spec, keeping its comments and order, and makes a patch of the change."""

import difflib
from typing import Any

import yaml

from marina.loadtest.calibrating.evidence import ServingSettings

_INDENT = "  "


def with_settings(text: str, settings: ServingSettings) -> str:
    """The text of the spec with these settings under `serving`."""
    edits: list[tuple[int, int, str]] = []
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    serving = _value(root, "serving")
    wanted = {key: str(value) for key, value in settings.model_dump().items()}
    if serving is None:
        block = "".join(f"{_INDENT}{key}: {value}\n" for key, value in wanted.items())
        return f"{text.rstrip()}\nserving:\n{block}"
    missing = []
    for key, value in wanted.items():
        node = _value(serving, key)
        if node is None:
            missing.append(f"{key}: {value}")
        elif node.value != value:
            edits.append((node.start_mark.index, node.end_mark.index, value))
    if missing:
        edits.append(_insertion(serving, missing))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def settings_patch(before: str, after: str, file: str) -> str:
    """A patch of the change."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), file, file)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _value(mapping: Any, key: str) -> Any:
    return next((value for name, value in mapping.value if name.value == key), None)


def _insertion(serving: Any, lines: list[str]) -> tuple[int, int, str]:
    if serving.flow_style:
        at = serving.start_mark.index + 1
        return at, at, ", ".join([*lines, ""] if serving.value else lines)
    first = serving.value[0][0].start_mark
    indent = " " * first.column
    return first.index, first.index, "".join(f"{line}\n{indent}" for line in lines)
