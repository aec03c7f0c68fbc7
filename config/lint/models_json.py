"""The rules about `models` in config.properties: JSON with settings by model name and version."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from marina.config.errors import listed, nearest
from marina.config.lint.finding import Finding
from marina.config.lint.torchserve_keys import MODELS_JSON, MODELS_JSON_OF_SNAPSHOTS, MODELS_JSON_RUNTIMES

_SHAPE = 'models={"resnet50":{"1.0":{"minWorkers":2,"maxWorkers":2,"batchSize":8}}}'
_STOPS = "TorchServe stops at its start"


def _mistake(text: str, hint: str) -> Finding:
    return Finding("models", "error", "models-json", text, hint)


def check_models_json(value: str) -> Iterator[Finding]:
    """Everything that is wrong in the value of `models`."""
    try:
        # Gson, which TorchServe uses, takes single quotes for double ones.
        data = json.loads(value if '"' in value else value.replace("'", '"'), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as err:
        hint = f"{_SHAPE}, on one line or with a backslash at the end of each line but the last"
        yield _mistake(f"not JSON, {_STOPS}: {err}", hint)
        return
    for model, versions in _mapping(data).items():
        if not _is_mapping_of_mappings(versions):
            yield _mistake(f"`{model}`: not a mapping of versions to settings, {_STOPS}", _SHAPE)
            continue
        for version, settings in versions.items():
            for name, setting in settings.items():
                yield from _check_setting(f"{model}.{version}.{name}", name, setting)
    if not isinstance(data, dict) or not data:
        yield _mistake("names no model, so it configures nothing", _SHAPE)


def _check_setting(place: str, name: str, value: Any) -> Iterator[Finding]:
    allowed = (*MODELS_JSON, "runtimeType")
    if name in MODELS_JSON_OF_SNAPSHOTS:
        return
    if name not in allowed:
        meant = nearest(name, allowed)
        suffix = f"; did you mean `{meant}`?" if meant else f"; allowed: {listed(allowed)}"
        yield _mistake(f"`{place}`: TorchServe does not read it here{suffix}", f"write `{meant or allowed[0]}`")
    elif name == "runtimeType":
        if value not in MODELS_JSON_RUNTIMES:
            yield _mistake(
                f"`{place}`: got `{value}`, allowed: {listed(MODELS_JSON_RUNTIMES)}", '"runtimeType":"python"'
            )
    elif not _is_count(value):
        yield _mistake(f"`{place}`: got `{json.dumps(value)}`, allowed: a whole number above 0", f'"{name}":1')


def _is_count(value: Any) -> bool:
    if isinstance(value, str):  # Gson reads "8" as 8
        return re.fullmatch(r"0*[1-9][0-9]{0,9}", value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _mapping(data: Any) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


def _is_mapping_of_mappings(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(value, dict) for value in data.values())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"given twice: {listed(twice)}")
    return dict(pairs)
