"""The file that declares metrics to TorchServe: its own, and those that an archive's handler makes.

One mistake in it costs TorchServe every metric, and says so in a log only. So the handler's are read strictly, and the
file is written anew, with TorchServe's own as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from marina.config.errors import Problem, SpecError, listed
from marina.config.machine import torchserve_home
from marina.config.yaml_lines import Location, line_of, read_yaml

_KINDS = ("counter", "gauge", "histogram")
_FIELDS = ("dimensions", "name", "unit")
_SECTION = "model_metrics"


def torchserves_file() -> Path:
    """The file that TorchServe comes with."""
    return torchserve_home() / "ts" / "configs" / "metrics.yaml"


def torchserves_names() -> frozenset[str]:
    """The names of the metrics that TorchServe counts itself."""
    return _names(_torchserves())


def render_metrics(declared: str, file: str) -> str:
    """TorchServe's file with the metrics that a handler's file declares; SpecError for each mistake in that."""
    whole = _torchserves()
    # Without any, a worker does not start.
    whole[_SECTION] = _declared(declared, file, _names(whole)) or whole[_SECTION]
    return yaml.safe_dump(whole, sort_keys=False)


def _torchserves() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(torchserves_file().read_text(encoding="utf-8"))
    return data


def _names(whole: dict[str, Any]) -> frozenset[str]:
    return frozenset(metric["name"] for metrics in whole["ts_metrics"].values() for metric in metrics)


def _declared(text: str, file: str, taken: frozenset[str]) -> dict[str, Any]:
    data, lines, problems = read_yaml(text, file)
    kinds = data.get(_SECTION) or {}
    found = [
        Problem(file, line_of(lines, (_SECTION, *place)), ".".join(map(str, (_SECTION, *place))), text)
        for place, text in _mistakes(kinds, taken)
    ]
    if problems or found:
        raise SpecError([*problems, *found])
    return {kind: metrics for kind, metrics in kinds.items() if metrics}


def _mistakes(kinds: Any, taken: frozenset[str]) -> Iterator[tuple[Location, str]]:
    if not isinstance(kinds, dict):
        yield (), f"allowed: {listed(_KINDS)}, each with a list"
        return
    seen = set(taken)
    for kind, metrics in kinds.items():
        if kind not in _KINDS or not isinstance(metrics, list | None):
            yield (kind,), f"allowed: {listed(_KINDS)}, each with a list"
            continue
        for place, metric in enumerate(metrics or ()):
            if text := _mistake(metric, seen):
                yield (kind, place), text
            else:
                seen.add(metric["name"])


def _mistake(metric: Any, seen: set[str]) -> str | None:
    if not isinstance(metric, dict) or sorted(metric) != list(_FIELDS):
        got = f"got {listed(map(str, metric))}, " if isinstance(metric, dict) else ""
        return f"{got}allowed: {listed(_FIELDS)}; with anything else TorchServe reads none of the file"
    names = metric["dimensions"]
    if not (isinstance(metric["name"], str) and isinstance(metric["unit"], str) and _all_text(names)):
        return "allowed: texts for `name` and `unit`, and a list of texts for `dimensions`"
    return f"`{metric['name']}` is taken by another metric" if metric["name"] in seen else None


def _all_text(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
