"""Checks whether a package was made from the spec as it is now: compares the packed settings with the spec's."""

from pathlib import Path
from typing import Any

import yaml

from marina.config.errors import ArchiveError, SpecError
from marina.config.mar import open_mar
from marina.config.record import Record
from marina.config.render import render_model_config
from marina.config.spec import Spec
from marina.config.yaml_lines import read_yaml

_MODEL_CONFIG = "model-config.yaml"


def check_settings(spec: Spec, mar: Path, record: Record) -> None:
    """Raises ArchiveError if a setting in the MAR differs from the spec's; without a MAR, its record is used."""
    model = spec.model
    wanted: dict[str, Any] = {"threads": spec.threads, "cpu_target": model.cpu_target}
    if model.adopted:
        wanted |= {"name": spec.url_name, "version": spec.url_version, "envelope": model.envelope}
    wanted |= yaml.safe_load(render_model_config(spec))
    packed = _packed_settings(mar, record)
    stale = [f"`{key}` is {value}, now {wanted.get(key)}" for key, value in packed.items() if wanted.get(key) != value]
    stale += [f"`{key}` is None, now {wanted[key]}" for key in wanted if mar.exists() and key not in packed]
    if stale:
        raise ArchiveError(
            f"{mar}: packaged before the spec changed: {', '.join(stale)}", hint=f"marina package {spec.file}"
        )


def check_compiled(spec: Spec, mar: Path, record: Record) -> None:
    """Raises ArchiveError if the package was made with `--quick`, or before the spec's `compile` or `precision`
    changed."""
    wanted = {"compile": spec.model.compile, "precision": spec.model.precision}
    packed = {"compile": record.compile, "precision": record.precision}
    if stale := [f"`{key}` is {packed[key]}, now {wanted[key]}" for key in wanted if packed[key] != wanted[key]]:
        raise ArchiveError(
            f"{mar}: packaged with `--quick`, or before the spec changed: {', '.join(stale)}",
            hint=f"marina package {spec.file}",
        )


def _packed_settings(mar: Path, record: Record) -> dict[str, Any]:
    # These two are compiled into the artifact, and are in no file of TorchServe's.
    compiled_in: dict[str, Any] = {"threads": record.threads, "cpu_target": record.key.target}
    if record.archive is not None:
        compiled_in |= record.archive.model_dump(include={"name", "version", "envelope"})
    if not mar.exists():
        return compiled_in | {"minWorkers": record.workers, "maxWorkers": record.workers}
    with open_mar(mar) as archive:
        text = archive.read(_MODEL_CONFIG)
        # A server also reads the sample when it starts, so it must be readable.
        archive.read(record.sample.file)
    try:
        settings, _, problems = read_yaml(text.decode("utf-8", "replace"), f"{mar}: `{_MODEL_CONFIG}`")
    except SpecError as err:
        problems = err.problems
    if problems:
        raise ArchiveError(str(problems[0]), hint="marina package SPEC")
    return compiled_in | settings
