"""What a real autoscaler was seen to do, from its object as it changed: lines of JSON, each with the time at which the
object was read.

{"at": 1767225600.0, "spec": {...}, "status": {...}, "ready": 3, "running": 4, "read": {"cpu": 4}}

After the first line `spec` may be missing, and the last three anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.errors import InputError
from config.quantity import quantity
from k8s.simulating.hpa import Hpa, Metric, read_hpa

_HINT = "kubectl get hpa NAME -w -o json | jq -c --unbuffered '{at: now, spec, status}' > hpa.jsonl"


@dataclass(frozen=True)
class Seen:
    """The autoscaler's object as it was read once."""

    at_s: float
    """Since the first line."""
    replicas: int
    desired: int
    values: Mapping[str, int]
    """The mean of each metric that had a value: thousandths of its unit, of a resource thousandths of the request."""
    active: bool
    """Whether its metrics sufficed to decide."""
    ready: int | None
    """Pods that were ready; None where nobody looked."""
    running: int | None
    """Pods that had started; None: those that were ready."""
    read: Mapping[str, int]
    """Pods of which a metric had a reading, where they were not those that were ready."""

    @property
    def status(self) -> tuple[Any, ...]:
        """What the controller writes: where it is the same again, nothing of it has changed."""
        return self.replicas, self.desired, tuple(sorted(self.values.items())), self.active


@dataclass(frozen=True)
class Recording:
    """A file of them, and the autoscaler that they are of."""

    name: str
    hpa: Hpa
    seen: tuple[Seen, ...]


def read_recording(file: Path) -> Recording:
    """From a file; InputError names the line that cannot be used."""
    try:
        texts = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise InputError(f"{file}: cannot be read: {err}", hint=_HINT) from err
    seen: list[Seen] = []
    first: dict[str, Any] | None = None
    hpa: Hpa | None = None
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        line = _parsed(text, f"{file}:{number}", {"spec": first["spec"]} if first else {})
        hpa, first = hpa or _autoscaler(line, f"{file}:{number}"), first or line
        if line["spec"] != first["spec"]:
            raise InputError(
                f"{file}:{number}: `spec` is not that of the first line, allowed: one", hint="record each by itself"
            )
        # Before its first look, a status says nothing.
        if line["status"].get("conditions"):
            seen.append(_seen(line, first["at"], hpa, f"{file}:{number}"))
            if len(seen) > 1 and seen[-1].at_s < seen[-2].at_s:
                raise InputError(f"{file}:{number}: got `at` {line['at']}, allowed: times that ascend", hint=_HINT)
    if hpa is None or len(seen) < 2:
        raise InputError(f"{file}: holds {len(seen)} readings of an autoscaler, allowed: two or more", hint=_HINT)
    return Recording(file.name, hpa, tuple(seen))


def _parsed(text: str, where: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as err:
        raise InputError(f"{where}: is not a line of JSON: {err}", hint=_HINT) from err
    parsed: dict[str, Any] = {**known, **line} if isinstance(line, dict) else {}
    if not isinstance(parsed.get("at"), int | float):
        raise InputError(f"{where}: `at`: got `{parsed.get('at')}`, allowed: seconds", hint=_HINT)
    for key in ("spec", "status"):
        if not isinstance(parsed.get(key), dict):
            raise InputError(f"{where}: `{key}`: got `{parsed.get(key)}`, allowed: the autoscaler's own", hint=_HINT)
    return parsed


def _autoscaler(line: dict[str, Any], where: str) -> Hpa:
    try:
        hpa = read_hpa({"kind": "HorizontalPodAutoscaler", "spec": line["spec"]})
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        allowed = "allowed: metrics of pods, of external sums by pod, and of resources in percent"
        hint = "`kubectl get hpa NAME -o json` has it in the form of autoscaling/v2"
        raise InputError(f"{where}: `spec`: cannot be replayed, {allowed}", hint=hint) from err
    names = [metric.name for metric in hpa.metrics]
    if len(set(names)) < len(names):
        raise InputError(f"{where}: `spec.metrics`: two are called alike: {', '.join(sorted(names))}")
    return hpa


def _seen(line: dict[str, Any], begin: float, hpa: Hpa, where: str) -> Seen:
    status = line["status"]
    try:
        replicas, desired = int(status.get("currentReplicas", 0)), int(status["desiredReplicas"])
        current = [part for part in map(_value, status.get("currentMetrics") or []) if part]
        active = next(
            (condition["status"] for condition in status["conditions"] if condition["type"] == "ScalingActive"), "False"
        )
        ready, running = (None if line.get(key) is None else int(line[key]) for key in ("ready", "running"))
        read = {str(name): int(count) for name, count in (line.get("read") or {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise InputError(
            f"{where}: `status`: {type(err).__name__} of {err}, which is not its form", hint=_HINT
        ) from err
    known = {metric.name: metric for metric in hpa.metrics}
    values = {name: value for name, value in current if name in known}
    at_s = float(line["at"]) - float(begin)
    return Seen(at_s, replicas, desired, values, active == "True", ready, running, read)


def _value(part: dict[str, Any]) -> tuple[str, int] | None:
    """A metric's name and mean; nothing of one that had no value."""
    kind = part.get("type")
    if kind in ("External", "Pods"):
        body = part[kind.lower()]
        return body["metric"]["name"], math.ceil(1000 * quantity(str(body["current"]["averageValue"])) - 1e-6)
    if kind in ("ContainerResource", "Resource"):
        body = part["resource" if kind == "Resource" else "containerResource"]
        return body["name"], 10 * int(body["current"]["averageUtilization"])
    return None


def in_words(metric: Metric, value: int | None) -> str:
    """A metric's mean and target."""
    if value is None:
        return f"{metric.name} unknown"
    if metric.kind == "Resource":
        return f"{metric.name} {value // 10} % of {metric.target:g} %"
    return f"{metric.name} {value / 1000:g} of {metric.target:g}"
