"""Whether a package was made for the spec as it is now: the settings in the package against those of the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from config.errors import ArchiveError
from config.mar import open_mar
from config.record import Record
from config.render import render_model_config
from config.spec import Spec

_MODEL_CONFIG = "model-config.yaml"


def check_settings(spec: Spec, mar: Path, record: Record) -> None:
    """ArchiveError when a setting of the package is not the spec's; where the MAR is not here, its record is asked."""
    wanted: dict[str, Any] = {"threads": spec.threads, "cpu_target": spec.model.cpu_target} | yaml.safe_load(
        render_model_config(spec)
    )
    packed = _packed(mar, record)
    stale = [f"`{key}` is {value}, now {wanted.get(key)}" for key, value in packed.items() if wanted.get(key) != value]
    stale += [f"`{key}` is None, now {wanted[key]}" for key in wanted if mar.exists() and key not in packed]
    if stale:
        raise ArchiveError(
            f"{mar}: packaged before the spec changed: {', '.join(stale)}", hint=f"marina package {spec.file}"
        )


def check_compiled(spec: Spec, mar: Path, record: Record) -> None:
    """ArchiveError when a package was made for a first look, or before the spec asked for another artifact."""
    wanted = {"compile": spec.model.compile, "precision": spec.model.precision}
    packed = {"compile": record.compile, "precision": record.precision}
    if stale := [f"`{key}` is {packed[key]}, now {wanted[key]}" for key in wanted if packed[key] != wanted[key]]:
        raise ArchiveError(
            f"{mar}: packaged with `--quick`, or before the spec changed: {', '.join(stale)}",
            hint=f"marina package {spec.file}",
        )


def _packed(mar: Path, record: Record) -> dict[str, Any]:
    if not mar.exists():
        return _of_record(record) | {"minWorkers": record.workers, "maxWorkers": record.workers}
    with open_mar(mar) as archive:
        text = archive.read(_MODEL_CONFIG)
        # What else a start reads must be there, too.
        archive.read(record.sample.file)
    try:
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as err:
        raise ArchiveError(f"{mar}: `{_MODEL_CONFIG}`: not readable as YAML", hint="marina package SPEC") from err
    if not isinstance(settings, dict):
        raise ArchiveError(f"{mar}: `{_MODEL_CONFIG}`: is not a mapping", hint="marina package SPEC")
    return _of_record(record) | settings


def _of_record(record: Record) -> dict[str, Any]:
    """What is compiled in, and in no file of TorchServe's."""
    return {"threads": record.threads, "cpu_target": record.key.target}
