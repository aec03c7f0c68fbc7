"""A recording of a real autoscaler: a file with a line of JSON for each time at which its object was read.

{"at": 1767225600.0, "spec": {...}, "status": {...}, "ready": 3, "running": 4, "read": {"cpu": 4}}

`spec` may be missing after the first line; `ready`, `running` and `read` may always be missing."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.errors import InputError, as_input_error
from marina.config.quantity import quantity
from marina.k8s.simulating.hpa import Hpa, Metric, read_hpa
from marina.k8s.simulating.traffic import DAY_S, LATEST_S, LONGEST_S

_HINT = "kubectl get hpa NAME -w -o json | jq -c --unbuffered '{at: now, spec, status}' > hpa.jsonl"


@dataclass(frozen=True)
class Observation:
    """The autoscaler's object at one moment."""

    at_s: float
    """Since the first line."""
    replicas: int
    desired: int
    values: Mapping[str, int]
    """The mean of each metric that had a value, in thousandths of its unit; of a resource, of the request."""
    active: bool
    """Whether the controller had the metrics to decide."""
    ready: int | None
    """Pods that were ready; None if not recorded."""
    running: int | None
    """Pods that had started; None: those that were ready."""
    read: Mapping[str, int]
    """Pods for which a metric had a value, if these were not the ready ones."""

    @property
    def status(self) -> tuple[Any, ...]:
        """What the controller writes. If it is equal in two observations, nothing has changed."""
        return self.replicas, self.desired, tuple(sorted(self.values.items())), self.active


@dataclass(frozen=True)
class Recording:
    """A file of observations, and the settings of the autoscaler."""

    name: str
    hpa: Hpa
    seen: tuple[Observation, ...]


def read_recording(file: Path) -> Recording:
    """Reads a recording. Raises InputError that names the first line that cannot be used."""
    with as_input_error(f"{file}: cannot be read", hint=_HINT):
        texts = file.read_text(encoding="utf-8").splitlines()
    seen: list[Observation] = []
    first: dict[str, Any] | None = None
    hpa: Hpa | None = None
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        line = _parsed(text, f"{file}:{number}", {"spec": first["spec"]} if first else {})
        hpa, first = hpa or _autoscaler(line, f"{file}:{number}"), first or line
        if line["spec"] != first["spec"]:
            raise InputError(
                f"{file}:{number}: `spec` differs from the first line's, allowed: one `spec`",
                hint="record each autoscaler in a file of its own",
            )
        # The status is empty until the controller's first sync.
        if line["status"].get("conditions"):
            seen.append(_seen(line, first["at"], hpa, f"{file}:{number}"))
            if len(seen) > 1 and seen[-1].at_s < seen[-2].at_s:
                raise InputError(f"{file}:{number}: got `at` {line['at']}, allowed: ascending times", hint=_HINT)
    if hpa is None or len(seen) < 2:
        raise InputError(f"{file}: holds {len(seen)} readings of an autoscaler, allowed: two or more", hint=_HINT)
    if (span_s := seen[-1].at_s - seen[0].at_s) > LONGEST_S:
        raise InputError(f"{file}: spans {span_s / DAY_S:.0f} days, allowed: {LONGEST_S // DAY_S} at most", hint=_HINT)
    return Recording(file.name, hpa, tuple(seen))


def _parsed(text: str, where: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except (RecursionError, ValueError) as err:
        raise InputError(f"{where}: not a line of JSON: {err}", hint=_HINT) from err
    parsed: dict[str, Any] = {**known, **line} if isinstance(line, dict) else {}
    at = parsed.get("at")
    if not isinstance(at, int | float) or not abs(at) < LATEST_S:
        raise InputError(f"{where}: `at`: got `{at}`, allowed: seconds", hint=_HINT)
    for key in ("spec", "status"):
        if not isinstance(parsed.get(key), dict):
            raise InputError(f"{where}: `{key}`: got `{parsed.get(key)}`, allowed: the autoscaler's own", hint=_HINT)
    return parsed


def _autoscaler(line: dict[str, Any], where: str) -> Hpa:
    hint = "`kubectl get hpa NAME -o json` prints it in the form of autoscaling/v2"
    hpa = read_hpa({"kind": "HorizontalPodAutoscaler", "spec": line["spec"]}, f"{where}: `spec`", hint)
    names = [metric.name for metric in hpa.metrics]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: `spec.metrics`: two have the same name: {', '.join(sorted(names))}")
    return hpa


def _seen(line: dict[str, Any], begin: float, hpa: Hpa, where: str) -> Observation:
    status = line["status"]
    try:
        replicas, desired = int(status.get("currentReplicas", 0)), int(status["desiredReplicas"])
        current = [part for part in map(_value, status.get("currentMetrics") or []) if part]
        active = next(
            (condition["status"] for condition in status["conditions"] if condition["type"] == "ScalingActive"), "False"
        )
        ready, running = (None if line.get(key) is None else int(line[key]) for key in ("ready", "running"))
        read = {str(name): int(count) for name, count in (line.get("read") or {}).items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as err:
        raise InputError(
            f"{where}: `status`: not a HorizontalPodAutoscaler's: {type(err).__name__}: {err}", hint=_HINT
        ) from err
    known = {metric.name: metric for metric in hpa.metrics}
    values = {name: value for name, value in current if name in known}
    at_s = float(line["at"]) - float(begin)
    return Observation(at_s, replicas, desired, values, active == "True", ready, running, read)


def _value(part: dict[str, Any]) -> tuple[str, int] | None:
    """The name and mean of a metric; None for another type, such as the empty one of a metric without a value."""
    kind = part.get("type")
    if kind in ("External", "Pods"):
        body = part[kind.lower()]
        return body["metric"]["name"], math.ceil(1000 * quantity(str(body["current"]["averageValue"])) - 1e-6)
    if kind in ("ContainerResource", "Resource"):
        body = part["resource" if kind == "Resource" else "containerResource"]
        return body["name"], 10 * int(body["current"]["averageUtilization"])
    return None


def describe_metric(metric: Metric, value: int | None) -> str:
    """A metric's name, mean and target, for people."""
    if value is None:
        return f"{metric.name} unknown"
    if metric.kind == "Resource":
        return f"{metric.name} {value // 10} % of {metric.target:g} %"
    return f"{metric.name} {value / 1000:g} of {metric.target:g}"
